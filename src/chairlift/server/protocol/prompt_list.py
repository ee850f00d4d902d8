"""One prompt or many in a JSON value: a text, texts, token ids, or lists of token ids."""

from __future__ import annotations

from typing import Any

from chairlift.server.long_lists import are_within, kinds_of
from chairlift.server.protocol.sampling_fields import INT32_MAX

PromptList = list[str] | list[list[int]]


def read_prompts(value: Any, max_prompts: int) -> PromptList:
    """Every allowed form as a list of texts or of token lists.  Raises ValueError."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ValueError("must be a string, a list of strings, token ids, or lists of token ids")
    if not value:
        raise ValueError("must not be empty")
    kinds = kinds_of(value)
    if kinds == {int}:
        _check_range(value)
        return [value]
    if len(value) > max_prompts:
        raise ValueError(f"takes at most {max_prompts} prompts")
    if kinds == {str}:
        return value
    if kinds == {list}:
        return [_token_ids(ids) for ids in value]
    raise ValueError("must hold strings only, token ids only, or lists of token ids only")


def prompts_schema(max_prompts: int) -> dict[str, Any]:
    """The JSON schema of what `read_prompts` takes."""
    text = {"type": "string", "minLength": 1}
    token_ids = {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": INT32_MAX},
        "minItems": 1,
    }
    many = {"type": "array", "minItems": 1, "maxItems": max_prompts}
    return {"anyOf": [text, {**many, "items": text}, token_ids, {**many, "items": token_ids}]}


def _token_ids(ids: list[Any]) -> list[int]:
    if not ids:
        raise ValueError("must not hold an empty list of token ids")
    if kinds_of(ids) != {int}:
        raise ValueError("token ids must be integers")
    _check_range(ids)
    return ids


def _check_range(ids: list[int]) -> None:
    if not are_within(ids, 0, INT32_MAX):
        raise ValueError("holds a token id that is out of vocabulary")
