"""What is counted and timed while the server runs.

Requests are followed by the step records, in the engine's thread; how they ended is booked in the
event loop.  Every number has one writing thread, so nothing here takes a lock; the names under
which Prometheus reads them are in `metric_families.py`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from chairlift.engine.input_processor import ProcessedInput
from chairlift.engine.supervisor import EngineSupervisor
from chairlift.events import StepRecord
from chairlift.server.errors import CLIENT_CLOSED
from chairlift.server.exchange import Exchange
from chairlift.server.histogram import Histogram
from chairlift.server.metric_families import FamilyCollector
from chairlift.server.metrics_hooks import MetricsHooks
from chairlift.server.protocol.field_policy import WITHOUT_EFFECT
from chairlift.server.request_timeline import RequestTimeline
from chairlift.server.server_config import MetricsCompat

REQUEST_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
TOKEN_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip
LAG_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 65_536)

_TICK_S = 0.1
_MAX_CAUSES = 64
"""Causes are codes of ours; a bound all the same, since each is a time series for ever."""
MAX_KEYS = 100
"""API keys with time series of their own; the rest are counted together."""
OTHER_KEYS = "other"
_TURNED_AWAY = 429


class ServerMetrics(MetricsHooks):
    """One per server."""

    def __init__(
        self,
        supervisor: EngineSupervisor,
        *,
        model_name: str = "",
        compat: MetricsCompat = "vllm",
        key_names: Sequence[str] = (),
    ) -> None:
        """`model_name` is what vLLM's names are labelled with; "" takes the engine's.

        `key_names`: of API keys; if there are several, each is counted by itself.
        """
        names = key_names if len(key_names) > 1 else ()
        self.key_labels = [*names[:MAX_KEYS], *([OTHER_KEYS] if len(names) > MAX_KEYS else [])]
        self._label_of_key = {name: name for name in names[:MAX_KEYS]}
        # Written by the engine's thread.
        self.time_to_first_token_s = Histogram(REQUEST_S)
        self.inter_token_s = Histogram(TOKEN_S)
        self.queue_s = Histogram(REQUEST_S)
        self.prefill_s = Histogram(REQUEST_S)
        self.step_s = Histogram(TOKEN_S)
        self.step_tokens = Histogram(TOKENS)
        self.engine_lag_s = Histogram(LAG_S)
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0
        self.num_prefilled_tokens = 0
        self.num_swapped_bytes = 0
        self.num_failed_steps = 0
        self.steps: Counter[str] = Counter()
        self.preemptions: Counter[str] = Counter({"recompute": 0, "swap": 0})
        self.prompt_tokens_by_key = Counter(dict.fromkeys(self.key_labels, 0))
        self.generated_tokens_by_key = Counter(dict.fromkeys(self.key_labels, 0))
        self._last_step: StepRecord | None = None
        # Written by the event loop.
        self.end_to_end_s = Histogram(REQUEST_S)
        self.decode_s = Histogram(REQUEST_S)
        self.time_per_output_token_s = Histogram(TOKEN_S)
        self.request_prompt_tokens = Histogram(TOKENS)
        self.request_generated_tokens = Histogram(TOKENS)
        self.event_loop_lag_s = Histogram(LAG_S)
        self.finished: Counter[str] = Counter(dict.fromkeys(("stop", "length", "abort"), 0))
        self.answers: Counter[tuple[str, int]] = Counter()
        self.rejections: Counter[str] = Counter()
        self.ignored_fields: Counter[str] = Counter()
        self.requests_by_key = Counter(dict.fromkeys(self.key_labels, 0))
        self.turned_away_by_key = Counter(dict.fromkeys(self.key_labels, 0))
        self.num_disconnects = 0
        self.num_rebuilds = 0
        self._timelines: dict[str, RequestTimeline] = {}
        """By the engine's name of a completion; the event loop adds and removes."""
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(
            FamilyCollector(self, supervisor, model_name=model_name, has_vllm=compat == "vllm")
        )

    # -- event loop --------------------------------------------------------------------------
    def request_admitted(self, requests: Sequence[ProcessedInput]) -> None:
        for request in requests:
            for index, child in enumerate(request.children):
                label = self._label(child.tenant)
                timeline = RequestTimeline.of(child, is_first=index == 0, key_label=label)
                self._timelines[child.request_id] = timeline
                if label is not None:
                    self.requests_by_key[label] += index == 0

    def request_left(self, exchange: Exchange, requests: Sequence[ProcessedInput]) -> None:
        reasons = _finish_reasons(exchange)
        for request in requests:
            for index, child in enumerate(request.children):
                timeline = self._timelines.pop(child.request_id, None)
                if timeline is not None:
                    told = reasons.get((request.request_id, index)) or timeline.finish_reason
                    self._book_end(timeline, told or "abort", exchange.duration_s)

    def request_rejected(self, exchange: Exchange, cause: str) -> None:
        if cause not in self.rejections and len(self.rejections) >= _MAX_CAUSES:
            cause = "other"
        self.rejections[cause] += 1

    def request_finished(self, exchange: Exchange) -> None:
        self.answers[exchange.endpoint or "other", exchange.status] += 1
        self.num_disconnects += exchange.status == CLIENT_CLOSED
        if exchange.status == _TURNED_AWAY:
            label = self._label(exchange.key_name)
            if label is not None:
                self.turned_away_by_key[label] += 1

    def fields_ignored(self, names: Sequence[str]) -> None:
        for name in names:
            self.ignored_fields[name if name in WITHOUT_EFFECT else "other"] += 1

    def engine_rebuilt(self) -> None:
        self.num_rebuilds += 1

    async def run(self) -> None:
        """Measure how late the event loop comes to what is due."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self.event_loop_lag_s.observe(max(0.0, loop.time() - due_s))

    def completions_by_key(self) -> tuple[Counter[str], Counter[str]]:
        """Completions in the batch and in line, by key.  In any thread."""
        running, waiting = (Counter(dict.fromkeys(self.key_labels, 0)) for _ in range(2))
        for timeline in list(self._timelines.values()):
            if timeline.key_label is not None:
                counts = waiting if timeline.first_scheduled_s is None else running
                counts[timeline.key_label] += 1
        return running, waiting

    def _label(self, key_name: str) -> str | None:
        """What a key's series are called; None where keys are not counted."""
        if not self.key_labels or not key_name:
            return None
        return self._label_of_key.get(key_name, OTHER_KEYS)

    def _book_end(self, timeline: RequestTimeline, reason: str, end_to_end_s: float) -> None:
        self.finished[reason] += 1
        if reason in ("abort", "error"):
            return  # its times would say how patient clients are
        self.end_to_end_s.observe(end_to_end_s)
        self.request_prompt_tokens.observe(timeline.num_prompt_tokens)
        self.request_generated_tokens.observe(timeline.num_tokens)
        decode_s = timeline.decode_s
        if decode_s is not None:
            self.decode_s.observe(decode_s)
            if timeline.num_tokens > 1:
                self.time_per_output_token_s.observe(decode_s / (timeline.num_tokens - 1))

    # -- the engine's thread -----------------------------------------------------------------
    def step_done(self, record: StepRecord) -> None:
        end_s = record.start_s + record.duration_s
        self.steps[record.kind] += 1
        self.step_s.observe(record.duration_s)
        self.num_prefilled_tokens += record.num_prefill_tokens
        self.num_swapped_bytes += record.swap_bytes
        self._book_lag(record)
        for preemption in record.preemptions:
            self.preemptions[preemption.mode] += 1
        for request_id in record.admitted:
            self._book_admission(request_id, record.start_s)
        if record.error is None:
            self.step_tokens.observe(record.num_prefill_tokens + record.num_decode_tokens)
            self._book_tokens(record, end_s)
        else:
            self.num_failed_steps += 1
        for request_id, reason in record.finished:
            timeline = self._timelines.get(request_id)
            if timeline is not None:
                timeline.finish_reason = reason

    def text(self, accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _book_lag(self, record: StepRecord) -> None:
        """Time between two steps although there was something to do."""
        last, self._last_step = self._last_step, record
        if last is not None and last.num_running and record.step_id == last.step_id + 1:
            lag_s = record.start_s - last.start_s - last.duration_s
            self.engine_lag_s.observe(max(0.0, lag_s))  # below 0 where steps overlap

    def _book_admission(self, request_id: str, start_s: float) -> None:
        timeline = self._timelines.get(request_id)
        if timeline is None or timeline.first_scheduled_s is not None:
            return
        timeline.first_scheduled_s = start_s
        self.queue_s.observe(max(0.0, start_s - timeline.arrival_s))
        if timeline.is_first:
            self.num_prompt_tokens += timeline.num_prompt_tokens
            if timeline.key_label is not None:
                self.prompt_tokens_by_key[timeline.key_label] += timeline.num_prompt_tokens

    def _book_tokens(self, record: StepRecord, end_s: float) -> None:
        timelines = self._timelines
        for member in record.members:
            timeline = timelines.get(member.request_id)
            if timeline is None or member.kind == "padding" or not timeline.gains_token(member):
                continue
            timeline.num_tokens += 1
            self.num_generated_tokens += 1
            if timeline.key_label is not None:
                self.generated_tokens_by_key[timeline.key_label] += 1
            if timeline.last_token_s is None:
                timeline.first_token_s = end_s
                self.time_to_first_token_s.observe(end_s - timeline.arrival_s)
                prefill_s = timeline.prefill_s
                if prefill_s is not None:
                    self.prefill_s.observe(prefill_s)
            else:
                self.inter_token_s.observe(end_s - timeline.last_token_s)
            timeline.last_token_s = end_s


def _finish_reasons(exchange: Exchange) -> dict[tuple[str, int], str | None]:
    return {
        (output.request_id, completion.index): completion.finish_reason
        for output in exchange.outputs
        for completion in output.outputs
    }
