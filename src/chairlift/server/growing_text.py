"""GrowingText: what a parser reads from, character after character, and writes parts to.

A parser is a generator, a `Script`: straight-line code that yields wherever it needs text that is
not there yet.  What it does depends on characters alone, never on how they came in pieces, so any
way of cutting a text gives the same parts joined.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Generator, Sequence
from enum import Enum
from typing import TypeVar

from chairlift.server.answer_parts import (
    AnswerPart,
    ArgumentsPart,
    CallPart,
    ReasoningPart,
    TextPart,
)

T = TypeVar("T")
Reading = Generator[None, None, T]
"""Comes to a T once enough of the text is there."""
Script = Reading[None]
"""Reads a text to its end."""
Emit = Callable[[str], None]

_SPACE = re.compile(r"\s+")
_ANY = re.compile(r".+", re.DOTALL)


class _Kind(Enum):
    """What a part is of."""

    TEXT = "text"
    REASONING = "reasoning"
    ARGUMENTS = "arguments"


def new_call_id() -> str:
    """As OpenAI's look."""
    return f"call_{secrets.token_hex(12)}"


class GrowingText:
    """One answer's text, as far as it is known, and the parts found in it.

    Reading waits for more text, and tells its end by an empty string.
    """

    def __init__(
        self, *, max_calls: int | None = None, new_call_id: Callable[[], str] = new_call_id
    ) -> None:
        """Calls beyond `max_calls` are read and left out."""
        self._text = ""
        self._position = 0
        self._start = 0
        """Characters of the whole text before `_text`."""
        self._kept: int | None = None
        self._is_finished = False
        self._max_calls = max_calls
        self._new_call_id = new_call_id
        self._num_calls = 0
        self._space = ""
        """Said, but left out if a call comes next."""
        self._has_said = False
        self._parts: list[AnswerPart] = []
        self._kind: _Kind | None = None
        self._pieces: list[str] = []
        """Of the part that is being written, of this kind."""
        self.num_reasoning_chars = 0
        """Of the text so far, from its beginning: what was thought, markers included."""

    # -- what comes -------------------------------------------------------------------------------
    def add(self, text: str, *, is_finished: bool) -> None:
        """More of the text."""
        kept = self._position if self._kept is None else self._kept
        self._text = self._text[kept:] + text
        self._position -= kept
        self._start += kept
        self._kept = None if self._kept is None else 0
        self._is_finished = self._is_finished or is_finished

    # -- reading ----------------------------------------------------------------------------------
    def peek(self) -> Reading[str]:
        """The next character."""
        while self._position == len(self._text):
            if self._is_finished:
                return ""
            yield
        return self._text[self._position]

    def take(self) -> Reading[str]:
        """The next character, which is then behind."""
        char = yield from self.peek()
        self._position += len(char)
        return char

    def run(self, pattern: re.Pattern[str]) -> str:
        """As many of the characters at hand as match: `pattern` is a class of them, repeated."""
        found = pattern.match(self._text, self._position)
        if found is None:
            return ""
        self._position = found.end()
        return found[0]

    def take_one_of(self, texts: Sequence[str]) -> Reading[str]:
        """Whichever of `texts` comes next; none of them is a prefix of another."""
        longest = max(map(len, texts))
        while True:
            rest = self._text[self._position : self._position + longest]
            for text in texts:
                if rest.startswith(text):
                    self._position += len(text)
                    return text
            if self._is_finished or not any(text.startswith(rest) for text in texts):
                return ""
            yield

    def skip_space(self) -> Script:
        """All whitespace that comes next."""
        while self.run(_SPACE):
            yield from self.peek()

    def skip_next_space(self) -> Script:
        """All whitespace, once the next character is there."""
        yield from self.peek()
        yield from self.skip_space()

    def until(self, texts: Sequence[str], emit: Emit) -> Reading[str]:
        """Hands on what comes before the first of `texts`, and says which it was."""
        others = re.compile(f"[^{re.escape(''.join({text[0] for text in texts}))}]+")
        while True:
            passed = self.run(others)
            if passed:
                emit(passed)
            if not (yield from self.peek()):
                return ""
            found = yield from self.take_one_of(texts)
            if found:
                return found
            emit((yield from self.take()))

    def rest(self, emit: Emit) -> Script:
        """Hands on all that comes."""
        while (yield from self.peek()):
            emit(self.run(_ANY))

    # -- going back to what was read --------------------------------------------------------------
    @property
    def num_read(self) -> int:
        """Characters behind."""
        return self._start + self._position

    def keep(self) -> None:
        """Remember what is read from here on, until a call begins."""
        self._kept = self._position

    def take_kept(self) -> str:
        """What was read since `keep`, if no call has begun."""
        if self._kept is None:
            return ""
        kept = self._text[self._kept : self._position]
        self._kept = None
        return kept

    # -- writing ----------------------------------------------------------------------------------
    def say(self, text: str) -> None:
        """Whitespace at an answer's ends, or beside calls, is left out if there are calls."""
        text = self._space + text
        if self.has_calls and not self._has_said:
            text = text.lstrip()
        said = text.rstrip()
        self._space = text[len(said) :]
        if said:
            self._has_said = True
            self._write(_Kind.TEXT, said)

    def think(self, text: str) -> None:
        if text:
            self._write(_Kind.REASONING, text)

    def begin_call(self, name: str) -> None:
        self._close_part()
        self._space, self._kept = "", None
        self._num_calls += 1
        if self._is_wanted:
            call_id = self._new_call_id()
            self._parts.append(CallPart(index=self._num_calls - 1, id=call_id, name=name))

    def add_arguments(self, text: str) -> None:
        """Of the call begun last."""
        if self._is_wanted and text:
            self._write(_Kind.ARGUMENTS, text)

    @property
    def has_calls(self) -> bool:
        return self._num_calls > 0

    def finish(self) -> None:
        """Nothing more will be written."""
        if self._space and not self.has_calls:
            self._write(_Kind.TEXT, self._space)
            self._space = ""

    def take_parts(self) -> list[AnswerPart]:
        """Those that are new; what follows one another and is of one kind is one part."""
        self._close_part()
        parts, self._parts = self._parts, []
        return parts

    @property
    def _is_wanted(self) -> bool:
        return self._max_calls is None or self._num_calls <= self._max_calls

    def _write(self, kind: _Kind, text: str) -> None:
        if kind is not self._kind:
            self._close_part()
            self._kind = kind
        self._pieces.append(text)

    def _close_part(self) -> None:
        text = "".join(self._pieces)
        self._pieces = []
        match self._kind:
            case _Kind.TEXT:
                self._parts.append(TextPart(text))
            case _Kind.REASONING:
                self._parts.append(ReasoningPart(text))
            case _Kind.ARGUMENTS:
                self._parts.append(ArgumentsPart(index=self._num_calls - 1, text=text))
        self._kind = None


class ScriptReader:
    """A `PartReader` that a script works for."""

    def __init__(self, text: GrowingText, script: Script) -> None:
        self._text = text
        self._script: Script | None = script

    @property
    def num_reasoning_chars(self) -> int:
        return self._text.num_reasoning_chars

    def read(self, text: str, *, is_finished: bool) -> list[AnswerPart]:
        self._text.add(text, is_finished=is_finished)
        if self._script is not None:
            try:
                next(self._script)
            except StopIteration:
                self._script = None
                self._text.finish()
        return self._text.take_parts()
