"""A request for a message as the body of a chat completion.

The blocks of a turn become a text, calls and results of tools; neighbouring turns of one role
become one, for templates want them to alternate.
"""

from __future__ import annotations

import json
from typing import Any

from chairlift.server.errors import bad_request, unsupported
from chairlift.server.field_names import FieldNames
from chairlift.server.json_body import JsonObject
from chairlift.server.json_fields import JsonFields, wrong
from chairlift.server.protocol.anthropic import (
    MAX_BLOCKS,
    REFUSED,
    CountTokensRequest,
    MessageInput,
    MessagesRequest,
    MessageTool,
)
from chairlift.server.protocol.field_policy import ignored_fields
from chairlift.server.translation import Translation

_NAMES = {
    "stop": "stop_sequences",
    "reasoning_effort": "thinking",
    "response_format.json_schema.schema": "output_config.format.schema",
    "response_format": "output_config.format",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "tool_choice.function.name": "tool_choice.name",
    "tool_choice.function": "tool_choice",
}
_COPIED = ("max_tokens", "temperature", "top_p", "top_k", "stream")
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_CUSTOM = "custom"
_CACHE_CONTROL = "cache_control"
DEFAULT_EFFORT = "medium"
"""Of thinking that was asked for without saying how much."""


def chat_body(request: CountTokensRequest, *, is_strict: bool) -> Translation:
    """Raises `ApiError`, naming the field.  `is_strict`: about fields without effect as well."""
    conversation = _Conversation()
    if request.system is not None:
        conversation.add_text("system", conversation.text_of(request.system, "system"), "system")
    for index, message in enumerate(request.messages):
        conversation.add(message, f"messages[{index}]")
    body: JsonObject = {"model": request.model, "messages": conversation.messages}
    names = _NAMES | conversation.names
    if isinstance(request, MessagesRequest):
        body |= {name: value for name in _COPIED if (value := getattr(request, name)) is not None}
        if request.stop_sequences:
            body["stop"] = list(request.stop_sequences)
    others = conversation.ignored
    body |= _tools(request, names, others)
    body |= _effort(request, others) | _response_format(request, names)
    if request.cache_control is not None:
        others.append(_CACHE_CONTROL)
    ignored = ignored_fields(request, REFUSED, others, is_strict=is_strict)
    return Translation(body=body, names=FieldNames(names), ignored=ignored)


class _Conversation:
    """Messages in the making."""

    def __init__(self) -> None:
        self.messages: list[JsonObject] = []
        self.names: dict[str, str] = {}
        """Places of messages here and in the request."""
        self.ignored: list[str] = []
        self._calls: dict[str, str] = {}
        """Names of called tools by the ids of the calls."""

    def add(self, message: MessageInput, place: str) -> None:
        self.ignored += [f"messages.{name}" for name in message.unknown_fields()]
        place = f"{place}.content"
        if not message.content:
            raise wrong(place, "must not be empty")
        if isinstance(message.content, str) or message.role == "system":
            self.add_text(message.role, self.text_of(message.content, place), place)
            return
        for index, value in enumerate(message.content):
            block = JsonFields(value, f"{place}[{index}]")
            if message.role == "assistant":
                self._add_spoken(block)
            else:
                self._add_heard(block)
            self._note_unread(block)

    def add_text(self, role: str, text: str, place: str) -> None:
        turn = self._turn(role, place)
        turn["content"] = f"{turn['content']}\n{text}" if turn["content"] is not None else text

    def text_of(self, content: str | list[Any], place: str) -> str:
        """Of a content that may hold nothing but text.  Raises `ApiError`."""
        if isinstance(content, str):
            return content
        if len(content) > MAX_BLOCKS:
            raise wrong(place, f"takes at most {MAX_BLOCKS} blocks")
        texts = []
        for index, value in enumerate(content):
            block = JsonFields(value, f"{place}[{index}]")
            if block.text("type") != "text":
                raise _unknown_block(block)
            texts.append(block.text("text"))
            self._note_unread(block)
        return "\n".join(texts)

    def _add_heard(self, block: JsonFields) -> None:
        """A block of the user's."""
        kind = block.text("type")
        if kind == "text":
            self.add_text("user", block.text("text"), block.place)
        elif kind == "tool_result":
            self._add_result(block)
        else:
            raise _unknown_block(block)

    def _add_spoken(self, block: JsonFields) -> None:
        """A block of the assistant's."""
        kind = block.text("type")
        if kind == "text":
            self.add_text("assistant", block.text("text"), block.place)
        elif kind == "tool_use":
            self._add_call(block)
        elif kind == "thinking":
            turn = self._turn("assistant", block.place)
            turn["reasoning_content"] = turn.get("reasoning_content", "") + block.text("thinking")
            block.get("signature")
        elif kind == "redacted_thinking":
            block.get("data")  # nobody but its writer can read it
        else:
            raise _unknown_block(block)

    def _add_call(self, block: JsonFields) -> None:
        id, name = block.text("id"), block.text("name")
        arguments = json.dumps(block.object("input"), ensure_ascii=False)
        self._calls[id] = name
        call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        block.get("caller")
        self._turn("assistant", block.place).setdefault("tool_calls", []).append(call)

    def _add_result(self, block: JsonFields) -> None:
        id = block.text("tool_use_id")
        if id not in self._calls:
            raise wrong(
                block.place_of("tool_use_id"), "is that of no tool_use block before this one"
            )
        content, place = block.get("content"), block.place_of("content")
        if not isinstance(content, str | list | None):
            raise wrong(place, "must be a string or a list of blocks")
        text = self.text_of(content or "", place)
        if block.flag("is_error"):
            text = f"Error: {text}" if text else "Error"
        message = {"role": "tool", "tool_call_id": id, "name": self._calls[id], "content": text}
        self._append(message, block.place)

    def _turn(self, role: str, place: str) -> JsonObject:
        """The last message if that is the same side's, or a new one."""
        if not self.messages or self.messages[-1]["role"] != role:
            self._append({"role": role, "content": None}, place)
        return self.messages[-1]

    def _append(self, message: JsonObject, place: str) -> None:
        self.names[f"messages[{len(self.messages)}]"] = place
        self.messages.append(message)

    def _note_unread(self, block: JsonFields) -> None:
        for name in block.unread():
            self.ignored.append(name if name == _CACHE_CONTROL else f"messages.content.{name}")


