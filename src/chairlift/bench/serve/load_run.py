"""Sends the planned requests and gathers what comes back.

Open loop: each request at its time, whatever the server does.  Closed loop: a number of clients,
each of which sends its next request when it has its answer.  A request's latency counts from the
moment when it was to be sent, so that neither a late client nor a limit on requests in flight
hides how long a user would have waited.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from chairlift.bench.serve.client_load import ClientLoad, ClientWatch
from chairlift.bench.serve.event_stream import EventStreamError
from chairlift.bench.serve.failure import Failure
from chairlift.bench.serve.http_answer import HttpError
from chairlift.bench.serve.http_client import HttpClient
from chairlift.bench.serve.http_connection import ConnectionLostError
from chairlift.bench.serve.planned_request import PlannedRequest
from chairlift.bench.serve.request_record import RequestRecord, record_of
from chairlift.bench.serve.streamed_answer import StreamedAnswer

LONGEST_PAUSE_S = 60.0
"""That a client of a closed loop makes because of a Retry-After."""
PROGRESS_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has got."""

    elapsed_s: float
    num_done: int
    num_requests: int
    num_in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """Everything that was seen."""

    records: list[RequestRecord]
    """In the order of the plan."""
    duration_s: float
    """From the start to the end of the last answer."""
    client: ClientLoad


async def send(
    client: HttpClient, path: str, body: bytes, request_id: str
) -> tuple[StreamedAnswer, Failure | None]:
    """One request: its answer, and what is wrong with it."""
    answer = StreamedAnswer()
    try:
        await client.post(path, body, answer, request_id)
    except TimeoutError:
        return answer, Failure("timeout", "no whole answer within the timeout")
    except ConnectionLostError as error:
        if not answer.has_all:
            return answer, Failure("connection_lost", str(error))
    except OSError as error:
        return answer, Failure("no_connection", str(error))
    except (HttpError, EventStreamError) as error:
        return answer, Failure("bad_answer", str(error))
    return answer, answer.failure()


class LoadRunner:
    """One run of one plan."""

    def __init__(
        self,
        client: HttpClient,
        path: str,
        requests: Sequence[PlannedRequest],
        *,
        run_id: str,
        max_concurrency: int | None,
        is_closed_loop: bool,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """`run_id` begins the id of each request, for the server's log."""
        self._client = client
        self._path = path
        self._requests = requests
        self._run_id = run_id
        self._max_concurrency = max_concurrency
        self._is_closed_loop = is_closed_loop
        self._on_progress = on_progress
        self._records: list[RequestRecord] = []
        self._num_sent = 0
        self._start_s = 0.0

    async def run(self) -> LoadRun:
        """Send all; return when all have ended."""
        gc.collect()
        gc.freeze()  # the plan is large and stays: looking through it again would stop the loop
        watch = ClientWatch()
        watch.start()
        self._start_s = time.monotonic()
        reporting = asyncio.create_task(self._report())
        try:
            await (self._run_closed() if self._is_closed_loop else self._run_open())
        finally:
            reporting.cancel()
            client_load = watch.stop()
            gc.unfreeze()
        return LoadRun(
            records=sorted(self._records, key=lambda record: record.index),
            duration_s=max(record.finished_s for record in self._records),
            client=client_load,
        )

    async def _run_closed(self) -> None:
        assert self._max_concurrency is not None
        left = iter(self._requests)
        async with asyncio.TaskGroup() as clients:
            for _ in range(min(self._max_concurrency, len(self._requests))):
                clients.create_task(self._be_client(left))

    async def _be_client(self, left: Iterator[PlannedRequest]) -> None:
        for request in left:
            record = await self._send(request, self._now_s())
            if record.failure is not None and record.retry_after_s is not None:
                await asyncio.sleep(min(record.retry_after_s, LONGEST_PAUSE_S))

    async def _run_open(self) -> None:
        seats = asyncio.Semaphore(self._max_concurrency or len(self._requests))
        async with asyncio.TaskGroup() as sending:
            for request in self._requests:
                pause_s = request.arrival_s - self._now_s()
                if pause_s > 0.0:
                    await asyncio.sleep(pause_s)
                sending.create_task(self._send_seated(request, seats))

    async def _send_seated(self, request: PlannedRequest, seats: asyncio.Semaphore) -> None:
        async with seats:
            await self._send(request, request.arrival_s)

    async def _send(self, request: PlannedRequest, intended_s: float) -> RequestRecord:
        self._num_sent += 1
        sent_s = self._now_s()
        answer, failure = await send(
            self._client, self._path, request.body, f"{self._run_id}-{request.index}"
        )
        record = record_of(
            answer,
            failure,
            index=request.index,
            num_output_tokens_asked=request.num_output_tokens,
            start_s=self._start_s,
            intended_s=intended_s,
            sent_s=sent_s,
            finished_s=self._now_s(),
        )
        self._records.append(record)
        return record

    def _now_s(self) -> float:
        return time.monotonic() - self._start_s

    async def _report(self) -> None:
        while self._on_progress is not None:
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            done = len(self._records)
            self._on_progress(
                Progress(self._now_s(), done, len(self._requests), self._num_sent - done)
            )
