"""The names under which Prometheus reads the server's numbers: ours, and vLLM's beside them.

The dashboards of vLLM and the Kubernetes Gateway API inference extension read vLLM's names; both
kinds show the same numbers.  Labels have few values, all of them of our own making.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from chairlift._version import __version__
from chairlift.engine.engine import Engine
from chairlift.engine.supervisor import EngineSupervisor
from chairlift.errors import EngineDeadError
from chairlift.server.histogram import Histogram

if TYPE_CHECKING:
    from chairlift.server.server_metrics import ServerMetrics

OURS = "chairlift:"
VLLM = "vllm:"


@dataclass(frozen=True, slots=True)
class _EngineState:
    """The engine at the moment of a scrape; zeros while there is none."""

    is_up: bool = False
    num_running: int = 0
    num_waiting: int = 0
    num_swapped: int = 0
    kv_usage: float = 0.0
    num_blocks: int = 0
    block_size: int = 0
    num_queried_tokens: int = 0
    num_hit_tokens: int = 0
    miss_reasons: Mapping[str, int] | None = None
    step_age_s: float = 0.0
    model: str = ""
    kernels: str = ""

    @classmethod
    def of(cls, supervisor: EngineSupervisor) -> _EngineState:
        try:
            current = supervisor.current()
        except EngineDeadError:
            return cls()
        engine, started_s = current.engine, current.step_started_s
        step_age_s = 0.0 if started_s is None else max(0.0, engine.clock.now() - started_s)
        return cls._of_engine(engine, step_age_s)

    @classmethod
    def _of_engine(cls, engine: Engine, step_age_s: float) -> _EngineState:
        """Reads single numbers while the engine goes on: each is right, their moments differ."""
        scheduler = engine.scheduler
        kv, cache = scheduler.kv, scheduler.kv.prefix_cache
        num_blocks = kv.pool.num_usable_blocks
        return cls(
            is_up=True,
            num_running=len(scheduler.running),
            num_waiting=scheduler.num_waiting,
            num_swapped=len(scheduler.swapped),
            kv_usage=1 - kv.num_free_blocks / num_blocks if num_blocks else 0.0,
            num_blocks=num_blocks,
            block_size=kv.block_size,
            num_queried_tokens=cache.num_queried_tokens,
            num_hit_tokens=cache.num_hit_tokens,
            miss_reasons=dict(cache.miss_reasons),
            step_age_s=step_age_s,
            model=engine.model.name,
            kernels=engine.model.kernels_name,
        )


class FamilyCollector(Collector):
    """Makes metric families of what has been counted, at every scrape."""

    def __init__(
        self,
        metrics: ServerMetrics,
        supervisor: EngineSupervisor,
        *,
        model_name: str,
        has_vllm: bool,
    ) -> None:
        self._metrics = metrics
        self._supervisor = supervisor
        self._model_name = model_name
        self._has_vllm = has_vllm

    def collect(self) -> Iterator[Metric]:
        state = _EngineState.of(self._supervisor)
        yield from _our_gauges(state)
        yield from _our_counters(self._metrics, state)
        if self._metrics.key_labels:
            yield from _our_keys(self._metrics)
        yield from _our_histograms(self._metrics)
        if self._has_vllm:
            yield from _vllm_families(self._metrics, state, self._model_name or state.model)


def _our_gauges(state: _EngineState) -> Iterator[Metric]:
    yield _gauge("num_requests_running", "Completions in the batch.", state.num_running)
    yield _gauge("num_requests_waiting", "Completions that wait to get on.", state.num_waiting)
    yield _gauge("num_requests_swapped", "Completions in swap space.", state.num_swapped)
    yield _gauge("kv_cache_usage_ratio", "Part of the KV cache in use, 0 to 1.", state.kv_usage)
    yield _gauge("kv_cache_blocks", "Blocks of the KV cache.", state.num_blocks)
    yield _gauge("engine_up", "1 while there is an engine that takes requests.", state.is_up)
    yield _gauge("engine_step_age_seconds", "Since when the step under way runs.", state.step_age_s)
    info = GaugeMetricFamily(
        f"{OURS}build_info", "Always 1.", labels=("version", "model", "kernels")
    )
    info.add_metric((__version__, state.model, state.kernels), 1)
    yield info


def _our_counters(metrics: ServerMetrics, state: _EngineState) -> Iterator[Metric]:
    yield _counter("prompt_tokens", "Tokens of prompts that got on.", metrics.num_prompt_tokens)
    yield _counter("generation_tokens", "Tokens generated.", metrics.num_generated_tokens)
    yield _counter(
        "prefill_tokens",
        "Tokens computed in prefill: without cached ones, with those computed again.",
        metrics.num_prefilled_tokens,
    )
    yield _counter("swap_bytes", "Bytes moved to and from swap.", metrics.num_swapped_bytes)
    yield _counter("failed_steps", "Steps that raised an error.", metrics.num_failed_steps)
    yield _counter("engine_rebuilds", "Engines built anew.", metrics.num_rebuilds)
    yield _counter(
        "client_disconnects", "Clients that left before their answer.", metrics.num_disconnects
    )
    yield _counter(
        "prefix_cache_queried_tokens",
        "Tokens looked up in the prefix cache.",
        state.num_queried_tokens,
    )
    yield _counter(
        "prefix_cache_hit_tokens", "Tokens found in the prefix cache.", state.num_hit_tokens
    )
    for name, text, label, values in (
        (
            "prefix_cache_misses",
            "Look-ups that ended before the prompt did, by reason.",
            "reason",
            state.miss_reasons or {},
        ),
        ("preemptions", "Completions taken off the batch.", "mode", metrics.preemptions),
        ("steps", "Steps of the engine.", "kind", metrics.steps),
        ("requests_finished", "Completions by finish reason.", "reason", metrics.finished),
        ("rejections", "Requests answered with an error.", "cause", metrics.rejections),
        ("ignored_fields", "Fields that changed nothing.", "field", metrics.ignored_fields),
    ):
        family = CounterMetricFamily(OURS + name, text, labels=(label,))
        for value, count in sorted(dict(values).items()):
            family.add_metric((value,), count)
        yield family
    answers = CounterMetricFamily(
        f"{OURS}http_requests", "HTTP requests answered.", labels=("endpoint", "status")
    )
    for (endpoint, status), count in sorted(dict(metrics.answers).items()):
        answers.add_metric((endpoint, str(status)), count)
    yield answers


def _our_keys(metrics: ServerMetrics) -> Iterator[Metric]:
    """By the name of the API key: never by the key."""
    running, waiting = metrics.completions_by_key()
    for name, text, values in (
        ("key_requests_running", "Completions in the batch, by API key.", running),
        ("key_requests_waiting", "Completions that wait to get on, by API key.", waiting),
    ):
        gauge = GaugeMetricFamily(OURS + name, text, labels=("key",))
        for key, count in sorted(values.items()):
            gauge.add_metric((key,), count)
        yield gauge
    for name, text, values in (
        ("key_requests", "Prompts admitted, by API key.", metrics.requests_by_key),
        ("key_rejections", "Requests answered with 429, by API key.", metrics.turned_away_by_key),
        (
            "key_prompt_tokens",
            "Tokens of prompts that got on, by API key.",
            metrics.prompt_tokens_by_key,
        ),
        (
            "key_generation_tokens",
            "Tokens generated, by API key.",
            metrics.generated_tokens_by_key,
        ),
    ):
        counter = CounterMetricFamily(OURS + name, text, labels=("key",))
        for key, count in sorted(dict(values).items()):
            counter.add_metric((key,), count)
        yield counter


def _our_histograms(metrics: ServerMetrics) -> Iterator[Metric]:
    for name, text, values in (
        (
            "time_to_first_token_seconds",
            "From arrival to the first token.",
            metrics.time_to_first_token_s,
        ),
        (
            "inter_token_latency_seconds",
            "From one token of a completion to its next.",
            metrics.inter_token_s,
        ),
        (
            "time_per_output_token_seconds",
            "Mean time between a completion's tokens.",
            metrics.time_per_output_token_s,
        ),
        ("queue_time_seconds", "From arrival to getting on.", metrics.queue_s),
        ("prefill_time_seconds", "From getting on to the first token.", metrics.prefill_s),
        ("decode_time_seconds", "From the first token to the last.", metrics.decode_s),
        ("e2e_latency_seconds", "From arrival to the end.", metrics.end_to_end_s),
        ("step_time_seconds", "Length of a step of the engine.", metrics.step_s),
        ("step_tokens", "Tokens computed in a step.", metrics.step_tokens),
        (
            "engine_lag_seconds",
            "Between two steps although there was work.",
            metrics.engine_lag_s,
        ),
        ("event_loop_lag_seconds", "How late timers fire.", metrics.event_loop_lag_s),
        ("request_prompt_tokens", "Tokens of the prompt.", metrics.request_prompt_tokens),
        (
            "request_generation_tokens",
            "Tokens of the completion.",
            metrics.request_generated_tokens,
        ),
    ):
        yield _histogram(OURS + name, text, values, {})


def _vllm_families(metrics: ServerMetrics, state: _EngineState, model: str) -> Iterator[Metric]:
    labels = {"model_name": model}
    for name, value in (
        ("num_requests_running", state.num_running),
        ("num_requests_waiting", state.num_waiting),
        ("num_requests_swapped", state.num_swapped),
        ("kv_cache_usage_perc", state.kv_usage),
        ("gpu_cache_usage_perc", state.kv_usage),
    ):
        gauge = GaugeMetricFamily(VLLM + name, _as_vllm(name), labels=tuple(labels))
        gauge.add_metric((model,), value)
        yield gauge
    config = GaugeMetricFamily(
        f"{VLLM}cache_config_info",
        _as_vllm("cache_config_info"),
        labels=(*labels, "block_size", "num_gpu_blocks"),
    )
    config.add_metric((model, str(state.block_size), str(state.num_blocks)), 1)
    yield config
    for name, value in (
        ("prompt_tokens", metrics.num_prompt_tokens),
        ("generation_tokens", metrics.num_generated_tokens),
        ("num_preemptions", sum(dict(metrics.preemptions).values())),
        ("prefix_cache_queries", state.num_queried_tokens),
        ("prefix_cache_hits", state.num_hit_tokens),
        ("gpu_prefix_cache_queries", state.num_queried_tokens),
        ("gpu_prefix_cache_hits", state.num_hit_tokens),
    ):
        counter = CounterMetricFamily(VLLM + name, _as_vllm(name), labels=tuple(labels))
        counter.add_metric((model,), value)
        yield counter
    success = CounterMetricFamily(
        f"{VLLM}request_success",
        _as_vllm("request_success"),
        labels=(*labels, "finished_reason"),
    )
    for reason, count in sorted(dict(metrics.finished).items()):
        success.add_metric((model, reason), count)
    yield success
    for name, values in (
        ("time_to_first_token_seconds", metrics.time_to_first_token_s),
        ("inter_token_latency_seconds", metrics.inter_token_s),
        ("time_per_output_token_seconds", metrics.inter_token_s),  # vLLM's is per token, too
        ("request_time_per_output_token_seconds", metrics.time_per_output_token_s),
        ("e2e_request_latency_seconds", metrics.end_to_end_s),
        ("request_queue_time_seconds", metrics.queue_s),
        ("request_prefill_time_seconds", metrics.prefill_s),
        ("request_decode_time_seconds", metrics.decode_s),
        ("request_prompt_tokens", metrics.request_prompt_tokens),
        ("request_generation_tokens", metrics.request_generated_tokens),
        ("iteration_tokens_total", metrics.step_tokens),
    ):
        yield _histogram(VLLM + name, _as_vllm(name), values, labels)


def _as_vllm(name: str) -> str:
    return f"What vLLM calls {name}."


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(OURS + name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(OURS + name, text, value=value)


def _histogram(name: str, text: str, values: Histogram, labels: Mapping[str, str]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=tuple(labels))
    family.add_metric(tuple(labels.values()), values.cumulative(), values.sum)
    return family
