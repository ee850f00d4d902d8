"""Step records made by hand."""

from __future__ import annotations

from typing import Any

from chairlift.events import StepMember, StepRecord


def make_record(start_s: float, members: dict[str, Any], **fields: Any) -> StepRecord:
    """`make_record(start_s, {"a": "decode", ...}, **fields)`; a step takes a second."""
    kinds = list(members.values())
    values: dict[str, Any] = {
        "step_id": 0,
        "start_s": start_s,
        "schedule_s": 0.0,
        "execute_s": 1.0,
        "update_s": 0.0,
        "members": tuple(StepMember(name, kind, 0, 1) for name, kind in members.items()),
        "num_prefill_tokens": kinds.count("prefill"),
        "num_decode_tokens": kinds.count("decode"),
        "num_padding_tokens": kinds.count("padding"),
        "num_sampled_tokens": 0,
        "context_tokens": 0,
        "attention_pairs": 0,
        "num_free_blocks": 0,
        "num_blocks": 0,
        "num_waiting": 0,
        "num_running": len(members),
        "num_swapped": 0,
        "num_swapped_out_blocks": 0,
        "num_swapped_in_blocks": 0,
        "num_copied_blocks": 0,
        "swap_bytes": 0,
        "admitted": (),
        "finished": (),
        "preemptions": (),
        "limit": "arrivals",
    }
    return StepRecord(**{**values, **fields})
