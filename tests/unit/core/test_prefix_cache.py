"""The tree of stored prefixes."""

from __future__ import annotations

from collections.abc import Sequence

from chairlift.core.prefix_cache import PrefixCache, PrefixParent

SIZE = 16


def store(
    cache: PrefixCache, tokens: Sequence[int], *, salt: str = "", first_block: int = 0
) -> list[int]:
    """Register `tokens` block by block, the last one in part; returns node ids."""
    parent: PrefixParent = salt
    nodes = []
    for start in range(0, len(tokens), SIZE):
        block_id = first_block + start // SIZE
        node = cache.register(parent, tuple(tokens[start : start + SIZE]), block_id)
        nodes.append(node.node_id)
        parent = node.node_id
    return nodes


def test_whole_blocks_hit_in_order() -> None:
    cache = PrefixCache(SIZE)
    nodes = store(cache, range(48))
    match = cache.lookup([*range(32), 99], "", 32)
    assert match.block_ids == [0, 1] and match.num_tokens == 32
    assert match.parents == nodes[:2]


def test_shared_prefix_of_40_tokens_hits_40() -> None:
    cache = PrefixCache(SIZE)
    store(cache, range(48))
    prompt = [*range(40), *range(900, 940)]
    match = cache.lookup(prompt, "", len(prompt) - 1)
    assert match.num_tokens == 40
    assert match.block_ids == [0, 1, 2] and len(match.parents) == 2


def test_tail_of_a_finished_request_hits_in_part() -> None:
    cache = PrefixCache(SIZE)
    store(cache, range(20))
    match = cache.lookup([*range(18), 7, 7], "", 19)
    assert match.num_tokens == 18 and match.block_ids == [0, 1]


def test_limit_inside_a_stored_block_is_kept() -> None:
    cache = PrefixCache(SIZE)
    store(cache, range(32))
    match = cache.lookup(range(32), "", 31)
    assert match.num_tokens == 31
    assert match.block_ids == [0, 1] and len(match.parents) == 1


def test_longest_of_several_continuations_is_taken() -> None:
    cache = PrefixCache(SIZE)
    root = store(cache, range(16))[0]
    cache.register(root, (50, 51, 52, 53), 7)
    cache.register(root, (50, 51, 99), 8)
    match = cache.lookup([*range(16), 50, 51, 52, 1], "", 19)
    assert match.block_ids == [0, 7] and match.num_tokens == 19


def test_same_block_after_another_prefix_is_no_hit() -> None:
    cache = PrefixCache(SIZE)
    store(cache, range(32))
    swapped = [*range(16, 32), *range(16)]
    assert cache.lookup(swapped, "", 31).num_tokens == 0


def test_salts_are_separate() -> None:
    cache = PrefixCache(SIZE)
    store(cache, range(32), salt="one")
    assert cache.lookup(range(32), "two", 31).num_tokens == 0
    assert cache.lookup(range(32), "", 31).num_tokens == 0
    assert cache.lookup(range(32), "one", 31).num_tokens == 31


def test_lookup_changes_nothing() -> None:
    cache = PrefixCache(SIZE)
    store(cache, range(32))
    before = (len(cache), cache.num_queried_tokens, dict(cache.miss_reasons))
    cache.lookup([*range(20), 5], "", 20)
    assert before == (len(cache), cache.num_queried_tokens, dict(cache.miss_reasons))


def test_second_block_with_the_same_contents_is_told_the_first() -> None:
    cache = PrefixCache(SIZE)
    store(cache, range(16), first_block=3)
    assert cache.register("", tuple(range(16)), 9).block_id == 3
    assert len(cache) == 1


def test_evicted_block_is_no_longer_found() -> None:
    cache = PrefixCache(SIZE)
    store(cache, range(32))
    cache.evict(1)
    assert cache.lookup(range(33), "", 32).num_tokens == 16
    cache.evict(0)
    assert len(cache) == 0 and not cache._by_first_token


def miss_reasons(cache: PrefixCache, tokens: Sequence[int], salt: str = "") -> dict[str, int]:
    cache.miss_reasons.clear()
    cache.count(tokens, salt, cache.lookup(tokens, salt, len(tokens) - 1))
    return dict(cache.miss_reasons)


def test_reasons_for_misses_are_told_apart() -> None:
    cache = PrefixCache(SIZE)
    assert miss_reasons(cache, range(40)) == {"new": 1}
    store(cache, range(40))
    assert miss_reasons(cache, range(40)) == {}
    assert miss_reasons(cache, [*range(35), 9, 9, 9]) == {"diverged": 1}
    assert miss_reasons(cache, range(40), "tenant") == {"new": 1}
    cache.evict(2)
    cache.evict(1)
    assert miss_reasons(cache, range(40)) == {"evicted": 1}


def test_hit_rate_counts_tokens() -> None:
    cache = PrefixCache(SIZE)
    store(cache, range(48))
    prompt = [*range(40), *range(900, 910)]
    cache.count(prompt, "", cache.lookup(prompt, "", 49))
    assert (cache.num_queried_tokens, cache.num_hit_tokens) == (50, 40)
