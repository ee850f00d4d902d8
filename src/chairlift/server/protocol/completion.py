"""Text completions: what is asked, and the shape of answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema

from chairlift.server.errors import bad_request
from chairlift.server.protocol.prompt_list import prompts_schema, read_prompts
from chairlift.server.protocol.sampling_fields import Count, LogprobCount, SamplingFields
from chairlift.server.protocol.usage import Usage

MAX_PROMPTS = 1024
MAX_BEST_OF = 20
DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this endpoint."""


class CompletionRequest(SamplingFields):
    """Body of POST /v1/completions."""

    prompt: Annotated[
        Any,
        BeforeValidator(lambda value: read_prompts(value, MAX_PROMPTS)),
        WithJsonSchema(prompts_schema(MAX_PROMPTS)),
    ]
    max_tokens: Count = DEFAULT_MAX_TOKENS
    """0 only with echo: the prompt is scored and nothing is generated."""
    best_of: Annotated[int, Field(ge=0, le=MAX_BEST_OF)] | None = None
    """So many are generated, and the n most likely per token are returned."""
    echo: bool = False
    add_special_tokens: bool = True
    """Whether texts get the tokens that the model wants at their beginning and end."""
    logprobs: LogprobCount | None = None

    def check(self) -> None:
        """Raises `ApiError` for fields that contradict each other."""
        if self.max_tokens == 0 and not self.echo:
            raise bad_request("max_tokens: 0 needs echo: true", param="max_tokens")
        if self.best_of is not None and self.best_of < self.n:
            raise bad_request("best_of must be at least n", param="best_of")
        if self.best_of is not None and self.best_of > 1 and self.stream:
            raise bad_request("best_of does not go with stream", param="best_of")
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options needs stream: true", param="stream_options")

    @property
    def num_sampled(self) -> int:
        """Choices to generate for each prompt."""
        return max(self.n, self.best_of or 0)


class TextLogprobs(BaseModel):
    """Parallel lists, one entry per token of the text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(BaseModel):
    """One completion; index is prompt x n + choice."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: int | str | None = None


class TextCompletion(BaseModel):
    """Answer of POST /v1/completions."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage


class TextChunkChoice(BaseModel):
    """One completion's part of a chunk."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: int | str | None = None


class TextCompletionChunk(BaseModel):
    """One event of a streamed completion."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChunkChoice]
    usage: Usage | None = None
