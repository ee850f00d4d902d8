"""One request as it will be sent: bytes, and when."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chairlift.bench.serve.load_config import LoadConfig
from chairlift.bench.serve.prompt_form import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """Made before the run, so that the run only sends it."""

    index: int
    body: bytes
    arrival_s: float
    """After the start of the run; a closed loop ignores it."""
    num_output_tokens: int
    """Asked for."""


def request_body(config: LoadConfig, model: str, prompt: Prompt, num_output_tokens: int) -> bytes:
    """A streamed request for a completion, with usage at its end."""
    fields: dict[str, Any] = {"model": model}
    if config.target.is_chat:
        fields["messages"] = [{"role": "user", "content": prompt}]
        # Old servers know the second name only.
        fields["max_completion_tokens"] = num_output_tokens
    else:
        fields["prompt"] = prompt
    fields["max_tokens"] = num_output_tokens
    fields["temperature"] = config.temperature
    fields["stream"] = True
    fields["stream_options"] = {"include_usage": True}
    if config.ignore_eos:
        fields["ignore_eos"] = True
    return encode(merged(fields, config.extra_fields))


def merged(fields: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """`extra` over `fields`; what `extra` says is null is left out."""
    both = {**fields, **extra}
    return {name: value for name, value in both.items() if extra.get(name, value) is not None}


def encode(content: object) -> bytes:
    """JSON as short as it gets."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
