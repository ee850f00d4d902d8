"""Responses that are made while no client waits: they run, can be asked for and cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from starlette.types import Message

logger = logging.getLogger("chairlift")


@dataclass(slots=True)
class BackgroundRun:
    """One response that is being made."""

    tenant: str
    task: asyncio.Task[None]


class BackgroundRuns:
    """All that are being made.  Event loop only."""

    def __init__(self) -> None:
        self._runs: dict[str, BackgroundRun] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def start(self, id: str, tenant: str, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """`work` begins when the caller waits for something next; it must not raise."""
        task = asyncio.get_running_loop().create_task(work())
        self._runs[id] = BackgroundRun(tenant, task)
        task.add_done_callback(lambda _: self._runs.pop(id, None))

    def is_running(self, id: str, tenant: str) -> bool:
        return self._of(id, tenant) is not None

    async def cancel(self, id: str, tenant: str) -> bool:
        """End one and wait until it has ended; False if there is none."""
        run = self._of(id, tenant)
        if run is None:
            return False
        run.task.cancel()
        await asyncio.wait([run.task])
        return True

    def _of(self, id: str, tenant: str) -> BackgroundRun | None:
        run = self._runs.get(id)
        return run if run is not None and run.tenant == tenant else None


async def never_gone() -> Message:
    """Receives from a client that does not wait, and so does not go."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("the future of a client that is not there")


async def send_to_nobody(message: Message) -> None:
    """What a client would have got."""
