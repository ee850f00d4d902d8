"""Reads JSON objects from files that nobody vouches for: bounded size, bounded depth, one error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chairlift.errors import ModelFileError

MAX_JSON_BYTES = 16 << 20


def read_json_object(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The JSON object in the file `path`.

    Raises ModelFileError when the file is missing, larger than `max_bytes`, not JSON, nested too
    deeply, names a key twice, or holds something other than an object.
    """
    try:
        if not path.is_file():
            raise ModelFileError(f"{path}: there is no such file")
        with path.open("rb") as file:
            text = file.read(max_bytes + 1)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from None
    if len(text) > max_bytes:
        raise ModelFileError(f"{path}: is larger than the {max_bytes} bytes that are read")
    return parse_json_object(text, str(path))


def parse_json_object(text: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `text`; `where` begins the message of the ModelFileError."""
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_object_without_repeats)
    except RecursionError:
        raise ModelFileError(f"{where}: the JSON is nested too deeply") from None
    except ValueError as error:
        # Bad UTF-8, bad JSON, a repeated key or an integer of thousands of digits.
        raise ModelFileError(f"{where}: not valid JSON: {_one_line(error)}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{where}: the JSON is not an object")
    return value


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice")
    return result


def _one_line(error: ValueError) -> str:
    text = " ".join(str(error).split())
    return ascii(text[:120])[1:-1]
