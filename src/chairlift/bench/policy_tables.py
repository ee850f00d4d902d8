"""The two tables of `chairlift bench policies`, measured, with what the throughput model predicted.

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
from typing import Any, Literal

from chairlift.bench.client_limit import client_limit_note
from chairlift.bench.drive import ClosedLoop, EngineTarget, Feed, OpenLoop, drive
from chairlift.bench.machine_facts import machine_facts
from chairlift.bench.policy_engine import POLICIES, policy_config, policy_engine
from chairlift.bench.policy_run import PolicyRun
from chairlift.bench.text_table import text_table
from chairlift.bench.throughput_model import StepTimeModel, fit_step_time, predict
from chairlift.bench.workload import (
    PROMPT_TEXT,
    BenchRequest,
    check_fits,
    renamed,
    uniform_workload,
)
from chairlift.config import BatchingPolicyName, EngineConfig
from chairlift.engine.loaded_model import LoadedModel, load_model
from chairlift.errors import ConfigError
from chairlift.events import StepRecord

WorkloadName = Literal["fixed", "varied", "extreme"]

PROMPT_TOKENS = 512
OUTPUT_TOKENS = 128
LENGTH_PROMPT_TOKENS = 64
"""Of the length table, whose subject is the output."""
OUTPUT_RANGES: dict[WorkloadName, tuple[int, int]] = {
    "fixed": (128, 128),
    "varied": (32, 512),
    "extreme": (16, 1024),
}
STATIC_BATCH_SIZE = 32
LENGTH_POLICIES: tuple[BatchingPolicyName, ...] = ("static", "continuous")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """What to measure."""

    workload: WorkloadName | None = None
    """None: both tables.  fixed: the first.  varied or extreme: that row of the second."""
    concurrency: tuple[int, ...] = (1, 8, 16, 32)
    scale: float = 0.125
    """All lengths are multiplied by it."""
    num_requests: int = 100
    """Of the length table; the concurrency table sends two per client, at most so many."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.workload is not None and self.workload not in OUTPUT_RANGES:
            raise ConfigError(
                f"workload must be one of {', '.join(OUTPUT_RANGES)}, got {self.workload!r}",
                field="workload",
            )
        if not self.concurrency or min(self.concurrency) < 1:
            raise ConfigError(
                "concurrency takes numbers of at least 1, such as 1,8,16", field="concurrency"
            )
        if not 0.0 < self.scale <= 64.0:
            raise ConfigError(
                f"scale must be above 0 and at most 64, got {self.scale:g}", field="scale"
            )
        if self.num_requests < 1:
            raise ConfigError(
                f"num_requests must be at least 1, got {self.num_requests}", field="num_requests"
            )

    @property
    def num_seats(self) -> int:
        return max(STATIC_BATCH_SIZE, *self.concurrency)

    @property
    def length_rows(self) -> tuple[WorkloadName, ...]:
        if self.workload is None:
            return tuple(OUTPUT_RANGES)
        return () if self.workload == "fixed" else (self.workload,)

    @property
    def concurrency_rows(self) -> tuple[int, ...]:
        return self.concurrency if self.workload in (None, "fixed") else ()

    def scaled(self, num_tokens: int) -> int:
        return max(1, round(num_tokens * self.scale))

    def scaled_range(self, workload: WorkloadName) -> tuple[int, int]:
        low, high = OUTPUT_RANGES[workload]
        return self.scaled(low), self.scaled(high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One measured run beside its prediction."""

    row: str
    concurrency: int
    """Requests that the client kept in flight at most."""
    run: PolicyRun
    predicted_tokens_per_s: float

    @property
    def error(self) -> float:
        """Of the prediction, relative to the measurement."""
        return self.predicted_tokens_per_s / self.run.tokens_per_s - 1

    def text(self) -> str:
        return f"{self.run.tokens_per_s:.1f} ({self.predicted_tokens_per_s:.1f}, {self.error:+.0%})"

    def to_json(self) -> dict[str, Any]:
        run = self.run
        return {
            "row": self.row,
            "policy": run.policy,
            "concurrency": self.concurrency,
            "num_requests": len(run.results),
            "tokens_per_s": run.tokens_per_s,
            "predicted_tokens_per_s": self.predicted_tokens_per_s,
            "prediction_error": self.error,
            "mean_batch": run.mean_batch,
            "mean_running": run.mean_running,
            "wasted_share": run.wasted_share,
            "first_token_p50_s": run.first_token_s(0.5),
            "first_token_p99_s": run.first_token_s(0.99),
            "duration_s": run.duration_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """Everything that was measured."""

    model: str
    plan: BenchPlan
    step_time: StepTimeModel
    concurrency_cells: tuple[Cell, ...]
    length_cells: tuple[Cell, ...]

    @property
    def notes(self) -> list[str]:
        """Where the client was the limit, once per concurrency."""
        notes = [
            client_limit_note(cell.run, cell.concurrency)
            for cell in self.concurrency_cells
            if cell.run.policy == "continuous"
        ]
        return [note for note in notes if note is not None]

    def text(self) -> str:
        parts = [f"step-time model, fitted here: {self.step_time.describe()}"]
        if self.concurrency_cells:
            parts.append(self._concurrency_text())
        if self.length_cells:
            parts.append(self._length_text())
        parts.append(
            "In brackets: what the throughput model predicted, and how far off it was."
            "\n'ran': requests that rode at once under continuous batching, averaged over time."
        )
        return "\n\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        return {
            "machine": machine_facts(),
            "model": self.model,
            "plan": dataclasses.asdict(self.plan),
            "num_seats": self.plan.num_seats,
            "step_time": dataclasses.asdict(self.step_time),
            "concurrency": [cell.to_json() for cell in self.concurrency_cells],
            "output_lengths": [cell.to_json() for cell in self.length_cells],
            "notes": self.notes,
        }

    def _concurrency_text(self) -> str:
        plan = self.plan
        title = (
            f"Output tokens/s by requests at once: {plan.scaled(PROMPT_TOKENS)} tokens in,"
            f" {plan.scaled(OUTPUT_TOKENS)} out, {plan.num_seats} seats"
        )
        rows = []
        for row, cells in _by_row(self.concurrency_cells):
            continuous = cells["continuous"].run
            rows.append(
                (row, *(cells[p].text() for p in POLICIES), f"{continuous.mean_running:.1f}")
            )
        table = text_table(("at once", *POLICIES, "ran"), rows)
        return "\n".join([title, "", table, *(f"  {note}" for note in self.notes)])

    def _length_text(self) -> str:
        plan = self.plan
        title = (
            f"Output tokens/s by output lengths: {plan.num_requests} requests at once,"
            f" {plan.scaled(LENGTH_PROMPT_TOKENS)} tokens in, static batch and seats"
            f" {STATIC_BATCH_SIZE}"
        )
        rows = []
        for row, cells in _by_row(self.length_cells):
            static, continuous = cells["static"], cells["continuous"]
            gain = continuous.run.tokens_per_s / static.run.tokens_per_s
            rows.append(
                (
                    row,
                    static.text(),
                    continuous.text(),
                    f"{gain:.2f}x",
                    f"{static.run.wasted_share:.0%}",
                    f"{continuous.run.mean_running:.1f}",
                )
            )
        headers = ("output tokens", *LENGTH_POLICIES, "gain", "static wastes", "ran")
        return "\n".join([title, "", text_table(headers, rows)])


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
    for requests in [
        *(_length_requests(model, plan, row) for row in plan.length_rows),
        *(_concurrency_requests(model, plan, row) for row in plan.concurrency_rows),
    ]:
        check_fits(requests, model.resolved.memory.max_model_len)
    return model


def measure_policies(
    model: LoadedModel, asked: EngineConfig, plan: BenchPlan, progress: Progress
) -> BenchReport:
    """Calibrate, then measure every cell.  `progress` gets a line when one is done."""
    progress("calibrating the step-time model")
    step_time = calibrate(model, asked, plan)
    bench = _Bench(model, asked, step_time, progress)
    concurrency_cells = [
        bench.measure(
            f"{clients}",
            policy,
            num_seats=plan.num_seats,
            concurrency=clients,
            feed=partial(ClosedLoop, _concurrency_requests(model, plan, clients), clients),
        )
        for clients in plan.concurrency_rows
        for policy in POLICIES
    ]
    length_cells = [
        bench.measure(
            _range_text(plan.scaled_range(row)),
            policy,
            num_seats=STATIC_BATCH_SIZE,
            concurrency=plan.num_requests,
            feed=partial(OpenLoop, _length_requests(model, plan, row)),
        )
        for row in plan.length_rows
        for policy in LENGTH_POLICIES
    ]
    return BenchReport(
        model=model.name,
        plan=plan,
        step_time=step_time,
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
        records += run.records if index else run.records[1:]  # the first step of all warms up
        size, index = size * 2, index + 1
    return fit_step_time(records)


@dataclass(slots=True)
class _Bench:
    """Measures one cell after the other."""

    model: LoadedModel
    asked: EngineConfig
    step_time: StepTimeModel
    progress: Progress

    def measure(
        self,
        row: str,
        policy: BatchingPolicyName,
        *,
        num_seats: int,
        concurrency: int,
        feed: Callable[[], Feed],
    ) -> Cell:
        scheduler = policy_config(self.model, policy, num_seats=num_seats)
        memory = self.model.resolved.memory
        predicted = predict(
            self.step_time,
            scheduler,
            num_blocks=memory.num_blocks,
            block_size=memory.block_size,
            feed=feed(),
        )
        target = EngineTarget(policy_engine(self.model, self.asked, scheduler))
        cell = Cell(
            row=row,
            concurrency=concurrency,
            run=drive(target, feed()),
            predicted_tokens_per_s=predicted.tokens_per_s,
        )
        self.progress(f"{row} {policy}: {cell.text()} tokens/s in {cell.run.duration_s:.1f} s")
        return cell


def _concurrency_requests(
    model: LoadedModel, plan: BenchPlan, clients: int
) -> tuple[BenchRequest, ...]:
    out = plan.scaled(OUTPUT_TOKENS)
    return uniform_workload(
        _text_ids(model),
        num_requests=max(clients, min(2 * clients, plan.num_requests)),
        num_prompt_tokens=plan.scaled(PROMPT_TOKENS),
        output_tokens=(out, out),
        seed=plan.seed,
    )


def _length_requests(
    model: LoadedModel, plan: BenchPlan, row: WorkloadName
) -> tuple[BenchRequest, ...]:
    return uniform_workload(
        _text_ids(model),
        num_requests=plan.num_requests,
        num_prompt_tokens=plan.scaled(LENGTH_PROMPT_TOKENS),
        output_tokens=plan.scaled_range(row),
        seed=plan.seed,
    )


def _text_ids(model: LoadedModel) -> Sequence[int]:
    return model.tokenizer.encode(PROMPT_TEXT, add_special_tokens=False)


def _range_text(output_tokens: tuple[int, int]) -> str:
    low, high = output_tokens
    return f"all {low}" if low == high else f"{low}-{high}"


def _by_row(cells: Sequence[Cell]) -> list[tuple[str, dict[str, Cell]]]:
    rows: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault(cell.row, {})[cell.run.policy] = cell
    return list(rows.items())
