"""What a request for a message is as a chat completion."""

from __future__ import annotations

from typing import Any

import pytest

from chairlift.server.anthropic.chat_body import chat_body
from chairlift.server.errors import ApiError
from chairlift.server.protocol.anthropic import CountTokensRequest, MessagesRequest
from chairlift.server.protocol.strict_model import parse

USER = {"role": "user", "content": "hi"}
CALL = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "日"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "a tree"}
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}


def body_of(kind: type[CountTokensRequest] = MessagesRequest, **fields: Any) -> dict[str, Any]:
    return translated(kind, **fields).body


def translated(kind: type[CountTokensRequest] = MessagesRequest, **fields: Any) -> Any:
    base: dict[str, Any] = {"model": "m", "messages": [USER]}
    base |= {"max_tokens": 5} if kind is MessagesRequest else {}
    request = parse(kind, base | fields)
    request.check()
    return chat_body(request, is_strict=False)


def turns_of(*messages: dict[str, Any], **fields: Any) -> Any:
    return body_of(messages=list(messages), **fields)["messages"]


def test_plain_request() -> None:
    assert body_of() == {
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5,
        "stream": False,
    }  # fmt: skip
    assert body_of(CountTokensRequest) == {"model": "m", "messages": [USER]}


def test_sampling_fields_are_copied() -> None:
    body = body_of(stop_sequences=["a", "b"], temperature=0.5, top_p=0.9, top_k=3, stream=True)
    assert body["stop"] == ["a", "b"] and body["stream"] is True
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.5, 0.9, 3)


def test_system_and_blocks_are_lines() -> None:
    two = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    turns = turns_of({"role": "user", "content": two}, system=two)
    assert turns == [{"role": "system", "content": "a\nb"}, {"role": "user", "content": "a\nb"}]
    assert turns_of(USER, system="s")[0] == {"role": "system", "content": "s"}


def test_neighbouring_turns_of_one_role_are_one() -> None:
    assistant = {"role": "assistant", "content": "ho"}
    assert turns_of(USER, USER, assistant, assistant, USER) == [
        {"role": "user", "content": "hi\nhi"}, {"role": "assistant", "content": "ho\nho"}, USER,
    ]  # fmt: skip


def test_tool_round_trip() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    secret = {"type": "redacted_thinking", "data": "x"}
    said = {"type": "text", "text": "I look."}
    again = {**CALL, "id": "t2"}
    texts = [{"type": "text", "text": "too"}, {"type": "text", "text": "dark"}]
    failed = {**RESULT, "tool_use_id": "t2", "is_error": True, "content": texts}
    turns = turns_of(
        USER,
        {"role": "assistant", "content": [thought, secret, said, CALL, again]},
        {"role": "user", "content": [RESULT, failed, {"type": "text", "text": "Go on."}]},
    )
    call = {"type": "function", "function": {"name": "look", "arguments": '{"at": "日"}'}}
    assert turns[1:] == [
        {
            "role": "assistant", "content": "I look.", "reasoning_content": "hm",
            "tool_calls": [{"id": "t1", **call}, {"id": "t2", **call}],
        },
        {"role": "tool", "tool_call_id": "t1", "name": "look", "content": "a tree"},
        {"role": "tool", "tool_call_id": "t2", "name": "look", "content": "Error: too\ndark"},
        {"role": "user", "content": "Go on."},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, ""), ({"content": []}, ""), ({"is_error": True}, "Error"), ({"content": "x"}, "x")],
)
def test_results_without_words(fields: dict[str, Any], expected: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", **fields}
    turns = turns_of(
        USER, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [result]}
    )
    assert turns[1]["content"] is None and turns[2]["content"] == expected


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, {}),
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        (
            {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
            {
                "tool_choice": {"type": "function", "function": {"name": "look"}},
                "parallel_tool_calls": False,
            },
        ),
    ],
)
def test_tools_and_how_they_are_called(choice: Any, expected: dict[str, Any]) -> None:
    translation = translated(tools=[SEARCH, {**TOOL, "strict": True}], tool_choice=choice)
    body = translation.body
    assert body["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "look", "description": "Looks.", "parameters": {"type": "object"},
                "strict": True,
            },
        }
    ]  # fmt: skip
    found = {name: body[name] for name in ("tool_choice", "parallel_tool_calls") if name in body}
    assert found == expected and translation.ignored == ["tools.web_search_20250305"]


def test_tools_that_run_elsewhere_leave_nothing() -> None:
    body = body_of(tools=[SEARCH], tool_choice={"type": "auto"})
    assert "tools" not in body and "tool_choice" not in body
    with pytest.raises(ApiError, match=r"tool_choice\.name"):
        body_of(tools=[SEARCH], tool_choice={"type": "tool", "name": "web_search"})


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, None),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"thinking": {"type": "adaptive"}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}, "medium"),
        ({"output_config": {"effort": "high"}}, "high"),
        ({"output_config": {"effort": "low"}, "thinking": {"type": "adaptive"}}, "low"),
        ({"output_config": {"effort": "max"}, "thinking": {"type": "disabled"}}, "none"),
    ],
)
def test_effort_of_thinking(fields: dict[str, Any], effort: str | None) -> None:
    assert body_of(**fields).get("reasoning_effort") == effort


def test_format_of_the_answer_in_both_places() -> None:
    format = {"type": "json_schema", "schema": {"type": "object"}}
    for fields in ({"output_config": {"format": format}}, {"output_format": format}):
        assert body_of(**fields)["response_format"] == {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True},
        }
        (place,) = fields
        theirs = "response_format.json_schema.schema.x"
        assert translated(**fields).names.own(theirs).startswith(place)


def test_places_of_faults_are_those_of_the_request() -> None:
    names = translated(
        system="s",
        tools=[SEARCH, TOOL],
        messages=[USER, {"role": "assistant", "content": [CALL]},
                  {"role": "user", "content": [RESULT]}],
    ).names  # fmt: skip
    for theirs, ours in {
        "tools[0].function.parameters.type": "tools[1].input_schema.type",
        "tools[0].function.name": "tools[1].name",
        "stop[2]": "stop_sequences[2]",
        "stop_token_ids": "stop_token_ids",
        "messages[0].content": "system.content",
        "messages[3].content": "messages[2].content[0].content",
        "reasoning_effort": "thinking",
        "prompt": "prompt",
    }.items():
        assert names.own(theirs) == ours
