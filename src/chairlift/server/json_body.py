"""Reads a request's body within limits and parses it strictly.

The standard library's parser takes NaN and half surrogate pairs and dies of deep nesting; this one
refuses them, and refuses before it parses what would only cost time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json
from starlette.types import Receive

from chairlift.server.errors import (
    ApiError,
    ClientClosed,
    bad_request,
    queue_full,
    too_large,
    too_slow,
    unsupported_media_type,
)
from chairlift.server.long_lists import kinds_of

MAX_DEPTH = 64
MAX_VALUES = 262_144
"""Members of all arrays and objects together: parsing keeps the event loop waiting, so what could
not be served anyhow is not parsed."""
IDLE_TIMEOUT_S = 20.0
TOTAL_TIMEOUT_S = 120.0

MAX_BYTES_PER_CHARACTER = 6
"""Of a text in JSON, escaped."""
MAX_OTHER_BYTES = 1 << 20
"""Everything in a conversation but its text."""

_BRACKETS = bytes.maketrans(b"]{}", b"[[[")

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """What is refused while it arrives."""

    max_bytes: int
    """More is status 413."""
    max_useful_bytes: int | None = None
    """More cannot fit the model's context."""
    max_text_bytes: int | None = None
    """A single text of more cannot fit the model's context."""
    max_list_values: int | None = None
    """A single list of more has more numbers than the model's context and its vocabulary."""

    @classmethod
    def of_one_text(cls, max_bytes: int, max_chars: int) -> BodyLimits:
        """For a request with one prompt."""
        return cls(
            max_bytes=max_bytes,
            max_useful_bytes=MAX_BYTES_PER_CHARACTER * max_chars + MAX_OTHER_BYTES,
        )

    @classmethod
    def of_many_texts(
        cls, max_bytes: int, max_chars: int, *, max_list_values: int | None = None
    ) -> BodyLimits:
        """For a request with any number of prompts."""
        return cls(
            max_bytes=max_bytes,
            max_text_bytes=MAX_BYTES_PER_CHARACTER * max_chars,
            max_list_values=max_list_values,
        )


