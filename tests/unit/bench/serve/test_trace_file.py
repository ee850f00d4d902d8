"""Traces: the published forms, units of time, and rows that make no sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chairlift.bench.serve.trace_file import TraceRequest, read_trace
from chairlift.errors import ConfigError


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def read(path: str, seconds_per_unit: float = 1.0, tokens_per_hash: int = 4) -> list[TraceRequest]:
    return read_trace(path, seconds_per_unit=seconds_per_unit, tokens_per_hash=tokens_per_hash)


def row(time_s: float, prompt: int, output: int, *hashes: int) -> TraceRequest:
    return TraceRequest(
        arrival_s=time_s, num_prompt_tokens=prompt, num_output_tokens=output, hash_ids=hashes
    )


def test_json_lines_in_milliseconds_with_hashes(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 3000, "input_length": 6, "output_length": 2, "hash_ids": [1, 2]},
        {"timestamp": 1000, "input_length": 3, "output_length": 5, "hash_ids": [1]},
    ]
    path = write(tmp_path / "t.jsonl", "\n".join(map(json.dumps, lines)))
    assert read(path, 0.001) == [row(0.0, 3, 5, 1), row(2.0, 6, 2, 1, 2)]


def test_burst_csv_without_its_failed_requests(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,1087,0,1087,Conversation log\n"
        "118,GPT-4,417,276,693,Conversation log\n",
    )
    assert read(path, 0.5) == [row(0.0, 472, 18), row(56.5, 417, 276)]


def test_dates_in_a_csv(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.979960,374,44\n"
        "2023-11-16 18:17:04.479960,396,109\n",
    )
    assert read(path) == [row(0.0, 374, 44), row(pytest.approx(0.5), 396, 109)]


GOOD = {"timestamp": 1, "input_length": 6, "output_length": 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timestamp": None}, "no timestamp"),
        ({"timestamp": "soon"}, "timestamp must be"),
        ({"timestamp": "nan"}, "timestamp must be"),
        ({"input_length": "x"}, "input_length must be"),
        ({"input_length": 1.5}, "input_length must be"),
        ({"output_length": -1}, "output_length must be"),
        ({"output_length": 0}, "has no requests"),
        ({"hash_ids": "1,2"}, "hash_ids must be"),
        ({"hash_ids": [1]}, "1 hash_ids of 4 tokens do not make 6 tokens"),
    ],
)
def test_a_bad_row_says_where(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "t.jsonl", json.dumps({**GOOD, **change}))
    with pytest.raises(ConfigError, match=message):
        read(path)
