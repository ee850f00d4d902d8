"""The synchronous engine: requests in, `RequestOutput`s out, one step at a time.

Joins the edges (text) with the core (integers).  Not thread-safe: `AsyncEngine` gives it a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from chairlift.clock import Clock, WallClock
from chairlift.config import EngineConfig
from chairlift.core.engine_core import EngineCore
from chairlift.core.kv_cache_manager import KVCacheManager
from chairlift.core.scheduler import Scheduler
from chairlift.core.scheduler_output import RequestUpdate
from chairlift.engine.deadlines import Deadlines
from chairlift.engine.input_processor import InputProcessor, ProcessedInput, Prompt
from chairlift.engine.loaded_model import LoadedModel, load_model
from chairlift.engine.output_processor import OutputProcessor
from chairlift.engine.run_summary import RunSummary
from chairlift.engine.step_log import StepLog
from chairlift.errors import RequestError
from chairlift.outputs import DEADLINE, RequestOutput
from chairlift.pooling_params import PoolingParams
from chairlift.sampling_params import SamplingParams

logger = logging.getLogger("chairlift")


class Engine:
    """One loaded model with its queue."""

    def __init__(self, model: LoadedModel, asked: EngineConfig, clock: Clock | None = None) -> None:
        self.model = model
        self.config = asked
        self.clock = clock or WallClock()
        memory = model.resolved.memory
        kv_cache_manager = KVCacheManager(
            memory.num_blocks,
            memory.block_size,
            enable_prefix_caching=model.resolved.enable_prefix_caching,
            num_swap_blocks=memory.num_swap_blocks,
        )
        self.scheduler = Scheduler(model.resolved.scheduler, kv_cache_manager, model.cost)
        self.core = EngineCore(self.scheduler, model.runner, self.clock)
        self.input_processor = InputProcessor(
            model.tokenizer,
            vocab_size=model.config.vocab_size,
            max_model_len=memory.max_model_len,
            defaults=model.defaults.sampling_params(),
            pooling_type=model.pooling_type,
            seed=asked.seed,
        )
        self._output_processor = OutputProcessor(model.tokenizer, self.scheduler)
        self._deadlines = Deadlines()
        self.core.recorder.listen(self._output_processor.book_step)
        self.summary = RunSummary()
        self.core.recorder.listen(self.summary.add)
        self._step_log = None if asked.trace is None else StepLog(asked.trace)
        if self._step_log is not None:
            self.core.recorder.listen(self._step_log.write)

    @classmethod
    def from_config(
        cls,
        asked: EngineConfig,
        *,
        clock: Clock | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
        show_download: bool = False,
    ) -> Engine:
        """Load the model that `asked` names.  Raises a `ChairliftError`."""
        return cls(load_model(asked, progress=progress, show_download=show_download), asked, clock)

    def share_fairly(self, weights: Mapping[str, int]) -> None:
        """Let tenants share the engine by weight, 1 for those not named; before any request."""
        self.scheduler.share_fairly(weights)

    def process_input(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        arrival_time: float | None = None,
    ) -> ProcessedInput:
        """Check and tokenize a request without queueing it.  May run in any thread.

        `arrival_time` is on the engine's clock; now, unless it came earlier.  `tenant`: whose
        request it is, which matters after `share_fairly`.
        """
        return self.input_processor.process(
            prompt,
            params,
            request_id=request_id,
            priority=priority,
            arrival_time=self.clock.now() if arrival_time is None else arrival_time,
            cache_salt=cache_salt,
            tenant=tenant,
        )

    def process_embedding(
        self,
        prompt: Prompt,
        params: PoolingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        arrival_time: float | None = None,
    ) -> ProcessedInput:
        """The same for a prompt of which only the vector is wanted."""
        return self.input_processor.process_embedding(
            prompt,
            params,
            request_id=request_id,
            priority=priority,
            arrival_time=self.clock.now() if arrival_time is None else arrival_time,
            cache_salt=cache_salt,
            tenant=tenant,
        )

    def add(
        self,
        request: ProcessedInput,
        *,
        is_streaming: bool = True,
        deadline_s: float | None = None,
    ) -> str:
        """Queue a processed request; returns its id.  Raises `RequestError` if it cannot fit.

        Without streaming only the finished output is handed over.  At `deadline_s`, on the engine's
        clock, it is aborted; a request that waits until then never reaches the model.
        """
        if request.request_id in self._output_processor:
            raise RequestError(f"request id {request.request_id!r} is in use", field="request_id")
        for index, child in enumerate(request.children):
            try:
                self.core.add_request(child)
            except RequestError:
                for added in request.children[:index]:
                    self.core.abort(added.request_id)
                raise
        self._output_processor.add(request, is_streaming=is_streaming)
        if deadline_s is not None:
            self._deadlines.add(request.request_id, deadline_s)
        return request.request_id

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        is_streaming: bool = True,
    ) -> str:
        """Check, tokenize and queue; returns the request's id.  Raises `RequestError`."""
        request = self.process_input(
            prompt,
            params,
            request_id=request_id,
            priority=priority,
            cache_salt=cache_salt,
            tenant=tenant,
        )
        return self.add(request, is_streaming=is_streaming)

    def abort(self, request_id: str, *, stop_reason: str | None = None) -> list[RequestOutput]:
        """End a request now and free everything it holds; returns its last output, if it lived."""
        updates = []
        for child in self._output_processor.child_ids(request_id):
            update = self.core.abort(child, stop_reason=stop_reason)
            if update is not None:
                updates.append(update)
        return self._process(updates)

    @property
    def has_unfinished_requests(self) -> bool:
        return len(self._output_processor) > 0 or self.core.has_work

    def step(self) -> list[RequestOutput]:
        """One step of the engine; returns what callers should see.

        With nothing to compute but a waiting window open, sleeps until it ends.
        """
        idle_s = self.idle_s()
        if idle_s:
            self.clock.sleep(idle_s)
        outputs = self._expire()
        return outputs + self._process(self.core.step())

    def idle_s(self) -> float | None:
        """Seconds until a step would do something; 0: now; None: not before a request comes."""
        idle_s, deadline_s = self.core.idle_s(), self._deadlines.next_s()
        if idle_s == 0.0 or deadline_s is None:
            return idle_s
        left_s = max(0.0, deadline_s - self.clock.now())
        return left_s if idle_s is None else min(idle_s, left_s)

    def _expire(self) -> list[RequestOutput]:
        """Abort whose deadline has passed, before anything is scheduled."""
        outputs = []
        for request_id in self._deadlines.take_expired(self.clock.now()):
            outputs += self.abort(request_id, stop_reason=DEADLINE)
        return outputs

    def _process(self, updates: list[RequestUpdate]) -> list[RequestOutput]:
        outputs = self._output_processor.process(updates, self.clock.now())
        for output in outputs:
            if output.finished:
                self._deadlines.remove(output.request_id)
        return outputs

    def close(self) -> None:
        """Close the step trace."""
        if self._step_log is not None:
            self._step_log.close()
