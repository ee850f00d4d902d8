"""A way of computing a model, and how far from float32 it may be."""

from __future__ import annotations

from dataclasses import dataclass

from chairlift.config import KernelsName, KvCacheDtypeName, QuantComputeName
from chairlift.kernels.interface import QuantCompute
from chairlift.kernels.kv_dtype import FLOAT_STORAGE, KvDtype
from chairlift.kernels.registry import choose_kv_dtype, choose_quant_compute

FLOAT32_KERNELS: tuple[KernelsName, ...] = ("native", "reference")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyBounds:
    """What a mode must keep to."""

    max_perplexity_change: float
    """Relative; one-sided, as a lower perplexity is no fault."""
    min_agreement: float


FLOAT32_BOUNDS = AccuracyBounds(max_perplexity_change=0.0001, min_agreement=0.999)
"""The same arithmetic in another order."""
QUANTIZED_BOUNDS = AccuracyBounds(max_perplexity_change=0.005, min_agreement=0.95)
"""The file's own weights; activations, keys and values in 8 bits."""
FAST_BOUNDS = AccuracyBounds(max_perplexity_change=0.005, min_agreement=0.93)
"""Weights in 8 bits with one scale per output, activations in groups of 64.  Both bounds: see
docs/decisions/0009-int8-for-quantised-files.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMode:
    """What decides about the last bits of a model's logits."""

    kernels: KernelsName
    kv_cache_dtype: KvCacheDtypeName = "auto"
    quant_compute: QuantComputeName = "auto"

    @property
    def kv_dtype(self) -> KvDtype:
        """Raises `ConfigError` if these kernels have no such cache."""
        return choose_kv_dtype(self.kernels, self.kv_cache_dtype)

    @property
    def compute(self) -> QuantCompute | None:
        """Raises `ConfigError` if it has no effect on these kernels."""
        return choose_quant_compute(self.kernels, self.quant_compute)

    @property
    def bounds(self) -> AccuracyBounds:
        if self.compute == "fast":
            return FAST_BOUNDS
        is_float32 = self.kernels in FLOAT32_KERNELS and self.kv_dtype == "float32"
        return FLOAT32_BOUNDS if is_float32 else QUANTIZED_BOUNDS

    def __str__(self) -> str:
        kernels = f"{self.kernels} {self.compute}" if self.compute else self.kernels
        return f"{kernels}, {self.kv_dtype} KV"


def modes_of(kernels: KernelsName) -> tuple[KernelMode, ...]:
    """Every mode that these kernels have, but for float32 in all."""
    is_int8 = kernels == "int8"
    dtypes: tuple[KvDtype, ...] = ("int8", *FLOAT_STORAGE) if is_int8 else tuple(FLOAT_STORAGE)
    computes: tuple[QuantComputeName, ...] = ("exact", "fast") if is_int8 else ("auto",)
    modes = [
        KernelMode(kernels=kernels, kv_cache_dtype=dtype, quant_compute=compute)
        for compute in computes
        for dtype in dtypes
    ]
    return tuple(mode for mode in modes if mode.bounds != FLOAT32_BOUNDS)
