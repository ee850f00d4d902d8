"""What it costs to take a request's memory back, by copying it out or by computing it again.

The rates start from a probe and follow what the steps report.  Their estimate is written into the
step record with every preemption, so that the choice can be checked afterwards.

```
swap      = blocks * (seconds out + seconds in per block)
recompute = tokens * seconds per prefill token
```
"""

from __future__ import annotations

from dataclasses import dataclass

_WEIGHT = 0.2
"""Of the newest measurement in the running averages."""
_MARGIN = 0.8
"""Swap must be clearly cheaper: it also takes space that later victims may need."""
_MIN_PREFILL_TOKENS = 32
"""A step with fewer says little about the cost of a prefill token."""


@dataclass(slots=True, kw_only=True)
class PreemptionCost:
    """Running averages, in seconds per block or per token."""

    swap_out_s_per_block: float = 1e-3
    swap_in_s_per_block: float = 1e-3
    prefill_s_per_token: float = 1e-3

    def swap_s(self, num_blocks: int) -> float:
        """Moving `num_blocks` blocks out and back."""
        return num_blocks * (self.swap_out_s_per_block + self.swap_in_s_per_block)

    def recompute_s(self, num_tokens: int) -> float:
        """Computing the keys and values of `num_tokens` tokens again."""
        return num_tokens * self.prefill_s_per_token

    def prefers_swap(self, num_blocks: int, num_tokens: int) -> bool:
        return self.swap_s(num_blocks) < _MARGIN * self.recompute_s(num_tokens)

    def observe_swap_out(self, num_blocks: int, duration_s: float) -> None:
        if num_blocks:
            self.swap_out_s_per_block = _blend(self.swap_out_s_per_block, duration_s / num_blocks)

    def observe_swap_in(self, num_blocks: int, duration_s: float) -> None:
        if num_blocks:
            self.swap_in_s_per_block = _blend(self.swap_in_s_per_block, duration_s / num_blocks)

    def observe_step(self, num_tokens: int, num_prefill_tokens: int, duration_s: float) -> None:
        """A step of `num_tokens` rows took this long; only prefill-heavy ones are used."""
        if num_prefill_tokens >= _MIN_PREFILL_TOKENS and 2 * num_prefill_tokens >= num_tokens:
            self.prefill_s_per_token = _blend(self.prefill_s_per_token, duration_s / num_tokens)


def _blend(average: float, value: float) -> float:
    return (1 - _WEIGHT) * average + _WEIGHT * value
