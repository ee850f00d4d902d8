"""Names by a key that may change: an entry out of date is put right when it gets to the front."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

Name = TypeVar("Name")
Key = TypeVar("Key")

_MIN_SIZE = 64
"""The heap is built anew when entries that do not count outnumber the others by more than this."""


class LazyHeap(Generic[Name, Key]):
    """The smallest of the names that its owner keeps.  Nothing is to be done when one of them goes.

    A key may grow unnoticed; when it becomes smaller, its name is pushed again.  O(log n) to push,
    amortised O(log n) to look.
    """

    def __init__(self, names: Collection[Name], key_of: Callable[[Name], Key]) -> None:
        """`names`: those that count, now and later; `key_of`: the key of one of them, as it is."""
        self._names = names
        self._key_of = key_of
        self._entries: list[tuple[Key, Name]] = []

    def __len__(self) -> int:
        """Entries, whether they count or not."""
        return len(self._entries)

    def push(self, name: Name) -> None:
        """One of the names is new, or its key has become smaller."""
        if len(self._entries) > 2 * len(self._names) + _MIN_SIZE:
            self._entries = [(self._key_of(each), each) for each in self._names]
            heapq.heapify(self._entries)
        else:
            heapq.heappush(self._entries, (self._key_of(name), name))

    def first(self) -> Name | None:
        """The name with the smallest key; of equal keys, the smaller name."""
        while self._entries:
            key, name = self._entries[0]
            if name not in self._names:
                heapq.heappop(self._entries)
            elif (actual := self._key_of(name)) != key:
                heapq.heapreplace(self._entries, (actual, name))
            else:
                return name
        return None
