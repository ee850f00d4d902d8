"""/api/*, for Ollama's clients: chatting, generating, and what they ask about models."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from chairlift._version import __version__
from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.loaded_model import LoadedModel
from chairlift.server.answer_parts import PlainReader
from chairlift.server.chat_job import chat_request, chat_work
from chairlift.server.completion_job import completion_request, completion_work
from chairlift.server.errors import bad_request, not_found, unsupported
from chairlift.server.exchange import Exchange, exchange_of, new_id
from chairlift.server.generation import Job
from chairlift.server.json_body import BodyLimits, JsonObject
from chairlift.server.ollama.answer_format import OllamaFormat, load_answer
from chairlift.server.ollama.completion_body import chat_body, generate_body, raw_body
from chairlift.server.ollama.model_facts import listed_models, model_info, running_models
from chairlift.server.ollama.model_names import name_here
from chairlift.server.plain_answer import send_bytes, send_model
from chairlift.server.protocol.chat import ChatRequest
from chairlift.server.protocol.completion import CompletionRequest
from chairlift.server.protocol.ollama import (
    GenerationFields,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
    OllamaVersion,
)
from chairlift.server.protocol.strict_model import parse
from chairlift.server.request_reading import book_unknown, read_body
from chairlift.server.routes.generation_endpoint import GenerationEndpoint
from chairlift.server.served_model import ServedModel
from chairlift.server.serving import Serving
from chairlift.server.translation import Translation, book_ignored

_TEXT = (b"content-type", b"text/plain; charset=utf-8")


@dataclass(frozen=True, slots=True)
class _Understood:
    """A request in its own words and in those of a completion."""

    asked: GenerationFields
    translation: Translation
    request: ChatRequest | CompletionRequest | None
    """None: only to be loaded."""

    @property
    def num_logprobs(self) -> int | None:
        return (self.asked.top_logprobs or 0) if self.asked.logprobs else None


class _Generation(GenerationEndpoint):
    """What both endpoints that generate do."""

    is_chat: bool

    @abstractmethod
    def understand(self, body: JsonObject, served: ServedModel) -> _Understood:
        """Raises `ApiError`, naming the field."""

    async def _read(
        self, engine: AsyncEngine, served: ServedModel, exchange: Exchange, receive: Receive
    ) -> Job | BaseModel:
        serving, id = self._serving, new_id("ollama")
        limits = BodyLimits.of_one_text(serving.config.max_body_size, served.max_prompt_chars)
        understand = partial(self.understand, served=served)
        async with read_body(serving, exchange, receive, limits, understand) as understood:
            asked, request = understood.asked, understood.request
            if request is None:
                served.check_name(name_here(asked.model, served))
                book_ignored(serving, exchange, understood.translation)
                return load_answer(asked.model, is_chat=self.is_chat)
            with understood.translation.names.told():
                if isinstance(request, ChatRequest):
                    chat = await chat_work(
                        serving, engine, served, exchange, request, receive,
                        id=id, ends_at_context=True,
                    )  # fmt: skip
                    reader, to_job = chat.new_reader(), chat.job
                else:
                    text = await completion_work(
                        serving, engine, served, exchange, request, receive,
                        id=id, ends_at_context=True,
                    )  # fmt: skip
                    reader, to_job = PlainReader(), text.job
            book_ignored(serving, exchange, understood.translation)
            return to_job(
                OllamaFormat(
                    reader,
                    served,
                    model=asked.model,
                    is_chat=self.is_chat,
                    num_logprobs=understood.num_logprobs,
                )
            )

    @property
    def _is_strict(self) -> bool:
        return self._serving.config.strict_fields


class OllamaChat(_Generation):
    """POST /api/chat: answers a conversation."""

    name = "ollama_chat"
    is_chat = True

    def understand(self, body: JsonObject, served: ServedModel) -> _Understood:
        asked = parse(OllamaChatRequest, body)
        translation = chat_body(asked, served, is_strict=self._is_strict)
        if not asked.messages:
            return _only_load(asked, translation)
        with translation.names.told():
            return _Understood(asked, translation, chat_request(translation.body))


class OllamaGenerate(_Generation):
    """POST /api/generate: answers a prompt, or completes it as it is."""

    name = "ollama_generate"
    is_chat = False

    def understand(self, body: JsonObject, served: ServedModel) -> _Understood:
        asked = parse(OllamaGenerateRequest, body)
        is_completion = asked.raw or bool(asked.suffix)
        translate = raw_body if is_completion else generate_body
        translation = translate(asked, served, is_strict=self._is_strict)
        if not asked.prompt:
            return _only_load(asked, translation)
        with translation.names.told():
            request: ChatRequest | CompletionRequest = (
                completion_request(translation.body, served)
                if is_completion
                else chat_request(translation.body)
            )
        return _Understood(asked, translation, request)


def _only_load(asked: GenerationFields, translation: Translation) -> _Understood:
    if asked.asks_to_unload:
        raise unsupported(
            "keep_alive", "keep_alive: this server's model stays loaded until the server ends"
        )
    return _Understood(asked, translation, None)


class OllamaTags:
    """GET /api/tags: the model under its names."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        model, served = _model(self._serving)
        await send_model(send, listed_models(model, served))


class OllamaRunning:
    """GET /api/ps: the model, for it is always loaded."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        model, served = _model(self._serving)
        await send_model(send, running_models(model, served))


class OllamaShow:
    """POST /api/show: what there is to know about the model."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving, exchange = self._serving, exchange_of(scope)
        exchange.endpoint = "ollama_show"
        model, served = _model(serving)
        limits = BodyLimits(max_bytes=serving.config.max_body_size)
        understand = partial(parse, OllamaShowRequest)
        async with read_body(serving, exchange, receive, limits, understand) as request:
            name = request.model or request.name
            if name is None:
                raise bad_request("model is required", param="model")
            served.check_name(name_here(name, served))
            book_unknown(serving, exchange, request)
        await send_model(send, model_info(model, served))


class OllamaServerVersion:
    """GET /api/version: this server's own, not one of Ollama's."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_model(send, OllamaVersion(version=__version__))


class OllamaStore:
    """/api/pull and others: what Ollama does with its store of models."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> NoReturn:
        raise not_found(
            "this server has one model, chosen where it is started: none can be pulled, pushed,"
            " created, copied or deleted"
        )


class IsRunning:
    """GET /: what clients ask to see whether a server is there."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_bytes(send, 200, b"Chairlift is running", [_TEXT])


def _model(serving: Serving) -> tuple[LoadedModel, ServedModel]:
    engine, served = serving.engine()
    return engine.engine.model, served
