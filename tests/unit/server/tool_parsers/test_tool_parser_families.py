"""What each family of models writes, and how it is read: whole, and in single characters."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import get_args

import pytest

from answer_reading_cases import Calls, calls_of, joined, read_cut, reader, tool_use
from chairlift.server.answer_parts import CallPart, read_whole
from chairlift.server.reasoning_parsers import REASONING_PARSERS
from chairlift.server.server_config import ReasoningParserName, ToolParserName
from chairlift.server.tool_parsers.families import TOOL_PARSER_NAMES, TOOL_PARSERS

LOOK = '{"city": "Paris"}'

CASES: list[tuple[str, str, str, Calls]] = [
    # -- JSON between tags
    ("hermes", "Just words, a < b.\n", "Just words, a < b.\n", []),
    (
        "hermes",
        'I look.\n<tool_call>\n{"name": "look_up", "arguments": {"city": "Paris"}}\n</tool_call>',
        "I look.",
        [("look_up", LOOK)],
    ),
    (
        "hermes",
        '<tool_call>{"name":"look_up","arguments":{"city":"Paris"}}</tool_call>\n'
        '<tool_call>{"arguments":{},"name":"stop"}</tool_call>\n',
        "",
        [("look_up", '{"city":"Paris"}'), ("stop", "{}")],
    ),
    (
        "hermes",
        '<tool_call>[{"name": "stop"}, {"name": "look_up", "arguments": {"days": 1}}]</tool_call>',
        "",
        [("stop", "{}"), ("look_up", '{"days": 1}')],
    ),
    ("hermes", '<tool_call>{"name": "stop", "arguments": null}</tool_call>', "", [("stop", "{}")]),
    (
        "hermes",
        '<tool_call>{"type": "function", "function": {"name": "look_up", "arguments": {"days": 2}}}'
        "</tool_call> Done.",
        "Done.",
        [("look_up", '{"days": 2}')],
    ),
    (
        "hermes",  # arguments as a text of JSON, and one brace too many
        '<tool_call>{"name": "look_up", "arguments": "{\\"city\\": \\"Paris\\"}"}}\n</tool_call>',
        "",
        [("look_up", LOOK)],
    ),
    (
        "hermes",  # markers and line ends within a string
        '<tool_call>{"name": "look_up", "arguments": {"city": "a\nb\\d</tool_call>"}}</tool_call>',
        "",
        [("look_up", '{"city": "a\\nb\\\\d</tool_call>"}')],
    ),
    ("hermes", "<tool_call>no JSON</tool_call>", "<tool_call>no JSON</tool_call>", []),
    ("hermes", '<tool_call>{"nam', '<tool_call>{"nam', []),
    ("hermes", '<tool_call>{"name": 5}', '<tool_call>{"name": 5}', []),
    ("hermes", "a <tool_ca", "a <tool_ca", []),
    (
        "hermes",
        "<tool_call>{\"name\": \"look_up\", \"arguments\": {'city': 'Paris'}}</tool_call>!",
        "!",
        [("look_up", "{'city': 'Paris'}}")],
    ),
    ("hermes", '<tool_call>{"name": "look_up", "arguments": {"ci', "", [("look_up", '{"ci')]),
    # -- JSON with nothing around it
    ("llama3_json", '{"name": "look_up", "parameters": {"city": "Paris"}}', "",
     [("look_up", LOOK)]),
    (
        "llama3_json",
        '<|python_tag|>{"type": "function", "name": "stop", "parameters": {}}; '
        '{"name": "look_up", "parameters": {"city": "Paris"}}',
        "",
        [("stop", "{}"), ("look_up", LOOK)],
    ),
    (
        "llama3_json",
        'I will.<|python_tag|>[{"name": "stop", "parameters": {}}, {"name": "stop"}]',
        "I will.",
        [("stop", "{}"), ("stop", "{}")],
    ),
    ("llama3_json", '{"name": "John", "parameters": {}}', '{"name": "John", "parameters": {}}', []),
    ("llama3_json", '{"city": "Paris"}', '{"city": "Paris"}', []),
    ("llama3_json", "[1, 2] is a list", "[1, 2] is a list", []),
    ("llama3_json", 'See {"name": "stop"}', 'See {"name": "stop"}', []),
    # -- Mistral
    (
        "mistral",
        'Yes. [TOOL_CALLS] [{"name": "look_up", "arguments": {"city": "Paris"}},'
        ' {"name": "stop", "arguments": {}}]',
        "Yes.",
        [("look_up", LOOK), ("stop", "{}")],
    ),
    (
        "mistral",
        '[TOOL_CALLS]look_up{"city": "Paris"}[TOOL_CALLS]stop[ARGS]{}',
        "",
        [("look_up", LOOK), ("stop", "{}")],
    ),
    ("mistral", "[TOOL_CALLS]stop[CALL_ID]abc123def[ARGS]{}", "", [("stop", "{}")]),
    ("mistral", "[TOOL_CALLS]none of that", "[TOOL_CALLS]none of that", []),
    ("mistral", "[TOOL", "[TOOL", []),
    # -- Python
    (
        "pythonic",
        "[look_up(city='Paris', days=2, exact=True, where={\"a\": [None, (1, -2.5)]}), stop()]",
        "",
        [
            (
                "look_up",
                '{"city": "Paris", "days": 2, "exact": true, "where": {"a": [null, [1, -2.5]]}}',
            ),
            ("stop", "{}"),
        ],
    ),
    (
        "pythonic",
        "[look_up(city='''it's \"\\u00e4\\x41\n''', which=.5, days=1_000)]",
        "",
        [("look_up", '{"city": "it\'s \\"äA\\n", "which": 0.5, "days": 1000}')],
    ),
    (
        "pythonic",
        "<|tool_call_start|>[look_up(**{'city': 'Paris'})]<|tool_call_end|>There.",
        "There.",
        [("look_up", LOOK)],
    ),
    (
        "pythonic",
        "<|python_start|>[stop()]<|python_end|>",
        "",
        [("stop", "{}")],
    ),
    ("pythonic", "[1, 2] is a list", "[1, 2] is a list", []),
    ("pythonic", "[unheard_of(a=1)]", "[unheard_of(a=1)]", []),
    ("pythonic", "See [stop()]", "See [stop()]", []),
    ("pythonic", "[look_up(days=", "", [("look_up", '{"days": ')]),
    # -- tags of functions and parameters
    (
        "qwen3_coder",
        "Well.\n<tool_call>\n<function=look_up>\n<parameter=city>\nNew\nYork\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n"
        "<parameter=where>\n{'a': 1}\n</parameter>\n</function>\n</tool_call>",
        "Well.",
        [("look_up", '{"city": "New\\nYork", "days": 3, "exact": true, "where": {"a": 1}}')],
    ),
    ("qwen3_coder", "<function=stop></function>", "", [("stop", "{}")]),
    (
        "qwen3_coder",  # types that the schema leaves open, and a number where it says string
        "<function=look_up><parameter=city>7</parameter><parameter=which>7</parameter>"
        "<parameter=days>many</parameter><parameter=other>[1]</parameter></function>",
        "",
        [("look_up", '{"city": "7", "which": 7, "days": "many", "other": [1]}')],
    ),
    (
        "qwen3_coder",
        '<tool_call>\n<function=look_up>\n{"city": "Paris"}\n</function>\n</tool_call>',
        "",
        [("look_up", LOOK)],
    ),
    (
        "qwen3_coder",
        '<tool_call>{"name": "look_up", "arguments": {"city": "Paris"}}</tool_call>',
        "",
        [("look_up", LOOK)],
    ),
    (
        "glm45",
        "<tool_call>look_up\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "<arg_key>days</arg_key><arg_value>2</arg_value>\n</tool_call><tool_call>stop</tool_call>",
        "",
        [("look_up", '{"city": "Paris", "days": 2}'), ("stop", "{}")],
    ),
    ("qwen3_coder", "<tool_call>?", "<tool_call>?", []),
    ("qwen3_coder", "<function=>", "<function=>", []),
    (
        "qwen3_coder",
        "<function=look_up><parameter=city>Par",
        "",
        [("look_up", '{"city": "Par')],
    ),
    # -- channels
    ("openai", "<|channel|>final<|message|>Hello.<|return|>", "Hello.", []),
    ("openai", "Hello.", "Hello.", []),
    (
        "openai",
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary"
        ' to=functions.look_up <|constrain|>json<|message|>{"city": "Paris"}<|call|>',
        "I look.",
        [("look_up", LOOK)],
    ),
    (
        "openai",
        "<|start|>assistant to=functions.stop<|channel|>commentary json<|message|><|call|>",
        "",
        [("stop", "{}")],
    ),
    ("openai", "<|channel|>analysis", "", []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("parser", "text", "said", "calls"), CASES, ids=[f"{c[0]}-{c[1][:40]!r}" for c in CASES]
)
def test_a_familys_answers(parser: str, text: str, said: str, calls: Calls) -> None:
    whole = read_whole(reader(parser), text)
    assert (whole.text, calls_of(whole)) == (said, calls)
    single = joined(read_cut(reader(parser), text, range(1, len(text))))
    assert (single.text, calls_of(single)) == (said, calls)


def test_every_family_has_cases_with_and_without_calls() -> None:
    for name in TOOL_PARSERS:
        mine = [calls for parser, _, _, calls in CASES if parser == name]
        assert any(mine) and not all(mine)


def test_names_on_the_command_line_are_those_of_the_parsers() -> None:
    assert set(get_args(ToolParserName)) == {"auto", "none", *TOOL_PARSER_NAMES}
    assert set(get_args(ReasoningParserName)) == {"auto", "none", *REASONING_PARSERS}


def test_ids_are_as_the_templates_of_a_family_want_them() -> None:
    for name, pattern in (("hermes", r"call_[0-9a-f]{24}"), ("mistral", r"[0-9a-f]{9}")):
        text = {"hermes": '<tool_call>{"name": "stop"}' * 2, "mistral": "[TOOL_CALLS]stop{}" * 2}
        ids = [call.id for call in read_whole(reader(name), text[name]).calls]
        assert len(set(ids)) == 2 and all(re.fullmatch(pattern, call_id) for call_id in ids)


def test_calls_beyond_the_first_are_left_out_where_they_are_not_wanted() -> None:
    text = '<tool_call>{"name": "stop"}</tool_call><tool_call>{"name": "look_up"}</tool_call>'
    only = reader("hermes", use=tool_use(is_parallel=False))
    assert calls_of(read_whole(only, text)) == [("stop", "{}")]


def test_a_call_is_told_as_soon_as_its_name_is_there() -> None:
    one = reader("hermes")
    assert one.read('<tool_call>{"name": "stop', is_finished=False) == []
    (call,) = one.read('"', is_finished=False)
    assert isinstance(call, CallPart) and call.name == "stop"
    (arguments,) = one.read(', "arguments": {"a": "b', is_finished=False)
    assert arguments.text == '{"a": "b'  # type: ignore[union-attr]


def test_strings_between_tags_are_told_as_they_come() -> None:
    one = reader("qwen3_coder")
    parts = one.read("<function=look_up><parameter=city>\nNew ", is_finished=False)
    assert parts[1].text == '{"city": "New '  # type: ignore[union-attr]
    assert one.read("York\n</para", is_finished=False)[0].text == "York"  # type: ignore[union-attr]
    assert one.read("meter>", is_finished=False)[0].text == '"'  # type: ignore[union-attr]


def test_what_is_no_part_of_a_marker_is_not_held_back() -> None:
    one = reader("hermes")
    assert [part.text for part in one.read("a <tool", is_finished=False)] == ["a"]  # type: ignore[union-attr]
    assert [part.text for part in one.read("box> b", is_finished=False)] == [" <toolbox> b"]  # type: ignore[union-attr]


def num_calls(run: Callable[[], object]) -> int:
    """How many Python functions, resumed generators among them, it takes."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("parser", TOOL_PARSERS)
def test_long_answers_take_work_in_proportion(parser: str) -> None:
    """Opened markers over and over, and one endless string: each character is read once."""
    markers = [*TOOL_PARSERS[parser].markers, '{"name": "stop", "arguments": "', "[stop(a='"]
    for marker in markers:

        def read(length: int, marker: str = marker) -> None:
            text = marker * (length // len(marker))
            joined(read_cut(reader(parser), text, range(50, len(text), 50)))

        short, long = num_calls(lambda: read(2_000)), num_calls(lambda: read(16_000))
        assert long < 10 * short, (marker, short, long)


def test_arguments_are_json_however_they_were_written() -> None:
    for text in (
        '<tool_call>{"name": "stop", "arguments": {"a": "it\\\'s \\q\ttab"}}</tool_call>',
        '<tool_call>{"name": "stop", "arguments": ""}</tool_call>',
    ):
        ((_, arguments),) = calls_of(read_whole(reader("hermes"), text))
        assert isinstance(json.loads(arguments), dict)
