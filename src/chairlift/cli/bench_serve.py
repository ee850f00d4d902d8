"""`chairlift bench serve`: load on any OpenAI-compatible server, and what it made of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chairlift.bench.serve.load_config import LoadConfig
from chairlift.cli.dataclass_options import Values, with_options

if TYPE_CHECKING:
    from chairlift.bench.serve.load_report import LoadReport
    from chairlift.bench.serve.load_run import Progress

NOTHING_SUCCEEDED = 1


@with_options(LoadConfig)
def serve(
    more_goodput: Annotated[
        list[str] | None, typer.Argument(metavar="NAME:MS", help="More words of --goodput.")
    ] = None,
    output_json: Annotated[Path | None, typer.Option(help="Write the results here.")] = None,
    save_result: Annotated[
        bool, typer.Option("--save-result", help="Write the results to a file named after the run.")
    ] = False,
    result_dir: Annotated[Path, typer.Option(help="The folder of that file.")] = Path("."),
    save_detailed: Annotated[
        bool, typer.Option("--save-detailed", help="Every request in the results, too.")
    ] = False,
    plot_path: Annotated[
        Path | None, typer.Option("--plot", help="Draw the run here (PNG).")
    ] = None,
    *,
    load: Values,
) -> None:
    """Measure a server that speaks the OpenAI API: throughput, latencies, goodput.

    Exit code 1: no request succeeded.
    """
    from chairlift.bench.serve.load_session import measure_server
    from chairlift.cli.result_files import check_writable, write_json, write_plot
    from chairlift.cli.terminal import note, show

    load.setdefault("api_key", os.environ.get("OPENAI_API_KEY") or None)
    config = LoadConfig(**{**load, "goodput": _goodput(load, more_goodput or [])})
    _check_results(output_json, save_result, save_detailed)
    for path in (output_json, plot_path, result_dir / "x" if save_result else None):
        if path is not None:
            check_writable(path)
    is_watched = sys.stderr.isatty()
    report = measure_server(
        config,
        note=note,
        on_progress=(lambda progress: note(_progress_text(progress))) if is_watched else None,
    )
    show(report.text())
    paths = [output_json, result_dir / _file_name(report) if save_result else None]
    for path in paths:
        if path is not None:
            write_json(report.to_json(is_detailed=save_detailed), path)
    if plot_path is not None:
        from chairlift.bench.serve.load_plot import draw_load

        write_plot(lambda path: draw_load(report, path), plot_path)
    if not report.metrics.completed:
        raise typer.Exit(NOTHING_SUCCEEDED)


def _goodput(load: Values, more: list[str]) -> tuple[str, ...]:
    """`--goodput ttft:500 tpot:50`: an option takes one word, the others come as arguments."""
    from chairlift.errors import ConfigError

    given = tuple(load.get("goodput", ()))
    if more and not given:
        raise ConfigError(f"unexpected argument {more[0]!r}")
    return given + tuple(more)


def _check_results(output_json: Path | None, save_result: bool, save_detailed: bool) -> None:
    from chairlift.errors import ConfigError

    if save_detailed and output_json is None and not save_result:
        raise ConfigError("save_detailed needs --output-json or --save-result")


def _file_name(report: LoadReport) -> str:
    config = report.config
    rate = "inf" if config.request_rate is None else f"{config.request_rate:g}"
    clients = "" if config.max_concurrency is None else f"-concurrency{config.max_concurrency}"
    model = "".join(c if c.isalnum() or c in "._-" else "-" for c in report.model)
    return f"chairlift-{rate}qps{clients}-{model}-{report.to_json()['date']}.json"


def _progress_text(progress: Progress) -> str:
    return (
        f"{progress.elapsed_s:.0f} s: {progress.num_done} of {progress.num_requests} done,"
        f" {progress.num_in_flight} in flight"
    )
