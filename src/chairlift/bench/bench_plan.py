"""What `chairlift bench policies` measures: rows of two tables, and the requests of each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from chairlift.bench.workload import BenchRequest, uniform_workload
from chairlift.errors import ConfigError

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """What to measure."""

    workload: WorkloadName | None = None
    """None: both tables.  fixed: the first.  varied or extreme: that row of the second."""
    concurrency: tuple[int, ...] = (1, 8, 16, 32)
    scale: float = 0.125
    """All lengths are multiplied by it."""
    num_requests: int = 100
    """Of the length table; the concurrency table sends two per client, and at least one."""
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

    def concurrency_requests(
        self, text_token_ids: Sequence[int], clients: int
    ) -> tuple[BenchRequest, ...]:
        """What `clients` clients send in all."""
        out = self.scaled(OUTPUT_TOKENS)
        return uniform_workload(
            text_token_ids,
            num_requests=max(clients, min(max(4, 2 * clients), self.num_requests)),
            num_prompt_tokens=self.scaled(PROMPT_TOKENS),
            output_tokens=(out, out),
            seed=self.seed,
        )

    def length_requests(
        self, text_token_ids: Sequence[int], row: WorkloadName
    ) -> tuple[BenchRequest, ...]:
        """The requests of one row of the length table."""
        return uniform_workload(
            text_token_ids,
            num_requests=self.num_requests,
            num_prompt_tokens=self.scaled(LENGTH_PROMPT_TOKENS),
            output_tokens=self.scaled_range(row),
            seed=self.seed,
        )

    def all_requests(self, text_token_ids: Sequence[int]) -> list[BenchRequest]:
        """Of every row."""
        rows = [
            *(self.concurrency_requests(text_token_ids, row) for row in self.concurrency_rows),
            *(self.length_requests(text_token_ids, row) for row in self.length_rows),
        ]
        return list(itertools.chain.from_iterable(rows))
