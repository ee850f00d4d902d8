"""Literals of Python, handed on as JSON while they are written.  JSON's own words pass too."""

from __future__ import annotations

import json
import re

from chairlift.server.growing_text import Emit, GrowingText, Reading

MAX_DEPTH = 64
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false",
          "null": "null"}  # fmt: skip
_WORD = re.compile(r"[\w.+\-]+", re.ASCII)
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_PLAIN = re.compile(r"[^\"'\\\x00-\x1f]+")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v",
            "0": "\0", "\\": "\\", "'": "'", '"': '"', "\n": ""}  # fmt: skip
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_CLOSERS = {"[": "]", "(": ")", "{": "}"}


def literal_as_json(text: str) -> str | None:
    """The JSON of a text that is one literal, and nothing else; None if it is not."""
    source = GrowingText()
    source.add(text, is_finished=True)
    parts: list[str] = []
    reading = copy_literal(source, parts.append)
    try:
        next(reading)
    except StopIteration as end:
        return "".join(parts) if end.value and source.num_read == len(text) else None
    return None


def copy_literal(source: GrowingText, emit: Emit, *, depth: int = 0) -> Reading[bool]:
    """One value; False, in front of what is at fault, if that is none."""
    char = yield from source.peek()
    if char in ('"', "'"):
        return (yield from _copy_string(source, emit))
    if char in _CLOSERS:
        if depth >= MAX_DEPTH:
            return False
        return (yield from _copy_members(source, emit, depth + 1))
    return (yield from _copy_word(source, emit))


def _copy_members(source: GrowingText, emit: Emit, depth: int) -> Reading[bool]:
    """A list, a tuple or a dictionary."""
    opener = yield from source.take()
    closer = _CLOSERS[opener]
    is_mapping = opener == "{"
    emit("{" if is_mapping else "[")
    separator = ""
    while True:
        yield from source.skip_next_space()
        mark = yield from source.take_one_of((closer, ","))
        if mark == closer:
            emit("}" if is_mapping else "]")
            return True
        if mark == ",":
            continue
        emit(separator)
        separator = ", "
        if is_mapping and not (yield from _copy_key(source, emit)):
            return False
        if not (yield from copy_literal(source, emit, depth=depth)):
            return False


def _copy_key(source: GrowingText, emit: Emit) -> Reading[bool]:
    if (yield from source.peek()) not in ('"', "'"):
        return False
    if not (yield from _copy_string(source, emit)):
        return False
    yield from source.skip_next_space()
    if (yield from source.take_one_of(":")) != ":":
        return False
    emit(": ")
    yield from source.skip_next_space()
    return True


def _copy_word(source: GrowingText, emit: Emit) -> Reading[bool]:
    word = ""
    while (yield from source.peek()) and (more := source.run(_WORD)):
        word += more
    text = _WORDS.get(word) or _number(word)
    if text is None:
        return False
    emit(text)
    return True


def _number(word: str) -> str | None:
    """As JSON spells it."""
    word = word.replace("_", "").removeprefix("+")
    if word.startswith((".", "-.")):
        word = word.replace(".", "0.", 1)
    if word.endswith("."):
        word += "0"
    return word if _NUMBER.fullmatch(word) else None


def _copy_string(source: GrowingText, emit: Emit) -> Reading[bool]:
    quote = yield from source.take()
    is_triple = bool((yield from source.take_one_of((quote * 2,))))
    closer = quote * 3 if is_triple else quote
    emit('"')
    while True:
        emit(_escaped(source.run(_PLAIN)))
        if (yield from source.take_one_of((closer,))):
            emit('"')
            return True
        char = yield from source.take()
        if not char:
            return False
        if char != "\\":
            emit(_escaped(char))
        elif not (yield from _copy_escape(source, emit)):
            return False


def _copy_escape(source: GrowingText, emit: Emit) -> Reading[bool]:
    """Behind a backslash; False at the end of the text."""
    char = yield from source.take()
    if char in _HEX_DIGITS:
        digits = ""
        while len(digits) < _HEX_DIGITS[char]:
            digit = yield from source.peek()
            if digit not in set("0123456789abcdefABCDEF"):
                break
            digits += yield from source.take()
        emit(_escaped(_character(char, digits)))
        return True
    emit(_escaped(_ESCAPES.get(char, "\\" + char)) if char else "")
    return bool(char)


def _character(kind: str, digits: str) -> str:
    """What an escape means; itself if that is no character."""
    if len(digits) == _HEX_DIGITS[kind]:
        code = int(digits, 16)
        if code < 0x110000 and not 0xD800 <= code < 0xE000:
            return chr(code)
    return f"\\{kind}{digits}"


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
