"""Parts of an answer: joined, they are the text they were read from."""

from __future__ import annotations

from collections.abc import Sequence

from chairlift.server.answer_parts import (
    AnswerPart,
    ArgumentsPart,
    CallPart,
    PlainReader,
    ReasoningPart,
    TextPart,
    ToolCall,
    WholeAnswer,
    read_whole,
)


class _Scripted:
    num_reasoning_chars = 0

    def __init__(self, parts: Sequence[AnswerPart]) -> None:
        self._parts = list(parts)

    def read(self, text: str, *, is_finished: bool) -> list[AnswerPart]:
        return self._parts


def test_a_plain_text_is_all_said() -> None:
    assert read_whole(PlainReader(), "a {b}") == WholeAnswer(text="a {b}", reasoning="", calls=())
    assert PlainReader().read("", is_finished=True) == []


def test_calls_take_the_arguments_of_their_index() -> None:
    parts = [
        ReasoningPart("hm"),
        TextPart("I will"),
        CallPart(0, "id0", "f"),
        ArgumentsPart(0, '{"a"'),
        CallPart(1, "id1", "g"),
        ArgumentsPart(1, "{}"),
        ArgumentsPart(0, ":1}"),
        TextPart(" call"),
        ReasoningPart("!"),
    ]
    assert read_whole(_Scripted(parts), "") == WholeAnswer(
        text="I will call",
        reasoning="hm!",
        calls=(ToolCall("id0", "f", '{"a":1}'), ToolCall("id1", "g", "{}")),
    )
