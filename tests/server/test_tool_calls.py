"""Calls and thoughts over HTTP: a model that writes a given text byte by byte, for each family."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chairlift.engine.engine import Engine
from engines import load
from http_harness import Answer, RunningServer, serving_engine
from scripted_model import ScriptedModel, engine_of_its_own, roomy_copy, scripted_model

TURNS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}CALL {{ c.function | tojson }}{% endfor %}\n{% endfor %}"
)
TEMPLATES = {
    "hermes": TURNS + "{% if tools %}<tools>{{ tools | tojson }}</tools> <tool_call>{% endif %}",
    "llama3_json": TURNS + '{% if tools %}{"name": function name, "parameters": {}}{% endif %}',
    "mistral": TURNS + "[AVAILABLE_TOOLS]{{ tools }} [TOOL_CALLS]",
    "pythonic": TURNS + "{% if tools %}[func_name1(params_name1=params_value1)]{% endif %}",
    "qwen3_coder": TURNS + "{% if tools %}<tool_call><function=f>{% endif %}",
    "openai": TURNS + "{% if tools %}<|start|>assistant<|channel|>analysis{% endif %}",
}
"""A chat template that each family is known by."""
SAYS = {
    "hermes": '<tool_call>\n{"name": "look_up", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>',
    "llama3_json": '{"name": "look_up", "parameters": {"city": "Zürich"}}; {"name": "stop"}',
    "mistral": '[TOOL_CALLS][{"name": "look_up", "arguments": {"city": "Zürich"}},'
    '{"name": "stop", "arguments": {}}]',
    "pythonic": "[look_up(city='Zürich'), stop()]",
    "qwen3_coder": "<tool_call>\n<function=look_up>\n<parameter=city>\nZürich\n</parameter>\n"
    "</function>\n</tool_call>\n<function=stop></function>",
    "openai": "<|channel|>commentary to=functions.look_up<|message|>"
    '{"city": "Zürich"}<|call|><|channel|>commentary to=functions.stop<|message|>{}',
}
CALLS = [("look_up", {"city": "Zürich"}), ("stop", {})]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks a city up",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]
LONG = {"max_tokens": 400}


@pytest.fixture(scope="session")
def build_roomy(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Engine]:
    """Engines over the tiny model with a context that holds tools spelled in bytes."""
    loaded = load(roomy_copy(tiny_folder("llama3"), tmp_path_factory.mktemp("roomy") / "tiny"))
    return lambda: engine_of_its_own(loaded)


@pytest.fixture(scope="module", params=list(TEMPLATES))
def family(
    request: pytest.FixtureRequest, build_roomy: Callable[..., Engine]
) -> Iterator[tuple[str, ScriptedModel]]:
    """Each family's name, and a server whose chat template tells of it."""
    name: str = request.param
    with scripted_model(build_roomy, chat_template=TEMPLATES[name]) as model:
        yield name, model


@pytest.fixture(scope="module")
def thinker(build_roomy: Callable[..., Engine]) -> Iterator[ScriptedModel]:
    """A model that thinks before it speaks, and calls in the way of Hermes."""
    template = TEMPLATES["hermes"] + (
        "{% if enable_thinking is false %}<think>\n\n</think>\n{% elif thinking %}<think>\n"
        "{% endif %}"
    )
    with scripted_model(build_roomy, chat_template=template) as model:
        yield model


@pytest.fixture(scope="module")
def plain(build_roomy: Callable[..., Engine]) -> Iterator[ScriptedModel]:
    """A model whose chat template knows nothing of tools."""
    with scripted_model(build_roomy) as model:
        yield model


