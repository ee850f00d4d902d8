"""Large answers that are no stream: joined to parts of some size, sent as their client reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starlette.types import Receive, Send

from chairlift.server.disconnect import until_disconnect
from chairlift.server.generation import swept
from chairlift.server.plain_answer import JSON, send_bytes
from chairlift.server.serving import Serving
from chairlift.server.sse import EventStream

_PART_BYTES = 64 * 1024
"""Written at once."""


def in_parts(pieces: Iterable[bytes]) -> list[bytes]:
    """Small pieces of an answer as fewer parts of it."""
    parts, part = [], bytearray()
    for piece in pieces:
        part += piece
        if len(part) >= _PART_BYTES:
            parts.append(bytes(part))
            part.clear()
    return [*parts, bytes(part)] if part or not parts else parts


async def send_parts(
    serving: Serving, parts: Sequence[bytes], receive: Receive, send: Send
) -> None:
    """JSON, as much at once as its client reads: all of it would keep the event loop waiting."""
    if len(parts) == 1:
        return await send_bytes(send, 200, parts[0])
    length = (b"content-length", b"%d" % sum(map(len, parts)))
    async with until_disconnect(receive):
        new = EventStream(send, nudge=lambda: None, headers=[JSON, length])
        async with swept(serving, new) as stream:
            for part in parts[:-1]:
                await stream.write(part)
            await stream.write(parts[-1], is_last=True)
