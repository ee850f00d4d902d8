"""Static, dynamic and continuous batching, as answers to two questions.

A policy says whom to admit now, and when a finished request's row and blocks go.  Everything else,
the memory, the budget and the kernels, is the same for all three, so that comparing them compares
nothing else.

| policy     | admits                                  | a finished request leaves          |
| continuous | at every step                           | at once                            |
| dynamic    | when no batch is running, after a wait  | at once; its place stays empty     |
| static     | the same, by `static_batch_size`        | with the last member of its batch  |
"""

from __future__ import annotations

from typing import Protocol

from chairlift.config import BatchingPolicyName
from chairlift.events import AdmissionLimit


class BatchingPolicy(Protocol):
    """Asked once per step; `num_running` counts finished members that still hold their row."""

    name: BatchingPolicyName
    admits_while_running: bool
    """Others may get on although a batch is running."""
    holds_finished: bool
    """A finished request keeps its row and blocks, computes padding, and is answered at the end."""

    def num_admissible(
        self, *, now: float, num_waiting: int, oldest_arrival: float, num_running: int
    ) -> int:
        """How many requests may be admitted in this step."""
        ...

    def step_admitted(self, num_admitted: int, limit: AdmissionLimit) -> None:
        """Told how many were, and what kept the next one out."""
        ...

    def wake_at(self, *, num_waiting: int, oldest_arrival: float, num_running: int) -> float | None:
        """When to ask again although nothing happened; None: only events matter."""
        ...


class ContinuousBatching:
    """Requests get on and off at every step (iteration-level scheduling: Yu et al. 2022, Orca)."""

    name: BatchingPolicyName = "continuous"
    admits_while_running = True
    holds_finished = False

    def num_admissible(
        self, *, now: float, num_waiting: int, oldest_arrival: float, num_running: int
    ) -> int:
        return num_waiting

    def step_admitted(self, num_admitted: int, limit: AdmissionLimit) -> None:
        return None

    def wake_at(self, *, num_waiting: int, oldest_arrival: float, num_running: int) -> float | None:
        return None


class BatchedAdmission:
    """Dynamic and static batching: a batch forms when it is full or has waited long enough.

    Prompts that exceed one step's budget get on over several steps: the batch stays open for the
    rest of its members as long as nothing but the budget keeps them out.
    """

    admits_while_running = False

    def __init__(self, name: BatchingPolicyName, *, batch_size: int, batch_wait_s: float) -> None:
        self.name: BatchingPolicyName = name
        self.holds_finished = name == "static"
        self.batch_size = batch_size
        self.batch_wait_s = batch_wait_s
        self._num_open = 0
        """Members of the batch that still have to get on."""

    def num_admissible(
        self, *, now: float, num_waiting: int, oldest_arrival: float, num_running: int
    ) -> int:
        if not num_running:
            is_due = num_waiting >= self.batch_size or now >= oldest_arrival + self.batch_wait_s
            self._num_open = min(num_waiting, self.batch_size) if is_due else 0
        return min(num_waiting, self._num_open)

    def step_admitted(self, num_admitted: int, limit: AdmissionLimit) -> None:
        is_forming = limit in ("max_num_batched_tokens", "long_prefill")
        self._num_open = max(0, self._num_open - num_admitted) if is_forming else 0

    def wake_at(self, *, num_waiting: int, oldest_arrival: float, num_running: int) -> float | None:
        if num_running or not num_waiting:
            return None
        return oldest_arrival + (self.batch_wait_s if num_waiting < self.batch_size else 0.0)


def create_batching_policy(
    name: BatchingPolicyName, *, max_num_seqs: int, static_batch_size: int, batch_wait_s: float
) -> BatchingPolicy:
    """The policy of that name.  A dynamic batch may be as large as `max_num_seqs`."""
    if name == "continuous":
        return ContinuousBatching()
    size = max_num_seqs if name == "dynamic" else min(static_batch_size, max_num_seqs)
    return BatchedAdmission(name, batch_size=size, batch_wait_s=batch_wait_s)
