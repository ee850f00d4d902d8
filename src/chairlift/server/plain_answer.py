"""Answers that are no stream."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel
from starlette.types import Send

from chairlift.server.errors import ApiError
from chairlift.server.wire import Wire

JSON = (b"content-type", b"application/json")


async def send_bytes(
    send: Send, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = (JSON,)
) -> None:
    """A whole answer at once."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def send_model(send: Send, answer: BaseModel) -> None:
    """A successful answer as JSON.  Keys that the specification allows to be null stay."""
    await send_bytes(send, 200, answer.model_dump_json().encode("utf-8"))


async def send_error(send: Send, error: ApiError, wire: Wire) -> None:
    status, body = wire.error(error)
    await send_bytes(send, status, body, [JSON, *error.headers])
