"""The tables of the store, as steps from one version to the next.

A file's `user_version` says how many steps it has had.  Steps that were released are never edited:
what changes is a further step.
"""

from __future__ import annotations

import sqlite3

APPLICATION_ID = 0x43484C46
"""Marks a file as ours: CHLF."""

_RESPONSES = (
    """
    CREATE TABLE responses (
        id TEXT PRIMARY KEY,
        tenant TEXT NOT NULL,
        status TEXT NOT NULL,
        created_at REAL NOT NULL,       -- seconds since 1970
        previous_id TEXT,
        num_chars INTEGER NOT NULL,     -- of its items
        body TEXT NOT NULL              -- the response as JSON, without its output
    )
    """,
    "CREATE INDEX responses_by_age ON responses (created_at)",
    """
    CREATE TABLE response_items (
        response_id TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE,
        is_output INTEGER NOT NULL,
        place INTEGER NOT NULL,
        id TEXT NOT NULL,
        item TEXT NOT NULL,             -- JSON
        PRIMARY KEY (response_id, is_output, place)
    )
    """,
    "CREATE INDEX response_items_by_id ON response_items (id)",
)

STEPS = (_RESPONSES,)


class UnknownVersion(Exception):
    """The file was written by a later version of the program."""


class ForeignFile(Exception):
    """A database, and none of ours."""


def check_ours(connection: sqlite3.Connection) -> None:
    """Before anything is changed.  Raises `ForeignFile`, `UnknownVersion` and `sqlite3.Error`."""
    is_ours = _pragma(connection, "application_id") == APPLICATION_ID
    if not is_ours and connection.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise ForeignFile
    if _pragma(connection, "user_version") > len(STEPS):
        raise UnknownVersion if is_ours else ForeignFile


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a file to the newest version, whole or not at all.  Raises `sqlite3.Error`."""
    connection.execute("BEGIN IMMEDIATE")  # another process may be about to do the same
    try:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for step in STEPS[_pragma(connection, "user_version") :]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(STEPS)}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
