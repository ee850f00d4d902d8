"""The content of a message: a text, or a list of parts with one each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_PARTS = 4096


def check_parts(value: Any, text_of: Mapping[str, str], *, reads: str) -> Any:
    """`value`, if every part has its text.  Raises ValueError that names the part.

    `text_of`: where a part of each type has its text.  `reads` says what is read, of a part of
    another type.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of parts")
    if len(value) > MAX_PARTS:
        raise ValueError(f"takes at most {MAX_PARTS} parts")
    for index, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise ValueError(f"part {index} must be an object with a type")
        if kind not in text_of:
            raise ValueError(f"part {index} is of type {kind[:60]!r}; this model reads {reads}")
        if not isinstance(part.get(text_of[kind]), str):
            raise ValueError(f"part {index} must have a {text_of[kind]}")
    return value
