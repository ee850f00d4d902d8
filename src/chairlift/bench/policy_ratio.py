"""`chairlift bench throughput --compare-policies`: is the gain that of the effective batch?

Static and continuous batching in turn, on the same requests, kernels and seats.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.bench.drive import EngineTarget, OpenLoop, drive
from chairlift.bench.effective_batch import effective_batch
from chairlift.bench.policy_engine import policy_config, policy_engine
from chairlift.bench.policy_run import PolicyRun
from chairlift.bench.random_prompts import RandomPrompts
from chairlift.bench.run_facts import run_facts
from chairlift.bench.text_table import text_table
from chairlift.bench.throughput_model import StepTimeModel, fit_step_time
from chairlift.bench.workload import renamed
from chairlift.config import BatchingPolicyName, EngineConfig
from chairlift.engine.loaded_model import LoadedModel

BOUND = 0.10
"""How far the ratio of throughputs may be from that of effective batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRatio:
    """Both policies once through the same requests."""

    static: PolicyRun
    continuous: PolicyRun
    static_batch: float
    """Effective."""
    continuous_batch: float

    @property
    def measured(self) -> float:
        """Continuous over static, in output tokens a second."""
        return self.continuous.tokens_per_s / self.static.tokens_per_s

    @property
    def by_batches(self) -> float:
        return self.continuous_batch / self.static_batch

    @property
    def difference(self) -> float:
        """Of the measured ratio from that of effective batches."""
        return self.measured / self.by_batches - 1

    def to_json(self) -> dict[str, Any]:
        return {
            "measured_ratio": self.measured,
            "effective_batch_ratio": self.by_batches,
            "difference": self.difference,
            "static": _run_to_json(self.static, self.static_batch),
            "continuous": _run_to_json(self.continuous, self.continuous_batch),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRatios:
    """All rounds."""

    model: LoadedModel
    asked: EngineConfig
    prompts: RandomPrompts
    step_time: StepTimeModel
    rounds: tuple[PolicyRatio, ...]

    @property
    def middle(self) -> PolicyRatio:
        """The round of median difference."""
        median = statistics.median_low(one.difference for one in self.rounds)
        return next(one for one in self.rounds if one.difference == median)

    @property
    def is_kept(self) -> bool:
        return abs(self.middle.difference) <= BOUND

    def text(self) -> str:
        middle = self.middle
        rows = [
            _table_row(middle.static, middle.static_batch),
            _table_row(middle.continuous, middle.continuous_batch),
        ]
        headers = (
            "policy",
            "output\ntokens/s",
            "effective\nbatch",
            "steps",
            "padding\nrows",
            "total s",
        )
        verdict = "kept" if self.is_kept else "NOT KEPT"
        lines = [
            text_table(headers, rows),
            "",
            f"continuous over static: {middle.measured:.2f} measured, {middle.by_batches:.2f} by"
            f" effective batches; {middle.difference:+.1%} apart, at most {BOUND:.0%}: {verdict}",
        ]
        if len(self.rounds) > 1:
            others = ", ".join(f"{one.difference:+.1%}" for one in self.rounds)
            lines.append(f"apart in {len(self.rounds)} rounds: {others}")
        seats = middle.static.num_seats
        if self.prompts.num_prompts < 2 * seats:
            lines.append(
                f"{self.prompts.num_prompts} requests fill {seats} seats less than twice: steps of"
                " different sizes are compared, and the ratios need not agree"
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        middle = self.middle
        return {
            **run_facts(self.model, self.asked),
            "num_requests": self.prompts.num_prompts,
            "input_len": str(self.prompts.input_len),
            "output_len": str(self.prompts.output_len),
            "seed": self.prompts.seed,
            "num_seats": middle.static.num_seats,
            "step_time": dataclasses.asdict(self.step_time),
            "bound": BOUND,
            "is_kept": self.is_kept,
            **middle.to_json(),
            "rounds": [one.to_json() for one in self.rounds],
        }


def compare_throughput(
    model: LoadedModel,
    asked: EngineConfig,
    prompts: RandomPrompts,
    *,
    num_rounds: int,
    progress: Callable[[str], None] = lambda line: None,
) -> PolicyRatios:
    """Static and continuous in turn, after a warm-up, on the same requests and as many seats."""
    vocab_size = model.config.vocab_size
    requests, warm_up = prompts.requests(vocab_size), prompts.warm_up(vocab_size)

    def run(policy: BatchingPolicyName, name: str, warming: bool = False) -> PolicyRun:
        scheduler = policy_config(model, policy, num_seats=model.resolved.scheduler.max_num_seqs)
        target = EngineTarget(policy_engine(model, asked, scheduler))
        done = drive(target, OpenLoop(renamed(warm_up if warming else requests, f"{policy}-")))
        progress(f"{name} {policy}: {done.tokens_per_s:.1f} tokens/s in {done.duration_s:.1f} s")
        return done

    run("continuous", "warm-up", warming=True)
    pairs = [
        (run("static", f"round {index + 1}"), run("continuous", f"round {index + 1}"))
        for index in range(num_rounds)
    ]
    step_time = fit_step_time([r for pair in pairs for one in pair for r in one.records])
    return PolicyRatios(
        model=model,
        asked=asked,
        prompts=prompts,
        step_time=step_time,
        rounds=tuple(policy_ratio(*pair, step_time) for pair in pairs),
    )


def policy_ratio(static: PolicyRun, continuous: PolicyRun, step_time: StepTimeModel) -> PolicyRatio:
    """Of two runs of the same requests."""
    return PolicyRatio(
        static=static,
        continuous=continuous,
        static_batch=effective_batch(static, step_time),
        continuous_batch=effective_batch(continuous, step_time),
    )


def _table_row(run: PolicyRun, batch: float) -> Sequence[str]:
    return (
        run.policy,
        f"{run.tokens_per_s:.1f}",
        f"{batch:.1f}",
        str(len(run.records)),
        str(sum(record.num_padding_tokens for record in run.records)),
        f"{run.duration_s:.1f}",
    )


def _run_to_json(run: PolicyRun, batch: float) -> dict[str, Any]:
    return {
        "output_tokens_per_second": run.tokens_per_s,
        "effective_batch": batch,
        "mean_running": run.mean_running,
        "num_steps": len(run.records),
        "num_padding_rows": sum(record.num_padding_tokens for record in run.records),
        "elapsed_time": run.duration_s,
    }
