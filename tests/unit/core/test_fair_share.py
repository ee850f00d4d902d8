"""Virtual token counters, the line they make, and how tenants fare in long runs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from chairlift.core.fair_queue import FairQueue
from chairlift.core.fair_share import OUTPUT_TOKEN_COST, PROMPT_TOKEN_COST, FairShare
from chairlift.core.request import UNSEATED_RANK, Request
from chairlift.core.waiting_queue import FairWaitingQueue
from fake_executor import Rig, make_request
from tenant_load import jain_index, run_tenants


def new(name: str, tenant: str, arrival: int, *, prompt: int = 1, priority: int = 0) -> Request:
    request = make_request(name, prompt, tenant=tenant)
    request.rank = (priority, UNSEATED_RANK + arrival)
    return request


def drain(queue: FairQueue | FairWaitingQueue) -> list[str]:
    order = []
    while (first := queue.peek()) is not None:
        order.append(first.request_id)
        queue.remove(first.request_id)
    return order


# -- counters ----------------------------------------------------------------------------------
def test_served_tokens_are_weighed() -> None:
    shares = FairShare({"heavy": 4})
    for tenant in ("heavy", "light"):
        shares.charge_prompt(tenant, 8)
        shares.charge_output(tenant)
    assert shares.counter("light") == 4 * shares.counter("heavy") > 0
    units = 8 * PROMPT_TOKEN_COST + OUTPUT_TOKEN_COST
    shares.charge_prompt("other", units // PROMPT_TOKEN_COST)
    assert shares.counter("other") == shares.counter("light")


def test_tenant_that_was_away_is_lifted_to_those_who_wait() -> None:
    shares = FairShare()
    shares.joined("busy")
    shares.charge_prompt("busy", 1000)
    shares.joined("busier")
    assert shares.counter("busier") == shares.counter("busy")
    shares.charge_prompt("busier", 500)
    shares.joined("idle")
    assert shares.counter("idle") == shares.counter("busy"), "to the smallest of them"
    shares.joined("idle")
    shares.charge_prompt("busy", 10**6)
    shares.joined("idle")
    assert shares.counter("idle") < shares.counter("busy"), "one that waits is not lifted"


def test_into_an_empty_line_a_tenant_is_lifted_to_who_left_it_last() -> None:
    shares = FairShare()
    shares.joined("busy")
    shares.left("busy")
    shares.charge_prompt("busy", 1000)
    shares.joined("idle")
    assert shares.counter("idle") == shares.counter("busy")


def test_entries_of_tenants_do_not_pile_up() -> None:
    shares = FairShare()
    shares.joined("stays")
    for _ in range(1000):
        shares.joined("guest")
        shares.charge_prompt("guest", 3)
        shares.left("guest")
    assert len(shares._in_line) < 200


# -- the line ----------------------------------------------------------------------------------
def test_smallest_counter_goes_first_and_each_tenant_in_order() -> None:
    shares = FairShare()
    queue = FairQueue(shares)
    for index, tenant in enumerate("aaabbc"):
        queue.add(new(f"{tenant}{index}", tenant, index))
    shares.charge_prompt("a", 30)
    shares.charge_prompt("b", 10)
    first = queue.peek()
    assert first is not None and first.request_id == "c5"
    queue.remove("c5")
    shares.charge_prompt("b", 30)
    assert drain(queue) == ["a0", "a1", "a2", "b3", "b4"]


def test_without_a_difference_the_first_to_come_goes_first() -> None:
    queue = FairQueue(FairShare())
    for index, tenant in enumerate("abab"):
        queue.add(new(f"{tenant}{index}", tenant, index))
    assert drain(queue) == ["a0", "b1", "a2", "b3"]


def test_a_fork_that_was_parked_stands_where_it_came() -> None:
    queue = FairQueue(FairShare())
    queue.add(new("a4", "a", 4))
    queue.add(new("b5", "b", 5))
    queue.remove("a4")
    queue.add(new("a2", "a", 2))
    queue.add(new("b3", "b", 3))
    queue.add(new("b1", "b", 1))
    assert drain(queue) == ["b1", "a2", "b3", "b5"]


def test_class_goes_before_share_and_a_lost_seat_before_both() -> None:
    shares = FairShare()
    queue = FairQueue(shares)
    shares.charge_prompt("greedy", 10**6)
    queue.add(new("polite", "polite", 0))
    queue.add(new("urgent", "greedy", 1, priority=-1))
    returned = make_request("returned", 1, tenant="greedy")
    returned.rank = (0, 5)
    queue.add(returned)
    assert drain(queue) == ["urgent", "returned", "polite"]


def test_lines_that_come_and_go_do_not_pile_up() -> None:
    queue = FairQueue(FairShare())
    queue.add(new("head", "a", 0, priority=-1))
    for index in range(1000):
        queue.add(new("guest", "b", index, priority=index))
        queue.remove("guest")
    assert len(queue._heap) < 200 and len(queue) == 1 and "guest" not in queue


def test_lanes_compare_by_share() -> None:
    shares = FairShare()
    waiting = FairWaitingQueue(8, shares)
    shares.charge_prompt("greedy", 10)
    waiting.add(new("long", "polite", 1, prompt=9))
    waiting.add(new("short", "greedy", 0))
    shares.charge_prompt("greedy", 10)
    assert len(waiting) == 2 and drain(waiting) == ["long", "short"]


# -- the scheduler -----------------------------------------------------------------------------
def test_seat_that_becomes_free_goes_to_the_tenant_served_least() -> None:
    rig = Rig(shares={}, max_num_seqs=2)
    for index in range(6):
        rig.add(f"greedy{index}", 3, 4, tenant="greedy")
    rig.step()
    rig.add("polite", 3, 4, tenant="polite")
    while "polite" not in rig.running_ids:
        rig.step()
    assert sum(ending.reason is not None for ending in rig.endings.values()) == 2
    rig.run()
    rig.check_solo()


def test_cached_and_recomputed_tokens_are_not_charged() -> None:
    rig = Rig(shares={}, num_blocks=8, num_swap_blocks=0)
    prompt = list(range(100, 112))
    rig.add("first", prompt, 1, tenant="a")
    rig.run()
    rig.add("again", prompt, 1, tenant="b")
    rig.run()
    shares = rig.scheduler.fair_share
    assert shares is not None and rig.requests["again"].num_cached_tokens == 11
    unit = shares.counter("a") // (12 + 2)
    assert shares.counter("b") - shares.counter("a") == (1 + 2) * unit, "lifted, then served"
    for name in ("x", "y", "z"):
        rig.add(name, 8, 10, tenant="c")
    before = shares.counter("c")
    rig.run()
    assert sum(rig.requests[name].num_preemptions for name in "xyz") > 0
    assert shares.counter("c") - before == 3 * (8 + 2 * 10) * unit
    rig.check_solo()


def test_completions_of_one_prompt_belong_to_its_tenant() -> None:
    rig = Rig(shares={}, max_num_seqs=2)
    rig.add("g", 6, 3, tenant="greedy")
    for index in range(3):
        rig.add(f"g{index}", rig.requests["g"].prompt_token_ids, 3, tenant="greedy", fork_of="g")
    rig.add("p", 6, 3, tenant="polite")
    rig.run()
    rig.check_solo()
    assert rig.endings["p"].released_at_step == rig.endings["g"].released_at_step


@pytest.mark.parametrize("has_memory", [True, False], ids=["seats", "memory"])
@pytest.mark.parametrize("overlap_depth", [0, 1])
def test_tenant_without_a_seat_gets_one_of_who_has_several(
    has_memory: bool, overlap_depth: int
) -> None:
    """However long the others' answers are: the wait is bounded by patience, not by them."""
    rig = Rig(
        400 if has_memory else 120,
        num_swap_blocks=20,
        shares={},
        overlap_depth=overlap_depth,
        max_num_seqs=4 if has_memory else 64,
    )
    for index in range(8):
        rig.add(f"greedy{index}", 30, 120, tenant="greedy")
    rig.step(25)
    rig.add("polite", 60, 4, tenant="polite")
    waited = 0
    while rig.endings["polite"].reason is None:
        rig.step()
        waited += 1
    assert waited <= rig.scheduler.seat_claims.patience_steps + 20
    moved = [p for record in rig.records for p in record.preemptions if "fair" in p.reason]
    assert moved and {p.request_id[:6] for p in moved} == {"greedy"}
    if has_memory:
        assert [p.num_tokens_dropped for p in moved] == [0], "a seat alone costs nothing"
    rig.run()
    rig.check_solo()


