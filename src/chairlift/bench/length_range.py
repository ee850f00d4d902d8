"""A number of tokens, or a range that it is drawn from: "128" or "32-512"."""

from __future__ import annotations

from dataclasses import dataclass

from chairlift.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LengthRange:
    """Tokens from `low` to `high`, both included."""

    low: int
    high: int

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


def parse_length_range(text: str, *, field: str) -> LengthRange:
    """Raises `ConfigError`, naming `field`, unless it is a number or a range of at least 1."""
    first, dash, last = text.partition("-")
    try:
        low = int(first)
        high = int(last) if dash else low
    except ValueError:
        low = high = 0
    if not 1 <= low <= high:
        raise ConfigError(
            f"{field} takes a number of tokens such as 128, or a range such as 32-512, got"
            f" {text!r}",
            field=field,
        )
    return LengthRange(low, high)
