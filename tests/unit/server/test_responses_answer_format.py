"""Responses from parts of any kind: streamed in strict order, and the same as whole ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from hypothesis import example, given, settings
from hypothesis import strategies as st
from openai._types import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response as OpenAiResponse
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from chairlift.outputs import CompletionOutput, RequestOutput
from chairlift.server.answer_parts import (
    AnswerPart,
    ArgumentsPart,
    CallPart,
    PlainReader,
    ReasoningPart,
    TextPart,
)
from chairlift.server.errors import ApiError
from chairlift.server.protocol.response import Response
from chairlift.server.responses.answer_format import ResponsesFormat
from response_events import accumulated, response_events, without_names

Script = list[tuple[str, str]]
"""What a text consists of: (kind, text)."""

TEXTS = st.text(st.sampled_from('ab \n"\\é😀\u2028'), min_size=1, max_size=12)
SCRIPTS = st.lists(
    st.tuples(st.sampled_from(["text", "reasoning", "call", "empty call"]), TEXTS), max_size=6
)
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


class ScriptReader:
    """Reads any text as the parts that the script says its characters are."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._place = 0
        self._begun: set[int] = set()

    def read(self, text: str, *, is_finished: bool) -> list[AnswerPart]:
        parts: list[AnswerPart] = []
        for _ in text:
            parts += self._read_one()
            self._place += 1
        return parts

    def _read_one(self) -> Sequence[AnswerPart]:
        start = 0
        for index, (kind, text) in enumerate(self._script):
            letter = text[self._place - start : self._place - start + 1]
            if self._place < start + len(text):
                if kind == "text":
                    return [TextPart(letter)]
                if kind == "reasoning":
                    return [ReasoningPart(letter)]
                number = sum("call" in each for each, _ in self._script[:index])
                call = [] if index in self._begun else [CallPart(number, f"id{number}", "f")]
                self._begun.add(index)
                more = [] if kind == "empty call" else [ArgumentsPart(number, letter)]
                return [*call, *more]
            start += len(text)
        return []


def response(**fields: Any) -> Response:
    return Response(
        **{
            "id": "resp_1", "created_at": 1, "status": "in_progress", "background": False,
            "instructions": None, "max_output_tokens": None, "max_tool_calls": None, "model": "m",
            "parallel_tool_calls": True, "previous_response_id": None, "prompt_cache_key": None,
            "reasoning": {"effort": None, "summary": None}, "safety_identifier": None,
            "store": True, "temperature": 1.0, "text": {"format": {"type": "text"}},
            "tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": 1.0,
            "presence_penalty": 0.0, "frequency_penalty": 0.0, "truncation": "disabled",
            "user": None, "metadata": {}, **fields,
        }
    )  # fmt: skip


def format_of(script: Script | None, *, has_summary: bool = False) -> ResponsesFormat:
    return ResponsesFormat(
        response(),
        new_reader=PlainReader if script is None else lambda: ScriptReader(script),
        tokenizer=cast(Any, None),
        num_logprobs=None,
        has_summary=has_summary,
        has_timings=False,
    )


def output(text: str, *, num_tokens: int, finish_reason: str | None = None) -> RequestOutput:
    completion = CompletionOutput(
        index=0, text=text, token_ids=[7] * num_tokens, finish_reason=finish_reason
    )
    return RequestOutput("r", None, [1, 2, 3], [completion], finished=finish_reason is not None)


def text_of(script: Script) -> str:
    return "".join(text for _, text in script)


def streamed(
    script: Script, cuts: Sequence[int], finish_reason: str, *, has_summary: bool = False
) -> bytes:
    """The whole stream, if the text comes in these pieces."""
    format, text = format_of(script, has_summary=has_summary), text_of(script)
    data = b""
    for number, cut in enumerate(sorted(cuts)):
        data += format.chunks(output(text[:cut], num_tokens=number))
    last = output(text, num_tokens=len(cuts) + 1, finish_reason=finish_reason)
    return data + format.chunks(last) + format.last_chunks([last]) + format.end


def whole(
    script: Script, num_tokens: int, finish_reason: str, *, has_summary: bool = False
) -> dict[str, Any]:
    format = format_of(script, has_summary=has_summary)
    last = output(text_of(script), num_tokens=num_tokens, finish_reason=finish_reason)
    return cast(dict[str, Any], json.loads(format.whole([last]).model_dump_json()))


