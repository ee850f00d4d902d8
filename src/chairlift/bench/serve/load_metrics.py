"""Figures of a run: throughput, latencies, goodput, and the concurrency that really ran.

Latencies and tokens are those of requests that succeeded, as in vLLM's `bench serve`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from chairlift.bench.serve.distribution import Distribution, distribution_of
from chairlift.bench.serve.load_run import LoadRun
from chairlift.bench.serve.request_record import RequestRecord
from chairlift.bench.serve.service_level import LatencyName, ServiceLevel


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Requests that were at the same stage at the same time."""

    mean: float
    """Weighted by time, over the whole run."""
    peak: int


@dataclass(frozen=True)
class LoadMetrics:
    """Computed when asked for."""

    run: LoadRun

    @cached_property
    def completed(self) -> list[RequestRecord]:
        return [record for record in self.run.records if record.failure is None]

    @property
    def num_failed(self) -> int:
        return len(self.run.records) - len(self.completed)

    @property
    def failures(self) -> dict[str, int]:
        """Cause to count, the most frequent first."""
        causes = (record.failure.cause for record in self.run.records if record.failure)
        return dict(Counter(causes).most_common())

    def example_of(self, cause: str) -> str:
        """The message of the first failure of this cause."""
        return next(
            r.failure.message for r in self.run.records if r.failure and r.failure.cause == cause
        )

    @property
    def total_input_tokens(self) -> int:
        """As the server counts them; 0 if it does not."""
        return sum(record.num_prompt_tokens or 0 for record in self.completed)

    @property
    def total_output_tokens(self) -> int:
        return sum(record.num_output_tokens for record in self.completed)

    @property
    def num_output_tokens_asked(self) -> int:
        return sum(record.num_output_tokens_asked for record in self.completed)

    @property
    def cached_share(self) -> float | None:
        """Of the prompt tokens, from the server's prefix cache; None if it does not say."""
        known = [record for record in self.completed if record.num_cached_tokens is not None]
        prompt_tokens = sum(record.num_prompt_tokens or 0 for record in known)
        if not prompt_tokens:
            return None
        return sum(record.num_cached_tokens or 0 for record in known) / prompt_tokens

    @property
    def token_count_source(self) -> str:
        """Where the output tokens come from: "usage", "chunks", or "usage and chunks"."""
        kinds = {record.is_counted_by_server for record in self.completed}
        names = [name for name, kind in (("usage", True), ("chunks", False)) if kind in kinds]
        return " and ".join(names) or "usage"

    @property
    def tokens_per_chunk(self) -> float:
        """How many tokens a server sends at once: gaps between chunks are gaps between so many."""
        chunks = sum(len(record.text_times_s) for record in self.completed)
        return self.total_output_tokens / chunks if chunks else 0.0

    def per_second(self, count: float) -> float:
        return count / self.run.duration_s if self.run.duration_s > 0.0 else 0.0

    def latency_ms(self, name: LatencyName) -> Distribution:
        if name == "itl":
            return distribution_of([gap for record in self.completed for gap in record.itl_ms])
        values = (_latency_ms(record, name) for record in self.completed)
        return distribution_of([value for value in values if value is not None])

    def num_good(self, level: ServiceLevel) -> int:
        """Completed requests that keep every bound."""
        return sum(is_good(record, level) for record in self.completed)

    @property
    def in_flight(self) -> Concurrency:
        """From sending to the end of the answer, failed requests included."""
        return _concurrency(
            ((record.sent_s, record.finished_s) for record in self.run.records),
            self.run.duration_s,
        )

    @property
    def answering(self) -> Concurrency:
        """From the first token to the last: what the server really ran at once, but for prompts."""
        spans = [
            (record.first_token_s, record.last_token_s)
            for record in self.run.records
            if record.first_token_s is not None and record.last_token_s is not None
        ]
        return _concurrency(spans, self.run.duration_s)

    @property
    def drain_share(self) -> float:
        """Of the run, the part after the last request was sent."""
        last_sent_s = max(record.sent_s for record in self.run.records)
        return 1.0 - last_sent_s / self.run.duration_s if self.run.duration_s > 0.0 else 0.0

    @property
    def held_back_ms(self) -> Distribution:
        """How long the client kept requests that were due, waiting for one of its places."""
        return distribution_of([1e3 * (r.sent_s - r.intended_s) for r in self.run.records])


def is_good(record: RequestRecord, level: ServiceLevel) -> bool:
    """A request of a single token has no time per further token to be judged by."""
    if record.failure is not None:
        return False
    values = ((_latency_ms(record, name), bound) for name, bound in level.bounds_ms.items())
    return all(value is None or value <= bound for value, bound in values)


def concurrency_steps(spans: Iterable[tuple[float, float]]) -> list[tuple[float, int]]:
    """(time, how many from then on), in order of time; ends count before starts."""
    changes = sorted(change for start_s, end_s in spans for change in ((start_s, 1), (end_s, -1)))
    steps, count = [], 0
    for time_s, change in changes:
        count += change
        steps.append((time_s, count))
    return steps


def _latency_ms(record: RequestRecord, name: str) -> float | None:
    values = {"ttft": record.ttft_ms, "tpot": record.tpot_ms, "e2el": record.e2el_ms}
    return values[name]


def _concurrency(spans: Iterable[tuple[float, float]], duration_s: float) -> Concurrency:
    spans = list(spans)
    busy_s = sum(end_s - start_s for start_s, end_s in spans)
    return Concurrency(
        mean=busy_s / duration_s if duration_s > 0.0 else 0.0,
        peak=max((count for _, count in concurrency_steps(spans)), default=0),
    )
