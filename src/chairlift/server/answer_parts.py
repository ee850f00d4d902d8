"""What an assistant's text consists of: words, thoughts and calls of tools, as it grows.

Every dialect of chat writes its answers from these parts, whole or streamed; which parts a text
has depends on the model's template and on what the request asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TextPart:
    """More of what is said."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """More of what is thought before it is said."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """A call begins: the next one, counted from 0 within its answer."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPart:
    """More of a begun call's arguments: JSON, once all of it is there."""

    index: int
    text: str


AnswerPart = TextPart | ReasoningPart | CallPart | ArgumentsPart


class PartReader(Protocol):
    """Reads one growing text of one answer.  Any way of cutting it gives the same parts joined."""

    @property
    def num_reasoning_chars(self) -> int:
        """Characters of the text so far, from its beginning, that were thoughts or mark them."""
        ...

    def read(self, text: str, *, is_finished: bool) -> list[AnswerPart]:
        """What is new, once `text` has been added; the rest as well if nothing more will come."""
        ...


ReaderFactory = Callable[[], PartReader]
"""A new reader for each answer of a request."""


class PlainReader:
    """All of it is said."""

    num_reasoning_chars = 0

    def read(self, text: str, *, is_finished: bool) -> list[AnswerPart]:
        return [TextPart(text)] if text else []


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole call."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """All parts of one kind joined."""

    text: str
    reasoning: str
    calls: tuple[ToolCall, ...]


def read_whole(reader: PartReader, text: str) -> WholeAnswer:
    """A finished text at once, with a reader that has not read anything yet."""
    said, thought = "", ""
    heads: list[CallPart] = []
    arguments: list[str] = []
    for part in reader.read(text, is_finished=True):
        match part:
            case TextPart():
                said += part.text
            case ReasoningPart():
                thought += part.text
            case CallPart():
                heads.append(part)
                arguments.append("")
            case ArgumentsPart():
                arguments[part.index] += part.text
    calls = tuple(
        ToolCall(id=head.id, name=head.name, arguments=text)
        for head, text in zip(heads, arguments, strict=True)
    )
    return WholeAnswer(text=said, reasoning=thought, calls=calls)
