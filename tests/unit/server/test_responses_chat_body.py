"""A request for a response in the words of a chat completion, and errors on their way back."""

from __future__ import annotations

from typing import Any, cast

import pytest

from chairlift.server.chat_job import chat_request
from chairlift.server.errors import ApiError, bad_request
from chairlift.server.protocol.response_items import KnownItem
from chairlift.server.protocol.response_request import REFUSED, responses_request
from chairlift.server.responses.chat_body import (
    chat_body,
    chat_messages,
    plan_tools,
)

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}


def translated(**fields: Any) -> dict[str, Any]:
    request = responses_request({"model": "m", "input": "hi", **fields})
    return chat_body(request, cast(list[KnownItem], request.items), plan_tools(request))


def messages(input: Any, instructions: str | None = None) -> list[dict[str, Any]]:
    request = responses_request({"model": "m", "input": input})
    return chat_messages(instructions, cast(list[KnownItem], request.items))


def refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        translated(**fields)
    assert error.value.status == 400
    return error.value


def test_a_text_is_what_the_user_says() -> None:
    assert messages("hi") == [{"role": "user", "content": "hi"}]
    assert messages("hi", "be brief") == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]


def test_instructions_that_follow_each_other_are_one_message() -> None:
    items = [
        {"role": "developer", "content": "first"},
        {"role": "system", "content": [{"type": "input_text", "text": "second"}]},
        {"role": "user", "content": "hi"},
        {"role": "developer", "content": "later"},
    ]
    assert messages(items, "be brief") == [
        {"role": "system", "content": "be brief\n\nfirst\n\nsecond"},
        {"role": "user", "content": "hi"},
        {"role": "developer", "content": "later"},
    ]
    assert messages(items)[0] == {"role": "developer", "content": "first\n\nsecond"}


def test_items_of_one_turn_are_one_message() -> None:
    def call(id: str) -> dict[str, Any]:
        return {"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"}

    def wanted(id: str) -> dict[str, Any]:
        return {"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}}

    items = [
        {"role": "user", "content": [{"type": "input_text", "text": t} for t in ("a", "b")]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
         "content": [{"type": "output_text", "text": "so", "annotations": [], "logprobs": []},
                     {"type": "refusal", "refusal": "!"}]},
        call("1"),
        call("2"),
        {"type": "function_call_output", "call_id": "1", "output": "one"},
        {"type": "function_call_output", "call_id": "2",
         "output": [{"type": "input_text", "text": "tw"}, {"type": "input_text", "text": "o"}]},
        call("3"),
        {"type": "function_call_output", "call_id": "3", "output": ""},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "in short"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"role": "assistant", "content": "done"},
        {"role": "assistant", "content": "really"},
    ]  # fmt: skip
    expected = [
        {"role": "user", "content": [{"type": "text", "text": t} for t in ("a", "b")]},
        {"role": "assistant", "reasoning_content": "hm", "content": "so!",
         "tool_calls": [wanted("1"), wanted("2")]},
        {"role": "tool", "tool_call_id": "1", "content": "one"},
        {"role": "tool", "tool_call_id": "2", "content": "two"},
        {"role": "assistant", "content": None, "tool_calls": [wanted("3")]},
        {"role": "tool", "tool_call_id": "3", "content": ""},
        {"role": "assistant", "reasoning_content": "in short", "content": "done"},
        {"role": "assistant", "content": "really"},
    ]  # fmt: skip
    assert messages(items) == expected
    chat_request({"model": "m", "messages": expected})


def test_fields_that_mean_the_same_are_passed_on() -> None:
    given = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3, "stop": ["x"],
        "stream": True, "min_tokens": 1, "ignore_eos": True, "timeout": 5.0, "user": "u",
        "logit_bias": {"1": 2}, "cache_salt": "s", "priority": 1, "service_tier": "auto",
        "chat_template_kwargs": {"enable_thinking": True}, "presence_penalty": 0.5,
        "guided_regex": "[a-z]+",
    }  # fmt: skip
    body = translated(**given, metadata={"a": "b"}, store=False)
    assert body == {"model": "m", "messages": [{"role": "user", "content": "hi"}], **given}
    chat_request(body)


