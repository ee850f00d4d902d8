"""From a request for a response to the engine's work for it, by way of a chat."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic_core import from_json
from starlette.types import Receive

from chairlift.engine.async_engine import AsyncEngine
from chairlift.server.chat_job import ChatWork, chat_request, chat_work
from chairlift.server.errors import ApiError, bad_request, not_found
from chairlift.server.exchange import Exchange
from chairlift.server.field_names import FieldNames
from chairlift.server.generation import Job
from chairlift.server.json_body import MAX_BYTES_PER_CHARACTER, MAX_OTHER_BYTES, JsonObject
from chairlift.server.protocol.response import Response
from chairlift.server.protocol.response_items import (
    InputItem,
    ItemReference,
    KnownItem,
    parse_item,
)
from chairlift.server.protocol.response_request import ResponsesRequest
from chairlift.server.request_reading import LARGE_BODY_BYTES
from chairlift.server.responses.answer_format import ResponsesFormat
from chairlift.server.responses.chat_body import (
    ToolPlan,
    chat_body,
    plan_tools,
)
from chairlift.server.responses.output_items import new_response_id
from chairlift.server.responses.response_keeping import ResponseKeeper, stored_input
from chairlift.server.served_model import ServedModel
from chairlift.server.serving import Serving
from chairlift.server.translation import Translation, book_ignored
from chairlift.store.response_store import (
    ChainError,
    ChainTooLong,
    MissingResponse,
)

T = TypeVar("T")

_MANY_ITEMS = 64
_TOO_LONG = "context_length_exceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseWork:
    """A request for a response that has been understood and tokenized."""

    job: Job
    format: ResponsesFormat
    keeper: ResponseKeeper
    response: Response
    """As it is before anything has been said."""
    names: FieldNames
    """Of the chat that it has become."""


async def response_work(
    serving: Serving,
    engine: AsyncEngine,
    served: ServedModel,
    exchange: Exchange,
    request: ResponsesRequest,
    receive: Receive,
) -> ResponseWork:
    """Raises `ApiError` and `ClientClosed`."""
    served.check_name(request.model)
    tenant = serving.keys.tenant(exchange.key_name)
    _check_store(serving, request)
    plan = plan_tools(request)
    own = await _resolved(serving, tenant, request.items)
    before = await _items_before(serving, served, tenant, request)
    items = [*before, *own]
    is_large = _is_large(exchange, items)
    id = new_response_id()

    async def attempt(chat: JsonObject) -> ChatWork:
        understood = await _off_loop(serving, is_large, chat_request, chat)
        return await chat_work(serving, engine, served, exchange, understood, receive, id=id)

    names = plan.field_names
    with names.told():
        body = await _off_loop(serving, is_large, chat_body, request, items, plan)
        work = await _fitting(body, attempt, may_drop=request.truncation == "auto")
    ignored = _without_effect(serving, request, plan)
    book_ignored(serving, exchange, Translation(body=body, names=names, ignored=ignored))
    response = _response(serving, served, request, work, plan, id)
    format = ResponsesFormat(
        response,
        new_reader=work.new_reader,
        tokenizer=served.tokenizer,
        num_logprobs=work.request.num_logprobs,
        has_summary=request.summary is not None,
        has_timings=serving.config.usage_timings,
        num_reasoning_tokens=lambda output: work.num_reasoning_tokens(served, [output]),
    )
    keeper = ResponseKeeper(
        serving.store if response.store else None,
        format,
        tenant=tenant,
        input=await _off_loop(serving, is_large, stored_input, own) if response.store else (),
        is_background=request.background,
    )
    job = replace(work.job(format), before_end=keeper.keep)
    return ResponseWork(job=job, format=format, keeper=keeper, response=response, names=names)


def _is_large(exchange: Exchange, items: Sequence[KnownItem]) -> bool:
    length = exchange.headers.get(b"content-length", b"")
    is_long = not length.isdigit() or int(length[:20]) > LARGE_BODY_BYTES
    return is_long or len(items) > _MANY_ITEMS


# -- the conversation --------------------------------------------------------------------------
def _check_store(serving: Serving, request: ResponsesRequest) -> None:
    if serving.store is not None:
        return
    if request.background:
        raise bad_request("background: this server keeps no responses", param="background")
    if request.previous_response_id is not None:
        raise _previous_not_found(request.previous_response_id)


async def _resolved(serving: Serving, tenant: str, items: Sequence[InputItem]) -> list[KnownItem]:
    """The items with those in place that they refer to."""
    found: list[KnownItem] = []
    for index, item in enumerate(items):
        if isinstance(item, ItemReference):
            stored = None if serving.store is None else await serving.store.item(item.id, tenant)
            if stored is None:
                raise not_found(
                    f"input[{index}]: there is no item {item.id!r}",
                    code="item_not_found",
                    param=f"input[{index}].id",
                )
            item = parse_item(from_json(stored), f"input[{index}]")
        assert not isinstance(item, ItemReference)
        found.append(item)
    return found


async def _items_before(
    serving: Serving, served: ServedModel, tenant: str, request: ResponsesRequest
) -> list[KnownItem]:
    """Items of the responses that this one follows."""
    id = request.previous_response_id
    if id is None or serving.store is None:
        return []
    max_chars = MAX_BYTES_PER_CHARACTER * served.max_prompt_chars + MAX_OTHER_BYTES
    try:
        stored = await serving.store.chain(id, tenant, max_chars=max_chars)
    except MissingResponse as error:
        raise _previous_not_found(error.id) from None
    except ChainTooLong:
        raise bad_request(
            "the conversation before this response is too long",
            param="previous_response_id",
            code=_TOO_LONG,
        ) from None
    except ChainError:
        raise bad_request(
            f"the response {id!r} has not ended yet", param="previous_response_id"
        ) from None
    return await _off_loop(serving, len(stored) > _MANY_ITEMS, _parsed, stored)


def _parsed(stored: Sequence[str]) -> list[KnownItem]:
    items = [parse_item(from_json(each), "previous_response_id") for each in stored]
    return [item for item in items if not isinstance(item, ItemReference)]


async def _off_loop(
    serving: Serving, is_large: bool, function: Callable[..., T], *arguments: Any
) -> T:
    """What takes long must not keep the event loop waiting; what does not need not wait itself."""
    if is_large:
        return await serving.in_text_thread(function, *arguments)
    return function(*arguments)


def _previous_not_found(id: str) -> ApiError:
    return not_found(
        f"there is no response {id!r} that this one could follow",
        code="previous_response_not_found",
        param="previous_response_id",
    )


# -- the chat ----------------------------------------------------------------------------------
async def _fitting(
    body: JsonObject, attempt: Callable[[JsonObject], Awaitable[ChatWork]], *, may_drop: bool
) -> ChatWork:
    """The chat, if it may be without the oldest turns: as few as it takes to fit."""

    def without(num_dropped: int) -> JsonObject:
        return {**body, "messages": _without(body["messages"], num_dropped)}

    try:
        return await attempt(body)
    except ApiError as error:
        fewest, most = 1, len(_turn_starts(body["messages"])) - 1
        if not may_drop or error.code != _TOO_LONG or most < fewest:
            raise
    found = await attempt(without(most))
    while fewest < most:
        middle = (fewest + most) // 2
        try:
            found, most = await attempt(without(middle)), middle
        except ApiError as error:
            if error.code != _TOO_LONG:
                raise
            fewest = middle + 1
    return found


def _turn_starts(messages: Sequence[JsonObject]) -> list[int]:
    """Where somebody else than the model speaks after the instructions."""
    return [place for place, message in enumerate(messages) if message["role"] == "user"]


def _without(messages: list[JsonObject], num_turns: int) -> list[JsonObject]:
    """The instructions, and what is left without the first turns."""
    is_instructed = messages[0]["role"] in ("system", "developer")
    return messages[:is_instructed] + messages[_turn_starts(messages)[num_turns] :]


def _without_effect(serving: Serving, request: ResponsesRequest, plan: ToolPlan) -> list[str]:
    """Fields that change nothing.  Raises `ApiError` where that is refused."""
    names = list(request.without_effect())
    names += [f"tools.{kind}" for kind in plan.skipped]
    if serving.store is None and request.store:
        names.append("store")
    if names and serving.config.strict_fields:
        raise bad_request(
            f"{names[0][:100]} is unknown or without effect, and this server is strict about that",
            param=names[0][:100],
            code="unknown_parameter",
        )
    return names


# -- the answer --------------------------------------------------------------------------------
def _response(
    serving: Serving,
    served: ServedModel,
    request: ResponsesRequest,
    work: ChatWork,
    plan: ToolPlan,
    id: str,
) -> Response:
    params = work.processed.params
    effort = request.reasoning.effort if request.reasoning is not None else None
    return Response(
        id=id,
        created_at=int(time.time()),
        status="queued" if request.background else "in_progress",
        background=request.background,
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        model=served.names[0],
        parallel_tool_calls=request.parallel_tool_calls,
        previous_response_id=request.previous_response_id,
        prompt_cache_key=request.prompt_cache_key,
        reasoning={"effort": effort, "summary": request.summary},
        safety_identifier=request.safety_identifier,
        store=serving.store is not None and request.store is not False,
        temperature=params.temperature,
        text=_text_options(request),
        tool_choice=request.tool_choice,
        tools=[_tool(tool) for tool in plan.tools],
        top_logprobs=request.top_logprobs or 0,
        top_p=params.top_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        truncation=request.truncation,
        user=request.user,
        metadata=request.metadata or {},
    )


def _text_options(request: ResponsesRequest) -> dict[str, Any]:
    text = request.format
    format: dict[str, Any] = {"type": text.type}
    if text.type == "json_schema":
        format |= {
            "name": text.name,
            "schema": text.schema_,
            "description": text.description,
            "strict": text.strict,
        }
    verbosity = request.text.verbosity if request.text is not None else None
    return {"format": format, "verbosity": verbosity or "medium"}


def _tool(tool: JsonObject) -> JsonObject:
    """A function with all keys that clients expect."""
    return {"description": None, "parameters": None, "strict": None, **tool}
