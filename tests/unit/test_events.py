"""The record of a step: its kind, and that nothing is lost in its line of JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from chairlift.events import Preemption, StepMember, StepRecord


def record(**changes: Any) -> StepRecord:
    values: dict[str, Any] = {
        item.name: 0 for item in dataclasses.fields(StepRecord) if item.name != "error"
    }
    values |= {
        "members": (StepMember("a", "decode", 7, 1),),
        "admitted": (),
        "finished": (),
        "preemptions": (),
        "limit": "arrivals",
    }
    return StepRecord(**{**values, **changes})


@pytest.mark.parametrize(
    ("prefill", "decode", "padding", "members", "kind"),
    [
        (5, 0, 0, 1, "prefill"),
        (5, 3, 0, 2, "mixed"),
        (5, 0, 2, 2, "mixed"),
        (0, 3, 0, 1, "decode"),
        (0, 0, 3, 1, "decode"),
        (0, 0, 0, 0, "idle"),
    ],
)
def test_kind(prefill: int, decode: int, padding: int, members: int, kind: str) -> None:
    step = record(
        num_prefill_tokens=prefill,
        num_decode_tokens=decode,
        num_padding_tokens=padding,
        members=(StepMember("a", "prefill", 0, 1),) * members,
    )
    assert step.kind == kind


def test_duration_is_the_sum_of_its_parts() -> None:
    assert record(schedule_s=1.0, execute_s=2.0, update_s=4.0).duration_s == 7.0


def test_json_has_every_field_on_one_line() -> None:
    preemption = Preemption(
        request_id="b\n\u2028",
        mode="swap",
        num_blocks=3,
        num_blocks_kept=1,
        num_tokens_dropped=0,
        swap_cost_s=0.1,
        recompute_cost_s=0.2,
        reason='memory for "a"',
    )
    step = record(preemptions=(preemption,), finished=(("c", "length"),), admitted=("d",))
    line = step.to_json()
    assert len(line.splitlines()) == 1
    read = json.loads(line)
    assert read.pop("kind") == "decode"
    assert read == json.loads(json.dumps(dataclasses.asdict(step)))
    assert set(read) == {item.name for item in dataclasses.fields(StepRecord)}
    assert read["preemptions"][0]["request_id"] == "b\n\u2028"
