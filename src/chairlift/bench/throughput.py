"""`chairlift bench throughput`: all requests at once through the engine, as fast as it goes."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.bench.arithmetic_limit import LimitReport, measure_peaks
from chairlift.bench.drive import EngineTarget, OpenLoop, drive
from chairlift.bench.machine_limits import LimitMeter, Rates
from chairlift.bench.policy_run import PolicyRun
from chairlift.bench.random_prompts import RandomPrompts, fresh_engine
from chairlift.bench.resident_memory import MemoryUse, memory_use
from chairlift.bench.run_facts import run_facts
from chairlift.bench.step_timing import (
    FullDecode,
    KernelClock,
    TimedTarget,
    TimeSplit,
    full_decode,
    time_split,
    timed_kernels,
)
from chairlift.bench.workload import BenchRequest, renamed
from chairlift.config import EngineConfig
from chairlift.engine.loaded_model import LoadedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputRound:
    """The workload once through."""

    elapsed_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_requests: int
    num_steps: int
    num_preemptions: int
    most_used_blocks: int
    split: TimeSplit
    full_decode: FullDecode | None

    @property
    def requests_per_s(self) -> float:
        return self.num_requests / self.elapsed_s

    @property
    def output_tokens_per_s(self) -> float:
        return self.num_output_tokens / self.elapsed_s

    @property
    def tokens_per_s(self) -> float:
        """Prompt tokens included."""
        return (self.num_prompt_tokens + self.num_output_tokens) / self.elapsed_s

    def line(self) -> str:
        return (
            f"{self.elapsed_s:.2f} s, {self.requests_per_s:.2f} requests/s,"
            f" {self.output_tokens_per_s:.1f} output tokens/s,"
            f" {self.tokens_per_s:.1f} tokens/s in all"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "elapsed_time": self.elapsed_s,
            "requests_per_second": self.requests_per_s,
            "output_tokens_per_second": self.output_tokens_per_s,
            "tokens_per_second": self.tokens_per_s,
            "num_steps": self.num_steps,
            "num_preemptions": self.num_preemptions,
            "python_share": self.split.python_share,
            "seconds": dataclasses.asdict(self.split),
            "full_decode": None
            if self.full_decode is None
            else dataclasses.asdict(self.full_decode),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputReport:
    """Everything that was measured."""

    model: LoadedModel
    asked: EngineConfig
    prompts: RandomPrompts
    rounds: tuple[ThroughputRound, ...]
    limit: LimitReport | None
    memory: MemoryUse

    @property
    def middle(self) -> ThroughputRound:
        """The round of median time."""
        median = statistics.median_low(one.elapsed_s for one in self.rounds)
        return next(one for one in self.rounds if one.elapsed_s == median)

    def text(self) -> str:
        middle = self.middle
        name = "round" if len(self.rounds) == 1 else f"median of {len(self.rounds)} rounds"
        lines = [f"{name}: {middle.line()}"]
        if self.limit is not None:
            lines += self.limit.lines(middle.output_tokens_per_s)
        return "\n".join([*lines, *_time_lines(middle), *_memory_lines(self.memory)])

    def to_json(self) -> dict[str, Any]:
        middle = self.middle
        return {
            **run_facts(self.model, self.asked),
            "scheduler": dataclasses.asdict(self.model.resolved.scheduler),
            "num_requests": middle.num_requests,
            "input_len": str(self.prompts.input_len),
            "output_len": str(self.prompts.output_len),
            "seed": self.prompts.seed,
            "total_num_tokens": middle.num_prompt_tokens + middle.num_output_tokens,
            "num_output_tokens": middle.num_output_tokens,
            **middle.to_json(),
            "rounds": [one.to_json() for one in self.rounds],
            "limit": None if self.limit is None else self.limit.to_json(middle.output_tokens_per_s),
            "memory": self.memory.to_json(),
        }


def measure_throughput(
    model: LoadedModel,
    asked: EngineConfig,
    prompts: RandomPrompts,
    *,
    num_rounds: int,
    meter: LimitMeter | None,
    peak_loading_bytes: int,
    progress: Callable[[str], None] = lambda line: None,
) -> ThroughputReport:
    """A warm-up, then rounds, with the machine's peaks between them if there is a meter."""
    vocab_size = model.config.vocab_size
    requests = prompts.requests(vocab_size)
    peaks: list[Rates] = []
    rounds = []
    with timed_kernels(model.runner) as kernels:
        warm_up = run_round(model, asked, prompts.warm_up(vocab_size), kernels)
        progress(f"warm-up: {warm_up.line()}")
        for index in range(num_rounds):
            if meter is not None:
                peaks.append(measure_peaks(meter))
            rounds.append(run_round(model, asked, requests, kernels))
            progress(f"round {index + 1}: {rounds[-1].line()}")
    limit = None
    if meter is not None:
        peaks.append(measure_peaks(meter))
        limit = LimitReport.of(model.runner.model.kernels.name, model.config, requests, peaks)
    return ThroughputReport(
        model=model,
        asked=asked,
        prompts=prompts,
        rounds=tuple(rounds),
        limit=limit,
        memory=memory_use(
            model.resolved.memory,
            most_used_blocks=max(one.most_used_blocks for one in (warm_up, *rounds)),
            peak_loading_bytes=peak_loading_bytes,
        ),
    )


