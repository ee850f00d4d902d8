"""`chairlift bench throughput`: requests at once through the engine, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chairlift.cli.dataclass_options import Values, with_options
from chairlift.config import EngineConfig

if TYPE_CHECKING:
    from chairlift.bench.random_prompts import RandomPrompts


@with_options(
    EngineConfig,
    without=("trace", "pooling_type"),
    defaults={"enable_prefix_caching": False, "seed": 0},
)
def throughput(
    num_prompts: Annotated[int, typer.Option("--num-prompts", min=1, help="Requests.")] = 32,
    input_len: Annotated[
        str, typer.Option(metavar="N|LOW-HIGH", help="Prompt tokens of a request.")
    ] = "512",
    output_len: Annotated[
        str, typer.Option(metavar="N|LOW-HIGH", help="Output tokens of a request.")
    ] = "128",
    rounds: Annotated[
        int, typer.Option(min=1, help="Measure so often after the warm-up; the median counts.")
    ] = 1,
    limit: Annotated[
        bool,
        typer.Option("--limit", help="Measure the arithmetic peak too, and the share reached."),
    ] = False,
    compare_policies: Annotated[
        bool,
        typer.Option(
            "--compare-policies",
            help="Static and continuous batching instead: is the gain that of the effective batch?",
        ),
    ] = False,
    output_json: Annotated[
        Path | None, typer.Option("--output-json", help="Write the results here.")
    ] = None,
    *,
    engine: Values,
) -> None:
    """Random prompts of exact lengths, all at once: requests and tokens per second, and where the
    time and the memory go.
    """
    from chairlift.bench.length_range import parse_length_range
    from chairlift.bench.random_prompts import RandomPrompts
    from chairlift.cli.result_files import check_writable, write_json
    from chairlift.cli.terminal import note_load

    asked = EngineConfig(**engine)
    prompts = RandomPrompts(
        num_prompts=num_prompts,
        input_len=parse_length_range(input_len, field="input_len"),
        output_len=parse_length_range(output_len, field="output_len"),
        seed=asked.seed or 0,
    )
    if output_json is not None:
        check_writable(output_json)
    if compare_policies:
        _check_compared(asked, engine, limit=limit)
    note_load()
    if compare_policies:
        report = _compare(asked, prompts, rounds)
    else:
        report = _measure(asked, prompts, rounds, limit=limit)
    if output_json is not None:
        write_json(report, output_json)


def _measure(
    asked: EngineConfig, prompts: RandomPrompts, rounds: int, *, limit: bool
) -> dict[str, Any]:
    from chairlift.bench.machine_limits import LimitMeter
    from chairlift.bench.random_prompts import MAX_NUM_SEQS, load_for_prompts
    from chairlift.bench.resident_memory import peak_resident_bytes
    from chairlift.bench.throughput import measure_throughput
    from chairlift.cli.terminal import note, show
    from chairlift.engine.resolved_config import choose_num_threads
    from chairlift.machine import inspect_machine

    # Before the model, which takes longer to fail.
    meter = LimitMeter(choose_num_threads(asked, inspect_machine())) if limit else None
    model = load_for_prompts(
        asked, prompts, max_num_seqs=min(MAX_NUM_SEQS, prompts.num_prompts), show_download=True
    )
    scheduler = model.resolved.scheduler
    show(
        f"{model.name}: {_workload_text(prompts)}; {model.runner.model.kernels.name} kernels,"
        f" {model.resolved.num_threads} threads, {scheduler.batching_policy} batching of at most"
        f" {scheduler.max_num_seqs}"
    )
    report = measure_throughput(
        model,
        asked,
        prompts,
        num_rounds=rounds,
        meter=meter,
        peak_loading_bytes=peak_resident_bytes(),
        progress=note,
    )
    show(report.text())
    return report.to_json()


def _compare(asked: EngineConfig, prompts: RandomPrompts, rounds: int) -> dict[str, Any]:
    from chairlift.bench.bench_plan import STATIC_BATCH_SIZE
    from chairlift.bench.policy_ratio import compare_throughput
    from chairlift.bench.random_prompts import load_for_prompts
    from chairlift.cli.terminal import note, show

    model = load_for_prompts(asked, prompts, max_num_seqs=STATIC_BATCH_SIZE, show_download=True)
    show(
        f"{model.name}: {_workload_text(prompts)}; {model.runner.model.kernels.name} kernels,"
        f" {model.resolved.num_threads} threads, static batch and seats"
        f" {model.resolved.scheduler.max_num_seqs}"
    )
    report = compare_throughput(model, asked, prompts, num_rounds=rounds, progress=note)
    show("")
    show(report.text())
    return report.to_json()


def _check_compared(asked: EngineConfig, given: Values, *, limit: bool) -> None:
    """Raises `ConfigError` for options that a comparison would not follow."""
    from chairlift.errors import ConfigError

    if limit:
        raise ConfigError("limit says nothing with compare_policies: leave one out", field="limit")
    for name in ("batching_policy", "static_batch_size", "batch_wait_ms"):
        if name in given:
            raise ConfigError(
                f"{name} is set by compare_policies itself: leave it out (seats and static batch:"
                " max_num_seqs)",
                field=name,
            )
    if asked.enable_prefix_caching:
        raise ConfigError(
            "compare_policies runs without a prefix cache: leave enable_prefix_caching out",
            field="enable_prefix_caching",
        )


def _workload_text(prompts: RandomPrompts) -> str:
    return (
        f"{prompts.num_prompts} requests, {prompts.input_len} tokens in, {prompts.output_len} out,"
        f" seed {prompts.seed}"
    )
