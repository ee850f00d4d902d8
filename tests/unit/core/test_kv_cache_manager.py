"""Block tables: sharing, copy on write, swapping, and when blocks come back."""

from __future__ import annotations

import pytest

from chairlift.core.kv_cache_manager import KVCacheManager
from chairlift.core.request import Request
from fake_executor import make_request


class StepCounter:
    """Submits and reads empty steps, as the scheduler does around the cache."""

    def __init__(self, kv: KVCacheManager) -> None:
        self.kv = kv
        self.step_id = -1

    def submit(self) -> None:
        self.step_id += 1
        self.kv.take_moves()
        self.kv.step_submitted(self.step_id)

    def run(self, *requests: Request) -> None:
        """One step in which these requests compute all their tokens."""
        for request in requests:
            request.num_computed_tokens = request.num_tokens
        self.submit()
        self.kv.step_resolved(self.step_id)
        for request in requests:
            self.kv.register_full_blocks(request, request.num_computed_tokens)


def admit(kv: KVCacheManager, request: Request, *, headroom: int = 0) -> bool:
    return kv.admit(request, kv.lookup(request), headroom=headroom)


@pytest.fixture
def kv() -> KVCacheManager:
    return KVCacheManager(12, 4, num_swap_blocks=4)


def test_admission_gives_blocks_for_all_tokens(kv: KVCacheManager) -> None:
    request = make_request("a", 9)
    assert admit(kv, request)
    assert len(request.block_table) == 3 and kv.num_free_blocks == 9


def test_refused_admission_changes_nothing(kv: KVCacheManager) -> None:
    request = make_request("a", 9)
    assert not admit(kv, request, headroom=10)
    assert request.block_table == [] and kv.num_free_blocks == 12
    kv.check_integrity([])


def test_full_blocks_are_shared_and_the_next_one_is_not(kv: KVCacheManager) -> None:
    steps = StepCounter(kv)
    first, second = make_request("a", range(9)), make_request("b", [*range(8), 70, 71])
    admit(kv, first)
    steps.run(first)
    admit(kv, second)
    assert second.block_table[:2] == first.block_table[:2]
    assert second.block_table[2] != first.block_table[2]
    assert second.num_computed_tokens == 8 and not kv.take_moves()
    kv.check_integrity([first, second])


def test_partly_shared_block_is_copied_before_it_is_written(kv: KVCacheManager) -> None:
    steps = StepCounter(kv)
    first, second = make_request("a", range(8)), make_request("b", [*range(6), 70, 71])
    admit(kv, first)
    steps.run(first)
    admit(kv, second)
    assert second.num_computed_tokens == 6
    assert kv.take_moves().copies == [(first.block_table[1], second.block_table[1])]
    assert kv.pool.ref_count(first.block_table[1]) == 2, "the source must outlive the copy"
    steps.run(second)
    assert kv.pool.ref_count(first.block_table[1]) == 1


def test_partial_hit_is_forgone_when_its_copy_does_not_fit() -> None:
    kv = KVCacheManager(3, 4)
    steps = StepCounter(kv)
    first, second = make_request("a", range(8)), make_request("b", [*range(6), 70, 71])
    admit(kv, first)
    steps.run(first)
    kv.free(first)
    assert admit(kv, second, headroom=1), "a copy beside its source would need one block more"
    assert second.num_computed_tokens == 4 and not kv.take_moves()


def test_equal_blocks_computed_twice_become_one(kv: KVCacheManager) -> None:
    steps = StepCounter(kv)
    first, second = make_request("a", range(9)), make_request("b", range(9))
    admit(kv, first)
    admit(kv, second)
    assert kv.num_free_blocks == 6
    steps.run(first, second)
    assert second.block_table[:2] == first.block_table[:2]
    assert kv.num_free_blocks == 8
    kv.check_integrity([first, second])


def test_fork_shares_the_prompt_without_a_prefix_cache() -> None:
    kv = KVCacheManager(12, 4, enable_prefix_caching=False)
    steps = StepCounter(kv)
    sibling, fork = make_request("a", range(10)), make_request("b", range(10))
    admit(kv, sibling)
    steps.run(sibling)
    assert kv.admit(fork, kv.lookup(fork, sibling), headroom=0)
    assert fork.num_computed_tokens == 9
    assert fork.block_table[:2] == sibling.block_table[:2]
    assert kv.take_moves().copies == [(sibling.block_table[2], fork.block_table[2])]


def test_swapped_tail_comes_back_to_its_place(kv: KVCacheManager) -> None:
    steps = StepCounter(kv)
    request = make_request("a", 10)
    admit(kv, request)
    steps.run(request)
    left = request.block_table[1:]
    assert kv.can_swap_out(request, 2)
    assert kv.swap_out(request, 2) == 2
    moves = kv.take_moves()
    assert [block for block, _ in moves.swap_outs] == left
    assert request.host_blocks == [host for _, host in moves.swap_outs]
    kv.check_integrity([request])
    host_blocks = request.host_blocks[:]
    assert admit(kv, request)
    assert kv.take_moves().swap_ins == list(zip(host_blocks, request.block_table[1:], strict=True))
    assert request.host_blocks == [] and request.num_computed_tokens == 10
    assert kv.swap_pool.num_free_blocks == 2, "host blocks stay until they have been read"
    steps.run()
    assert kv.swap_pool.num_free_blocks == 4


