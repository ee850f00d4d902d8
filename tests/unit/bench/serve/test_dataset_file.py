"""Prompts from files, and what is wrong with some."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chairlift.bench.serve.dataset_file import TextRequest, read_dataset
from chairlift.errors import ConfigError


def turns(*spoken: tuple[str, str]) -> dict[str, Any]:
    return {"conversations": [{"from": who, "value": what} for who, what in spoken]}


CONVERSATIONS = [
    turns(("human", "How?"), ("gpt", "x" * 400), ("human", "And?")),
    turns(("system", "Be brief."), ("user", "Why?"), ("assistant", "y")),
    turns(("gpt", "first"), ("human", "second")),
    turns(("human", "alone")),
    turns(("human", " "), ("gpt", "z")),
    {"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "w" * 8}]},
]
USABLE = [TextRequest("How?", 100), TextRequest("Why?", 1), TextRequest("Who?", 2)]


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_sharegpt_as_an_array_and_as_lines(tmp_path: Path) -> None:
    array = write(tmp_path / "a.json", json.dumps(CONVERSATIONS))
    lines = write(tmp_path / "b.jsonl", "\n\n".join(map(json.dumps, CONVERSATIONS)) + "\n")
    assert read_dataset(array, "sharegpt") == read_dataset(lines, "sharegpt") == USABLE


def test_custom_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", '{"prompt":"a","output_tokens":3}\n{"prompt":"b\\n"}\n')
    assert read_dataset(path, "custom") == [TextRequest("a", 3), TextRequest("b\n", None)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("custom", "", "no usable prompt"),
        ("custom", "{", "line 1: not JSON"),
        ("custom", '{"prompt":"a"}\n3', "line 2: not a JSON object"),
        ("custom", '{"text":"a"}', "line 1: no prompt"),
        ("custom", '{"prompt":""}', "line 1: no prompt"),
        ("custom", '{"prompt":"a","output_tokens":0}', "output_tokens must be a number"),
        ("custom", '{"prompt":"a","output_tokens":true}', "output_tokens must be a number"),
        ("sharegpt", "[3]", "entry 1: not a JSON object"),
        ("sharegpt", '[{"prompt":"a"}]', "entry 1: no list of conversations"),
        ("sharegpt", json.dumps([turns(("human", "alone"))]), "no usable prompt"),
        ("sharegpt", "[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_file_says_where(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_dataset(write(tmp_path / "d.jsonl", text), name)
    assert caught.value.field == "dataset_path"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_dataset(str(tmp_path / "none"), "custom")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_dataset(str(tmp_path / "binary"), "custom")
