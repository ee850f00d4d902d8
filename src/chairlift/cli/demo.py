"""`chairlift demo`: the three batching policies side by side, in a minute or two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chairlift.cli.dataclass_options import Values, with_options
from chairlift.config import EngineConfig

if TYPE_CHECKING:
    from chairlift.bench.demo_comparison import Comparison

NUM_REQUESTS = 48
NUM_SEATS = 16
JSON_NAME = "chairlift-demo.json"
PNG_NAME = "chairlift-demo.png"


@with_options(EngineConfig, only=("model", "threads", "kernels"))
def demo(
    out: Annotated[
        Path, typer.Option("--out", help=f"Folder for {JSON_NAME} and {PNG_NAME}.")
    ] = Path("."),
    num_requests: Annotated[
        int, typer.Option("--num-requests", min=1, max=10_000, help="Requests to send.")
    ] = NUM_REQUESTS,
    seats: Annotated[
        int, typer.Option("--seats", min=1, max=256, help="Requests that may run at once.")
    ] = NUM_SEATS,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of lengths and arrivals.")] = 0,
    *,
    engine: Values,
) -> None:
    """Send the same requests through static, dynamic and continuous batching, and compare."""
    import time

    from chairlift.bench.demo_comparison import compare_policies, load_for_comparison
    from chairlift.cli.demo_view import create_view
    from chairlift.cli.terminal import show

    start_s = time.perf_counter()
    asked = EngineConfig(**engine)
    _make_folder(out)
    model = load_for_comparison(asked, seats, show_download=True)
    show(f"{model.name} loaded in {time.perf_counter() - start_s:.1f} s")
    show(
        f"{num_requests} requests of mixed lengths, {seats} seats, {model.resolved.num_threads}"
        f" threads, seed {seed}; greedy, prefix caching off"
    )
    show("")
    with create_view(seats) as view:
        comparison = compare_policies(
            model, asked, view, num_requests=num_requests, num_seats=seats, seed=seed
        )
    _report(comparison, out)
    show(f"{time.perf_counter() - start_s:.0f} s in all")


def _make_folder(out: Path) -> None:
    """Before anything is computed that could not be written."""
    import os

    from chairlift.errors import ConfigError

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to --out {out}: {error.strerror}", field="out") from None
    if not os.access(out, os.W_OK):
        raise ConfigError(f"cannot write to --out {out}: no permission", field="out")


def _report(comparison: Comparison, out: Path) -> None:
    from chairlift.cli.result_files import write_json, write_plot
    from chairlift.cli.terminal import show

    show("")
    show(comparison.table())
    show("")
    show("mean batch: requests that computed something useful, per step")
    show("first token: as the caller sees it; a static batch answers when it is done")
    show("wasted slots: seats computing padding, or empty while requests wait, by time")
    show("")
    count = len(comparison.requests)
    if comparison.num_different:
        show(f"WARNING: {comparison.num_different} of {count} answers differ between the policies")
    else:
        show(f"all {count} answers are the same, token by token, under the three policies")
    write_json(comparison.to_json(), out / JSON_NAME)
    from chairlift.bench.occupancy_plot import draw_occupancy

    runs = comparison.runs
    title = (
        f"{count} requests of mixed lengths through {runs[0].num_seats} seats, {comparison.model}"
    )
    write_plot(lambda path: draw_occupancy(runs, path, title=title), out / PNG_NAME)
