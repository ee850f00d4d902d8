"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from chairlift.server.plain_answer import send_model
from chairlift.server.protocol.model import Model, ModelList
from chairlift.server.served_model import ServedModel
from chairlift.server.serving import Serving


class ListModels:
    """All names of the model."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _, served = self._serving.engine()
        models = [_model(name, served) for name in served.names]
        await send_model(send, ModelList(data=models))


class GetModel:
    """One name; it may contain slashes."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _, served = self._serving.engine()
        name = scope["path_params"]["id"]
        served.check_name(name)
        await send_model(send, _model(name, served))


def _model(name: str, served: ServedModel) -> Model:
    return Model(
        id=name, created=served.created, root=served.root, max_model_len=served.max_model_len
    )
