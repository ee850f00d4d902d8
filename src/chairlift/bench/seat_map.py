"""Who sits where: turns step records into rows of seats, for pictures and for counting waste.

A request takes the lowest free seat when it first rides and keeps it until it is gone; with static
batching it stays, as padding, until its batch ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from chairlift.events import StepRecord

SeatState = Literal["prefill", "decode", "padding", "empty"]
SEAT_STATES: tuple[SeatState, ...] = ("prefill", "decode", "padding", "empty")


@dataclass(frozen=True, slots=True)
class SeatColumn:
    """All seats in one step."""

    start_s: float
    end_s: float
    states: tuple[SeatState, ...]
    num_waiting: int
    """Requests that waited when the step had ended."""

    @property
    def num_wasted(self) -> int:
        """Seats that computed padding, or stood empty although somebody waited."""
        empty = self.states.count("empty")
        return self.states.count("padding") + min(empty, self.num_waiting)


class SeatMap:
    """Follows the riders step by step."""

    def __init__(self, num_seats: int) -> None:
        self.riders: list[str | None] = [None] * num_seats
        self._finished: set[str] = set()

    def update(self, record: StepRecord) -> SeatColumn:
        """Seat the members of the next step."""
        members = {member.request_id: member.kind for member in record.members}
        for seat, rider in enumerate(self.riders):
            if rider in self._finished and rider not in members:
                self.riders[seat] = None
        seated = set(self.riders)
        for request_id in members:
            if request_id not in seated and None in self.riders:
                self.riders[self.riders.index(None)] = request_id
        self._finished.update(request_id for request_id, _ in record.finished)
        return SeatColumn(
            record.start_s,
            record.start_s + record.duration_s,
            tuple("empty" if r is None else members.get(r, "empty") for r in self.riders),
            record.num_waiting,
        )


def seat_columns(records: Iterable[StepRecord], num_seats: int) -> list[SeatColumn]:
    """One column per step."""
    seats = SeatMap(num_seats)
    return [seats.update(record) for record in records]
