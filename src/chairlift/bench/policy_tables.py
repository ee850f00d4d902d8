"""Measures the two tables of `chairlift bench policies`.

1. Concurrency: every request has the same lengths; so many clients at once, each of which waits
   for its answer before it sends again.
2. Output lengths: all requests are there at the start; the more their lengths vary, the longer a
   static batch waits for its last member.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from chairlift.bench.bench_plan import PROMPT_TOKENS, STATIC_BATCH_SIZE, BenchPlan
from chairlift.bench.drive import ClosedLoop, EngineTarget, Feed, OpenLoop, drive
from chairlift.bench.policy_engine import POLICIES, policy_config, policy_engine
from chairlift.bench.policy_report import LENGTH_POLICIES, BenchReport, Cell
from chairlift.bench.throughput_model import StepTimeModel, fit_step_time, predict
from chairlift.bench.workload import PROMPT_TEXT, check_fits, renamed, uniform_workload
from chairlift.config import BatchingPolicyName, EngineConfig
from chairlift.engine.loaded_model import LoadedModel, load_model
from chairlift.events import StepRecord

Progress = Callable[[str], None]


def load_for_bench(asked: EngineConfig, plan: BenchPlan, *, show_download: bool) -> LoadedModel:
    """The model, with memory planned for the workloads' requests.

    Raises `ConfigError` if they do not fit its context.
    """
    asked = dataclasses.replace(
        asked,
        max_num_seqs=plan.num_seats,
        max_num_batched_tokens=max(512, plan.num_seats),
        enable_prefix_caching=False,
    )
    model = load_model(asked, show_download=show_download)
    check_fits(plan.all_requests(_text_ids(model)), model.resolved.memory.max_model_len)
    return model


def measure_policies(
    model: LoadedModel, asked: EngineConfig, plan: BenchPlan, progress: Progress
) -> BenchReport:
    """Measure row by row, each after a calibration.  `progress` gets a line per cell."""
    bench = _Bench(model, asked, plan, progress)
    text_ids = _text_ids(model)
    concurrency_cells: list[Cell] = []
    for clients in plan.concurrency_rows:
        requests = plan.concurrency_requests(text_ids, clients)
        row = _Row(str(clients), plan.num_seats, clients, partial(ClosedLoop, requests, clients))
        concurrency_cells += bench.measure_row(row, POLICIES)
    length_cells: list[Cell] = []
    for workload in plan.length_rows:
        requests = plan.length_requests(text_ids, workload)
        name = _range_text(plan.scaled_range(workload))
        row = _Row(name, STATIC_BATCH_SIZE, len(requests), partial(OpenLoop, requests))
        length_cells += bench.measure_row(row, LENGTH_POLICIES)
    return BenchReport(
        model=model.name,
        plan=plan,
        concurrency_cells=tuple(concurrency_cells),
        length_cells=tuple(length_cells),
    )


def calibrate(model: LoadedModel, asked: EngineConfig, plan: BenchPlan) -> StepTimeModel:
    """Fit the step-time model on batches of 1, 2, 4, ... requests with different contexts."""
    records: list[StepRecord] = []
    scheduler = policy_config(model, "continuous", num_seats=plan.num_seats)
    target = EngineTarget(policy_engine(model, asked, scheduler))
    longest = min(plan.scaled(PROMPT_TOKENS), model.resolved.memory.max_model_len // 2)
    size, index = 1, 0
    while size <= plan.num_seats:
        requests = uniform_workload(
            _text_ids(model),
            num_requests=size,
            num_prompt_tokens=longest if index % 2 else max(1, longest // 4),
            output_tokens=(4, 8),
            seed=index,
        )
        run = drive(target, OpenLoop(renamed(requests, f"calibration-{size}-")))
        records += run.records
        size, index = size * 2, index + 1
    return fit_step_time(records)


@dataclass(frozen=True, slots=True)
class _Row:
    """One workload, for several policies."""

    name: str
    num_seats: int
    concurrency: int
    feed: Callable[[], Feed]


@dataclass(slots=True)
class _Bench:
    """Measures one row after the other."""

    model: LoadedModel
    asked: EngineConfig
    plan: BenchPlan
    progress: Progress

    def measure_row(self, row: _Row, policies: Sequence[BatchingPolicyName]) -> list[Cell]:
        """The machine may not be as fast as it was for the row before: calibrate again."""
        step_time = calibrate(self.model, self.asked, self.plan)
        return [self._measure(row, policy, step_time) for policy in policies]

    def _measure(self, row: _Row, policy: BatchingPolicyName, step_time: StepTimeModel) -> Cell:
        scheduler = policy_config(self.model, policy, num_seats=row.num_seats)
        memory = self.model.resolved.memory
        predicted = predict(
            step_time,
            scheduler,
            num_blocks=memory.num_blocks,
            block_size=memory.block_size,
            feed=row.feed(),
        )
        target = EngineTarget(policy_engine(self.model, self.asked, scheduler))
        cell = Cell(
            row=row.name,
            concurrency=row.concurrency,
            run=drive(target, row.feed()),
            predicted_tokens_per_s=predicted.tokens_per_s,
            step_time=step_time,
        )
        self.progress(f"{row.name} {policy}: {cell.text()} tokens/s in {cell.run.duration_s:.1f} s")
        return cell


def _text_ids(model: LoadedModel) -> Sequence[int]:
    return model.tokenizer.encode(PROMPT_TEXT, add_special_tokens=False)


def _range_text(output_tokens: tuple[int, int]) -> str:
    low, high = output_tokens
    return f"all {low}" if low == high else f"{low}-{high}"
