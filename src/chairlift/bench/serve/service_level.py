"""What a request must keep to count as good: upper bounds on its latencies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from chairlift.errors import ConfigError

LatencyName = Literal["ttft", "tpot", "itl", "e2el"]
"""Time to first token, per output token, between chunks, and end to end."""

BoundName = Literal["ttft", "tpot", "e2el"]


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """Bounds in milliseconds; a request is good when it keeps all of them."""

    bounds_ms: dict[BoundName, float]

    def describe(self) -> str:
        return ", ".join(f"{name} {bound:g} ms" for name, bound in self.bounds_ms.items())


def parse_service_level(words: Sequence[str]) -> ServiceLevel | None:
    """Read "ttft:500", "tpot:50", "e2el:3000", one a word or with commas.  None without words.

    Raises `ConfigError`.
    """
    parts = [part for word in words for part in word.replace(",", " ").split()]
    bounds: dict[BoundName, float] = {}
    for part in parts:
        name, _, number = part.partition(":")
        if name not in get_args(BoundName) or name in bounds:
            raise _mistake(part)
        bounds[cast(BoundName, name)] = _milliseconds(number, part)
    return ServiceLevel(bounds) if parts else None


def _milliseconds(text: str, part: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise _mistake(part) from None
    if not (math.isfinite(number) and number > 0.0):
        raise _mistake(part)
    return number


def _mistake(part: str) -> ConfigError:
    names = ", ".join(get_args(BoundName))
    return ConfigError(
        f"goodput takes NAME:MILLISECONDS with each of {names} once at most, got {part!r}",
        field="goodput",
    )
