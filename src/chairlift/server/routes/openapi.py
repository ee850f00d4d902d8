"""GET /openapi.json, written from the protocol models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.types import Receive, Scope, Send

from chairlift._version import __version__
from chairlift.server.plain_answer import send_bytes
from chairlift.server.protocol.anthropic import (
    CountTokensRequest,
    MessageAnswer,
    MessageError,
    MessagesRequest,
    TokenCount,
)
from chairlift.server.protocol.chat import ChatCompletion, ChatCompletionChunk, ChatRequest
from chairlift.server.protocol.completion import (
    CompletionRequest,
    TextCompletion,
    TextCompletionChunk,
)
from chairlift.server.protocol.embedding import EmbeddingList, EmbeddingRequest
from chairlift.server.protocol.error import ErrorAnswer
from chairlift.server.protocol.model import Model, ModelList
from chairlift.server.protocol.ollama import (
    OllamaChatAnswer,
    OllamaChatRequest,
    OllamaEmbedAnswer,
    OllamaEmbeddingsAnswer,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaError,
    OllamaGenerateAnswer,
    OllamaGenerateRequest,
    OllamaModelInfo,
    OllamaModelList,
    OllamaRunningList,
    OllamaShowRequest,
    OllamaVersion,
)
from chairlift.server.protocol.response import (
    DeletedResponse,
    Response,
    ResponseItemList,
    ResponseStreamEvent,
)
from chairlift.server.protocol.response_request import ResponsesRequest
from chairlift.server.protocol.tokenize import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
    TokenizerInfo,
)

Schema = dict[str, Any]

_REQUESTS = (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    ResponsesRequest,
    TokenizeRequest,
    DetokenizeRequest,
    MessagesRequest,
    CountTokensRequest,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
    OllamaEmbedRequest,
    OllamaEmbeddingsRequest,
)
_ANSWERS = (
    ChatCompletion,
    ChatCompletionChunk,
    TextCompletion,
    TextCompletionChunk,
    EmbeddingList,
    Response,
    ResponseStreamEvent,
    ResponseItemList,
    DeletedResponse,
    TokenizeAnswer,
    DetokenizeAnswer,
    TokenizerInfo,
    Model,
    ModelList,
    ErrorAnswer,
    MessageAnswer,
    TokenCount,
    MessageError,
    OllamaChatAnswer,
    OllamaGenerateAnswer,
    OllamaModelInfo,
    OllamaModelList,
    OllamaRunningList,
    OllamaVersion,
    OllamaError,
    OllamaEmbedAnswer,
    OllamaEmbeddingsAnswer,
)
_EVENTS, _LINES = "text/event-stream", "application/x-ndjson"


class OpenApi:
    """The document."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_bytes(send, 200, json.dumps(openapi_document()).encode("ascii"))


@cache
def openapi_document() -> Schema:
    """OpenAPI 3.1."""
    _, schemas = models_json_schema(
        [(kind, "validation") for kind in _REQUESTS]
        + [(kind, "serialization") for kind in _ANSWERS],
        ref_template="#/components/schemas/{model}",
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Chairlift",
            "version": __version__,
            "description": "LLM serving with continuous batching on any CPU.",
        },
        "security": [{}, {"bearer": []}],
        "paths": {
            "/v1/chat/completions": _post(ChatRequest, ChatCompletion, ChatCompletionChunk),
            "/v1/completions": _post(CompletionRequest, TextCompletion, TextCompletionChunk),
            "/v1/embeddings": _post(EmbeddingRequest, EmbeddingList),
            "/v1/responses": _post(ResponsesRequest, Response, ResponseStreamEvent),
            "/v1/responses/{id}": {
                **_get(Response, parameter="id"),
                "delete": _get(DeletedResponse, parameter="id")["get"],
            },
            "/v1/responses/{id}/cancel": {"post": _get(Response, parameter="id")["get"]},
            "/v1/responses/{id}/input_items": _get(ResponseItemList, parameter="id"),
            **_anthropic_paths(),
            **_ollama_paths(),
            "/v1/models": _get(ModelList),
            "/v1/models/{id}": _get(Model, parameter="id"),
            "/tokenize": _post(TokenizeRequest, TokenizeAnswer),
            "/detokenize": _post(DetokenizeRequest, DetokenizeAnswer),
            "/tokenizer_info": _get(TokenizerInfo),
            "/health": _get(None),
            "/ready": _get(None),
            "/ping": _get(None),
            "/version": _get(None),
            "/metrics": _get(None, kinds=("text/plain", "application/openmetrics-text")),
            "/openapi.json": _get(None),
        },
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _anthropic_paths() -> Schema:
    """Streams are of events of many kinds, which Anthropic's documentation describes."""
    return {
        "/v1/messages": _post(MessagesRequest, MessageAnswer, _EVENT, error=MessageError),
        "/v1/messages/count_tokens": _post(CountTokensRequest, TokenCount, error=MessageError),
    }


def _ollama_paths() -> Schema:
    def stream(request: type[BaseModel], answer: type[BaseModel]) -> Schema:
        return _post(request, answer, _LINE, stream=_LINES, error=OllamaError)

    return {
        "/api/chat": stream(OllamaChatRequest, OllamaChatAnswer),
        "/api/generate": stream(OllamaGenerateRequest, OllamaGenerateAnswer),
        "/api/embed": _post(OllamaEmbedRequest, OllamaEmbedAnswer, error=OllamaError),
        "/api/embeddings": _post(
            OllamaEmbeddingsRequest, OllamaEmbeddingsAnswer, error=OllamaError
        ),
        "/api/show": _post(OllamaShowRequest, OllamaModelInfo, error=OllamaError),
        "/api/tags": _get(OllamaModelList, error=OllamaError),
        "/api/ps": _get(OllamaRunningList, error=OllamaError),
        "/api/version": _get(OllamaVersion, error=OllamaError),
        "/": _get(None, kinds=("text/plain",)),
    }


_EVENT: Schema = {"type": "object", "properties": {"type": {"type": "string"}}}
_LINE: Schema = {"type": "object", "properties": {"done": {"type": "boolean"}}}


def _post(
    request: type[BaseModel],
    answer: type[BaseModel],
    chunk: type[BaseModel] | Schema | None = None,
    *,
    stream: str = _EVENTS,
    error: type[BaseModel] = ErrorAnswer,
) -> Schema:
    content: Schema = {"application/json": {"schema": _reference(answer)}}
    if chunk is not None:
        content[stream] = {"schema": chunk if isinstance(chunk, dict) else _reference(chunk)}
    operation = {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _reference(request)}},
        },
        "responses": {"200": {"description": "Success.", "content": content}, **_errors(error)},
    }
    return {"post": operation}


def _get(
    answer: type[BaseModel] | None,
    *,
    parameter: str | None = None,
    kinds: Sequence[str] = ("application/json",),
    error: type[BaseModel] = ErrorAnswer,
) -> Schema:
    schema = {} if answer is None else _reference(answer)
    content = {kind: {"schema": schema} for kind in kinds}
    operation: Schema = {
        "responses": {"200": {"description": "Success.", "content": content}, **_errors(error)}
    }
    if parameter is not None:
        place = {"name": parameter, "in": "path", "required": True, "schema": {"type": "string"}}
        operation["parameters"] = [place]
    return {"get": operation}


def _errors(error: type[BaseModel]) -> Schema:
    content = {"application/json": {"schema": _reference(error)}}
    return {
        "4XX": {"description": "The request cannot be served.", "content": content},
        "5XX": {"description": "The server cannot serve it now.", "content": content},
    }


def _reference(kind: type[BaseModel]) -> Schema:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
