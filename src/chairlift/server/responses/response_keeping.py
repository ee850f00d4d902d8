"""What of a response is kept, and when: before its client is told that it has ended."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from chairlift.errors import ConfigError
from chairlift.server.errors import ApiError
from chairlift.server.protocol.response import Response
from chairlift.server.protocol.response_items import KnownItem
from chairlift.server.responses.answer_format import ResponsesFormat
from chairlift.server.responses.output_items import new_item_id
from chairlift.server.server_config import ServerConfig
from chairlift.state_folder import state_folder
from chairlift.store.response_store import ResponseStore, StoredItem, StoredResponse

logger = logging.getLogger("chairlift")

_DAY_S = 86_400
_FILE_NAME = "store.sqlite"
_CUT_SHORT = {"code": "server_error", "message": "the server ended before the response did"}
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}


def open_store(config: ServerConfig) -> ResponseStore | None:
    """The store that the options ask for.  Raises `ConfigError` if it cannot be used.

    Where nothing was asked for and the state folder cannot be used, memory has to do.
    """
    if config.store == "none":
        return None
    limits: dict[str, Any] = {
        "retention_s": config.store_days * _DAY_S,
        "max_bytes": config.store_size,
    }
    if config.store == "memory":
        return ResponseStore(None, **limits)
    try:
        path = state_folder() / _FILE_NAME if config.store is None else Path(config.store)
        store = ResponseStore(path.expanduser(), **limits)
    except ConfigError as error:
        if config.store is not None:
            raise
        logger.warning("%s; responses are kept in memory, until the server ends", error)
        return ResponseStore(None, **limits)
    logger.info("responses are kept in %s for %g days", path, config.store_days)
    num_failed = store.end_unfinished(_CUT_SHORT)
    if num_failed:
        logger.warning("%d responses in the background were cut short", num_failed)
    return store


class ResponseKeeper:
    """Keeps one response, if it is to be kept."""

    def __init__(
        self,
        store: ResponseStore | None,
        format: ResponsesFormat,
        *,
        tenant: str,
        input: Sequence[StoredItem],
        is_background: bool,
    ) -> None:
        self._store = store
        self._format = format
        self._tenant = tenant
        self._input = input
        self._is_background = is_background
        self._has_failed = False

    async def announce(self, response: Response) -> None:
        """Keep a response that is still to be made.  Raises `ApiError` if it cannot be kept."""
        assert self._store is not None
        try:
            await self._store.add(self._record(response))
        except (sqlite3.Error, OSError) as error:
            raise _not_kept(response, error) from None

    async def withdraw(self, response: Response) -> None:
        """It will not be made after all."""
        assert self._store is not None
        await self._store.delete(response.id, self._tenant)

    async def keep(self) -> None:
        """It has ended.  Raises `ApiError`, once, if it cannot be kept."""
        final = self._format.final
        if self._store is None or final is None or self._has_failed:
            return
        try:
            if self._is_background:
                await self._store.finish(self._record(final))
            else:
                await self._store.add(self._record(final))
        except (sqlite3.Error, OSError) as error:
            self._has_failed = True
            raise _not_kept(final, error) from None

    def _record(self, response: Response) -> StoredResponse:
        return StoredResponse(
            id=response.id,
            tenant=self._tenant,
            status=response.status,
            created_at=response.created_at,
            previous_id=response.previous_response_id,
            body=response.model_copy(update={"output": []}).model_dump_json(),
            input=self._input,
            output=[StoredItem(item.id, item.model_dump_json()) for item in response.output],
        )


def _not_kept(response: Response, error: Exception) -> ApiError:
    logger.error("cannot keep response %s: %s", response.id, error)
    return ApiError(
        500,
        "the response could not be stored; store: false does without",
        type="server_error",
        code="store_failed",
    )


def stored_input(items: Sequence[KnownItem]) -> list[StoredItem]:
    """A request's items under names of their own."""
    seen: set[str] = set()
    stored = []
    for item in items:
        id = item.id
        if id is None or id in seen:
            id = new_item_id(_PREFIXES[item.type])
        seen.add(id)
        stored.append(StoredItem(id, json.dumps(item.stored(id), ensure_ascii=False)))
    return stored


def response_json(stored: StoredResponse) -> bytes:
    """A kept response as clients read it.  Takes a while if it is long."""
    body = from_json(stored.body)
    body["status"] = stored.status
    body["output"] = [from_json(each.item) for each in stored.output]
    return json.dumps(body, ensure_ascii=False).encode("utf-8")
