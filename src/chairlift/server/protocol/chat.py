"""Chat completions: what is asked, and the shape of answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema

from chairlift.server.errors import bad_request
from chairlift.server.protocol.content_parts import MAX_PARTS, check_parts
from chairlift.server.protocol.sampling_fields import Count, LogprobCount, SamplingFields
from chairlift.server.protocol.strict_model import StrictModel
from chairlift.server.protocol.tools import ToolChoiceField, Tools, ToolUse, tool_use_of
from chairlift.server.protocol.usage import Usage

MAX_MESSAGES = 4096
MAX_TOOL_CALLS = 128
TEMPLATE_VARIABLES = ("enable_thinking", "thinking", "preserve_thinking")
"""What `chat_template_kwargs` may set."""

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def _content(value: Any) -> Any:
    return check_parts(value, {"text": "text"}, reads="parts of type 'text' only")


Content = Annotated[
    Any,
    BeforeValidator(_content),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "maxItems": MAX_PARTS,
                    "items": {
                        "type": "object",
                        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                        "required": ["type", "text"],
                    },
                },
            ]
        }
    ),
]


class CalledFunction(StrictModel):
    """Which function an assistant called, and how."""

    name: str
    arguments: str = ""
    """JSON, or what the model wrote instead."""


class ToolCall(StrictModel):
    """One call that an assistant made earlier in the conversation."""

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(StrictModel):
    """One turn of the conversation."""

    role: Role
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOL_CALLS)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """The same."""


def _template_variables(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must be an object")
    for name, item in value.items():
        if name not in TEMPLATE_VARIABLES:
            raise ValueError(f"has {name[:60]!r}; it may have {', '.join(TEMPLATE_VARIABLES)} only")
        if not isinstance(item, bool):
            raise ValueError(f"{name} must be true or false")
    return value


class ChatRequest(SamplingFields):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[Count, Field(ge=1)] | None = None
    max_tokens: Annotated[Count, Field(ge=1)] | None = None
    """Superseded by max_completion_tokens; without either, the rest of the context."""
    logprobs: bool = False
    top_logprobs: LogprobCount | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: Annotated[
        dict[str, Any],
        BeforeValidator(_template_variables),
        WithJsonSchema(
            {
                "type": "object",
                "properties": {name: {"type": "boolean"} for name in TEMPLATE_VARIABLES},
                "additionalProperties": False,
            }
        ),
    ] = {}
    reasoning_effort: ReasoningEffort | None = None
    """Reaches the chat template, where it knows such a thing."""
    tools: Tools | None = None
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool | None = None
    """False: at most one call in an answer."""
    verbosity: Literal["low", "medium", "high"] | None = None
    """Without effect."""

    def check(self) -> None:
        """Raises `ApiError` for fields that contradict each other."""
        if self.top_logprobs is not None and not self.logprobs:
            raise bad_request("top_logprobs needs logprobs: true", param="top_logprobs")
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options needs stream: true", param="stream_options")
        _ = self.tool_use

    @property
    def tool_use(self) -> ToolUse | None:
        """None: no tool may be called.  Raises `ApiError` if the fields contradict each other."""
        return tool_use_of(
            self.tools, self.tool_choice, is_parallel=self.parallel_tool_calls is not False
        )

    @property
    def asked_tokens(self) -> int | None:
        """The limit that the user gave, if any."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def template_messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as chat templates read them: absent keys left out, arguments as objects."""
    return [_template_message(message) for message in messages]


def _template_message(message: ChatMessage) -> dict[str, Any]:
    values: dict[str, Any] = {"role": message.role, "content": message.content}
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            values[name] = value
    reasoning = message.reasoning_content or message.reasoning
    if reasoning is not None:
        values["reasoning_content"] = reasoning
    if message.tool_calls:
        values["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(call.function.arguments),
                },
            }
            for call in message.tool_calls
        ]
    return values


def _arguments(text: str) -> Mapping[str, Any] | str:
    """Templates turn the arguments into JSON themselves; what is no object stays a text."""
    from pydantic_core import from_json

    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


class TopLogprob(BaseModel):
    """A token that could have been chosen."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprobs(TopLogprob):
    """The token that was chosen, and the best ones beside it."""

    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(BaseModel):
    """One entry per token of the answer."""

    content: list[TokenLogprobs]
    refusal: None = None


FinishReason = Literal["stop", "length", "tool_calls"]


class AnsweredFunction(BaseModel):
    """Which function is to be called, and how."""

    name: str
    arguments: str
    """JSON, or what the model wrote instead."""


class AnsweredCall(BaseModel):
    """One call that the assistant wants."""

    id: str
    type: Literal["function"] = "function"
    function: AnsweredFunction


def _is_none(value: object) -> bool:
    return value is None


class AnswerMessage(BaseModel):
    """What the assistant says."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    """null if there are calls only."""
    refusal: None = None
    reasoning: str | None = Field(default=None, exclude_if=_is_none)
    reasoning_content: str | None = Field(default=None, exclude_if=_is_none)
    """The same: some clients read this one."""
    tool_calls: list[AnsweredCall] | None = Field(default=None, exclude_if=_is_none)


class ChatChoice(BaseModel):
    """One answer of n."""

    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: FinishReason
    stop_reason: int | str | None = None


class ChatCompletion(BaseModel):
    """Answer of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class FunctionDelta(BaseModel):
    """The name comes once and whole, the arguments in pieces."""

    name: str | None = None
    arguments: str | None = None


class CallDelta(BaseModel):
    """What a chunk adds to a call."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class Delta(BaseModel):
    """What a chunk adds to an answer."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChunkChoice(BaseModel):
    """One answer's part of a chunk."""

    index: int
    delta: Delta
    logprobs: ChoiceLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None = None


class ChatCompletionChunk(BaseModel):
    """One event of a streamed answer."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
