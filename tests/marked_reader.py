"""A reader of answers whose marks are easy to write, and that minds no cut between characters."""

from __future__ import annotations

import re

from chairlift.server.answer_parts import (
    AnswerPart,
    ArgumentsPart,
    CallPart,
    ReasoningPart,
    TextPart,
)

_MARK = re.compile(r"<think>|</think>|<call (\w+)>|</call>")
_BEGUN = re.compile(r"<[^<>]{0,40}\Z")


class MarkedReader:
    """`<think>x</think>said<call f>{"a":1}</call>`: what is between marks comes as it grows."""

    def __init__(self) -> None:
        self._rest = ""
        self._is_thinking = self._is_call = False
        self._num_calls = 0

    def read(self, text: str, *, is_finished: bool) -> list[AnswerPart]:
        self._rest += text
        parts: list[AnswerPart] = []
        while (found := _MARK.search(self._rest)) is not None:
            self._grow(parts, self._rest[: found.start()])
            self._rest = self._rest[found.end() :]
            self._is_thinking, self._is_call = found[0] == "<think>", found[1] is not None
            if found[1] is not None:
                parts.append(CallPart(self._num_calls, f"id{self._num_calls}", found[1]))
                self._num_calls += 1
        begun = None if is_finished else _BEGUN.search(self._rest)
        end = len(self._rest) if begun is None else begun.start()
        self._grow(parts, self._rest[:end])
        self._rest = self._rest[end:]
        return parts

    def _grow(self, parts: list[AnswerPart], text: str) -> None:
        if not text:
            return
        if self._is_call:
            parts.append(ArgumentsPart(self._num_calls - 1, text))
        else:
            parts.append(ReasoningPart(text) if self._is_thinking else TextPart(text))
