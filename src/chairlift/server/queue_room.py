"""Room in the queue: for all keys together, and for one of them.

What a key has waiting may not exceed what is left free, so that one greedy key gets half of the
queue, two get a third each, and there is always room for a key that has nothing waiting.  A single
request that is larger than that is let in where its key has nothing waiting; what it has beyond
half of the queue is not held against the others.  (Choudhury and Hahne 1998, dynamic queue length
thresholds.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """What may wait, and what of one key may."""

    max_requests: int
    max_tokens: int
    max_requests_per_key: int | None = None
    max_tokens_per_key: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Prompts or tokens in line, beside those that ask to be let in."""

    unit: str
    num_by_key: Sequence[int]
    num_of_key: int
    num_new: int
    maximum: int
    maximum_per_key: int | None
    is_shared: bool
    """There are several keys."""

    def key_refusal(self) -> str | None:
        """Why a key that has something in line may have no more; None if it may."""
        allowed = self.maximum if self.maximum_per_key is None else self.maximum_per_key
        if self.is_shared:
            allowed = min(allowed, self.maximum - sum(self.num_by_key))
        elif self.maximum_per_key is None:
            return None
        if self.num_of_key + self.num_new <= allowed:
            return None
        return (
            f"{self.num_of_key} {self.unit} of this API key are waiting; beside"
            f" {sum(self.num_by_key)} of all keys {max(0, allowed)} of one key may"
        )

    def refusal(self, *, has_line: bool) -> str | None:
        """Why nobody may come in; None if there is room."""
        num_counted, num_new = sum(self.num_by_key), self.num_new
        if self.is_shared:
            half = self.maximum // 2
            num_counted = sum(min(number, half) for number in self.num_by_key)
            num_new = num_new if has_line else min(num_new, half)
        if num_counted + num_new <= self.maximum:
            return None
        return f"{sum(self.num_by_key)} {self.unit} are waiting and {self.maximum} may"
