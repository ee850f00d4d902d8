"""Rotation frequencies against the published formulae, written out once more with numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.errors import ModelFileError
from chairlift.models.rope import RopeScaling, rope_frequencies, rope_magnitude

LLAMA3 = RopeScaling(kind="llama3", factor=8.0, original_max_position=64)
YARN = RopeScaling(kind="yarn", factor=4.0, original_max_position=64)


def plain(theta: float, dim: int) -> NDArray[np.float64]:
    return 1.0 / theta ** (np.arange(0, dim, 2) / dim)


@pytest.mark.parametrize(("theta", "dim"), [(10_000.0, 64), (1e6, 128), (500_000.0, 6), (2.0, 2)])
def test_plain(theta: float, dim: int) -> None:
    np.testing.assert_allclose(rope_frequencies(theta, dim, None), plain(theta, dim), rtol=1e-12)


def test_linear_divides_all() -> None:
    scaling = RopeScaling(kind="linear", factor=2.5)
    expected = plain(10_000.0, 64) / 2.5
    np.testing.assert_allclose(rope_frequencies(10_000.0, 64, scaling), expected, rtol=1e-12)


def test_factors_of_the_file_divide_each() -> None:
    scaling = RopeScaling(kind="factors", factors=(1.0, 2.0, 8.0))
    expected = plain(10_000.0, 6) / np.array([1.0, 2.0, 8.0])
    np.testing.assert_allclose(rope_frequencies(10_000.0, 6, scaling), expected, rtol=1e-12)


def test_llama3_known_numbers() -> None:
    """Head size 16, trained length 64, factor 8, borders 1 and 4."""
    known = [1, 0.244385, 0.013042, 0.003953, 0.00125, 0.000395, 0.000125, 0.0000395]
    got = rope_frequencies(10_000.0, 16, LLAMA3)
    np.testing.assert_allclose(got, known, rtol=1e-3)


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
def test_llama3_by_wavelengths(theta: float) -> None:
    """Short waves stay, long ones are stretched, those between are mixed."""
    scaling = RopeScaling(kind="llama3", factor=32.0, original_max_position=8192)
    base = plain(theta, 128)
    wave = 2 * np.pi / base
    smooth = (8192 / wave - 1.0) / (4.0 - 1.0)
    expected = np.where(
        wave < 8192 / 4.0,
        base,
        np.where(wave > 8192 / 1.0, base / 32, (1 - smooth) * base / 32 + smooth * base),
    )
    np.testing.assert_allclose(rope_frequencies(theta, 128, scaling), expected, rtol=1e-12)


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(("fast", "slow"), [(32.0, 1.0), (4.0, 1.0)])
def test_yarn_by_parts(fast: float, slow: float, truncate: bool) -> None:
    theta, dim, length, factor = 10_000.0, 128, 4096, 16.0
    scaling = RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position=length,
        beta_fast=fast,
        beta_slow=slow,
        truncate=truncate,
    )
    low, high = (
        dim * np.log(length / (turns * 2 * np.pi)) / (2 * np.log(theta)) for turns in (fast, slow)
    )
    if truncate:
        low, high = np.floor(low), np.ceil(high)
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    base = plain(theta, dim)
    expected = base / factor * ramp + base * (1 - ramp)
    np.testing.assert_allclose(rope_frequencies(theta, dim, scaling), expected, rtol=1e-12)


def test_yarn_keeps_the_fastest_and_stretches_the_slowest() -> None:
    got, base = rope_frequencies(10_000.0, 128, YARN), plain(10_000.0, 128)
    assert got[0] == base[0]
    assert got[-1] == pytest.approx(base[-1] / 4)


def test_yarn_whose_borders_fall_together() -> None:
    scaling = RopeScaling(
        kind="yarn", factor=4.0, original_max_position=64, beta_fast=1.0, beta_slow=1.0,
        truncate=False,
    )  # fmt: skip
    assert np.isfinite(rope_frequencies(10_000.0, 16, scaling)).all()


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        (None, 1.0),
        (RopeScaling(kind="linear", factor=4.0), 1.0),
        (LLAMA3, 1.0),
        (YARN, 0.1 * math.log(4.0) + 1.0),
        (RopeScaling(kind="yarn", factor=0.5, original_max_position=64), 1.0),
        (
            RopeScaling(kind="yarn", factor=4.0, original_max_position=64, attention_factor=1.25),
            1.25,
        ),
    ],
)
def test_magnitude(scaling: RopeScaling | None, expected: float) -> None:
    assert rope_magnitude(scaling) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"factor": 0.0}, "factor"),
        ({"factor": -2.0}, "factor"),
        ({"factor": math.nan}, "factor"),
        ({"factor": math.inf}, "factor"),
        ({"low_freq_factor": 4.0}, "high_freq_factor"),
        ({"low_freq_factor": 0.0}, "low_freq_factor"),
        ({"high_freq_factor": math.nan}, "high_freq_factor"),
        ({"original_max_position": 0}, "trained length"),
        ({"beta_fast": 0.0}, "beta_fast"),
        ({"beta_slow": -1.0}, "beta_slow"),
        ({"attention_factor": 0.0}, "attention_factor"),
        ({"factors": (1.0, 0.0)}, "factors"),
    ],
)
def test_numbers_that_no_formula_can_take(options: dict[str, Any], name: str) -> None:
    """A lying file is one line, not a division by zero or the logarithm of a negative number."""
    values = {"kind": "yarn", "factor": 4.0, "original_max_position": 64, **options}
    with pytest.raises(ModelFileError, match=name):
        RopeScaling(**values)
