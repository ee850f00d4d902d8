"""Steps of the engine's model on each kind of kernels: decode at several batch sizes, prefill, and
where a step's time goes.

    python benchmarks/engine_steps.py [--model smollm2] [--kernels native int8 int8/float16/fast]

Behind slashes stand kv_cache_dtype and quant_compute.  Kinds of kernels take turns, and the best
of a few rounds counts: other processes only add time.  Single kernels are the subject of `chairlift
bench kernels`, whole runs that of `bench throughput`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from chairlift.config import EngineConfig
from chairlift.core.scheduler_output import ScheduledRequest
from chairlift.engine.loaded_model import LoadedModel, load_model
from chairlift.kernels.interface import BatchLayout, FloatArray, KvArray
from chairlift.runner.forward_batch import build_layout

CONTEXT = 300
PREFILL = 512
BATCHES = (1, 8, 32, 128)
BLOCK_SIZE = 16


def layout_of(chunks: list[tuple[int, int]]) -> BatchLayout:
    """Chunks (new tokens, context), each in blocks of its own."""
    items, next_block = [], 0
    for new, context in chunks:
        count = -(-context // BLOCK_SIZE)
        blocks = range(next_block, next_block + count)
        items.append(ScheduledRequest("", "decode", context - new, new, blocks, True))
        next_block += count
    return build_layout(items, BLOCK_SIZE)


class Step:
    """One step, run in parts so that each can be timed."""

    def __init__(self, model: LoadedModel, chunks: list[tuple[int, int]], num_logits: int) -> None:
        self.decoder, self.cache = model.runner.model, model.runner.kv_cache.blocks
        self.layout = layout_of(chunks)
        count = len(self.layout.positions)
        ids = np.random.default_rng(0).integers(0, self.decoder.config.vocab_size, count)
        self.token_ids = ids.astype(np.int32)
        self.rows = np.arange(count - num_logits, count, dtype=np.int32)

    def run(self) -> dict[str, float]:
        """Seconds of each part, summed over layers."""
        ops, decoder = self.decoder.kernels, self.decoder
        seconds = dict.fromkeys(("embed", "attention", "mlp", "head"), 0.0)

        def timed(part: str, function: Callable[[], FloatArray]) -> FloatArray:
            start = time.perf_counter()
            result = function()
            seconds[part] += time.perf_counter() - start
            return result

        start = time.perf_counter()
        x = timed("embed", lambda: ops.embed(decoder.embedding, self.token_ids))
        for index, layer in enumerate(decoder.layers):
            x = timed(
                "attention",
                lambda x=x, index=index, layer=layer: ops.attention_block(
                    x, layer.attention, layer.spec, decoder.rope, self.cache, index, self.layout
                ),
            )
            x = timed(
                "mlp",
                lambda x=x, layer=layer: ops.mlp_block(x, layer.mlp, decoder.config.rms_norm_eps),
            )
        timed("head", lambda: decoder.logits(x, self.rows))
        seconds["step"] = time.perf_counter() - start
        return seconds


def best(steps: dict[str, Step], rounds: int) -> dict[str, dict[str, float]]:
    """The fastest step of each kind of kernels."""
    found: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for name, step in steps.items():
            seconds = step.run()
            if name not in found or seconds["step"] < found[name]["step"]:
                found[name] = seconds
    return found


def options_of(kind: str) -> dict[str, Any]:
    """Engine options from a text such as "int8/float16"."""
    names = ("kernels", "kv_cache_dtype", "quant_compute")
    return dict(zip(names, kind.split("/"), strict=False))


def fill(blocks: KvArray) -> None:
    """Writes every page once, or the first steps would read the system's page of zeros."""
    blocks[:] = 0x3F80 if blocks.dtype == np.uint16 else 1  # of bfloat16 that is one


def measure_steps(arguments: argparse.Namespace) -> None:
    blocks = max(BATCHES) * -(-CONTEXT // BLOCK_SIZE) + 1
    models = {}
    for name in arguments.kernels:
        asked = EngineConfig(
            model=arguments.model, threads=arguments.threads, swap_space=0.0, **options_of(name)
        )
        models[name] = load_model(asked)
        assert models[name].resolved.memory.num_blocks >= blocks
        fill(models[name].runner.kv_cache.blocks[:blocks])
    titles = "".join(f"{part:>10}" for part in ("ms", "embed", "attention", "mlp", "head"))
    print(f"{'step':16}{'kernels':>20}{titles}")
    cases = [(f"decode {n}", [(1, CONTEXT)] * n, n) for n in BATCHES]
    cases.append((f"prefill {PREFILL}", [(PREFILL, PREFILL)], 1))
    for label, chunks, num_logits in cases:
        steps = {name: Step(model, chunks, num_logits) for name, model in models.items()}
        for name, seconds in best(steps, arguments.rounds).items():
            ms = {part: 1e3 * value for part, value in seconds.items()}
            print(
                f"{label:16}{name:>20}{ms['step']:10.2f}{ms['embed']:10.2f}{ms['attention']:10.2f}"
                f"{ms['mlp']:10.2f}{ms['head']:10.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--kernels", nargs="+", default=["native", "int8"])
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=5)
    measure_steps(parser.parse_args())


if __name__ == "__main__":
    main()
