"""Whatever a model writes and however it comes in pieces: the same answer, and never an error."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from answer_reading_cases import joined, read_cut, reader
from chairlift.server.answer_parts import WholeAnswer, read_whole
from chairlift.server.reasoning_parsers import REASONING_PARSERS
from chairlift.server.tool_parsers.families import TOOL_PARSERS

NUM_TEXTS = 3000 if os.environ.get("CHAIRLIFT_FULL") else 50

MARKERS = sorted(
    {marker for parser in TOOL_PARSERS.values() for marker in parser.markers}
    | {marker for parser in REASONING_PARSERS.values() for marker in parser.markers}
    | {"<function=", "</function>", "<parameter=", "</parameter>", "[ARGS]"}
)
SNIPPETS = [
    '{"name": "look_up", "arguments": {"city": "Paris", "days": [1, 2.5e3, null]}}',
    '{"name": "stop", "parameters": {}}', '{"arguments": "{\\"a\\": 1}", "name": "stop"}',
    '{"name": "look_up"', '"arguments": ', '{"a": "\\u00e4\\\\"}', '{"a": \'b\'}', "look_up",
    "stop",
    "[look_up(city='Pa\\'ris', days=-1, exact=None), stop()]", "[stop()", "look_up(", "city=",
    "**{'city': 'x'}", "city>\nParis\n", "look_up>", "days>7", "analysis", "final", "commentary",
    " to=functions.stop ", "json", "assistant", "\n", "  ", "; ", ",", "{", "}", "[", "]", "(", ")",
    '"', "'", "\\", "<", "<tool", "</", "😀", "e\u0301", "Some words.", "\x00", "\ud7ff",
]  # fmt: skip


def pieces() -> st.SearchStrategy[str]:
    return st.one_of(st.sampled_from(MARKERS), st.sampled_from(SNIPPETS), st.text(max_size=6))


@st.composite
def texts_and_cuts(draw: st.DrawFn) -> tuple[str, list[int]]:
    text = "".join(draw(st.lists(pieces(), max_size=12)))
    if text and draw(st.booleans()):  # broken off, or with something missing
        begin = draw(st.integers(0, len(text) - 1))
        text = text[:begin] + text[begin + draw(st.integers(1, 4)) :]
    cuts = draw(st.lists(st.integers(0, len(text)), max_size=8))
    return text, cuts


def answer(parser: str | None, reasoning: str | None, prompt: str, text: str) -> WholeAnswer:
    return read_whole(reader(parser, reasoning=reasoning, prompt=prompt), text)


def without_ids(whole: WholeAnswer) -> tuple[str, str, list[tuple[str, str]]]:
    return whole.text, whole.reasoning, [(call.name, call.arguments) for call in whole.calls]


@pytest.mark.parametrize("parser", [*TOOL_PARSERS, None])
@settings(max_examples=NUM_TEXTS, deadline=None)
@given(
    case=texts_and_cuts(),
    reasoning=st.sampled_from([None, "qwen3", "deepseek_r1", "openai_gptoss"]),
    prompt=st.sampled_from(["", "<think>\n", "<think>\n\n</think>\n\n"]),
)
def test_any_way_of_cutting_gives_the_same_answer(
    parser: str | None, case: tuple[str, list[int]], reasoning: str | None, prompt: str
) -> None:
    text, cuts = case
    whole = without_ids(answer(parser, reasoning, prompt, text))
    for places in (cuts, range(1, len(text))):
        one = reader(parser, reasoning=reasoning, prompt=prompt)
        assert without_ids(joined(read_cut(one, text, places))) == whole


@pytest.mark.parametrize("parser", ["hermes", "mistral", "qwen3_coder"])
@settings(max_examples=NUM_TEXTS, deadline=None)
@given(case=texts_and_cuts())
def test_a_text_without_calls_is_said_as_it_is(parser: str, case: tuple[str, list[int]]) -> None:
    whole = answer(parser, None, "", case[0])
    assert whole.calls or whole.text == case[0]


@settings(max_examples=NUM_TEXTS, deadline=None)
@given(case=texts_and_cuts(), prompt=st.sampled_from(["", "<think>\n"]))
def test_thoughts_and_words_are_the_text_less_markers_and_space(
    case: tuple[str, list[int]], prompt: str
) -> None:
    text = case[0]
    whole = answer(None, "qwen3", prompt, text)
    rest = text
    for marker in ("<think>", "</think>"):
        rest = rest.replace(marker, "")
    found = (whole.reasoning + whole.text).replace("<think>", "").replace("</think>", "")
    assert "".join(found.split()) == "".join(rest.split())
