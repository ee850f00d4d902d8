"""The effective batch of a run: how many requests a step served, its time taken into account.

The throughput model says: throughput = effective batch / time per step.  If one policy is faster
than another on the same kernels only because its steps serve more requests, then the ratio of their
throughputs is the ratio of their effective batches.  From the records of steps i of t_i seconds:

```
                  sum_i (seats * p_i  +  riders_i * d_i)
effective batch = --------------------------------------        t_i = p_i + d_i
                               sum_i t_i
```

* d_i is the part of the step that decodes; it serves the riders that decode in it.  Padding is
  nobody, and neither is an empty seat.
* p_i is the part that computes prompts.  That work is the same under every policy and no seat could
  do better meanwhile, so it counts as a full batch.  Counting the one or two requests whose prompt
  is being computed instead would make a policy look worse for computing prompts beside others.

Steps are weighted by time because they differ: counted one by one, a step of 512 prompt tokens
would weigh as much as one that decodes for the last rider.  A step's prompt part is taken from the
step-time model, fitted on the records themselves.  The ratios differ by what decoding for a
rider costs: where a step's time grows with its riders, by less than the occupancy.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.bench.drive import EngineTarget, OpenLoop, drive
from chairlift.bench.machine_facts import machine_facts
from chairlift.bench.policy_engine import policy_config, policy_engine
from chairlift.bench.policy_run import PolicyRun
from chairlift.bench.random_prompts import RandomPrompts
from chairlift.bench.text_table import text_table
from chairlift.bench.throughput_model import StepTimeModel, fit_step_time
from chairlift.bench.workload import renamed
from chairlift.config import BatchingPolicyName, EngineConfig
from chairlift.engine.loaded_model import LoadedModel
from chairlift.events import StepRecord

COMPARED: tuple[BatchingPolicyName, BatchingPolicyName] = ("static", "continuous")
BOUND = 0.10
"""How far the ratio of throughputs may be from that of effective batches."""


def effective_batch(run: PolicyRun, step_time: StepTimeModel) -> float:
    """Of a run, by the formula above."""
    served = 0.0
    for record in run.records:
        prefill_s = prefill_share(record, step_time) * record.duration_s
        decode_s = record.duration_s - prefill_s
        riders = sum(member.kind == "decode" for member in record.members)
        served += run.num_seats * prefill_s + riders * decode_s
    return served / sum(record.duration_s for record in run.records)


def prefill_share(record: StepRecord, step_time: StepTimeModel) -> float:
    """Of a step's time, the part that its prompt tokens take: 1 if nobody decodes."""
    prompts = [member for member in record.members if member.kind == "prefill"]
    others = [member for member in record.members if member.kind != "prefill"]
    if not prompts or not others:
        return float(bool(prompts))
    pairs = sum(
        m.num_new_tokens * m.num_computed_tokens + m.num_new_tokens * (m.num_new_tokens + 1) // 2
        for m in prompts
    )
    num_other_tokens = sum(member.num_new_tokens for member in others)
    num_decode_rows = min(record.num_sampled_tokens, record.num_decode_tokens)
    whole = step_time.step_s(
        num_other_tokens + record.num_prefill_tokens,
        record.attention_pairs,
        record.num_sampled_tokens,
    )
    without = step_time.step_s(num_other_tokens, record.attention_pairs - pairs, num_decode_rows)
    return 1 - without / whole if whole > 0 else 0.0


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
            "machine": machine_facts(),
            "model": self.model.name,
            "kernels": self.model.runner.model.kernels.name,
            "num_threads": self.model.resolved.num_threads,
            "engine": dataclasses.asdict(self.asked),
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
