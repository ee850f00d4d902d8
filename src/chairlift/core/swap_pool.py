"""Host blocks for keys and values that had to leave the KV cache: ids only, no bytes."""

from __future__ import annotations


class SwapPool:
    """A stack of free host block ids 0 .. num_blocks - 1.  All O(1)."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    def can_allocate(self, num_blocks: int) -> bool:
        return num_blocks <= len(self._free)

    def allocate(self, num_blocks: int) -> list[int]:
        """Take `num_blocks` ids; the caller checked that there are as many."""
        assert self.can_allocate(num_blocks), "allocate() from a full swap pool"
        return [self._free.pop() for _ in range(num_blocks)]

    def free(self, block_ids: list[int]) -> None:
        self._free.extend(block_ids)

    def check_integrity(self, held: list[int]) -> None:
        """Raise AssertionError unless every block is free or held exactly once."""
        assert sorted([*held, *self._free]) == list(range(self.num_blocks)), (
            "a host block is lost or held twice"
        )
