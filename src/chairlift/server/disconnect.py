"""Ends the work for a client that has gone, whatever the work is waiting for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive

from chairlift.server.errors import ClientClosed


@asynccontextmanager
async def until_disconnect(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block when the client goes, and raise `ClientClosed` out of it.

    The body must have been read: nothing but the disconnect may come any more.
    """
    task = asyncio.current_task()
    assert task is not None
    has_gone = False

    async def watch() -> None:
        nonlocal has_gone
        while (await receive())["type"] != "http.disconnect":
            pass
        has_gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if has_gone and task.uncancel() == 0:
            raise ClientClosed from None
        raise
    finally:
        watcher.cancel()
