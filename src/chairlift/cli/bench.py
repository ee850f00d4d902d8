"""`chairlift bench`: batching policies and accuracy on this machine, and load on a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from chairlift.cli import (
    bench_kernels,
    bench_latency,
    bench_serve,
    bench_structured,
    bench_throughput,
)
from chairlift.cli.dataclass_options import Values, with_options
from chairlift.config import EngineConfig

if TYPE_CHECKING:
    from chairlift.bench.bench_plan import WorkloadName
    from chairlift.bench.kernel_mode import KernelMode
    from chairlift.config import KernelsName

TEXT = Path("tests/data/public_domain_text.txt")
"""In a checkout: an installation has no text, and names one."""

app = typer.Typer(
    help="Measure: this machine, or a server.", rich_markup_mode=None, no_args_is_help=False
)
app.command("throughput")(bench_throughput.throughput)
app.command("latency")(bench_latency.latency)
app.command("kernels")(bench_kernels.kernels)
app.command("structured")(bench_structured.structured)
app.command("serve")(bench_serve.serve)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("policies")
@with_options(EngineConfig, only=("model", "threads", "kernels"))
def policies(
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="fixed|varied|extreme",
            help="fixed: by requests at once. varied, extreme: by output lengths. Default: all.",
        ),
    ] = None,
    concurrency: Annotated[
        str, typer.Option(help="Requests at once, for the fixed workload.")
    ] = "1,8,16,32",
    scale: Annotated[
        float,
        typer.Option(help="Multiplies all lengths; 1 is 512 tokens in and 128 (up to 1024) out."),
    ] = 0.125,
    num_requests: Annotated[int, typer.Option(help="Requests of a run at most.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of lengths and prompts.")] = 0,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the results here.")
    ] = None,
    plot_path: Annotated[Path | None, typer.Option("--plot", help="Draw them here (PNG).")] = None,
    *,
    engine: Values,
) -> None:
    """Static, dynamic and continuous batching by load and by output length, with predictions."""
    from chairlift.bench.bench_plan import BenchPlan
    from chairlift.bench.policy_tables import load_for_bench, measure_policies
    from chairlift.cli.result_files import check_writable, write_json, write_plot
    from chairlift.cli.terminal import note, show

    asked = EngineConfig(**engine)
    plan = BenchPlan(
        workload=cast("WorkloadName | None", workload),
        concurrency=_concurrency(concurrency),
        scale=scale,
        num_requests=num_requests,
        seed=seed,
    )
    for path in (json_path, plot_path):
        if path is not None:
            check_writable(path)
    model = load_for_bench(asked, plan, show_download=True)
    show(f"{model.name}, {model.resolved.num_threads} threads, lengths x {scale:g}, seed {seed}")
    report = measure_policies(model, asked, plan, note)
    show("")
    show(report.text())
    if json_path is not None:
        write_json(report.to_json(), json_path)
    if plot_path is not None:
        from chairlift.bench.policy_plot import draw_policies

        write_plot(lambda path: draw_policies(report, path), plot_path)


@app.command("accuracy")
@with_options(
    EngineConfig,
    only=("model", "threads", "kernels", "kv_cache_dtype", "quant_compute"),
    defaults={"kernels": "int8"},
)
def accuracy(
    against: Annotated[
        str, typer.Option(metavar="native|reference", help="The float32 kernels to compare with.")
    ] = "native",
    windows: Annotated[
        int | None,
        typer.Option(min=1, help="Windows of 512 tokens to read. Default: the whole text."),
    ] = None,
    text_path: Annotated[Path, typer.Option("--text", help="The text to read.")] = TEXT,
    all_modes: Annotated[
        bool,
        typer.Option("--all-modes", help="Each kv_cache_dtype and quant_compute of the kernels."),
    ] = False,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the results here.")
    ] = None,
    *,
    engine: Values,
) -> None:
    """A kernel mode against float32 on a text: perplexity and agreement. Exit code 1: too far."""
    from chairlift.bench.accuracy import (
        check_modes,
        load_for_accuracy,
        measure_modes,
        modes_text,
        read_text,
    )
    from chairlift.bench.kernel_mode import KernelMode
    from chairlift.cli.result_files import check_writable, write_json
    from chairlift.cli.terminal import note, show

    asked = EngineConfig(**engine)
    modes = _modes(asked, all_modes)
    float32 = KernelMode(kernels=cast("KernelsName", against))
    for mode in modes:
        check_modes(mode, float32)
    text = read_text(text_path)
    if json_path is not None:
        check_writable(json_path)
    note(f"loading {asked.model} on {against} and {asked.kernels} kernels")
    reference = load_for_accuracy(asked, float32, show_download=True)
    reports = measure_modes(
        {mode: load_for_accuracy(asked, mode) for mode in modes},
        reference,
        text,
        against_mode=float32,
        num_windows=windows,
        progress=note,
    )
    show(f"{reports[0].model}, {text_path}")
    show(modes_text(reports) if all_modes else reports[0].text())
    if json_path is not None:
        facts = [report.to_json() for report in reports]
        write_json({"modes": facts} if all_modes else facts[0], json_path)
    if not all(report.passed for report in reports):
        raise typer.Exit(1)


def _modes(asked: EngineConfig, all_modes: bool) -> tuple[KernelMode, ...]:
    """The one that was asked for, or all that its kernels have."""
    from chairlift.bench.kernel_mode import KernelMode, modes_of
    from chairlift.errors import ConfigError

    if not all_modes:
        one = KernelMode(
            kernels=asked.kernels,
            kv_cache_dtype=asked.kv_cache_dtype,
            quant_compute=asked.quant_compute,
        )
        return (one,)
    for name in ("kv_cache_dtype", "quant_compute"):
        if getattr(asked, name) != "auto":
            raise ConfigError(f"--all-modes measures every {name}: leave it out", field=name)
    return modes_of(asked.kernels)


def _concurrency(text: str) -> tuple[int, ...]:
    from chairlift.errors import ConfigError

    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"concurrency takes numbers such as 1,8,16, got {text!r}", field="concurrency"
        ) from None