@settings(max_examples=150, deadline=None)
@given(
    script=SCRIPTS,
    cuts=st.lists(st.integers(0, 72), max_size=8),
    finish_reason=st.sampled_from(["stop", "length"]),
    has_summary=st.booleans(),
)
@example([], [], "length", False)
@example([("call", "{}"), ("call", "{}")], [1, 2, 3], "stop", False)
@example([("reasoning", "hm"), ("text", "so"), ("call", "{"), ("text", "a")], [3], "stop", True)
def test_a_stream_accumulates_to_the_whole_answer(
    script: Script, cuts: list[int], finish_reason: str, has_summary: bool
) -> None:
    body = streamed(script, cuts, finish_reason, has_summary=has_summary)
    final = accumulated(body)
    at_once = whole(script, len(cuts) + 1, finish_reason, has_summary=has_summary)
    assert without_names(final) == without_names(at_once)
    for item in final["output"]:
        assert bool(item.get("summary")) == (has_summary and item["type"] == "reasoning")
    joined: Script = []
    for kind, text in script:
        if joined and joined[-1][0] == kind and "call" not in kind:
            joined[-1] = (kind, joined[-1][1] + text)
        else:
            joined.append((kind, "" if kind == "empty call" else text))
    assert [shown(item) for item in final["output"]] == (joined or [("text", "")])
    ends = {"stop": ("completed", None), "length": ("incomplete", {"reason": "max_output_tokens"})}
    assert (final["status"], final["incomplete_details"]) == ends[finish_reason]
    assert [item["status"] for item in final["output"]][-1] == final["status"]


def shown(item: dict[str, Any]) -> tuple[str, str]:
    if item["type"] == "function_call":
        return ("call" if item["arguments"] else "empty call", item["arguments"])
    (part,) = item["content"] or item["summary"]
    return ("text" if item["type"] == "message" else "reasoning", part["text"])


@settings(max_examples=60, deadline=None)
@given(script=SCRIPTS, cuts=st.lists(st.integers(0, 72), max_size=8), has_summary=st.booleans())
def test_the_official_client_accumulates_the_same(
    script: Script, cuts: list[int], has_summary: bool
) -> None:
    """Every event has the keys that its types demand, and its own accumulator is content."""
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=[], text_format=omit)
    body = streamed(script, cuts, "stop", has_summary=has_summary)
    for event in response_events(body):
        state.handle_event(EVENT.validate_python(event))
    found = cast(Any, state._completed_response).to_dict()
    final = accumulated(body)
    assert OpenAiResponse.model_validate(final).status == "completed"
    for item, expected in zip(found["output"], final["output"], strict=True):
        for added in ("parsed_arguments",):
            item.pop(added, None)
        for part in item.get("content") or []:
            part.pop("parsed", None)
        assert item == expected


def test_a_failure_ends_a_stream_whenever_it_comes() -> None:
    script: Script = [("text", "abc"), ("call", "{}"), ("text", "d")]
    error = ApiError(504, 'too "late"', code="deadline_exceeded", param="timeout")
    for cut in (None, 0, 2, 4, 6):
        format = format_of(script)
        data = b""
        if cut is not None:
            data = format.chunks(output(text_of(script)[:cut], num_tokens=1))
        final = accumulated(data + format.error_event(error) + format.end)
        assert final["status"] == "failed"
        assert final["error"] == {"code": "server_error", "message": 'too "late"'}
        assert format.final is not None and format.final.status == "failed"
    body = format_of(script).error_event(error) + format_of(script).end
    told = response_events(body)[-2]
    assert (told["code"], told["param"]) == ("deadline_exceeded", "timeout")
    assert told["error"]["type"] == "invalid_request_error"


def test_what_was_cut_off_stays_with_the_response() -> None:
    script: Script = [("text", "abc"), ("call", "{}")]
    format = format_of(script)
    format.chunks(output("abc{", num_tokens=1))
    final = format.ended_early("cancelled")
    assert final.status == "cancelled" and final.error is None
    assert [item.status for item in final.output] == ["completed", "incomplete"]
    assert format_of(script).ended_early("failed", ApiError(429, "full")).output == []


def test_a_token_costs_few_bytes() -> None:
    """The event for a token does not grow with the answer or with the request."""
    format = format_of(None)
    format.chunks(output("a", num_tokens=1))
    sizes = {len(format.chunks(output("a" * n, num_tokens=n))) for n in range(2, 90)}
    assert max(sizes) < 300 and max(sizes) - min(sizes) <= 1
