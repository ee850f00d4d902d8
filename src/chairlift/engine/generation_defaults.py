"""The model's own wishes for generation: end tokens and sampling options of its file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chairlift.errors import ModelFileError, RequestError
from chairlift.sampling_params import SamplingParams

_GGUF_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
_HUGGINGFACE_KEYS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """End tokens beside the tokenizer's own, and options for requests that bring none."""

    eos_ids: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def sampling_params(self) -> SamplingParams:
        """vLLM's defaults, with the model's own where it has them."""
        return dataclasses.replace(SamplingParams(), **self.options)


def read_generation_defaults(kind: str, metadata: Mapping[str, Any]) -> GenerationDefaults:
    """From GGUF `general.sampling.*` keys, or a folder's generation_config.json and config.json."""
    if kind == "gguf":
        return GenerationDefaults(options=_options(metadata, _GGUF_KEYS))
    generation = metadata.get("generation_config") or {}
    eos_ids = _ids(generation.get("eos_token_id")) + _ids(metadata["config"].get("eos_token_id"))
    options = _options(generation, _HUGGINGFACE_KEYS)
    if generation.get("do_sample") is False:
        options["temperature"] = 0.0
    return GenerationDefaults(eos_ids=tuple(dict.fromkeys(eos_ids)), options=options)


def _options(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    options = {
        ours: values[theirs] for theirs, ours in names.items() if values.get(theirs) is not None
    }
    try:
        SamplingParams(**options)
    except RequestError as error:
        raise ModelFileError(f"the model's generation defaults are unusable: {error}") from None
    return options


def _ids(value: object) -> list[int]:
    """One id, a list of ids, or nothing."""
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int) and not isinstance(item, bool)]
