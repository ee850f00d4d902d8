"""A call that is written as one JSON object with a name and arguments, in whatever order."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum

from chairlift.server.growing_text import GrowingText, Reading
from chairlift.server.tool_parsers.json_copy import copy_json, read_string, text_of

_ARGUMENTS = ("arguments", "parameters")
_OTHERS = ("id", "type", "index")


class CallEnd(Enum):
    """How reading a call ended."""

    NO_CALL = "nothing was called: what was read is text"
    WHOLE = "all of it was there"
    BROKEN = "it began well, and what comes next is no JSON"


class _Call:
    """What is known of a call."""

    def __init__(self, source: GrowingText, accepts: Callable[[str], bool]) -> None:
        self.source = source
        self.accepts = accepts
        self.has_begun = False
        self.has_arguments = False
        self.early_arguments: list[str] = []
        """That came before the name."""

    def begin(self, name: str) -> None:
        self.has_begun = True
        self.source.begin_call(name)
        if self.has_arguments:
            self.source.add_arguments(_unwrapped("".join(self.early_arguments)))

    @property
    def failure(self) -> CallEnd:
        return CallEnd.BROKEN if self.has_begun else CallEnd.NO_CALL


def read_call(
    source: GrowingText, accepts: Callable[[str], bool] = lambda name: True
) -> Reading[CallEnd]:
    """An object, from its brace on; `accepts` tells names of tools from others.

    Whatever looks like the arguments is handed on as they come: JSON, as the model writes it.
    """
    call = _Call(source, accepts)
    is_whole = yield from _read_members(call, is_nested=False)
    if not is_whole or not call.has_begun:
        return call.failure
    if not call.has_arguments:
        source.add_arguments("{}")
    return CallEnd.WHOLE


def read_calls(
    source: GrowingText, accepts: Callable[[str], bool] = lambda name: True
) -> Reading[CallEnd]:
    """One such object, or a list of them, from the bracket on."""
    if not (yield from source.take_one_of("[")):
        return (yield from read_call(source, accepts))
    while True:
        yield from source.skip_next_space()
        end = yield from read_call(source, accepts)
        if end is not CallEnd.WHOLE:
            return end
        yield from source.skip_next_space()
        if (yield from source.take_one_of(",]")) != ",":
            return end


def _read_members(call: _Call, *, is_nested: bool) -> Reading[bool]:
    """From an opening brace to the closing one; False if something is wrong."""
    source = call.source
    if (yield from source.take_one_of("{")) != "{":
        return False
    while True:
        yield from source.skip_next_space()
        mark = yield from source.take_one_of("},")
        if mark == "}":
            return True
        if mark == ",":
            continue
        key = yield from read_string(source)
        if key is None:
            return False
        yield from source.skip_next_space()
        if (yield from source.take_one_of(":")) != ":":
            return False
        yield from source.skip_next_space()
        if not (yield from _read_member(call, key, is_nested=is_nested)):
            return False


def _read_member(call: _Call, key: str, *, is_nested: bool) -> Reading[bool]:
    source = call.source
    char = yield from source.peek()
    if key == "name" and not call.has_begun:
        name = yield from read_string(source)
        if not name or not call.accepts(name):
            return False
        call.begin(name)
        return True
    if key in _ARGUMENTS and not call.has_arguments:
        call.has_arguments = True
        return (yield from _read_arguments(call))
    if key == "function" and char == "{" and not is_nested:
        return (yield from _read_members(call, is_nested=True))
    if key not in _OTHERS and not call.has_begun:
        return False
    return (yield from copy_json(source, lambda text: None))


def _read_arguments(call: _Call) -> Reading[bool]:
    source = call.source
    if not call.has_begun:
        return (yield from copy_json(source, call.early_arguments.append))
    char = yield from source.peek()
    if char in ("{", "["):
        return (yield from copy_json(source, source.add_arguments))
    raw: list[str] = []
    is_whole = yield from copy_json(source, raw.append)
    source.add_arguments(_unwrapped("".join(raw)))
    return is_whole


def _unwrapped(arguments: str) -> str:
    """Arguments that were written as a string of JSON, or as nothing."""
    if arguments == "null":
        return "{}"
    if arguments.startswith('"'):
        inner = text_of(arguments)
        if inner is not None and _is_object(inner):
            return inner
        return "{}" if inner is not None and not inner.strip() else arguments
    return arguments


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
