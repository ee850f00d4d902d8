"""Anthropic's messages: what is asked, and the shape of answers.

Messages and their blocks are checked where they are translated: `anthropic/chat_body.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema

from chairlift.server.errors import bad_request
from chairlift.server.protocol.chat import MAX_MESSAGES
from chairlift.server.protocol.field_policy import IsNeutral, is_one_of
from chairlift.server.protocol.sampling_fields import INT32_MAX, Count, StopStrings
from chairlift.server.protocol.strict_model import StrictModel

MAX_TOOLS = 128
MAX_BLOCKS = 4096

REFUSED: dict[str, IsNeutral] = {
    "container": is_one_of(),
    "mcp_servers": is_one_of([]),
}
"""What stands for work that this server cannot do; neutral values ask for nothing."""


def _text_or_blocks(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise ValueError("must be a string or a list of blocks")
    if isinstance(value, list) and len(value) > MAX_BLOCKS:
        raise ValueError(f"takes at most {MAX_BLOCKS} blocks")
    return value


TextOrBlocks = Annotated[
    Any,
    BeforeValidator(_text_or_blocks),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "object"}, "maxItems": MAX_BLOCKS},
            ]
        }
    ),
]


class MessageInput(StrictModel):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: TextOrBlocks


class MessageTool(StrictModel):
    """A tool that the model may call; other types than `custom` are left out."""

    type: str = "custom"
    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: Any = None
    """Without effect: prompts are cached of themselves."""


class MessageToolChoice(StrictModel):
    """Whether tools must be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class MessageThinking(StrictModel):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    """Without effect: `max_tokens` bounds thoughts and answer together."""
    display: Literal["summarized", "omitted"] | None = None
    """Whether thoughts are shown; they are never summarized."""


class MessageOutputFormat(StrictModel):
    """A JSON schema that the answer follows."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class MessageOutputConfig(StrictModel):
    """How much effort, and in which form."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: MessageOutputFormat | None = None


class CountTokensRequest(StrictModel):
    """Body of POST /v1/messages/count_tokens: what makes the prompt of a message."""

    model: Annotated[str, Field(min_length=1, max_length=1024)]
    messages: Annotated[list[MessageInput], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: TextOrBlocks | None = None
    tools: Annotated[list[MessageTool], Field(max_length=MAX_TOOLS)] = []
    tool_choice: MessageToolChoice | None = None
    thinking: MessageThinking | None = None
    output_config: MessageOutputConfig | None = None
    output_format: MessageOutputFormat | None = None
    """The older place of `output_config.format`."""
    cache_control: Any = None
    """Without effect: prompts are cached of themselves."""

    def check(self) -> None:
        """Raises `ApiError` for fields that contradict each other."""
        choice = self.tool_choice
        if choice is not None and (choice.name is None) == (choice.type == "tool"):
            said = "is required for" if choice.type == "tool" else "only goes with"
            raise bad_request(
                f"tool_choice.name {said} tool_choice.type 'tool'", param="tool_choice.name"
            )
        if self.messages[-1].role == "assistant":
            raise bad_request(
                "messages must not end with an assistant's turn: this server begins answers anew",
                param="messages",
            )
        thinking = self.thinking
        if thinking is not None and thinking.type == "enabled" and thinking.budget_tokens is None:
            raise bad_request(
                "thinking.budget_tokens is required for thinking.type 'enabled'",
                param="thinking.budget_tokens",
            )


class MessagesRequest(CountTokensRequest):
    """Body of POST /v1/messages."""

    max_tokens: Annotated[Count, Field(ge=1)]
    """More than the context has room for is no error: the answer ends with the context."""
    stop_sequences: StopStrings = ()
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    metadata: dict[str, Any] | None = None
    """Without effect."""
    service_tier: Literal["auto", "standard_only"] | None = None
    """Without effect."""


class TextBlock(BaseModel):
    """What is said."""

    type: Literal["text"] = "text"
    text: str
    citations: None = None


class ThinkingBlock(BaseModel):
    """What is thought."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str


class ToolUseBlock(BaseModel):
    """A call of a tool."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


Block = TextBlock | ThinkingBlock | ToolUseBlock
StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class MessageUsage(BaseModel):
    """Token counts; the prompt's are parted by where they came from."""

    input_tokens: int
    """Of the prompt, without those found in the prefix cache."""
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int


class MessageAnswer(BaseModel):
    """Answer of POST /v1/messages."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(BaseModel):
    """Answer of POST /v1/messages/count_tokens."""

    input_tokens: int


class MessageErrorDetail(BaseModel):
    """What went wrong."""

    type: str
    message: str


class MessageError(BaseModel):
    """Body of every 4xx and 5xx in this dialect."""

    type: Literal["error"] = "error"
    error: MessageErrorDetail
