"""Hands on the JSON that a model writes while it is written, mended where models often slip."""

from __future__ import annotations

import json
import re

from chairlift.server.growing_text import Emit, GrowingText, Reading

_PLAIN_IN_STRING = re.compile(r'[^"\\\x00-\x1f]+')
_BETWEEN = re.compile(r"[\s\w.,:+\-]+", re.ASCII)
_SCALAR = re.compile(r"[\w.+\-]+", re.ASCII)
_ESCAPED = '"\\/bfnrtu'


def copy_json(source: GrowingText, emit: Emit) -> Reading[bool]:
    """One value; False, in front of what is at fault, if that is no JSON.

    What stands between brackets and strings is not looked at closely.
    """
    char = yield from source.peek()
    if char == '"':
        return (yield from copy_string(source, emit))
    if char not in ("{", "["):
        return (yield from _copy_scalar(source, emit))
    depth = 0
    while True:
        char = yield from source.peek()
        if char == '"':
            if not (yield from copy_string(source, emit)):
                return False
        elif char and char in "{[":
            depth += 1
            emit((yield from source.take()))
        elif char and char in "}]":
            depth -= 1
            emit((yield from source.take()))
            if not depth:
                return True
        elif between := source.run(_BETWEEN):
            emit(between)
        else:
            return False


def copy_string(source: GrowingText, emit: Emit) -> Reading[bool]:
    """A string with its quotes.  Line ends in it and stray backslashes are escaped."""
    if (yield from source.peek()) != '"':
        return False
    emit((yield from source.take()))
    while True:
        emit(source.run(_PLAIN_IN_STRING))
        char = yield from source.take()
        if not char:
            return False
        if char == '"':
            emit(char)
            return True
        if char == "\\":
            yield from _copy_escape(source, emit)
        elif char < " ":
            emit(json.dumps(char)[1:-1])
        else:
            emit(char)


def read_string(source: GrowingText) -> Reading[str | None]:
    """What a string means; None if there is none."""
    raw: list[str] = []
    if not (yield from copy_string(source, raw.append)):
        return None
    return text_of("".join(raw))


def text_of(string: str) -> str | None:
    """What a JSON string means; None if it is none, or half of a surrogate pair."""
    try:
        text = json.loads(string)
        if isinstance(text, str):
            text.encode("utf-8")
            return text
    except ValueError:
        pass
    return None


def _copy_escape(source: GrowingText, emit: Emit) -> Reading[None]:
    """Behind a backslash."""
    char = yield from source.take()
    if not char:
        return
    if char == "'":
        emit(char)
    elif char in _ESCAPED:
        emit("\\" + char)
    else:
        emit("\\\\" + (char if char >= " " else json.dumps(char)[1:-1]))


def _copy_scalar(source: GrowingText, emit: Emit) -> Reading[bool]:
    has_any = False
    while (yield from source.peek()) and (text := source.run(_SCALAR)):
        has_any = True
        emit(text)
    return has_any
