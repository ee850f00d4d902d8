"""Steps of the scheduler under continuous batching: budgets, order, limits, forks, faults."""

from __future__ import annotations

import json

import pytest

from chairlift.core.request import RequestStatus
from chairlift.core.scheduler_output import RunnerOutput
from chairlift.errors import RequestError
from fake_executor import Rig, make_request


def members(rig: Rig, index: int = -1) -> list[tuple[str, str, int]]:
    return [(m.request_id, m.kind, m.num_new_tokens) for m in rig.records[index].members]


def last_limit(rig: Rig) -> str:
    return rig.records[-1].limit


def test_requests_get_on_and_off_at_every_step() -> None:
    rig = Rig()
    rig.add("a", 3, 2)
    rig.add("b", 3, 5)
    rig.step()
    rig.add("c", 3, 2)
    rig.step()
    assert members(rig) == [("a", "decode", 1), ("b", "decode", 1), ("c", "prefill", 3)]
    assert rig.endings["a"].is_released
    assert rig.running_ids == ["b", "c"]
    rig.run()
    rig.check_solo()


def test_decodes_come_first_and_prompts_take_the_rest() -> None:
    rig = Rig(max_num_batched_tokens=8)
    rig.add("a", 3, 9)
    rig.add("b", 3, 9)
    rig.step()
    rig.add("long", 20, 2)
    rig.step(4)
    assert [members(rig, index)[-1] for index in (1, 2, 3)] == [("long", "prefill", 6)] * 3
    assert members(rig, 4) == [
        ("a", "decode", 1),
        ("b", "decode", 1),
        ("long", "prefill", 2),
    ]
    assert rig.records[3].kind == "mixed"
    rig.run()
    rig.check_solo()


def test_small_prompt_behind_a_large_one_waits_a_bounded_time() -> None:
    rig = Rig(256, max_num_batched_tokens=16)
    rig.add("large", 400, 1)
    rig.step()
    for index in range(4):
        rig.add(f"small{index}", 4, 1)
        rig.step()
        assert rig.endings[f"small{index}"].tokens, "a share of each step is left for others"
        assert members(rig)[-1] == ("large", "prefill", 12) or members(rig)[0][0] == "large"
    rig.run()
    rig.check_solo()


def test_second_large_prompt_waits_for_the_first_and_small_ones_pass_it() -> None:
    rig = Rig(256, max_num_batched_tokens=16)
    rig.add("large0", 200, 1)
    rig.step()
    rig.add("large1", 200, 1)
    rig.add("small", 4, 1)
    rig.step()
    assert rig.endings["small"].tokens and "large1" not in rig.running_ids
    assert last_limit(rig) == "long_prefill"
    rig.run()
    rig.check_solo()


def test_large_prompt_that_memory_keeps_out_is_passed_64_times_at_most() -> None:
    rig = Rig(40, max_num_batched_tokens=16, max_num_seqs=4, enable_prefix_caching=False)
    rig.add("holder", 40, 120)
    rig.step(3)
    rig.add("large", 124, 1)
    passed = 0
    for index in range(90):
        rig.add(f"small{index}", 4, 1)
        rig.step()
        passed += rig.endings[f"small{index}"].is_released
    assert passed == 64
    rig.run()
    rig.check_solo()


def test_wrong_arguments_are_refused_by_name() -> None:
    rig = Rig(4)
    with pytest.raises(RequestError, match="largest request that fits has 17 tokens") as caught:
        rig.add("a", 10, 8)
    assert caught.value.field == "max_tokens"
    with pytest.raises(RequestError) as caught:
        rig.add("a", 17, 1)
    assert caught.value.field == "prompt"
    rig.add("a", 16, 1)
    with pytest.raises(RequestError, match="in use"):
        rig.add("a", 3, 1)


def test_stop_token_ends_a_request_and_is_named() -> None:
    rig = Rig()
    request = rig.add("a", 3, 50, stop_token_ids=[0])
    rig.run()
    rig.check_solo()
    assert rig.endings["a"].reason == "stop" and request.stop_reason == 0


def test_finish_from_outside_is_told_once() -> None:
    rig = Rig()
    rig.add("a", 3, 50)
    rig.step(2)
    rig.scheduler.finish("a", RequestStatus.FINISHED_STOPPED, stop_reason="fox")
    assert not rig.scheduler.has_requests
    assert rig.core.has_work, "the end is still to be told"
    assert rig.core.idle_s() == 0.0
    rig.run()
    ending = rig.endings["a"]
    assert (ending.reason, len(ending.tokens), ending.is_released) == ("stop", 2, True)


