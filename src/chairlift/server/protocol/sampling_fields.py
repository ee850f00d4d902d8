"""What chat and text completions have in common: how tokens are to be chosen.

Bounds are those of OpenAI's specification where it has some.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from chairlift.sampling_params import MAX_LOGPROBS, MAX_N, SamplingParams
from chairlift.server.errors import bad_request
from chairlift.server.protocol.strict_model import StrictModel
from chairlift.server.protocol.structured_fields import StructuredFields

MAX_STOP_STRINGS = 4
MAX_STOP_LENGTH = 256
MAX_BIASED_TOKENS = 1024
MAX_LISTED_TOKENS = 65_536
MAX_LOGPROB_VALUES = 500_000
"""Bound on choices x tokens x log probabilities of one request: each is an object in memory."""

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def _stop_strings(value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("must be a string or a list of strings")
    if len(texts) > MAX_STOP_STRINGS:
        raise ValueError(f"takes at most {MAX_STOP_STRINGS} strings")
    if not all(0 < len(text) <= MAX_STOP_LENGTH for text in texts):
        raise ValueError(f"takes strings of 1 to {MAX_STOP_LENGTH} characters")
    return tuple(texts)


def _bias(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must map token ids to numbers")
    if len(value) > MAX_BIASED_TOKENS:
        raise ValueError(f"takes at most {MAX_BIASED_TOKENS} tokens")
    return value


StopStrings = Annotated[
    tuple[str, ...],
    BeforeValidator(_stop_strings),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH},
                {
                    "type": "array",
                    "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH},
                    "maxItems": MAX_STOP_STRINGS,
                },
            ]
        }
    ),
]
LogitBias = Annotated[
    dict[str, Any],
    BeforeValidator(_bias),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
            "maxProperties": MAX_BIASED_TOKENS,
        }
    ),
]
TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]
TokenIds = Annotated[list[TokenId], Field(max_length=MAX_LISTED_TOKENS, fail_fast=True)]
Count = Annotated[int, Field(ge=0, le=INT32_MAX)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Share = Annotated[float, Field(ge=0, le=1)]
LogprobCount = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
Metadata = Annotated[
    dict[
        Annotated[str, Field(max_length=64)],
        Annotated[str, Field(max_length=512)],
    ],
    Field(max_length=16),
]


class StreamOptions(StrictModel):
    """What a stream tells beside the text."""

    include_usage: bool = False
    """A last chunk with the usage."""
    continuous_usage_stats: bool = False
    """The usage so far in every chunk."""
    include_obfuscation: bool = False
    """Without effect."""


class SamplingFields(StructuredFields):
    """Options of one request; what is not given is as the model wants it."""

    model: Annotated[str, Field(min_length=1, max_length=1024)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] = 1
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=1e6)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=INT64_MAX)] | None = None
    stop: StopStrings = ()
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: Count = 0
    logit_bias: LogitBias | None = None
    bad_words: (
        Annotated[list[Annotated[str, Field(min_length=1, max_length=256)]], Field(max_length=64)]
        | None
    ) = None
    allowed_token_ids: TokenIds | None = None
    skip_special_tokens: bool = True
    priority: Annotated[int, Field(ge=-(2**31), le=INT32_MAX)] = 0
    """Lower goes first, where the server's scheduling policy is priority."""
    cache_salt: Annotated[str, Field(max_length=256)] | None = None
    """Only requests with the same salt share cached prompts."""
    timeout: Seconds | None = None
    """Seconds from arrival after which the answer is worth nothing."""

    user: str | None = None
    """Without effect, as are the following."""
    store: bool | None = None
    metadata: Metadata | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def has_continuous_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    def sampling_params(
        self, defaults: SamplingParams, *, max_tokens: int | None, **others: Any
    ) -> SamplingParams:
        """Raises `RequestError`, naming the field."""
        given = {
            name: value for name in _COPIED if (value := getattr(self, name, None)) is not None
        }
        given |= {
            "max_tokens": max_tokens,
            "detokenize": True,
            "structured_outputs": self.structured(),
        }
        given |= others
        return dataclasses.replace(defaults, **given)

    def check_logprob_values(self, num_tokens: int, num_logprobs: int | None) -> None:
        """Raises `ApiError` if all log probabilities together would take too much memory."""
        if num_logprobs is not None and num_tokens * (num_logprobs + 1) > MAX_LOGPROB_VALUES:
            raise bad_request(
                f"choices x tokens x log probabilities is above {MAX_LOGPROB_VALUES};"
                " ask for fewer of one of them",
                param="logprobs",
            )


_COPIED = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "skip_special_tokens",
)