def deltas_of(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200 and answer.events[-1] == "[DONE]", answer.body
    return [event["choices"][0]["delta"] for event in answer.events[:-1] if event["choices"]]


def finish_of(answer: Answer) -> str:
    (reason,) = [
        reason
        for event in answer.events[:-1]
        for choice in event["choices"]
        if (reason := choice["finish_reason"]) is not None
    ]
    return str(reason)


def accumulated(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a strict client puts together."""
    assert deltas[0]["role"] == "assistant"
    assert all("role" not in delta for delta in deltas[1:])
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    for delta in deltas:
        message["content"] += delta.get("content", "")
        message["reasoning"] += delta.get("reasoning", "")
        assert delta.get("reasoning") == delta.get("reasoning_content")
        for call in delta.get("tool_calls", ()):
            calls = message["tool_calls"]
            if "id" in call:
                assert call["index"] == len(calls) and call["type"] == "function"
                assert call["function"]["arguments"] == ""
                calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
            else:
                assert call["index"] == len(calls) - 1 and list(call["function"]) == ["arguments"]
                calls[-1]["arguments"] += call["function"]["arguments"]
    return message


def calls_in(message: dict[str, Any]) -> list[tuple[str, Any]]:
    functions = [call.get("function", call) for call in message.get("tool_calls", ())]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


def test_calls_are_the_same_streamed_and_whole(family: tuple[str, ScriptedModel]) -> None:
    name, model = family
    model.writes(SAYS[name])
    whole = model.server.chat(tools=TOOLS, **LONG).json["choices"][0]
    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"]["content"] is None and whole["message"]["refusal"] is None
    assert calls_in(whole["message"]) == CALLS
    assert len({call["id"] for call in whole["message"]["tool_calls"]}) == 2
    streamed = model.server.chat(tools=TOOLS, stream=True, **LONG)
    message = accumulated(deltas_of(streamed))
    assert calls_in(message) == CALLS and message["content"] == ""
    assert finish_of(streamed) == "tool_calls"
    written = [call["function"]["arguments"] for call in whole["message"]["tool_calls"]]
    assert [call["arguments"] for call in message["tool_calls"]] == written


def test_words_stay_words(family: tuple[str, ScriptedModel]) -> None:
    name, model = family
    text = " No call: [1] < {2} <tool \n"
    model.writes(f"<|channel|>final<|message|>{text}" if name == "openai" else text)
    whole = model.server.chat(tools=TOOLS, **LONG).json["choices"][0]
    assert whole["message"]["content"] == text and whole["finish_reason"] == "stop"
    assert "tool_calls" not in whole["message"] and "reasoning" not in whole["message"]
    assert (
        accumulated(deltas_of(model.server.chat(tools=TOOLS, stream=True, **LONG)))["content"]
        == text
    )


def test_nothing_is_a_call_without_tools(family: tuple[str, ScriptedModel]) -> None:
    name, model = family
    model.writes(SAYS[name])
    for options in ({}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}):
        choice = model.server.chat(**options, **LONG).json["choices"][0]
        assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"
        assert name == "openai" or choice["message"]["content"] == SAYS[name]


def test_at_most_one_call_where_several_are_not_wanted(family: tuple[str, ScriptedModel]) -> None:
    name, model = family
    model.writes(SAYS[name])
    options = {"tools": TOOLS, "parallel_tool_calls": False, **LONG}
    assert calls_in(model.server.chat(**options).json["choices"][0]["message"]) == CALLS[:1]
    streamed = model.server.chat(stream=True, **options)
    assert calls_in(accumulated(deltas_of(streamed))) == CALLS[:1]


def test_an_answer_cut_off_within_a_call(family: tuple[str, ScriptedModel]) -> None:
    name, model = family
    model.writes(SAYS[name])
    size = len(SAYS[name].partition("ü")[0].encode())
    options = {"tools": TOOLS, "max_tokens": size}
    whole = model.server.chat(**options).json["choices"][0]
    assert whole["finish_reason"] == "length"
    ((_, arguments),) = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in whole["message"]["tool_calls"]
    ]
    assert arguments == '{"city": "Z'
    streamed = model.server.chat(stream=True, **options)
    message = accumulated(deltas_of(streamed))
    assert message["tool_calls"][0]["arguments"] == arguments and finish_of(streamed) == "length"


def test_every_choice_has_calls_of_its_own(family: tuple[str, ScriptedModel]) -> None:
    name, model = family
    model.writes(SAYS[name])
    options = {"tools": TOOLS, "n": 3, "temperature": 1, **LONG}
    choices = model.server.chat(**options).json["choices"]
    assert [calls_in(choice["message"]) for choice in choices] == [CALLS] * 3
    ids = [call["id"] for choice in choices for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 6
    events = model.server.chat(stream=True, **options).events[:-1]
    for index in range(3):
        mine = [e["choices"][0] for e in events if e["choices"][0]["index"] == index]
        assert calls_in(accumulated([choice["delta"] for choice in mine])) == CALLS


def test_text_in_front_of_calls_is_streamed_at_once(thinker: ScriptedModel) -> None:
    thinker.writes("I look it up. " + SAYS["hermes"])
    message = thinker.server.chat(tools=TOOLS, **LONG).json["choices"][0]["message"]
    assert message["content"] == "I look it up." and calls_in(message) == CALLS
    deltas = deltas_of(thinker.server.chat(tools=TOOLS, stream=True, **LONG))
    assert "I look it up.".startswith(deltas[0]["content"]) and deltas[0]["content"]
    assert accumulated(deltas)["content"] == "I look it up."


# -- calls that must be -----------------------------------------------------------------------
CHOOSE = {
    "type": "function",
    "function": {
        "name": "choose",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Paris", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 3},
            },
            "required": ["city", "days"],
        },
    },
}
NAMED = {"type": "function", "function": {"name": "choose"}}


def check_chosen(message: dict[str, Any], num_calls: int = 1) -> None:
    assert message["content"] in (None, "")
    calls = calls_in(message)
    assert 1 <= len(calls) <= num_calls
    for name, arguments in calls:
        assert name == "choose" and set(arguments) == {"city", "days"}
        assert arguments["city"] in ("Paris", "Rome") and arguments["days"] in (1, 2, 3)


@pytest.fixture(scope="module", params=[name for name in TEMPLATES if name != "openai"])
def guesser(
    request: pytest.FixtureRequest, build_roomy: Callable[..., Engine]
) -> Iterator[RunningServer]:
    """A model that writes at random, in each family but one, whose thoughts would never end."""
    with serving_engine(build_roomy, chat_template=TEMPLATES[request.param]) as server:
        yield server


def test_required_calls_hold_whatever_the_model(guesser: RunningServer) -> None:
    options = {"tools": [CHOOSE], "tool_choice": "required", "temperature": 1, "max_tokens": 1500}
    whole = guesser.chat(seed=1, **options).json["choices"][0]
    check_chosen(whole["message"], num_calls=8)
    assert whole["finish_reason"] == "tool_calls"
    streamed = guesser.chat(seed=1, stream=True, **options)
    message = accumulated(deltas_of(streamed))
    check_chosen(message, num_calls=8)
    assert calls_in(message) == calls_in(whole["message"])
    assert finish_of(streamed) == "tool_calls"


def test_a_named_tool_is_called_once_and_that_is_no_news(guesser: RunningServer) -> None:
    options = {"tools": [TOOLS[0], CHOOSE], "tool_choice": NAMED, "max_tokens": 500}
    whole = guesser.chat(**options, temperature=1, n=2, seed=2).json["choices"]
    for choice in whole:
        check_chosen(choice["message"])
        assert choice["finish_reason"] == "stop"
    streamed = guesser.chat(**options, stream=True)
    check_chosen(accumulated(deltas_of(streamed)))
    assert finish_of(streamed) == "stop"


def test_one_call_is_enough_where_several_are_not_wanted(guesser: RunningServer) -> None:
    options = {"tools": [CHOOSE], "tool_choice": "required", "parallel_tool_calls": False}
    for seed in range(3):
        choice = guesser.chat(**options, max_tokens=500, temperature=1, seed=seed).json["choices"][
            0
        ]
        check_chosen(choice["message"])


def test_tokens_of_calls_have_log_probabilities(guesser: RunningServer) -> None:
    options = {
        "tools": [CHOOSE], "tool_choice": NAMED, "max_tokens": 500, "logprobs": True,
        "top_logprobs": 1, "temperature": 0,
    }  # fmt: skip
    answer = guesser.chat(**options).json
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"]
    events = guesser.chat(**options, stream=True).events[:-1]
    lists = [choice["logprobs"] for event in events for choice in event["choices"]]
    assert [entry for part in lists if part for entry in part["content"]] == entries


def test_a_strict_tool_leaves_words_alone(plain: ScriptedModel) -> None:
    function = {**CHOOSE["function"], "strict": True}  # type: ignore[dict-item]
    tools = [{"type": "function", "function": function}]
    plain.writes("Just words: {1} <tool>")
    message = plain.server.chat(tools=tools, **LONG).json["choices"][0]["message"]
    assert message["content"] == "Just words: {1} <tool>"
    plain.writes('<tool_call>\n{"name": "choose", "arguments": {"city": "Oslo"}}\n</tool_call>')
    assert plain.server.chat(tools=tools, **LONG).status >= 400  # the script broke the grammar


def test_calls_or_text_of_a_schema(thinker: ScriptedModel) -> None:
    """With both, an answer is one or the other; neither binds what is thought before."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    options = {
        "tools": [CHOOSE],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        **LONG,
    }
    thinker.writes('<think>Hm {</think>\n\n{"a": 1}')
    choice = thinker.server.chat(**options).json["choices"][0]
    assert choice["message"]["content"] == '{"a": 1}' and choice["finish_reason"] == "stop"
    assert choice["message"]["reasoning"] == "Hm {"
    call = '<tool_call>\n{"name": "choose", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'
    thinker.writes(f"<think>Hm</think>{call}")
    choice = thinker.server.chat(**options).json["choices"][0]
    check_chosen(choice["message"])
    assert choice["finish_reason"] == "tool_calls"
    thinker.writes("<think>Hm</think>Words")
    assert thinker.server.chat(**options).status >= 400


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"guided_regex": "[a-c]/[0-9]{2}"}, "b/42"),
        ({"guided_choice": ["yes", 'n"o']}, 'n"o'),
        ({"guided_grammar": 'start: "x" y\ny: /[0-9]/'}, "x7"),
        ({"guided_grammar": 'root ::= "x" [0-9]'}, "x7"),
        ({"response_format": {"type": "json_object"}}, '{"a": [1]}'),
        ({"structured_outputs": {"json": {}, "disable_any_whitespace": True}}, '{"a":1}'),
    ],
)
def test_thoughts_are_free_of_every_kind_of_grammar(
    thinker: ScriptedModel, asked: dict[str, Any], text: str
) -> None:
    for template_options, thoughts in (
        ({}, "<think>\n{ 7 x\n</think>\n\n"),
        ({"thinking": True}, "{ 7 x</think>"),
        ({}, ""),
    ):
        thinker.writes(thoughts + text)
        options = {"chat_template_kwargs": template_options, **asked, **LONG}
        answer = thinker.server.chat(**options)
        assert answer.status == 200, answer.body
        message = answer.json["choices"][0]["message"]
        assert message["content"] == text
        assert message.get("reasoning", "") == ("{ 7 x" if thoughts else "")


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "string", "pattern": "(?=x)"}}, "required": ["a"]},
        {"properties": {"a": {"type": "integer", "minimum": 5, "maximum": 1}}, "required": ["a"]},
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused_where_it_must_be(
    plain: ScriptedModel, schema: dict[str, Any]
) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    answer = plain.server.chat(tools=tools, tool_choice="required")
    assert answer.status == 400 and answer.error["param"] == "tools", answer.body
    plain.writes("Words")
    assert plain.server.chat(tools=tools).status == 200


