"""The memory plan: bytes of weights, work space, KV cache and swap space, before a load.

Every decided value carries its reason.  A setting that does not fit is an error which names the
setting that would.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from chairlift.config import MIN_MEMORY_SHARE, EngineConfig, parse_bytes
from chairlift.errors import ConfigError
from chairlift.kernels.candidates import ROWS_AT_ONCE
from chairlift.kernels.interface import KvBlockFormat
from chairlift.kernels.kv_dtype import KvDtype
from chairlift.machine import Machine
from chairlift.models.model_config import ModelConfig

_GIB = 2**30
_MIB = 2**20
_INTERPRETER_BYTES = 160 * _MIB
"""Python, numpy, the tokenizer and the allocator's slack."""
_STARTED_BYTES = 64 * _MIB
"""Of these, what may be there already when the plan is made, and is missing from what is free."""
LOGIT_ROWS = ROWS_AT_ONCE
"""Whole rows of logits that are there at once, for whatever they are needed."""
_SEARCHED_ROW_BYTES = 5 * 2**10
"""What a thread notes of a row while it computes its logits: contenders and a short list."""
_LONG_LIST_BYTES = 34 * 2**10
"""The same with a long list, which at most LOGIT_ROWS rows have at once."""
_SAMPLING_ROWS = 32
"""What sampling one row holds for a moment (sorted copies, noise), counted in rows of logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Bytes and blocks, with the reason for each choice."""

    weights_bytes: int
    work_bytes: int
    """Activations, logits and sampling of the largest step, or copies while loading if larger."""
    block_bytes: int
    block_size: int
    kv_dtype: KvDtype
    num_blocks: int
    num_swap_blocks: int
    max_model_len: int
    free_memory_bytes: int
    kv_reason: str
    swap_reason: str
    max_model_len_reason: str
    is_preallocated: bool = False
    """Whether the system is asked for all blocks before the first request."""

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token, all layers, scales included."""
        return self.block_bytes // self.block_size

    @property
    def kv_bytes(self) -> int:
        return self.num_blocks * self.block_bytes

    @property
    def kv_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def swap_bytes(self) -> int:
        return self.num_swap_blocks * self.block_bytes

    @property
    def peak_bytes(self) -> int:
        """Resident at most, when the KV cache is full and nothing is swapped to memory."""
        return self.weights_bytes + self.work_bytes + self.kv_bytes + _INTERPRETER_BYTES

    def num_fitting_requests(self, num_tokens: int) -> int:
        """Requests of `num_tokens` tokens each that the KV cache holds at once."""
        return self.num_blocks // -(-num_tokens // self.block_size)

    def describe(self) -> list[str]:
        """Lines for a person, with reasons."""
        length = min(self.max_model_len, 2048)
        return [
            f"weights {_gib(self.weights_bytes)}, work space {_gib(self.work_bytes)},"
            f" of {_gib(self.free_memory_bytes)} free",
            f"KV cache {_gib(self.kv_bytes)} of {self.kv_dtype} = {self.num_blocks} blocks of"
            f" {self.block_size} tokens, {self.token_bytes} bytes each ({self.kv_reason});"
            f" committed {'at the start' if self.is_preallocated else 'as it is used'}",
            f"fits {self.num_fitting_requests(length)} requests of {length} tokens,"
            f" {self.num_fitting_requests(self.max_model_len)} of {self.max_model_len}",
            f"max_model_len {self.max_model_len} ({self.max_model_len_reason})",
            f"swap space {_gib(self.swap_bytes)} ({self.swap_reason})",
        ]


def plan_memory(
    asked: EngineConfig,
    model: ModelConfig,
    machine: Machine,
    *,
    block: KvBlockFormat,
    weights_bytes: int,
    head_bytes: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
) -> MemoryPlan:
    """Divide the machine's memory.  Raises `ConfigError`, with the setting that would fit.

    Args:
        block: a block of the KV cache as the kernels store it.
        weights_bytes: all weights as the kernels keep them.
        head_bytes: what is there while the output head, the first matrix of all, is prepared.
    """
    block_bytes = block.num_bytes
    wanted_len = _wanted_length(asked, model)
    head_excess = head_bytes - weights_bytes
    num_threads = asked.threads or machine.num_cpus
    work_bytes = _work_bytes(
        model, max_num_batched_tokens, max_num_seqs, num_threads, wanted_len, head_excess
    )
    fixed = weights_bytes + work_bytes + _INTERPRETER_BYTES
    is_there = min(machine.own_memory_bytes, _STARTED_BYTES)
    left = machine.free_memory_bytes + is_there - fixed
    if left < block_bytes:
        raise _too_large(
            model,
            machine,
            needed=fixed - is_there,
            budget=left + work_bytes - block_bytes,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            num_threads=num_threads,
            max_model_len=wanted_len,
            head_excess=head_excess,
        )
    needed = max_num_seqs * -(-wanted_len // asked.block_size)
    num_blocks, kv_reason = _choose_kv_blocks(
        asked, machine, left=left, fixed=fixed, block_bytes=block_bytes, needed=needed
    )
    length, length_reason = _choose_length(
        asked, model, num_blocks, block_bytes=block_bytes, left=left
    )
    is_needed = num_blocks < needed or asked.scheduling_policy == "priority"
    num_swap_blocks, swap_reason = _choose_swap_blocks(
        asked, block_bytes, left=left - num_blocks * block_bytes, is_needed=is_needed
    )
    return MemoryPlan(
        weights_bytes=weights_bytes,
        work_bytes=work_bytes,
        block_bytes=block_bytes,
        block_size=asked.block_size,
        kv_dtype=block.kv_dtype,
        num_blocks=num_blocks,
        num_swap_blocks=num_swap_blocks,
        max_model_len=length,
        free_memory_bytes=machine.free_memory_bytes,
        kv_reason=kv_reason,
        swap_reason=swap_reason,
        max_model_len_reason=length_reason,
        is_preallocated=asked.preallocate_kv_cache,
    )


def _wanted_length(asked: EngineConfig, model: ModelConfig) -> int:
    length = asked.max_model_len or model.max_position
    if length > model.max_position:
        raise ConfigError(
            f"max_model_len {length} is longer than the model's context: at most"
            f" {model.max_position}",
            field="max_model_len",
        )
    return length


def _work_bytes(
    model: ModelConfig,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    num_threads: int,
    max_model_len: int,
    head_excess: int,
) -> int:
    """Arrays alive at once: in the largest step, or while the largest weights are prepared.

    `head_excess` is what preparing the head takes beyond all weights that are kept in the end.
    """
    rope_table = max_model_len * model.rope_dim
    rows = LOGIT_ROWS + _SAMPLING_ROWS
    step = 4 * (max_num_batched_tokens * _floats_per_token(model) + rows * model.vocab_size)
    step += num_threads * max(max_num_seqs * _SEARCHED_ROW_BYTES, LOGIT_ROWS * _LONG_LIST_BYTES)
    # While gate and up are packed they are there as they were read, and stacked.
    layer = 4 * model.intermediate_size * model.hidden_size
    return 4 * rope_table + max(step, 4 * layer, head_excess)


def _floats_per_token(model: ModelConfig) -> int:
    """Activations of one token in the wider half of a layer, numpy's temporaries included."""
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    attention = 2 * (queries + 2 * keys) + 3 * queries
    return 4 * model.hidden_size + max(attention, 4 * model.intermediate_size)


