"""The first of names whose keys change: against a plain minimum."""

from __future__ import annotations

import random

from chairlift.core.lazy_heap import LazyHeap


def test_first_is_the_smallest_whatever_has_come_gone_and_changed() -> None:
    rng = random.Random(5)
    keys: dict[str, int] = {}
    heap = LazyHeap(keys, keys.__getitem__)
    assert heap.first() is None
    for _ in range(5000):
        name = f"n{rng.randrange(40)}"
        if name not in keys or rng.random() < 0.1:
            keys[name] = min(rng.randrange(1000), keys.get(name, 1000))
            heap.push(name)
        elif rng.random() < 0.5:
            keys[name] += rng.randrange(50)
        else:
            del keys[name]
        assert heap.first() == min(keys, key=lambda each: (keys[each], each), default=None)
    assert len(heap) <= 2 * 40 + 65


def test_equal_keys_are_told_apart_by_name() -> None:
    keys = {"b": 1, "a": 1}
    heap = LazyHeap(keys, keys.__getitem__)
    for name in keys:
        heap.push(name)
    assert heap.first() == "a"
