"""What one key has waiting and in the batch: counts only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from chairlift.server.arrival import Arrival


class Waiting(NamedTuple):
    """A prompt in line."""

    key_name: str
    num_tokens: int
    is_vector: bool


@dataclass(slots=True)
class WaitingLine:
    """What a key has waiting, and in all."""

    num_requests: int = 0
    num_tokens: int = 0
    num_completions: int = 0
    """In line or in the batch."""
    num_vectors: int = 0
    """Of them, those of which only the vector is wanted."""
    num_waiting_vectors: int = 0
    num_waiting_vector_tokens: int = 0

    @property
    def num_waiting_answers(self) -> int:
        return self.num_requests - self.num_waiting_vectors

    @property
    def num_running_answers(self) -> int:
        return self.num_completions - self.num_vectors - self.num_waiting_answers

    def waiting(self, *, is_vector: bool) -> tuple[int, int]:
        """Prompts of one kind in line, and their tokens."""
        if is_vector:
            return self.num_waiting_vectors, self.num_waiting_vector_tokens
        return self.num_waiting_answers, self.num_tokens - self.num_waiting_vector_tokens

    def enter(self, arrival: Arrival) -> None:
        """All of it waits."""
        self.num_requests += arrival.num_requests
        self.num_tokens += arrival.num_tokens
        self.num_completions += arrival.num_completions
        if arrival.wants_vectors:
            self.num_vectors += arrival.num_completions
            self.num_waiting_vectors += arrival.num_requests
            self.num_waiting_vector_tokens += arrival.num_tokens

    def get_on(self, waiting: Waiting) -> None:
        """One no longer waits."""
        self.num_requests -= 1
        self.num_tokens -= waiting.num_tokens
        if waiting.is_vector:
            self.num_waiting_vectors -= 1
            self.num_waiting_vector_tokens -= waiting.num_tokens

    def leave(self, arrival: Arrival) -> None:
        """All of it is over, and waits no more."""
        self.num_completions -= arrival.num_completions
        if arrival.wants_vectors:
            self.num_vectors -= arrival.num_completions
