"""One step's order turned into the arrays that the kernels read.

```
scheduled   A: tokens 4..7        B: token 90       C: tokens 38..39
token_ids   | a4 a5 a6 a7         | b90             | c38 c39
query_start   0                     4                 5          7
positions   | 4  5  6  7          | 90              | 38  39
context_len | 8                   | 91              | 40         stored once the step is done
rows wanted          a7 (samples)     b90 (samples)    none: C's prompt goes on

block_tables, block_size 16         slot_mapping = block * 16 + position % 16
A  [ 3  0  0  0  0  0 ]             a4 -> 3 * 16 + 4      7 is the last of A's
B  [ 8  5  1  7  2  9 ]             b90 -> 9 * 16 + 10    block 90 // 16 = 5 of B's table
C  [ 4  6 11  0  0  0 ]             c38 -> 11 * 16 + 6    a block past the context is never read
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from chairlift.core.scheduler_output import ScheduledRequest
from chairlift.kernels.interface import BatchLayout, IntArray


def build_token_ids(
    scheduled: Sequence[ScheduledRequest], token_ids: Mapping[str, Sequence[int]]
) -> IntArray:
    """[T] ids of all tokens of the step, request after request."""
    flat: list[int] = []
    for item in scheduled:
        start = item.num_computed_tokens
        flat.extend(token_ids[item.request_id][start : start + item.num_new_tokens])
    return np.array(flat, dtype=np.int32)


def build_layout(scheduled: Sequence[ScheduledRequest], block_size: int) -> BatchLayout:
    """Positions, context lengths, block tables and slots of a step."""
    if all(item.num_new_tokens == 1 for item in scheduled):
        return _layout_of_decodes(scheduled, block_size)
    starts = np.array([item.num_computed_tokens for item in scheduled], dtype=np.int32)
    counts = np.array([item.num_new_tokens for item in scheduled], dtype=np.int32)
    query_start = np.zeros(len(scheduled) + 1, dtype=np.int32)
    np.cumsum(counts, out=query_start[1:])
    context_lens = starts + counts
    tables = _block_tables(scheduled, context_lens, block_size)
    sequence_of = np.repeat(np.arange(len(scheduled)), counts)
    offset = np.arange(query_start[-1], dtype=np.int32) - query_start[sequence_of]
    positions = starts[sequence_of] + offset
    blocks = tables[sequence_of, positions // block_size].astype(np.int64)
    return BatchLayout(
        query_start=query_start,
        context_lens=context_lens,
        block_tables=tables,
        positions=positions,
        slot_mapping=blocks * block_size + positions % block_size,
    )


def _layout_of_decodes(scheduled: Sequence[ScheduledRequest], block_size: int) -> BatchLayout:
    """The same for one token of each: nearly every step, and the shorter it is the more it costs.

    Right after the weights have passed through the caches, one operation on an array takes as long
    as many on integers.
    """
    computed = [item.num_computed_tokens for item in scheduled]
    slots = [
        item.block_table[position // block_size] * block_size + position % block_size
        for item, position in zip(scheduled, computed, strict=True)
    ]
    positions = np.array(computed, dtype=np.int32)
    context_lens = positions + 1
    return BatchLayout(
        query_start=np.arange(len(scheduled) + 1, dtype=np.int32),
        context_lens=context_lens,
        block_tables=_block_tables(scheduled, context_lens, block_size),
        positions=positions,
        slot_mapping=np.array(slots, dtype=np.int64),
    )


def last_rows(layout: BatchLayout, counts: Sequence[int]) -> tuple[IntArray, IntArray]:
    """The last `counts[s]` tokens of each sequence's part of the step.

    Rows [R] of the step in rising order, and [S] where those of each sequence end among them.
    """
    ends = np.cumsum(counts, dtype=np.int32)
    shifts = layout.query_start[1:] - ends
    num_rows = int(ends[-1]) if len(ends) else 0
    return np.arange(num_rows, dtype=np.int32) + np.repeat(shifts, counts), ends


def _block_tables(
    scheduled: Sequence[ScheduledRequest], context_lens: NDArray[np.int32], block_size: int
) -> IntArray:
    """[S, blocks of the longest context]; unused entries are 0 and never read."""
    widths = [-(-length // block_size) for length in context_lens.tolist()]
    flat: list[int] = []
    for item, width in zip(scheduled, widths, strict=True):
        flat.extend(item.block_table[:width])
    longest = max(widths, default=0)
    if len(flat) == len(widths) * longest:
        return np.array(flat, dtype=np.int32).reshape(len(widths), longest)
    tables = np.zeros((len(widths), longest), dtype=np.int32)
    tables[np.arange(longest) < np.array(widths)[:, None]] = flat
    return tables
