"""/v1/responses: making responses, and what is kept of them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from urllib.parse import parse_qsl

from pydantic_core import from_json
from starlette.types import Receive, Scope, Send

from chairlift.engine.async_engine import AsyncEngine
from chairlift.server.errors import (
    ApiError,
    bad_request,
    internal_error,
    not_found,
    unsupported,
)
from chairlift.server.exchange import Exchange, exchange_of
from chairlift.server.generation import answer
from chairlift.server.json_body import BodyLimits
from chairlift.server.plain_answer import JSON, send_bytes, send_model
from chairlift.server.protocol.response import DeletedResponse, ResponseItemList
from chairlift.server.protocol.response_request import responses_request
from chairlift.server.request_reading import LARGE_BODY_BYTES, read_body
from chairlift.server.responses.background_runs import never_gone, send_to_nobody
from chairlift.server.responses.response_keeping import response_json
from chairlift.server.responses.response_work import ResponseWork, response_work
from chairlift.server.served_model import ServedModel
from chairlift.server.serving import Serving
from chairlift.server.wire import OPENAI
from chairlift.store.response_store import StoredResponse

logger = logging.getLogger("chairlift")

MAX_LISTED = 100
_DEFAULT_LISTED = 20


class Responses:
    """POST /v1/responses."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serving, exchange = self._serving, exchange_of(scope)
        exchange.endpoint = "responses"
        engine, served = serving.engine()
        serving.admission.check_open(exchange.key_name)
        with serving.lifecycle.in_flight():
            work = await self._read(engine, served, exchange, receive)
            if work.response.background:
                await self._start(engine, exchange, work, send)
                return
            exchange.wire = work.format
            try:
                with work.names.told():
                    await answer(serving, engine, exchange, work.job, receive, send)
            finally:
                exchange.wire = OPENAI  # an idle connection keeps its last exchange

    async def _read(
        self, engine: AsyncEngine, served: ServedModel, exchange: Exchange, receive: Receive
    ) -> ResponseWork:
        """What is to be done; the request's text itself is let go."""
        serving = self._serving
        limits = BodyLimits.of_one_text(serving.config.max_body_size, served.max_prompt_chars)
        async with read_body(serving, exchange, receive, limits, responses_request) as request:
            return await response_work(serving, engine, served, exchange, request, receive)

    async def _start(
        self, engine: AsyncEngine, exchange: Exchange, work: ResponseWork, send: Send
    ) -> None:
        """Answer, and leave the work to a task of its own."""
        response, refusals = work.response, list[ApiError]()
        is_started = False

        async def run() -> None:
            own = replace(exchange, outputs=())
            with self._serving.lifecycle.in_flight():
                try:
                    await answer(self._serving, engine, own, work.job, never_gone, send_to_nobody)
                except ApiError as error:
                    if is_started:
                        await self._end(work, error)
                    else:
                        refusals.append(error)
                except asyncio.CancelledError:
                    await self._end(work, None)
                except Exception:
                    logger.exception("response %s failed in the background", response.id)
                    await self._end(work, internal_error(exchange.request_id))

        await work.keeper.announce(response)
        tenant = self._serving.keys.tenant(exchange.key_name)
        self._serving.background.start(response.id, tenant, run)
        await asyncio.sleep(0)  # the queue says at once whether there is room
        is_started = True
        if refusals:
            await work.keeper.withdraw(response)
            raise refusals[0]
        await send_model(send, response)

    async def _end(self, work: ResponseWork, error: ApiError | None) -> None:
        """Keep a response that failed or, without an error, was cancelled."""
        work.format.ended_early("cancelled" if error is None else "failed", error)
        try:
            await work.keeper.keep()
        except ApiError as failure:
            logger.error("response %s: %s", work.response.id, failure.message)


class _Kept:
    """What the endpoints of kept responses share."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def _find(self, id: str, tenant: str) -> StoredResponse:
        """Raises `ApiError` 404."""
        store = self._serving.store
        found = None if store is None else await store.get(id, tenant)
        if found is None:
            raise self._missing(id)
        return found

    async def _send(self, send: Send, stored: StoredResponse) -> None:
        if stored.num_chars + len(stored.body) < LARGE_BODY_BYTES:
            data = response_json(stored)
        else:
            data = await self._serving.in_text_thread(response_json, stored)
        await send_bytes(send, 200, data, [JSON])

    def _missing(self, id: str) -> ApiError:
        return not_found(f"there is no response {id[:100]!r}", code="response_not_found")

    def _enter(self, scope: Scope) -> tuple[Exchange, str, str]:
        """The exchange, the response's id and whose it must be."""
        exchange = exchange_of(scope)
        exchange.endpoint = "stored_responses"
        id: str = scope["path_params"]["id"]
        return exchange, id, self._serving.keys.tenant(exchange.key_name)


class OneResponse(_Kept):
    """GET and DELETE /v1/responses/{id}."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange, id, tenant = self._enter(scope)
        if scope["method"] == "DELETE":
            await self._serving.background.cancel(id, tenant)
            store = self._serving.store
            if store is None or not await store.delete(id, tenant):
                raise self._missing(id)
            await send_model(send, DeletedResponse(id=id))
            return
        options = _query(scope)
        if options.pop("stream", "false") not in ("false", "0"):
            raise unsupported("stream", "stream: a kept response comes whole")
        _name_ignored(exchange, options)
        found = await self._find(id, tenant)
        if found.status == "queued" and self._serving.background.is_running(id, tenant):
            found = replace(found, status="in_progress")
        await self._send(send, found)


class CancelResponse(_Kept):
    """POST /v1/responses/{id}/cancel."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _, id, tenant = self._enter(scope)
        is_cancelled = await self._serving.background.cancel(id, tenant)
        found = await self._find(id, tenant)
        if not is_cancelled and not from_json(found.body)["background"]:
            raise bad_request("only a response in the background can be cancelled")
        await self._send(send, found)


class InputItems(_Kept):
    """GET /v1/responses/{id}/input_items."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange, id, tenant = self._enter(scope)
        options = _query(scope)
        order = options.pop("order", "desc")
        if order not in ("asc", "desc"):
            raise bad_request("order must be asc or desc", param="order")
        limit = options.pop("limit", str(_DEFAULT_LISTED))
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MAX_LISTED):
            raise bad_request(f"limit must be between 1 and {MAX_LISTED}", param="limit")
        after = options.pop("after", None)
        _name_ignored(exchange, options)
        store = self._serving.store
        try:
            page = (
                None
                if store is None
                else await store.input_items(
                    id, tenant, after=after, limit=int(limit), is_descending=order == "desc"
                )
            )
        except KeyError:
            raise bad_request(
                f"after: this response has no item {str(after)[:100]!r}", param="after"
            ) from None
        if page is None:
            raise self._missing(id)
        ids = [item.id for item in page.items]
        shape = ResponseItemList(
            data=[],
            first_id=ids[0] if ids else None,
            last_id=ids[-1] if ids else None,
            has_more=page.has_more,
        )
        shown = ",".join(item.item for item in page.items)
        body = shape.model_dump_json().replace('"data":[]', f'"data":[{shown}]', 1)
        await send_bytes(send, 200, body.encode("utf-8"), [JSON])


def _query(scope: Scope) -> dict[str, str]:
    """The last of each name."""
    return dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))


def _name_ignored(exchange: Exchange, options: dict[str, str]) -> None:
    exchange.ignored = list(options)