def test_last_seat_of_a_tenant_is_not_taken() -> None:
    rig = Rig(400, shares={}, max_num_seqs=2)
    rig.add("a", 8, 200, tenant="a")
    rig.add("b", 8, 200, tenant="b")
    rig.step()
    rig.add("c", 8, 4, tenant="c")
    rig.step(150)
    assert rig.running_ids == ["a", "b"]
    rig.run()
    assert all(request.num_preemptions == 0 for request in rig.requests.values())


# -- long runs ---------------------------------------------------------------------------------
GREEDY = {"greedy": 40, "one": 4, "two": 4}


@pytest.mark.parametrize(
    ("weights", "open_requests", "options"),
    [
        ({}, GREEDY, {}),
        ({"one": 2}, {"greedy": 40, "one": 8, "two": 4}, {}),
        ({"greedy": 3}, GREEDY, {}),
        ({}, GREEDY, {"num_blocks": 60, "num_swap_blocks": 20}),
        ({}, GREEDY, {"batching_policy": "dynamic", "batch_wait_ms": 0.0}),
        ({}, GREEDY, {"batching_policy": "static", "batch_wait_ms": 0.0}),
        ({}, GREEDY, {"prefill_policy": "separated"}),
        ({}, GREEDY, {"scheduling_policy": "priority"}),
        ({}, GREEDY, {"overlap_depth": 1}),
    ],
    ids=[
        "equal", "weights", "heavy", "memory", "dynamic", "static", "separated", "classes",
        "overlap",
    ],
)  # fmt: skip
def test_greedy_tenant_takes_no_more_than_its_share(
    weights: Mapping[str, int], open_requests: Mapping[str, int], options: dict[str, object]
) -> None:
    """Forty open requests beside four: served tokens per weight are the same."""
    served, _ = run_tenants(weights, open_requests, num_steps=800, **options)
    shares = [served[tenant] / weights.get(tenant, 1) for tenant in open_requests]
    assert jain_index(shares) >= 0.98, served


