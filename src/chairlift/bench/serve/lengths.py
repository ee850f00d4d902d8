"""Numbers of tokens: one number, an even range, or a lognormal distribution."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass

from chairlift.errors import ConfigError

MAX_TOKENS = 10_000_000
"""What no context reaches: a typing mistake."""

_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_LOGNORMAL = re.compile(r"lognormal:([0-9.]+),([0-9.]+)(?:,([0-9]+)-([0-9]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Draws numbers of tokens from `low` to `high`, both included."""

    low: int
    high: int
    median: float | None = None
    """Of a lognormal distribution, cut to the bounds; None: even."""
    sigma: float = 0.0
    """Standard deviation of the natural logarithm."""

    def draw(self, rng: random.Random) -> int:
        if self.median is None:
            return rng.randint(self.low, self.high)
        drawn = round(self.median * math.exp(rng.gauss(0.0, self.sigma)))
        return min(self.high, max(self.low, drawn))

    def describe(self) -> str:
        """For a report: "512", "16-256", "lognormal, median 200"."""
        if self.median is not None:
            return f"lognormal, median {self.median:g}"
        return f"{self.low}" if self.low == self.high else f"{self.low}-{self.high}"


def parse_lengths(text: str, field: str) -> Lengths:
    """Read "512", "16-256", or "lognormal:MEDIAN,SIGMA" with ",LOW-HIGH" behind it or not.

    Raises `ConfigError` that names `field`.
    """
    if found := _RANGE.fullmatch(text):
        low = int(found[1])
        return _checked(Lengths(low=low, high=int(found[2] or low)), text, field)
    if found := _LOGNORMAL.fullmatch(text):
        try:
            median, sigma = float(found[1]), float(found[2])
        except ValueError:
            raise _mistake(text, field) from None
        low, high = int(found[3] or 1), int(found[4] or MAX_TOKENS)
        return _checked(Lengths(low=low, high=high, median=median, sigma=sigma), text, field)
    raise _mistake(text, field)


def _checked(lengths: Lengths, text: str, field: str) -> Lengths:
    is_ordered = 1 <= lengths.low <= lengths.high <= MAX_TOKENS
    has_room = lengths.median is None or (lengths.median >= 1.0 and lengths.sigma <= 10.0)
    if not is_ordered or not has_room:
        raise _mistake(text, field)
    return lengths


def _mistake(text: str, field: str) -> ConfigError:
    return ConfigError(
        f"{field} takes a number of tokens from 1, LOW-HIGH, or"
        f" lognormal:MEDIAN,SIGMA[,LOW-HIGH], got {text!r}",
        field=field,
    )