# -- thoughts ------------------------------------------------------------------------------------
@pytest.mark.parametrize("opened", [False, True])
def test_thoughts_words_and_calls(thinker: ScriptedModel, opened: bool) -> None:
    thoughts = "" if opened else "<think>\n"
    thoughts += "Hm, ü <tool_call>?\n</think>"
    thinker.writes(f"{thoughts}\n\nI look. {SAYS['hermes']}")
    options = {"tools": TOOLS, "chat_template_kwargs": {"thinking": opened}, **LONG}
    answer = thinker.server.chat(**options).json
    message = answer["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"] == "Hm, ü <tool_call>?"
    assert message["content"] == "I look." and calls_in(message) == CALLS
    details = answer["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": len(thoughts.encode())}
    streamed = thinker.server.chat(
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        **options,
    )
    streamed_message = accumulated(deltas_of(streamed))
    assert streamed_message["reasoning"] == message["reasoning"]
    assert streamed_message["content"] == "I look." and calls_in(streamed_message) == CALLS
    assert streamed.events[-2]["usage"] == answer["usage"] | {
        "prompt_tokens_details": streamed.events[-2]["usage"]["prompt_tokens_details"]
    }
    counts = [
        event["usage"]["completion_tokens_details"]["reasoning_tokens"]
        for event in streamed.events[:-1]
    ]
    assert counts == sorted(counts)


