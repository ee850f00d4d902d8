"""Chairlift serves large language models with continuous batching, first of all on plain CPUs.

`LLM` is the offline face, `AsyncEngine` the one for servers.  Names are loaded when they are first
used, so that `import chairlift` and `chairlift --help` stay quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from chairlift._version import __version__

if TYPE_CHECKING:
    from chairlift.config import EngineConfig
    from chairlift.engine.async_engine import AsyncEngine
    from chairlift.engine.engine import Engine
    from chairlift.engine.llm import LLM
    from chairlift.errors import (
        ChairliftError,
        ConfigError,
        EngineDeadError,
        ModelFileError,
        ModelSourceError,
        RequestError,
    )
    from chairlift.outputs import (
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        Logprob,
        RequestOutput,
    )
    from chairlift.pooling_params import PoolingParams
    from chairlift.sampling_params import SamplingParams
    from chairlift.structured_outputs import StructuredOutputsParams

_HOMES = {
    "AsyncEngine": "chairlift.engine.async_engine",
    "ChairliftError": "chairlift.errors",
    "CompletionOutput": "chairlift.outputs",
    "ConfigError": "chairlift.errors",
    "EmbeddingOutput": "chairlift.outputs",
    "EmbeddingRequestOutput": "chairlift.outputs",
    "Engine": "chairlift.engine.engine",
    "EngineConfig": "chairlift.config",
    "EngineDeadError": "chairlift.errors",
    "LLM": "chairlift.engine.llm",
    "Logprob": "chairlift.outputs",
    "ModelFileError": "chairlift.errors",
    "ModelSourceError": "chairlift.errors",
    "PoolingParams": "chairlift.pooling_params",
    "RequestError": "chairlift.errors",
    "RequestOutput": "chairlift.outputs",
    "SamplingParams": "chairlift.sampling_params",
    "StructuredOutputsParams": "chairlift.structured_outputs",
}

__all__ = [
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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'chairlift' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
