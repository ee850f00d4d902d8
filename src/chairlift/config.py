"""Every option of the engine: what was asked, in the names that vLLM's users know.

`EngineConfig` is what the user said; None means "decide for me".  What was decided, with reasons,
is a `ResolvedConfig` (engine/resolved_config.py).  Neither ever changes.  The docstring under a
field is its help text on the command line and in the documentation.

| environment variable | meaning |
| --- | --- |
| CHAIRLIFT_CACHE | folder for downloaded models and measurements; else below XDG_CACHE_HOME |
| CHAIRLIFT_ISA | instruction set of native kernels: scalar, avx2, avx2_vnni, avx512, or one for |
| | floats and one for bytes (avx512+avx2_vnni); else a measurement chooses |
| CHAIRLIFT_LIBRARY | path of the native kernel library, for runs from a source tree |
| OPENAI_API_KEY | the key that `chairlift bench serve` sends, unless it is given one |
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from chairlift.errors import ConfigError
from chairlift.pooling_params import PoolingType

BatchingPolicyName = Literal["continuous", "dynamic", "static"]
PrefillPolicyName = Literal["chunked", "separated"]
SchedulingPolicyName = Literal["fcfs", "priority"]
PreemptionModeName = Literal["auto", "recompute", "swap"]
KernelsName = Literal["auto", "native", "int8", "reference"]
KvCacheDtypeName = Literal["auto", "int8", "float16", "bfloat16", "float32", "fp16", "bf16", "fp32"]
QuantComputeName = Literal["auto", "exact", "fast"]
PresetName = Literal["latency", "throughput"]

MIN_MEMORY_SHARE = 0.01
"""The smallest `gpu_memory_utilization`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What the scheduler must know: integers and names."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 512
    batching_policy: BatchingPolicyName = "continuous"
    prefill_policy: PrefillPolicyName = "chunked"
    scheduling_policy: SchedulingPolicyName = "fcfs"
    preemption_mode: PreemptionModeName = "auto"
    static_batch_size: int = 32
    batch_wait_ms: float = 50.0
    long_prefill_token_threshold: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the user asked for.  Raises `ConfigError`, naming the field, on a bad value."""

    model: str = "smollm2"
    """A name (smollm2), a GGUF file, a folder, or a hub id: org/name or org/name:Q4_K_M."""
    max_model_len: int | None = None
    """Longest prompt plus output, in tokens.  Default: what model and memory allow."""
    max_num_seqs: int | None = None
    """Requests that may run at once.  Default: 256."""
    max_num_batched_tokens: int | None = None
    """Tokens computed in one step at most.  Default: 512 on a CPU."""
    block_size: int = 16
    """Tokens per block of the KV cache."""
    gpu_memory_utilization: float | None = None
    """Share of the machine's memory (inside its limits) for weights and KV cache; the name is
    kept for the sake of habit.  Default: the KV cache takes at most half of what is free."""
    kv_cache_memory: int | str | None = None
    """Memory for the KV cache: bytes, or a text such as 2GiB."""
    swap_space: float = 4.0
    """GiB for keys and values of preempted requests; reserved, and used only when needed."""
    swap_path: str | None = None
    """Folder for a swap file.  Without it, swap space is taken from memory, where it is no more
    than a bigger pool."""
    enable_prefix_caching: bool = True
    """Reuse the keys and values of shared prefixes."""
    enable_chunked_prefill: bool | None = None
    """False is prefill_policy=separated."""
    preemption_mode: PreemptionModeName = "auto"
    """How memory is taken back: recompute, swap, or what is estimated cheaper."""
    batching_policy: BatchingPolicyName = "continuous"
    """When requests get on and off: continuous, dynamic or static."""
    prefill_policy: PrefillPolicyName | None = None
    """chunked: prompts ride along in pieces; separated: a step is all prefill or all decode."""
    long_prefill_token_threshold: int = 0
    """Tokens of one prompt that a step may compute at most; 0: as many as fit the step."""
    scheduling_policy: SchedulingPolicyName = "fcfs"
    """fcfs, or priority: lower numbers first, and they may interrupt higher ones."""
    static_batch_size: int = 32
    """Requests that form a static batch."""
    batch_wait_ms: float = 50.0
    """How long a dynamic or static batch waits to fill up."""
    preset: PresetName | None = None
    """latency (16 requests, 2048 tokens a step) or throughput (256 and 8192); single options
    given beside it win."""
    seed: int | None = None
    """Makes requests without a seed of their own repeatable."""
    threads: int | None = None
    """Threads for all computing.  Default: the cores of this process's affinity and quota."""
    kernels: KernelsName = "auto"
    """native (float32), int8 (weights and activations in bytes), reference (numpy).  auto: int8 for
    a quantised file, native for a file of floats, reference where the native library is missing."""
    kv_cache_dtype: KvCacheDtypeName = "auto"
    """What keys and values are stored as: int8 (int8 kernels only), float16, bfloat16 or float32;
    fp16, bf16 and fp32 mean the same.  auto: int8 for the int8 kernels, else float32."""
    quant_compute: QuantComputeName = "auto"
    """How the int8 kernels multiply.  exact: the file's codes and scales; fast: weights in bytes
    again, one scale per output: quicker for many requests at once, less so for one, and less exact.
    auto: exact; fast with preset throughput."""
    pooling_type: PoolingType | None = None
    """How an embedding is made of a prompt's hidden states: last (its last token's) or mean.
    Default: as the model's file says, else last."""
    tensor_parallel_size: int = 1
    """Devices to split the model over; only 1 for now."""
    preallocate_kv_cache: bool = False
    """Take all memory of the KV cache at the start, before the first request, not as it is used:
    the start takes longer, and no step waits for the system to find memory."""
    enforce_eager: bool = False
    """Kept for the sake of habit; there are no graphs to switch off on a CPU."""
    trace: str | None = None
    """File that gets one JSON line per step."""

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "threads"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 1)
        _integer("static_batch_size", self.static_batch_size, 1)
        _integer("block_size", self.block_size, 1, 256)
        _integer("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        if self.seed is not None:
            _integer("seed", self.seed, 0, 2**63 - 1)
        if self.gpu_memory_utilization is not None:
            _number("gpu_memory_utilization", self.gpu_memory_utilization, MIN_MEMORY_SHARE, 1.0)
        _number("swap_space", self.swap_space, 0.0, 2.0**20)
        _number("batch_wait_ms", self.batch_wait_ms, 0.0, 3.6e6)
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            is_open = value is None and name in ("prefill_policy", "preset", "pooling_type")
            if not is_open and value not in get_args(choices):
                raise ConfigError(
                    f"{name} must be one of {', '.join(get_args(choices))}, got {value!r}",
                    field=name,
                )
        for name in ("model", "swap_path", "trace"):
            _text(name, getattr(self, name), is_optional=name != "model")
        for name in (
            "enable_prefix_caching",
            "enable_chunked_prefill",
            "preallocate_kv_cache",
            "enforce_eager",
        ):
            _flag(name, getattr(self, name), is_optional=name == "enable_chunked_prefill")
        if self.kv_cache_memory is not None:
            parse_bytes(self.kv_cache_memory, field="kv_cache_memory")
        self._check_together()

    def _check_together(self) -> None:
        _integer("tensor_parallel_size", self.tensor_parallel_size, 1)
        if self.tensor_parallel_size != 1:
            raise ConfigError(
                f"tensor_parallel_size must be 1, got {self.tensor_parallel_size}: splitting a"
                " model over devices is not supported yet",
                field="tensor_parallel_size",
            )
        seqs, tokens = self.max_num_seqs, self.max_num_batched_tokens
        if seqs is not None and tokens is not None and tokens < seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({tokens}) must be at least max_num_seqs ({seqs}), for"
                f" each running request needs one token a step: set max_num_seqs={tokens} or less",
                field="max_num_batched_tokens",
            )
        if self.enable_chunked_prefill is not None and self.prefill_policy is not None:
            asked = "chunked" if self.enable_chunked_prefill else "separated"
            if asked != self.prefill_policy:
                raise ConfigError(
                    f"enable_chunked_prefill={self.enable_chunked_prefill} contradicts"
                    f" prefill_policy={self.prefill_policy}",
                    field="enable_chunked_prefill",
                )

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        return tuple(item.name for item in fields(cls))