def test_thoughts_that_never_end(thinker: ScriptedModel) -> None:
    thinker.writes("<think>Hm, hm")
    choice = thinker.server.chat(**LONG).json["choices"][0]
    assert choice["message"]["content"] == "" and choice["message"]["reasoning"] == "Hm, hm"
    assert accumulated(deltas_of(thinker.server.chat(stream=True, **LONG)))["reasoning"] == "Hm, hm"


def test_an_answer_without_thoughts(thinker: ScriptedModel) -> None:
    thinker.writes("Yes. <think>")
    options = {"chat_template_kwargs": {"enable_thinking": False}, **LONG}
    answer = thinker.server.chat(**options).json
    assert answer["choices"][0]["message"] == {
        "role": "assistant", "content": "Yes. <think>", "refusal": None,
    }  # fmt: skip
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_thoughts_of_earlier_turns_reach_the_template(thinker: ScriptedModel) -> None:
    served = thinker.server.serving.engine()[1]
    for name in ("reasoning", "reasoning_content"):
        answer = thinker.server.chat(
            messages=[
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": "y", name: "z"},
                {"role": "user", "content": "x"},
            ]
        )
        assert answer.status == 200 and "x-chairlift-ignored" not in answer.headers
    assert served.reading.reasoning is not None and served.reading.reasoning.name == "qwen3"