class BodyBudget:
    """Memory for all bodies that are being read or not yet turned into tokens."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """A function that takes more bytes, and raises `ApiError` 429 if there are none left."""
        num_taken = 0

        def take(num_bytes: int) -> None:
            nonlocal num_taken
            if self._num_bytes + num_bytes > self._max_bytes:
                raise queue_full("too many large requests are being read", 1)
            self._num_bytes += num_bytes
            num_taken += num_bytes

        try:
            yield take
        finally:
            self._num_bytes -= num_taken


async def read_bytes(
    headers: Mapping[bytes, bytes],
    receive: Receive,
    *,
    limits: BodyLimits,
    take: Callable[[int], None] = lambda num_bytes: None,
    more_types: Collection[bytes] = (),
) -> bytearray:
    """The body of a request.  Raises `ApiError` and `ClientClosed`.

    `take` is told of bytes as they come, and may refuse them.  `more_types`: what the body may be
    called besides JSON.
    """
    _check_headers(headers, limits, more_types)
    return await _read(receive, limits, take)


def parse_json_object(data: bytes | bytearray) -> JsonObject:
    """Raises `ApiError` unless `data` is one JSON object of bounded depth and size."""
    if not data:
        raise _invalid("the body is empty; it must be a JSON object")
    try:
        value = from_json(data, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise _invalid(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise _invalid("the body must be a JSON object")
    if not has_depth_within(value, MAX_DEPTH):
        raise _invalid(f"the body is nested deeper than {MAX_DEPTH} levels")
    return value


def has_depth_within(value: object, max_depth: int) -> bool:
    """Whether containers are nested at most `max_depth` deep."""
    level = [value]
    for _ in range(max_depth):
        level = [child for container in level for child in _containers(container)]
        if not level:
            return True
    return False


def _containers(value: object) -> list[object]:
    items = value.values() if isinstance(value, dict) else value
    assert isinstance(items, (list, type({}.values())))
    kinds = kinds_of(items)  # long arrays of numbers are passed over quickly
    if dict not in kinds and list not in kinds:
        return []
    return [item for item in items if isinstance(item, (dict, list))]


def _check_headers(
    headers: Mapping[bytes, bytes], limits: BodyLimits, more_types: Collection[bytes]
) -> None:
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in (b"identity", b""):
        raise unsupported_media_type("compressed bodies are not accepted; send plain JSON")
    kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    is_json = kind == b"application/json" or kind.endswith(b"+json")
    if kind and not is_json and kind not in more_types:
        raise unsupported_media_type(
            f"the body must be application/json, not {kind[:60].decode('ascii', 'replace')}"
        )
    length = headers.get(b"content-length")
    if length is not None and length.isdigit():
        _check_size(int(length[:20]), limits)


def _check_size(num_bytes: int, limits: BodyLimits) -> None:
    if num_bytes > limits.max_bytes:
        raise too_large(limits.max_bytes)
    if limits.max_useful_bytes is not None and num_bytes > limits.max_useful_bytes:
        raise _does_not_fit()


def _does_not_fit() -> ApiError:
    return bad_request(
        "the text is longer than the model's context, whatever its tokens are",
        code="context_length_exceeded",
    )


class _Scan:
    """Looks at a body as it arrives for what could not be served.

    It tells texts from what is around them, so that their commas and brackets do not count.
    """

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self._num_bytes = self._num_values = self._num_text_bytes = 0
        self._is_in_text = False
        self._num_list_values = 0
        """Numbers since the last bracket, each with a comma."""
        self._rest = b""
        """A backslash whose character has not arrived."""

    def see(self, part: bytes) -> None:
        """Raises `ApiError`."""
        self._num_bytes += len(part)
        _check_size(self._num_bytes, self._limits)
        pieces = self._without_escapes(part).split(b'"')
        around = b"".join(pieces[self._is_in_text :: 2])
        self._num_values += around.count(b",") + around.count(b"[") + around.count(b"{")
        if self._num_values > MAX_VALUES:
            raise bad_request(f"the body has more than {MAX_VALUES} members")
        self._see_lists(around)
        texts = pieces[not self._is_in_text :: 2]
        if texts and self._is_in_text:
            self._num_text_bytes += len(texts[0])
            texts = texts[1:]
        longest = max(map(len, texts), default=0)
        max_text_bytes = self._limits.max_text_bytes
        if max_text_bytes is not None and max(self._num_text_bytes, longest) > max_text_bytes:
            raise _does_not_fit()
        if len(pieces) > 1:
            self._is_in_text ^= len(pieces) % 2 == 0
            self._num_text_bytes = len(pieces[-1]) if self._is_in_text else 0

    def _see_lists(self, around: bytes) -> None:
        """Counts values between brackets; looks at every list only where one could be too long."""
        maximum = self._limits.max_list_values
        if maximum is None:
            return
        around = around.translate(_BRACKETS)
        if self._num_values < maximum:
            _, bracket, last = around.rpartition(b"[")
            self._num_list_values = _num_numbers(last) + (0 if bracket else self._num_list_values)
            return
        first, *others = around.split(b"[")
        counts = [self._num_list_values + _num_numbers(first), *map(_num_numbers, others)]
        self._num_list_values = counts[-1]
        if max(counts) >= maximum:
            raise bad_request(
                f"a list of more than {maximum} numbers is longer than the model's context and its"
                " vocabulary",
                code="context_length_exceeded",
            )

    def _without_escapes(self, part: bytes) -> bytes:
        """The part without escaped quotation marks and backslashes, if it holds any."""
        if b"\\" not in part and not self._rest:
            return part
        part = self._rest + part
        num_backslashes = len(part) - len(part.rstrip(b"\\"))
        self._rest = b"\\" * (num_backslashes % 2)
        part = part[: len(part) - len(self._rest)]
        return part.replace(b"\\\\", b"").replace(b'\\"', b"")


def _num_numbers(run: bytes) -> int:
    """Commas between what is no text: of a list of texts nothing else is left, of objects colons.

    At the end of a part the last comma may have nothing beside it.
    """
    if b":" in run:
        return 0
    number = run.count(b",")
    return number if len(run.translate(None, b", \t\r\n")) >= number - 1 else 0


async def _read(receive: Receive, limits: BodyLimits, take: Callable[[int], None]) -> bytearray:
    data = bytearray()  # grows in place: joining parts would keep the event loop waiting
    scan = _Scan(limits)
    try:
        async with asyncio.timeout(TOTAL_TIMEOUT_S):
            while True:
                async with asyncio.timeout(IDLE_TIMEOUT_S):
                    message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientClosed
                part = message.get("body", b"")
                scan.see(part)
                take(len(part))
                data += part
                if not message.get("more_body", False):
                    return data
    except TimeoutError:
        raise too_slow("the body did not arrive in time") from None


def _invalid(message: str) -> ApiError:
    return bad_request(message, code="invalid_json")
