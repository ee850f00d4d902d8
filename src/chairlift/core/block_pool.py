"""The blocks of the KV cache: who holds them, and in which order free ones are taken.

A block is *owned* (reference count above zero), *cached* (nobody holds it, but the prefix cache
still points to its contents), *free*, or *retired* (taken out of service while the pool is small).
Free and cached blocks form one doubly linked list through two arrays: free ones are taken from its
head, cached ones after them, least recently used first.

```
head -> free -> free -> cached (oldest) -> ... -> cached (newest) -> tail
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class BlockPool:
    """Reference counts and the free list over block ids 0 .. num_blocks - 1.  All O(1)."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, got {num_blocks}")
        self.num_blocks = num_blocks
        self.num_free_blocks = num_blocks
        """Free and cached together: what can be allocated now."""
        self._ref_counts = [0] * num_blocks
        self._is_cached = [False] * num_blocks
        self._retired: list[int] = []
        self._on_evict: Callable[[int], None] = lambda block_id: None
        # The list's ends are one sentinel at index num_blocks.
        self._next: list[int] = [*range(1, num_blocks + 1), 0]
        self._previous: list[int] = [num_blocks, *range(num_blocks)]

    def on_evict(self, callback: Callable[[int], None]) -> None:
        """Call `callback(block_id)` when a cached block is taken for new contents."""
        self._on_evict = callback

    @property
    def num_usable_blocks(self) -> int:
        """Blocks in service: everything but the retired."""
        return self.num_blocks - len(self._retired)

    def ref_count(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def is_cached(self, block_id: int) -> bool:
        """The prefix cache points to this block, owned or not: its contents must not change."""
        return self._is_cached[block_id]

    def is_writable(self, block_id: int) -> bool:
        """One owner, and no promise to keep the contents."""
        return self._ref_counts[block_id] == 1 and not self._is_cached[block_id]

    def allocate(self) -> int:
        """Take the next free block, with one reference.  The caller checked `num_free_blocks`."""
        block_id = self._next[self.num_blocks]
        assert block_id != self.num_blocks, "allocate() from an empty pool"
        self._unlink(block_id)
        self._ref_counts[block_id] = 1
        self._forget(block_id)
        return block_id

    def acquire(self, block_id: int) -> None:
        """One more reference, to a block that is owned or cached."""
        if self._ref_counts[block_id] == 0:
            assert self._is_cached[block_id], f"block {block_id} is free"
            self._unlink(block_id)
        self._ref_counts[block_id] += 1

    def release(self, block_id: int) -> None:
        """One reference less; the last one puts the block back on the list."""
        count = self._ref_counts[block_id]
        assert count > 0, f"block {block_id} is released more often than acquired"
        self._ref_counts[block_id] = count - 1
        if count == 1:
            # Contents worth keeping go to the end of the line, others to its front.
            self._link(block_id, at_tail=self._is_cached[block_id])

    def mark_cached(self, block_id: int) -> None:
        """The prefix cache points here from now on."""
        assert self._ref_counts[block_id] > 0, f"block {block_id} has no owner to vouch for it"
        self._is_cached[block_id] = True

    def retire(self, num_blocks: int) -> int:
        """Take up to this many free blocks out of service; returns how many."""
        count = min(num_blocks, self.num_free_blocks)
        for _ in range(count):
            block_id = self._next[self.num_blocks]
            self._unlink(block_id)
            self._forget(block_id)
            self._retired.append(block_id)
        return count

    def restore(self, num_blocks: int) -> int:
        """Put up to this many retired blocks back in service; returns how many."""
        count = min(num_blocks, len(self._retired))
        for _ in range(count):
            self._link(self._retired.pop(), at_tail=False)
        return count

    def check_integrity(self, held: Iterable[int]) -> None:
        """Raise AssertionError unless every block is owned, cached, free or retired exactly once.

        `held` lists every reference that the pool's users believe to hold, with repetition.
        """
        expected = [0] * self.num_blocks
        for block_id in held:
            expected[block_id] += 1
        assert expected == self._ref_counts, "references held differ from references counted"
        listed = list(self._walk())
        assert len(listed) == self.num_free_blocks, "the free list and its length differ"
        owned = {i for i, count in enumerate(self._ref_counts) if count}
        places = [*listed, *owned, *self._retired]
        assert sorted(places) == list(range(self.num_blocks)), "a block is lost or listed twice"

    def _forget(self, block_id: int) -> None:
        if self._is_cached[block_id]:
            self._is_cached[block_id] = False
            self._on_evict(block_id)

    def _walk(self) -> Iterable[int]:
        block_id = self._next[self.num_blocks]
        while block_id != self.num_blocks:
            yield block_id
            block_id = self._next[block_id]

    def _unlink(self, block_id: int) -> None:
        before, after = self._previous[block_id], self._next[block_id]
        self._next[before] = after
        self._previous[after] = before
        self.num_free_blocks -= 1

    def _link(self, block_id: int, *, at_tail: bool) -> None:
        end = self.num_blocks
        before, after = (self._previous[end], end) if at_tail else (end, self._next[end])
        self._next[before] = self._previous[after] = block_id
        self._previous[block_id], self._next[block_id] = before, after
        self.num_free_blocks += 1