@pytest.mark.parametrize("parser", ["none", "deepseek_r1"])
def test_a_reasoning_parser_can_be_forced(build_roomy: Callable[..., Engine], parser: str) -> None:
    with scripted_model(build_roomy, reasoning_parser=parser) as model:
        model.writes("Hm</think>Yes")
        message = model.server.chat(**LONG).json["choices"][0]["message"]
    if parser == "none":
        assert message["content"] == "Hm</think>Yes" and "reasoning" not in message
    else:
        assert message["content"] == "Yes" and message["reasoning"] == "Hm"


# -- which parser --------------------------------------------------------------------------------
def prompt_of(server: RunningServer, **body: Any) -> str:
    ids = server.post("/tokenize", body).json["tokens"]
    return str(server.post("/detokenize", {"tokens": ids}).json["prompt"])


def test_a_template_without_tools_gets_them_as_text(plain: ScriptedModel) -> None:
    server = plain.server
    prompt = prompt_of(server, tools=TOOLS, messages=[{"role": "user", "content": "Hi"}])
    assert prompt.startswith("system: ") and "user: Hi" in prompt
    assert '"name": "look_up"' in prompt and "<tool_call>" in prompt
    earlier = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Wait.", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "stop", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "done"},
        {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "too"}]},
    ]  # fmt: skip
    prompt = prompt_of(server, messages=earlier)
    assert prompt == (
        'system: Be kind.\nuser: Hi\nassistant: Wait.\n<tool_call>\n{"name": "stop",'
        ' "arguments": {}}\n</tool_call>\nuser: <tool_response>\ndone\n</tool_response>\n'
        "<tool_response>\ntoo\n</tool_response>\nassistant:"
    )
    assert prompt_of(server, messages=earlier, tools=TOOLS).startswith("system: Be kind.\n\n")
    plain.writes(SAYS["hermes"])
    assert calls_in(server.chat(tools=TOOLS, **LONG).json["choices"][0]["message"]) == CALLS


