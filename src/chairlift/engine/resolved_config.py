"""What was decided from what was asked, each value with its reason.  Logged at start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chairlift.config import EngineConfig, SchedulerConfig
from chairlift.kernels.interface import KvBlockFormat, QuantCompute
from chairlift.machine import Machine
from chairlift.models.model_config import ModelConfig
from chairlift.runner.memory import MemoryPlan, plan_memory

_CPU_DEFAULTS = (256, 512)
"""max_num_seqs, max_num_batched_tokens."""
_PRESETS = {"latency": (16, 2048), "throughput": (256, 8192)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """Every decided value.  `reasons` are lines for a person."""

    scheduler: SchedulerConfig
    memory: MemoryPlan
    weights: Mapping[str, int]
    """Bytes by what weights are kept as."""
    num_threads: int
    enable_prefix_caching: bool
    reasons: tuple[str, ...]


def resolve_config(
    asked: EngineConfig,
    model: ModelConfig,
    machine: Machine,
    *,
    block: KvBlockFormat,
    weights: Mapping[str, int],
    head_bytes: int,
    quant_compute: QuantCompute | None = None,
) -> ResolvedConfig:
    """Decide.  Raises `ConfigError` with the setting that would fit."""
    max_num_seqs, max_num_batched_tokens, tokens_reason = _step_limits(asked)
    memory = plan_memory(
        asked,
        model,
        machine,
        block=block,
        weights_bytes=sum(weights.values()),
        head_bytes=head_bytes,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
    )
    prefill_policy = asked.prefill_policy or (
        "separated" if asked.enable_chunked_prefill is False else "chunked"
    )
    num_threads = choose_num_threads(asked, machine)
    scheduler = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        batching_policy=asked.batching_policy,
        prefill_policy=prefill_policy,
        scheduling_policy=asked.scheduling_policy,
        preemption_mode=asked.preemption_mode,
        static_batch_size=asked.static_batch_size,
        batch_wait_ms=asked.batch_wait_ms,
        long_prefill_token_threshold=asked.long_prefill_token_threshold,
    )
    reasons = (
        *_compute_reason(asked, quant_compute),
        f"weights kept as {describe_weights(weights)}",
        *memory.describe(),
        f"steps of at most {max_num_batched_tokens} tokens ({tokens_reason}) for at most"
        f" {max_num_seqs} requests",
        f"batching {asked.batching_policy}, prefill {prefill_policy}, order"
        f" {asked.scheduling_policy}, preemption {asked.preemption_mode}, prefix caching"
        f" {'on' if asked.enable_prefix_caching else 'off'}",
        f"{num_threads} threads"
        f" ({'threads' if asked.threads else 'cores inside affinity and quota'})",
        *_without_effect(asked, memory),
    )
    return ResolvedConfig(
        scheduler=scheduler,
        memory=memory,
        weights=weights,
        num_threads=num_threads,
        enable_prefix_caching=asked.enable_prefix_caching,
        reasons=reasons,
    )


def describe_weights(weights: Mapping[str, int]) -> str:
    """Bytes by kind, for a person."""
    return ", ".join(f"{kind} ({num_bytes / 2**20:.1f} MiB)" for kind, num_bytes in weights.items())


def choose_num_threads(asked: EngineConfig, machine: Machine) -> int:
    """Threads for all computing: what was asked for, or every core."""
    return asked.threads or machine.num_cpus


def _step_limits(asked: EngineConfig) -> tuple[int, int, str]:
    """max_num_seqs, max_num_batched_tokens, and where the latter comes from."""
    seqs, tokens = _PRESETS[asked.preset] if asked.preset else _CPU_DEFAULTS
    reason = f"preset {asked.preset}" if asked.preset else "CPU default"
    if asked.max_num_batched_tokens is not None:
        tokens, reason = asked.max_num_batched_tokens, "max_num_batched_tokens"
    if asked.max_num_seqs is not None:
        return asked.max_num_seqs, max(tokens, asked.max_num_seqs), reason
    return min(seqs, tokens), tokens, reason


def _compute_reason(asked: EngineConfig, decided: QuantCompute | None) -> list[str]:
    """How quantised matrices are multiplied, where they are."""
    if decided is None:
        return []
    why = "default" if asked.quant_compute == "auto" else "quant_compute"
    how = {
        "exact": "the file's codes and scales",
        "fast": "those of the layers as bytes with one scale per output",
    }
    return [f"matrices {decided}: {how[decided]} ({why})"]


def _without_effect(asked: EngineConfig, memory: MemoryPlan) -> list[str]:
    """An option that changes nothing says so."""
    notes = []
    if asked.enforce_eager:
        notes.append("enforce_eager has no effect: a CPU has no graphs to switch off")
    if asked.preemption_mode == "swap" and memory.num_swap_blocks == 0:
        notes.append(f"preemption_mode=swap has no effect: no swap space ({memory.swap_reason})")
    if asked.swap_path is not None and memory.num_swap_blocks == 0:
        notes.append(f"swap_path has no effect: no swap space ({memory.swap_reason})")
    if asked.scheduling_policy == "priority" and asked.batching_policy != "continuous":
        notes.append(
            f"scheduling_policy=priority interrupts nobody: batching_policy is"
            f" {asked.batching_policy}; it only orders those who wait"
        )
    if asked.batching_policy != "static" and asked.static_batch_size != 32:
        notes.append("static_batch_size has no effect: batching_policy is not static")
    if asked.batching_policy == "continuous" and asked.batch_wait_ms != 50.0:
        notes.append("batch_wait_ms has no effect: batching_policy is continuous")
    return notes
