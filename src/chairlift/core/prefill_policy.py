"""Chunked and separated prefill, as what one step may hold.

Chunked prefill lets pieces of prompts ride along with decoding requests (Agrawal et al. 2024,
Sarathi-Serve); separated steps are all prefill or all decode, and alternate while both have work,
so that neither starves.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from chairlift.config import PrefillPolicyName


class StepPhases(NamedTuple):
    """The kinds of tokens that a step may compute."""

    decode: bool
    prefill: bool


class PrefillPolicy(Protocol):
    """Asked once per step."""

    def phases(self, *, has_prefill: bool, has_decode: bool) -> StepPhases:
        """Which kinds of tokens the next step may hold."""
        ...

    def step_built(self, *, has_prefill: bool) -> None:
        """Told what the step came to hold."""
        ...


class ChunkedPrefill:
    """Decode first, then as much of the prompts as the budget still holds."""

    def phases(self, *, has_prefill: bool, has_decode: bool) -> StepPhases:
        return StepPhases(decode=True, prefill=True)

    def step_built(self, *, has_prefill: bool) -> None:
        return None


class SeparatedPrefill:
    """One kind per step; a decode step follows every prefill step, and the other way round."""

    def __init__(self) -> None:
        self._last_was_prefill = False

    def phases(self, *, has_prefill: bool, has_decode: bool) -> StepPhases:
        is_prefill = has_prefill and not (has_decode and self._last_was_prefill)
        return StepPhases(decode=not is_prefill, prefill=is_prefill)

    def step_built(self, *, has_prefill: bool) -> None:
        self._last_was_prefill = has_prefill


def create_prefill_policy(name: PrefillPolicyName) -> PrefillPolicy:
    return ChunkedPrefill() if name == "chunked" else SeparatedPrefill()
