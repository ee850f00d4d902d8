"""Which kernels a model gets, and why: the one place where kernels=auto is decided."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from chairlift.config import EngineConfig
from chairlift.kernels.cpu.int8 import HEAD_UNIT, INTERLEAVE, PAGE_TOKENS
from chairlift.kernels.interface import Kernels
from chairlift.kernels.registry import create_kernels
from chairlift.models.model_config import ModelConfig
from chairlift.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The kernels, and lines that say why."""

    kernels: Kernels
    reasons: tuple[str, ...]


def choose_kernels(
    asked: EngineConfig, checkpoint: Checkpoint, config: ModelConfig, num_threads: int
) -> KernelChoice:
    """The kernels that were asked for, or those that suit the file.

    A quantised file is computed on bytes, a file of floats on floats: each as it is.

    Raises:
        ConfigError: what was asked for cannot be used here.
    """
    if asked.kernels != "auto":
        return _choice(asked, num_threads, "kernels")
    for name, value in (
        ("quant_compute", asked.quant_compute),
        ("kv_cache_dtype", asked.kv_cache_dtype),
    ):
        if value in ("exact", "fast", "int8"):  # only one backend has these
            return _choice(dataclasses.replace(asked, kernels="int8"), num_threads, name)
    obstacle = obstacle_to_bytes(asked, checkpoint, config)
    if obstacle is not None:
        return _choice(asked, num_threads, obstacle)
    return _choice(asked, num_threads, "the file is quantised", preferred="int8")


def obstacle_to_bytes(
    asked: EngineConfig, checkpoint: Checkpoint, config: ModelConfig
) -> str | None:
    """Why the int8 kernels should not or cannot have this model; None if nothing speaks against."""
    if not has_quantised_matrix(checkpoint):
        return "the file holds floats, and these kernels read them as they are"
    if config.head_dim % HEAD_UNIT:
        return f"a head size of {config.head_dim} does not suit the int8 kernels"
    if config.intermediate_size % INTERLEAVE:
        return f"an inner size of {config.intermediate_size} does not suit the int8 kernels"
    if asked.kv_cache_dtype == "auto" and asked.block_size % PAGE_TOKENS:
        return f"block_size {asked.block_size} does not suit the int8 kernels"
    return None


def has_quantised_matrix(checkpoint: Checkpoint) -> bool:
    """Whether the file holds less than floats for any matrix."""
    return any(checkpoint.group_form(name) is not None for name in checkpoint.names())


def _choice(
    asked: EngineConfig, num_threads: int, why: str, preferred: str = "native"
) -> KernelChoice:
    compute, why_compute = asked.quant_compute, "quant_compute"
    is_int8 = "int8" in (asked.kernels, preferred)
    if compute == "auto" and is_int8:
        is_throughput = asked.preset == "throughput"
        compute = "fast" if is_throughput else "exact"
        why_compute = "preset throughput" if is_throughput else "the file's own arithmetic"
    kernels = create_kernels(
        asked.kernels,
        num_threads,
        preferred=preferred,
        kv_cache_dtype=asked.kv_cache_dtype,
        quant_compute=compute,
    )
    if kernels.name == "reference" and asked.kernels == "auto":
        why = "the native library cannot be used"
    reasons = [f"kernels {kernels.name} ({why})"]
    if kernels.quant_compute is not None:
        reasons.append(f"quant_compute {kernels.quant_compute} ({why_compute})")
    return KernelChoice(kernels, tuple(reasons))
