"""What a person sees while `chairlift demo` runs: seats filling up on a terminal, else lines."""

from __future__ import annotations

import itertools
import sys
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from chairlift.bench.policy_run import PolicyRun
from chairlift.bench.seat_map import SeatMap, SeatState
from chairlift.bench.workload import BenchRequest
from chairlift.cli.terminal import show
from chairlift.config import BatchingPolicyName
from chairlift.events import StepRecord

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_LINE_EVERY_S = 5.0
_FRAMES_PER_S = 5
"""More would take from the engine what they show."""
_STYLES: dict[SeatState, tuple[str, str]] = {
    "prefill": ("█", "blue"),
    "decode": ("▓", "bright_cyan"),
    "padding": ("░", "red"),
    "empty": ("·", "bright_black"),
}


class Tally:
    """Counts one run as it goes."""

    def __init__(self, policy: BatchingPolicyName, requests: Sequence[BenchRequest]) -> None:
        self.policy = policy
        self.num_requests = len(requests)
        self.asked = {request.request_id: request.num_output_tokens for request in requests}
        self.done: dict[str, int] = {}
        self.num_finished = self.num_waiting = 0
        self._start_s = time.monotonic()

    def step(self, record: StepRecord) -> None:
        for member in record.members:
            if member.kind == "decode":
                self.done[member.request_id] = self.done.get(member.request_id, 1) + 1
        self.num_finished += len(record.finished)
        self.num_waiting = record.num_waiting

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._start_s

    def text(self) -> str:
        num_tokens = sum(self.done.values())
        return (
            f"{self.policy:<10}  {self.num_finished:3d} of {self.num_requests} done"
            f"  {self.num_waiting:3d} waiting  {num_tokens / self.elapsed_s:6.1f} tokens/s"
            f"  {self.elapsed_s:5.1f} s"
        )


def result_line(run: PolicyRun) -> str:
    return (
        f"{run.policy:<10}  {len(run.results):3d} done in {run.duration_s:5.1f} s"
        f"  {run.tokens_per_s:6.1f} tokens/s  mean batch {run.mean_batch:4.1f}"
        f"  {run.wasted_share:4.0%} of the slots wasted"
    )


class LineView:
    """Plain lines: one when a run ends, and one every few seconds."""

    def __enter__(self) -> LineView:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def start(self, policy: BatchingPolicyName, requests: Sequence[BenchRequest]) -> None:
        self._tally = Tally(policy, requests)
        self._next_s = _LINE_EVERY_S

    def step(self, record: StepRecord) -> None:
        self._tally.step(record)
        if self._tally.elapsed_s >= self._next_s:
            self._next_s += _LINE_EVERY_S
            show(self._tally.text())

    def finish(self, run: PolicyRun) -> None:
        show(result_line(run))


class LiveView:
    """One row per seat: who sits there, how far they are, and the last steps in colour."""

    def __init__(self, num_seats: int) -> None:
        from rich.console import Console
        from rich.live import Live

        self._num_seats = num_seats
        self._console = Console()
        self._width = max(10, self._console.width - 24)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._next_s = 0.0

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def start(self, policy: BatchingPolicyName, requests: Sequence[BenchRequest]) -> None:
        self._tally = Tally(policy, requests)
        self._seats = SeatMap(self._num_seats)
        self._columns: deque[tuple[SeatState, ...]] = deque(maxlen=self._width)

    def step(self, record: StepRecord) -> None:
        self._tally.step(record)
        self._columns.append(self._seats.update(record).states)
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + 1 / _FRAMES_PER_S
            self._live.update(self._picture(), refresh=True)

    def finish(self, run: PolicyRun) -> None:
        self._console.print(result_line(run), highlight=False)

    def _picture(self) -> RenderableType:
        from rich.text import Text

        picture = Text(self._tally.text() + "\n", style="bold")
        for seat in range(self._num_seats):
            picture.append_text(self._row(seat))
        for state, (mark, style) in _STYLES.items():
            picture.append(f" {mark * 2}", style=f"not bold {style}")
            picture.append(f" {state} ", style="not bold")
        return picture

    def _row(self, seat: int) -> Text:
        from rich.text import Text

        rider = self._seats.riders[seat]
        label = ""
        if rider is not None:
            label = f"#{rider} {self._tally.done.get(rider, 0)}/{self._tally.asked[rider]}"
        row = Text(f" {seat + 1:3d}  {label:<13} ", style="not bold")
        for state, steps in itertools.groupby(states[seat] for states in self._columns):
            mark, style = _STYLES[state]
            row.append(mark * len(list(steps)), style=style)
        return row.append("\n")


def create_view(num_seats: int) -> Any:
    """The live one on a terminal that is tall enough, else lines."""
    import shutil

    is_live = sys.stdout.isatty() and shutil.get_terminal_size().lines >= num_seats + 4
    return LiveView(num_seats) if is_live else LineView()
