"""The picture of a comparison: for each policy, who sat in which seat at what time.

Needs matplotlib, the extra `plot`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chairlift.bench.policy_run import PolicyRun
from chairlift.bench.seat_map import SEAT_STATES, SeatColumn, SeatState

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection

# Readable without colour as well: from dark (useful) to light (empty), padding in a warm tone.
STATE_COLOURS: dict[SeatState, str] = {
    "prefill": "#1f5fa8",
    "decode": "#6db5d9",
    "padding": "#e4572e",
    "empty": "#eeeeee",
}
_STATE_NAMES: dict[SeatState, str] = {
    "prefill": "useful: prompt",
    "decode": "useful: output",
    "padding": "padding: finished, and still computed",
    "empty": "empty",
}


def draw_occupancy(runs: Sequence[PolicyRun], path: Path, *, title: str) -> None:
    """Write a PNG.  Raises `ImportError` without matplotlib and `OSError` where it cannot write."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(12, 2.1 + 2.1 * len(runs)), layout="constrained")
    axes = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    longest_s = max(run.duration_s for run in runs)
    for axis, run in zip(axes, runs, strict=True):
        _draw_run(axis, run, longest_s)
    axes[-1].set_xlabel("seconds since the first request")
    figure.suptitle(title, fontsize=13, fontweight="bold")
    figure.legend(
        handles=[
            Patch(facecolor=STATE_COLOURS[s], edgecolor="#999999", label=_STATE_NAMES[s])
            for s in SEAT_STATES
        ],
        loc="outside lower center",
        ncols=len(SEAT_STATES),
        frameon=False,
    )
    figure.savefig(path, dpi=140)


def _draw_run(axis: Axes, run: PolicyRun, longest_s: float) -> None:
    axis.set_title(
        f"{run.policy}:  {run.tokens_per_s:.0f} tokens/s,  mean batch {run.mean_batch:.1f},  "
        f"first token p50 {run.first_token_s(0.5):.1f} s / p99 {run.first_token_s(0.99):.1f} s,  "
        f"wasted {run.wasted_share:.0%},  {run.duration_s:.1f} s",
        fontsize=10.5,
        loc="left",
    )
    axis.add_collection(_cells(run))
    axis.axvline(run.duration_s, color="#333333", linewidth=1)
    axis.set_xlim(0, longest_s * 1.01)
    axis.set_ylim(run.num_seats, 0)
    axis.set_ylabel("seat")
    axis.set_yticks([0.5, run.num_seats - 0.5], ["1", str(run.num_seats)])
    axis.set_facecolor("white")
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _cells(run: PolicyRun) -> PolyCollection:
    """One rectangle per seat and stretch of steps in the same state."""
    from matplotlib.collections import PolyCollection

    corners, colours = [], []
    columns = run.columns()
    for seat in range(run.num_seats):
        for start_s, end_s, state in _stretches(run, columns, seat):
            top, bottom = seat + 0.06, seat + 0.94
            corners.append([(start_s, top), (end_s, top), (end_s, bottom), (start_s, bottom)])
            colours.append(STATE_COLOURS[state])
    return PolyCollection(corners, facecolors=colours, linewidths=0)


def _stretches(
    run: PolicyRun, columns: Sequence[SeatColumn], seat: int
) -> list[tuple[float, float, SeatState]]:
    """Start, end and state, gaps between steps included."""
    found: list[tuple[float, float, SeatState]] = [(0.0, run.duration_s, "empty")]
    for column in columns:
        state = column.states[seat]
        if state == "empty":
            continue
        start_s, end_s = column.start_s - run.start_s, column.end_s - run.start_s
        last_start_s, last_end_s, last_state = found[-1]
        if last_state == state and start_s - last_end_s < 0.02:
            found[-1] = (last_start_s, end_s, state)
        else:
            found.append((start_s, end_s, state))
    return found
