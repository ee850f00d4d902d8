"""The two tables of `chairlift bench policies`: each measured value beside its prediction."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.bench.bench_plan import (
    LENGTH_PROMPT_TOKENS,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    STATIC_BATCH_SIZE,
    BenchPlan,
)
from chairlift.bench.client_limit import client_limit_note
from chairlift.bench.machine_facts import machine_facts
from chairlift.bench.policy_engine import POLICIES
from chairlift.bench.policy_run import PolicyRun
from chairlift.bench.text_table import text_table
from chairlift.bench.throughput_model import StepTimeModel
from chairlift.config import BatchingPolicyName

LENGTH_POLICIES: tuple[BatchingPolicyName, ...] = ("static", "continuous")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One measured run beside its prediction."""

    row: str
    concurrency: int
    """Requests that the client kept in flight at most."""
    run: PolicyRun
    predicted_tokens_per_s: float
    step_time: StepTimeModel
    """That the prediction was made with, fitted just before."""

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
            "step_time": dataclasses.asdict(self.step_time),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """Everything that was measured."""

    model: str
    plan: BenchPlan
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
        cells = self.concurrency_cells + self.length_cells
        parts = [
            "step-time model, fitted before each row; the last one:\n  "
            + cells[-1].step_time.describe()
        ]
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


def _by_row(cells: Sequence[Cell]) -> list[tuple[str, dict[str, Cell]]]:
    rows: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault(cell.row, {})[cell.run.policy] = cell
    return list(rows.items())
