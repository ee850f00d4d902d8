"""What Ollama's clients ask about models, told of the one that is served."""

from __future__ import annotations

import hashlib
import re
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

from chairlift.engine.loaded_model import LoadedModel
from chairlift.sampling_params import SamplingParams
from chairlift.server.ollama.model_names import listed_name
from chairlift.server.protocol.ollama import (
    ListedModel,
    OllamaDetails,
    OllamaModelInfo,
    OllamaModelList,
    OllamaRunningList,
    RunningModel,
)
from chairlift.server.served_model import ServedModel

_QUANTIZATION = re.compile(r"(?<![A-Z0-9])(I?Q\d\w*|BF16|F16|F32)(?![A-Z0-9])")
_NEVER = "2318-03-10T00:00:00Z"
"""When a model that stays is unloaded: about as far away as Ollama's own."""
_PARAMETERS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
}


def listed_models(model: LoadedModel, served: ServedModel) -> OllamaModelList:
    """For `GET /api/tags`."""
    size, modified_at = _files(model.path)
    return OllamaModelList(
        models=[
            ListedModel(
                name=listed_name(name),
                model=listed_name(name),
                modified_at=modified_at,
                size=size,
                digest=_digest(served),
                details=_details(model),
            )
            for name in served.names
        ]
    )


def running_models(model: LoadedModel, served: ServedModel) -> OllamaRunningList:
    """For `GET /api/ps`."""
    return OllamaRunningList(
        models=[
            RunningModel(
                name=listed_name(served.names[0]),
                model=listed_name(served.names[0]),
                size=_files(model.path)[0],
                digest=_digest(served),
                details=_details(model),
                expires_at=_NEVER,
                context_length=served.max_model_len,
            )
        ]
    )


def model_info(model: LoadedModel, served: ServedModel) -> OllamaModelInfo:
    """For `POST /api/show`."""
    template = served.chat_template.source if served.chat_template is not None else None
    config, family = model.config, model.config.architecture
    return OllamaModelInfo(
        modelfile=f"FROM {served.root}\n",
        parameters=_parameters(served.defaults),
        template=template or "",
        details=_details(model),
        model_info={
            "general.architecture": family,
            "general.parameter_count": config.num_parameters,
            f"{family}.context_length": served.max_model_len,
            f"{family}.embedding_length": config.hidden_size,
            f"{family}.block_count": config.num_layers,
            f"{family}.feed_forward_length": config.intermediate_size,
            f"{family}.attention.head_count": config.num_heads,
            f"{family}.attention.head_count_kv": config.num_kv_heads,
            f"{family}.vocab_size": config.vocab_size,
        },
        capabilities=served.capabilities,
        modified_at=_files(model.path)[1],
    )


def _details(model: LoadedModel) -> OllamaDetails:
    family = model.config.architecture
    found = _QUANTIZATION.search(model.path.name.upper())
    return OllamaDetails(
        format="safetensors" if model.path.is_dir() else "gguf",
        family=family,
        families=[family],
        parameter_size=_short(model.config.num_parameters),
        quantization_level=found[1] if found is not None else "",
    )


def _short(number: int) -> str:
    """134515008 is 134.52M."""
    return f"{number / 1e9:.1f}B" if number >= 1e9 else f"{number / 1e6:.2f}M"


def _files(path: Path) -> tuple[int, str]:
    """Bytes of a model's files, and when the newest was written."""
    found = [file for file in path.iterdir() if file.is_file()] if path.is_dir() else [path]
    states = [file.stat() for file in found]
    newest = datetime.fromtimestamp(max(state.st_mtime for state in states), UTC)
    size = sum(state.st_size for state in states)
    return size, newest.isoformat(timespec="seconds").replace("+00:00", "Z")


def _digest(served: ServedModel) -> str:
    return hashlib.sha256(served.fingerprint.encode()).hexdigest()


def _parameters(defaults: SamplingParams) -> str:
    """The model's own sampling options, one per line."""
    plain = {item.name: item.default for item in fields(SamplingParams)}
    return "\n".join(
        f"{theirs:<30} {getattr(defaults, ours)}"
        for ours, theirs in _PARAMETERS.items()
        if getattr(defaults, ours) != plain[ours]
    )
