"""`chairlift info`: what this machine offers, and what a model would take of it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from chairlift.cli.dataclass_options import Values, with_options
from chairlift.config import EngineConfig

_LENGTHS = (512, 2048, 8192, 32768)


@with_options(EngineConfig, without=("model", "seed", "trace", "pooling_type"))
def info(
    model: Annotated[
        str | None, typer.Argument(help="Plan this model's memory too, without loading it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
    *,
    engine: Values,
) -> None:
    """Show version, processor, kernels and memory; with MODEL, its sizes and memory plan."""
    import json

    from chairlift.bench.machine_facts import machine_facts
    from chairlift.cache_folder import cache_folder
    from chairlift.cli.terminal import show

    facts: dict[str, Any] = {**machine_facts(), "cache_folder": str(cache_folder())}
    if model is not None:
        facts["model"] = _model_facts(EngineConfig(model=model, **engine))
    show(json.dumps(facts, indent=2) if as_json else "\n".join(_lines(facts)))


def _model_facts(asked: EngineConfig) -> dict[str, Any]:
    import dataclasses
    import sys

    from chairlift.engine.kernel_choice import choose_kernels
    from chairlift.engine.loaded_model import plan_model
    from chairlift.engine.resolved_config import choose_num_threads
    from chairlift.machine import inspect_machine
    from chairlift.models.registry import read_model_config
    from chairlift.weights.checkpoint import open_checkpoint
    from chairlift.weights.model_source import resolve_model

    path = resolve_model(asked.model, progress=sys.stderr.isatty())
    with open_checkpoint(path) as checkpoint:
        config = read_model_config(checkpoint.kind, checkpoint.metadata)
        machine = inspect_machine()
        choice = choose_kernels(asked, checkpoint, config, choose_num_threads(asked, machine))
        kernels = choice.kernels
        resolved = plan_model(asked, config, machine, checkpoint, kernels)
    memory = resolved.memory
    lengths = [n for n in _LENGTHS if n < memory.max_model_len] + [memory.max_model_len]
    return {
        "name": asked.model,
        "path": str(path),
        "config": dataclasses.asdict(config),
        "num_parameters": config.num_parameters,
        "kernels": kernels.name,
        "weights": dict(resolved.weights),
        "quant_compute": kernels.quant_compute,
        "kv_cache_dtype": memory.kv_dtype,
        "kv_bytes_per_token": memory.token_bytes,
        "memory": dataclasses.asdict(memory),
        "fits": [
            {"num_tokens": n, "num_requests": memory.num_fitting_requests(n)} for n in lengths
        ],
        "reasons": [*resolved.reasons, *choice.reasons],
    }


def _lines(facts: dict[str, Any]) -> list[str]:
    from chairlift.cli.terminal import size_text

    kernels = facts["kernels"]
    if kernels["backend"] == "native":
        others = ", ".join(kernels["available_isas"])
        kernel_text = f"native or int8, {kernels['isa']} (this machine can run {others})"
    else:
        kernel_text = f"reference, which is slow: {kernels['reason']}"
    features = ", ".join(facts["features"])
    lines = [
        f"chairlift    {facts['chairlift']}",
        f"python       {facts['python']} on {facts['platform']}",
        f"processor    {facts['processor']}" + (f" ({features})" if features else ""),
        f"kernels      {kernel_text}",
        *(_arithmetic_lines(kernels) if kernels["backend"] == "native" else ()),
        f"threads      {facts['num_cpus']} (cores inside affinity and quota)",
        f"memory       {size_text(facts['free_memory_bytes'])} free of"
        f" {size_text(facts['total_memory_bytes'])}; the {facts['memory_limit']}'s limit binds",
        f"models in    {facts['cache_folder']}",
    ]
    return lines + _model_lines(facts["model"]) if "model" in facts else lines


def _arithmetic_lines(kernels: dict[str, Any]) -> list[str]:
    """What computes floats and bytes, how fast everything else would be, and who says so."""
    arithmetic = kernels["arithmetic"]
    if arithmetic["source"] == "forced":
        return [f"arithmetic   {kernels['isa']}, forced by CHAIRLIFT_ISA: nothing was measured"]
    lines = []
    for kind, chosen in arithmetic["levels"].items():
        rates = arithmetic["gmacs_per_thread"].get(kind, {})
        shown = ", ".join(f"{level} {rate:.1f}" for level, rate in rates.items())
        lines.append(
            f"{kind:12} {chosen}" + (f" (GMAC/s of a thread: {shown})" if shown else ", no choice")
        )
    if arithmetic["source"] != "only":
        when = "now" if arithmetic["source"] == "measured" else "at an earlier start"
        place = arithmetic["stored_in"]
        where = f"in {place}" if place else "nowhere: the cache folder cannot be written"
        lines.append(f"measured     {when}, {arithmetic['measured_at']}, kept {where}")
    return lines


def _model_lines(model: dict[str, Any]) -> list[str]:
    from chairlift.cli.terminal import size_text
    from chairlift.engine.resolved_config import describe_weights

    config = model["config"]
    return [
        "",
        f"model        {model['name']}",
        f"path         {model['path']}",
        f"architecture {config['architecture']}: {config['num_layers']} layers of"
        f" {config['hidden_size']}, {config['num_heads']} heads ({config['num_kv_heads']} for"
        f" keys and values) of {config['head_dim']}, vocabulary {config['vocab_size']}",
        f"parameters   {model['num_parameters'] / 1e6:.1f} million",
        f"context      {config['max_position']} tokens",
        f"kernels      {model['kernels']}"
        + (f", {model['quant_compute']}" if model["quant_compute"] else ""),
        f"weights      {describe_weights(model['weights'])}",
        f"KV cache     {size_text(model['kv_bytes_per_token'])} per token,"
        f" {model['kv_cache_dtype']}",
        *(
            f"fits         {row['num_requests']} requests of {row['num_tokens']} tokens"
            for row in model["fits"]
        ),
        "",
        *model["reasons"],
    ]
