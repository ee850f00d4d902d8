"""The reference against the formulae in float64."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from chairlift.kernels.reference import PANEL_BYTES, ReferenceKernels
from unit.kernels.kernel_cases import PagedCase, exact_attention, make_spec, relative_error

TOLERANCE = 2e-6


@pytest.fixture
def reference() -> ReferenceKernels:
    return ReferenceKernels(2)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def test_blas_is_limited_to_one_thread(reference: ReferenceKernels) -> None:
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    assert pools and all(pool["num_threads"] == 1 for pool in pools)


def test_num_threads_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="num_threads must be at least 1"):
        ReferenceKernels(0)


def test_linear_stacks_matrices_and_takes_missing_biases_as_zero(
    reference: ReferenceKernels,
) -> None:
    first, second, third = random(24, 40), random(1, 40, seed=1), random(17, 40, seed=2)
    bias = random(24, seed=3)
    weight = reference.prepare_linear([first, second, third], [bias, None, None])
    x = random(5, 40, seed=4)

    exact = x.astype(np.float64) @ np.concatenate([first, second, third]).T.astype(np.float64)
    exact[:, :24] += bias
    assert (weight.in_features, weight.out_features) == (40, 42)
    assert relative_error(reference.linear(x, weight), exact) < TOLERANCE


def test_linear_over_several_panels(reference: ReferenceKernels) -> None:
    matrix = random(600, 576)
    assert matrix.nbytes > 3 * PANEL_BYTES
    weight = reference.prepare_linear([matrix], [None])
    x = random(3, 576, seed=1)

    exact = x.astype(np.float64) @ matrix.T.astype(np.float64)
    assert relative_error(reference.linear(x, weight), exact) < TOLERANCE
    assert weight.num_bytes == matrix.nbytes


@pytest.mark.parametrize(
    ("shapes", "bias_shapes"),
    [([], []), ([(4, 8), (4, 9)], [None, None]), ([(4, 8)], [(5,)]), ([(4, 8)], [])],
)
def test_matrices_that_do_not_fit_are_refused(
    reference: ReferenceKernels,
    shapes: list[tuple[int, int]],
    bias_shapes: list[tuple[int] | None],
) -> None:
    biases = [None if shape is None else np.zeros(shape, np.float32) for shape in bias_shapes]
    with pytest.raises(ValueError, match=r"give one for each|cannot stack|does not fit"):
        reference.prepare_linear([np.zeros(shape, np.float32) for shape in shapes], biases)


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e4])
def test_rms_norm(reference: ReferenceKernels, scale: float) -> None:
    x, weight = random(7, 3, 48) * np.float32(scale), random(48, seed=1)
    wide = x.astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + 1e-5) * weight
    assert relative_error(reference.rms_norm(x, weight, 1e-5), exact) < TOLERANCE


def test_rms_norm_of_zeros_is_zero(reference: ReferenceKernels) -> None:
    result = reference.rms_norm(np.zeros((2, 8), np.float32), np.ones(8, np.float32), 1e-6)
    np.testing.assert_array_equal(result, 0)


def test_rope_table_has_float32_angles_and_scales_both_functions(
    reference: ReferenceKernels,
) -> None:
    table = reference.rope_table([1.0, 0.3], max_position=5000, scaling=1.25)
    assert table.cos.shape == table.sin.shape == (5000, 2)
    angle = float(np.float32(4999) * np.float32(0.3))
    assert table.cos[4999, 1] == np.float32(np.cos(angle)) * np.float32(1.25)
    assert table.sin[4999, 1] == np.float32(np.sin(angle)) * np.float32(1.25)
    np.testing.assert_array_equal(table.cos[0], np.float32(1.25))


@pytest.mark.parametrize("interleaved", [True, False])
def test_rope_multiplies_pairs_as_complex_numbers(
    reference: ReferenceKernels, interleaved: bool
) -> None:
    inv_freq = [1.0, 0.5, 0.25]
    x, positions = random(4, 2, 8), np.array([0, 3, 3, 100], np.int32)
    table = reference.rope_table(inv_freq, max_position=128, scaling=1.0)
    rotated = reference.rope(x, table, positions, interleaved=interleaved)

    pairs = [(0, 1), (2, 3), (4, 5)] if interleaved else [(0, 3), (1, 4), (2, 5)]
    for row, position in enumerate(positions.tolist()):
        for frequency, (a, b) in zip(inv_freq, pairs, strict=True):
            before = x[row, :, a].astype(complex) + 1j * x[row, :, b]
            after = before * np.exp(1j * position * frequency)
            np.testing.assert_allclose(rotated[row, :, a], after.real, rtol=0, atol=1e-6)
            np.testing.assert_allclose(rotated[row, :, b], after.imag, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(rotated[..., 6:], x[..., 6:])


def test_store_kv_writes_its_slots_and_nothing_else(reference: ReferenceKernels) -> None:
    cache = np.zeros((4, 3, 2, 4, 2, 8), np.float32)
    keys, values = random(3, 2, 8), random(3, 2, 8, seed=1)
    reference.store_kv(keys, values, cache, 1, np.array([5, 15, 0], np.int64))

    expected = np.zeros_like(cache)
    for token, (block, offset) in enumerate([(1, 1), (3, 3), (0, 0)]):
        expected[block, 1, 0, offset], expected[block, 1, 1, offset] = keys[token], values[token]
    np.testing.assert_array_equal(cache, expected)


@pytest.mark.parametrize("window", [None, 1, 7, 64])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (6, 2), (7, 1)])
def test_paged_attention(
    reference: ReferenceKernels, num_heads: int, num_kv_heads: int, window: int | None
) -> None:
    spec = make_spec(num_heads, num_kv_heads, 16, window)
    case = PagedCase(reference, spec, [1, 5, 33], block_size=4)
    queries, layout = case.whole_step()
    result = reference.paged_attention(queries, case.cache, case.LAYER, layout, case.spec)
    exact = np.concatenate(
        [
            exact_attention(case.spec, *arrays)
            for arrays in zip(case.queries, case.keys, case.values, strict=True)
        ]
    )
    assert relative_error(result, exact) < TOLERANCE


def test_silu_mul_has_its_limits_and_warns_of_nothing(reference: ReferenceKernels) -> None:
    gate = np.array([[0, 1, -1, 200, -200, 3e38, -3e38]], np.float32)
    up = np.full_like(gate, 2)
    result = reference.silu_mul(np.concatenate([gate, up], axis=1))
    one = 1 / (1 + np.exp(-1.0))
    expected = [[0, 2 * one, -2 * (1 - one), 400, 0, np.inf, 0]]
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(result, np.array(expected), rtol=1e-6)