def test_abort_frees_everything_at_once_in_every_state() -> None:
    rig = Rig(16, max_num_batched_tokens=8, max_num_seqs=2)
    rig.add("running", 3, 9)
    rig.add("prefilling", 20, 2)
    rig.add("waiting", 3, 2)
    rig.add("parked", 20, 2, fork_of="prefilling")
    rig.step()
    for request_id in ("parked", "waiting", "prefilling", "running"):
        rig.abort(request_id)
        rig.scheduler.check_integrity()
        assert rig.endings[request_id].reason == "abort" and rig.endings[request_id].is_released
    assert rig.kv.num_free_blocks == 16
    assert rig.core.abort("running") is None


def test_id_may_be_used_again_at_once() -> None:
    rig = Rig()
    for _ in range(5):
        rig.add("a", [1, 2, 3, 4, 5, 6], 9)
        rig.step(2)
        rig.abort("a")
    rig.add("a", [1, 2, 3, 4, 5, 6], 9)
    rig.run()
    rig.check_solo()


def test_shared_prefix_of_40_tokens_is_computed_once() -> None:
    rig = Rig(block_size=16)
    rig.add("a", [*range(40), *range(100, 120)], 2)
    rig.run()
    request = rig.add("b", [*range(40), *range(200, 220)], 2)
    rig.run()
    assert request.num_cached_tokens == 40
    assert rig.records[-2].num_prefill_tokens == 20
    rig.check_solo("b")


def test_forks_wait_for_the_prompt_and_share_its_blocks() -> None:
    rig = Rig(enable_prefix_caching=False)
    rig.add("a", 10, 4)
    for index in range(3):
        rig.add(f"fork{index}", rig.requests["a"].prompt_token_ids, 4, seed=index + 1, fork_of="a")
    rig.step()
    assert rig.running_ids == ["a"] and rig.scheduler.num_waiting == 3
    rig.step()
    assert len(rig.running_ids) == 4
    assert members(rig)[1:] == [(f"fork{index}", "prefill", 1) for index in range(3)]
    assert rig.kv.pool.ref_count(rig.requests["a"].block_table[0]) == 4
    rig.run()
    rig.check_solo()


def test_forks_go_alone_when_their_sibling_leaves() -> None:
    rig = Rig(max_num_batched_tokens=4, max_num_seqs=4)
    rig.add("a", 10, 4)
    rig.add("fork", rig.requests["a"].prompt_token_ids, 4, seed=1, fork_of="a")
    rig.step()
    rig.abort("a")
    rig.run()
    rig.check_solo("fork")


@pytest.mark.parametrize("policy", ["static", "dynamic"])
def test_forks_join_the_same_batch_where_nobody_may_join_later(policy: str) -> None:
    rig = Rig(batching_policy=policy, static_batch_size=4, max_num_seqs=4)
    rig.add("a", 10, 4)
    for index in range(3):
        rig.add(f"fork{index}", rig.requests["a"].prompt_token_ids, 4, seed=index + 1, fork_of="a")
    rig.step()
    assert len(rig.running_ids) == 4
    rig.run()
    rig.check_solo()


# -- what keeps the next one out ---------------------------------------------------------------
def test_d7_step_record_names_the_limit_that_binds() -> None:
    seats = Rig(max_num_seqs=1)
    seats.add("a", 3, 5)
    seats.step()
    assert last_limit(seats) == "arrivals"
    seats.add("b", 3, 5)
    seats.step()
    assert last_limit(seats) == "max_num_seqs"

    tokens = Rig(max_num_batched_tokens=8, max_num_seqs=8)
    tokens.add("a", 8, 5)
    tokens.add("b", 3, 5)
    tokens.step()
    assert last_limit(tokens) == "max_num_batched_tokens"

    blocks = Rig(4)
    blocks.add("a", 12, 5)
    blocks.add("b", 12, 5)
    blocks.step()
    assert last_limit(blocks) == "blocks"

    policy = Rig(batching_policy="dynamic", batch_wait_ms=0.0)
    policy.add("a", 3, 5)
    policy.step()
    policy.add("b", 3, 5)
    policy.step()
    assert last_limit(policy) == "batching_policy"

    long = Rig(max_num_batched_tokens=8, max_num_seqs=8)
    long.add("a", 40, 5)
    long.add("b", 40, 5)
    long.step()
    assert last_limit(long) == "long_prefill"

    phases = Rig(prefill_policy="separated", max_num_batched_tokens=8, max_num_seqs=8)
    phases.add("a", 3, 5)
    phases.step()
    phases.add("b", 3, 5)
    phases.step()
    assert phases.records[-1].kind == "decode" and last_limit(phases) == "prefill_policy"


