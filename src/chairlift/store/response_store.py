"""Responses and their items: who may see them, how they follow each other, when they go.

Nobody sees what another tenant has stored.  What is older than the retention is not there any more,
and when the file is full, the oldest goes first.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chairlift.store.database import Database

MAX_CHAIN = 512
"""Responses that may follow each other."""
UNFINISHED = ("queued", "in_progress")
_PURGE_S = 60.0
_PURGED_AT_ONCE = 8
_FREED_PAGES = 4096


@dataclass(frozen=True, slots=True)
class StoredItem:
    """One item of an input or an output."""

    id: str
    item: str
    """JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response as it is kept."""

    id: str
    tenant: str
    status: str
    created_at: float
    """Seconds since 1970."""
    previous_id: str | None
    body: str
    """The response as JSON, its output left empty."""
    input: Sequence[StoredItem]
    """What the request brought along."""
    output: Sequence[StoredItem] = ()

    @property
    def num_chars(self) -> int:
        return sum(len(each.item) for each in (*self.input, *self.output))


@dataclass(frozen=True, slots=True)
class ItemPage:
    """Some of a response's input."""

    items: tuple[StoredItem, ...]
    has_more: bool


class ChainError(Exception):
    """A response that nothing can follow."""


class MissingResponse(ChainError):
    """It, or one before it, is not there for this tenant."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.id = id


class UnfinishedResponse(ChainError):
    """It is still being made."""


class ChainTooLong(ChainError):
    """Too many follow each other already, or they are too large together."""


class ResponseStore:
    """All methods but `close` belong to an event loop; none of them keeps it waiting."""

    def __init__(
        self,
        path: Path | None,
        *,
        retention_s: float,
        max_bytes: int,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`path` None: in memory.  Raises `ConfigError` if the file cannot be used."""
        self._database = Database(path)
        self._retention_s = retention_s
        self._max_bytes = max_bytes
        self._now = now
        self._purged_at: float | None = None

    def close(self) -> None:
        self._database.close()

    def end_unfinished(self, error: Mapping[str, Any]) -> int:
        """Fail what an earlier process left undone, unless another one is at work on this file.

        How many there were.
        """

        def query(connection: sqlite3.Connection) -> int:
            rows = connection.execute(
                "SELECT id, body FROM responses WHERE status IN (?, ?)", UNFINISHED
            ).fetchall()
            for id, body in rows:
                failed = json.loads(body) | {"status": "failed", "error": dict(error)}
                connection.execute(
                    "UPDATE responses SET status = 'failed', body = ? WHERE id = ?",
                    (json.dumps(failed, ensure_ascii=False), id),
                )
            return len(rows)

        return self._database.take_over(query) or 0

    # -- one response ------------------------------------------------------------------------
    async def add(self, response: StoredResponse) -> None:
        """It is on the disk when this returns."""

        def query(connection: sqlite3.Connection) -> None:
            _insert(connection, response)
            self._purge(connection)

        await self._database.write(query)

    async def finish(self, response: StoredResponse) -> bool:
        """Replace one that is unfinished; False if it is not there any more, or has ended."""

        def query(connection: sqlite3.Connection) -> bool:
            found = connection.execute(
                "SELECT 1 FROM responses WHERE id = ? AND tenant = ? AND status IN (?, ?)",
                (response.id, response.tenant, *UNFINISHED),
            ).fetchone()
            if found is None:
                return False
            connection.execute("DELETE FROM responses WHERE id = ?", (response.id,))
            _insert(connection, response)
            self._purge(connection)
            return True

        return await self._database.write(query)

    async def get(self, id: str, tenant: str) -> StoredResponse | None:
        """With its output; its input is left out."""
        oldest = self._oldest

        def query(connection: sqlite3.Connection) -> StoredResponse | None:
            row = connection.execute(
                "SELECT status, created_at, previous_id, body FROM responses"
                " WHERE id = ? AND tenant = ? AND created_at >= ?",
                (id, tenant, oldest),
            ).fetchone()
            if row is None:
                return None
            output = connection.execute(
                "SELECT id, item FROM response_items WHERE response_id = ? AND is_output = 1"
                " ORDER BY place",
                (id,),
            ).fetchall()
            return StoredResponse(
                id=id,
                tenant=tenant,
                status=row[0],
                created_at=row[1],
                previous_id=row[2],
                body=row[3],
                input=(),
                output=tuple(StoredItem(*each) for each in output),
            )

        return await self._database.read(query)

    async def delete(self, id: str, tenant: str) -> bool:
        """False if it is not there."""
        oldest = self._oldest

        def query(connection: sqlite3.Connection) -> bool:
            done = connection.execute(
                "DELETE FROM responses WHERE id = ? AND tenant = ? AND created_at >= ?",
                (id, tenant, oldest),
            )
            _give_back_pages(connection)
            return done.rowcount > 0

        return await self._database.write(query)

    # -- items -------------------------------------------------------------------------------
    async def input_items(
        self, id: str, tenant: str, *, after: str | None, limit: int, is_descending: bool
    ) -> ItemPage | None:
        """None if there is no such response; raises KeyError if it has no item `after`."""
        oldest = self._oldest
        direction, step = ("DESC", "<") if is_descending else ("ASC", ">")

        def query(connection: sqlite3.Connection) -> ItemPage | None:
            if not _exists(connection, id, tenant, oldest):
                return None
            start, condition = 0, "1"
            if after is not None:
                start = _place(connection, id, after)
                condition = f"place {step} ?"
            rows = connection.execute(
                "SELECT id, item FROM response_items WHERE response_id = ? AND is_output = 0"
                f" AND {condition} ORDER BY place {direction} LIMIT ?",
                (id, *((start,) if after is not None else ()), limit + 1),
            ).fetchall()
            items = tuple(StoredItem(*row) for row in rows[:limit])
            return ItemPage(items, has_more=len(rows) > limit)

        return await self._database.read(query)

    async def item(self, id: str, tenant: str) -> str | None:
        """Any response's item by its own id, as JSON."""
        oldest = self._oldest

        def query(connection: sqlite3.Connection) -> str | None:
            row = connection.execute(
                "SELECT item FROM response_items JOIN responses ON responses.id = response_id"
                " WHERE response_items.id = ? AND tenant = ? AND created_at >= ?"
                " ORDER BY created_at DESC LIMIT 1",
                (id, tenant, oldest),
            ).fetchone()
            return None if row is None else str(row[0])

        return await self._database.read(query)

    async def chain(self, id: str, tenant: str, *, max_chars: int) -> list[str]:
        """Items of a response and of all before it, as JSON, oldest first.  Raises `ChainError`."""
        oldest = self._oldest

        def query(connection: sqlite3.Connection) -> list[str]:
            rows = connection.execute(
                """
                WITH RECURSIVE chain (id, previous_id, status, num_chars, depth) AS (
                    SELECT id, previous_id, status, num_chars, 1 FROM responses
                    WHERE id = :id AND tenant = :tenant AND created_at >= :oldest
                    UNION ALL
                    SELECT r.id, r.previous_id, r.status, r.num_chars, depth + 1
                    FROM chain JOIN responses AS r ON r.id = chain.previous_id
                    WHERE tenant = :tenant AND created_at >= :oldest AND depth < :max_depth
                )
                SELECT id, previous_id, status, num_chars FROM chain ORDER BY depth
                """,
                {"id": id, "tenant": tenant, "oldest": oldest, "max_depth": MAX_CHAIN},
            ).fetchall()
            if not rows:
                raise MissingResponse(id)
            if any(status in UNFINISHED for _, _, status, _ in rows):
                raise UnfinishedResponse
            if len(rows) >= MAX_CHAIN or sum(row[3] for row in rows) > max_chars:
                raise ChainTooLong
            if rows[-1][1] is not None:
                raise MissingResponse(rows[-1][1])
            return [item for row in reversed(rows) for item in _items(connection, row[0])]

        return await self._database.read(query)

    # -- what goes ---------------------------------------------------------------------------
    @property
    def _oldest(self) -> float:
        """What was made before has gone."""
        return self._now() - self._retention_s

    def _purge(self, connection: sqlite3.Connection) -> None:
        """In the writer's thread, within a transaction that has added something."""
        now = self._now()
        if self._purged_at is None or not 0 <= now - self._purged_at < _PURGE_S:
            self._purged_at = now
            connection.execute("DELETE FROM responses WHERE created_at < ?", (self._oldest,))
        while _num_bytes(connection) > self._max_bytes and _delete_oldest(connection):
            pass
        _give_back_pages(connection)


