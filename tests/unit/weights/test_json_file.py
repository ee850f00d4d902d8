"""JSON files that are large, deep, cut or strange."""

from __future__ import annotations

from pathlib import Path

import pytest

from chairlift.errors import ModelFileError
from chairlift.weights.json_file import read_json_object


def test_an_object_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": {"b": [1, 2.5, "é"]}}', "utf-8")
    assert read_json_object(path) == {"a": {"b": [1, 2.5, "é"]}}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "not valid JSON"),
        (b'{"a": ', "not valid JSON"),
        (b"[1]", "not an object"),
        (b'{"a": "\xff"}', "not valid JSON"),
        (b'{"a": 1, "a": 2}', "a key appears twice"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": "' + b"x" * 2_000_000 + b'"}', "larger than the 1000000 bytes"),
    ],
    ids=["empty", "cut", "list", "utf8", "twice", "digits", "objects", "lists", "large"],
)
def test_bad_content_is_refused_in_one_line(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=expected) as caught:
        read_json_object(path, max_bytes=1_000_000)
    assert "\n" not in str(caught.value)
    assert "config.json" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"config\.json: there is no such file"):
        read_json_object(tmp_path / "config.json")
