"""What one policy made of one workload: every step and every answer, and the figures from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.bench.seat_map import SeatColumn, seat_columns
from chairlift.config import BatchingPolicyName
from chairlift.events import StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestResult:
    """One answer.  Times in seconds on the clock of the run."""

    request_id: str
    num_prompt_tokens: int
    token_ids: tuple[int, ...]
    arrival_s: float
    first_token_s: float
    """When the caller got to see it: with static batching, at the end of its batch."""
    finished_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRun:
    """A finished run.  `start_s` is the clock's time of the first arrival."""

    policy: BatchingPolicyName
    num_seats: int
    start_s: float
    duration_s: float
    records: tuple[StepRecord, ...]
    results: tuple[RequestResult, ...]

    @property
    def num_output_tokens(self) -> int:
        return sum(len(result.token_ids) for result in self.results)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens, padding not counted, by the time of the whole run."""
        return self.num_output_tokens / self.duration_s

    @property
    def mean_batch(self) -> float:
        """Useful members per step: padding is not one."""
        useful = sum(m.kind != "padding" for record in self.records for m in record.members)
        return useful / len(self.records)

    @property
    def mean_running(self) -> float:
        """Requests that rode, weighted by the steps' time."""
        busy_s = sum(record.duration_s for record in self.records)
        return sum(len(r.members) * r.duration_s for r in self.records) / busy_s

    @property
    def wasted_share(self) -> float:
        """Of seats x time: computing padding, or empty although somebody waited."""
        columns = self.columns()
        seat_s = sum((column.end_s - column.start_s) * self.num_seats for column in columns)
        wasted_s = sum((column.end_s - column.start_s) * column.num_wasted for column in columns)
        return wasted_s / seat_s

    def columns(self) -> list[SeatColumn]:
        return seat_columns(self.records, self.num_seats)

    def first_token_s(self, share: float) -> float:
        """The time to first token that `share` of the requests did not exceed."""
        return percentile([r.first_token_s - r.arrival_s for r in self.results], share)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of `values` do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
