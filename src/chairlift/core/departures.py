"""How requests leave: they finish, fail or are aborted, and give back what they hold."""

from __future__ import annotations

from chairlift.core.kv_cache_manager import KVCacheManager
from chairlift.core.request import Request, RequestStatus
from chairlift.core.request_updates import RequestUpdates
from chairlift.core.scheduler_queues import SchedulerQueues
from chairlift.core.step_builder import StepBuilder


class Departures:
    """Ends requests, once each, and writes it into their updates."""

    def __init__(
        self,
        queues: SchedulerQueues,
        kv: KVCacheManager,
        builder: StepBuilder,
        updates: RequestUpdates,
        *,
        holds_finished: bool,
    ) -> None:
        """`holds_finished`: a request that has finished keeps its seat until its batch ends."""
        self._queues = queues
        self._kv = kv
        self._builder = builder
        self._updates = updates
        self._holds_finished = holds_finished

    def finish(self, request: Request, status: RequestStatus) -> None:
        """End a request.  It leaves at once, unless its static batch still runs.

        One that had finished and was held keeps its reason, which was told already.
        """
        was_finished, was_running = request.is_finished, request.status is RequestStatus.RUNNING
        stays = (
            self._holds_finished
            and was_running
            and status in (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH)
        )
        if not was_finished:
            if not was_running:
                self._queues.withdraw(request)
            request.status = status
            update = self._updates.of(request)
            update.finish_reason = request.finish_reason
            update.stop_reason, update.error = request.stop_reason, request.error
        if not stays:
            if was_running or was_finished:
                self._queues.running.remove(request)
            self._release(request)

    def fail(self, request: Request, message: str) -> None:
        """End a request with an error, whatever a step in flight may still yield for it."""
        request.num_pending_tokens = 0
        request.error = message
        self.finish(request, RequestStatus.FINISHED_ERROR)

    def fail_as_too_large(self, request: Request) -> None:
        """It is alone and still lacks memory."""
        self.fail(
            request,
            f"{request.num_tokens} tokens do not fit the KV cache any more:"
            f" it holds {self._kv.capacity_tokens}",
        )

    def end_static_batch(self) -> None:
        """When its last member has finished, a static batch lets everybody go."""
        running = self._queues.running
        if self._holds_finished and all(request.is_finished for request in running):
            for request in running:
                self._release(request)
            running.clear()

    def _release(self, request: Request) -> None:
        """Row and blocks go; whoever waited for its blocks stops waiting."""
        self._kv.free(request)
        self._queues.unpark_forks_of(request)
        del self._queues.requests[request.request_id]
        self._builder.forget(request)
        self._updates.of(request).is_released = True
