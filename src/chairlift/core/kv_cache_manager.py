"""Which blocks hold a request's keys and values: allocation, sharing, swapping, the prefix cache.

Owns the `BlockPool`, the `PrefixCache` and the `SwapPool`, and hides all three from the scheduler.
It answers no (`False`, or an allocation of `None`) where memory is short and never decides who has
to go.  Look-ups change nothing.

What must be moved before a step computes is collected here and taken with `take_moves()`.  The
runner executes swap-outs, then swap-ins, then copies, in that order.  A block given up while a
step is in flight comes back to the pool only when that step has been read.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from chairlift.core.block_pool import BlockPool
from chairlift.core.integers import cdiv
from chairlift.core.prefix_cache import PrefixCache, PrefixMatch, PrefixParent
from chairlift.core.request import Request
from chairlift.core.swap_pool import SwapPool


@dataclass(slots=True)
class BlockMoves:
    """Block contents to move before a step: pairs (from, to)."""

    swap_outs: list[tuple[int, int]] = field(default_factory=list)
    """(device block, host block)."""
    swap_ins: list[tuple[int, int]] = field(default_factory=list)
    """(host block, device block)."""
    copies: list[tuple[int, int]] = field(default_factory=list)
    """(device block, device block): copy on write."""

    def __bool__(self) -> bool:
        return bool(self.swap_outs or self.swap_ins or self.copies)


@dataclass(slots=True)
class _Deferred:
    """Blocks that must stay as they are until a step has been read."""

    step_id: int
    device_blocks: list[int] = field(default_factory=list)
    host_blocks: list[int] = field(default_factory=list)


class KVCacheManager:
    """Block tables over one pool.  Every operation is O(blocks it touches)."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        enable_prefix_caching: bool = True,
        num_swap_blocks: int = 0,
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.swap_pool = SwapPool(num_swap_blocks)
        self.prefix_cache = PrefixCache(block_size)
        self.enable_prefix_caching = enable_prefix_caching
        self.pool.on_evict(self.prefix_cache.evict)
        self._moves = BlockMoves()
        self._deferred: deque[_Deferred] = deque()
        self._submitted_step = -1
        self._resolved_step = -1

    # -- questions ---------------------------------------------------------------------------
    @property
    def num_free_blocks(self) -> int:
        return self.pool.num_free_blocks

    @property
    def capacity_tokens(self) -> int:
        """Longest request that the pool can hold when it is alone."""
        return self.pool.num_usable_blocks * self.block_size

    @property
    def num_deferred_blocks(self) -> int:
        """Blocks that come back once the steps in flight have been read."""
        return sum(len(entry.device_blocks) for entry in self._deferred)

    @property
    def num_steps_in_flight(self) -> int:
        """Steps that were submitted and have not been read."""
        return self._submitted_step - self._resolved_step

    def num_blocks_for(self, num_tokens: int) -> int:
        return cdiv(num_tokens, self.block_size)

    def lookup(self, request: Request, sibling: Request | None = None) -> PrefixMatch:
        """The longest stored prefix: in the cache, or in a sibling that has computed the prompt.

        At least one token is left to compute, since its logits are needed.
        """
        limit = request.num_tokens - 1
        match = PrefixMatch()
        if self.enable_prefix_caching and request.use_prefix_cache and limit > 0:
            match = self.prefix_cache.lookup(request.token_ids, request.cache_salt, limit)
        if sibling is not None:
            shared = min(request.num_prompt_tokens - 1, sibling.num_computed_tokens)
            if shared > match.num_tokens:
                whole = shared // self.block_size
                match = PrefixMatch(
                    block_ids=sibling.block_table[: self.num_blocks_for(shared)],
                    num_tokens=shared,
                    parents=sibling.prefix_nodes[:whole],
                )
        return match

    def count_lookup(self, request: Request, match: PrefixMatch) -> None:
        """Add an admission to the prefix cache's statistics."""
        if not self.enable_prefix_caching:
            self.prefix_cache.miss_reasons["disabled"] += 1
        elif not request.use_prefix_cache:
            self.prefix_cache.miss_reasons["bypassed"] += 1
        else:
            self.prefix_cache.count(request.token_ids, request.cache_salt, match)

    # -- allocation --------------------------------------------------------------------------
    def admit(self, request: Request, match: PrefixMatch, *, headroom: int) -> bool:
        """Give a waiting request blocks for all its tokens, the matched ones shared.

        A request that kept or swapped out blocks continues them.  `headroom` free blocks must be
        left over.  False: too little memory, and nothing has changed.
        """
        whole = len(match.parents)
        for block_ids, num_tokens in (
            (match.block_ids, match.num_tokens),
            (match.block_ids[:whole], whole * self.block_size),
        ):
            # A partly used block costs one more block, for its copy: do without if that is short.
            if self._can_admit(request, block_ids, num_tokens, headroom):
                self._admit(request, block_ids, num_tokens, match.parents)
                return True
        return False

    def _reusable(self, request: Request, block_ids: list[int], num_tokens: int) -> list[int]:
        """Matched blocks that continue what the request still has, if that ends a block."""
        kept = len(request.block_table)
        starts_there = request.num_computed_tokens == kept * self.block_size
        gains = num_tokens > request.num_computed_tokens
        return block_ids[kept:] if starts_there and gains else []

    def _can_admit(
        self, request: Request, block_ids: list[int], num_tokens: int, headroom: int
    ) -> bool:
        matched = self._reusable(request, block_ids, num_tokens)
        kept = len(request.block_table)
        first = (num_tokens if matched else request.num_computed_tokens) // self.block_size
        if first < kept:
            num_copies = 0 if self.pool.is_writable(request.block_table[first]) else 1
        else:
            num_copies = 1 if first < kept + len(matched) else 0
        num_new = self.num_blocks_for(request.num_tokens) - kept - len(matched)
        num_revived = sum(1 for block_id in matched if self.pool.ref_count(block_id) == 0)
        return num_new + num_copies + num_revived + headroom <= self.num_free_blocks

    def _admit(
        self, request: Request, block_ids: list[int], num_tokens: int, parents: list[PrefixParent]
    ) -> None:
        kept = len(request.block_table)
        matched = self._reusable(request, block_ids, num_tokens)
        for block_id in matched:
            self.pool.acquire(block_id)
        request.block_table.extend(matched)
        if matched:
            request.num_computed_tokens = num_tokens
            if len(request.prefix_nodes) == kept:
                request.prefix_nodes.extend(parents[kept:])
        while len(request.block_table) < self.num_blocks_for(request.num_tokens):
            request.block_table.append(self.pool.allocate())
        if request.host_blocks:
            self._swap_in(request, kept)
        self._make_writable(request)

    def num_missing_blocks(self, request: Request) -> int:
        """Blocks short before the next token of a running request can be stored."""
        return max(0, self._num_blocks_to_extend(request) - self.num_free_blocks)

    def extend(self, request: Request) -> None:
        """Make room for the next token.  The caller checked `num_missing_blocks()`."""
        while len(request.block_table) * self.block_size <= request.num_computed_tokens:
            request.block_table.append(self.pool.allocate())
        self._make_writable(request)

    def _num_blocks_to_extend(self, request: Request) -> int:
        index, table = request.num_computed_tokens // self.block_size, request.block_table
        if index >= len(table):
            return index + 1 - len(table)
        return 0 if self.pool.is_writable(table[index]) else 1

    def _make_writable(self, request: Request) -> None:
        """Copy on write: the block that gets the next token must be this request's alone."""
        index = request.num_computed_tokens // self.block_size
        source = request.block_table[index]
        if self.pool.is_writable(source):
            return
        target = self.pool.allocate()
        self._moves.copies.append((source, target))
        request.block_table[index] = target
        self._release([source], until_copied=True)

    # -- giving up ---------------------------------------------------------------------------
    def free(self, request: Request) -> None:
        """Give back all that a request holds; what it computed stays cached while there is room."""
        self._register_tail(request)
        self._release(request.block_table[::-1])
        self._release_host(request.host_blocks)
        request.block_table = []
        request.host_blocks = []
        request.prefix_nodes = []

    def num_reclaimable_blocks(self, request: Request) -> int:
        """Blocks at the end of its table that nobody else holds."""
        count = 0
        for block_id in reversed(request.block_table):
            if self.pool.ref_count(block_id) != 1:
                break
            count += 1
        return count

    def drop_tail(self, request: Request, num_blocks: int) -> None:
        """Give back the last `num_blocks` blocks; their tokens must be computed again."""
        keep = len(request.block_table) - num_blocks
        self._release_host(request.host_blocks)
        request.host_blocks = []
        self._cut_table(request, keep)
        request.num_computed_tokens = min(request.num_computed_tokens, keep * self.block_size)

    def can_swap_out(self, request: Request, num_blocks: int) -> bool:
        keep = len(request.block_table) - num_blocks
        return self.swap_pool.can_allocate(self._num_filled_blocks(request) - keep)

    def swap_out(self, request: Request, num_blocks: int) -> int:
        """Move the last `num_blocks` blocks to the swap pool; returns how many were copied.

        Blocks that hold nothing yet are only given back.
        """
        keep = len(request.block_table) - num_blocks
        leaving = request.block_table[keep : self._num_filled_blocks(request)]
        host_blocks = self.swap_pool.allocate(len(leaving))
        self._moves.swap_outs.extend(zip(leaving, host_blocks, strict=True))
        request.host_blocks = host_blocks + request.host_blocks
        self._cut_table(request, keep)
        return len(leaving)

    def _num_filled_blocks(self, request: Request) -> int:
        """Blocks of the table that hold computed tokens."""
        filled = self.num_blocks_for(request.num_computed_tokens)
        return min(filled, len(request.block_table))

    def _cut_table(self, request: Request, keep: int) -> None:
        self._release(request.block_table[keep:][::-1])
        del request.block_table[keep:]
        del request.prefix_nodes[keep:]

    def _swap_in(self, request: Request, kept: int) -> None:
        targets = request.block_table[kept : kept + len(request.host_blocks)]
        self._moves.swap_ins.extend(zip(request.host_blocks, targets, strict=True))
        self._release_host(request.host_blocks, until_copied=True)
        request.host_blocks = []

    # -- the prefix cache --------------------------------------------------------------------
    def register_full_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Offer the blocks that a finished step has filled for reuse.

        Where another request stored the same tokens first, its block takes the place of ours: the
        contents are equal bit for bit, so one copy is enough.
        """
        if not self.enable_prefix_caching:
            return
        size = self.block_size
        for index in range(len(request.prefix_nodes), num_computed_tokens // size):
            tokens = tuple(request.token_ids[index * size : (index + 1) * size])
            block_id = request.block_table[index]
            node = self.prefix_cache.register(request.cache_parent, tokens, block_id)
            if node.block_id == block_id:
                self.pool.mark_cached(block_id)
            else:
                self.pool.acquire(node.block_id)
                request.block_table[index] = node.block_id
                self._release([block_id])
            request.prefix_nodes.append(node.node_id)

    def _register_tail(self, request: Request) -> None:
        """When a request ends, even its last, partly filled block is worth keeping."""
        if not self.enable_prefix_caching or request.host_blocks or not request.block_table:
            return
        if request.error is not None or self.num_steps_in_flight:
            return  # what a step in flight, or one that failed, has written is not certain
        self.register_full_blocks(request, request.num_computed_tokens)
        size = self.block_size
        whole = request.num_computed_tokens // size
        tokens = tuple(request.token_ids[whole * size : request.num_computed_tokens])
        if not tokens or len(request.prefix_nodes) != whole:
            return
        block_id = request.block_table[whole]
        if self.pool.is_writable(block_id):
            node = self.prefix_cache.register(request.cache_parent, tokens, block_id)
            if node.block_id == block_id:
                self.pool.mark_cached(block_id)

    # -- steps -------------------------------------------------------------------------------
    def take_moves(self) -> BlockMoves:
        """What must be moved before the step that is being built; cleared by this call."""
        moves, self._moves = self._moves, BlockMoves()
        return moves

    def step_submitted(self, step_id: int) -> None:
        self._submitted_step = step_id

    def step_resolved(self, step_id: int) -> None:
        """A step has been read: blocks that waited for it are free."""
        self._resolved_step = step_id
        while self._deferred and self._deferred[0].step_id <= step_id:
            entry = self._deferred.popleft()
            for block_id in entry.device_blocks:
                self.pool.release(block_id)
            self.swap_pool.free(entry.host_blocks)

    def _release(self, block_ids: list[int], *, until_copied: bool = False) -> None:
        step_id = self._step_to_wait_for(until_copied)
        if step_id is None:
            for block_id in block_ids:
                self.pool.release(block_id)
        else:
            self._deferred_until(step_id).device_blocks.extend(block_ids)

    def _release_host(self, block_ids: list[int], *, until_copied: bool = False) -> None:
        step_id = self._step_to_wait_for(until_copied)
        if step_id is None:
            self.swap_pool.free(block_ids)
        else:
            self._deferred_until(step_id).host_blocks.extend(block_ids)

    def _step_to_wait_for(self, until_copied: bool) -> int | None:
        """The step after which blocks may change: the one being built, the last submitted, none."""
        if until_copied:
            return self._submitted_step + 1
        return self._submitted_step if self.num_steps_in_flight else None

    def _deferred_until(self, step_id: int) -> _Deferred:
        if not self._deferred or self._deferred[-1].step_id < step_id:
            self._deferred.append(_Deferred(step_id))
        return self._deferred[-1]

    def check_integrity(self, requests: list[Request]) -> None:
        """Raise AssertionError unless all blocks are accounted for by `requests`."""
        held = [block_id for request in requests for block_id in request.block_table]
        held_on_host = [block_id for request in requests for block_id in request.host_blocks]
        for entry in self._deferred:
            held.extend(entry.device_blocks)
            held_on_host.extend(entry.host_blocks)
        self.pool.check_integrity(held)
        self.swap_pool.check_integrity(held_on_host)
        counts = Counter(held)
        for request in requests:
            assert len(request.prefix_nodes) <= len(request.block_table), request.request_id
            assert all(counts[block_id] for block_id in request.block_table)
