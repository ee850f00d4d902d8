"""`chairlift bench structured`: what constrained requests cost those beside them."""

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
def structured(
    num_prompts: Annotated[int, typer.Option(min=2, help="Requests at once.")] = 64,
    input_len: Annotated[int, typer.Option(min=1, help="Prompt tokens of a request.")] = 64,
    output_len: Annotated[int, typer.Option(min=1, help="Output tokens of a request.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of every share.")] = 5,
    temperature: Annotated[float, typer.Option(min=0, help="0: greedy, else seeded.")] = 0.0,
    output_json: Annotated[
        Path | None, typer.Option("--output-json", help="Write the results here.")
    ] = None,
    *,
    engine: Values,
) -> None:
    """The same requests with 0, 50 and 100 % of them held to a JSON schema, in turns."""
    from chairlift.bench.length_range import LengthRange
    from chairlift.bench.random_prompts import RandomPrompts, load_for_prompts
    from chairlift.bench.structured_load import measure_structured
    from chairlift.cli.result_files import check_writable, write_json
    from chairlift.cli.terminal import note, note_load, show

    asked = EngineConfig(**engine)
    prompts = RandomPrompts(
        num_prompts=num_prompts,
        input_len=LengthRange(input_len, input_len),
        output_len=LengthRange(output_len, output_len),
        seed=asked.seed or 0,
    )
    if output_json is not None:
        check_writable(output_json)
    note_load()
    model = load_for_prompts(asked, prompts, max_num_seqs=num_prompts, show_download=True)
    show(
        f"{model.name}: {num_prompts} requests, {input_len} tokens in, {output_len} out;"
        f" {model.runner.model.kernels.name} kernels, {model.resolved.num_threads} threads"
    )
    report = measure_structured(
        model, asked, prompts, num_rounds=rounds, temperature=temperature, progress=note
    )
    show("")
    show(report.text())
    if output_json is not None:
        write_json(report.to_json(), output_json)