def test_blocks_without_contents_are_not_swapped(kv: KVCacheManager) -> None:
    request = make_request("a", 16)
    admit(kv, request)
    request.num_computed_tokens = 5
    assert kv.swap_out(request, 4) == 2
    assert len(request.host_blocks) == 2 and request.block_table == []


def test_swap_needs_room_for_what_was_computed(kv: KVCacheManager) -> None:
    request = make_request("a", 24)
    admit(kv, request)
    request.num_computed_tokens = 17
    assert not kv.can_swap_out(request, 6)
    assert kv.can_swap_out(request, 5)


def test_dropped_tail_is_computed_again(kv: KVCacheManager) -> None:
    steps = StepCounter(kv)
    request = make_request("a", 10)
    admit(kv, request)
    steps.run(request)
    kv.drop_tail(request, 2)
    assert request.num_computed_tokens == 4 and len(request.prefix_nodes) == 1
    assert admit(kv, request)
    assert request.num_computed_tokens == 8, "the dropped full block was still cached"


def test_reclaimable_blocks_end_at_the_first_shared_one(kv: KVCacheManager) -> None:
    steps = StepCounter(kv)
    first, second = make_request("a", range(14)), make_request("b", [*range(8), *range(70, 76)])
    admit(kv, first)
    steps.run(first)
    admit(kv, second)
    assert kv.num_reclaimable_blocks(first) == 2
    assert kv.num_reclaimable_blocks(second) == 2


def test_partly_filled_last_block_of_an_ended_request_is_kept(kv: KVCacheManager) -> None:
    steps = StepCounter(kv)
    request, follower = make_request("a", range(10)), make_request("b", [*range(10), 70])
    admit(kv, request)
    steps.run(request)
    kv.free(request)
    assert kv.num_free_blocks == 12
    assert admit(kv, follower) and follower.num_computed_tokens == 10


def test_what_a_failed_request_wrote_is_not_kept(kv: KVCacheManager) -> None:
    request, follower = make_request("a", range(10)), make_request("b", range(10))
    admit(kv, request)
    request.num_computed_tokens = 10
    request.error = "fault"
    kv.free(request)
    assert kv.lookup(follower).num_tokens == 0


def test_block_given_up_in_flight_comes_back_when_the_step_is_read(kv: KVCacheManager) -> None:
    steps = StepCounter(kv)
    request = make_request("a", 10)
    admit(kv, request)
    steps.submit()
    kv.free(request)
    assert kv.num_free_blocks == 9 and kv.num_deferred_blocks == 3
    kv.check_integrity([])
    kv.step_resolved(steps.step_id)
    assert kv.num_free_blocks == 12 and kv.num_deferred_blocks == 0


def test_request_that_bypasses_the_cache_computes_every_position(kv: KVCacheManager) -> None:
    steps = StepCounter(kv)
    first, second = make_request("a", range(9)), make_request("b", range(9))
    second.use_prefix_cache = False
    admit(kv, first)
    steps.run(first)
    match = kv.lookup(second)
    kv.count_lookup(second, match)
    assert match.num_tokens == 0
    assert kv.prefix_cache.miss_reasons == {"bypassed": 1}


def test_disabled_cache_says_so() -> None:
    kv = KVCacheManager(4, 4, enable_prefix_caching=False)
    request = make_request("a", 5)
    kv.count_lookup(request, kv.lookup(request))
    assert kv.prefix_cache.miss_reasons == {"disabled": 1}


def test_integrity_check_notices_a_lost_block(kv: KVCacheManager) -> None:
    request = make_request("a", 9)
    admit(kv, request)
    request.block_table.pop()
    with pytest.raises(AssertionError, match="references"):
        kv.check_integrity([request])


def test_cached_blocks_do_not_continue_a_half_computed_block(kv: KVCacheManager) -> None:
    steps = StepCounter(kv)
    first, second = make_request("a", range(12)), make_request("b", range(12))
    second.use_prefix_cache = False
    admit(kv, first)
    admit(kv, second)
    second.num_computed_tokens = 6  # preempted in the middle of its second block
    del second.block_table[2:]
    kv.pool.release(5)
    steps.run(first)
    second.use_prefix_cache = True
    assert admit(kv, second)
    assert second.num_computed_tokens == 6, "positions 6 and 7 of its own block are empty"


def test_what_a_step_in_flight_may_still_write_is_not_kept(kv: KVCacheManager) -> None:
    steps = StepCounter(kv)
    request, follower = make_request("a", range(10)), make_request("b", range(10))
    admit(kv, request)
    request.num_computed_tokens = 10
    steps.submit()
    kv.free(request)
    kv.step_resolved(steps.step_id)
    assert kv.lookup(follower).num_tokens == 0


def test_tenants_with_different_salts_share_nothing(kv: KVCacheManager) -> None:
    steps = StepCounter(kv)
    first = make_request("a", range(10))
    other = make_request("b", range(10), cache_salt="tenant")
    admit(kv, first)
    steps.run(first)
    kv.free(first)
    assert kv.lookup(other).num_tokens == 0
    assert kv.lookup(make_request("c", range(10))).num_tokens == 9


def test_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    kv = KVCacheManager(4, 4)
    steps = StepCounter(kv)
    first, second = make_request("a", range(16)), make_request("b", range(70, 77))
    admit(kv, first)
    steps.run(first)
    kv.free(first)
    admit(kv, second)
    assert kv.lookup(make_request("c", range(16))).num_tokens == 8
