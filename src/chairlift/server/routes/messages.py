"""POST /v1/messages and /v1/messages/count_tokens, for Anthropic's clients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from starlette.types import Receive, Scope, Send

from chairlift.engine.async_engine import AsyncEngine
from chairlift.server.anthropic.chat_body import chat_body
from chairlift.server.anthropic.message_format import MessageFormat
from chairlift.server.chat_job import chat_prompt, chat_request, chat_work
from chairlift.server.disconnect import until_disconnect
from chairlift.server.exchange import Exchange, exchange_of, new_id
from chairlift.server.generation import Job
from chairlift.server.json_body import BodyLimits, JsonObject
from chairlift.server.plain_answer import send_model
from chairlift.server.protocol.anthropic import CountTokensRequest, MessagesRequest, TokenCount
from chairlift.server.protocol.chat import ChatRequest
from chairlift.server.protocol.strict_model import parse
from chairlift.server.request_reading import read_body
from chairlift.server.routes.generation_endpoint import GenerationEndpoint
from chairlift.server.served_model import ServedModel
from chairlift.server.serving import Serving
from chairlift.server.translation import Translation, book_ignored

_Asked = TypeVar("_Asked", bound=CountTokensRequest)


@dataclass(frozen=True, slots=True)
class _Understood:
    """A request in its own words and in those of chat."""

    shows_thinking: bool
    translation: Translation
    chat: ChatRequest


class Messages(GenerationEndpoint):
    """Answers a conversation, whole or as a stream."""

    name = "messages"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _name_for_clients(exchange_of(scope))
        await super().__call__(scope, receive, send)

    async def _read(
        self, engine: AsyncEngine, served: ServedModel, exchange: Exchange, receive: Receive
    ) -> Job:
        serving = self._serving
        id = new_id("msg").replace("-", "_")
        understand = partial(_understand, MessagesRequest, is_strict=serving.config.strict_fields)
        async with read_body(
            serving, exchange, receive, _limits(serving, served), understand
        ) as asked:
            with asked.translation.names.told():
                work = await chat_work(
                    serving, engine, served, exchange, asked.chat, receive,
                    id=id, ends_at_context=True,
                )  # fmt: skip
            book_ignored(serving, exchange, asked.translation)
            shows_thinking = asked.shows_thinking
        return work.job(
            MessageFormat(work, id=id, model=served.names[0], shows_thinking=shows_thinking)
        )


class CountTokens:
    """How long the prompt of a message would be."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving, exchange = self._serving, exchange_of(scope)
        exchange.endpoint = "count_tokens"
        _name_for_clients(exchange)
        _, served = serving.engine()
        understand = partial(
            _understand, CountTokensRequest, is_strict=serving.config.strict_fields
        )
        async with read_body(
            serving, exchange, receive, _limits(serving, served), understand
        ) as asked:
            served.check_name(asked.chat.model)
            book_ignored(serving, exchange, asked.translation)
            with asked.translation.names.told():
                async with until_disconnect(receive):
                    _, ids = await serving.in_text_thread(chat_prompt, asked.chat, served)
        await send_model(send, TokenCount(input_tokens=len(ids)))


def _understand(kind: type[_Asked], body: JsonObject, *, is_strict: bool) -> _Understood:
    """Raises `ApiError`, naming the field."""
    asked = parse(kind, body)
    asked.check()
    translation = chat_body(asked, is_strict=is_strict)
    with translation.names.told():
        chat = chat_request(translation.body)
    display = asked.thinking.display if asked.thinking is not None else None
    return _Understood(display != "omitted", translation, chat)


def _limits(serving: Serving, served: ServedModel) -> BodyLimits:
    return BodyLimits.of_one_text(serving.config.max_body_size, served.max_prompt_chars)


def _name_for_clients(exchange: Exchange) -> None:
    """Anthropic's clients look for the request's id under a name of their own."""
    exchange.added_headers.append((b"request-id", exchange.request_id.encode("ascii")))