def test_a_template_that_refuses_a_system_message_is_told_by_the_user(
    build_roomy: Callable[..., Engine],
) -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + TURNS
    with scripted_model(build_roomy, chat_template=template) as model:
        model.writes(SAYS["hermes"])
        choice = model.server.chat(tools=TOOLS, **LONG).json["choices"][0]
        assert calls_in(choice["message"]) == CALLS
        body = {"tools": TOOLS, "messages": [{"role": "user", "content": "Hi"}]}
        prompt = prompt_of(model.server, **body)
        assert prompt.startswith("user: You can call") and prompt.endswith("\n\nHi")


def test_a_template_with_tools_gets_them_as_they_are(thinker: ScriptedModel) -> None:
    body = {"tools": TOOLS, "messages": [{"role": "user", "content": "Hi"}]}
    prompt = prompt_of(thinker.server, **body)
    shown = json.loads(prompt.partition("<tools>")[2].partition("</tools>")[0])
    assert shown[0] == TOOLS[0] and shown[1]["function"]["name"] == "stop"
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    earlier = [{"role": "assistant", "content": None, "tool_calls": calls}]
    assert 'CALL {"name": "f", "arguments": {"a": 1}}' in prompt_of(
        thinker.server, messages=earlier
    )


UNKNOWN = TURNS + "{% if tools %}<unheard_of>{% endif %}"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"chat_template": UNKNOWN}, "tools"),
        ({"tool_parser": "none"}, "tools"),
        ({"enable_auto_tool_choice": False}, "tool_choice"),
    ],
)
def test_calls_that_could_not_be_told_from_text_are_refused(
    build_roomy: Callable[..., Engine], options: dict[str, Any], param: str
) -> None:
    with scripted_model(build_roomy, **options) as model:
        model.writes("Yes")
        answer = model.server.chat(tools=TOOLS)
        assert answer.status == 400 and answer.error["param"] == param
        assert model.server.chat(tools=TOOLS, tool_choice="none").status == 200


def test_a_tool_parser_can_be_forced(build_roomy: Callable[..., Engine]) -> None:
    with scripted_model(build_roomy, chat_template=UNKNOWN, tool_parser="pythonic") as model:
        model.writes(SAYS["pythonic"])
        choice = model.server.chat(tools=TOOLS, **LONG).json["choices"][0]
    assert calls_in(choice["message"]) == CALLS


# -- markers that are control tokens -------------------------------------------------------------
def test_markers_that_are_control_tokens_are_seen_and_not_shown(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """The beginning token of a copy of the tiny model becomes a marker of calls."""
    folder = roomy_copy(tiny_folder("llama3"), tmp_path / "marked")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        path = folder / file
        path.write_text(path.read_text().replace("<|bos|>", "<tool_call>"))
    loaded = load(folder)

    with scripted_model(
        lambda: engine_of_its_own(loaded), chat_template=TEMPLATES["hermes"]
    ) as model:
        assert model.server.engine.model.tokenizer.special_id("<tool_call>") == 0
        model.writes(SAYS["hermes"], parse_special=True)
        assert model.token_ids[0] == 0
        message = model.server.chat(tools=TOOLS, **LONG).json["choices"][0]["message"]
        assert calls_in(message) == CALLS and message["content"] is None
        plain = model.server.chat(**LONG).json["choices"][0]["message"]["content"]
        assert "<tool_call>" not in plain and plain.startswith('\n{"name"')
        shown = model.server.chat(skip_special_tokens=False, **LONG).json["choices"][0]
        assert shown["message"]["content"].startswith("<tool_call>")


def test_tools_cannot_write_control_tokens(thinker: ScriptedModel) -> None:
    """Neither in a description, nor as the name of an argument, whatever it is called."""
    served = thinker.server.serving.engine()[1]
    spelled = "<|eos|>"
    schema = {"properties": {spelled: {"description": spelled}, "role": {"const": spelled}}}
    function = {"name": "f", "description": spelled, "parameters": schema}
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": function}],
    }
    answer = thinker.server.post("/tokenize", body).json
    assert served.tokenizer.special_id(spelled) not in answer["tokens"]
    assert prompt_of(thinker.server, **body).count(spelled) == 4
