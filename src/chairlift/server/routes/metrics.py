"""GET /metrics, for Prometheus."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from chairlift.server.exchange import exchange_of
from chairlift.server.plain_answer import send_bytes
from chairlift.server.serving import Serving


class Metrics:
    """All numbers, written in a thread so that streams go on meanwhile."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        accept = exchange_of(scope).headers.get(b"accept", b"").decode("latin-1")
        text, content_type = await self._serving.in_text_thread(self._serving.metrics.text, accept)
        await send_bytes(send, 200, text, [(b"content-type", content_type.encode("latin-1"))])
