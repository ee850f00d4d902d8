"""The loop around scheduler and executor."""

from __future__ import annotations

import pytest

from chairlift.core.scheduler_output import SchedulerOutput
from chairlift.events import StepRecord
from fake_executor import FinishedStep, Rig


def test_idle_core_has_nothing_to_do() -> None:
    rig = Rig()
    assert not rig.core.has_work and rig.core.idle_s() is None
    assert rig.core.step() == [] and rig.records == []


def test_idle_time_is_the_rest_of_the_waiting_window() -> None:
    rig = Rig(batching_policy="dynamic", batch_wait_ms=50.0, max_num_seqs=4)
    rig.add("a", 3, 2)
    rig.clock.advance(0.02)
    assert rig.core.idle_s() == pytest.approx(0.03)
    rig.clock.advance(0.04)
    assert rig.core.idle_s() == 0.0
    rig.step()
    assert rig.core.idle_s() == 0.0, "somebody is running"


def test_executor_hears_of_each_request_once_and_of_its_end() -> None:
    rig = Rig()
    rig.add("a", 3, 3)
    rig.add("b", 3, 5)
    rig.run()
    rig.step()
    sent = [new.request_id for step in rig.executor.steps for new in step.new_requests]
    gone = [name for step in rig.executor.steps for name in step.finished_request_ids]
    assert sent == ["a", "b"] and gone == ["a", "b"]
    assert not rig.executor.tokens


def test_listeners_get_every_record_with_its_times() -> None:
    rig = Rig()
    records: list[StepRecord] = []
    rig.core.recorder.listen(records.append)
    submit = rig.executor.submit

    def slow_submit(output: SchedulerOutput) -> FinishedStep:
        rig.clock.advance(0.5)
        return submit(output)

    rig.executor.submit = slow_submit  # type: ignore[method-assign]
    rig.add("a", 3, 2)
    rig.run()
    assert records == rig.records and [record.step_id for record in records] == [0, 1]
    assert [record.execute_s for record in records] == [0.5, 0.5]
    assert records[1].start_s == 0.5 and records[1].duration_s == 0.5


def test_ring_keeps_the_last_records() -> None:
    rig = Rig()
    assert rig.core.recorder.records.maxlen == 4096


def test_record_counts_rows_context_and_pairs() -> None:
    rig = Rig()
    rig.add("a", 5, 4)
    rig.step()
    rig.add("b", 3, 4)
    rig.step()
    record = rig.records[-1]
    assert (record.num_prefill_tokens, record.num_decode_tokens) == (3, 1)
    assert record.num_sampled_tokens == 2
    assert record.context_tokens == 6 + 3
    assert record.attention_pairs == 6 + (1 + 2 + 3)
    assert record.admitted == ("b",) and record.num_running == 2


def test_leak_is_noticed_when_the_core_falls_idle() -> None:
    rig = Rig()
    rig.add("a", 3, 1)
    rig.kv.pool.allocate()
    with pytest.raises(AssertionError, match="references"):
        rig.core.step()


def test_interrupted_step_counts_as_failed_and_the_loop_goes_on() -> None:
    rig = Rig(max_num_seqs=1)
    rig.add("a", 3, 4)
    rig.add("b", 3, 4)
    submit = rig.executor.submit

    def interrupted_submit(output: SchedulerOutput) -> FinishedStep:
        rig.executor.submit = submit  # type: ignore[method-assign]
        raise KeyboardInterrupt

    rig.executor.submit = interrupted_submit  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        rig.core.step()
    rig.run()
    assert rig.endings["a"].reason == "error" and "interrupted" in (rig.endings["a"].error or "")
    rig.check_solo("b")
