"""Reads answers in other dialects than OpenAI's, and holds them to their order."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]


def named_events(body: bytes) -> list[Json]:
    """The data of a stream's events, each under its own name; pings are left out."""
    assert body.endswith(b"\n\n"), body[-100:]
    events = []
    for block in body.decode("utf-8").split("\n\n")[:-1]:
        first, second = block.split("\n")
        data = json.loads(second.removeprefix("data: "))
        assert first == f"event: {data['type']}", block
        if data["type"] != "ping":
            events.append(data)
    return events


def message_of(events: list[Json]) -> Json:
    """The message that a whole stream of Anthropic's tells, block after block."""
    start, *between, delta, stop = events
    assert start["type"] == "message_start" and stop == {"type": "message_stop"}
    message: Json = start["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    is_open, arguments = False, ""
    for event in between:
        kind = event["type"]
        assert event["index"] == len(message["content"]) - (kind != "content_block_start")
        if kind == "content_block_start":
            assert not is_open
            is_open, arguments = True, ""
            message["content"].append(event["content_block"])
            continue
        assert is_open, event
        block = message["content"][-1]
        if kind == "content_block_stop":
            is_open = False
            if block["type"] == "tool_use":
                block["input"] = json.loads(arguments or "{}")
            continue
        assert kind == "content_block_delta"
        match event["delta"]:
            case {"type": "text_delta", "text": text}:
                block["text"] += text
            case {"type": "thinking_delta", "thinking": text}:
                block["thinking"] += text
            case {"type": "signature_delta", "signature": text}:
                block["signature"] = text
            case {"type": "input_json_delta", "partial_json": text}:
                assert block["type"] == "tool_use"
                arguments += text
            case other:
                raise AssertionError(other)
    assert not is_open and delta["type"] == "message_delta"
    assert delta["usage"]["output_tokens"] >= message["usage"]["output_tokens"]
    message["usage"] |= delta["usage"]
    return message | delta["delta"]


def said_by(message: Json) -> str:
    """The text of a message."""
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")


def lines_of(body: bytes) -> list[Json]:
    """The lines of a stream of Ollama's: all but the last one are not done."""
    assert body.endswith(b"\n"), body[-100:]
    lines: list[Json] = [json.loads(line) for line in body.decode("utf-8").split("\n")[:-1]]
    assert [line.get("done") for line in lines] == [False] * (len(lines) - 1) + [True]
    return lines


def text_of(line: Json) -> str:
    """What a line of Ollama's, or a whole answer, says."""
    text = line["message"]["content"] if "message" in line else line["response"]
    assert isinstance(text, str)
    return text
