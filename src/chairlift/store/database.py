"""One SQLite file, a thread that writes to it and some that read.

Write-ahead logging lets reading go on beside writing; a write that has returned survives the end
of the process and of the machine.  Several processes may share a file.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TypeVar

from chairlift.errors import ConfigError
from chairlift.store.migrations import ForeignFile, UnknownVersion, check_ours, migrate

T = TypeVar("T")
Query = Callable[[sqlite3.Connection], T]

_NUM_READERS = 2
_BUSY_S = 30.0
"""How long a write waits for another process's."""


class Database:
    """Queries are functions of a connection; each write is one transaction."""

    def __init__(self, path: Path | None) -> None:
        """Open or create it; None: in memory, and gone with the process.

        Raises `ConfigError` if there is no such file and none can be made, or if it is not ours.
        """
        self._path = path
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._lock_files: list[IO[bytes]] = []
        self._writer = ThreadPoolExecutor(1, "chairlift-store")
        self._readers = (
            self._writer
            if path is None  # one connection is one database in memory
            else ThreadPoolExecutor(_NUM_READERS, "chairlift-store-reader")
        )
        self._close = weakref.finalize(
            self,
            _close_all,
            (self._readers, self._writer),
            self._connections,
            self._lock_files,
        )
        try:
            self._writer.submit(self._open).result()
        except (OSError, sqlite3.Error, UnknownVersion, ForeignFile) as error:
            self.close()
            raise ConfigError(
                f"cannot use the store {path}: {_reason(error)}", field="store"
            ) from None

    async def write(self, query: Query[T]) -> T:
        """Run a transaction; what it changed is on the disk when this returns.

        Raises `sqlite3.Error`.
        """
        return await self._run(self._writer, _in_transaction, query)

    async def read(self, query: Query[T]) -> T:
        return await self._run(self._readers, _plainly, query)

    def write_now(self, query: Query[T]) -> T:
        """The same as `write`, for a thread that may wait."""
        return self._writer.submit(lambda: _in_transaction(self._connection(), query)).result()

    def close(self) -> None:
        """After what has been asked for."""
        self._close()

    def take_over(self, query: Query[T]) -> T | None:
        """Run a transaction if no other process has the file open; what it gives, else None.

        Once; from then on this process is one that has it open.
        """
        assert not self._lock_files
        if self._path is None:
            return self.write_now(query)
        if sys.platform == "win32":
            return self.write_now(query)  # no such locks: there a file belongs to one process
        import fcntl

        lock = _private(self._path.with_name(self._path.name + "-lock")).open("ab")
        self._lock_files.append(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            fcntl.flock(lock, fcntl.LOCK_SH)
            return None
        result = self.write_now(query)
        fcntl.flock(lock, fcntl.LOCK_SH)
        return result

    async def _run(
        self,
        pool: ThreadPoolExecutor,
        how: Callable[[sqlite3.Connection, Query[T]], T],
        query: Query[T],
    ) -> T:
        loop = asyncio.get_running_loop()
        try:
            future = loop.run_in_executor(pool, lambda: how(self._connection(), query))
        except RuntimeError:
            raise sqlite3.ProgrammingError("the store is closed") from None
        return await future

    def _open(self) -> None:
        """In the writer's thread."""
        if self._path is not None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _private(self._path)
        migrate(self._connection())

    def _connection(self) -> sqlite3.Connection:
        """The calling thread's own."""
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found = sqlite3.connect(
                ":memory:" if self._path is None else self._path,
                timeout=_BUSY_S,
                isolation_level=None,
                check_same_thread=False,  # closed by another
            )
            self._connections.append(found)
            check_ours(found)
            found.execute("PRAGMA foreign_keys = ON")
            found.execute("PRAGMA auto_vacuum = INCREMENTAL")  # counts while the file is empty
            if self._path is not None:
                found.execute("PRAGMA journal_mode = WAL")
                found.execute("PRAGMA synchronous = FULL")
            self._local.connection = found
        return found


def _close_all(
    pools: Iterable[ThreadPoolExecutor],
    connections: Iterable[sqlite3.Connection],
    files: Iterable[IO[bytes]],
) -> None:
    for pool in pools:
        pool.shutdown()
    for connection in connections:
        connection.close()
    for file in files:
        file.close()


def _in_transaction(connection: sqlite3.Connection, query: Query[T]) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = query(connection)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
    return result


def _plainly(connection: sqlite3.Connection, query: Query[T]) -> T:
    """One state of the file for all of it."""
    connection.execute("BEGIN")
    try:
        return query(connection)
    finally:
        connection.execute("ROLLBACK")


def _private(path: Path) -> Path:
    """A file that nobody else may read; what SQLite puts beside it is as private."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    return path


def _reason(error: Exception) -> str:
    if isinstance(error, UnknownVersion):
        return "a later version of chairlift wrote it"
    if isinstance(error, ForeignFile):
        return "it is the database of another program"
    return getattr(error, "strerror", None) or str(error)
