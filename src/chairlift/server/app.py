"""The ASGI application: routes, and what every request passes before them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from chairlift.server.access_log import access_logger
from chairlift.server.anthropic.wire import AnthropicWire
from chairlift.server.auth import PUBLIC_PATHS
from chairlift.server.exchange import Exchange
from chairlift.server.middleware import (
    LOOPBACK_HOSTS,
    HostCheck,
    KeyCheck,
    OriginCheck,
    Recorder,
)
from chairlift.server.ollama.wire import OllamaWire
from chairlift.server.routes.chat import ChatCompletions
from chairlift.server.routes.completions import Completions
from chairlift.server.routes.embeddings import Embeddings
from chairlift.server.routes.health import Health, Version
from chairlift.server.routes.messages import CountTokens, Messages
from chairlift.server.routes.metrics import Metrics
from chairlift.server.routes.models import GetModel, ListModels
from chairlift.server.routes.ollama import (
    IsRunning,
    OllamaChat,
    OllamaGenerate,
    OllamaRunning,
    OllamaServerVersion,
    OllamaShow,
    OllamaStore,
    OllamaTags,
)
from chairlift.server.routes.ollama_embed import OllamaEmbed, OllamaEmbeddings
from chairlift.server.routes.openapi import OpenApi
from chairlift.server.routes.responses import (
    CancelResponse,
    InputItems,
    OneResponse,
    Responses,
)
from chairlift.server.routes.tokenize import Detokenize, GetTokenizerInfo, Tokenize
from chairlift.server.server_config import ServerConfig
from chairlift.server.serving import Serving
from chairlift.server.wire import Wire

WIRES: dict[str, Wire] = {"/v1/messages": AnthropicWire(), "/api": OllamaWire()}
"""Dialects other than OpenAI's, by the paths below which they are spoken."""


def create_app(
    serving: Serving,
    *,
    extra_routes: Sequence[BaseRoute] = (),
    public_paths: Collection[str] = (),
) -> ASGIApp:
    """`extra_routes` come from rooms above; `public_paths` of theirs need no key."""
    router: ASGIApp = _Routes([*_routes(serving), *extra_routes])
    public = PUBLIC_PATHS | set(public_paths)
    if serving.config.public_metrics:
        public |= {"/metrics"}
    guarded = KeyCheck(router, keys=serving.keys, public_paths=public)
    same_origin = OriginCheck(guarded, allowed=serving.config.cors_origin)
    known_host = HostCheck(same_origin, allowed=_allowed_hosts(serving.config))
    log_line = access_logger(serving.config)

    def record(exchange: Exchange) -> None:
        serving.tracer.trace(exchange)
        log_line(exchange)

    return Recorder(known_host, metrics=serving.metrics, log_line=record, wires=WIRES)


def _routes(serving: Serving) -> list[BaseRoute]:
    return [
        _post("/v1/chat/completions", ChatCompletions(serving)),
        _post("/v1/completions", Completions(serving)),
        _post("/v1/embeddings", Embeddings(serving)),
        _post("/v1/responses", Responses(serving)),
        Route("/v1/responses/{id}", OneResponse(serving), methods=["GET", "DELETE"]),
        _post("/v1/responses/{id}/cancel", CancelResponse(serving)),
        _get("/v1/responses/{id}/input_items", InputItems(serving)),
        _post("/v1/messages", Messages(serving)),
        _post("/v1/messages/count_tokens", CountTokens(serving)),
        _get("/v1/models", ListModels(serving)),
        _get("/v1/models/{id:path}", GetModel(serving)),
        _post("/tokenize", Tokenize(serving)),
        _post("/detokenize", Detokenize(serving)),
        _get("/tokenizer_info", GetTokenizerInfo(serving)),
        *_ollama_routes(serving),
        _get("/health", Health(serving)),
        _get("/ready", Health(serving)),
        _get("/ping", Health(serving)),
        _get("/version", Version()),
        _get("/metrics", Metrics(serving)),
        _get("/openapi.json", OpenApi()),
    ]


def _ollama_routes(serving: Serving) -> list[BaseRoute]:
    store = [
        Route(f"/api/{name}", OllamaStore())
        for name in ("pull", "push", "create", "copy", "delete", "blobs/{digest}")
    ]
    return [
        _post("/api/chat", OllamaChat(serving)),
        _post("/api/generate", OllamaGenerate(serving)),
        _post("/api/embed", OllamaEmbed(serving)),
        _post("/api/embeddings", OllamaEmbeddings(serving)),
        _post("/api/show", OllamaShow(serving)),
        _get("/api/tags", OllamaTags(serving)),
        _get("/api/ps", OllamaRunning(serving)),
        _get("/api/version", OllamaServerVersion()),
        _get("/", IsRunning()),
        *store,
    ]


def _post(path: str, endpoint: ASGIApp) -> Route:
    return Route(path, endpoint, methods=["POST"])


def _get(path: str, endpoint: ASGIApp) -> Route:
    return Route(path, endpoint, methods=["GET"])


class _Routes:
    """A router that raises for unknown paths and verbs, so that our own errors answer."""

    def __init__(self, routes: list[BaseRoute]) -> None:
        self._router = Router(routes, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named: dict[str, Any] = {"app": self}
        scope.update(named)
        await self._router(scope, receive, send)


def _allowed_hosts(config: ServerConfig) -> tuple[str, ...]:
    if config.is_local:
        return (*LOOPBACK_HOSTS, config.host, *config.allowed_host)
    return tuple(config.allowed_host)
