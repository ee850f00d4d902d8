"""Requests to chat and to generate as bodies of completions."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from chairlift.server.errors import bad_request, unsupported
from chairlift.server.field_names import FieldNames
from chairlift.server.json_body import JsonObject
from chairlift.server.json_fields import wrong
from chairlift.server.ollama.model_names import name_here
from chairlift.server.protocol.field_policy import ignored_fields
from chairlift.server.protocol.ollama import (
    REFUSED,
    REFUSED_OPTIONS,
    GenerationFields,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaOptions,
    OllamaToolCall,
)
from chairlift.server.served_model import ServedModel
from chairlift.server.translation import Translation

_OPTIONS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
"""OllamaOptions by name, and what completions call them."""
_NAMES = {
    **{theirs: f"options.{ours}" for ours, theirs in _OPTIONS.items()},
    "seed": "options.seed",
    "stop": "options.stop",
    "max_tokens": "options.num_predict",
    "reasoning_effort": "think",
    "response_format.json_schema.schema": "format",
    "response_format": "format",
}
DEFAULT_EFFORT = "medium"
"""Of thinking that was asked for without saying how much."""


def chat_body(request: OllamaChatRequest, served: ServedModel, *, is_strict: bool) -> Translation:
    """For `POST /api/chat`.  Raises `ApiError`, naming the field.

    `is_strict`: about fields without effect as well.
    """
    ignored: list[str] = []
    calls = _Calls()
    body = _chat(request, served, ignored)
    body["messages"] = [
        _message(message, f"messages[{index}]", calls, ignored)
        for index, message in enumerate(request.messages)
    ]
    if request.tools:
        body["tools"] = request.tools
    return _translation(request, body, _NAMES, ignored, is_strict)


def generate_body(
    request: OllamaGenerateRequest, served: ServedModel, *, is_strict: bool
) -> Translation:
    """For `POST /api/generate`, as a conversation of one turn.  As `chat_body`."""
    ignored: list[str] = []
    body = _chat(request, served, ignored)
    turns = [("system", request.system), ("prompt", request.prompt)]
    given = [(field, text) for field, text in turns if text]
    body["messages"] = [
        {"role": "system" if field == "system" else "user", "content": text}
        for field, text in given
    ]
    names = _NAMES | {f"messages[{index}]": field for index, (field, _) in enumerate(given)}
    return _translation(request, body, names | {"messages": "prompt"}, ignored, is_strict)


def raw_body(
    request: OllamaGenerateRequest, served: ServedModel, *, is_strict: bool
) -> Translation:
    """For `POST /api/generate`, as the completion of a text.  As `chat_body`."""
    if request.system and request.raw:
        raise bad_request("system does not go with raw: write it into the prompt", param="system")
    if request.think:
        raise bad_request("think does not go with raw or suffix", param="think")
    ignored: list[str] = []
    body = _sampling(request, served, ignored) | {"prompt": request.prompt}
    body.setdefault("max_tokens", served.max_model_len)
    if request.suffix:
        body["suffix"] = request.suffix
    if request.logprobs:
        body["logprobs"] = request.top_logprobs or 0
    return _translation(request, body, _NAMES, ignored, is_strict)


def _translation(
    request: GenerationFields,
    body: JsonObject,
    names: dict[str, str],
    ignored: list[str],
    is_strict: bool,
) -> Translation:
    if request.top_logprobs is not None and not request.logprobs:
        raise bad_request("top_logprobs needs logprobs: true", param="top_logprobs")
    if request.keep_alive is not None:
        ignored.append("keep_alive")
    found = ignored_fields(request, REFUSED, ignored, is_strict=is_strict)
    return Translation(body=body, names=FieldNames(names), ignored=found)


def _chat(request: GenerationFields, served: ServedModel, ignored: list[str]) -> JsonObject:
    """All of a chat body but its messages.  Adds to `ignored`."""
    body = _sampling(request, served, ignored)
    think = request.think
    if think:
        if not served.can_think:
            raise unsupported("think", f"{request.model[:100]!r} does not support thinking (think)")
        body["reasoning_effort"] = DEFAULT_EFFORT if think is True else think
    elif think is False and served.can_think:
        body["reasoning_effort"] = "none"
    if request.logprobs:
        body |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    return body


def _sampling(request: GenerationFields, served: ServedModel, ignored: list[str]) -> JsonObject:
    """What chat and text completions have in common.  Adds to `ignored`."""
    body: JsonObject = {
        "model": name_here(request.model, served),
        "stream": request.stream,
    }
    options = request.options
    if options is not None:
        body |= _options(options, served)
        others = ["num_ctx"] if options.num_ctx else []
        with FieldNames({name: f"options.{name}" for name in REFUSED_OPTIONS}).told():
            names = ignored_fields(options, REFUSED_OPTIONS, others, is_strict=False)
        ignored += [f"options.{name}" for name in names]
    if request.format == "json":
        body["response_format"] = {"type": "json_object"}
    elif request.format:
        schema = {"name": "answer", "schema": request.format, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


def check_context(options: OllamaOptions, served: ServedModel) -> None:
    """Raises `ApiError` for a context that the server does not have."""
    if options.num_ctx is not None and options.num_ctx > served.max_model_len:
        raise bad_request(
            f"options.num_ctx: the context of this server is {served.max_model_len} tokens; it is"
            " set where the server is started",
            param="options.num_ctx",
        )


def _options(options: OllamaOptions, served: ServedModel) -> JsonObject:
    check_context(options, served)
    if options.num_predict == 0:
        raise bad_request(
            "options.num_predict must be at least 1, or -1 for as much as the context has room for",
            param="options.num_predict",
        )
    body: JsonObject = {
        theirs: value
        for ours, theirs in _OPTIONS.items()
        if (value := getattr(options, ours)) is not None
    }
    if options.seed is not None and options.seed != -1:
        body["seed"] = options.seed
    if options.num_predict is not None and options.num_predict > 0:
        body["max_tokens"] = options.num_predict
    if options.stop:
        body["stop"] = list(options.stop)
    return body


class _Calls:
    """Gives calls of tools their ids, and finds those that results answer."""

    def __init__(self) -> None:
        self._num = 0
        self._open: deque[tuple[str, str]] = deque()
        """Name and id of calls without a result."""

    def add(self, call: OllamaToolCall) -> str:
        id = call.id or f"call_{self._num}"
        self._num += 1
        self._open.append((call.function.name, id))
        return id

    def answered(self, name: str | None, id: str | None) -> tuple[str | None, str | None]:
        """Name and id of the call that a result with this name or id belongs to."""
        for call in self._open:
            if (id is None or call[1] == id) and (name is None or call[0] == name):
                self._open.remove(call)
                return call
        return name, id


def _message(
    message: OllamaMessage, place: str, calls: _Calls, ignored: list[str]
) -> dict[str, Any]:
    if message.images:
        raise wrong(f"{place}.images", "cannot be read: this server's model reads text only")
    ignored += [f"messages.{name}" for name in message.unknown_fields()]
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "tool":
        name, id = calls.answered(message.tool_name, message.tool_call_id)
        turn |= {} if name is None else {"name": name}
        turn |= {} if id is None else {"tool_call_id": id}
    if message.thinking:
        turn["reasoning_content"] = message.thinking
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": calls.add(call),
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": json.dumps(call.function.arguments, ensure_ascii=False),
                },
            }
            for call in message.tool_calls
        ]
    return turn
