"""The engine for asyncio: it steps in a thread of its own, and many tasks share it.

Requests and aborts travel through one queue into the thread; outputs travel back with one wake-up
of the event loop per step.  A task that stops reading (or is cancelled) aborts its request.  If
the loop itself fails, every waiting task gets `EngineDeadError`; nobody waits for ever.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial

from chairlift.config import EngineConfig
from chairlift.engine.engine import Engine
from chairlift.engine.input_processor import ProcessedInput, Prompt
from chairlift.errors import EngineDeadError
from chairlift.outputs import RequestOutput
from chairlift.sampling_params import SamplingParams

logger = logging.getLogger("chairlift")

_Answer = RequestOutput | Exception
_SHUT_DOWN = "the engine has been shut down"


class _Stream:
    """One task's side of a request: the newest output, and a signal that there is one.

    Outputs are cumulative, so a slow reader skips some and holds no queue.  What ends the stream,
    a finished output or an error, stays.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._latest: _Answer | None = None
        self._is_ended = False
        self._ready = asyncio.Event()

    def put(self, answer: _Answer) -> None:
        """Called in the event loop."""
        if not self._is_ended:
            self._is_ended = isinstance(answer, Exception) or answer.finished
            self._latest = answer
            self._ready.set()

    async def get(self) -> RequestOutput:
        await self._ready.wait()
        self._ready.clear()
        answer = self._latest
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None
        return answer


class AsyncEngine:
    """Start it with `AsyncEngine(engine)` inside or outside a loop; end it with `shutdown()`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._wake = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._readers: set[_Stream] = set()
        """Streams that somebody reads, known to the engine's thread or not yet."""
        self._streams: dict[str, _Stream] = {}
        """By request id; the engine's thread only."""
        self._is_stopping = False
        self._failure: str | None = None
        """Why no more requests are taken."""
        self._thread = threading.Thread(target=self._run, name="chairlift-engine", daemon=True)
        self._thread.start()

    @classmethod
    def from_config(cls, asked: EngineConfig) -> AsyncEngine:
        """Load a model.  Raises a `ChairliftError`."""
        return cls(Engine.from_config(asked))

    @property
    def is_alive(self) -> bool:
        return self._failure is None and self._thread.is_alive()

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncIterator[RequestOutput]:
        """Cumulative outputs until the request has finished.  Raises `RequestError`.

        Leaving the iteration early (break, cancellation) aborts the request.
        """
        loop = asyncio.get_running_loop()
        request = await asyncio.to_thread(
            self.engine.process_input,
            prompt,
            params,
            request_id=request_id,
            priority=priority,
            cache_salt=cache_salt,
        )
        stream = _Stream(loop)
        self._tell(lambda: self._add(request, stream), reader=stream)
        is_finished = False
        try:
            while not is_finished:
                output = await stream.get()
                is_finished = output.finished
                yield output
        finally:
            with self._wake:
                self._readers.discard(stream)
            if not is_finished:
                self._tell_if_alive(lambda: self._abort(request.request_id, stream))

    async def abort(self, request_id: str) -> None:
        """End a request; its reader gets a last output with finish_reason "abort"."""
        self._tell_if_alive(lambda: self._deliver(self.engine.abort(request_id)))

    def shutdown(self) -> None:
        """Stop after the step in progress; tasks that still wait get `EngineDeadError`."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self.engine.close()

    # -- from any thread ---------------------------------------------------------------------
    def _tell(self, command: Callable[[], None], reader: _Stream | None = None) -> None:
        with self._wake:
            if self._failure is not None or self._is_stopping:
                raise EngineDeadError(self._failure or _SHUT_DOWN)
            if reader is not None:
                self._readers.add(reader)
            self._commands.append(command)
            self._wake.notify()

    def _tell_if_alive(self, command: Callable[[], None]) -> None:
        try:
            self._tell(command)
        except EngineDeadError:
            return

    # -- in the engine's thread --------------------------------------------------------------
    def _run(self) -> None:
        failure = _SHUT_DOWN
        try:
            while self._wait_for_work():
                self._take_commands()
                if self.engine.core.idle_s() == 0.0:
                    self._deliver(self.engine.step())
        except BaseException as error:  # whatever it was: nobody may wait for a thread that is gone
            logger.exception("the engine stopped")
            failure = f"the engine stopped: {type(error).__name__}: {error}"
        with self._wake:
            self._failure = failure
            self._commands.clear()
            readers, self._readers = self._readers, set()
        for stream in readers:
            self._put(stream, EngineDeadError(failure))
        self._streams.clear()

    def _wait_for_work(self) -> bool:
        """Sleep until there is a command or a step to make; False when it is time to stop."""
        with self._wake:
            if not self._commands and not self._is_stopping:
                idle_s = self.engine.core.idle_s()
                if idle_s is None or idle_s > 0:
                    self._wake.wait(idle_s)
            return not self._is_stopping

    def _take_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _add(self, request: ProcessedInput, stream: _Stream) -> None:
        try:
            self.engine.add(request)
        except ValueError as error:
            self._put(stream, error)
        else:
            self._streams[request.request_id] = stream

    def _abort(self, request_id: str, stream: _Stream) -> None:
        """Only the request that this stream belongs to: its id may be in use again."""
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            self.engine.abort(request_id)  # nobody is left to read its last output

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        """One wake-up per event loop and step."""
        batches: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, RequestOutput]]] = {}
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                continue
            if output.finished:
                del self._streams[output.request_id]
            batches.setdefault(stream.loop, []).append((stream, output))
        for loop, batch in batches.items():
            if not self._call(loop, partial(_put_all, batch)):
                for stream, output in batch:
                    self._abort(output.request_id, stream)

    def _put(self, stream: _Stream, answer: _Answer) -> None:
        self._call(stream.loop, partial(stream.put, answer))

    def _call(self, loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> bool:
        """False if that loop is closed: its tasks are gone."""
        try:
            loop.call_soon_threadsafe(function)
        except RuntimeError:
            return False
        return True


def _put_all(batch: list[tuple[_Stream, RequestOutput]]) -> None:
    for stream, output in batch:
        stream.put(output)