def test_first_come_first_served_would_not_be_fair() -> None:
    served, _ = run_tenants(None, GREEDY, num_steps=1500)
    assert jain_index([served[tenant] for tenant in GREEDY]) < 0.6


def test_size_of_requests_does_not_matter() -> None:
    """Long prompts and answers of one tenant, short ones of the others."""
    sizes = {"greedy": (100, 40)}
    served, _ = run_tenants({}, GREEDY, num_steps=3000, sizes=sizes)
    assert jain_index([served[tenant] for tenant in GREEDY]) >= 0.95, served


def test_tenant_with_one_open_request_is_always_next() -> None:
    """It cannot use its share; what it asks for it gets at once."""
    _, waits = run_tenants({}, {"greedy": 40, "polite": 1}, num_steps=1500)
    assert waits["polite"] <= 3 < waits["greedy"]


def test_absence_earns_no_credit() -> None:
    """A tenant that was away for long does not push the others out when it comes back."""
    rig = Rig(shares={}, max_num_seqs=2, enable_prefix_caching=False)
    for index in range(100):
        rig.add(f"early{index}", 4, 4, tenant="early")
    rig.step(100)
    for index in range(100):
        rig.add(f"late{index}", 4, 4, tenant="late")
    before = rig.num_steps
    rig.step(100)
    ended = [
        name
        for name, ending in rig.endings.items()
        if ending.released_at_step is not None and ending.released_at_step > before
    ]
    assert abs(sum(name.startswith("late") for name in ended) - len(ended) / 2) <= 2
