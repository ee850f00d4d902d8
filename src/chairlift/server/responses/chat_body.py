"""What a request for a response says, as the body of a chat completion.

The endpoint has no path of its own to the engine: from here on it is a chat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.server.errors import ApiError, bad_request, unsupported
from chairlift.server.field_names import FieldNames
from chairlift.server.json_body import JsonObject
from chairlift.server.protocol.response_items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    KnownItem,
    MessageItem,
    ReasoningItem,
    texts_of,
)
from chairlift.server.protocol.response_request import (
    AllowedTools,
    NamedFunction,
    ResponsesRequest,
)
from chairlift.server.protocol.sampling_fields import SamplingFields
from chairlift.server.protocol.strict_model import parse

_OWN = {"n", "store", "metadata", "response_format"}
_PASSED = [name for name in SamplingFields.model_fields if name not in _OWN]
"""Fields that mean the same there."""

_NAMES = {
    "messages": "input",
    "prompt": "input",
    "prompt_token_ids": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "logprobs": "top_logprobs",
}
_WITHOUT_PLACES = ("messages", "prompt", "prompt_token_ids")
_UNAMBIGUOUS = (
    "max_completion_tokens",
    "max_tokens",
    "response_format.json_schema",
    "response_format",
    "reasoning_effort",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan:
    """The functions among the tools, and what is asked about them."""

    tools: list[dict[str, Any]]
    """As they were given."""
    places: list[int]
    """Where each stood in the request."""
    skipped: list[str]
    """Types of the tools that are left out."""
    choice: str | NamedFunction
    """Whether and which of them to call."""

    @property
    def field_names(self) -> FieldNames:
        """What fields of the chat are called in the request."""
        names = dict(_NAMES)
        for index, place in enumerate(self.places):
            names[f"tools[{index}].function"] = names[f"tools[{index}]"] = f"tools[{place}]"
        return FieldNames(names, whole=_WITHOUT_PLACES, in_text=_UNAMBIGUOUS, has_param=True)


def plan_tools(request: ResponsesRequest) -> ToolPlan:
    """Raises `ApiError` if what is to be called is not there."""
    places = [place for place, tool in enumerate(request.tools) if tool["type"] == "function"]
    skipped = list(
        dict.fromkeys(tool["type"] for tool in request.tools if tool["type"] != "function")
    )
    choice = request.tool_choice
    if isinstance(choice, dict):
        if choice["type"] == "allowed_tools":
            allowed = parse(AllowedTools, choice, place="tool_choice")
            places = _allowed(request, places, allowed)
            choice = allowed.mode
        elif choice["type"] == "function":
            choice = parse(NamedFunction, choice, place="tool_choice")
            if choice.name not in {request.tools[place]["name"] for place in places}:
                raise _not_there(choice.name)
        else:
            raise unsupported(
                "tool_choice", f"tool_choice: there are no {choice['type'][:60]} tools here"
            )
    if choice == "required" and not places:
        raise bad_request(
            "tool_choice: required needs a tool of type function", param="tool_choice"
        )
    return ToolPlan(
        tools=[request.tools[place] for place in places],
        places=places,
        skipped=skipped,
        choice=choice,
    )


def chat_body(request: ResponsesRequest, items: Sequence[KnownItem], plan: ToolPlan) -> JsonObject:
    """`items`: the whole conversation."""
    body: JsonObject = {
        name: getattr(request, name) for name in _PASSED if name in request.model_fields_set
    }
    if "stop" in body:
        body["stop"] = list(request.stop)
    if request.stream_options is not None:
        body["stream_options"] = request.stream_options.model_dump(exclude_unset=True)
    body["messages"] = chat_messages(request.instructions, items)
    if request.max_output_tokens is not None:
        body["max_completion_tokens"] = request.max_output_tokens
    if request.wants_logprobs:
        body |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    if request.chat_template_kwargs:
        body["chat_template_kwargs"] = request.chat_template_kwargs
    if request.reasoning is not None and request.reasoning.effort is not None:
        body["reasoning_effort"] = request.reasoning.effort
    if request.text is not None and request.text.verbosity is not None:
        body["verbosity"] = request.text.verbosity
    return body | _format_fields(request) | _tool_fields(request, plan)


def chat_messages(instructions: str | None, items: Sequence[KnownItem]) -> list[dict[str, Any]]:
    """Raises `ApiError` for an output of a call that nobody made."""
    conversation = _Conversation()
    if instructions is not None:
        conversation.add_text("system", [instructions])
    for item in items:
        conversation.add(item)
    return conversation.messages


class _Conversation:
    """Joins items into turns: thoughts, text and calls of one turn are one message."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._turn: dict[str, Any] | None = None
        """The assistant's last message, while it may grow."""
        self._call_ids: set[str] = set()

    def add(self, item: KnownItem) -> None:
        match item:
            case MessageItem(role="assistant"):
                self._assistant("content")["content"] = "".join(item.texts)
            case MessageItem():
                self.add_text(item.role, item.texts)
            case ReasoningItem():
                if item.text:
                    self._assistant("reasoning_content")["reasoning_content"] = item.text
            case FunctionCallItem():
                self._call_ids.add(item.call_id)
                function = {"name": item.name, "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                self._assistant("tool_calls").setdefault("tool_calls", []).append(call)
            case FunctionCallOutputItem():
                if item.call_id not in self._call_ids:
                    raise bad_request(
                        f"input: there is an output and no call of call_id {item.call_id!r}",
                        param="input",
                    )
                text = "".join(texts_of(item.output))
                self._add({"role": "tool", "tool_call_id": item.call_id, "content": text})

    def add_text(self, role: str, texts: list[str]) -> None:
        """Instructions that follow each other at the beginning are one message: not every
        template takes two."""
        first = self.messages[0] if len(self.messages) == 1 else None
        if role in ("system", "developer") and first and first["role"] in ("system", "developer"):
            first["content"] = "\n\n".join([first["content"], *texts])
            return
        if len(texts) == 1 or role in ("system", "developer"):
            self._add({"role": role, "content": "\n\n".join(texts)})
        else:
            self._add({"role": role, "content": [{"type": "text", "text": t} for t in texts]})

    def _add(self, message: dict[str, Any]) -> None:
        self._turn = None
        self.messages.append(message)

    def _assistant(self, key: str) -> dict[str, Any]:
        """The turn that is to have one more of `key`, in the order thoughts, text, calls."""
        order = ("reasoning_content", "content", "tool_calls")
        turn = self._turn
        may_repeat = key == "tool_calls"
        later = order[order.index(key) + may_repeat :]
        if turn is None or any(turn.get(name) is not None for name in later):
            turn = {"role": "assistant", "content": None}
            self.messages.append(turn)
            self._turn = turn
        return turn


def _format_fields(request: ResponsesRequest) -> JsonObject:
    text = request.format
    if text.type == "text":
        return {}
    if text.type == "json_object":
        return {"response_format": {"type": "json_object"}}
    schema: JsonObject = {"name": text.name, "schema": text.schema_}
    for name in ("description", "strict"):
        if (value := getattr(text, name)) is not None:
            schema[name] = value
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _tool_fields(request: ResponsesRequest, plan: ToolPlan) -> JsonObject:
    if not plan.tools:
        return {}
    fields: JsonObject = {
        "tools": [
            {
                "type": "function",
                "function": {
                    name: value
                    for name, value in tool.items()
                    if name != "type" and value is not None
                },
            }
            for tool in plan.tools
        ],
        "tool_choice": (
            {"type": "function", "function": {"name": plan.choice.name}}
            if isinstance(plan.choice, NamedFunction)
            else plan.choice
        ),
    }
    if "parallel_tool_calls" in request.model_fields_set:
        fields["parallel_tool_calls"] = request.parallel_tool_calls
    return fields


def _allowed(request: ResponsesRequest, places: list[int], allowed: AllowedTools) -> list[int]:
    """Places of the functions that may be called this time."""
    names = [tool.get("name") for tool in allowed.tools if tool.get("type") == "function"]
    given = {request.tools[place]["name"] for place in places}
    for name in names:
        if name not in given:
            raise _not_there(str(name))
    return [place for place in places if request.tools[place]["name"] in names]


def _not_there(name: str) -> ApiError:
    return bad_request(
        f"tool_choice: there is no function {name[:100]!r} among the tools", param="tool_choice"
    )