# -- separated prefill -------------------------------------------------------------------------
def test_d2_separated_prefill_runs_a_decode_step_between_two_chunks() -> None:
    rig = Rig(prefill_policy="separated", max_num_batched_tokens=8, max_num_seqs=8)
    rig.add("stream", 3, 30)
    rig.step()
    rig.add("long", 40, 3)
    rig.step(11)
    kinds = [record.kind for record in rig.records[1:]]
    assert kinds == ["decode", "prefill"] * 5 + ["decode"]
    rig.run()
    rig.check_solo()
    assert "mixed" not in {record.kind for record in rig.records}


def test_separated_prefill_decodes_while_nobody_can_get_on() -> None:
    rig = Rig(prefill_policy="separated", max_num_seqs=1)
    rig.add("a", 3, 6)
    rig.add("b", 3, 6)
    rig.step(6)
    assert rig.endings["a"].is_released, "a full house must not cost a step"


# -- faults ------------------------------------------------------------------------------------
@pytest.mark.parametrize("point", ["submit", "before_moves", "after_moves", "after_compute"])
def test_failed_step_ends_its_members_and_nobody_else(point: str) -> None:
    rig = Rig(max_num_seqs=2)
    for name in ("a", "b", "waiting"):
        rig.add(name, 6, 6)
    rig.step(2)
    rig.executor.fault = point  # type: ignore[assignment]
    rig.step()
    for name in ("a", "b"):
        ending = rig.endings[name]
        assert ending.reason == "error" and ending.is_released
        assert ending.error is not None and "the step failed: RuntimeError" in ending.error
    assert rig.records[-1].error is not None
    assert {name for name, _ in rig.records[-1].finished} == {"a", "b"}
    rig.run()
    rig.check_solo("waiting")


def test_what_a_failed_step_wrote_is_not_reused() -> None:
    rig = Rig()
    rig.add("a", range(16), 6)
    rig.executor.fault = "before_moves"
    rig.step()
    request = rig.add("b", range(16), 6)
    rig.run()
    assert request.num_cached_tokens == 0
    rig.check_solo("b")


def test_fault_in_one_request_spares_its_companions() -> None:
    rig = Rig()
    rig.add("a", 6, 6)
    rig.add("b", 6, 6)
    rig.step(2)
    rig.executor.request_faults.add("a")
    rig.run()
    assert rig.endings["a"].error == "fault in the request"
    rig.check_solo("b")


def test_failed_step_with_a_swap_makes_the_victim_compute_again() -> None:
    rig = Rig(8, num_swap_blocks=8, preemption_mode="swap", enable_prefix_caching=False)
    rig.add("a", 10, 18)
    rig.add("b", 10, 18)
    while rig.requests["b"].num_computed_tokens < 16:
        rig.step()
    rig.executor.fault = "before_moves"
    rig.step()
    assert rig.scheduler.num_preemptions["swap"] == 1
    assert rig.endings["a"].reason == "error"
    assert rig.requests["b"].status is not RequestStatus.SWAPPED
    rig.executor.fault = None
    rig.run()
    rig.check_solo("b")


def test_prompt_logprobs_of_several_chunks_arrive_in_order() -> None:
    rig = Rig()
    request = make_request("a", 4, 1)
    rig.scheduler.add_request(request)
    output = rig.scheduler.schedule(0.0)
    sentinel = [object(), object()]
    result = RunnerOutput(
        sampled={},
        prompt_logprobs={"a": sentinel},  # type: ignore[dict-item]
        errors={"a": "cut short"},
    )
    (update,) = rig.scheduler.update(output, result)
    assert update.error == "cut short" and not update.prompt_logprobs


def test_d11_records_turn_into_json_lines() -> None:
    rig = Rig()
    rig.add("a", 6, 3)
    rig.run()
    lines = [json.loads(record.to_json()) for record in rig.records]
    assert [line["kind"] for line in lines] == ["prefill", "decode", "decode"]
    assert lines[0]["members"][0]["request_id"] == "a"
    assert lines[0]["attention_pairs"] == 21 and lines[1]["attention_pairs"] == 7
    assert lines[-1]["finished"] == [["a", "length"]]
