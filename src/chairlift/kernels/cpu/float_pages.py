"""The native library's cache of floats: pages that it cuts as it likes, in arrays of their numbers.

[num_blocks, num_layers, numbers of a piece], of float32, float16 or the bits of bfloat16.  Whole
blocks may be copied and swapped.
"""

from __future__ import annotations

from chairlift.kernels.cpu.kv_tasks import KV_TYPES
from chairlift.kernels.cpu.library import NativeLibrary
from chairlift.kernels.interface import KvArray, KvBlockFormat
from chairlift.kernels.kv_dtype import FLOAT_STORAGE, KvDtype, kv_dtype_of

LANES = 16
"""Values of a token are padded to a multiple of so many numbers."""


def float_page_block(
    library: NativeLibrary,
    num_layers: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    kv_dtype: KvDtype,
) -> KvBlockFormat:
    """One block as the library stores it.  Raises ValueError if a size is below 1."""
    piece_bytes: int = library.functions.chairlift_kv_piece_bytes(
        KV_TYPES[kv_dtype], block_size, num_kv_heads, head_dim
    )
    if piece_bytes == 0:
        raise ValueError(library.last_error)
    dtype = FLOAT_STORAGE[kv_dtype]
    return KvBlockFormat(
        block_size=block_size,
        shape=(num_layers, piece_bytes // dtype.itemsize),
        dtype=dtype,
        kv_dtype=kv_dtype,
    )


def block_size_of(kv_cache: KvArray, layer: int, num_kv_heads: int, head_dim: int) -> int:
    """Tokens of a block.  Raises ValueError if this is no cache of such heads, with that layer."""
    kv_dtype_of(kv_cache)
    numbers = num_kv_heads * (head_dim + -(-head_dim // LANES) * LANES)
    if kv_cache.ndim != 3 or kv_cache.shape[2] % numbers:
        raise ValueError(
            f"kv_cache {kv_cache.shape} does not fit {num_kv_heads} heads of {head_dim}"
        )
    if not 0 <= layer < kv_cache.shape[1]:
        raise ValueError(f"layer {layer} is not one of the cache's {kv_cache.shape[1]}")
    if kv_cache.strides[2] != kv_cache.itemsize:
        raise ValueError("kv_cache must have dense pieces")
    return int(kv_cache.shape[2]) // numbers
