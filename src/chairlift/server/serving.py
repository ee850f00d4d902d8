"""What all endpoints share: the options, the engine behind them, the queue in front of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.engine import Engine
from chairlift.engine.supervisor import EngineSupervisor
from chairlift.errors import RequestError
from chairlift.server.admission import AdmissionPolicy, BoundedQueue
from chairlift.server.auth import KeyRing, read_keys
from chairlift.server.errors import of_request_error
from chairlift.server.json_body import BodyBudget
from chairlift.server.lifecycle import Lifecycle
from chairlift.server.metrics_hooks import MetricsHooks
from chairlift.server.queue_room import QueueLimits
from chairlift.server.responses.background_runs import BackgroundRuns
from chairlift.server.responses.response_keeping import open_store
from chairlift.server.served_model import ServedModel, read_template
from chairlift.server.server_config import ServerConfig
from chairlift.server.server_metrics import ServerMetrics
from chairlift.server.sse import StreamSweeper
from chairlift.server.tracing import Tracer, open_tracer

logger = logging.getLogger("chairlift")

T = TypeVar("T")

_BODIES_AT_ONCE = 8
"""Largest bodies whose memory all requests being read may take together."""
_NUM_TEXT_THREADS = 2
"""Templates and tokenizing: enough to keep one long prompt from holding up the others."""


class Serving:
    """One per server.  Event loop only, unless said otherwise."""

    def __init__(
        self,
        config: ServerConfig,
        supervisor: EngineSupervisor,
        *,
        metrics: MetricsHooks | None = None,
        tracer: Tracer | None = None,
        admission: AdmissionPolicy | None = None,
        keys: KeyRing | None = None,
    ) -> None:
        self.config = config
        self.supervisor = supervisor
        self.keys = keys if keys is not None else read_keys(config)
        self.metrics = metrics or ServerMetrics(
            supervisor,
            model_name=next(iter(config.served_model_name), ""),
            compat=config.metrics_compat,
            key_names=self.keys.names,
        )
        self.tracer = tracer or open_tracer(config)
        self.admission: AdmissionPolicy = admission or BoundedQueue(
            QueueLimits(
                max_requests=config.max_queued_requests,
                max_tokens=config.max_queued_tokens,
                max_requests_per_key=config.max_queued_requests_per_key,
                max_tokens_per_key=config.max_queued_tokens_per_key,
            ),
            weights=self.keys.weights,
        )
        self._template_source = read_template(config.chat_template)
        self.lifecycle = Lifecycle(supervisor)
        self.bodies = BodyBudget(_BODIES_AT_ONCE * config.max_body_size)
        self.sweeper = StreamSweeper(
            ping_s=config.ping_interval, stall_s=config.slow_client_timeout
        )
        self.background = BackgroundRuns()
        self.store = open_store(config)
        """Where responses are kept; None if they are not."""
        self._text_pool = ThreadPoolExecutor(_NUM_TEXT_THREADS, "chairlift-text")
        self._grammar_pool = ThreadPoolExecutor(1, "chairlift-grammar")
        self._served: tuple[AsyncEngine, ServedModel] | None = None
        self._prepared: tuple[Engine, ServedModel] | None = None
        supervisor.prepare(self._prepare)
        if self.shares_fairly:
            supervisor.prepare(lambda engine: engine.share_fairly(self.keys.weights))
        supervisor.listen(self.metrics.step_done)
        supervisor.listen(self.admission.step_done)

    @property
    def shares_fairly(self) -> bool:
        """Several keys share the engine by weight."""
        return len(self.keys) > 1

    def engine(self) -> tuple[AsyncEngine, ServedModel]:
        """For a new request.  Raises `ApiError` 503 while there is none."""
        engine = self.lifecycle.engine()
        if self._served is None or self._served[0] is not engine:
            self._served = (engine, self._served_model(engine.engine))
        return self._served

    def _prepare(self, engine: Engine) -> None:
        """In the supervisor's thread: reading ends of files and a chat template takes a while."""
        self._prepared = (engine, self._served_model(engine))

    def _served_model(self, engine: Engine) -> ServedModel:
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared[0] is engine:
            return prepared[1]
        return ServedModel.from_engine(engine, self.config, self._template_source)

    async def in_text_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run what works on text off the event loop.  A `RequestError` becomes an `ApiError`."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._text_pool, function, *arguments)
        except RequestError as error:
            raise of_request_error(error) from None

    async def in_grammar_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run what compiles: it may take a second, and only those who also compile wait for it."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._grammar_pool, function, *arguments)

    def close(self) -> None:
        self.tracer.close()
        self._text_pool.shutdown(wait=False, cancel_futures=True)
        self._grammar_pool.shutdown(wait=False, cancel_futures=True)
        if self.store is not None:
            self.store.close()
