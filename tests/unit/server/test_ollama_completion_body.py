"""What requests to chat and to generate are as completions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from chairlift.server.errors import ApiError
from chairlift.server.ollama.completion_body import chat_body, generate_body, raw_body
from chairlift.server.ollama.model_names import listed_name, name_here
from chairlift.server.protocol.ollama import OllamaChatRequest, OllamaGenerateRequest
from chairlift.server.protocol.strict_model import parse
from chairlift.server.served_model import ServedModel

OPTIONS = {"num_predict": 5, "temperature": 0.5, "repeat_penalty": 1.1, "stop": "x", "seed": 3}
SAMPLING = {
    "max_tokens": 5,
    "temperature": 0.5,
    "repetition_penalty": 1.1,
    "stop": ["x"],
    "seed": 3,
}


def served(*, can_think: bool = False) -> ServedModel:
    given = SimpleNamespace(names=("m",), max_model_len=64, can_think=can_think)
    return cast(ServedModel, given)


def chat(*, can_think: bool = False, **fields: Any) -> dict[str, Any]:
    request = parse(OllamaChatRequest, {"model": "m:latest", **fields})
    return chat_body(request, served(can_think=can_think), is_strict=False).body


def generate(translate: Any = generate_body, **fields: Any) -> dict[str, Any]:
    request = parse(OllamaGenerateRequest, {"model": "m", "prompt": "p", **fields})
    return cast("dict[str, Any]", translate(request, served(), is_strict=False).body)


def test_plain_chat_of_ollama() -> None:
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    assert chat(messages=turns, options=OPTIONS) == {
        "model": "m", "messages": turns, "stream": True, **SAMPLING
    }  # fmt: skip


def test_generate_is_a_turn_and_raw_a_prompt() -> None:
    assert generate(system="s", stream=False, options=OPTIONS) == {
        "model": "m", "stream": False, **SAMPLING,
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "p"}],
    }  # fmt: skip
    assert generate(raw_body, raw=True, options=OPTIONS) == {
        "model": "m", "stream": True, "prompt": "p", **SAMPLING
    }  # fmt: skip
    assert generate(raw_body, raw=True)["max_tokens"] == 64, "as much as the context holds"
    assert generate(raw_body, suffix="end")["suffix"] == "end"


def test_calls_and_results_of_tools() -> None:
    calls = [
        {"function": {"name": "look", "arguments": {"at": "日"}}},
        {"id": "own", "function": {"name": "look", "arguments": {}}},
        {"function": {"name": "go", "arguments": {}}},
    ]
    turns = chat(
        messages=[
            {"role": "user", "content": "hi"},
            {"role": "assistant", "thinking": "hm", "tool_calls": calls},
            {"role": "tool", "content": "far", "tool_name": "go"},
            {"role": "tool", "content": "a tree", "tool_name": "look"},
            {"role": "tool", "content": "a bush", "tool_call_id": "own"},
            {"role": "tool", "content": "nobody asked"},
        ]
    )["messages"]
    assert turns[1]["content"] == "" and turns[1]["reasoning_content"] == "hm"
    assert [call["id"] for call in turns[1]["tool_calls"]] == ["call_0", "own", "call_2"]
    assert turns[1]["tool_calls"][0]["function"]["arguments"] == '{"at": "日"}'
    assert turns[2:] == [
        {"role": "tool", "content": "far", "name": "go", "tool_call_id": "call_2"},
        {"role": "tool", "content": "a tree", "name": "look", "tool_call_id": "call_0"},
        {"role": "tool", "content": "a bush", "name": "look", "tool_call_id": "own"},
        {"role": "tool", "content": "nobody asked"},
    ]


def test_formats_of_answers() -> None:
    assert "response_format" not in chat(format="")
    assert chat(format="json")["response_format"] == {"type": "json_object"}
    schema = {"type": "object"}
    for body in (chat(format=schema), generate(raw_body, raw=True, format=schema)):
        assert body["response_format"] == {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        }


@pytest.mark.parametrize(
    ("think", "effort"), [(None, None), (True, "medium"), (False, "none"), ("high", "high")]
)
def test_thinking_of_a_model_that_can(think: Any, effort: str | None) -> None:
    assert chat(can_think=True, think=think).get("reasoning_effort") == effort


def test_thinking_of_a_model_that_cannot() -> None:
    assert "reasoning_effort" not in chat(think=False)
    with pytest.raises(ApiError, match="does not support thinking"):
        chat(think="low")


@pytest.mark.parametrize(
    "options", [{"num_predict": -1}, {"num_predict": -2}, {"seed": -1}, {"num_ctx": 64}, {}]
)
def test_options_that_ask_for_nothing(options: dict[str, Any]) -> None:
    assert chat(options=options) == {"model": "m", "messages": [], "stream": True}


def test_log_probabilities_asked_of_both() -> None:
    body = chat(logprobs=True, top_logprobs=3)
    assert (body["logprobs"], body["top_logprobs"]) == (True, 3)
    assert generate(raw_body, raw=True, logprobs=True)["logprobs"] == 0


def test_tags_of_names() -> None:
    assert listed_name("m") == "m:latest" and listed_name("a/m:q4") == "a/m:q4"
    assert listed_name("host:1/m") == "host:1/m:latest"
    assert name_here("m", served()) == name_here("m:latest", served()) == "m"
    assert name_here("m:q4", served()) == "m:q4" and name_here("n", served()) == "n"
