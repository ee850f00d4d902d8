"""Speed of linear layers on bytes against what this machine's threads can multiply.

    python benchmarks/kernels_int8.py [--threads 2] [--isa avx512] [--rows 1 16 128] [--brief]

The peak (products of bytes from registers, all threads at once) is measured again beside every
case, in turns, for clocks and neighbours come and go: a share is the median over turns of the
rate in a turn over the peak in the same turn.  Rates include quantising the activations and
unpacking the weights.  The shapes are those of a 135M model.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from chairlift.kernels.cpu.linear_q8 import Q8Ops
from chairlift.kernels.cpu.ops import NativeKernels
from chairlift.kernels.grouped_weights import GroupedWeights

LAYER_SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
HEAD_SHAPE = (49152, 576)
GROUP_SIZE = 32
TURNS = 5
SECONDS_PER_TURN = 0.04


def best_seconds(call: Callable[[], object], budget_s: float) -> float:
    """The shortest of at least two calls, until the budget is spent."""
    times: list[float] = []
    stop = time.perf_counter() + budget_s
    while len(times) < 2 or time.perf_counter() < stop:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def random_weights(shape: tuple[int, int], bits: int, has_minimum: bool) -> GroupedWeights:
    rng = np.random.default_rng(0)
    groups = (shape[0], shape[1] // GROUP_SIZE)
    scales = rng.uniform(0.01, 0.1, groups).astype(np.float16).astype(np.float32)
    mins = rng.uniform(-0.5, 0.1, groups).astype(np.float16).astype(np.float32)
    return GroupedWeights(
        codes=rng.integers(0, 1 << bits, shape, np.uint8),
        scales=scales,
        mins=mins if has_minimum else scales * np.float32(-(1 << (bits - 1))),
        bits=bits,
        group_size=GROUP_SIZE,
    )


def report(
    name: str, ops: Q8Ops, call: Callable[[], object], products: int, num_bytes: int
) -> None:
    """Time `call` and the peak in turns, and print both."""
    peaks, rates = [], []
    for _ in range(TURNS):
        peaks.append(ops.measure_int8_dot())
        rates.append(products / best_seconds(call, SECONDS_PER_TURN) / 1e9)
    share = statistics.median(rate / peak for rate, peak in zip(rates, peaks, strict=True))
    seconds = products / max(rates) / 1e9
    print(
        f"{name}: {seconds * 1e3:7.3f} ms, {max(rates):6.1f} GMAC/s (peak {max(peaks):5.1f}),"
        f" {share:4.0%} of the peak, {num_bytes / seconds / 1e9:5.1f} GB/s of weights",
        flush=True,
    )


def bench_linear(ops: Q8Ops, name: str, weights: GroupedWeights, rows: int, fast: bool) -> None:
    packed = ops.pack(weights, per_channel=fast)
    x = np.random.default_rng(1).standard_normal((rows, weights.in_features), np.float32)
    out = np.zeros((rows, weights.out_features), np.float32)
    shape = f"{weights.out_features:5} x {weights.in_features:4}"
    report(
        f"{name} {shape}, {rows:3} rows",
        ops,
        partial(ops.linear, x, packed, out=out),
        rows * weights.codes.size,
        packed.num_bytes,
    )


def bench_mlp(ops: Q8Ops, name: str, rows: int, fast: bool) -> None:
    """Gate, up, silu and down of a layer in one call."""
    gate_up, down = random_weights((3072, 576), 4, True), random_weights((576, 1536), 4, True)
    first = ops.pack(gate_up, interleave=16, per_channel=fast)
    second = ops.pack(down, per_channel=fast)
    x = np.random.default_rng(1).standard_normal((rows, 576), np.float32)
    report(
        f"{name}    whole MLP, {rows:3} rows",
        ops,
        partial(ops.mlp, x, first, second),
        rows * (gate_up.codes.size + down.codes.size),
        first.num_bytes + second.num_bytes,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64, 128, 512])
    parser.add_argument("--brief", action="store_true", help="one shape of each kind")
    options = parser.parse_args()
    kernels = NativeKernels(options.threads)
    kernels.library.set_isa(options.isa)
    ops = Q8Ops(kernels.library, kernels.pool)
    print(f"{kernels.library.isa}, {options.threads} threads")
    shapes = LAYER_SHAPES[2:3] if options.brief else LAYER_SHAPES
    for name, bits, has_minimum, fast in (
        ("exact Q4_1", 4, True, False),
        ("exact Q8_0", 8, False, False),
        ("fast", 4, True, True),
    ):
        for shape in shapes if bits == 4 else (shapes[-1], HEAD_SHAPE):
            weights = random_weights(shape, bits, has_minimum)
            for rows in options.rows:
                bench_linear(ops, name, weights, rows, fast)
        if bits == 4:
            for rows in options.rows:
                bench_mlp(ops, name, rows, fast)


if __name__ == "__main__":
    main()
