"""Reads texts as answers, whole or cut, for tests of parsers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chairlift.server.answer_parts import (
    AnswerPart,
    ArgumentsPart,
    CallPart,
    PartReader,
    WholeAnswer,
    read_whole,
)
from chairlift.server.answer_reading import AnswerReading
from chairlift.server.protocol.tools import FunctionTool, ToolChoice, ToolUse
from chairlift.server.reasoning_parsers import REASONING_PARSERS
from chairlift.server.tool_parsers.families import TOOL_PARSER_NAMES

TOOLS = [
    FunctionTool.model_validate({"type": "function", "function": function})
    for function in (
        {
            "name": "look_up",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "exact": {"type": ["boolean", "null"]},
                    "where": {"type": "object"},
                    "which": {"anyOf": [{"type": "string"}, {"type": "number"}]},
                },
            },
        },
        {"name": "stop"},
    )
]


def tool_use(*, is_parallel: bool = True, mode: str = "auto", names: Sequence[str] = ()) -> ToolUse:
    """Of those tools, or of some that have names only."""
    choice = ToolChoice(mode)  # type: ignore[arg-type]
    tools = [
        FunctionTool.model_validate({"type": "function", "function": {"name": name}})
        for name in names
    ]
    return ToolUse(tools=tuple(tools or TOOLS), choice=choice, is_parallel=is_parallel)


def reader(
    parser: str | None,
    *,
    reasoning: str | None = None,
    prompt: str = "",
    use: ToolUse | None = None,
) -> PartReader:
    reading = AnswerReading(
        tool_parser=None if parser is None else TOOL_PARSER_NAMES[parser],
        reasoning=None if reasoning is None else REASONING_PARSERS[reasoning],
        takes_tools=True,
    )
    if use is None and parser is not None:
        use = tool_use()
    return reading.reader_factory(use, prompt)()


def read_cut(reader: PartReader, text: str, cuts: Iterable[int]) -> list[AnswerPart]:
    """Parts in the order in which they come, the text being cut at these places."""
    parts: list[AnswerPart] = []
    start = 0
    for cut in sorted(cuts):
        parts += reader.read(text[start:cut], is_finished=False)
        start = cut
    return parts + reader.read(text[start:], is_finished=True)


class _Read:
    """Parts that have been read already."""

    num_reasoning_chars = 0

    def __init__(self, parts: Sequence[AnswerPart]) -> None:
        self._parts = list(parts)

    def read(self, text: str, *, is_finished: bool) -> list[AnswerPart]:
        return self._parts


def joined(parts: Sequence[AnswerPart]) -> WholeAnswer:
    check_order(parts)
    return read_whole(_Read(parts), "")


def check_order(parts: Sequence[AnswerPart]) -> None:
    """Calls are dense and in order, each named once and before its arguments; nothing is empty."""
    num_calls = 0
    for part in parts:
        if isinstance(part, CallPart):
            assert part.index == num_calls and part.id and part.name
            num_calls += 1
        elif isinstance(part, ArgumentsPart):
            assert part.index == num_calls - 1 and part.text
        else:
            assert part.text


Calls = list[tuple[str, str]]


def calls_of(answer: WholeAnswer) -> Calls:
    return [(call.name, call.arguments) for call in answer.calls]
