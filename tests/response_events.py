"""Reads a streamed response strictly, and puts it together again."""

from __future__ import annotations

import json
from typing import Any

TEXT_KINDS = {"message": "output_text", "reasoning": "reasoning_text"}


def response_events(body: bytes) -> list[dict[str, Any]]:
    """The events of a stream; every one has its name twice and the next number."""
    assert body.endswith(b"data: [DONE]\n\n"), body[-200:]
    events: list[dict[str, Any]] = []
    for block in body.decode("utf-8").split("\n\n")[:-2]:
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        assert name.startswith("event: ") and data.startswith("data: "), block
        event = json.loads(data.removeprefix("data: "))
        assert event["type"] == name.removeprefix("event: ")
        assert event["sequence_number"] == len(events)
        events.append(event)
    return events


class Accumulator:
    """Takes events in the one order that they may have, and builds the output from deltas."""

    def __init__(self) -> None:
        self.output: list[dict[str, Any]] = []
        self.final: dict[str, Any] | None = None
        self._id = ""
        self._open: dict[str, Any] | None = None
        self._text: list[str] = []
        self._logprobs: list[Any] = []
        self._expected = ["response.created"]

    def take(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        assert self.final is None, "an event after the last"
        assert kind in self._expected, f"{kind}, not {self._expected}"
        name = kind.removeprefix("response.").replace(".", "_")
        getattr(self, f"_{name}")(event)

    def _created(self, event: dict[str, Any]) -> None:
        self._id = event["response"]["id"]
        self._check_empty(event)
        self._expected = ["response.in_progress"]

    def _in_progress(self, event: dict[str, Any]) -> None:
        self._check_empty(event)
        self._expected = ["response.output_item.added", "error"]

    def _output_item_added(self, event: dict[str, Any]) -> None:
        assert event["output_index"] == len(self.output) and self._open is None
        item = event["item"]
        assert item["status"] == "in_progress"
        self._open, self._text, self._logprobs = item, [], []
        if item["type"] == "function_call":
            assert item["arguments"] == "" and item["name"] and item["call_id"]
            self._expect_text("function_call_arguments")
        else:
            assert item["content"] == [] and not item.get("summary")
            self._expected = ["response.content_part.added"]
            if item["type"] == "reasoning":
                self._expected.append("response.reasoning_summary_part.added")

    def _reasoning_summary_part_added(self, event: dict[str, Any]) -> None:
        self._check_place(event)
        assert event["part"] == {"type": "summary_text", "text": ""}
        self._expect_text("reasoning_summary_text")

    def _content_part_added(self, event: dict[str, Any]) -> None:
        self._check_place(event)
        part = event["part"]
        assert self._open is not None
        assert part["type"] == TEXT_KINDS[self._open["type"]] and part["text"] == ""
        self._expect_text(part["type"])

    def _delta(self, event: dict[str, Any]) -> None:
        self._check_place(event)
        self._text.append(event["delta"])
        self._logprobs += event.get("logprobs", [])

    _output_text_delta = _reasoning_text_delta = _delta
    _reasoning_summary_text_delta = _function_call_arguments_delta = _delta

    def _text_done(self, event: dict[str, Any]) -> None:
        self._check_place(event)
        assert event["text"] == "".join(self._text)
        assert event.get("logprobs", []) == self._logprobs
        is_summary = "summary_index" in event
        part = "reasoning_summary_part" if is_summary else "content_part"
        self._expected = [f"response.{part}.done"]

    _output_text_done = _reasoning_text_done = _reasoning_summary_text_done = _text_done

    def _content_part_done(self, event: dict[str, Any]) -> None:
        self._check_place(event)
        assert event["part"]["text"] == "".join(self._text)
        self._expected = ["response.output_item.done"]

    _reasoning_summary_part_done = _content_part_done

    def _function_call_arguments_done(self, event: dict[str, Any]) -> None:
        self._check_place(event)
        assert event["arguments"] == "".join(self._text)
        self._expected = ["response.output_item.done"]

    def _output_item_done(self, event: dict[str, Any]) -> None:
        item, text = event["item"], "".join(self._text)
        assert self._open is not None and event["output_index"] == len(self.output)
        assert {k: item.get(k) for k in ("id", "type", "call_id", "name")} == {
            k: self._open.get(k) for k in ("id", "type", "call_id", "name")
        }
        if item["type"] == "function_call":
            assert item["arguments"] == text
        else:
            (part,) = item["content"] or item["summary"]
            assert part["text"] == text and part.get("logprobs", []) == self._logprobs
        self.output.append(item)
        self._open = None
        ends = ["response.completed", "response.incomplete", "error"]
        self._expected = ["response.output_item.added", *ends]

    def _error(self, event: dict[str, Any]) -> None:
        assert event["message"] == event["error"]["message"]
        self._expected = ["response.failed"]

    def _end(self, event: dict[str, Any]) -> None:
        assert self._open is None
        final = event["response"]
        assert final["id"] == self._id and final["output"] == self.output
        assert final["status"] == event["type"].removeprefix("response.")
        self.final = final

    _completed = _incomplete = _failed = _end

    def _check_empty(self, event: dict[str, Any]) -> None:
        response = event["response"]
        assert response["status"] == "in_progress" and response["output"] == []
        assert response["id"] == self._id and response["usage"] is None

    def _check_place(self, event: dict[str, Any]) -> None:
        assert self._open is not None
        assert event["item_id"] == self._open["id"]
        assert event["output_index"] == len(self.output)
        assert event.get("content_index", 0) == 0 == event.get("summary_index", 0)

    def _expect_text(self, kind: str) -> None:
        self._expected = [f"response.{kind}.delta", f"response.{kind}.done"]


def accumulated(body: bytes) -> dict[str, Any]:
    """The response that a whole stream ends with, after everything about it was checked."""
    accumulator = Accumulator()
    for event in response_events(body):
        accumulator.take(event)
    assert accumulator.final is not None, "the stream has no end"
    return accumulator.final


def without_names(response: dict[str, Any]) -> dict[str, Any]:
    """What must be the same of two responses to the same request."""
    own = {"id", "created_at", "completed_at"}
    rest = {name: value for name, value in response.items() if name not in own}
    rest["output"] = [
        {name: value for name, value in item.items() if name != "id"} for item in rest["output"]
    ]
    if rest["usage"] is not None:  # what is cached depends on who was here before
        rest["usage"] = {**rest["usage"], "input_tokens_details": None}
    return rest
