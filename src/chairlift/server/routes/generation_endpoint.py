"""What every endpoint that generates does with a request, whatever its dialect."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from chairlift.engine.async_engine import AsyncEngine
from chairlift.server.exchange import Exchange, exchange_of
from chairlift.server.generation import Job, answer
from chairlift.server.plain_answer import send_model
from chairlift.server.served_model import ServedModel
from chairlift.server.serving import Serving


class GenerationEndpoint(ABC):
    """Answers a request, whole or as a stream."""

    name: str
    """In logs and metrics."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving, exchange = self._serving, exchange_of(scope)
        exchange.endpoint = self.name
        engine, served = serving.engine()
        serving.admission.check_open(exchange.key_name)
        with serving.lifecycle.in_flight():
            todo = await self._read(engine, served, exchange, receive)
            if isinstance(todo, Job):
                await answer(serving, engine, exchange, todo, receive, send)
            else:
                await send_model(send, todo)

    @abstractmethod
    async def _read(
        self, engine: AsyncEngine, served: ServedModel, exchange: Exchange, receive: Receive
    ) -> Job | BaseModel:
        """What is to be done, or the answer if that is nothing; the request's text is let go."""
