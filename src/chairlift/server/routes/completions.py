"""POST /v1/completions."""

from __future__ import annotations

import time
from functools import partial

from starlette.types import Receive

from chairlift.engine.async_engine import AsyncEngine
from chairlift.server.completion_job import completion_request, completion_work
from chairlift.server.exchange import Exchange, new_id
from chairlift.server.generation import Job
from chairlift.server.json_body import BodyLimits
from chairlift.server.request_reading import read_body
from chairlift.server.routes.generation_endpoint import GenerationEndpoint
from chairlift.server.served_model import ServedModel
from chairlift.server.text_format import TextFormat


class Completions(GenerationEndpoint):
    """The endpoint."""

    name = "completions"

    async def _read(
        self, engine: AsyncEngine, served: ServedModel, exchange: Exchange, receive: Receive
    ) -> Job:
        serving = self._serving
        limits = BodyLimits.of_many_texts(
            serving.config.max_body_size,
            served.max_prompt_chars,
            max_list_values=max(served.max_model_len, served.vocab_size),
        )
        id = new_id("cmpl")
        understand = partial(completion_request, served=served)
        async with read_body(serving, exchange, receive, limits, understand) as request:
            work = await completion_work(serving, engine, served, exchange, request, receive, id=id)
        return work.job(
            TextFormat(
                request,
                served,
                id=id,
                created=int(time.time()),
                request_ids=[item.request_id for item in work.processed],
                has_timings=serving.config.usage_timings,
            )
        )
