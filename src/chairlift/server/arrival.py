"""What asks to be let in to the queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.engine.input_processor import ProcessedInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request for tokens that asks to be let in."""

    key_name: str
    priority: int
    requests: Sequence[ProcessedInput]
    deadline_s: float | None = None
    is_continued: bool = False
    """The rest of what was let in before: it takes the places which that has left."""

    @property
    def num_requests(self) -> int:
        return len(self.requests)

    @property
    def num_tokens(self) -> int:
        return sum(len(request.prompt_token_ids) for request in self.requests)

    @property
    def num_completions(self) -> int:
        return sum(len(request.children) for request in self.requests)

    @property
    def wants_vectors(self) -> bool:
        """Vectors and no tokens; one request never asks for both."""
        return self.requests[0].children[0].pooling_params is not None

    @property
    def max_tokens(self) -> int:
        """Of its longest completion."""
        return max(child.max_tokens for request in self.requests for child in request.children)
