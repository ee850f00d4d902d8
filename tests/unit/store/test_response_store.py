"""Responses in SQLite: tenants, chains, what goes, and what survives."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chairlift.errors import ConfigError
from chairlift.store.migrations import APPLICATION_ID, STEPS
from chairlift.store.response_store import (
    MAX_CHAIN,
    ChainTooLong,
    MissingResponse,
    ResponseStore,
    StoredItem,
    StoredResponse,
    UnfinishedResponse,
)

DAY_S = 86_400.0
Open = Callable[..., ResponseStore]


class Clock:
    def __init__(self) -> None:
        self.now_s = 1e9

    def __call__(self) -> float:
        return self.now_s


def response(
    id: str,
    tenant: str = "",
    *,
    status: str = "completed",
    created_at: float = 1e9,
    previous_id: str | None = None,
    num_input: int = 1,
    text: str = "said",
) -> StoredResponse:
    body = {"id": id, "status": status, "error": None, "output": []}
    return StoredResponse(
        id=id,
        tenant=tenant,
        status=status,
        created_at=created_at,
        previous_id=previous_id,
        body=json.dumps(body),
        input=[StoredItem(f"{id}-in{n}", json.dumps(f"asked {n}")) for n in range(num_input)],
        output=[StoredItem(f"{id}-out", json.dumps(text))],
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_store(clock: Clock) -> Iterator[Open]:
    opened: list[ResponseStore] = []

    def start(path: Path | None, *, days: float = 30, max_bytes: int = 2**30) -> ResponseStore:
        store = ResponseStore(path, retention_s=days * DAY_S, max_bytes=max_bytes, now=clock)
        opened.append(store)
        return store

    yield start
    for store in opened:
        store.close()


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, open_store: Open, tmp_path: Path) -> ResponseStore:
    return open_store(tmp_path / "folder" / "s.sqlite" if request.param == "file" else None)


async def test_what_is_added_is_there(store: ResponseStore) -> None:
    given = response("a", "me")
    await store.add(given)
    found = await store.get("a", "me")
    assert found is not None
    assert (found.body, tuple(found.output)) == (given.body, tuple(given.output))
    assert await store.get("b", "me") is None
    assert await store.item("a-out", "me") == '"said"'
    assert await store.delete("a", "me") and not await store.delete("a", "me")
    assert await store.get("a", "me") is None and await store.item("a-out", "me") is None


async def test_tenants_do_not_see_each_other(store: ResponseStore) -> None:
    await store.add(response("a", "me"))
    for stranger in ("", "you", "m", "me "):
        assert await store.get("a", stranger) is None
        assert await store.item("a-in0", stranger) is None
        assert not await store.delete("a", stranger)
        page = await store.input_items("a", stranger, after=None, limit=1, is_descending=True)
        assert page is None
        with pytest.raises(MissingResponse):
            await store.chain("a", stranger, max_chars=1000)
        assert not await store.finish(response("a", stranger))
        await store.add(response(f"x{stranger}", stranger, previous_id="a"))
        with pytest.raises(MissingResponse):
            await store.chain(f"x{stranger}", stranger, max_chars=1000)


async def test_a_chain_is_the_whole_conversation_in_order(store: ResponseStore) -> None:
    for number in range(4):
        before = f"r{number - 1}" if number else None
        await store.add(response(f"r{number}", previous_id=before, text=f"answer {number}"))
    items = [json.loads(item) for item in await store.chain("r3", "", max_chars=1000)]
    assert items == [each for n in range(4) for each in ("asked 0", f"answer {n}")]
    assert len(await store.chain("r1", "", max_chars=1000)) == 4
    with pytest.raises(ChainTooLong):
        await store.chain("r3", "", max_chars=20)
    await store.delete("r1", "")
    with pytest.raises(MissingResponse) as missing:
        await store.chain("r3", "", max_chars=1000)
    assert missing.value.id == "r1"


async def test_a_chain_has_an_end(store: ResponseStore) -> None:
    await store.add(response("own", previous_id="own"))
    with pytest.raises(ChainTooLong):
        await store.chain("own", "", max_chars=10**9)
    previous = None
    for number in range(MAX_CHAIN - 1):
        await store.add(response(f"r{number}", previous_id=previous))
        previous = f"r{number}"
    assert len(await store.chain(f"r{MAX_CHAIN - 2}", "", max_chars=10**9)) == 2 * (MAX_CHAIN - 1)
    await store.add(response("last", previous_id=previous))
    with pytest.raises(ChainTooLong):
        await store.chain("last", "", max_chars=10**9)


async def test_nothing_follows_what_has_not_ended(store: ResponseStore) -> None:
    await store.add(response("a", status="queued"))
    with pytest.raises(UnfinishedResponse):
        await store.chain("a", "", max_chars=1000)
    assert await store.finish(response("a", status="cancelled"))
    assert not await store.finish(response("a", status="completed")), "it has ended already"
    found = await store.get("a", "")
    assert found is not None and found.status == "cancelled"
    assert len(await store.chain("a", "", max_chars=1000)) == 2
    assert not await store.finish(response("b")), "it was never there"


async def test_input_items_come_in_pages(store: ResponseStore) -> None:
    await store.add(response("a", num_input=7))
    names = [f"a-in{number}" for number in range(7)]
    for is_descending in (False, True):
        expected = names[::-1] if is_descending else names
        seen: list[str] = []
        after = None
        while True:
            page = await store.input_items(
                "a", "", after=after, limit=3, is_descending=is_descending
            )
            assert page is not None
            seen += [item.id for item in page.items]
            if not page.has_more:
                break
            after = seen[-1]
        assert seen == expected
    with pytest.raises(KeyError):
        await store.input_items("a", "", after="a-out", limit=3, is_descending=False)


async def test_what_is_too_old_has_gone(open_store: Open, tmp_path: Path, clock: Clock) -> None:
    store = open_store(tmp_path / "s.sqlite", days=2)
    await store.add(response("a", created_at=clock.now_s))
    await store.add(response("b", created_at=clock.now_s + DAY_S, previous_id="a"))
    clock.now_s += 2.5 * DAY_S
    assert await store.get("a", "") is None and await store.get("b", "") is not None
    assert await store.item("a-out", "") is None and not await store.delete("a", "")
    with pytest.raises(MissingResponse):
        await store.chain("b", "", max_chars=1000)
    await store.add(response("c", created_at=clock.now_s))
    store.close()
    assert rows(tmp_path / "s.sqlite") == ["b", "c"]


async def test_the_oldest_makes_room(open_store: Open, tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    store = open_store(path, max_bytes=2**20)
    for number in range(60):
        await store.add(response(f"r{number:02}", text="x" * 50_000, created_at=1e9 + number))
    await store.add(response("large", text="x" * 2**21, created_at=2e9))
    assert await store.get("large", "") is not None, "what is new is never thrown away"
    await store.add(response("new", created_at=2e9 + 1))
    assert await store.get("large", "") is None and await store.get("new", "") is not None
    store.close()
    assert rows(path) == ["new"]
    assert path.stat().st_size < 2**20


async def test_room_is_made_a_little_at_a_time(open_store: Open, tmp_path: Path) -> None:
    store = open_store(tmp_path / "s.sqlite", max_bytes=2**20)
    await store.add(response("busy", status="queued", created_at=1.2e9 - 1e9 + 1e9))
    for number in range(60):
        await store.add(response(f"r{number:02}", text="x" * 50_000, created_at=1.3e9 + number))
    store.close()
    kept = rows(tmp_path / "s.sqlite")
    assert kept[0] == "busy" and kept[-1] == "r59" and 8 <= len(kept) <= 21


def rows(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return [row[0] for row in connection.execute("SELECT id FROM responses ORDER BY id")]
    finally:
        connection.close()


# -- the file ----------------------------------------------------------------------------------
async def test_a_file_is_private_and_survives(open_store: Open, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder" / "s.sqlite"
    store = open_store(path)
    await store.add(response("a"))
    for each in path.parent.iterdir():
        assert stat.S_IMODE(each.stat().st_mode) & 0o077 == 0, each
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    other = open_store(path)
    assert await other.get("a", "") is not None, "a second process sees it at once"
    store.close()
    other.close()
    again = open_store(path)
    assert await again.get("a", "") is not None


def test_files_that_are_not_ours_stay_as_they_are(open_store: Open, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.sqlite"
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE bookmarks (url)")
    connection.commit()
    connection.close()
    text = tmp_path / "text"
    text.write_text("no database at all, but long enough to be looked at " * 100)
    for path, reason in ((foreign, "another program"), (text, "not a database")):
        before = path.read_bytes()
        with pytest.raises(ConfigError, match=reason) as error:
            open_store(path)
        assert error.value.field == "store" and path.read_bytes() == before
    with pytest.raises(ConfigError, match="cannot use the store"):
        open_store(tmp_path)
    with pytest.raises(ConfigError, match="cannot use the store"):
        open_store(text / "below" / "a" / "file")


def test_a_file_of_a_later_version_is_refused(open_store: Open, tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    open_store(path).close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(STEPS),)
    connection.execute(f"PRAGMA user_version = {len(STEPS) + 1}")
    connection.close()
    with pytest.raises(ConfigError, match="later version"):
        open_store(path)


async def test_a_file_of_an_earlier_version_is_brought_up_to_date(
    open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.sqlite"
    first = open_store(path)
    await first.add(response("a"))
    first.close()
    more = (*STEPS, ("CREATE TABLE later (id)", "INSERT INTO later VALUES (7)"))
    monkeypatch.setattr("chairlift.store.migrations.STEPS", more)
    second = open_store(path)
    assert await second.get("a", "") is not None
    second.close()
    broken = (*more, ("CREATE TABLE half (id)", "this is no SQL"))
    monkeypatch.setattr("chairlift.store.migrations.STEPS", broken)
    with pytest.raises(ConfigError, match="syntax"):
        open_store(path)
    connection = sqlite3.connect(path)
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    assert "later" in tables and "half" not in tables
    assert connection.execute("PRAGMA user_version").fetchone() == (len(more),)
    connection.close()


WRITER = """
import asyncio, json, sys
from pathlib import Path
from chairlift.store.response_store import ResponseStore, StoredItem, StoredResponse

