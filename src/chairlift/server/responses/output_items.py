"""The items of a response as they grow, and the events that tell of them.

An item begins with the first part of its kind and ends where another begins.  The events of a text
are made from parts that stay the same: what a token costs is a few joined bytes.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence

from pydantic import BaseModel

from chairlift.server.answer_parts import (
    AnswerPart,
    ArgumentsPart,
    CallPart,
    ReasoningPart,
    TextPart,
)
from chairlift.server.protocol.chat import TokenLogprobs
from chairlift.server.protocol.response_items import (
    OutputFunctionCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
    Status,
    SummaryText,
)
from chairlift.server.sse import json_string


class EventNumbers:
    """Counts the events of one stream."""

    def __init__(self) -> None:
        self._next = 0

    def take(self) -> int:
        number = self._next
        self._next += 1
        return number


def event(kind: str, numbers: EventNumbers, fields: str) -> bytes:
    """One event; `fields`: more JSON members, or none."""
    comma = "," if fields else ""
    text = (
        f'event: {kind}\ndata: {{"type":"{kind}"{comma}{fields}'
        f',"sequence_number":{numbers.take()}}}\n\n'
    )
    return text.encode("utf-8")


def new_response_id() -> str:
    """A name that nobody can guess."""
    return f"resp_{secrets.token_hex(24)}"


def new_item_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"


class _OpenItem(ABC):
    """The item that grows now."""

    prefix: str
    delta_kind: str
    """Of the event for more of it."""

    def __init__(self, index: int, numbers: EventNumbers) -> None:
        self.id = new_item_id(self.prefix)
        self._index = index
        self._numbers = numbers
        self._pieces: list[str] = []
        head = f'event: {self.delta_kind}\ndata: {{"type":"{self.delta_kind}",{self._place}'
        self._delta_head = f'{head},"delta":'.encode()

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @abstractmethod
    def item(self, status: Status) -> OutputItem:
        """As it is now."""

    def begin(self) -> bytes:
        """Events before its first piece."""
        return self._event("response.output_item.added", self._with_item("in_progress"))

    def grow(self, text: str, logprobs: Sequence[TokenLogprobs] = ()) -> bytes:
        """The event for one more piece."""
        self._pieces.append(text)
        tail = f'{json_string(text)}{self._more(logprobs)},"sequence_number":{self._numbers.take()}'
        return self._delta_head + tail.encode("utf-8") + b"}\n\n"

    def end(self, status: Status) -> bytes:
        """Events after its last piece."""
        return self._event("response.output_item.done", self._with_item(status))

    def _more(self, logprobs: Sequence[TokenLogprobs]) -> str:
        """What a delta has beside the piece, after a comma."""
        return ""

    @property
    def _place(self) -> str:
        return f'"item_id":"{self.id}","output_index":{self._index}'

    def _with_item(self, status: Status) -> str:
        return f'"output_index":{self._index},"item":{self.item(status).model_dump_json()}'

    def _event(self, kind: str, fields: str) -> bytes:
        return event(kind, self._numbers, fields)


class _OpenText(_OpenItem):
    """An item whose text is its one part."""

    parts_name = "content"
    index_name = "content_index"
    done_kind: str
    """Of the event with all of its text."""
    part_kind = "response.content_part"
    """Of the events around its part, without how they end."""

    @abstractmethod
    def part(self) -> BaseModel:
        """Its part as it is now."""

    @property
    def _place(self) -> str:
        return f'{super()._place},"{self.index_name}":0'

    def begin(self) -> bytes:
        item = self.item("in_progress").model_copy(update={self.parts_name: []})
        fields = f'"output_index":{self._index},"item":{item.model_dump_json()}'
        return self._event("response.output_item.added", fields) + self._event(
            f"{self.part_kind}.added", self._with_part()
        )

    def end(self, status: Status) -> bytes:
        more = self._more(self._all_logprobs)
        text = f'{self._place},"text":{json_string(self.text)}{more}'
        return (
            self._event(self.done_kind, text)
            + self._event(f"{self.part_kind}.done", self._with_part())
            + super().end(status)
        )

    @property
    def _all_logprobs(self) -> Sequence[TokenLogprobs]:
        return ()

    def _with_part(self) -> str:
        return f'{self._place},"part":{self.part().model_dump_json()}'


class _OpenMessage(_OpenText):
    prefix = "msg"
    delta_kind = "response.output_text.delta"
    done_kind = "response.output_text.done"

    def __init__(self, index: int, numbers: EventNumbers) -> None:
        super().__init__(index, numbers)
        self._logprobs: list[TokenLogprobs] = []

    def grow(self, text: str, logprobs: Sequence[TokenLogprobs] = ()) -> bytes:
        self._logprobs += logprobs
        return super().grow(text, logprobs)

    def part(self) -> OutputText:
        return OutputText(text=self.text, logprobs=list(self._logprobs))

    def item(self, status: Status) -> OutputItem:
        return OutputMessage(id=self.id, status=status, content=[self.part()])

    @property
    def _all_logprobs(self) -> Sequence[TokenLogprobs]:
        return self._logprobs

    def _more(self, logprobs: Sequence[TokenLogprobs]) -> str:
        if not logprobs:
            return ',"logprobs":[]'
        return f',"logprobs":[{",".join(each.model_dump_json() for each in logprobs)}]'


class _OpenReasoning(_OpenText):
    prefix = "rs"
    delta_kind = "response.reasoning_text.delta"
    done_kind = "response.reasoning_text.done"

    def part(self) -> ReasoningText:
        return ReasoningText(text=self.text)

    def item(self, status: Status) -> OutputItem:
        return OutputReasoning(id=self.id, status=status, content=[self.part()])


class _OpenSummary(_OpenText):
    """Thoughts, told where clients look for a summary of them."""

    prefix = "rs"
    parts_name = "summary"
    index_name = "summary_index"
    delta_kind = "response.reasoning_summary_text.delta"
    done_kind = "response.reasoning_summary_text.done"
    part_kind = "response.reasoning_summary_part"

    def part(self) -> SummaryText:
        return SummaryText(text=self.text)

    def item(self, status: Status) -> OutputItem:
        return OutputReasoning(id=self.id, status=status, summary=[self.part()])


class _OpenCall(_OpenItem):
    prefix = "fc"
    delta_kind = "response.function_call_arguments.delta"

    def __init__(self, index: int, numbers: EventNumbers, call: CallPart) -> None:
        super().__init__(index, numbers)
        self._call = call

    def item(self, status: Status) -> OutputItem:
        return OutputFunctionCall(
            id=self.id,
            status=status,
            call_id=self._call.id,
            name=self._call.name,
            arguments=self.text,
        )

    def end(self, status: Status) -> bytes:
        fields = f'{self._place},"arguments":{json_string(self.text)}'
        done = self._event("response.function_call_arguments.done", fields)
        return done + super().end(status)


class ResponseOutput:
    """Takes the parts of one answer, keeps its items and gives their events."""

    def __init__(self, numbers: EventNumbers, *, has_summary: bool = False) -> None:
        """`has_summary`: thoughts are told as a summary."""
        self._numbers = numbers
        self._reasoning = _OpenSummary if has_summary else _OpenReasoning
        self._open: _OpenItem | None = None
        self.items: list[OutputItem] = []
        """Those that have ended."""

    def add(self, part: AnswerPart, logprobs: Sequence[TokenLogprobs] = ()) -> bytes:
        """Events for one part.  `logprobs` are of tokens up to it, if it is text."""
        match part:
            case TextPart():
                data = self._turn_to(_OpenMessage)
            case ReasoningPart():
                data = self._turn_to(self._reasoning)
            case CallPart():
                ended = self._end("completed")
                self._open = _OpenCall(len(self.items), self._numbers, part)
                return ended + self._open.begin()
            case ArgumentsPart():
                assert isinstance(self._open, _OpenCall), "arguments of a call that has not begun"
                data = b""
        assert self._open is not None
        return data + self._open.grow(part.text, logprobs)

    def end(self, status: Status, logprobs: Sequence[TokenLogprobs] = ()) -> bytes:
        """Events for the end of the last item; there is one, if only a message without text.

        `logprobs`: of tokens that came after the last text.
        """
        data = b""
        if self._open is None and not self.items:
            data = self._turn_to(_OpenMessage)
        if logprobs and isinstance(self._open, _OpenMessage):
            data += self._open.grow("", logprobs)
        return data + self._end(status)

    def cut_off(self) -> bytes:
        """Events for the end of an item that will not become whole, if there is one."""
        return self._end("incomplete")

    def _turn_to(self, kind: type[_OpenText]) -> bytes:
        """Events before more of this kind."""
        if isinstance(self._open, kind):
            return b""
        ended = self._end("completed")
        self._open = kind(len(self.items), self._numbers)
        return ended + self._open.begin()

    def _end(self, status: Status) -> bytes:
        if self._open is None:
            return b""
        data = self._open.end(status)
        self.items.append(self._open.item(status))
        self._open = None
        return data
