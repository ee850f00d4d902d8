from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.pooling_params import PoolingParams
from chairlift.runner.pooling import RequestPoolingState

RNG = np.random.default_rng(5)
ROWS: NDArray[np.float32] = RNG.normal(scale=3.0, size=(90, 24)).astype(np.float32)


def pooled(
    params: PoolingParams, rows: NDArray[np.float32], parts: Sequence[tuple[int, int]]
) -> NDArray[np.float32]:
    """The vector of a prompt that is computed in `parts` [start, end), some of them again."""
    state = RequestPoolingState(params, len(rows), rows.shape[1])
    vector: array[float] | None = None
    for start, end in parts:
        assert vector is None, "it is there already"
        count = state.num_rows(start, end)
        vector = state.push(rows[end - count : end], end)
    assert vector is not None
    assert vector.typecode == "f"
    return np.frombuffer(vector, np.float32)


def raw(pooling_type: str) -> PoolingParams:
    return PoolingParams(pooling_type=pooling_type, normalize=False)  # type: ignore[arg-type]


def test_last_is_the_last_row() -> None:
    np.testing.assert_array_equal(pooled(raw("last"), ROWS, [(0, 90)]), ROWS[-1])
    np.testing.assert_array_equal(pooled(PoolingParams(normalize=False), ROWS, [(0, 90)]), ROWS[-1])


def test_mean_is_the_mean_of_all_rows() -> None:
    expected = ROWS.mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(pooled(raw("mean"), ROWS, [(0, 90)]), expected, rtol=1e-7)


@pytest.mark.parametrize("pooling_type", ["last", "mean"])
def test_a_normalised_vector_has_length_1_and_the_same_direction(pooling_type: str) -> None:
    vector = pooled(PoolingParams(pooling_type=pooling_type), ROWS, [(0, 90)])  # type: ignore[arg-type]
    plain = pooled(raw(pooling_type), ROWS, [(0, 90)]).astype(np.float64)
    assert np.linalg.norm(vector.astype(np.float64)) == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(vector, plain / np.linalg.norm(plain), rtol=1e-6)


@pytest.mark.parametrize("pooling_type", ["last", "mean"])
@pytest.mark.parametrize("width", [1, 2, 24])
@pytest.mark.parametrize(
    "parts",
    [
        [(0, 1), (1, 90)],
        [(start, start + 1) for start in range(90)],
        [(0, 40), (40, 89), (89, 90)],
        [(0, 40), (0, 20), (20, 60), (16, 90)],  # computed again after a preemption
        [(0, 89), (88, 89), (0, 7), (7, 90)],
    ],
    ids=["two", "single", "three", "again", "again at the end"],
)
def test_chunks_and_recomputed_ones_change_no_bit(
    parts: list[tuple[int, int]], width: int, pooling_type: str
) -> None:
    rows = np.ascontiguousarray(ROWS[:, :width])
    params = PoolingParams(pooling_type=pooling_type)  # type: ignore[arg-type]
    whole = pooled(params, rows, [(0, 90)])
    assert pooled(params, rows, parts).tobytes() == whole.tobytes()


def test_small_numbers_beside_large_ones_are_not_lost() -> None:
    rows = np.array([[1e8], [1.0], [-1e8], [1.0]], np.float32)
    assert pooled(raw("mean"), rows, [(0, 2), (2, 4)])[0] == 0.5


@pytest.mark.parametrize("pooling_type", ["last", "mean"])
def test_nothing_but_zeros_stays_zero(pooling_type: str) -> None:
    vector = pooled(
        PoolingParams(pooling_type=pooling_type), np.zeros((3, 4), np.float32), [(0, 3)]
    )  # type: ignore[arg-type]
    np.testing.assert_array_equal(vector, 0.0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("normalize", [True, False])
def test_what_is_no_number_is_an_error(value: float, normalize: bool) -> None:
    rows = np.full((2, 3), 1.0, np.float32)
    rows[1, 2] = value
    state = RequestPoolingState(PoolingParams(normalize=normalize), 2, 3)
    with pytest.raises(FloatingPointError, match="no usable hidden states"):
        state.push(rows[1:], 2)


def test_it_reads_no_row_more_than_it_needs() -> None:
    last = RequestPoolingState(raw("last"), 90, 24)
    assert [last.num_rows(0, 40), last.num_rows(40, 89), last.num_rows(89, 90)] == [0, 0, 1]
    mean = RequestPoolingState(raw("mean"), 90, 24)
    assert mean.num_rows(0, 40) == 40
    mean.push(ROWS[:40], 40)
    assert [mean.num_rows(0, 30), mean.num_rows(16, 50), mean.num_rows(40, 90)] == [0, 10, 50]
