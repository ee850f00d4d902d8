"""Responses: what is asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, PrivateAttr, WithJsonSchema

from chairlift.server.errors import bad_request, unsupported
from chairlift.server.protocol.chat import ReasoningEffort
from chairlift.server.protocol.field_policy import REFUSED_EVERYWHERE, IsNeutral, is_one_of
from chairlift.server.protocol.response_items import (
    MAX_ID_LENGTH,
    MAX_ITEMS,
    InputItem,
    parse_input,
    unknown_fields,
)
from chairlift.server.protocol.sampling_fields import (
    Count,
    LogprobCount,
    Metadata,
    SamplingFields,
)
from chairlift.server.protocol.strict_model import StrictModel, parse

MAX_TOOLS = 1024

Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
LOGPROBS: Includable = "message.output_text.logprobs"

REFUSED: dict[str, IsNeutral] = REFUSED_EVERYWHERE | {
    "conversation": is_one_of(),
    "prompt": is_one_of(),
    "moderation": is_one_of(),
    "context_management": is_one_of([]),
    "messages": is_one_of(),
    "max_tokens": is_one_of(),
    "max_completion_tokens": is_one_of(),
    "functions": is_one_of([]),
    "logprobs": is_one_of(False),
    "chat_template": is_one_of(),
}
"""Fields that are known and cannot be honoured, or that belong to chat completions."""


def _input(value: Any) -> Any:
    if not isinstance(value, (str, list)):
        raise ValueError("must be a string or a list of items")
    if not value:
        raise ValueError("must not be empty")
    if len(value) > MAX_ITEMS and isinstance(value, list):
        raise ValueError(f"takes at most {MAX_ITEMS} items")
    return value


def _tools(value: Any) -> Any:
    if not isinstance(value, list):
        raise ValueError("must be a list of tools")
    if len(value) > MAX_TOOLS:
        raise ValueError(f"takes at most {MAX_TOOLS} tools")
    for index, tool in enumerate(value):
        if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
            raise ValueError(f"tool {index} must be an object with a type")
    return value


def _tool_choice(value: Any) -> Any:
    if value in ("none", "auto", "required") and isinstance(value, str):
        return value
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise ValueError("must be none, auto, required or an object with a type")
    return value


class FunctionTool(StrictModel):
    """A function that the model may call."""

    type: Literal["function"]
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of its arguments."""
    strict: bool | None = None


class NamedFunction(StrictModel):
    """The one function to call."""

    type: Literal["function"]
    name: str


class AllowedTools(StrictModel):
    """Which of the tools may be called this time."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_TOOLS)]


class TextFormat(StrictModel):
    """What the text must be."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    description: str | None = None
    strict: bool | None = None


