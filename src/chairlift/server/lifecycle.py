"""From starting to draining: which requests may come in, and when the last one has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.supervisor import EngineSupervisor
from chairlift.errors import EngineDeadError
from chairlift.server.errors import ApiError, unavailable

STARTING_RETRY_S = 2
RESTARTING_RETRY_S = 5
DRAINING_RETRY_S = 10


class Lifecycle:
    """Counts requests for tokens in flight.  Event loop only."""

    def __init__(self, supervisor: EngineSupervisor) -> None:
        self._supervisor = supervisor
        self._tasks: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_draining = False

    @property
    def num_in_flight(self) -> int:
        return len(self._tasks)

    def engine(self) -> AsyncEngine:
        """The engine for a new request.  Raises `ApiError` 503 with the reason."""
        if self.is_draining:
            raise self.draining_error()
        try:
            return self._supervisor.current()
        except EngineDeadError:
            raise self.engine_error() from None

    def draining_error(self) -> ApiError:
        error = unavailable("draining", "the server is shutting down", DRAINING_RETRY_S)
        error.headers.append((b"connection", b"close"))
        return error

    def engine_error(self) -> ApiError:
        """Why there is no engine now."""
        if self.is_draining:
            return self.draining_error()
        if self._supervisor.state == "starting":
            return unavailable("starting", "the model is being loaded", STARTING_RETRY_S)
        if self._supervisor.state == "dead":
            return unavailable("engine_dead", "the engine has failed for good", RESTARTING_RETRY_S)
        return unavailable("engine_restarting", "the engine is being restarted", RESTARTING_RETRY_S)

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """Keep the server from ending while the current task answers."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._idle.clear()
        try:
            yield
        finally:
            self._tasks.discard(task)
            if not self._tasks:
                self._idle.set()

    async def drain(self, timeout_s: float) -> bool:
        """Take no more requests and wait for those in flight; False if some are left."""
        self.is_draining = True
        return await self.wait_idle(timeout_s)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait for requests in flight; False if some are left."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
