"""An argument that a model writes as plain text between tags, handed on as JSON.

What a tool's schema calls a string is one, and is handed on while it comes.  Everything else waits
for its end, for only then it is seen to be a number, an object, or a text after all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from chairlift.server.growing_text import Emit, GrowingText, Reading
from chairlift.server.tool_parsers.python_literal import literal_as_json

_KINDS: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def copy_tagged(
    source: GrowingText, closers: tuple[str, ...], kinds: frozenset[str], emit: Emit
) -> Reading[str]:
    """Up to one of `closers`, which is returned; empty at the end of the text.

    A line end after the opening tag and one before the closing tag are not part of the value.
    """
    yield from source.take_one_of("\n")
    if kinds == {"string"}:
        return (yield from _copy_text(source, closers, emit))
    raw: list[str] = []
    closer = yield from source.until(closers, raw.append)
    emit(value_as_json("".join(raw).removesuffix("\n"), kinds))
    return closer


def value_as_json(text: str, kinds: frozenset[str]) -> str:
    """The JSON that a text means, given the types that it may have (none: any).

    JSON and Python's literals are known; what is neither, or of another type, is a string.
    """
    written = text.strip()
    spelled = literal_as_json(written)
    value = None if spelled is None else _value(spelled)
    if isinstance(value, str):
        # Quotes are the model's only where the schema says that there is more than strings.
        return json.dumps(value if "string" in kinds else text, ensure_ascii=False)
    is_known = spelled is not None and (value is not None or spelled == "null")
    if is_known and any(_KINDS[kind](value) for kind in kinds or _KINDS if kind in _KINDS):
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False)


def _value(spelled: str) -> Any:
    """What JSON means; None if it is none after all."""
    try:
        return json.loads(spelled, parse_constant=lambda word: None)
    except (ValueError, RecursionError):
        return None


def _copy_text(source: GrowingText, closers: tuple[str, ...], emit: Emit) -> Reading[str]:
    """A string, as it comes; its last line end waits until more follows."""
    emit('"')
    held = ""

    def pass_on(text: str) -> None:
        nonlocal held
        text = held + text
        held = "\n" if text.endswith("\n") else ""
        emit(json.dumps(text.removesuffix("\n"), ensure_ascii=False)[1:-1])

    closer = yield from source.until(closers, pass_on)
    if closer:
        emit('"')
    return closer