_CHOICES = {
    "preemption_mode": PreemptionModeName,
    "batching_policy": BatchingPolicyName,
    "prefill_policy": PrefillPolicyName,
    "scheduling_policy": SchedulingPolicyName,
    "kernels": KernelsName,
    "kv_cache_dtype": KvCacheDtypeName,
    "quant_compute": QuantComputeName,
    "pooling_type": PoolingType,
    "preset": PresetName,
}

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {_letter: 1000**_power, f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}


def parse_bytes(value: int | str, *, field: str) -> int:
    """Bytes from an integer or a text such as "512MiB" or "2 GB".  At least 1."""
    if isinstance(value, str):
        text = value.strip().lower()
        number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
        unit = text[len(number) :].strip()
        try:
            value = int(float(number) * _UNITS[unit])
        except (ValueError, KeyError, OverflowError):
            raise ConfigError(
                f"{field} must be a number of bytes or a text such as 2GiB, got {value!r}",
                field=field,
            ) from None
    return _integer(field, value, 1)


def _integer(name: str, value: object, low: int, high: int = 2**62) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be an integer, got {value!r}", field=name)
    if not low <= value <= high:
        limit = f"at least {low}" if high == 2**62 else f"between {low} and {high}"
        raise ConfigError(f"{name} must be {limit}, got {value}", field=name)
    return value


def _number(name: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise ConfigError(f"{name} must be a number, got {value!r}", field=name)
    if not low <= value <= high:
        raise ConfigError(f"{name} must be between {low:g} and {high:g}, got {value}", field=name)
    return float(value)


def _text(name: str, value: object, *, is_optional: bool) -> None:
    if value is None and is_optional:
        return
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigError(f"{name} must be a text, got {value!r}", field=name)


def _flag(name: str, value: object, *, is_optional: bool) -> None:
    if not isinstance(value, bool) and not (value is None and is_optional):
        raise ConfigError(f"{name} must be true or false, got {value!r}", field=name)
