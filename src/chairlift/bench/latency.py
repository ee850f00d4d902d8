"""`chairlift bench latency`: one batch at a time, and how long its requests wait."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.bench.drive import EngineTarget, OpenLoop, drive
from chairlift.bench.policy_run import PolicyRun, RequestResult, percentile
from chairlift.bench.random_prompts import RandomPrompts, fresh_engine
from chairlift.bench.run_facts import run_facts
from chairlift.bench.text_table import text_table
from chairlift.config import EngineConfig
from chairlift.engine.loaded_model import LoadedModel

PERCENTILES = (10, 25, 50, 75, 90, 99)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Seconds, at least one of them."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def percentiles(self) -> dict[int, float]:
        return {share: percentile(self.values, share / 100) for share in PERCENTILES}

    def to_json(self) -> dict[str, Any]:
        values = {str(share): value for share, value in self.percentiles.items()}
        return {"avg": self.mean, "percentiles": values}


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyReport:
    """Everything that was measured."""

    model: LoadedModel
    asked: EngineConfig
    prompts: RandomPrompts
    batches: Distribution
    """From the first request's arrival to the last one's end, one value per iteration."""
    ttft: Distribution
    """Time to first token, one value per request."""
    tpot: Distribution | None
    """Time per output token after the first, one value per request; None: there is but one."""

    def text(self) -> str:
        rows = [("batch, end to end", self.batches), ("time to first token", self.ttft)]
        if self.tpot is not None:
            rows.append(("time per output token", self.tpot))
        headers = ("ms", "mean", *(f"p{share}" for share in PERCENTILES))
        return text_table(
            headers,
            [
                (name, *(f"{value * 1e3:.1f}" for value in (d.mean, *d.percentiles.values())))
                for name, d in rows
            ],
        )

    def to_json(self) -> dict[str, Any]:
        batches = self.batches.to_json()
        return {
            **run_facts(self.model, self.asked),
            "batch_size": self.prompts.num_prompts,
            "input_len": self.prompts.input_len.high,
            "output_len": self.prompts.output_len.high,
            "avg_latency": batches["avg"],
            "latencies": list(self.batches.values),
            "percentiles": batches["percentiles"],
            "ttft": self.ttft.to_json(),
            "tpot": None if self.tpot is None else self.tpot.to_json(),
        }


def measure_latency(
    model: LoadedModel,
    asked: EngineConfig,
    prompts: RandomPrompts,
    *,
    num_iters: int,
    num_iters_warmup: int,
    progress: Callable[[str], None] = lambda line: None,
) -> LatencyReport:
    """The same batch again and again, each time through a new engine."""
    requests = prompts.requests(model.config.vocab_size)
    runs: list[PolicyRun] = []
    for index in range(num_iters_warmup + num_iters):
        run = drive(EngineTarget(fresh_engine(model, asked)), OpenLoop(requests))
        number = index - num_iters_warmup
        name = "warm-up" if number < 0 else f"iteration {number + 1}/{num_iters}"
        progress(f"{name}: {run.duration_s * 1e3:.1f} ms")
        if number >= 0:
            runs.append(run)
    results = [result for run in runs for result in run.results]
    return LatencyReport(
        model=model,
        asked=asked,
        prompts=prompts,
        batches=Distribution(tuple(run.duration_s for run in runs)),
        ttft=Distribution(tuple(r.first_token_s - r.arrival_s for r in results)),
        tpot=time_per_output_token(results),
    )


def time_per_output_token(results: Sequence[RequestResult]) -> Distribution | None:
    """Of every request the mean over its tokens but the first."""
    values = tuple(
        (result.finished_s - result.first_token_s) / (len(result.token_ids) - 1)
        for result in results
        if len(result.token_ids) > 1
    )
    return Distribution(values) if values else None
