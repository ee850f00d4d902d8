"""Rotation frequencies of rotary position embeddings, and the ways to stretch them.

Plain arithmetic on Python floats.  Sources: RoPE, Su et al. 2021; position interpolation (linear),
Chen et al. 2023; YaRN, Peng et al. 2023; the "llama3" rule, as published with Llama 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from chairlift.errors import ModelFileError


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How positions beyond the trained length are reached."""

    kind: Literal["linear", "llama3", "yarn", "factors"]
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    """llama3: wavelengths longer than original / this are stretched by `factor`."""
    high_freq_factor: float = 4.0
    """llama3: wavelengths shorter than original / this stay."""
    beta_fast: float = 32.0
    """yarn: dimensions that turn more often than this over the trained length stay."""
    beta_slow: float = 1.0
    """yarn: dimensions that turn less often are stretched by `factor`."""
    attention_factor: float | None = None
    """yarn: factor on cos and sin; None: 0.1 ln(factor) + 1."""
    truncate: bool = True
    """yarn: round the borders of the ramp to whole dimensions."""
    factors: tuple[float, ...] = ()
    """factors: one divisor per frequency, stored in the file."""

    def __post_init__(self) -> None:
        for name in ("factor", "low_freq_factor", "beta_fast", "beta_slow", "attention_factor"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ModelFileError(f"rope scaling: {name} must be above 0, it is {value}")
        if not self.low_freq_factor < self.high_freq_factor < math.inf:
            raise ModelFileError(
                f"rope scaling: high_freq_factor {self.high_freq_factor} must be above"
                f" low_freq_factor {self.low_freq_factor}"
            )
        if self.kind in ("llama3", "yarn") and self.original_max_position < 1:
            raise ModelFileError(
                f"rope scaling: the trained length is {self.original_max_position}"
            )
        if not all(0 < divisor < math.inf for divisor in self.factors):
            raise ModelFileError("rope scaling: the file's factors must be above 0")


def rope_frequencies(theta: float, rope_dim: int, scaling: RopeScaling | None) -> list[float]:
    """Radians per position of each of the rope_dim / 2 pairs."""
    plain = [theta ** (-2 * i / rope_dim) for i in range(rope_dim // 2)]
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return [frequency / scaling.factor for frequency in plain]
    if scaling.kind == "factors":
        return [f / divisor for f, divisor in zip(plain, scaling.factors, strict=True)]
    if scaling.kind == "llama3":
        return [_llama3(frequency, scaling) for frequency in plain]
    return _yarn(plain, theta, rope_dim, scaling)


def rope_magnitude(scaling: RopeScaling | None) -> float:
    """Factor on cos and sin (YaRN's attention temperature)."""
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0


def _llama3(frequency: float, scaling: RopeScaling) -> float:
    turns = scaling.original_max_position * frequency / (2 * math.pi)
    if turns > scaling.high_freq_factor:
        return frequency
    if turns < scaling.low_freq_factor:
        return frequency / scaling.factor
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = (turns - low) / (high - low)
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency


def _yarn(plain: Sequence[float], theta: float, rope_dim: int, scaling: RopeScaling) -> list[float]:
    def dimension_of(turns: float) -> float:
        """The (fractional) pair that makes this many turns over the trained length."""
        length = scaling.original_max_position / (turns * 2 * math.pi)
        return rope_dim * math.log(length) / (2 * math.log(theta))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope_dim - 1)
    width = high - low or 0.001
    stretched = []
    for i, frequency in enumerate(plain):
        ramp = min(1.0, max(0.0, (i - low) / width))
        stretched.append(ramp * frequency / scaling.factor + (1 - ramp) * frequency)
    return stretched
