"""Speed of the native ops against this machine's own limits.

    python benchmarks/kernels.py [--threads 2] [--isa avx512]

Linear layers are compared with the multiply-add peak measured in the same run; the shapes are those
of a 135M model.  Best of several short runs: use a quiet machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from chairlift.kernels.cpu.ops import NativeKernels
from chairlift.kernels.interface import AttentionSpec, BatchLayout

LINEAR_SHAPES = ((3072, 576), (576, 1536), (49152, 576))
LINEAR_ROWS = (1, 8, 128)
HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE, CONTEXT = 9, 3, 64, 16, 576
ATTENTION_STEPS = {"decode x 1": (1, 1), "decode x 32": (32, 1), "prefill of 512": (1, 512)}


def best_seconds(call: Callable[[], object], budget_s: float = 1.0) -> float:
    """The shortest of at least three calls, until the budget is spent."""
    times: list[float] = []
    stop = time.perf_counter() + budget_s
    while len(times) < 3 or time.perf_counter() < stop:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def bench_linear(kernels: NativeKernels, peak: float) -> None:
    rng = np.random.default_rng(0)
    for out_features, in_features in LINEAR_SHAPES:
        matrix = rng.standard_normal((out_features, in_features), np.float32)
        weight = kernels.prepare_linear([matrix], [None])
        for num_rows in LINEAR_ROWS:
            x = rng.standard_normal((num_rows, in_features), np.float32)
            seconds = best_seconds(partial(kernels.linear, x, weight))
            rate = num_rows * out_features * in_features / seconds / 1e9
            print(
                f"linear {out_features:5} x {in_features:4}, {num_rows:3} rows:"
                f" {seconds * 1e3:7.3f} ms, {rate:6.1f} GMAC/s, {rate / peak:4.0%} of the peak,"
                f" {matrix.nbytes / seconds / 1e9:5.1f} GB/s of weights"
            )


def bench_attention(kernels: NativeKernels, peak: float) -> None:
    rng = np.random.default_rng(0)
    spec = AttentionSpec(
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        rms_norm_eps=1e-5,
        scale=HEAD_DIM**-0.5,
        rope_dim=HEAD_DIM,
        rope_interleaved=False,
    )
    for name, (num_sequences, new_tokens) in ATTENTION_STEPS.items():
        context = CONTEXT if new_tokens == 1 else new_tokens
        blocks = -(-context // BLOCK_SIZE)
        num_blocks = num_sequences * blocks
        layout = BatchLayout(
            query_start=np.arange(num_sequences + 1, dtype=np.int32) * new_tokens,
            context_lens=np.full(num_sequences, context, np.int32),
            block_tables=rng.permutation(num_blocks).astype(np.int32).reshape(num_sequences, -1),
            positions=np.tile(
                np.arange(context - new_tokens, context, dtype=np.int32), num_sequences
            ),
            slot_mapping=np.empty(0, np.int64),
        )
        cache = rng.standard_normal((num_blocks, 4, 2, BLOCK_SIZE, KV_HEADS, HEAD_DIM), np.float32)
        query = rng.standard_normal((num_sequences * new_tokens, HEADS, HEAD_DIM), np.float32)
        seconds = best_seconds(partial(kernels.paged_attention, query, cache, 0, layout, spec))
        pairs = sum(int(position) + 1 for position in layout.positions)
        rate = 2 * pairs * HEADS * HEAD_DIM / seconds / 1e9
        bytes_read = num_sequences * context * 2 * KV_HEADS * HEAD_DIM * 4
        print(
            f"attention, {name:14} context {context}: {seconds * 1e3:7.3f} ms a layer,"
            f" {rate:6.1f} GMAC/s, {rate / peak:4.0%} of the peak,"
            f" {bytes_read / seconds / 1e9:5.1f} GB/s of keys and values"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default="auto", help="scalar, avx2, avx512; default: the best")
    arguments = parser.parse_args()
    kernels = NativeKernels(arguments.threads)
    kernels.library.set_isa(arguments.isa)
    one_thread: float = kernels.library.functions.chairlift_measure_fma()
    peak = one_thread * arguments.threads
    print(f"{kernels.library.isa}, {arguments.threads} threads: peak {peak:.1f} GMAC/s")
    bench_linear(kernels, peak)
    bench_attention(kernels, peak)


if __name__ == "__main__":
    main()
