"""Attention over a cache of bytes against this machine's own limits.

    python benchmarks/attention_int8.py [--threads 2] [--isa avx512]

Read bandwidth is measured over the same pieces of the same cache in the same run, and the rate of
byte products from registers.  A step's bound is the longer of the two times.  Weights have 16 bits,
so a value costs two products of bytes.  Best of several short runs, A and B in turn.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from chairlift.kernels.cpu.attention_int8 import KvInt8Ops, QuantizedQueries
from chairlift.kernels.cpu.linear_q8 import Q8Ops
from chairlift.kernels.cpu.ops import NativeKernels
from chairlift.kernels.interface import AttentionSpec, BatchLayout, RopeTable

NUM_LAYERS, BLOCK_SIZE = 6, 16
STEPS = {
    "decode x 1": (1, 1, 576),
    "decode x 1, long": (1, 1, 8192),
    "decode x 8": (8, 1, 576),
    "decode x 32": (32, 1, 576),
    "decode x 128": (128, 1, 576),
    "prefill of 512": (1, 512, 512),
    "chunk of 128": (1, 128, 1024),
}


def make_layout(sequences: int, new_tokens: int, context: int) -> BatchLayout:
    rng = np.random.default_rng(0)
    blocks = -(-context // BLOCK_SIZE)
    tables = rng.permutation(sequences * blocks).astype(np.int32).reshape(sequences, -1)
    at = np.arange(context - new_tokens, context, dtype=np.int32)
    slots = tables[:, at // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + at % BLOCK_SIZE
    return BatchLayout(
        query_start=np.arange(sequences + 1, dtype=np.int32) * new_tokens,
        context_lens=np.full(sequences, context, np.int32),
        block_tables=tables,
        positions=np.tile(at, sequences),
        slot_mapping=slots.reshape(-1),
    )


def run(
    name: str, ops: KvInt8Ops, spec: AttentionSpec, shape: tuple[int, int, int], products: float
) -> None:
    sequences, new_tokens, context = shape
    rng = np.random.default_rng(1)
    layout = make_layout(*shape)
    num_tokens, dim = sequences * new_tokens, spec.head_dim
    cache = ops.new_cache(layout.block_tables.size, NUM_LAYERS, spec.num_kv_heads, dim)
    pages = cache.reshape(-1, 32 * dim + 128)
    pages[:] = rng.integers(0, 256, pages.shape[1], np.uint8)
    for start in (16 * dim, 32 * dim + 64):
        pages[:, start : start + 64] = np.full(16, 0.02, np.float32).view(np.uint8)
    queries = QuantizedQueries(
        codes=rng.integers(-127, 128, (num_tokens, spec.num_heads, dim)).astype(np.int8),
        scales=np.full((num_tokens, spec.num_heads), 0.02, np.float32),
    )
    width = (spec.num_heads + 2 * spec.num_kv_heads) * dim
    qkv = rng.standard_normal((num_tokens, width), np.float32)
    angles = rng.standard_normal((context, dim // 2), np.float32)
    rope = RopeTable(cos=np.cos(angles), sin=np.sin(angles))
    blocks = layout.block_tables.reshape(-1).copy()
    attend_s, store_s, rate = [], [], 0.0
    for repeat in range(60):
        layer = repeat % NUM_LAYERS  # another layer's bytes each time, as in a model
        rate = max(rate, ops.measure_read(cache, layer, blocks))
        start_s = time.perf_counter()
        ops.paged_attention(queries, cache, layer, layout, spec)
        attend_s.append(time.perf_counter() - start_s)
    for repeat in range(20):
        start_s = time.perf_counter()
        ops.store_qkv(qkv, rope, cache, repeat % NUM_LAYERS, layout, spec)
        store_s.append(time.perf_counter() - start_s)
    best, usual = min(attend_s), sorted(attend_s)[len(attend_s) // 2]
    num_bytes = layout.block_tables.size * cache.shape[2]
    pairs = sum(int(position) + 1 for position in layout.positions)
    macs = 3 * pairs * spec.num_heads * dim
    read_s, compute_s = num_bytes / rate / 1e9, macs / products / 1e9
    bound = max(read_s, compute_s)
    print(
        f"{name:17} {best * 1e3:7.3f} ms a layer (median {usual * 1e3:7.3f}):"
        f" {bound / best:4.0%} of the bound,"
        f" read {read_s * 1e3:6.3f} ms at {rate:5.1f} GB/s, products {compute_s * 1e3:6.3f} ms;"
        f" storing {min(store_s) * 1e3:6.3f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default="auto", help="scalar, avx2, avx512; default: the best")
    parser.add_argument("--heads", type=int, nargs=3, default=(9, 3, 64), help="N, K and D")
    parser.add_argument("--only", default="", help="steps whose name contains this")
    arguments = parser.parse_args()
    kernels = NativeKernels(arguments.threads)
    kernels.library.set_isa(arguments.isa)
    num_heads, num_kv_heads, head_dim = arguments.heads
    spec = AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        scale=head_dim**-0.5,
        rope_dim=head_dim,
        rope_interleaved=False,
    )
    q8 = Q8Ops(kernels.library, kernels.pool)
    products = max(q8.measure_int8_dot() for _ in range(3))  # the first wakes the threads
    print(f"{kernels.library.isa}, {arguments.threads} threads: {products:.0f}e9 products a second")
    ops = KvInt8Ops(kernels.library, kernels._pool, BLOCK_SIZE)
    for name, shape in STEPS.items():
        if arguments.only in name:
            run(name, ops, spec, shape, products)


if __name__ == "__main__":
    main()
