"""Prompts from a file: conversations as ShareGPT has them, or lines with a prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chairlift.errors import ConfigError

_CHARACTERS_PER_TOKEN = 4
"""Of English text, roughly: for answers in a file whose lengths nobody has counted."""
_HUMAN, _MODEL = ("human", "user"), ("gpt", "assistant", "chatgpt", "model")


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A prompt, and the output length that the file asks for."""

    prompt: str
    num_output_tokens: int | None


def read_dataset(path: str, name: str) -> list[TextRequest]:
    """All usable requests of a "sharegpt" or "custom" file, in its order.

    Raises `ConfigError`.
    """
    parse = _conversation if name == "sharegpt" else _prompt_line
    found = (parse(entry, where) for where, entry in read_entries(path))
    requests = [request for request in found if request is not None]
    if not requests:
        raise ConfigError(f"{path} has no usable prompt", field="dataset_path")
    return requests


def read_text_file(path: str) -> str:
    """Raises `ConfigError`."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", field="dataset_path") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text", field="dataset_path") from None


def read_entries(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON array or of JSON lines, each with where it stands, for messages.

    Raises `ConfigError`.
    """
    text = read_text_file(path)
    if text.lstrip().startswith("["):
        entries = _parse(text, path)
        assert isinstance(entries, list)
        numbered = [(f"{path}, entry {number}", entry) for number, entry in enumerate(entries, 1)]
    else:
        numbered = [
            (f"{path}, line {number}", _parse(line, f"{path}, line {number}"))
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip()
        ]
    for where, entry in numbered:
        if not isinstance(entry, dict):
            raise ConfigError(f"{where}: not a JSON object", field="dataset_path")
        yield where, entry


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON: {error}", field="dataset_path") from None


def _conversation(entry: dict[str, Any], where: str) -> TextRequest | None:
    """The first question and the length of its answer; None where there are no such two turns."""
    turns = entry.get("conversations") or entry.get("messages")
    if not isinstance(turns, list):
        raise ConfigError(f"{where}: no list of conversations", field="dataset_path")
    spoken = [_turn(turn) for turn in turns if isinstance(turn, dict)]
    spoken = [turn for turn in spoken if turn[0] != "system"][:2]
    if len(spoken) < 2 or spoken[0][0] not in _HUMAN or spoken[1][0] not in _MODEL:
        return None
    (_, question), (_, answer) = spoken
    if not question.strip() or not answer.strip():
        return None
    return TextRequest(question, max(1, len(answer) // _CHARACTERS_PER_TOKEN))


def _turn(turn: dict[str, Any]) -> tuple[str, str]:
    return (
        str(turn.get("from") or turn.get("role") or ""),
        str(turn.get("value") or turn.get("content") or ""),
    )


def _prompt_line(entry: dict[str, Any], where: str) -> TextRequest:
    prompt = entry.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise ConfigError(f"{where}: no prompt", field="dataset_path")
    count = entry.get("output_tokens", entry.get("output_len"))
    is_count = isinstance(count, int) and not isinstance(count, bool) and count >= 1
    if count is not None and not is_count:
        raise ConfigError(
            f"{where}: output_tokens must be a number from 1, got {count!r}", field="dataset_path"
        )
    return TextRequest(prompt, count)
