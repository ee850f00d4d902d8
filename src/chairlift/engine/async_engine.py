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
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from chairlift.config import EngineConfig
from chairlift.engine.engine import Engine
from chairlift.engine.input_processor import ProcessedInput, Prompt
from chairlift.errors import EngineDeadError
from chairlift.outputs import EmbeddingRequestOutput, RequestOutput
from chairlift.pooling_params import PoolingParams
from chairlift.sampling_params import SamplingParams
from chairlift.thread_start import start_thread

logger = logging.getLogger("chairlift")

_SHUT_DOWN = "the engine has been shut down"


class OutputReader:
    """One task's side of some requests: their newest outputs, and a signal that there are some.

    Outputs are cumulative, so a slow reader skips some and holds no queue.  What ends it stays: an
    error, or the last of the finished outputs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, num_requests: int) -> None:
        self.loop = loop
        self._num_open = num_requests
        self._newest: dict[str, RequestOutput] = {}
        self._error: Exception | None = None
        self._ready = asyncio.Event()

    @property
    def is_finished(self) -> bool:
        """The last output of the last request has been read, or the error that ended it."""
        return self._num_open == 0 and not self._newest

    def put(self, output: RequestOutput) -> None:
        """Called in the event loop."""
        self._num_open -= output.finished
        self._newest[output.request_id] = output
        self._ready.set()

    def fail(self, error: Exception) -> None:
        """Called in the event loop.  The first error stays; what came before it is not lost."""
        if self._error is None and self._num_open:
            self._error = error
            self._ready.set()

    def nudge(self) -> None:
        """Called in the event loop: the next `get` returns, if only with nothing."""
        self._ready.set()

    async def get(self) -> list[RequestOutput]:
        """What is new of each request since the last call.  Raises what ended the requests."""
        await self._ready.wait()
        self._ready.clear()
        if self._newest:
            newest, self._newest = self._newest, {}
            if self._error is not None:
                self._ready.set()
            return list(newest.values())
        if self._error is not None:
            self._num_open = 0
            raise self._error
        return []


class AsyncEngine:
    """Start it with `AsyncEngine(engine)` inside or outside a loop; end it with `shutdown()`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._wake = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._readers: set[OutputReader] = set()
        """Those that somebody reads, known to the engine's thread or not yet."""
        self._streams: dict[str, OutputReader] = {}
        """By request id; the engine's thread only."""
        self.step_started_s: float | None = None
        """When the step under way began, on the engine's clock; None between steps."""
        self._is_stopping = False
        self.failure: str | None = None
        """Why no more requests are taken."""
        self._thread = threading.Thread(target=self._run, name="chairlift-engine", daemon=True)
        start_thread(self._thread)

    @classmethod
    def from_config(cls, asked: EngineConfig) -> AsyncEngine:
        """Load a model.  Raises a `ChairliftError`."""
        return cls(Engine.from_config(asked))

    @property
    def is_alive(self) -> bool:
        return self.failure is None and self._thread.is_alive()

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
    ) -> AsyncIterator[RequestOutput]:
        """Cumulative outputs until the request has finished.  Raises `RequestError`.

        `tenant`: whose request it is, which matters after `Engine.share_fairly`.  Leaving the
        iteration early (break, cancellation) aborts the request.
        """
        request = await asyncio.to_thread(
            self.engine.process_input,
            prompt,
            params,
            request_id=request_id,
            priority=priority,
            cache_salt=cache_salt,
            tenant=tenant,
        )
        with self.submit([request]) as reader:
            while not reader.is_finished:
                for output in await reader.get():
                    yield output

    async def embed(
        self,
        prompt: Prompt,
        params: PoolingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
    ) -> EmbeddingRequestOutput:
        """The vector of a prompt.  Raises `RequestError`.  Cancellation aborts the request."""
        request = await asyncio.to_thread(
            self.engine.process_embedding,
            prompt,
            params,
            request_id=request_id,
            priority=priority,
            cache_salt=cache_salt,
            tenant=tenant,
        )
        with self.submit([request], is_streaming=False) as reader:
            outputs: list[RequestOutput] = []
            while not reader.is_finished:
                outputs = await reader.get() or outputs
        return EmbeddingRequestOutput.of(outputs[0])

    @contextmanager
    def submit(
        self,
        requests: Sequence[ProcessedInput],
        *,
        is_streaming: bool = True,
        deadline_s: float | None = None,
    ) -> Iterator[OutputReader]:
        """Queue processed requests, to be read by the task that calls; leaving aborts the rest.

        The reader raises `RequestError` for a request that cannot fit.  Raises `EngineDeadError`.
        """
        reader = OutputReader(asyncio.get_running_loop(), len(requests))
        self._tell(
            lambda: self._add(requests, reader, is_streaming=is_streaming, deadline_s=deadline_s),
            reader=reader,
        )
        try:
            yield reader
        finally:
            with self._wake:
                self._readers.discard(reader)
            if not reader.is_finished:
                self._tell_if_alive(lambda: self._abort_all(requests, reader))

    async def abort(self, request_id: str) -> None:
        """End a request; its reader gets a last output with finish_reason "abort"."""
        self._tell_if_alive(lambda: self._deliver(self.engine.abort(request_id)))

    def fail(self, reason: str) -> None:
        """Give up: everybody who waits gets `EngineDeadError`, and so does who comes later.

        May be called from any thread, also while a step hangs; the engine's thread ends when it
        comes back.
        """
        with self._wake:
            self.failure = self.failure or reason
            self._is_stopping = True
            self._commands.clear()
            readers, self._readers = self._readers, set()
            self._wake.notify()
        for reader in readers:
            self._call(reader.loop, partial(reader.fail, EngineDeadError(self.failure)))

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the engine's thread to end, which `fail` has asked for; False if it has not."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return False
        self.engine.close()
        return True

    def shutdown(self) -> None:
        """Stop after the step in progress; tasks that still wait get `EngineDeadError`."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        self.join()

    # -- from any thread ---------------------------------------------------------------------
    def _tell(self, command: Callable[[], None], reader: OutputReader | None = None) -> None:
        with self._wake:
            if self.failure is not None or self._is_stopping:
                raise EngineDeadError(self.failure or _SHUT_DOWN)
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
                if self.engine.idle_s() == 0.0:
                    self.step_started_s = self.engine.clock.now()
                    outputs = self.engine.step()
                    self.step_started_s = None
                    self._deliver(outputs)
        except BaseException as error:  # whatever it was: nobody may wait for a thread that is gone
            logger.exception("the engine stopped")
            failure = f"the engine stopped: {type(error).__name__}: {error}"
        self.step_started_s = None
        self.fail(failure)
        self._streams.clear()

    def _wait_for_work(self) -> bool:
        """Sleep until there is a command or a step to make; False when it is time to stop."""
        with self._wake:
            if not self._commands and not self._is_stopping:
                idle_s = self.engine.idle_s()
                if idle_s is None or idle_s > 0:
                    self._wake.wait(idle_s)
            return not self._is_stopping

    def _take_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _add(
        self,
        requests: Sequence[ProcessedInput],
        reader: OutputReader,
        *,
        is_streaming: bool,
        deadline_s: float | None,
    ) -> None:
        """All of them or, if one is refused, none."""
        for index, request in enumerate(requests):
            try:
                self.engine.add(request, is_streaming=is_streaming, deadline_s=deadline_s)
            except ValueError as error:
                self._abort_all(requests[:index], reader)
                self._call(reader.loop, partial(reader.fail, error))
                return
            self._streams[request.request_id] = reader

    def _abort_all(self, requests: Sequence[ProcessedInput], reader: OutputReader) -> None:
        for request in requests:
            self._abort(request.request_id, reader)

    def _abort(self, request_id: str, reader: OutputReader) -> None:
        """Only the request that this reader belongs to: its id may be in use again."""
        if self._streams.get(request_id) is reader:
            del self._streams[request_id]
            self.engine.abort(request_id)  # nobody is left to read its last output

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        """One wake-up per event loop and step."""
        batches: dict[asyncio.AbstractEventLoop, list[tuple[OutputReader, RequestOutput]]] = {}
        for output in outputs:
            reader = self._streams.get(output.request_id)
            if reader is None:
                continue
            if output.finished:
                del self._streams[output.request_id]
            batches.setdefault(reader.loop, []).append((reader, output))
        for loop, batch in batches.items():
            if not self._call(loop, partial(_put_all, batch)):
                for reader, output in batch:
                    self._abort(output.request_id, reader)

    def _call(self, loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> bool:
        """False if that loop is closed: its tasks are gone."""
        try:
            loop.call_soon_threadsafe(function)
        except RuntimeError:
            return False
        return True


def _put_all(batch: list[tuple[OutputReader, RequestOutput]]) -> None:
    for reader, output in batch:
        reader.put(output)
