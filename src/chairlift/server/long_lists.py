"""Looks through long lists part by part.

One call over all of a list holds Python's lock from its first value to its last, and the event loop
waits; between parts others have their turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

_PART = 4096
"""Values that take about a tenth of a millisecond."""


def kinds_of(values: Iterable[Any]) -> set[type]:
    """The types of all values."""
    kinds: set[type] = set()
    for part in _parts(values):
        kinds.update(map(type, part))
    return kinds


def are_within(values: Sequence[int], low: int, high: int) -> bool:
    """Whether all of them are between these two, which belong to it."""
    return all(low <= min(part) and max(part) <= high for part in _parts(values))


def _parts(values: Iterable[Any]) -> Iterator[list[Any]]:
    left = iter(values)
    while part := list(islice(left, _PART)):
        yield part
