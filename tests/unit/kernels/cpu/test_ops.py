"""The native ops at each instruction set: right to tolerance, and safe against bad arguments."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from chairlift.kernels.cpu.ops import NativeKernels
from chairlift.kernels.interface import AttentionSpec, BatchLayout, FloatArray
from chairlift.kernels.reference import ReferenceKernels
from unit.kernels.kernel_cases import PagedCase, exact_attention, make_spec, relative_error

TOLERANCE = 5e-6


def random(*shape: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def exact_linear(x: FloatArray, matrix: FloatArray, bias: FloatArray | None) -> np.ndarray:
    result = x.astype(np.float64) @ matrix.T.astype(np.float64)
    return result if bias is None else result + bias


# -- linear --------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("num_rows", [1, 2, 7, 8, 9, 300])
@pytest.mark.parametrize(
    ("out_features", "in_features"), [(1, 1), (31, 7), (32, 576), (33, 40), (200, 65)]
)
def test_linear(
    native: NativeKernels, out_features: int, in_features: int, num_rows: int, with_bias: bool
) -> None:
    matrix, x = random(out_features, in_features), random(num_rows, in_features, seed=1)
    bias = random(out_features, seed=2) if with_bias else None
    result = native.linear(x, native.prepare_linear([matrix], [bias]))
    assert relative_error(result, exact_linear(x, matrix, bias)) < TOLERANCE


@pytest.mark.parametrize("factor", [0.0, 1e-42, 1e15])
def test_linear_of_extreme_values(native: NativeKernels, factor: float) -> None:
    matrix = random(40, 64)
    x = (random(3, 64, seed=1) * factor).astype(np.float32)
    x[1, 5] = 1e18  # one outlier column
    result = native.linear(x, native.prepare_linear([matrix], [None]))
    for row, exact in zip(result, exact_linear(x, matrix, None), strict=True):
        np.testing.assert_allclose(row, exact, rtol=1e-4, atol=np.abs(exact).max() * 1e-6 + 1e-43)


def test_linear_of_no_rows(native: NativeKernels) -> None:
    weight = native.prepare_linear([random(5, 4)], [None])
    assert native.linear(np.empty((0, 4), np.float32), weight).shape == (0, 5)


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((2, 4), np.float64),
        np.zeros((2, 5), np.float32),
        np.zeros(4, np.float32),
        np.zeros((2, 8), np.float32)[:, ::2],
        np.zeros((4, 2), np.float32).T,
    ],
    ids=["dtype", "width", "axes", "stride", "transposed"],
)
def test_linear_refuses_arrays_that_do_not_fit(
    native: NativeKernels, x: np.ndarray[Any, Any]
) -> None:
    weight = native.prepare_linear([random(5, 4)], [None])
    with pytest.raises(ValueError, match="x must"):
        native.linear(x, weight)


def test_linear_refuses_a_matrix_of_another_backend(native: NativeKernels) -> None:
    weight = ReferenceKernels(1).prepare_linear([random(5, 4)], [None])
    with pytest.raises(TypeError, match="another backend"):
        native.linear(random(1, 4), weight)


# -- attention -----------------------------------------------------------------------------------


def exact_step(case: PagedCase) -> np.ndarray:
    arrays = zip(case.queries, case.keys, case.values, strict=True)
    return np.concatenate([exact_attention(case.spec, *each) for each in arrays])


def attend_whole(native: NativeKernels, case: PagedCase) -> FloatArray:
    queries, layout = case.whole_step()
    return native.paged_attention(queries, case.cache, case.LAYER, layout, case.spec)


@pytest.mark.parametrize("window", [None, 1, 16, 33])
@pytest.mark.parametrize("block_size", [4, 16, 24])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"),
    [(9, 3, 64), (2, 2, 16), (4, 1, 40), (7, 1, 128), (16, 4, 96), (2, 1, 256), (3, 3, 5)],
)
def test_attention(
    native: NativeKernels,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    window: int | None,
) -> None:
    case = PagedCase(
        native, make_spec(num_heads, num_kv_heads, head_dim, window), [1, 16, 59], block_size
    )
    assert relative_error(attend_whole(native, case), exact_step(case)) < TOLERANCE


def test_attention_over_a_long_context(native: NativeKernels) -> None:
    case = PagedCase(native, make_spec(6, 2, 64), [2000], block_size=16)
    queries, layout = case.step([(0, 1990, 2000)])
    result = native.paged_attention(queries, case.cache, case.LAYER, layout, case.spec)
    exact = exact_attention(case.spec, case.queries[0], case.keys[0], case.values[0])
    assert relative_error(result, exact[1990:]) < TOLERANCE


@pytest.mark.parametrize(
    ("query_factor", "value_factor"), [(200.0, 1.0), (0.0, 1.0), (1e-42, 1.0), (1.0, 1e-42)]
)
def test_attention_of_extreme_values(
    native: NativeKernels, query_factor: float, value_factor: float
) -> None:
    """Huge scores (one key takes all), equal scores, denormal queries, denormal values."""
    case = PagedCase(native, make_spec(4, 2, 32), [50], block_size=16)
    case.queries = [(queries * query_factor).astype(np.float32) for queries in case.queries]
    case.values = [(values * value_factor).astype(np.float32) for values in case.values]
    case.store()
    exact = exact_step(case)
    # A score of 1000 carries an absolute error of 1e-4 in float32, and so does its exponential.
    tolerance = 1e-4 if query_factor > 1 else TOLERANCE
    np.testing.assert_allclose(
        attend_whole(native, case), exact, rtol=0, atol=tolerance * np.abs(exact).max() + 1e-44
    )


def test_attention_with_growing_and_falling_scores(native: NativeKernels) -> None:
    """The running maximum moves at every key, or never after the first."""
    case = PagedCase(native, make_spec(2, 2, 16), [70], block_size=4)
    ramp = np.linspace(0, 40, 70, dtype=np.float32)
    case.queries[0][:] = 1.0
    case.keys[0][:, 0] = ramp[:, None] / 4
    case.keys[0][:, 1] = ramp[::-1, None] / 4
    case.store()
    assert relative_error(attend_whole(native, case), exact_step(case)) < TOLERANCE


def test_attention_writes_only_its_own_result(native: NativeKernels) -> None:
    case = PagedCase(native, make_spec(2, 1, 16), [20], block_size=4)
    before = case.cache.copy()
    attend_whole(native, case)
    np.testing.assert_array_equal(case.cache, before)


def test_attention_through_a_cache_with_gaps_between_blocks(native: NativeKernels) -> None:
    case = PagedCase(native, make_spec(2, 1, 16), [20], block_size=4)
    expected = attend_whole(native, case)
    wide = np.full((2 * len(case.cache), *case.cache.shape[1:]), np.nan, np.float32)
    wide[::2] = case.cache
    case.cache = wide[::2]
    np.testing.assert_array_equal(attend_whole(native, case), expected)


def changed(layout: BatchLayout, name: str, value: object) -> BatchLayout:
    return replace(layout, **{name: np.array(value, getattr(layout, name).dtype)})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("block_tables", [[0, 1, 999, 0, 0]], "block id 999 is not in the cache"),
        ("block_tables", [[0, 1, 6, 0, 0]], "block id 6 is not in the cache"),
        ("block_tables", [[0, -1, 2, 0, 0]], "block id -1 is not in the cache"),
        ("block_tables", [[0, 1]], "block table is too short"),
        ("context_lens", [3], "more new tokens than its context"),
        ("context_lens", [2**31 - 1], "block table is too short"),
        ("query_start", [0, 99], "query_start is not a rising list"),
        ("query_start", [5, 0], "query_start is not a rising list"),
        ("query_start", [-1, 12], "query_start is not a rising list"),
    ],
)
def test_attention_refuses_values_out_of_range(
    native: NativeKernels, name: str, value: object, message: str
) -> None:
    case = PagedCase(native, make_spec(2, 1, 16), [12], block_size=4)
    queries, layout = case.whole_step()
    with pytest.raises(ValueError, match=message):
        native.paged_attention(
            queries, case.cache, case.LAYER, changed(layout, name, value), case.spec
        )


def test_attention_refuses_arrays_that_do_not_fit(native: NativeKernels) -> None:
    case = PagedCase(native, make_spec(2, 1, 16), [12], block_size=4)
    queries, layout = case.whole_step()
    cache, spec = case.cache, case.spec
    cases: list[tuple[Any, Any, int, BatchLayout, AttentionSpec, str]] = [
        (queries.astype(np.float64), cache, 1, layout, spec, "query must be float32"),
        (queries[:, :, ::2], cache, 1, layout, spec, "query must have shape"),
        (np.asfortranarray(queries), cache, 1, layout, spec, "query must be C-contiguous"),
        (
            queries,
            cache.astype(np.float64),
            1,
            layout,
            spec,
            "kv_cache must be float32, float16 or bfloat16, not float64",
        ),
        (queries, cache[..., :-8], 1, layout, spec, "kv_cache .* does not fit"),
        (queries, cache[..., ::-1], 1, layout, spec, "kv_cache must have dense pieces"),
        (queries, cache, 2, layout, spec, "layer 2 is not one of the cache's 2"),
        (queries, cache, -1, layout, spec, "layer -1 is not one of the cache's 2"),
        (queries[:-1], cache, 1, layout, spec, "positions must have shape"),
        (
            queries,
            cache,
            1,
            replace(layout, context_lens=layout.context_lens.astype(np.int64)),
            spec,
            "context_lens must be int32",
        ),
        (queries, cache, 1, layout, replace(spec, sliding_window=-1), "a size is out of range"),
    ]
    for bad_queries, bad_cache, layer, bad_layout, bad_spec, message in cases:
        with pytest.raises(ValueError, match=message):
            native.paged_attention(bad_queries, bad_cache, layer, bad_layout, bad_spec)


# -- threads -------------------------------------------------------------------------------------


def test_one_pool_serves_several_callers(native: NativeKernels) -> None:
    weight = native.prepare_linear([random(300, 64)], [None])
    x = random(20, 64, seed=1)
    expected = native.linear(x, weight)
    wrong: list[int] = []

    def call_often(caller: int) -> None:
        for _ in range(200):
            if not np.array_equal(native.linear(x, weight), expected):
                wrong.append(caller)

    callers = [threading.Thread(target=call_often, args=(caller,)) for caller in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_computes_with_workers_of_its_own(native: NativeKernels) -> None:
    weight = native.prepare_linear([random(300, 64)], [None])
    x = random(20, 64, seed=1)
    expected = native.linear(x, weight)
    child = os.fork()
    if child == 0:
        equal = np.array_equal(native.linear(x, weight), expected)
        tasks = "/proc/self/task"
        has_worker = not os.path.isdir(tasks) or len(os.listdir(tasks)) == 2
        os._exit(0 if equal and has_worker else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_too_many_threads_are_refused(native: NativeKernels) -> None:
    with pytest.raises(ValueError, match="num_threads must be from 1 to 1024"):
        NativeKernels(5000)