def _unknown_block(block: JsonFields) -> Exception:
    kind = block.text("type")
    return unsupported(
        block.place,
        f"{block.place} is of type {kind[:60]!r}, which has no place here: the model reads text,"
        " and calls and results of tools",
    )


def _tools(request: CountTokensRequest, names: dict[str, str], ignored: list[str]) -> JsonObject:
    """Tools and how they may be called.  Adds to `names` and `ignored`."""
    functions: list[JsonObject] = []
    kept: set[str] = set()
    for index, tool in enumerate(request.tools):
        if tool.type != _CUSTOM:
            ignored.append(f"tools.{tool.type[:60]}")  # runs elsewhere: nobody here could
            continue
        ignored += [f"tools.{name}" for name in tool.unknown_fields()]
        if tool.cache_control is not None:
            ignored.append(_CACHE_CONTROL)
        names[f"tools[{len(functions)}].function.parameters"] = f"tools[{index}].input_schema"
        names[f"tools[{len(functions)}].function"] = f"tools[{index}]"
        names[f"tools[{len(functions)}]"] = f"tools[{index}]"
        functions.append(_function(tool, f"tools[{index}]"))
        kept.add(tool.name)
    choice = request.tool_choice
    if choice is None:
        return {"tools": functions} if functions else {}
    if choice.type == "tool" and choice.name not in kept:
        raise bad_request("tool_choice.name is that of no given tool", param="tool_choice.name")
    if not functions:
        if choice.type == "any":
            raise bad_request("tool_choice 'any' needs a tool", param="tool_choice")
        return {}
    how: Any = _TOOL_CHOICES.get(choice.type) or {
        "type": "function",
        "function": {"name": choice.name},
    }
    body: JsonObject = {"tools": functions, "tool_choice": how}
    if choice.disable_parallel_tool_use:
        body["parallel_tool_calls"] = False
    return body


def _function(tool: MessageTool, place: str) -> JsonObject:
    if tool.input_schema is None:
        raise bad_request(f"{place}.input_schema is required", param=f"{place}.input_schema")
    function: JsonObject = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _effort(request: CountTokensRequest, ignored: list[str]) -> JsonObject:
    """How much is thought.  Adds to `ignored`."""
    thinking = request.thinking
    effort = request.output_config.effort if request.output_config is not None else None
    if thinking is not None and thinking.budget_tokens is not None:
        ignored.append("thinking.budget_tokens")
    if thinking is not None and thinking.type == "disabled":
        return {"reasoning_effort": "none"}
    if thinking is not None or effort is not None:
        return {"reasoning_effort": effort or DEFAULT_EFFORT}
    return {}


def _response_format(request: CountTokensRequest, names: dict[str, str]) -> JsonObject:
    """The form of the answer.  Adds to `names`."""
    format = request.output_config.format if request.output_config is not None else None
    if format is None and request.output_format is not None:
        format = request.output_format
        names |= {
            theirs: ours.replace("output_config.format", "output_format")
            for theirs, ours in _NAMES.items()
        }
    if format is None:
        return {}
    schema = {"name": "answer", "schema": format.schema_, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