class TextOptions(StrictModel):
    """About the text of the answer."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    """Without effect."""


class ReasoningOptions(StrictModel):
    """About what is thought before the answer."""

    effort: ReasoningEffort | None = None
    """Reaches the chat template, where it knows such a thing."""
    summary: Literal["auto", "concise", "detailed"] | None = None
    """Tells what was thought, whole, as a summary and not as content."""
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    """The same under its old name."""


class ResponsesRequest(SamplingFields):
    """Body of POST /v1/responses."""

    input: Annotated[
        Any,
        BeforeValidator(_input),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "string", "minLength": 1},
                    {
                        "type": "array",
                        "minItems": 1,
                        "maxItems": MAX_ITEMS,
                        "items": {"type": "object"},
                    },
                ]
            }
        ),
    ]
    instructions: str | None = None
    """Comes first, and is not carried over to the next response."""
    previous_response_id: Annotated[str, Field(max_length=MAX_ID_LENGTH)] | None = None
    """The response whose conversation goes on."""
    max_output_tokens: Annotated[Count, Field(ge=1)] | None = None
    """Without it, the rest of the context."""
    tools: Annotated[
        list[dict[str, Any]],
        BeforeValidator(_tools),
        WithJsonSchema(
            {"type": "array", "maxItems": MAX_TOOLS, "items": {"type": "object"}},
        ),
    ] = []
    """Functions; tools of other types are left out."""
    tool_choice: Annotated[
        Any,
        BeforeValidator(_tool_choice),
        WithJsonSchema({"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}]}),
    ] = "auto"
    parallel_tool_calls: bool = True
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: Annotated[list[Includable], Field(max_length=len(get_args(Includable)))] = []
    top_logprobs: LogprobCount | None = None
    store: bool | None = None
    """Keep the response; true unless given."""
    background: bool = False
    """Answer at once, and work on."""
    metadata: Metadata | None = None
    """Kept with the response."""
    truncation: Literal["auto", "disabled"] = "disabled"
    """auto drops the oldest items of a conversation that is too long."""
    max_tool_calls: Count | None = None
    """Without effect: it counts calls of tools that the server runs."""
    chat_template_kwargs: dict[str, Any] = {}

    _items: list[InputItem] = PrivateAttr(default_factory=list)

    @property
    def items(self) -> list[InputItem]:
        """The input, checked."""
        return self._items

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in self.include or bool(self.top_logprobs)

    @property
    def summary(self) -> str | None:
        """How thoughts are to be summed up, if at all."""
        if self.reasoning is None:
            return None
        return self.reasoning.summary or self.reasoning.generate_summary

    @property
    def format(self) -> TextFormat:
        if self.text is None or self.text.format is None:
            return TextFormat(type="text")
        return self.text.format

    def check(self) -> None:
        """Raises `ApiError` for fields that contradict each other or cannot be honoured."""
        self._items = parse_input(self.input)
        for name, value in (self.model_extra or {}).items():
            is_neutral = REFUSED.get(name)
            if is_neutral is not None and not is_neutral(value):
                raise unsupported(name, f"{name} is not supported by this endpoint")
        if self.response_format is not None:
            raise unsupported("response_format", "response_format: it is text.format here")
        if self.n != 1:
            raise unsupported("n", "n: a response is one answer")
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options needs stream: true", param="stream_options")
        if self.background and self.store is False:
            raise bad_request("background needs store: true", param="background")
        if self.background and self.stream:
            raise unsupported("stream", "a response in the background cannot be streamed")
        self._check_format()
        for index, tool in enumerate(self.tools):
            if tool["type"] == "function":
                parse(FunctionTool, tool, place=f"tools[{index}]")

    def _check_format(self) -> None:
        text = self.format
        if text.type == "json_schema":
            for name in ("name", "schema"):
                if getattr(text, "schema_" if name == "schema" else name) is None:
                    place = f"text.format.{name}"
                    raise bad_request(
                        f"{place} is required", param=place, code="missing_required_parameter"
                    )

    def without_effect(self) -> Iterator[str]:
        """Names of what was given and changes nothing, but for what chat completions know."""
        yield from (name for name in self.unknown_fields() if name not in REFUSED)
        yield from (f"input.{name}" for name in unknown_fields(self.items))
        yield from (f"include.{name}" for name in self.include if name != LOGPROBS)
        if self.max_tool_calls is not None:
            yield "max_tool_calls"
        for name in ("include_usage", "continuous_usage_stats"):
            if getattr(self.stream_options, name, False):
                yield f"stream_options.{name}"
        if self.text is not None:
            yield from (f"text.{name}" for name in self.text.unknown_fields())
        if self.reasoning is not None:
            yield from (f"reasoning.{name}" for name in self.reasoning.unknown_fields())
        for item in self.items:
            if getattr(item, "encrypted_content", None) is not None:
                yield "input.encrypted_content"


def responses_request(body: dict[str, Any]) -> ResponsesRequest:
    """Raises `ApiError`, naming the field."""
    request = parse(ResponsesRequest, body)
    request.check()
    return request