async def main():
    store = ResponseStore(Path(sys.argv[1]), retention_s=1e12, max_bytes=2**40)
    store.end_unfinished({})
    for number in range(10**6):
        await store.add(StoredResponse(
            id=f"r{number:06}", tenant="", status="in_progress" if number % 3 else "completed",
            created_at=1e9 + number, previous_id=None, body=json.dumps({"n": number}),
            input=[StoredItem("i", '"x"')] * 0 + [StoredItem(f"i{number}", json.dumps("y" * 5000))],
        ))
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="processes are killed by signal here")
async def test_a_killed_process_loses_nothing_it_has_said(open_store: Open, tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    for _ in range(3):
        path.unlink(missing_ok=True)
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            said = [int(writer.stdout.readline()) for _ in range(20)]
            store = open_store(path)
            assert store.end_unfinished({"code": "x"}) == 0, "its owner is alive"
            store.close()
            os.kill(writer.pid, signal.SIGKILL)
            said += [int(line) for line in writer.stdout]
        kept = rows(path)
        assert len(kept) >= len(said) and kept == [f"r{n:06}" for n in range(len(kept))]
        store = open_store(path)
        num_open = sum(bool(n % 3) for n in range(len(kept)))
        assert store.end_unfinished({"code": "x"}) == num_open
        found = await store.get("r000001", "")
        assert found is not None and found.status == "failed"
        assert json.loads(found.body) == {"n": 1, "status": "failed", "error": {"code": "x"}}
        untouched = await store.get("r000000", "")
        assert untouched is not None and json.loads(untouched.body) == {"n": 0}
        store.close()
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
