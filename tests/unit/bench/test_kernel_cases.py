"""What is timed is the op itself: rings of copies, replayed calls, and the work that is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from chairlift.bench.kernel_attention import (
    AttentionStep,
    attention_spec,
    int8_attention_groups,
    int8_ring,
    random_qkv,
    random_rope,
    step_layout,
)
from chairlift.bench.kernel_case import KernelCase, Ring
from chairlift.bench.kernel_gemm import int8_groups, random_rows, random_weights
from chairlift.bench.kernel_shapes import StepShapes, read_shapes
from chairlift.bench.kernel_timing import TimingPlan, all_groups
from chairlift.bench.recorded_ops import RecordedOps
from chairlift.kernels.aligned import ALIGNMENT_BYTES


@pytest.fixture(scope="module")
def shapes(tiny_folder: Callable[[str], Path]) -> StepShapes:
    return read_shapes(tiny_folder("qwen2"), "tiny")


@pytest.fixture(scope="module")
def ops() -> RecordedOps:
    return RecordedOps(1)


def _cases(groups: list[object]) -> Iterator[KernelCase]:
    for group in groups:
        cases = list(group.build())
        assert len(cases) == group.num_cases
        yield from cases


def test_ring_of_copies() -> None:
    content = np.arange(100, dtype=np.uint8)
    ring = Ring(content, 1000)
    copies = ring.copies()
    assert len(ring) == len(copies) == -(-1000 // 128)
    assert all((copy == content).all() and copy.size == 100 for copy in copies)
    assert all(copy.ctypes.data % ALIGNMENT_BYTES == 0 for copy in copies)
    assert len({copy.ctypes.data for copy in copies}) == len(copies)
    assert [ring.advance() for _ in range(len(ring) + 1)] == [*range(len(ring)), 0]
    assert len(Ring(content, 0)) == 1


def test_a_replayed_call_computes_what_the_op_did(shapes: StepShapes, ops: RecordedOps) -> None:
    shape = shapes.matrix("down")
    weight, x = ops.linears.pack(random_weights(shape)), random_rows(3, shape.in_features)
    wanted = ops.linears.linear(x, weight)
    out = np.zeros_like(wanted)
    call = ops.recorder.replay(lambda: ops.linears.linear(x, weight, out=out))
    assert (out == wanted).all()
    out[:] = 0
    call()
    assert (out == wanted).all()


def test_a_replayed_call_that_fails_raises(shapes: StepShapes, ops: RecordedOps) -> None:
    shape = shapes.matrix("down")
    weight, x = ops.linears.pack(random_weights(shape)), random_rows(1, shape.in_features)
    call = ops.recorder.replay(lambda: ops.linears.linear(x, weight))
    weight.packed[:8] = 0  # no longer what the library packed
    with pytest.raises(ValueError, match="not packed by this library"):
        call()


def test_rotating_calls_go_round_the_copies(shapes: StepShapes, ops: RecordedOps) -> None:
    shape = shapes.matrix("output")
    weight, x = ops.linears.pack(random_weights(shape)), random_rows(1, shape.in_features)
    outs = [np.zeros((1, shape.out_features), np.float32) for _ in range(3)]
    turns = iter([0, 1, 2, 0, 1])
    call = ops.recorder.rotating(
        lambda: next(turns), lambda index: ops.linears.linear(x, weight, out=outs[index])
    )
    for _ in range(3):
        call()
    assert all((out == ops.linears.linear(x, weight)).all() for out in outs)
    for out in outs:
        out[:] = 0
    call()
    call()
    assert outs[0].any() and outs[1].any() and not outs[2].any()


@pytest.mark.parametrize("fast", [False, True])
def test_products_count_all_weights_once_per_row(
    shapes: StepShapes, ops: RecordedOps, fast: bool
) -> None:
    cases = list(_cases(int8_groups(shapes, ops, (1, 5), fast=fast)))
    one_row = [case for case in cases if case.num_rows == 1]
    products = sum(case.count * case.work.int8_products for case in one_row[:-1])
    assert products == shapes.num_weights
    mlp = shapes.matrix("gate-up").num_weights + shapes.matrix("down").num_weights
    assert one_row[-1].work.int8_products == mlp
    for case in cases:
        case.call()
    five = [case for case in cases if case.num_rows == 5]
    assert [c.work.int8_products for c in five] == [5 * c.work.int8_products for c in one_row]
    assert [c.work.read_bytes for c in five] == [c.work.read_bytes for c in one_row]


def test_pairs_of_a_step() -> None:
    assert AttentionStep(3, 1, 10).num_pairs == 30
    assert AttentionStep(1, 4, 4).num_pairs == 10
    assert AttentionStep(2, 2, 5).num_pairs == 2 * (4 + 5)
    assert AttentionStep(1, 512, 512).label == "prefill 512"
    assert AttentionStep(32, 1, 576).label == "decode 32 x 576"


def test_attention_work_of_a_decode_step(shapes: StepShapes, ops: RecordedOps) -> None:
    config = shapes.config
    decode = next(_cases(int8_attention_groups(shapes, ops)))
    elements = config.max_position * config.num_heads * config.head_dim
    assert decode.work.int8_products == 3 * elements
    piece = ops.pages.piece_bytes(config.num_kv_heads, config.head_dim)
    assert decode.work.read_bytes == config.max_position // 16 * piece
    assert decode.count == config.num_layers


def test_every_layer_of_the_ring_holds_the_same_context(
    shapes: StepShapes, ops: RecordedOps
) -> None:
    """So that no call of the timed op meets keys that were never written."""
    step, spec = AttentionStep(3, 1, 40), attention_spec(shapes.config)
    ring, layout = int8_ring(shapes, ops, step), step_layout(step)
    queries = ops.pages.store_qkv(
        random_qkv(spec, 3), random_rope(shapes.config, 40), ring.cache, 0, layout, spec
    )
    ops.pages.store_qkv(
        random_qkv(spec, 3), random_rope(shapes.config, 40), ring.cache, 1, layout, spec
    )
    first, second = (
        ops.pages.paged_attention(queries, ring.cache, layer, layout, spec) for layer in (0, 1)
    )
    assert np.isfinite(first).all() and (first == second).all()
    assert (np.sort(layout.block_tables.reshape(-1)) == np.arange(9)).all()


def test_everything_can_be_called(shapes: StepShapes) -> None:
    plan = TimingPlan(rows=(1, 2), row_op_rows=(1, 3))
    groups, without_int8 = all_groups(shapes, 1, plan)
    assert without_int8 is None
    families = {group.family for group in groups}
    assert len(families) == 20 and {"attention float16", "embed bfloat16"} < families
    for case in _cases(groups):
        case.call()
        amounts = case.work.amounts()
        assert any(amounts.values()) and all(amount >= 0 for amount in amounts.values())
