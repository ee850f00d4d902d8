"""Memory used to its last byte, and numbers that are none: under sanitizers, and for results.

Caches hold no block more than is used, and tables no column more; the last token is the last of the
cache.  What is not finite spoils what depends on it and nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest

from chairlift.kernels.cpu.linear_q8 import Q8Ops
from chairlift.kernels.cpu.ops import NativeKernels
from chairlift.kernels.interface import BatchLayout, FloatArray
from chairlift.kernels.reference_int8 import linear_q8, requantise_per_channel
from unit.kernels.kernel_cases import PagedCase, exact_attention, make_spec, relative_error
from unit.kernels.test_attention_int8 import ORACLE_TOLERANCE, Int8Case, make_ops
from unit.kernels.test_linear_q8 import random, random_weights

TOLERANCE = 5e-6
NOT_FINITE = (np.nan, np.inf, -np.inf)

Case = TypeVar("Case", PagedCase, Int8Case)


def to_the_last_block(case: Case) -> Case:
    """The sequence's blocks are all there are, the last one at the end of the memory."""
    (table,) = case.tables
    case.tables = [list(range(len(table)))]
    case.cache = case.cache[: len(table)].copy()
    return case


def tight(layout: BatchLayout) -> BatchLayout:
    """Without the poison beside the tables."""
    return replace(layout, block_tables=layout.block_tables[:, :-2].copy())


@pytest.mark.parametrize("new_tokens", [1, 3, 48])
@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("shape", [(3, 3, 5), (4, 1, 17), (2, 2, 16), (40, 1, 33)], ids=str)
def test_floats_in_a_full_cache(
    native: NativeKernels, shape: tuple[int, int, int], block_size: int, new_tokens: int
) -> None:
    case = to_the_last_block(PagedCase(make_spec(*shape), [48], block_size))
    case.store()
    queries, layout = case.step([(0, 48 - new_tokens, 48)])
    result = native.paged_attention(queries, case.cache, case.LAYER, tight(layout), case.spec)
    exact = exact_attention(case.spec, case.queries[0], case.keys[0], case.values[0])
    assert relative_error(result, exact[-new_tokens:]) < TOLERANCE


@pytest.mark.parametrize("new_tokens", [1, 3, 192])
@pytest.mark.parametrize("block_size", [16, 48])
@pytest.mark.parametrize("shape", [(3, 3, 16), (4, 1, 80), (50, 2, 32), (1, 1, 512)], ids=str)
def test_bytes_in_a_full_cache(
    native: NativeKernels, shape: tuple[int, int, int], block_size: int, new_tokens: int
) -> None:
    case = to_the_last_block(Int8Case(make_ops(native, block_size), make_spec(*shape), [192]))
    own = case.cache.copy()
    chunks = [(0, 0, 192 - new_tokens)] if new_tokens < 192 else []
    for chunk in (*chunks, (0, 192 - new_tokens, 192)):
        qkv, layout = case.step([chunk])
        layout = tight(layout)
        queries = case.ops.store_qkv(qkv, case.rope, case.cache, case.LAYER, layout, case.spec)
        result = case.ops.paged_attention(queries, case.cache, case.LAYER, layout, case.spec)
        expected, _ = case.run_oracle([chunk], own)
    np.testing.assert_array_equal(case.cache, own)
    assert relative_error(result, expected) < ORACLE_TOLERANCE


@pytest.mark.parametrize("poison", NOT_FINITE)
@pytest.mark.parametrize("part", ["query", "key", "value"])
def test_what_is_not_finite_stays_in_its_sequence(
    native: NativeKernels, part: str, poison: float
) -> None:
    """In a cache of bytes: from the token on that has it, and in no other sequence."""
    case = Int8Case(make_ops(native), make_spec(4, 2, 32), [130, 90])
    clean = case.run(case.whole())
    head = {"query": 1, "key": 4, "value": 7}[part]
    case.qkv[0][77, head * 32 + 5] = poison
    result = case.run(case.whole())
    np.testing.assert_array_equal(result[:77], clean[:77])
    np.testing.assert_array_equal(result[130:], clean[130:])
    assert not np.isfinite(result[77]).all()


@pytest.mark.parametrize("poison", NOT_FINITE)
@pytest.mark.parametrize("part", ["queries", "keys", "values"])
def test_what_is_not_finite_stays_in_its_sequence_of_floats(
    native: NativeKernels, part: str, poison: float
) -> None:
    case = PagedCase(make_spec(4, 2, 32), [130, 90], block_size=16)

    def attend() -> FloatArray:
        case.store()
        queries, layout = case.whole_step()
        return native.paged_attention(queries, case.cache, case.LAYER, layout, case.spec)

    clean = attend()
    getattr(case, part)[0][77, 1, 5] = poison
    result = attend()
    np.testing.assert_array_equal(result[:77], clean[:77])
    np.testing.assert_array_equal(result[130:], clean[130:])


@pytest.mark.parametrize("size", [1e-45, 1e-39, 1e38, 3.4e38])
def test_numbers_at_the_ends_of_their_range_in_bytes(native: NativeKernels, size: float) -> None:
    """Keys, values and queries from the smallest denormal to the largest number, and zeros."""
    case = Int8Case(make_ops(native), make_spec(4, 2, 32), [100])
    rng = np.random.default_rng(3)
    case.qkv[0] = (rng.uniform(-1, 1, case.qkv[0].shape) * size).astype(np.float32)
    case.qkv[0][rng.random(case.qkv[0].shape) < 0.3] = 0
    case.rope.sin[:], case.rope.cos[:] = 0, 1  # a rotation would leave the range
    own = case.cache.copy()
    result = case.run(case.whole())
    with np.errstate(all="ignore"):
        expected, _ = case.run_oracle(case.whole(), own)
    np.testing.assert_array_equal(case.cache, own)
    if size < 1e38:
        np.testing.assert_allclose(result, expected, rtol=0, atol=ORACLE_TOLERANCE * size)


@pytest.mark.parametrize("poison", NOT_FINITE)
def test_a_weight_that_is_not_finite_spoils_its_own_output(
    native: NativeKernels, poison: float
) -> None:
    ops = Q8Ops(native.library, native.pool)
    x = random(5, 96)
    for per_channel in (False, True):
        weights = random_weights((50, 96), 4, 32, False)
        clean = ops.linear(x, ops.pack(weights, per_channel=per_channel))
        weights.mins[7, 1] = poison
        result = ops.linear(x, ops.pack(weights, per_channel=per_channel))
        np.testing.assert_array_equal(np.delete(result, 7, axis=1), np.delete(clean, 7, axis=1))
        if per_channel:
            expected = linear_q8(x, requantise_per_channel(weights))
            np.testing.assert_array_equal(result[:, 7], expected[:, 7])
        else:
            assert not np.isfinite(result[:, 7]).any()


def test_codes_of_more_bits_than_they_say(native: NativeKernels) -> None:
    """Codes are checked by the library too: a larger one would spill into its neighbour."""
    ops = Q8Ops(native.library, native.pool)
    weights = random_weights((16, 32), 8, 32, False)
    weights.codes[3, 5] = 16
    lying = replace(weights, bits=4)
    with pytest.raises(ValueError, match="below 2"):
        ops.pack(lying)
