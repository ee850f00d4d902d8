"""From prompts to outputs for both kinds of completion: deadline, queue, engine, errors.

Knows neither chat nor text completions: what is sent is up to an `AnswerFormat`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel
from starlette.types import Receive, Send

from chairlift.engine.async_engine import AsyncEngine, OutputReader
from chairlift.engine.input_processor import ProcessedInput
from chairlift.errors import EngineDeadError, RequestError
from chairlift.outputs import DEADLINE, CompletionOutput, RequestOutput
from chairlift.server.admission import admitted
from chairlift.server.arrival import Arrival
from chairlift.server.disconnect import until_disconnect
from chairlift.server.errors import (
    ApiError,
    ClientClosed,
    bad_request,
    deadline_exceeded,
    internal_error,
    of_request_error,
)
from chairlift.server.exchange import Exchange
from chairlift.server.plain_answer import send_bytes
from chairlift.server.serving import Serving
from chairlift.server.sse import EventStream

TIMEOUT_HEADER = b"x-request-timeout"
MAX_TIMEOUT_S = 1e9
LONG_ANSWER_CHARS = 8192
"""Longer answers are read and written off the event loop: calls are read character by character."""


class AnswerFormat(Protocol):
    """How outputs become what the client reads."""

    def chunks(self, output: RequestOutput) -> bytes:
        """Events for what is new in `output`; may be none."""
        ...

    def last_chunks(self, outputs: Sequence[RequestOutput]) -> bytes:
        """Events before the end of the stream."""
        ...

    def whole(self, outputs: Sequence[RequestOutput]) -> BaseModel:
        """The answer that is no stream, from finished outputs in the order of the prompts."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Prompts that make one answer."""

    requests: Sequence[ProcessedInput]
    format: AnswerFormat
    is_streaming: bool
    priority: int
    deadline_s: float | None
    before_end: Callable[[], Awaitable[None]] | None = None
    """Done when the format has seen everything and the client is not yet told that its answer is
    whole, or that its stream has failed.  May raise `ApiError`."""


@contextmanager
def api_errors(serving: Serving) -> Iterator[None]:
    """Turns what the engine raises into answers."""
    try:
        yield
    except RequestError as error:
        raise of_request_error(error) from None
    except EngineDeadError:
        raise serving.lifecycle.engine_error() from None


def deadline_of(
    exchange: Exchange, timeout_s: float | None, default_s: float | None
) -> float | None:
    """When the answer is worth nothing any more: by body, header or the server's default."""
    text = exchange.headers.get(TIMEOUT_HEADER)
    if timeout_s is None and text is not None:
        timeout_s = _seconds(text)
    if timeout_s is None:
        timeout_s = default_s
    return None if timeout_s is None else exchange.started_s + timeout_s


def check_deadline(deadline_s: float | None) -> None:
    """Raises `ApiError` 504 if it has passed."""
    if deadline_s is not None and asyncio.get_running_loop().time() >= deadline_s:
        raise deadline_exceeded("the request's time was up before it reached the model")


async def answer(
    serving: Serving,
    engine: AsyncEngine,
    exchange: Exchange,
    job: Job,
    receive: Receive,
    send: Send,
) -> None:
    """Run a job while its client is there, and send what comes.

    Raises `ApiError` and `ClientClosed`.
    """
    arrival = Arrival(
        key_name=exchange.key_name,
        priority=job.priority,
        requests=tuple(job.requests),
        deadline_s=job.deadline_s,
    )
    check_deadline(job.deadline_s)
    with (
        admitted(serving.admission, arrival),
        measured(serving, exchange, job.requests),
        api_errors(serving),
    ):
        async with until_disconnect(receive):
            with engine.submit(
                job.requests, is_streaming=job.is_streaming, deadline_s=job.deadline_s
            ) as reader:
                if job.is_streaming:
                    await _stream(serving, exchange, job, reader, send)
                else:
                    await _send_whole(serving, exchange, job, reader, send)