def _too_large(
    model: ModelConfig,
    machine: Machine,
    *,
    needed: int,
    budget: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    num_threads: int,
    max_model_len: int,
    head_excess: int,
) -> ConfigError:
    """Not one block fits.  Smaller steps may help; otherwise only a smaller model does."""
    what = (
        f"the model needs {_gib(needed)} before any KV cache and only"
        f" {_gib(machine.free_memory_bytes)} are free"
    )
    num_tokens = bisect_right(
        range(1, max_num_batched_tokens + 1),
        budget,
        key=lambda count: _work_bytes(
            model, count, min(count, max_num_seqs), num_threads, max_model_len, head_excess
        ),
    )
    if num_tokens == 0:
        return ConfigError(f"{what}: use a smaller model, or free memory", field="model")
    setting = f"max_num_batched_tokens={num_tokens}"
    if num_tokens < max_num_seqs:
        setting = f"max_num_seqs={num_tokens} and {setting}"
    return ConfigError(f"{what}: set {setting} or less", field="max_num_batched_tokens")


def _choose_kv_blocks(
    asked: EngineConfig,
    machine: Machine,
    *,
    left: int,
    fixed: int,
    block_bytes: int,
    needed: int,
) -> tuple[int, str]:
    """How many blocks the pool gets, and why."""
    if asked.kv_cache_memory is not None:
        return _blocks_of_memory(asked, left=left, block_bytes=block_bytes)
    if asked.gpu_memory_utilization is not None:
        share = asked.gpu_memory_utilization
        num_blocks = _blocks_of_share(share, machine, left, fixed, block_bytes)
        return num_blocks, f"gpu_memory_utilization {share:g}"
    half = max(1, left // 2 // block_bytes)
    if needed <= half:
        return needed, "max_num_seqs requests of max_model_len"
    return half, f"half of the free memory inside the {machine.memory_limit}'s limit"


def _blocks_of_memory(asked: EngineConfig, *, left: int, block_bytes: int) -> tuple[int, str]:
    """As many blocks as the bytes that were asked for hold."""
    assert asked.kv_cache_memory is not None
    wanted = parse_bytes(asked.kv_cache_memory, field="kv_cache_memory")
    if wanted > left:
        raise ConfigError(
            f"kv_cache_memory of {_gib(wanted)} does not fit: {_gib(left)} are left beside"
            f" weights and work space; set kv_cache_memory={_setting(left, block_bytes)} or less",
            field="kv_cache_memory",
        )
    if wanted < block_bytes:
        raise ConfigError(
            f"kv_cache_memory of {wanted} bytes holds no block of {asked.block_size} tokens: set"
            f" kv_cache_memory={block_bytes} or more",
            field="kv_cache_memory",
        )
    wins = asked.gpu_memory_utilization is not None
    return wanted // block_bytes, "kv_cache_memory" + (
        ", which wins over gpu_memory_utilization" if wins else ""
    )


