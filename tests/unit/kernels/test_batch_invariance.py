"""Equal inputs give equal bits: alone, in any batch, in any chunk, on any number of threads.

Every comparison here is exact.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chairlift.kernels.interface import (
    AttentionWeights,
    FloatArray,
    Kernels,
    MlpWeights,
)
from unit.kernels.kernel_cases import PagedCase, make_spec

MakeKernels = Callable[[int], Kernels]

# Fixtures here are stateless backends: sharing one over examples is meant.
SHARED = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def random(*shape: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize(
    ("out_features", "in_features"), [(96, 64), (37, 13), (300, 576), (33, 1536), (1, 1)]
)
def test_linear_for_every_number_of_rows(
    kernels: Kernels, out_features: int, in_features: int
) -> None:
    weight = kernels.prepare_linear(
        [random(out_features, in_features)], [random(out_features, seed=1)]
    )
    x = random(70, in_features, seed=2)
    alone = np.concatenate([kernels.linear(x[row : row + 1], weight) for row in range(70)])
    for num_rows in range(1, 71):
        np.testing.assert_array_equal(kernels.linear(x[:num_rows], weight), alone[:num_rows])
        np.testing.assert_array_equal(kernels.linear(x[-num_rows:], weight), alone[-num_rows:])


@pytest.mark.parametrize("num_rows", [255, 256, 257, 515])
def test_linear_across_the_borders_of_work_items(kernels: Kernels, num_rows: int) -> None:
    weight = kernels.prepare_linear([random(40, 24)], [None])
    x = random(num_rows, 24, seed=1)
    whole = kernels.linear(x, weight)
    for row in (0, 1, num_rows // 2, num_rows - 1):
        np.testing.assert_array_equal(kernels.linear(x[row : row + 1], weight)[0], whole[row])


@pytest.mark.parametrize("in_features", [13, 40, 576])
def test_linear_wherever_the_row_lies_in_memory(kernels: Kernels, in_features: int) -> None:
    weight = kernels.prepare_linear([random(50, in_features)], [None])
    row = random(in_features, seed=1)
    expected = kernels.linear(row[None], weight)
    buffer = np.zeros(in_features + 32, np.float32)
    for offset in range(32):
        buffer[offset : offset + in_features] = row
        moved = buffer[offset : offset + in_features][None]
        np.testing.assert_array_equal(kernels.linear(moved, weight), expected)


def test_linear_on_any_number_of_threads(make_kernels: MakeKernels) -> None:
    matrix, x = random(700, 200), random(19, 200, seed=1)
    results = []
    for num_threads in (1, 2, 3):
        kernels = make_kernels(num_threads)
        results.append(kernels.linear(x, kernels.prepare_linear([matrix], [None])))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("width", [1, 8, 49, 576, 1536])
def test_row_wise_ops(kernels: Kernels, width: int) -> None:
    x, weight = random(23, 2 * width), random(2 * width, seed=1)
    for op in (
        kernels.silu_mul,
        lambda rows: kernels.rms_norm(rows, weight, 1e-5),
        lambda rows: kernels.rms_norm(rows.reshape(len(rows), 2, width), weight[:width], 1e-5),
    ):
        whole = op(x)
        for start, end in ((0, 1), (22, 23), (3, 20), (5, 6)):
            np.testing.assert_array_equal(op(x[start:end].copy()), whole[start:end])


@pytest.mark.parametrize("interleaved", [True, False])
def test_rope(kernels: Kernels, interleaved: bool) -> None:
    table = kernels.rope_table([1.0, 0.1, 0.01], max_position=64, scaling=1.0)
    x, positions = random(9, 3, 8), np.arange(9, dtype=np.int32)[::-1].copy() * 7
    whole = kernels.rope(x, table, positions, interleaved=interleaved)
    for row in range(9):
        alone = kernels.rope(
            x[row : row + 1], table, positions[row : row + 1], interleaved=interleaved
        )
        np.testing.assert_array_equal(alone[0], whole[row])


def attend(kernels: Kernels, case: PagedCase, *chunks: tuple[int, int, int]) -> FloatArray:
    """Attention of a step with chunks (sequence, first position, end position)."""
    queries, layout = case.step(chunks)
    return kernels.paged_attention(queries, case.cache, case.LAYER, layout, case.spec)


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"),
    [(9, 3, 64), (2, 2, 16), (4, 1, 40), (7, 1, 128), (8, 4, 80), (3, 1, 12)],
)
def test_prefill_chunks_and_decode_agree(
    kernels: Kernels,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    window: int | None,
) -> None:
    spec = make_spec(num_heads, num_kv_heads, head_dim, window)
    length = 75
    case = PagedCase(kernels, spec, [length, 31], block_size)
    whole = attend(kernels, case, (0, 0, length))
    decoded = np.concatenate([attend(kernels, case, (0, at, at + 1)) for at in range(length)])
    np.testing.assert_array_equal(decoded, whole)
    chunked = [
        attend(kernels, case, (0, 0, 30)),
        attend(kernels, case, (1, 0, 31), (0, 30, 31))[31:],
        attend(kernels, case, (0, 31, length), (1, 30, 31))[:-1],
    ]
    np.testing.assert_array_equal(np.concatenate(chunked), whole)


@SHARED
@given(data=st.data())
def test_attention_in_any_batch(kernels: Kernels, data: st.DataObject) -> None:
    group = data.draw(st.sampled_from([1, 3, 4, 7]))
    spec = make_spec(
        2 * group, 2, data.draw(st.sampled_from([16, 64])), data.draw(st.sampled_from([None, 9]))
    )
    lengths = data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=5))
    case = PagedCase(kernels, spec, lengths, data.draw(st.sampled_from([4, 16])))
    chunks = []
    for sequence, length in enumerate(lengths):
        first = data.draw(st.integers(0, length - 1))
        chunks.append((sequence, first, data.draw(st.integers(first + 1, length))))
    together = attend(kernels, case, *chunks)
    alone = np.concatenate([attend(kernels, case, chunk) for chunk in chunks])
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(9, 3), (5, 5), (80, 2)])
def test_attention_in_a_large_batch(kernels: Kernels, num_heads: int, num_kv_heads: int) -> None:
    """Enough sequences for a backend to cut its work in another way than for a few."""
    lengths = [1 + 7 * i % 60 for i in range(40)]
    case = PagedCase(kernels, make_spec(num_heads, num_kv_heads, 16), lengths, block_size=16)
    chunks = [(s, n - 1 if s % 4 else 0, n) for s, n in enumerate(lengths)]
    together = attend(kernels, case, *chunks)
    alone = np.concatenate([attend(kernels, case, chunk) for chunk in chunks])
    np.testing.assert_array_equal(together, alone)


def test_attention_on_any_number_of_threads(make_kernels: MakeKernels) -> None:
    chunks = [(0, 0, 50), (1, 0, 1), (2, 16, 17), (3, 40, 90)]
    results = []
    for num_threads in (1, 2, 3):
        kernels = make_kernels(num_threads)
        case = PagedCase(kernels, make_spec(6, 2, 32), [50, 1, 17, 90], block_size=16)
        results.append(attend(kernels, case, *chunks))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_attention_in_any_blocks(kernels: Kernels) -> None:
    spec = make_spec(6, 2, 24)
    cases = [PagedCase(kernels, spec, [61, 20], block_size) for block_size in (1, 4, 8, 16, 32)]
    for case in cases[1:]:
        case.keys, case.values, case.queries = cases[0].keys, cases[0].values, cases[0].queries
        case.store()
    results = [attend(kernels, case, (0, 0, 61), (1, 0, 20)) for case in cases]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_a_whole_layer_in_a_batch_equals_it_alone(kernels: Kernels) -> None:
    spec = make_spec(6, 2, 16)
    hidden, inner = 48, 80
    case = PagedCase(kernels, spec, [21, 40], block_size=4)
    attention = AttentionWeights(
        norm=random(hidden),
        qkv=kernels.prepare_linear([random(10 * 16, hidden, seed=1)], [random(160, seed=2)]),
        output=kernels.prepare_linear([random(hidden, 6 * 16, seed=3)], [None]),
        q_norm=random(16, seed=4),
        k_norm=random(16, seed=5),
    )
    mlp = MlpWeights(
        norm=random(hidden, seed=6),
        gate_up=kernels.prepare_linear([random(2 * inner, hidden, seed=7)], [None]),
        down=kernels.prepare_linear([random(hidden, inner, seed=8)], [None]),
    )
    head = kernels.prepare_linear([random(99, hidden, seed=9)], [None])
    rope = kernels.rope_table([1.0 / 10**i for i in range(8)], max_position=64, scaling=1.0)
    inputs = [random(21, hidden, seed=10), random(40, hidden, seed=11)]

    def forward(*chunks: tuple[int, int, int]) -> FloatArray:
        _, layout = case.step(chunks)
        x = np.concatenate([inputs[s][first:end] for s, first, end in chunks])
        x = kernels.attention_block(x, attention, spec, rope, case.cache, case.LAYER, layout)
        x = kernels.mlp_block(x, mlp, 1e-5)
        return kernels.logits(x, mlp.norm, 1e-5, head, np.arange(len(x), dtype=np.int32))

    together = forward((0, 0, 21), (1, 0, 40))
    np.testing.assert_array_equal(forward((0, 0, 21)), together[:21])
    one_by_one = np.concatenate([forward((1, at, at + 1)) for at in range(40)])
    np.testing.assert_array_equal(one_by_one, together[21:])
