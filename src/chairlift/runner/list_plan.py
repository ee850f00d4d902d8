"""How many of the largest logits decide what top_k, top_p and min_p of one request keep."""

from __future__ import annotations

import math
from dataclasses import dataclass

from chairlift.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPlan:
    """What to ask of a row beside its contenders."""

    size: int
    """Largest logits that may be kept; 0: every token is."""
    depth: float
    """Logits further than this below the largest are not kept whatever the others are."""
    wants_weight: bool
    """Whether the weight of all tokens is needed, because top_p alone decides."""


def plan_list(params: SamplingParams, temperature: float, vocab_size: int) -> ListPlan:
    """The plan for one request's rows; `temperature` as logits are divided by it."""
    has_top_k = 0 < params.top_k < vocab_size
    if params.is_greedy or not (has_top_k or params.min_p > 0.0 or params.top_p < 1.0):
        return ListPlan(size=0, depth=math.inf, wants_weight=False)
    depth = math.inf
    if params.min_p > 0.0:
        depth = -math.log(params.min_p) * temperature
    elif not has_top_k:
        # All tokens further down together weigh less than 1 - top_p of the best one.
        depth = math.log(vocab_size / (1.0 - params.top_p)) * temperature
    return ListPlan(
        size=params.top_k if has_top_k else vocab_size,
        depth=depth,
        wants_weight=not has_top_k and params.min_p == 0.0,
    )
