"""The tables of `chairlift bench policies` as a picture.  Needs matplotlib, the extra `plot`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chairlift.bench.policy_report import BenchReport, Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"static": "#e4572e", "dynamic": "#e8a33d", "continuous": "#1f5fa8"}


def draw_policies(report: BenchReport, path: Path) -> None:
    """Write a PNG.  Raises `ImportError` without matplotlib and `OSError` where it cannot write."""
    from matplotlib.figure import Figure

    tables = [cells for cells in (report.concurrency_cells, report.length_cells) if cells]
    figure = Figure(figsize=(6.5 * len(tables), 4.6), layout="constrained")
    axes = figure.subplots(1, len(tables), squeeze=False)[0]
    titles = {
        id(report.concurrency_cells): "requests at once",
        id(report.length_cells): "output tokens",
    }
    for axis, cells in zip(axes, tables, strict=True):
        _draw_bars(axis, cells)
        axis.set_xlabel(titles[id(cells)])
        axis.set_ylabel("output tokens/s")
    axes[0].legend(frameon=False, title="dot: predicted")
    figure.suptitle(f"Batching policies, {report.model}", fontweight="bold")
    figure.savefig(path, dpi=140)


def _draw_bars(axis: Axes, cells: Sequence[Cell]) -> None:
    rows = list(dict.fromkeys(cell.row for cell in cells))
    policies = list(dict.fromkeys(cell.run.policy for cell in cells))
    width = 0.8 / len(policies)
    for index, policy in enumerate(policies):
        mine = [cell for cell in cells if cell.run.policy == policy]
        places = [rows.index(c.row) + (index - (len(policies) - 1) / 2) * width for c in mine]
        bars = axis.bar(
            places,
            [c.run.tokens_per_s for c in mine],
            width * 0.94,
            color=_COLOURS[policy],
            label=policy,
        )
        axis.bar_label(bars, fmt="%.0f", fontsize=8, label_type="center", color="white")
        axis.plot(
            places,
            [c.predicted_tokens_per_s for c in mine],
            "o",
            color="black",
            markeredgecolor="white",
            markersize=6,
        )
    axis.set_xticks(range(len(rows)), rows)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
