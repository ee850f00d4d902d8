"""A run as a picture: requests and tokens over time, and the latencies.  Needs matplotlib, the
extra `plot`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chairlift.bench.serve.load_metrics import concurrency_steps
from chairlift.bench.serve.load_report import LoadReport
from chairlift.bench.serve.request_record import RequestRecord
from chairlift.bench.serve.service_level import LatencyName

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NUM_BINS = 60
_COLOURS: dict[LatencyName, str] = {
    "ttft": "#1f5fa8",
    "tpot": "#e4572e",
    "itl": "#e8a33d",
    "e2el": "#5b8c5a",
}


def draw_load(report: LoadReport, path: Path) -> None:
    """Write a PNG.  Raises `ImportError` without matplotlib and `OSError` where it cannot write."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4.6), layout="constrained")
    over_time, tokens, latencies = figure.subplots(1, 3)
    _draw_concurrency(over_time, report)
    _draw_tokens(tokens, report)
    _draw_latencies(latencies, report)
    for axis in (over_time, tokens, latencies):
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    figure.suptitle(f"{report.model}, {report.config.describe_load()}", fontweight="bold")
    figure.savefig(path, dpi=140)


def _draw_concurrency(axis: Axes, report: LoadReport) -> None:
    records = report.run.records
    in_flight = [(record.sent_s, record.finished_s) for record in records]
    answered = [
        (record.first_token_s, record.last_token_s)
        for record in records
        if record.first_token_s is not None and record.last_token_s is not None
    ]
    for spans, label, colour in (
        (in_flight, "in flight", "#9db4d0"),
        (answered, "being answered", "#1f5fa8"),
    ):
        steps = concurrency_steps(spans)
        axis.step(
            [time_s for time_s, _ in steps],
            [count for _, count in steps],
            where="post",
            label=label,
            color=colour,
        )
    axis.set_xlabel("seconds")
    axis.set_ylabel("requests")
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False)


def _draw_tokens(axis: Axes, report: LoadReport) -> None:
    completed = report.metrics.completed
    times = [time_s for record in completed for time_s in record.text_times_s]
    weights = [_tokens_per_chunk(record) for record in completed for _ in record.text_times_s]
    width_s = max(report.run.duration_s, 1e-9) / _NUM_BINS
    counts, edges = np.histogram(
        times, bins=_NUM_BINS, range=(0.0, _NUM_BINS * width_s), weights=weights
    )
    axis.stairs(counts / width_s, edges, color="#1f5fa8", fill=True, alpha=0.7)
    axis.set_xlabel("seconds")
    axis.set_ylabel("output tokens/s")


def _tokens_per_chunk(record: RequestRecord) -> float:
    return record.num_output_tokens / max(1, len(record.text_times_s))


def _draw_latencies(axis: Axes, report: LoadReport) -> None:
    level = report.config.service_level
    bounds = {} if level is None else dict(level.bounds_ms)
    for name in report.config.latencies:
        values = report.metrics.latency_ms(name).values
        values = values[values > 0.0]  # the axis is logarithmic
        if len(values):
            shares = np.arange(1, len(values) + 1) / len(values)
            axis.step(values, shares, where="post", label=name.upper(), color=_COLOURS[name])
    for name, bound in bounds.items():
        axis.axvline(bound, color=_COLOURS[name], linestyle="--", linewidth=1)
    axis.set_xscale("log")
    axis.set_xlabel("milliseconds (dashed: bounds of goodput)")
    axis.set_ylabel("share of requests, or of chunks for ITL")
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False)
