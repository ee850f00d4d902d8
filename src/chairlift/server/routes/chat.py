"""POST /v1/chat/completions."""

from __future__ import annotations

import time

from starlette.types import Receive

from chairlift.engine.async_engine import AsyncEngine
from chairlift.server.chat_format import ChatFormat
from chairlift.server.chat_job import chat_request, chat_work
from chairlift.server.exchange import Exchange, new_id
from chairlift.server.generation import Job
from chairlift.server.json_body import BodyLimits
from chairlift.server.request_reading import read_body
from chairlift.server.routes.generation_endpoint import GenerationEndpoint
from chairlift.server.served_model import ServedModel


class ChatCompletions(GenerationEndpoint):
    """The endpoint."""

    name = "chat"

    async def _read(
        self, engine: AsyncEngine, served: ServedModel, exchange: Exchange, receive: Receive
    ) -> Job:
        serving = self._serving
        limits = BodyLimits.of_one_text(serving.config.max_body_size, served.max_prompt_chars)
        id = new_id("chatcmpl")
        async with read_body(serving, exchange, receive, limits, chat_request) as request:
            work = await chat_work(serving, engine, served, exchange, request, receive, id=id)
        return work.job(
            ChatFormat(
                work,
                served,
                id=id,
                created=int(time.time()),
                has_timings=serving.config.usage_timings,
            )
        )
