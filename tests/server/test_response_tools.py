"""Calls and thoughts as items of a response: a model that writes a given text byte by byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from chairlift.engine.engine import Engine
from engines import load, make_engine
from http_harness import Answer
from response_events import accumulated, without_names
from scripted_model import ScriptedModel, roomy_copy, scripted_model

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: "
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}CALL {{ c.function | tojson }}{% endfor %}\n{% endfor %}"
    "{% if tools %}<tools>{{ tools | tojson }}</tools> <tool_call>{% endif %}"
    "{% if thinking %}<think>\n{% endif %}"
)
LOOK_UP: dict[str, Any] = {
    "type": "function", "name": "look_up", "description": "Looks a city up",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}  # fmt: skip
TOOLS = [LOOK_UP, {"type": "web_search"}, {"type": "function", "name": "stop"}]
CALLS = (
    '<tool_call>\n{"name": "look_up", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def model(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ScriptedModel]:
    """It thinks and calls in the way of Hermes."""
    loaded = load(roomy_copy(tiny_folder("llama3"), tmp_path_factory.mktemp("wide") / "tiny"))

    def build() -> Engine:
        return make_engine(loaded, num_blocks=1000)

    with scripted_model(build, chat_template=TEMPLATE) as scripted:
        yield scripted


def respond(model: ScriptedModel, text: str, **fields: Any) -> Answer:
    model.writes(text)
    body = {"model": "tiny", "input": "hi", "max_output_tokens": 400, "tools": TOOLS}
    return model.server.post("/v1/responses", {**body, **fields})


def both(model: ScriptedModel, text: str, **fields: Any) -> dict[str, Any]:
    """The response, streamed and whole, and the same."""
    answer = respond(model, text, stream=True, **fields)
    assert answer.status == 200, answer.body
    final = accumulated(answer.body)
    whole = respond(model, text, **fields).json
    ids = {item["call_id"] for item in (*final["output"], *whole["output"]) if "call_id" in item}
    calls = [item for item in final["output"] if "call_id" in item]
    assert len(ids) == 2 * len(calls), "every call has an id of its own"
    for item in (*final["output"], *whole["output"]):
        item.pop("call_id", None)
    assert without_names(final) == without_names(whole)
    return final


def test_calls_are_items(model: ScriptedModel) -> None:
    final = both(model, f"I will.\n{CALLS}")
    assert final["status"] == "completed"
    message, look_up, stop = final["output"]
    assert message["content"][0]["text"].strip() == "I will."
    assert (look_up["name"], json.loads(look_up["arguments"])) == ("look_up", {"city": "Zürich"})
    assert (stop["name"], json.loads(stop["arguments"])) == ("stop", {})
    assert {item["status"] for item in final["output"]} == {"completed"}
    names = [tool["name"] for tool in final["tools"]]
    assert names == ["look_up", "stop"] and final["tool_choice"] == "auto"


def test_a_call_that_was_cut_off_is_incomplete(model: ScriptedModel) -> None:
    final = both(model, CALLS, max_output_tokens=60)
    assert final["status"] == "incomplete"
    call = final["output"][-1]
    assert call["type"] == "function_call" and call["status"] == "incomplete"


def test_thoughts_are_items(model: ScriptedModel) -> None:
    text = f"<think>\nhm, é</think>\n\nso{CALLS}"
    final = both(model, text)
    kinds = [item["type"] for item in final["output"]]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    (part,) = final["output"][0]["content"]
    assert part["text"].strip() == "hm, é" and final["output"][0]["summary"] == []
    details = final["usage"]["output_tokens_details"]
    assert 5 < details["reasoning_tokens"] < final["usage"]["output_tokens"]
    summed = both(model, text, reasoning={"summary": "auto"})
    assert summed["output"][0]["summary"] == [{"type": "summary_text", "text": part["text"]}]
    assert summed["output"][0]["content"] == [] and summed["reasoning"]["summary"] == "auto"


def test_outputs_of_calls_go_back(model: ScriptedModel) -> None:
    """Spelled out, by reference or after the response that is kept: the same prompt."""
    first = respond(model, f"<think>\nhm</think>\n\nso{CALLS}").json
    calls = [item for item in first["output"] if item["type"] == "function_call"]
    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": f"result {n}"}
        for n, call in enumerate(calls)
    ]
    user = {"role": "user", "content": "hi"}
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    ways: list[dict[str, Any]] = [
        {"input": [user, *first["output"], *outputs]},
        {"input": [user, *references, *outputs]},
        {"input": outputs, "previous_response_id": first["id"]},
    ]
    answers = [respond(model, "done", **way).json for way in ways]
    counts = {answer["usage"]["input_tokens"] for answer in answers}
    assert len(counts) == 1 and min(counts) > first["usage"]["input_tokens"]
    assert all(answer["output"][0]["content"][0]["text"] == "done" for answer in answers)
    missing = respond(model, "x", input=[user, *outputs])
    assert missing.status == 400 and missing.error["param"] == "input"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}, {"type": "function", "name": "a b"}]}, "tools[1].name"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {"type": "string"}}]},
         "tools[0].parameters"),
        ({"tools": [LOOK_UP, LOOK_UP]}, "tools[1].name"),
        ({"tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
    ],
)  # fmt: skip
def test_bad_tools_are_named_where_they_stand(
    model: ScriptedModel, fields: dict[str, Any], param: str
) -> None:
    answer = respond(model, "x", **fields)
    assert answer.status == 400 and answer.error["param"] == param, answer.body


def test_the_official_client_parses_calls(model: ScriptedModel) -> None:
    url = f"http://127.0.0.1:{model.server.port}/v1"
    model.writes(CALLS)
    options: dict[str, Any] = {"model": "tiny", "input": "hi", "tools": [LOOK_UP]}
    with openai.OpenAI(base_url=url, api_key="x", max_retries=0) as client:
        with client.responses.stream(**options) as stream:
            pieces = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
            final = stream.get_final_response()
        call = final.output[0]
        assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Zürich"}
        assert "".join(pieces).startswith(call.arguments)
        whole = client.responses.create(**options).output[0]
        assert whole.type == "function_call" and whole.arguments == call.arguments


def test_no_scripted_response_leaves_anything(model: ScriptedModel) -> None:
    model.server.check_idle()