def run_round(
    model: LoadedModel,
    asked: EngineConfig,
    requests: Sequence[BenchRequest],
    kernels: KernelClock,
) -> ThroughputRound:
    """Send all requests at once to a new engine, and wait for the last."""
    target = TimedTarget(EngineTarget(fresh_engine(model, asked)), kernels)
    run = drive(target, OpenLoop(renamed(requests, "throughput-")))
    return ThroughputRound(
        elapsed_s=run.duration_s,
        num_prompt_tokens=sum(result.num_prompt_tokens for result in run.results),
        num_output_tokens=run.num_output_tokens,
        num_requests=len(run.results),
        num_steps=len(run.records),
        num_preemptions=sum(len(record.preemptions) for record in run.records),
        most_used_blocks=most_used_blocks(run),
        split=time_split(run, target.timings),
        full_decode=full_decode(target.timings),
    )


def most_used_blocks(run: PolicyRun) -> int:
    """Blocks of the KV cache that held something at once."""
    return max(record.num_blocks - record.num_free_blocks for record in run.records)


def _time_lines(middle: ThroughputRound) -> list[str]:
    split = middle.split
    parts = {
        "kernels": split.kernels_s,
        "batches and sampling": split.runner_s,
        "scheduling": split.schedule_s,
        "booking": split.update_s,
        "text": split.text_s,
        "arrivals": split.arrivals_s,
    }
    shares = ", ".join(f"{name} {value / split.wall_s:.1%}" for name, value in parts.items())
    lines = [f"time        {shares}", f"            Python's share {split.python_share:.1%}"]
    full = middle.full_decode
    if full is not None:
        lines.append(
            f"            {full.num_steps} steps that decode for up to {full.num_running}:"
            f" {full.mean_step_s * 1e3:.1f} ms each, Python's share {full.python_share:.1%}"
        )
    return lines


def _memory_lines(memory: MemoryUse) -> list[str]:
    def mb(num_bytes: int) -> str:
        return f"{num_bytes / 1e6:.0f} MB"

    return [
        f"memory      peak {mb(memory.peak_bytes)} resident (until loaded"
        f" {mb(memory.peak_loading_bytes)})",
        f"            planned: weights {mb(memory.weights_bytes)}, KV cache"
        f" {mb(memory.kv_planned_bytes)}, of which {mb(memory.kv_used_bytes)} held something",
        f"            beside weights and KV cache in use: {mb(memory.other_bytes)}",
    ]
