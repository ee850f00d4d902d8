from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from chairlift.engine.step_log import StepLog
from chairlift.errors import ConfigError
from chairlift.events import StepMember, StepRecord


def record(step_id: int) -> StepRecord:
    """A step that decoded one token of one request."""
    return StepRecord(
        step_id=step_id,
        start_s=1.0,
        schedule_s=0.25,
        execute_s=0.5,
        update_s=0.125,
        members=(StepMember("a", "decode", 4, 1),),
        num_decode_tokens=1,
        num_sampled_tokens=1,
        context_tokens=5,
        attention_pairs=5,
        num_blocks=8,
        num_running=1,
        admitted=(),
        finished=(("a", "stop"),),
        preemptions=(),
        limit="arrivals",
        num_prefill_tokens=0,
        num_padding_tokens=0,
        num_free_blocks=0,
        num_waiting=0,
        num_swapped=0,
        num_swapped_out_blocks=0,
        num_swapped_in_blocks=0,
        num_copied_blocks=0,
        swap_bytes=0,
    )


def test_one_complete_line_per_step_at_once(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    log = StepLog(path)
    for step_id in range(3):
        log.write(record(step_id))
        lines = path.read_text().splitlines()
        assert [json.loads(line)["step_id"] for line in lines] == list(range(step_id + 1))
    assert json.loads(lines[0])["kind"] == "decode"
    log.close()


def test_unwritable_path_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="steps") as caught:
        StepLog(tmp_path / "missing" / "steps.jsonl")
    assert caught.value.field == "trace"


def test_closed_log_takes_no_more_and_closes_twice(tmp_path: Path) -> None:
    log = StepLog(tmp_path / "steps.jsonl")
    log.close()
    log.write(record(0))
    log.close()
    assert (tmp_path / "steps.jsonl").read_text() == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk_ends_the_trace_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    log = StepLog("/dev/full")
    with caplog.at_level(logging.WARNING):
        for step_id in range(3):
            log.write(record(step_id))
    assert [entry.levelname for entry in caplog.records] == ["WARNING"]
    log.close()
