"""Times and lengths of requests that once came to some server: JSON lines or CSV.

Columns go by the names that published traces use for them (Mooncake, BurstGPT, Azure).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from chairlift.bench.serve.dataset_file import read_entries, read_text_file
from chairlift.errors import ConfigError

_TIME_NAMES = ("timestamp", "time", "arrival_s")
_INPUT_NAMES = ("input_length", "request tokens", "contexttokens", "input_tokens", "input_len")
_OUTPUT_NAMES = (
    "output_length",
    "response tokens",
    "generatedtokens",
    "output_tokens",
    "output_len",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One row."""

    arrival_s: float
    """After the first one of the trace."""
    num_prompt_tokens: int
    num_output_tokens: int
    hash_ids: tuple[int, ...] = ()
    """Equal numbers stand for equal chunks of prompts; may be empty."""


def read_trace(path: str, *, seconds_per_unit: float, tokens_per_hash: int) -> list[TraceRequest]:
    """In the order of their times.  Rows without output (failed requests) are left out.

    Raises `ConfigError`.
    """
    rows = _csv_rows(path) if path.lower().endswith(".csv") else read_entries(path)
    requests = []
    for where, row in rows:
        named = {str(name).strip().lower(): value for name, value in row.items()}
        output = _count(named, _OUTPUT_NAMES, where)
        if output == 0:
            continue
        request = TraceRequest(
            arrival_s=_time_s(_value(named, _TIME_NAMES, where), seconds_per_unit, where),
            num_prompt_tokens=max(1, _count(named, _INPUT_NAMES, where)),
            num_output_tokens=output,
            hash_ids=_hash_ids(named.get("hash_ids"), where),
        )
        _check_hashes(request, tokens_per_hash, where)
        requests.append(request)
    if not requests:
        raise ConfigError(f"{path} has no requests", field="dataset_path")
    return _from_zero(requests)


def _from_zero(requests: list[TraceRequest]) -> list[TraceRequest]:
    ordered = sorted(requests, key=lambda request: request.arrival_s)
    start_s = ordered[0].arrival_s
    return [
        TraceRequest(
            arrival_s=request.arrival_s - start_s,
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_output_tokens,
            hash_ids=request.hash_ids,
        )
        for request in ordered
    ]


def _csv_rows(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    reader = csv.DictReader(io.StringIO(read_text_file(path)))
    for row in reader:
        yield f"{path}, line {reader.line_num}", row


def _value(row: Mapping[str, Any], names: tuple[str, ...], where: str) -> Any:
    for name in names:
        if row.get(name) not in (None, ""):
            return row[name]
    raise ConfigError(f"{where}: no {names[0]}", field="dataset_path")


def _count(row: Mapping[str, Any], names: tuple[str, ...], where: str) -> int:
    value = _value(row, names, where)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not (number >= 0 and number == math.floor(number) and math.isfinite(number)):
        raise ConfigError(
            f"{where}: {names[0]} must be a number of tokens, got {value!r}", field="dataset_path"
        )
    return int(number)


def _time_s(value: Any, seconds_per_unit: float, where: str) -> float:
    """A number of units, or a date and time."""
    try:
        number = float(value) * seconds_per_unit
        if math.isfinite(number):
            return number
    except (TypeError, ValueError):
        pass
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        raise ConfigError(
            f"{where}: timestamp must be a number or a date and time, got {value!r}",
            field="dataset_path",
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _hash_ids(value: Any, where: str) -> tuple[int, ...]:
    if value is None or value == "":
        return ()
    if not isinstance(value, list) or not all(isinstance(number, int) for number in value):
        raise ConfigError(f"{where}: hash_ids must be a list of numbers", field="dataset_path")
    return tuple(value)


def _check_hashes(request: TraceRequest, tokens_per_hash: int, where: str) -> None:
    fitting = -(-request.num_prompt_tokens // tokens_per_hash)
    if request.hash_ids and len(request.hash_ids) != fitting:
        raise ConfigError(
            f"{where}: {len(request.hash_ids)} hash_ids of {tokens_per_hash} tokens do not make"
            f" {request.num_prompt_tokens} tokens; see --timed-trace-chunk-hash-size",
            field="timed_trace_chunk_hash_size",
        )