def _insert(connection: sqlite3.Connection, response: StoredResponse) -> None:
    connection.execute(
        "INSERT INTO responses (id, tenant, status, created_at, previous_id, num_chars, body)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            response.id,
            response.tenant,
            response.status,
            response.created_at,
            response.previous_id,
            response.num_chars,
            response.body,
        ),
    )
    connection.executemany(
        "INSERT INTO response_items (response_id, is_output, place, id, item)"
        " VALUES (?, ?, ?, ?, ?)",
        [
            (response.id, is_output, place, each.id, each.item)
            for is_output, items in enumerate((response.input, response.output))
            for place, each in enumerate(items)
        ],
    )


def _exists(connection: sqlite3.Connection, id: str, tenant: str, oldest: float) -> bool:
    found = connection.execute(
        "SELECT 1 FROM responses WHERE id = ? AND tenant = ? AND created_at >= ?",
        (id, tenant, oldest),
    )
    return found.fetchone() is not None


def _place(connection: sqlite3.Connection, response_id: str, item_id: str) -> int:
    row = connection.execute(
        "SELECT place FROM response_items WHERE response_id = ? AND is_output = 0 AND id = ?",
        (response_id, item_id),
    ).fetchone()
    if row is None:
        raise KeyError(item_id)
    return int(row[0])


def _items(connection: sqlite3.Connection, response_id: str) -> list[str]:
    rows = connection.execute(
        "SELECT item FROM response_items WHERE response_id = ? ORDER BY is_output, place",
        (response_id,),
    )
    return [str(row[0]) for row in rows]


def _delete_oldest(connection: sqlite3.Connection) -> bool:
    """Some that have ended, but never the newest; False if there are none."""
    done = connection.execute(
        "DELETE FROM responses WHERE id IN (SELECT id FROM responses WHERE status NOT IN (?, ?)"
        " AND created_at < (SELECT MAX(created_at) FROM responses) ORDER BY created_at LIMIT ?)",
        (*UNFINISHED, _PURGED_AT_ONCE),
    )
    return done.rowcount > 0


def _num_bytes(connection: sqlite3.Connection) -> int:
    """In use; pages that are free are not counted."""
    pages, free, size = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def _give_back_pages(connection: sqlite3.Connection) -> None:
    """To the file system; some at a time, for it takes a while."""
    free = int(connection.execute("PRAGMA freelist_count").fetchone()[0])
    for _ in range(min(free, _FREED_PAGES)):
        connection.execute("PRAGMA incremental_vacuum(1)")  # sqlite3 takes one step of it
