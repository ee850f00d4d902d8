"""When things happened to one completion, as the step records tell."""

from __future__ import annotations

from dataclasses import dataclass

from chairlift.core.request import Request
from chairlift.events import StepMember


@dataclass(slots=True)
class RequestTimeline:
    """Written by the engine's thread while it runs, read by the event loop when it is over.

    Times are in seconds on the engine's clock.
    """

    arrival_s: float
    num_prompt_tokens: int
    max_tokens: int
    is_first: bool
    """The first of the prompt's completions: the others fork its prompt."""
    key_label: str | None = None
    """Under which its API key is counted; None where keys are not."""
    num_tokens: int = 0
    """Generated so far."""
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    finish_reason: str | None = None

    @classmethod
    def of(
        cls, request: Request, *, is_first: bool, key_label: str | None = None
    ) -> RequestTimeline:
        return cls(
            arrival_s=request.arrival_time,
            num_prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
            is_first=is_first,
            key_label=key_label,
        )

    def gains_token(self, member: StepMember) -> bool:
        """Whether this part of a step reached the end of what was known, and so the next token."""
        end = member.num_computed_tokens + member.num_new_tokens
        is_open = self.finish_reason is None and self.num_tokens < self.max_tokens
        return is_open and end >= self.num_prompt_tokens + self.num_tokens

    @property
    def queue_s(self) -> float | None:
        """From arrival until it got on for the first time."""
        return _difference(self.first_scheduled_s, self.arrival_s)

    @property
    def prefill_s(self) -> float | None:
        """From getting on until the first token."""
        return _difference(self.first_token_s, self.first_scheduled_s)

    @property
    def decode_s(self) -> float | None:
        """From the first token until the last."""
        return _difference(self.last_token_s, self.first_token_s)


def _difference(end_s: float | None, start_s: float | None) -> float | None:
    return None if end_s is None or start_s is None else end_s - start_s
