"""What users can name changes on purpose only."""

from __future__ import annotations

import subprocess
import sys

import chairlift
from chairlift.config import EngineConfig

PUBLIC = [
    "AsyncEngine",
    "ChairliftError",
    "CompletionOutput",
    "ConfigError",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "Engine",
    "EngineConfig",
    "EngineDeadError",
    "LLM",
    "Logprob",
    "ModelFileError",
    "ModelSourceError",
    "PoolingParams",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]

ENGINE_OPTIONS = [
    "batch_wait_ms",
    "batching_policy",
    "block_size",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "enforce_eager",
    "gpu_memory_utilization",
    "kernels",
    "kv_cache_dtype",
    "kv_cache_memory",
    "long_prefill_token_threshold",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "model",
    "pooling_type",
    "preallocate_kv_cache",
    "preemption_mode",
    "prefill_policy",
    "preset",
    "quant_compute",
    "scheduling_policy",
    "seed",
    "static_batch_size",
    "swap_path",
    "swap_space",
    "tensor_parallel_size",
    "threads",
    "trace",
]


def test_public_names() -> None:
    assert chairlift.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(chairlift, name) is not None


def test_engine_options() -> None:
    assert sorted(EngineConfig.field_names()) == ENGINE_OPTIONS


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, chairlift; print(sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    for package in ("numpy", "tokenizers", "jinja2", "huggingface_hub", "typer", "tqdm"):
        assert f"'{package}'" not in loaded
