"""The same requests through all three policies: the comparison that `chairlift demo` shows.

Same model, kernels, seats, arrivals and step limits; only the policy differs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from chairlift.bench.drive import EngineTarget, OpenLoop, drive
from chairlift.bench.machine_facts import machine_facts
from chairlift.bench.policy_engine import POLICIES, policy_config, policy_engine
from chairlift.bench.policy_run import PolicyRun
from chairlift.bench.text_table import text_table
from chairlift.bench.workload import PROMPT_TEXT, BenchRequest, mixed_workload
from chairlift.config import BatchingPolicyName, EngineConfig
from chairlift.engine.loaded_model import LoadedModel, load_model
from chairlift.events import StepRecord

MEAN_GAP_S = 0.03
"""Between two arrivals: faster than two cores can serve, so that a queue forms."""
STATIC_WAIT_MS = 2000.0
"""A static batch waits for its full number."""
DYNAMIC_WAIT_MS = 250.0
_STATE_LETTERS = {"prefill": "P", "decode": "D", "padding": "x", "empty": "."}


class ComparisonView(Protocol):
    """Watches a comparison."""

    def start(self, policy: BatchingPolicyName, requests: Sequence[BenchRequest]) -> None: ...

    def step(self, record: StepRecord) -> None: ...

    def finish(self, run: PolicyRun) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All runs of one workload."""

    model: str
    requests: tuple[BenchRequest, ...]
    runs: tuple[PolicyRun, ...]

    @property
    def num_different(self) -> int:
        """Requests whose tokens are not the same under every policy."""
        answers: dict[str, set[tuple[int, ...]]] = {}
        for run in self.runs:
            for result in run.results:
                answers.setdefault(result.request_id, set()).add(result.token_ids)
        return sum(len(answer) > 1 for answer in answers.values())

    def table(self) -> str:
        headers = (
            "policy",
            "tokens/s",
            "mean\nbatch",
            "first token\np50 s",
            "first token\np99 s",
            "wasted\nslots",
            "total s",
        )
        return text_table(headers, [_table_row(run) for run in self.runs])

    def to_json(self) -> dict[str, Any]:
        """Everything that was measured, each step with its seats as letters."""
        return {
            "machine": machine_facts(),
            "model": self.model,
            "identical_outputs": self.num_different == 0,
            "seat_letters": {letter: state for state, letter in _STATE_LETTERS.items()},
            "requests": [
                {
                    "request_id": request.request_id,
                    "num_prompt_tokens": len(request.prompt_token_ids),
                    "num_output_tokens": request.num_output_tokens,
                    "arrival_s": request.arrival_s,
                }
                for request in self.requests
            ],
            "runs": [_run_to_json(run) for run in self.runs],
        }


def load_for_comparison(asked: EngineConfig, num_seats: int, *, show_download: bool) -> LoadedModel:
    """The model, with memory planned for `num_seats` requests."""
    asked = dataclasses.replace(
        asked,
        max_num_seqs=num_seats,
        enable_prefix_caching=False,
    )
    return load_model(asked, show_download=show_download)


def compare_policies(
    model: LoadedModel,
    asked: EngineConfig,
    view: ComparisonView,
    *,
    num_requests: int,
    num_seats: int,
    seed: int,
) -> Comparison:
    """Run the workload once under each policy."""
    requests = mixed_workload(
        model.tokenizer.encode(PROMPT_TEXT, add_special_tokens=False),
        num_requests=num_requests,
        max_len=model.resolved.memory.max_model_len,
        mean_gap_s=MEAN_GAP_S,
        seed=seed,
    )
    runs = []
    for policy in POLICIES:
        wait_ms = STATIC_WAIT_MS if policy == "static" else DYNAMIC_WAIT_MS
        scheduler = policy_config(model, policy, num_seats=num_seats, batch_wait_ms=wait_ms)
        target = EngineTarget(policy_engine(model, asked, scheduler))
        view.start(policy, requests)
        run = drive(target, OpenLoop(requests), on_step=_step_of(view))
        view.finish(run)
        runs.append(run)
    return Comparison(model=model.name, requests=requests, runs=tuple(runs))


def _step_of(view: ComparisonView) -> Callable[[StepRecord], None]:
    return lambda record: view.step(record)


def _table_row(run: PolicyRun) -> tuple[str, ...]:
    return (
        run.policy,
        f"{run.tokens_per_s:.1f}",
        f"{run.mean_batch:.1f}",
        f"{run.first_token_s(0.5):.2f}",
        f"{run.first_token_s(0.99):.2f}",
        f"{run.wasted_share:.0%}",
        f"{run.duration_s:.1f}",
    )


def _run_to_json(run: PolicyRun) -> dict[str, Any]:
    return {
        "policy": run.policy,
        "num_seats": run.num_seats,
        "tokens_per_s": run.tokens_per_s,
        "mean_batch": run.mean_batch,
        "first_token_p50_s": run.first_token_s(0.5),
        "first_token_p99_s": run.first_token_s(0.99),
        "wasted_share": run.wasted_share,
        "num_output_tokens": run.num_output_tokens,
        "duration_s": run.duration_s,
        "requests": [
            {
                "request_id": result.request_id,
                "first_token_s": result.first_token_s - run.start_s,
                "finished_s": result.finished_s - run.start_s,
            }
            for result in run.results
        ],
        "steps": [
            {
                "start_s": column.start_s - run.start_s,
                "end_s": column.end_s - run.start_s,
                "seats": "".join(_STATE_LETTERS[state] for state in column.states),
                "num_waiting": column.num_waiting,
            }
            for column in run.columns()
        ],
    }
