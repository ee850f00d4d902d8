"""`chairlift bench latency`: one batch at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chairlift.cli.dataclass_options import Values, with_options
from chairlift.config import EngineConfig


@with_options(
    EngineConfig,
    without=("trace", "pooling_type"),
    defaults={"enable_prefix_caching": False, "seed": 0},
)
def latency(
    batch_size: Annotated[int, typer.Option(min=1, help="Requests of the batch.")] = 8,
    input_len: Annotated[int, typer.Option(min=1, help="Prompt tokens of a request.")] = 32,
    output_len: Annotated[int, typer.Option(min=1, help="Output tokens of a request.")] = 128,
    num_iters: Annotated[int, typer.Option(min=1, help="Batches to measure.")] = 10,
    num_iters_warmup: Annotated[int, typer.Option(min=0, help="Batches before that.")] = 2,
    output_json: Annotated[
        Path | None, typer.Option("--output-json", help="Write the results here.")
    ] = None,
    *,
    engine: Values,
) -> None:
    """One batch of random prompts, again and again: time end to end, to first token, per token."""
    from chairlift.bench.latency import measure_latency
    from chairlift.bench.length_range import LengthRange
    from chairlift.bench.random_prompts import RandomPrompts, load_for_prompts
    from chairlift.cli.result_files import check_writable, write_json
    from chairlift.cli.terminal import note, note_load, show

    asked = EngineConfig(**engine)
    prompts = RandomPrompts(
        num_prompts=batch_size,
        input_len=LengthRange(input_len, input_len),
        output_len=LengthRange(output_len, output_len),
        seed=asked.seed or 0,
    )
    if output_json is not None:
        check_writable(output_json)
    note_load()
    model = load_for_prompts(asked, prompts, max_num_seqs=batch_size, show_download=True)
    show(
        f"{model.name}: batches of {batch_size}, {input_len} tokens in, {output_len} out;"
        f" {model.runner.model.kernels.name} kernels, {model.resolved.num_threads} threads"
    )
    report = measure_latency(
        model,
        asked,
        prompts,
        num_iters=num_iters,
        num_iters_warmup=num_iters_warmup,
        progress=note,
    )
    show("")
    show(report.text())
    if output_json is not None:
        write_json(report.to_json(), output_json)
