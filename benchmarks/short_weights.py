"""The default model's weights kept as float32, float16 and bfloat16 on float32 kernels.

    python benchmarks/short_weights.py [--stored float32 float16 bfloat16] [--rounds 9]

What loading adds to the process's own memory, and decode steps (layers and output head) of some
batch sizes: kinds of weights take turns, and medians count.  Of each step, the part that is matrix
products stands beside it, with the weights that these read per second and their multiply-adds per
second as shares of what the machine reads and multiplies in the same run.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from chairlift.bench.machine_limits import LimitMeter
from chairlift.core.scheduler_output import ScheduledRequest
from chairlift.kernels.cpu.ops import NativeKernels
from chairlift.kernels.grouped_weights import GroupedWeights
from chairlift.kernels.interface import FloatArray, Linear
from chairlift.kernels.kv_dtype import FLOAT_STORAGE, to_stored
from chairlift.kernels.stored_floats import StoredFloats
from chairlift.models.decoder import Decoder, load_decoder
from chairlift.models.model_config import ModelConfig
from chairlift.models.registry import read_model_config
from chairlift.runner.forward_batch import build_layout
from chairlift.runner.kv_cache import KVCache
from chairlift.weights.checkpoint import Checkpoint, open_checkpoint
from chairlift.weights.model_source import DEFAULT_MODEL, resolve_model

BATCHES = (1, 8, 32)
CONTEXT = 300
BLOCK_SIZE = 16
BLOCKS = -(-CONTEXT // BLOCK_SIZE)


@dataclass(frozen=True, slots=True)
class StoredSource:
    """A checkpoint as if its matrices were stored as floats of one kind."""

    checkpoint: Checkpoint
    stored: str

    def names(self) -> Collection[str]:
        return self.checkpoint.names()

    def load(self, name: str) -> FloatArray:
        return self.checkpoint.load(name)

    def load_grouped(self, name: str) -> GroupedWeights | None:
        return None

    def view(self, name: str) -> StoredFloats | None:
        stored: StoredFloats = to_stored(self.load(name), FLOAT_STORAGE[self.stored])
        return stored


class TimedKernels(NativeKernels):
    """Adds up the seconds of matrix products."""

    seconds = 0.0

    def linear(self, x: FloatArray, weight: Linear) -> FloatArray:
        start = time.perf_counter()
        result = super().linear(x, weight)
        self.seconds += time.perf_counter() - start
        return result


class StepTime(NamedTuple):
    """Seconds."""

    whole: float
    products: float


def own_bytes() -> int:
    """Resident, without pages of mapped files."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


def load(checkpoint: Checkpoint, stored: str, config: ModelConfig, threads: int) -> Decoder:
    before = own_bytes()
    source, kernels = StoredSource(checkpoint, stored), TimedKernels(threads)
    decoder = load_decoder(config, source, kernels, max_position=CONTEXT)
    print(f"{stored:9} takes {(own_bytes() - before) / 1e6:4.0f} MB")
    return decoder


def make_cache(config: ModelConfig, kernels: NativeKernels) -> KVCache:
    block = kernels.kv_block(config.num_layers, config.num_kv_heads, config.head_dim, BLOCK_SIZE)
    cache = KVCache(block, num_blocks=max(BATCHES) * BLOCKS)
    cache.blocks[:] = 1  # or steps would read the system's page of zeros
    return cache


def time_step(decoder: Decoder, cache: KVCache, batch: int) -> StepTime:
    """The newest token of each of `batch` sequences."""
    items = [
        ScheduledRequest(
            "", "decode", CONTEXT - 1, 1, range(BLOCKS * row, BLOCKS * (row + 1)), True
        )
        for row in range(batch)
    ]
    layout, rows = build_layout(items, BLOCK_SIZE), np.arange(batch, dtype=np.int32)
    kernels = decoder.kernels
    assert isinstance(kernels, TimedKernels)
    kernels.seconds, start = 0.0, time.perf_counter()
    decoder.logits(decoder.forward(rows, layout, cache.blocks), rows)
    return StepTime(time.perf_counter() - start, kernels.seconds)


def num_weights(config: ModelConfig) -> int:
    """Of all matrices that a step goes through: those of the layers, and the head."""
    attention = 2 * (config.num_heads + config.num_kv_heads) * config.head_dim
    layer = config.hidden_size * (attention + 3 * config.intermediate_size)
    return config.num_layers * layer + config.vocab_size * config.hidden_size


def measure(decoders: dict[str, Decoder], config: ModelConfig, rounds: int, threads: int) -> None:
    meter, count = LimitMeter(threads), num_weights(config)
    cache = make_cache(config, NativeKernels(threads))
    for batch in BATCHES:
        times: dict[str, list[StepTime]] = {stored: [] for stored in decoders}
        reads, macs = [], []
        for _ in range(rounds):
            reads.append(meter.memory_read())
            macs.append(meter.fp32_fma())
            for stored, decoder in decoders.items():
                time_step(decoder, cache, batch)  # warm
                times[stored].append(time_step(decoder, cache, batch))
        read, mac = statistics.median(reads), statistics.median(macs)
        print(f"decode {batch}: the machine reads {read:.1f} GB/s, multiplies {mac:.1f} GMAC/s")
        for stored, found in times.items():
            step = statistics.median(one.whole for one in found)
            products = statistics.median(one.products for one in found)
            step_read = count * FLOAT_STORAGE[stored].itemsize / products / 1e9
            step_mac = batch * count / products / 1e9
            print(
                f"  {stored:9} step {1e3 * step:7.2f} ms, products {1e3 * products:7.2f} ms:"
                f" {step_read:5.1f} GB/s ({step_read / read:4.0%}),"
                f" {step_mac:6.1f} GMAC/s ({step_mac / mac:4.0%})"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    kinds = ("float32", "float16", "bfloat16")
    parser.add_argument("--stored", nargs="+", default=list(kinds), choices=kinds)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    with open_checkpoint(resolve_model(DEFAULT_MODEL, progress=False)) as checkpoint:
        config = read_model_config(checkpoint.kind, checkpoint.metadata)
        decoders = {
            stored: load(checkpoint, stored, config, arguments.threads)
            for stored in arguments.stored
        }
    measure(decoders, config, arguments.rounds, arguments.threads)


if __name__ == "__main__":
    main()
