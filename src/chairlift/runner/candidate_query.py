"""From the requests of a step to what the output head must find for them, as arrays.

Knows options and counts; neither logits nor how a token is chosen among what was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from chairlift.kernels.candidates import ROW_QUERY, CandidateQuery
from chairlift.kernels.counter_random import stream_keys
from chairlift.kernels.interface import FloatArray
from chairlift.runner.list_plan import ListPlan
from chairlift.runner.logits_processors import RequestSamplingState, SparseEdits, TokenIdArray
from chairlift.sampling_params import SamplingParams

_NO_IDS = np.empty(0, dtype=np.int32)
_NO_VALUES = np.empty(0, dtype=np.float32)
_NO_PENALTIES = (1.0, 0.0, 0.0)


class RowQuery(NamedTuple):
    """What to look for in one request's row."""

    params: SamplingParams
    stream_base: int
    position: int
    temperature: np.float32
    plan: ListPlan
    edits: SparseEdits | None


def row_query(state: RequestSamplingState) -> RowQuery | None:
    """None: the token cannot be found without the whole row."""
    if state.needs_whole_rows:
        return None
    return RowQuery(
        state.params,
        state.stream_base,
        state.num_output_tokens,
        state.temperature,
        state.list_plan,
        state.edits() if state.needs_edits else None,
    )


def build_query(rows: Sequence[RowQuery], max_listed: int) -> CandidateQuery:
    """The arrays of all rows, which list `max_listed` logits at most."""
    token_ids: list[TokenIdArray] = []
    values: list[FloatArray] = []
    asked, num_edits, longest = [], 0, 0
    for row in rows:
        plan, edits = row.plan, row.edits
        first_edit = first_penalty = num_edits
        penalties = _NO_PENALTIES
        if edits is not None:
            first_penalty += edits.num_added
            num_edits += sum(map(len, edits.token_ids))
            penalties = edits.penalties
            token_ids += edits.token_ids
            values += edits.values
        size = min(plan.size, max_listed)
        longest = max(longest, size)
        what = (0, row.temperature, plan.depth, size, plan.wants_weight)
        asked.append((*what, first_edit, first_penalty, num_edits, *penalties, 0))
    array = np.array(asked, dtype=ROW_QUERY)
    if any(row.temperature > 0 for row in rows):
        bases = np.array([row.stream_base for row in rows], dtype=np.uint64)
        positions = np.array([row.position for row in rows], dtype=np.uint64)
        array["key"] = stream_keys(bases, positions)
    return CandidateQuery(
        rows=array,
        edit_ids=np.concatenate(token_ids).astype(np.int32) if num_edits else _NO_IDS,
        edit_values=np.concatenate(values) if num_edits else _NO_VALUES,
        max_listed=longest,
    )
