"""Responses: the shape of answers, and of lists of their items."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from chairlift.server.protocol.response_items import OutputItem
from chairlift.server.protocol.usage import Timings, Usage

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputTokensDetails(BaseModel):
    """Of the input's tokens."""

    cached_tokens: int
    """Found in the prefix cache."""
    cache_write_tokens: int = 0


class OutputTokensDetails(BaseModel):
    """Of the output's tokens."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int
    timings: Timings | None = Field(default=None, exclude_if=lambda value: value is None)

    @classmethod
    def of(cls, usage: Usage, *, num_reasoning_tokens: int) -> ResponseUsage:
        return cls(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(
                cached_tokens=usage.prompt_tokens_details.cached_tokens
            ),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=num_reasoning_tokens),
            total_tokens=usage.total_tokens,
            timings=usage.timings,
        )


class ResponseError(BaseModel):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(BaseModel):
    """Why a response ended early."""

    reason: Literal["max_output_tokens"]


class Response(BaseModel):
    """Answer of POST /v1/responses, and what GET /v1/responses/{id} gives."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: ResponseStatus
    completed_at: int | None = None
    background: bool
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    """Whether it is kept."""
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = None
    user: str | None
    metadata: dict[str, str]


class ResponseItemList(BaseModel):
    """Answer of GET /v1/responses/{id}/input_items."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(BaseModel):
    """Answer of DELETE /v1/responses/{id}."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class ResponseStreamEvent(BaseModel):
    """One event of a streamed response; what else it has depends on its type."""

    type: str
    sequence_number: int
