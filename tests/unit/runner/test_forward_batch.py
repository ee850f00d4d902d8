"""A step's order as arrays, against the drawing in the docstring and a naive loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.core.scheduler_output import ScheduledRequest
from chairlift.runner.forward_batch import build_layout, build_token_ids, last_rows

# The step that the module's docstring draws.
DRAWN = [
    ScheduledRequest("a", "prefill", 4, 4, [3], True),
    ScheduledRequest("b", "decode", 90, 1, [8, 5, 1, 7, 2, 9], True),
    ScheduledRequest("c", "prefill", 38, 2, [4, 6, 11], False),
]


def test_the_step_that_is_drawn() -> None:
    layout = build_layout(DRAWN, block_size=16)
    assert layout.query_start.tolist() == [0, 4, 5, 7]
    assert layout.context_lens.tolist() == [8, 91, 40]
    assert layout.positions.tolist() == [4, 5, 6, 7, 90, 38, 39]
    assert layout.block_tables.tolist() == [
        [3, 0, 0, 0, 0, 0],
        [8, 5, 1, 7, 2, 9],
        [4, 6, 11, 0, 0, 0],
    ]
    slots = [52, 53, 54, 55, 9 * 16 + 10, 11 * 16 + 6, 11 * 16 + 7]
    assert layout.slot_mapping.tolist() == slots


def test_the_tokens_that_are_drawn() -> None:
    tokens = {
        "a": list(range(100, 108)),
        "b": list(range(200, 291)),
        "c": list(range(300, 400)),
        "absent": [1],
    }
    token_ids = build_token_ids(DRAWN, tokens)
    assert token_ids.tolist() == [104, 105, 106, 107, 290, 338, 339]
    assert token_ids.dtype == np.int32


def test_the_last_rows_of_each_part() -> None:
    layout = build_layout(DRAWN, block_size=16)
    rows, ends = last_rows(layout, [3, 1, 0])
    assert rows.tolist() == [1, 2, 3, 4] and ends.tolist() == [3, 4, 4]
    rows, ends = last_rows(layout, [0, 0, 2])
    assert rows.tolist() == [5, 6] and ends.tolist() == [0, 0, 2]
    rows, ends = last_rows(layout, [4, 1, 2])
    assert rows.tolist() == list(range(7)) and ends.tolist() == [4, 5, 7]
    rows, ends = last_rows(layout, [0, 0, 0])
    assert rows.tolist() == [] and ends.tolist() == [0, 0, 0]
    assert rows.dtype == ends.dtype == np.int32


def test_dtypes_are_those_of_the_kernels() -> None:
    layout = build_layout(DRAWN, block_size=16)
    for name in ("query_start", "context_lens", "block_tables", "positions"):
        array = getattr(layout, name)
        assert array.dtype == np.int32 and array.flags.c_contiguous, name
    assert layout.slot_mapping.dtype == np.int64


def test_slots_beyond_32_bits_do_not_wrap() -> None:
    item = ScheduledRequest("a", "decode", 3, 1, [2**31 - 1], True)
    assert build_layout([item], block_size=16).slot_mapping.tolist() == [(2**31 - 1) * 16 + 3]


def test_a_block_table_that_is_longer_than_the_context() -> None:
    """Blocks reserved for later stay out: a table's width is what the longest context needs."""
    item = ScheduledRequest("a", "prefill", 0, 3, [5, 6, 7, 8], False)
    assert build_layout([item], block_size=4).block_tables.tolist() == [[5]]


def test_an_empty_step() -> None:
    layout = build_layout([], block_size=16)
    assert layout.query_start.tolist() == [0]
    assert layout.block_tables.shape == (0, 0)
    assert len(layout.positions) == len(layout.slot_mapping) == 0
    assert len(build_token_ids([], {})) == 0


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[ScheduledRequest], int]:
    """Any requests with blocks of their own, and a block size."""
    block_size = draw(st.integers(1, 20))
    free = list(range(200))
    draw(st.randoms(use_true_random=False)).shuffle(free)
    items = []
    for index in range(draw(st.integers(1, 8))):
        computed, new = draw(st.integers(0, 40)), draw(st.integers(1, 20))
        if -(-(computed + new) // block_size) > len(free):
            break
        count = -(-(computed + new) // block_size)
        blocks, free = free[:count], free[count:]
        items.append(ScheduledRequest(str(index), "prefill", computed, new, blocks, True))
    return items, block_size


@settings(max_examples=150, deadline=None, derandomize=True)
@given(steps())
def test_any_step_equals_a_naive_loop(step: tuple[list[ScheduledRequest], int]) -> None:
    items, block_size = step
    tokens = {item.request_id: [1000 * i + j for j in range(60)] for i, item in enumerate(items)}
    layout, token_ids = build_layout(items, block_size), build_token_ids(items, tokens)
    row = 0
    for sequence, item in enumerate(items):
        end = item.num_computed_tokens + item.num_new_tokens
        assert layout.query_start[sequence] == row
        assert layout.context_lens[sequence] == end
        for position in range(item.num_computed_tokens, end):
            block = item.block_table[position // block_size]
            assert token_ids[row] == tokens[item.request_id][position]
            assert layout.positions[row] == position
            assert layout.slot_mapping[row] == block * block_size + position % block_size
            assert layout.block_tables[sequence, position // block_size] == block
            row += 1
    assert layout.query_start[-1] == row == len(layout.positions)