@contextmanager
def measured(
    serving: Serving, exchange: Exchange, requests: Sequence[ProcessedInput]
) -> Iterator[None]:
    """Counts admitted prompts for the time that the engine has them."""
    serving.metrics.request_admitted(requests)
    try:
        yield
    finally:
        serving.metrics.request_left(exchange, requests)


async def _send_whole(
    serving: Serving, exchange: Exchange, job: Job, reader: OutputReader, send: Send
) -> None:
    finished: dict[str, RequestOutput] = {}
    while not reader.is_finished:
        for output in await reader.get():
            check_output(output, exchange)
            finished[output.request_id] = output
    outputs = [finished[request.request_id] for request in job.requests]
    exchange.outputs = outputs
    num_chars = sum(len(item.text) for output in outputs for item in output.outputs)
    if job.requests[0].params.logprobs is None and num_chars < LONG_ANSWER_CHARS:
        body = job.format.whole(outputs).model_dump_json()
    else:  # so many small objects, or so long a text, would keep the event loop waiting
        body = await serving.in_text_thread(lambda: job.format.whole(outputs).model_dump_json())
    if job.before_end is not None:
        await job.before_end()
    await send_bytes(send, 200, body.encode("utf-8"))


async def _stream(
    serving: Serving, exchange: Exchange, job: Job, reader: OutputReader, send: Send
) -> None:
    wire = exchange.wire
    new = EventStream(send, nudge=reader.nudge, headers=wire.stream_headers)
    async with swept(serving, new) as stream:
        try:
            await _write_chunks(exchange, job, reader, stream)
        except (ApiError, RequestError, EngineDeadError) as error:
            if not stream.is_started:
                raise
            api_error = _told(serving, error)
            exchange.error_code = api_error.code
            data = wire.error_event(api_error) + wire.end
            if job.before_end is not None:
                await job.before_end()
            await stream.write(data, is_last=True)


async def _write_chunks(
    exchange: Exchange, job: Job, reader: OutputReader, stream: EventStream
) -> None:
    newest: dict[str, RequestOutput] = {}
    exchange.outputs = newest.values()
    chunks = job.format.chunks
    while not reader.is_finished:
        outputs = await reader.get()
        if not outputs:
            if exchange.wire.ping:
                await stream.write(exchange.wire.ping)
            continue
        data = b""
        for output in outputs:
            newest[output.request_id] = output
            if output.finished:
                check_output(output, exchange)
            data += chunks(output)
        if reader.is_finished:
            if job.before_end is not None:
                await stream.write(data)
                data = b""
                await job.before_end()
            data += job.format.last_chunks(list(newest.values())) + exchange.wire.end
            await stream.write(data, is_last=True)
        elif data:
            await stream.write(data)


@asynccontextmanager
async def swept(serving: Serving, stream: EventStream) -> AsyncIterator[EventStream]:
    """Gives up a client that does not read: raises `ClientClosed`."""
    serving.sweeper.add(stream)
    try:
        yield stream
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if stream.has_stalled and task is not None and task.uncancel() == 0:
            raise ClientClosed from None
        raise
    finally:
        serving.sweeper.remove(stream)


def _told(serving: Serving, error: Exception) -> ApiError:
    try:
        with api_errors(serving):
            raise error
    except ApiError as told:
        return told


def check_output(output: RequestOutput, exchange: Exchange) -> None:
    """Raises `ApiError` if a finished output is none that was asked for."""
    for completion in output.outputs:
        if completion.finish_reason in ("abort", "error"):
            raise _failure(completion, exchange)


def _failure(completion: CompletionOutput, exchange: Exchange) -> ApiError:
    if completion.finish_reason == "abort" and completion.stop_reason == DEADLINE:
        return deadline_exceeded("the request's time was up before its answer was complete")
    error = completion.error or ""
    if error.startswith("structured_outputs"):
        return bad_request(error, param="structured_outputs", code="grammar_failed")
    is_nan = "logits" in error
    return internal_error(exchange.request_id, code="nan_logits" if is_nan else "internal_error")


def _seconds(text: bytes) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MAX_TIMEOUT_S:
        raise bad_request(
            "the header x-request-timeout must hold seconds above 0", param="x-request-timeout"
        )
    return seconds