def _blocks_of_share(
    share: float, machine: Machine, left: int, fixed: int, block_bytes: int
) -> int:
    """What a share of all memory leaves beside weights and work space, in blocks."""
    total = machine.total_memory_bytes
    budget = int(total * share) - fixed
    if budget < block_bytes:
        smallest = math.ceil((fixed + block_bytes) / total * 1e4 + 1e-6) / 1e4
        raise ConfigError(
            f"gpu_memory_utilization={share:g} leaves no memory for the KV cache: set at least"
            f" gpu_memory_utilization={smallest:g}",
            field="gpu_memory_utilization",
        )
    if budget > left:
        largest = math.floor((fixed + left) / total * 1e4) / 1e4
        if largest < MIN_MEMORY_SHARE:
            advice = f"set kv_cache_memory={_setting(left, block_bytes)} instead"
        else:
            advice = f"set at most gpu_memory_utilization={largest:g}"
        raise ConfigError(
            f"gpu_memory_utilization={share:g} asks for more than is free: another process"
            f" holds memory; {advice}",
            field="gpu_memory_utilization",
        )
    return budget // block_bytes


def _choose_length(
    asked: EngineConfig, model: ModelConfig, num_blocks: int, *, block_bytes: int, left: int
) -> tuple[int, str]:
    """Longest request: the model's context, or what the pool holds."""
    capacity = num_blocks * asked.block_size
    if asked.max_model_len is not None:
        if asked.max_model_len > capacity:
            raise ConfigError(
                f"max_model_len {asked.max_model_len} does not fit the KV cache: set"
                f" max_model_len={capacity} or less, or{_pool_for(asked, block_bytes, left)}",
                field="max_model_len",
            )
        return asked.max_model_len, "max_model_len"
    if capacity < model.max_position:
        return capacity, f"what the KV cache holds, of the model's {model.max_position}"
    return model.max_position, "the model's context"


def _pool_for(asked: EngineConfig, block_bytes: int, left: int) -> str:
    """The pool that would hold one request of the asked length, if memory has room for it."""
    assert asked.max_model_len is not None
    num_mib = -(-(-(-asked.max_model_len // asked.block_size) * block_bytes) // _MIB)
    if num_mib * _MIB > left:
        return " free memory"
    return f" kv_cache_memory={num_mib}MiB or more"


def _choose_swap_blocks(
    asked: EngineConfig, block_bytes: int, *, left: int, is_needed: bool
) -> tuple[int, str]:
    """Swap space is reserved, not committed, and has to fit beside the rest if it is memory."""
    wanted = int(asked.swap_space * _GIB)
    if asked.preemption_mode == "recompute":
        return 0, "preemption_mode is recompute"
    if wanted < block_bytes:
        return 0, f"swap_space {asked.swap_space:g} holds no block"
    if not is_needed:
        return 0, "the KV cache holds every request that may run: nobody will be preempted"
    if asked.swap_path is not None:
        return wanted // block_bytes, f"file in {asked.swap_path}"
    fitting = max(0, min(wanted, left // 2))
    why = "in memory, where it is only a bigger pool: swap_path makes it a file"
    if fitting < wanted:
        why += f"; {asked.swap_space:g} GiB asked for, half of what is left is taken"
    return fitting // block_bytes, why


def _setting(num_bytes: int, block_bytes: int) -> str:
    """A text for kv_cache_memory: in MiB, unless rounding would leave less than a block."""
    num_mib = num_bytes // _MIB
    return f"{num_mib}MiB" if num_mib * _MIB >= block_bytes else str(num_bytes)


def _gib(num_bytes: int) -> str:
    if num_bytes < _GIB:
        return f"{num_bytes / _MIB:.0f} MiB"
    return f"{num_bytes / _GIB:.1f} GiB"
