"""What a run found, as text for people and as JSON with the keys of vLLM's `bench serve`."""

from __future__ import annotations

import dataclasses
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from chairlift._version import __version__
from chairlift.bench.serve.load_config import LoadConfig
from chairlift.bench.serve.load_metrics import LoadMetrics, is_good
from chairlift.bench.serve.load_notes import notes_about
from chairlift.bench.serve.load_run import LoadRun
from chairlift.bench.serve.request_record import RequestRecord
from chairlift.bench.text_table import text_table
from chairlift.machine import num_available_cpus

_TITLES = {
    "ttft": "time to first token",
    "tpot": "per output token",
    "itl": "between chunks",
    "e2el": "end to end",
}


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """One measurement."""

    config: LoadConfig
    model: str
    prompt_form: str
    run_id: str
    run: LoadRun

    @cached_property
    def metrics(self) -> LoadMetrics:
        return LoadMetrics(self.run)

    @property
    def notes(self) -> list[str]:
        return notes_about(self.config, self.metrics)

    def text(self) -> str:
        parts = [self._facts_text()]
        if self.metrics.completed:
            parts.append(self._latency_text())
        if self.metrics.failures:
            parts.append(self._failure_text())
        parts += [f"NOTE {note}" for note in self.notes]
        return "\n\n".join(parts)

    def to_json(self, *, is_detailed: bool = False) -> dict[str, Any]:
        """Never holds the API key.  `is_detailed` adds a list of all requests."""
        metrics, level = self.metrics, self.config.service_level
        asked = dataclasses.asdict(self.config)
        asked["api_key"] = None if self.config.api_key is None else "***"
        asked["header"] = [f"{name}=***" for name in self.config.headers]
        content: dict[str, Any] = {
            "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
            "endpoint_type": "openai-chat" if self.config.target.is_chat else "openai",
            "model_id": self.model,
            "num_prompts": len(self.run.records),
            "request_rate": _number_or_name(self.config.request_rate),
            "burstiness": self.config.burstiness,
            "max_concurrency": self.config.max_concurrency,
            "duration": self.run.duration_s,
            "completed": len(metrics.completed),
            "failed": metrics.num_failed,
            "total_input_tokens": metrics.total_input_tokens,
            "total_output_tokens": metrics.total_output_tokens,
            "request_throughput": metrics.per_second(len(metrics.completed)),
            "request_goodput": None
            if level is None
            else metrics.per_second(metrics.num_good(level)),
            "output_throughput": metrics.per_second(metrics.total_output_tokens),
            "total_token_throughput": metrics.per_second(
                metrics.total_input_tokens + metrics.total_output_tokens
            ),
            "max_concurrent_requests": metrics.in_flight.peak,
            **self._latency_json(),
            "good_share": None if level is None else self._good_share(),
            "failures": metrics.failures,
            "mean_in_flight": metrics.in_flight.mean,
            "mean_answering": metrics.answering.mean,
            "token_count_source": metrics.token_count_source,
            "tokens_per_chunk": metrics.tokens_per_chunk,
            "cached_share": metrics.cached_share,
            "drain_share": metrics.drain_share,
            "client": self._client_json(),
            "notes": self.notes,
            "run_id": self.run_id,
            "prompt_form": self.prompt_form,
            "config": _without_infinity(asked),
        }
        if is_detailed:
            content["requests"] = [self._request_json(record) for record in self.run.records]
        return content

    def _facts_text(self) -> str:
        metrics, config, client = self.metrics, self.config, self.run.client
        at_once, answering = metrics.in_flight, metrics.answering
        facts = [
            ("load", config.describe_load()),
            ("workload", self._workload_text()),
            ("requests", f"{len(metrics.completed)} completed, {metrics.num_failed} failed"),
            ("duration", f"{self.run.duration_s:.2f} s"),
            (
                "throughput",
                f"{metrics.per_second(len(metrics.completed)):.2f} requests/s,"
                f" {metrics.per_second(metrics.total_output_tokens):.1f} output tokens/s,"
                f" {self._all_tokens_per_s():.1f} tokens/s with prompts",
            ),
        ]
        if (level := config.service_level) is not None:
            good = metrics.num_good(level)
            facts.append(
                (
                    "goodput",
                    f"{metrics.per_second(good):.2f} requests/s within {level.describe()}:"
                    f" {good} of {len(self.run.records)} ({self._good_share():.1%})",
                )
            )
        facts += [
            (
                "concurrency",
                f"{at_once.mean:.1f} in flight on average (peak {at_once.peak}),"
                f" {answering.mean:.1f} of them being answered (peak {answering.peak})",
            ),
            (
                "tokens",
                f"{metrics.total_input_tokens} in, {metrics.total_output_tokens} out, counted by"
                f" {metrics.token_count_source}; {metrics.tokens_per_chunk:.2f} a chunk",
            ),
            (
                "client",
                f"{client.cpu_share:.1%} of a core, event loop late by"
                f" {client.lag_ms.median:.1f} ms (median), {client.lag_ms.percentile(99):.1f} ms"
                " (p99)",
            ),
        ]
        width = max(len(name) for name, _ in facts)
        head = f"{self.model} at {config.target.url}"
        return "\n".join([head, "", *(f"{name:{width}}  {value}" for name, value in facts)])

    def _workload_text(self) -> str:
        config = self.config
        if config.dataset_name != "random":
            text = f"{config.dataset_name} from {config.dataset_path}"
        else:
            shared = ""
            if config.shared_prefix_len:
                shared = f"{config.shared_prefix_len} of {config.num_prefixes} shared prefixes + "
            text = f"random {self.prompt_form}, {shared}{config.input_lengths.describe()} in"
        if config.output_lengths is not None:
            text += f", {config.output_lengths.describe()} out"
        elif config.dataset_name == "random":
            text += ", 128 out"
        return f"{text}{', end tokens ignored' if config.ignore_eos else ''}, seed {config.seed}"

    def _latency_text(self) -> str:
        percentiles = self.config.percentiles
        rows = []
        for name in self.config.latencies:
            values = self.metrics.latency_ms(name)
            numbers = [values.mean, values.median, *map(values.percentile, percentiles)]
            rows.append((f"{name.upper():5} {_TITLES[name]}", *(f"{n:.2f}" for n in numbers)))
        headers = ("milliseconds", "mean", "median", *(f"p{p:g}" for p in percentiles))
        return text_table(headers, rows)

    def _failure_text(self) -> str:
        rows = [
            (cause, str(count), self.metrics.example_of(cause)[:100])
            for cause, count in self.metrics.failures.items()
        ]
        width = max(len(row[2]) for row in rows)
        return text_table(
            ("failed because", "requests", "such as"),
            [(cause, count, example.ljust(width)) for cause, count, example in rows],
        )

    def _latency_json(self) -> dict[str, float]:
        content = {}
        for name in self.config.latencies:
            values = self.metrics.latency_ms(name)
            content[f"mean_{name}_ms"] = values.mean
            content[f"median_{name}_ms"] = values.median
            content[f"std_{name}_ms"] = values.std
            for percentile in self.config.percentiles:
                content[f"p{percentile:g}_{name}_ms"] = values.percentile(percentile)
        return content

    def _client_json(self) -> dict[str, Any]:
        client = self.run.client
        return {
            "chairlift": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "num_cpus": num_available_cpus(),
            "cpu_s": client.cpu_s,
            "cpu_share": client.cpu_share,
            "waited_for_core_s": client.waited_s,
            "lag_median_ms": client.lag_ms.median,
            "lag_p99_ms": client.lag_ms.percentile(99),
            "lag_max_ms": client.lag_ms.largest,
        }

    def _request_json(self, record: RequestRecord) -> dict[str, Any]:
        level = self.config.service_level
        failure = record.failure
        return {
            "index": record.index,
            "request_id": f"{self.run_id}-{record.index}",
            "intended_s": record.intended_s,
            "sent_s": record.sent_s,
            "finished_s": record.finished_s,
            "ttft_ms": record.ttft_ms,
            "tpot_ms": record.tpot_ms,
            "e2el_ms": record.e2el_ms,
            "itl_ms": record.itl_ms,
            "prompt_tokens": record.num_prompt_tokens,
            "cached_tokens": record.num_cached_tokens,
            "output_tokens": record.num_output_tokens,
            "finish_reason": record.finish_reason,
            "is_good": None if level is None else is_good(record, level),
            "failure": None if failure is None else dataclasses.asdict(failure),
            "retry_after_s": record.retry_after_s,
        }

    def _good_share(self) -> float:
        level = self.config.service_level
        assert level is not None
        return self.metrics.num_good(level) / len(self.run.records)

    def _all_tokens_per_s(self) -> float:
        metrics = self.metrics
        return metrics.per_second(metrics.total_input_tokens + metrics.total_output_tokens)


def _number_or_name(rate: float | None) -> float | str:
    return "inf" if rate is None or rate == float("inf") else rate


def _without_infinity(asked: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity."""
    return {name: "inf" if value == float("inf") else value for name, value in asked.items()}