def test_fields_with_other_names_are_translated() -> None:
    schema = {"type": "object", "properties": {}}
    body = translated(
        max_output_tokens=9,
        reasoning={"effort": "low"},
        text={
            "verbosity": "low",
            "format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True},
        },
        include=["message.output_text.logprobs"],
    )
    assert body["max_completion_tokens"] == 9 and body["reasoning_effort"] == "low"
    assert body["verbosity"] == "low" and (body["logprobs"], body["top_logprobs"]) == (True, 0)
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": schema, "strict": True},
    }
    assert translated(top_logprobs=3)["top_logprobs"] == 3
    assert "logprobs" not in translated(top_logprobs=0)
    assert translated(text={"format": {"type": "json_object"}})["response_format"] == {
        "type": "json_object"
    }
    assert "response_format" not in translated(text={"format": {"type": "text"}})


def test_tools_are_functions_and_others_are_left_out() -> None:
    other = {"type": "function", "name": "g", "description": None}
    tools = [{"type": "web_search"}, FUNCTION, {"type": "custom", "name": "x"}, other]
    function = {"name": "f", "parameters": {"type": "object"}, "strict": True}
    expected = [{"type": "function", "function": function},
                {"type": "function", "function": {"name": "g"}}]  # fmt: skip
    for choice in ("none", "auto", "required"):
        body = translated(tools=tools, tool_choice=choice)
        assert body["tools"] == expected and body["tool_choice"] == choice
        assert "parallel_tool_calls" not in body
    body = translated(
        tools=tools, tool_choice={"type": "function", "name": "g"}, parallel_tool_calls=False
    )
    assert body["tool_choice"] == {"type": "function", "function": {"name": "g"}}
    assert body["parallel_tool_calls"] is False
    some = {"type": "allowed_tools", "mode": "required", "tools": [other, {"type": "web_search"}]}
    body = translated(tools=tools, tool_choice=some)
    assert body["tools"] == expected[1:] and body["tool_choice"] == "required"
    assert "tools" not in translated(tools=tools[:1])
    assert "tool_choice" not in translated(tools=tools[:1], tool_choice="none")
    plan = plan_tools(responses_request({"model": "m", "input": "x", "tools": tools}))
    assert plan.skipped == ["web_search", "custom"]


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"input": []}, "input", "empty"),
        ({"input": ""}, "input", "empty"),
        ({"input": 5}, "input", "list of items"),
        ({"input": ["x"]}, "input[0]", "object"),
        ({"input": [{"content": "x"}]}, "input[0].type", "no type"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type", "web_search_call"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "user"),
        ({"input": [{"role": "user"}]}, "input[0].content", "required"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input[0].content", "input_image"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
         "input[0].content", "text"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "f"}]},
         "input[0].arguments", "required"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": {}}]},
         "input[0].arguments", "string"),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": "x"}]},
         "input", "no call"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id", "required"),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary", "list"),
        ({"tools": [{"name": "f"}]}, "tools", "type"),
        ({"tools": {}}, "tools", "list"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "required"),
        ({"tools": [{"type": "web_search"}, {"type": "function", "name": "f", "strict": 1}]},
         "tools[1].strict", "boolean"),
        ({"tool_choice": "any"}, "tool_choice", "auto"),
        ({"tool_choice": "required"}, "tool_choice", "function"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name", "required"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "no function"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice", "web_search"),
        ({"tools": [FUNCTION], "tool_choice": {
            "type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}},
         "tool_choice", "no function 'g'"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "json_schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name", "req"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", "req"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": 1}}},
         "text.format.schema", "dictionary"),
        ({"text": "json"}, "text", "TextOptions"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "low"),
        ({"include": ["everything"]}, "include[0]", "logprobs"),
        ({"top_logprobs": 21}, "top_logprobs", "20"),
        ({"max_output_tokens": 0}, "max_output_tokens", "1"),
        ({"max_output_tokens": 1.5}, "max_output_tokens", "integer"),
        ({"n": 2}, "n", "one answer"),
        ({"background": True, "store": False}, "background", "store"),
        ({"background": True, "stream": True}, "stream", "background"),
        ({"stream_options": {}}, "stream_options", "stream"),
        ({"truncation": "some"}, "truncation", "auto"),
        ({"metadata": {"a": 1}}, "metadata.a", "string"),
        ({"conversation": "c"}, "conversation", "not supported"),
        ({"prompt": {"id": "p"}}, "prompt", "not supported"),
        ({"messages": []}, "messages", "not supported"),
        ({"response_format": {"type": "text"}}, "response_format", "text.format"),
        ({"max_tokens": 5}, "max_tokens", "not supported"),
        ({"instructions": ["x"]}, "instructions", "string"),
        ({"previous_response_id": 5}, "previous_response_id", "string"),
        ({"temperature": 3}, "temperature", "2"),
        ({"store": "yes"}, "store", "boolean"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str, says: str) -> None:
    error = refusal(**fields)
    assert error.param == param and says in error.message, (error.param, error.message)


