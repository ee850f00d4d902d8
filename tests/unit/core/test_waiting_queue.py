"""The two lanes."""

from __future__ import annotations

from chairlift.core.waiting_queue import WaitingQueue
from fake_executor import make_request


def test_lanes_part_long_prompts_from_short_ones() -> None:
    waiting = WaitingQueue(long_prompt_tokens=8)
    short = make_request("short", 8)
    short.rank = (0, 1)
    waiting.add(make_request("long", 9))
    waiting.add(short)
    first, first_short = waiting.peek(), waiting.short.peek()
    assert first is not None and first.request_id == "long"
    assert first_short is not None and first_short.request_id == "short"
    assert waiting.remove("long") and not waiting.remove("long")
    assert [request.request_id for request in waiting] == ["short"]
