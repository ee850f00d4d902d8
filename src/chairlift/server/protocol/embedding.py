"""Embeddings: what is asked, and the shape of answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema

from chairlift.pooling_params import PoolingParams, PoolingType
from chairlift.server.errors import bad_request, unsupported
from chairlift.server.protocol.prompt_list import prompts_schema, read_prompts
from chairlift.server.protocol.sampling_fields import INT32_MAX, Seconds
from chairlift.server.protocol.strict_model import StrictModel
from chairlift.server.protocol.usage import Timings

MAX_INPUTS = 2048
"""OpenAI's limit."""


class EmbeddingRequest(StrictModel):
    """Body of POST /v1/embeddings."""

    model: Annotated[str, Field(min_length=1, max_length=1024)]
    input: Annotated[
        Any,
        BeforeValidator(lambda value: read_prompts(value, MAX_INPUTS)),
        WithJsonSchema(prompts_schema(MAX_INPUTS)),
    ]
    encoding_format: Literal["float", "base64"] = "float"
    """base64: of little-endian float32."""
    dimensions: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    """Nothing but the model's own hidden size."""
    pooling_type: PoolingType | None = None
    normalize: bool = True
    add_special_tokens: bool = True
    """Whether texts get the tokens that the model wants at their beginning and end."""
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    """Longer inputs are cut to so many tokens, or, if it is -1, to the model's context."""
    truncation_side: Literal["left", "right"] = "right"
    """Where they are cut."""
    priority: Annotated[int, Field(ge=-(2**31), le=INT32_MAX)] = 0
    """Lower goes first, where the server's scheduling policy is priority."""
    cache_salt: Annotated[str, Field(max_length=256)] | None = None
    """Only requests with the same salt share cached prompts."""
    timeout: Seconds | None = None
    """Seconds from arrival after which the answer is worth nothing."""
    user: str | None = None
    """Without effect."""

    def check(self, hidden_size: int) -> None:
        """Raises `ApiError` for what cannot be honoured."""
        if "" in self.input:
            name = f"input[{self.input.index('')}]" if len(self.input) > 1 else "input"
            raise bad_request(f"{name} must not be an empty string", param=name)
        if self.dimensions not in (None, hidden_size):
            raise unsupported(
                "dimensions",
                f"this model's vectors have {hidden_size} dimensions and cannot be shortened",
            )
        if self.truncate_prompt_tokens == 0:
            raise bad_request(
                "truncate_prompt_tokens must be -1 or at least 1", param="truncate_prompt_tokens"
            )

    def pooling_params(self) -> PoolingParams:
        return PoolingParams(pooling_type=self.pooling_type, normalize=self.normalize)


class Embedding(BaseModel):
    """One input's vector."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """Token counts of a request, all its inputs together."""

    prompt_tokens: int
    total_tokens: int
    timings: Timings | None = Field(default=None, exclude_if=lambda value: value is None)


class EmbeddingList(BaseModel):
    """Answer of POST /v1/embeddings."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
