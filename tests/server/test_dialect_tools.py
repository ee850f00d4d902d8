"""Calls of tools and thoughts in Anthropic's and Ollama's dialects, with a scripted model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chairlift.engine.engine import Engine
from dialect_answers import lines_of, message_of, named_events, said_by
from engines import load
from http_harness import Answer, RunningServer, serving_engine
from scripted_model import ScriptedModel, engine_of_its_own, roomy_copy, scripted_model

CALLING = (
    "{% for m in messages %}{{ m.role }}: {{ m.reasoning_content }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}CALL {{ c.function | tojson }}{% endfor %}\n{% endfor %}"
    "{% if tools %}<tools>{{ tools | tojson }}</tools> <tool_call>{% endif %}"
)
THINKING = CALLING + "{% if enable_thinking is false %}<think>\n\n</think>\n{% endif %}"
CALLS = [("look_up", {"city": "Zürich 😀"}), ("stop", {})]
SAYS = "".join(
    f"<tool_call>\n{json.dumps({'name': name, 'arguments': given}, ensure_ascii=False)}\n"
    "</tool_call>\n"
    for name, given in CALLS
)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
CUSTOM = [
    {"name": "look_up", "description": "Looks a city up", "input_schema": SCHEMA},
    {"name": "stop", "input_schema": NOTHING},
]
FUNCTIONS = [
    {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "stop", "parameters": NOTHING}},
]
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def build_large(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Engine]:
    loaded = load(roomy_copy(tiny_folder("llama3"), tmp_path_factory.mktemp("large") / "tiny"))
    return lambda: engine_of_its_own(loaded)


@pytest.fixture(scope="module")
def caller(build_large: Callable[[], Engine]) -> Iterator[ScriptedModel]:
    """A model that thinks, and calls in the way of Hermes."""
    with scripted_model(build_large, chat_template=THINKING) as model:
        yield model


@pytest.fixture(scope="module")
def guessing(build_large: Callable[[], Engine]) -> Iterator[RunningServer]:
    """A model that writes whatever it may."""
    with serving_engine(build_large, chat_template=CALLING) as server:
        yield server


def message(server: RunningServer, **fields: Any) -> Answer:
    body = {"model": "tiny", "max_tokens": 600, "messages": HI, "tools": CUSTOM}
    return server.post("/v1/messages", {**body, **fields})


def chat(server: RunningServer, **fields: Any) -> Answer:
    body = {"model": "tiny", "messages": HI, "tools": FUNCTIONS, "stream": False}
    return server.post("/api/chat", {**body, "options": {"num_predict": 600}, **fields})


def uses(told: dict[str, Any]) -> list[tuple[str, Any]]:
    blocks = [block for block in told["content"] if block["type"] == "tool_use"]
    assert len({block["id"] for block in blocks}) == len(blocks)
    return [(block["name"], block["input"]) for block in blocks]


def calls_of(*lines: dict[str, Any]) -> list[tuple[str, Any]]:
    calls = [call for line in lines for call in line["message"].get("tool_calls", [])]
    assert [call["function"]["index"] for call in calls] == list(range(len(calls)))
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def test_message_with_thoughts_words_and_calls(caller: ScriptedModel) -> None:
    caller.writes(f"<think>\nHm, ü\n</think>\n\nI look. {SAYS}")
    whole = message(caller.server).json
    streamed = message_of(named_events(message(caller.server, stream=True).body))
    for told in (whole, streamed):
        kinds = [block["type"] for block in told["content"]]
        assert kinds == ["thinking", "text", "tool_use", "tool_use"]
        assert told["content"][0]["thinking"] == "Hm, ü" and said_by(told) == "I look."
        assert uses(told) == CALLS
        assert told["stop_reason"] == "tool_use" and told["stop_sequence"] is None


def test_chat_of_ollama_with_thoughts_words_and_calls(caller: ScriptedModel) -> None:
    caller.writes(f"<think>\nHm, ü\n</think>\n\nI look. {SAYS}")
    whole = chat(caller.server, think=True).json
    assert whole["message"]["thinking"] == "Hm, ü" and whole["message"]["content"] == "I look."
    assert calls_of(whole) == CALLS and whole["done_reason"] == "stop"
    lines = lines_of(chat(caller.server, think=True, stream=True).body)
    assert calls_of(*lines) == CALLS
    assert "".join(line["message"]["content"] for line in lines) == "I look."
    assert "".join(line["message"].get("thinking", "") for line in lines) == "Hm, ü"


def test_results_go_back_to_the_template(caller: ScriptedModel) -> None:
    """Both dialects make the prompt that the chat completion has."""
    caller.writes("Sunny.")
    call = {"id": "t1", "type": "function"}
    arguments = {"name": "look_up", "arguments": '{"city": "Zürich"}'}
    result = {"role": "tool", "tool_call_id": "t1", "name": "look_up", "content": "sun"}
    assistant = {"role": "assistant", "content": "I look.", "reasoning_content": "hm"}
    turns = [*HI, {**assistant, "tool_calls": [{**call, "function": arguments}]}, result]
    expected = caller.server.chat(messages=turns, tools=FUNCTIONS).json["usage"]["prompt_tokens"]

    spoken = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "look_up", "input": {"city": "Zürich"}},
    ]
    heard = [{"type": "tool_result", "tool_use_id": "t1", "content": "sun"}]
    blocks = [*HI, {"role": "assistant", "content": spoken}, {"role": "user", "content": heard}]
    tools = [{"name": tool["name"], "input_schema": tool["input_schema"]} for tool in CUSTOM]
    told = message(caller.server, messages=blocks, tools=tools)
    usage = told.json["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == expected
    counting = {"model": "tiny", "messages": blocks, "tools": tools}
    counted = caller.server.post("/v1/messages/count_tokens", counting).json
    assert counted == {"input_tokens": expected}

    called = {"function": {"name": "look_up", "arguments": {"city": "Zürich"}}}
    turn = {"role": "assistant", "content": "I look.", "thinking": "hm", "tool_calls": [called]}
    answered = {"role": "tool", "tool_name": "look_up", "content": "sun"}
    answer = chat(caller.server, messages=[*HI, turn, answered]).json
    assert answer["prompt_eval_count"] == expected and answer["message"]["content"] == "Sunny."


@pytest.mark.parametrize("choice", ["any", "tool"])
def test_calls_that_must_be_made_hold_whatever_the_model(
    guessing: RunningServer, choice: str
) -> None:
    how: dict[str, Any] = {"type": choice, "disable_parallel_tool_use": True}
    how |= {"name": "stop"} if choice == "tool" else {}
    options = {"tool_choice": how, "temperature": 0, "tools": CUSTOM[1:]}
    whole = message(guessing, **options).json
    assert uses(whole) == [("stop", {})] and whole["stop_reason"] == "tool_use"
    streamed = message_of(named_events(message(guessing, stream=True, **options).body))
    assert uses(streamed) == uses(whole) and streamed["stop_reason"] == "tool_use"


def test_no_tool_is_called_where_none_may_be(caller: ScriptedModel) -> None:
    caller.writes(SAYS)
    told = message(caller.server, tool_choice={"type": "none"}).json
    assert uses(told) == [] and said_by(told) == SAYS


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ({"name": "a b", "input_schema": {}}, "tools[1].name"),
        ({"name": "f", "input_schema": {"type": "sound"}}, "tools[1].input_schema"),
        ({"name": "f", "input_schema": {"type": "object", "pattern": "((("}}, "tools[1]"),
    ],
)
def test_bad_tool_is_named_by_its_place(
    guessing: RunningServer, tool: dict[str, Any], said: str
) -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    answer = message(guessing, tools=[search, tool], tool_choice={"type": "any"})
    if answer.status == 200:  # what means nothing for an object may be left out
        assert "pattern" in tool["input_schema"]
        return
    assert answer.status == 400 and said in answer.json["error"]["message"], answer.body


def test_show_tells_of_tools_and_thoughts(caller: ScriptedModel) -> None:
    shown = caller.server.post("/api/show", {"model": "tiny"}).json
    assert shown["capabilities"] == ["completion", "embedding", "tools", "thinking"]


@pytest.mark.parametrize("is_thinking", [True, False])
def test_thinking_is_asked_for_in_both_dialects(caller: ScriptedModel, is_thinking: bool) -> None:
    caller.writes("Yes.")
    usages = [caller.server.chat(chat_template_kwargs={"enable_thinking": is_thinking}).json]
    expected = usages[0]["usage"]["prompt_tokens"]
    thinking = {"type": "adaptive" if is_thinking else "disabled"}
    usage = message(caller.server, tools=[], thinking=thinking).json["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == expected
    answer = chat(caller.server, tools=[], think=is_thinking).json
    assert answer["prompt_eval_count"] == expected
