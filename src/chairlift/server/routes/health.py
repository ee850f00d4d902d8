"""GET /health, /ready, /ping, /version: for load balancers and people.  Never waits."""

from __future__ import annotations

import json

from starlette.types import Receive, Scope, Send

from chairlift._version import __version__
from chairlift.server.plain_answer import send_bytes
from chairlift.server.serving import Serving


class Health:
    """200 while requests are taken; else 503 with the reason."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._serving.lifecycle.engine()
        await send_bytes(send, 200, b'{"status":"ok"}')


class Version:
    """Which server this is."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_bytes(send, 200, json.dumps({"version": __version__}).encode("ascii"))
