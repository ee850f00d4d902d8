"""Items of a response: what goes in and what comes out.

Items that a client sends are checked one by one, so that an error names the place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from chairlift.server.errors import bad_request
from chairlift.server.protocol.chat import MAX_MESSAGES, TokenLogprobs
from chairlift.server.protocol.content_parts import check_parts
from chairlift.server.protocol.strict_model import StrictModel, parse

MAX_ITEMS = MAX_MESSAGES
MAX_ID_LENGTH = 128
_TEXT_OF_PART = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
    "summary_text": "text",
    "reasoning_text": "text",
}
"""Where a part of each type has its text."""

Status = Literal["in_progress", "completed", "incomplete"]
Id = Annotated[str, Field(min_length=1, max_length=MAX_ID_LENGTH)]


def _parts(value: Any) -> Any:
    return check_parts(value, _TEXT_OF_PART, reads="text only")


def _part_list(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError("must be a list of parts")
    return _parts(value)


Parts = Annotated[Any, BeforeValidator(_parts)]
PartList = Annotated[Any, BeforeValidator(_part_list)]


class MessageItem(StrictModel):
    """Something that was said."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts
    id: Id | None = None
    status: Status | None = None
    phase: str | None = None

    @property
    def texts(self) -> list[str]:
        return texts_of(self.content)

    def stored(self, id: str) -> dict[str, Any]:
        if self.role == "assistant":
            parts = [
                {"type": "output_text", "text": text, "annotations": []} for text in self.texts
            ]
        else:
            parts = [{"type": "input_text", "text": text} for text in self.texts]
        return {
            "type": "message",
            "id": id,
            "status": self.status or "completed",
            "role": self.role,
            "content": parts,
        }


class FunctionCallItem(StrictModel):
    """A call that the model made earlier."""

    type: Literal["function_call"]
    call_id: Id
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str
    id: Id | None = None
    status: Status | None = None

    def stored(self, id: str) -> dict[str, Any]:
        return {
            "type": "function_call",
            "id": id,
            "status": self.status or "completed",
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.arguments,
        }


class FunctionCallOutputItem(StrictModel):
    """What a call came to."""

    type: Literal["function_call_output"]
    call_id: Id
    output: Parts
    id: Id | None = None
    status: Status | None = None

    def stored(self, id: str) -> dict[str, Any]:
        return {
            "type": "function_call_output",
            "id": id,
            "status": self.status or "completed",
            "call_id": self.call_id,
            "output": "".join(texts_of(self.output)),
        }


class ReasoningItem(StrictModel):
    """What the model thought earlier."""

    type: Literal["reasoning"]
    summary: PartList = []
    content: PartList = []
    encrypted_content: str | None = None
    id: Id | None = None
    status: Status | None = None

    @property
    def text(self) -> str:
        """All of it, or what it was summed up to."""
        return "".join(texts_of(self.content)) or "\n\n".join(texts_of(self.summary))

    def stored(self, id: str) -> dict[str, Any]:
        return {
            "type": "reasoning",
            "id": id,
            "summary": [{"type": "summary_text", "text": each} for each in texts_of(self.summary)],
            "content": [
                {"type": "reasoning_text", "text": each} for each in texts_of(self.content)
            ],
        }


class ItemReference(StrictModel):
    """An item that is stored here."""

    type: Literal["item_reference"]
    id: Id


KnownItem = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem
InputItem = KnownItem | ItemReference

_KINDS: dict[str, type[InputItem]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "reasoning": ReasoningItem,
    "item_reference": ItemReference,
}


def parse_input(value: str | Sequence[Any]) -> list[InputItem]:
    """What `input` holds.  Raises `ApiError` that names the place."""
    if isinstance(value, str):
        return [MessageItem(role="user", content=value)]
    return [parse_item(item, f"input[{index}]") for index, item in enumerate(value)]


def parse_item(value: Any, place: str) -> InputItem:
    """Raises `ApiError` for what this server cannot read."""
    if not isinstance(value, dict):
        raise bad_request(f"{place} must be an object", param=place)
    name = value.get("type")
    if name is None and "role" in value:
        name = "message"
    if name is None and set(value) == {"id"}:
        value, name = {**value, "type": "item_reference"}, "item_reference"
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        shown = "has no type" if name is None else f"is of type {str(name)[:60]!r}"
        raise bad_request(
            f"{place} {shown}; items here are {', '.join(_KINDS)}", param=f"{place}.type"
        )
    return parse(kind, value, place=place)


def texts_of(parts: Any) -> list[str]:
    """The texts of checked parts."""
    if isinstance(parts, str):
        return [parts]
    return [part[_TEXT_OF_PART[part["type"]]] for part in parts]


def unknown_fields(items: Sequence[InputItem]) -> Iterator[str]:
    """Names of what the items have and nobody reads."""
    for item in items:
        yield from item.unknown_fields()


# -- what comes out ----------------------------------------------------------------------------
class OutputText(BaseModel):
    """What was said, as a part of a message."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = []
    logprobs: list[TokenLogprobs] = []


class OutputMessage(BaseModel):
    """What the model says."""

    type: Literal["message"] = "message"
    id: str
    status: Status
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ReasoningText(BaseModel):
    """What was thought, as a part of a reasoning item."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class SummaryText(BaseModel):
    """The same where a summary was asked for."""

    type: Literal["summary_text"] = "summary_text"
    text: str


class OutputReasoning(BaseModel):
    """What the model thinks before it says something: in one of the two, whole."""

    type: Literal["reasoning"] = "reasoning"
    id: str
    status: Status
    summary: list[SummaryText] = []
    content: list[ReasoningText] = []


class OutputFunctionCall(BaseModel):
    """A function that the model wants to be called."""

    type: Literal["function_call"] = "function_call"
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str
    """JSON."""


OutputItem = OutputMessage | OutputReasoning | OutputFunctionCall
