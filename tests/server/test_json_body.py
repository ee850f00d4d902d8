"""What a body is refused for while it arrives: counts of what is in it, not of how it looks."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.server import json_body
from chairlift.server.errors import ApiError
from chairlift.server.json_body import BodyLimits, parse_json_object, read_bytes

LIMITS = BodyLimits(max_bytes=32 << 20)
HEADERS = {b"content-type": b"application/json"}


def read(data: bytes, cuts: Sequence[int] = (), limits: BodyLimits = LIMITS) -> Any:
    """The object, of a body that arrives in pieces."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    parts = [data[start:end] for start, end in zip(edges, edges[1:], strict=False)]

    async def receive() -> Any:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    return parse_json_object(asyncio.run(read_bytes(HEADERS, receive, limits=limits)))


def num_members(value: object) -> int:
    """Commas and opening brackets, as the limit counts them."""
    if isinstance(value, dict):
        return max(1, len(value)) + sum(map(num_members, value.values()))
    if isinstance(value, list):
        return max(1, len(value)) + sum(map(num_members, value))
    return 0


def longest_text(value: object) -> int:
    if isinstance(value, str):
        return len(json.dumps(value)) - 2
    if isinstance(value, dict):
        return max(map(longest_text, [*value, *value.values()]), default=0)
    return max(map(longest_text, value), default=0) if isinstance(value, list) else 0


TEXTS = st.text(st.sampled_from('a,[]{}:"\\\n\u00e9\U0001f600'), max_size=12)
VALUES = st.recursive(
    TEXTS | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(TEXTS, VALUES, max_size=5), st.lists(st.integers(0, 10**6), max_size=9))
def test_members_are_counted_however_the_body_is_cut(value: Any, cuts: list[int]) -> None:
    data, count = json.dumps(value).encode(), num_members(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_body, "MAX_VALUES", count)
        assert read(data, cuts) == value
        patch.setattr(json_body, "MAX_VALUES", count - 1)
        with pytest.raises(ApiError, match=f"more than {count - 1} members"):
            read(data, cuts)


@settings(deadline=None)
@given(st.dictionaries(TEXTS, VALUES, max_size=5), st.lists(st.integers(0, 10**6), max_size=9))
def test_no_text_within_the_limit_is_refused(value: Any, cuts: list[int]) -> None:
    limits = BodyLimits(max_bytes=1 << 20, max_text_bytes=longest_text(value))
    assert read(json.dumps(value).encode(), cuts, limits) == value


@pytest.mark.parametrize("size", [1000, 1 << 16])
def test_text_beyond_the_limit_is_refused_for_its_length(size: int) -> None:
    limits = BodyLimits(max_bytes=1 << 20, max_text_bytes=6000)
    data = json.dumps({"prompt": ["ok", ",[{" * 2001], "n": 1}).encode()
    with pytest.raises(ApiError) as caught:
        read(data, range(0, len(data), size), limits)
    assert caught.value.code == "context_length_exceeded"


def longest_run(value: object) -> int:
    """Numbers of the longest list, as the limit counts them: up to a bracket."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', "", json.dumps(value))
    return 1 + max(run.count(",") for run in re.split(r"[][{}]", text) if ":" not in run)


NUMBERS = st.recursive(
    st.integers() | st.booleans() | st.none(), lambda inner: st.lists(inner), max_leaves=12
)


@settings(deadline=None)
@given(st.dictionaries(TEXTS, NUMBERS, max_size=5), st.lists(st.integers(0, 10**6), max_size=9))
def test_numbers_of_a_list_are_counted_however_the_body_is_cut(value: Any, cuts: list[int]) -> None:
    data, longest = json.dumps(value).encode(), longest_run(value)
    limits = BodyLimits(max_bytes=1 << 20, max_list_values=longest + len(cuts))
    assert read(data, cuts, limits) == value, "where members are cut, one may be taken for a number"
    if longest > 1:
        limits = BodyLimits(max_bytes=1 << 20, max_list_values=longest - 1)
        with pytest.raises(ApiError) as caught:
            read(data, cuts, limits)
        assert caught.value.code == "context_length_exceeded"


def test_lists_of_texts_are_no_lists_of_numbers() -> None:
    body = {"prompt": ["1, 2"] * 2000}
    limits = BodyLimits(max_bytes=1 << 20, max_list_values=5)
    assert read(json.dumps(body).encode(), [100, 1000, 5000], limits) == body


def test_many_short_lists_are_no_long_one() -> None:
    lists = [[5] * 200] * 1000
    limits = BodyLimits(max_bytes=32 << 20, max_list_values=1001)
    data = json.dumps({"prompt": lists}).encode()
    assert read(data, range(0, len(data), 1 << 16), limits) == {"prompt": lists}


def test_text_full_of_commas_is_no_crowd_of_members() -> None:
    text = "a, b [c] {d} " * 40_000
    assert read(json.dumps({"prompt": text}).encode())["prompt"] == text
