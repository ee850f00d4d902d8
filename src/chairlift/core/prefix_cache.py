"""Which stored blocks continue which prefix: a radix tree of block-sized edges.

A node is known by its parent node and by the very tokens in its block, so two different prefixes
can never be taken for one another, whatever a hash may do.  The root is the request's cache salt:
tenants that must not feel each other's prompts get different ones.

Reuse reaches down to the token: where whole blocks end, the block that shares most of the next
tokens is found by its first token, and the caller copies it before writing on (copy on write).
This idea is RadixAttention's (Zheng et al. 2024), kept on fixed blocks.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

PrefixParent = int | str
"""A node's id, or the salt that is the root."""

MissReason = Literal["new", "diverged", "evicted", "bypassed", "disabled"]

_MAX_CANDIDATES = 8
"""Blocks compared for a partial hit; the newest first, so that look-ups stay O(1) per block."""
_MAX_EVICTED_KEYS = 4096
"""Evicted prefixes remembered, to tell "evicted" from "new"."""


@dataclass(frozen=True, slots=True)
class PrefixNode:
    """The contents of one block that follow a given prefix."""

    node_id: int
    parent: PrefixParent
    tokens: tuple[int, ...]
    """A full block, or fewer where a request ended."""
    block_id: int


@dataclass(slots=True)
class PrefixMatch:
    """What a look-up found.  Nothing is held: the caller acquires the blocks."""

    block_ids: list[int] = field(default_factory=list)
    """Blocks that hold the first tokens; the last one may be used in part."""
    num_tokens: int = 0
    """Tokens covered."""
    parents: list[PrefixParent] = field(default_factory=list)
    """For each whole block, its own node id: the parent of what follows."""


class PrefixCache:
    """The tree over blocks.  Knows tokens and block ids; the pool knows who holds them."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._nodes: dict[tuple[PrefixParent, tuple[int, ...]], PrefixNode] = {}
        self._by_block: dict[int, PrefixNode] = {}
        self._by_first_token: dict[tuple[PrefixParent, int], dict[int, PrefixNode]] = {}
        self._ids = itertools.count()
        self._evicted: OrderedDict[int, None] = OrderedDict()
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self.miss_reasons: Counter[str] = Counter()
        """Why look-ups ended before the end of the prompt."""

    def __len__(self) -> int:
        return len(self._by_block)

    def lookup(self, token_ids: Sequence[int], salt: str, max_tokens: int) -> PrefixMatch:
        """The longest stored prefix of `token_ids`, of at most `max_tokens`.  Changes nothing."""
        match = PrefixMatch()
        parent: PrefixParent = salt
        size = self._block_size
        for start in range(0, max_tokens, size):
            chunk = tuple(token_ids[start : start + size])
            node = self._nodes.get((parent, chunk)) if len(chunk) == size else None
            if node is None or start + size > max_tokens:
                self._match_part(match, parent, chunk[: max_tokens - start])
                break
            match.block_ids.append(node.block_id)
            match.parents.append(node.node_id)
            match.num_tokens += size
            parent = node.node_id
        return match

    def _match_part(
        self, match: PrefixMatch, parent: PrefixParent, tokens: tuple[int, ...]
    ) -> None:
        siblings = self._by_first_token.get((parent, tokens[0]))
        if not siblings:
            return
        candidates = itertools.islice(reversed(siblings.values()), _MAX_CANDIDATES)
        best = max(candidates, key=lambda node: _shared_length(node.tokens, tokens))
        match.block_ids.append(best.block_id)
        match.num_tokens += _shared_length(best.tokens, tokens)

    def register(self, parent: PrefixParent, tokens: tuple[int, ...], block_id: int) -> PrefixNode:
        """Record what `block_id` holds; returns the node that stood there first, if one did."""
        existing = self._nodes.get((parent, tokens))
        if existing is not None:
            return existing
        node = PrefixNode(next(self._ids), parent, tokens, block_id)
        self._nodes[parent, tokens] = node
        self._by_block[block_id] = node
        self._by_first_token.setdefault((parent, tokens[0]), {})[node.node_id] = node
        return node

    def evict(self, block_id: int) -> None:
        """Forget the contents of a block that is about to get others."""
        node = self._by_block.pop(block_id)
        del self._nodes[node.parent, node.tokens]
        siblings = self._by_first_token[node.parent, node.tokens[0]]
        del siblings[node.node_id]
        if not siblings:
            del self._by_first_token[node.parent, node.tokens[0]]
        self._evicted[hash((node.parent, node.tokens))] = None
        if len(self._evicted) > _MAX_EVICTED_KEYS:
            self._evicted.popitem(last=False)

    def count(self, token_ids: Sequence[int], salt: str, match: PrefixMatch) -> None:
        """Add one admission to the statistics, with the reason why it did not hit further."""
        self.num_queried_tokens += len(token_ids)
        self.num_hit_tokens += match.num_tokens
        if match.num_tokens < len(token_ids) - 1:
            self.miss_reasons[self._miss_reason(token_ids, salt, match)] += 1

    def _miss_reason(self, token_ids: Sequence[int], salt: str, match: PrefixMatch) -> MissReason:
        start = len(match.parents) * self._block_size
        parent = match.parents[-1] if match.parents else salt
        following = tuple(token_ids[start : start + self._block_size])
        if hash((parent, following)) in self._evicted:
            return "evicted"
        return "diverged" if match.num_tokens else "new"


def _shared_length(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