def test_what_is_refused_is_no_field_of_ours() -> None:
    body = {"model": "m", "input": "x", "max_completion_tokens": 2}
    with pytest.raises(ApiError) as error:
        responses_request(body)
    assert error.value.code == "unsupported_parameter"
    assert not {"input", "text", "tools", "stop"} & set(REFUSED)


def test_what_changes_nothing_is_named_here_or_there() -> None:
    request = responses_request(
        {
            "model": "m", "novelty": 1, "max_tool_calls": 3, "prompt_cache_options": {"a": 1},
            "input": [{"role": "user", "content": "x", "mood": 1},
                      {"type": "reasoning", "summary": [], "encrypted_content": "x"}],
            "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
            "reasoning": {"effort": "low", "summary": "auto", "context": "auto"},
            "text": {"verbosity": "low", "colour": 1},
        }
    )  # fmt: skip
    assert set(request.without_effect()) == {
        "novelty", "max_tool_calls", "prompt_cache_options", "input.mood",
        "input.encrypted_content", "include.reasoning.encrypted_content", "reasoning.context",
        "text.colour",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("param", "message", "ours", "says"),
    [
        ("messages[3].content", "messages[3].content: bad", "input", "input: bad"),
        ("prompt", "too long", "input", "too long"),
        ("max_tokens", "max_tokens is too large", "max_output_tokens",
         "max_output_tokens is too large"),
        (None, "set max_completion_tokens", None, "set max_output_tokens"),
        ("tools[1].function.name", "tools[1].function.name: bad", "tools[3].name",
         "tools[3].name: bad"),
        ("response_format.json_schema.schema", "x", "text.format.schema", "x"),
        ("reasoning_effort", "reasoning_effort?", "reasoning.effort", "reasoning.effort?"),
        ("temperature", "temperature: 5", "temperature", "temperature: 5"),
    ],
)  # fmt: skip
def test_errors_of_the_chat_name_our_fields(
    param: str | None, message: str, ours: str | None, says: str
) -> None:
    tools = [{"type": "web_search"}, FUNCTION, {"type": "x"}, {"type": "function", "name": "g"}]
    plan = plan_tools(responses_request({"model": "m", "input": "x", "tools": tools}))
    names = plan.field_names
    with pytest.raises(ApiError) as error, names.told():
        raise bad_request(message, param=param)
    assert (error.value.param, error.value.message) == (ours, says)
    assert [names.own(name) for name in ("verbosity", "user")] == ["text.verbosity", "user"]
