"""Where the database confirms no write, as a synchronous standby is away: who starts a broker or runs a
command reads what is waited for.
"""

from __future__ import annotations

import asyncio
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bench.postgres import Server

from clients.proxy import until
from coterie.storage.postgres import schema
from coterie.storage.postgres.connecting import DatabaseAddress, connect
from coterie.storage.postgres.starting import OpenedStore, open_store

from ..rigs.directories import Step, Writer
from .test_stopped_transfer import take_interrupts

pytestmark = pytest.mark.interop

WAITS = "&options=-c%20synchronous_commit%3Don"
NOT_CONFIRMED = "'s that the database has not confirmed for "
CONFIRM = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
"""Has the commits that wait end as if they were confirmed."""


@pytest.fixture
def empty(server: Server) -> DatabaseAddress:
    """Where a database without tables is."""
    return DatabaseAddress(server.url(server.new_database()))


def test_first_starts_say_that_the_tables_are_made_and_not_confirmed(
    empty: DatabaseAddress, caplog: pytest.LogCaptureFixture
):
    """Found by a breaker: their logs were empty for as long as the standby was away."""

    def told() -> int:
        return caplog.text.count(NOT_CONFIRMED)

    async def start() -> list[OpenedStore]:
        first = asyncio.create_task(open_store(DatabaseAddress(empty.url + WAITS), waiting=pytest.fail))
        await until(lambda: told() == 1)
        second = asyncio.create_task(open_store(empty, waiting=pytest.fail))
        await until(lambda: told() == 2)
        assert not first.done()
        assert not second.done()
        beside = await connect(empty)
        while not second.done():
            await beside.execute(CONFIRM)
            await asyncio.sleep(0.01)
        beside.terminate()
        return [await first, await second]

    first, second = asyncio.run(start())

    assert first.cluster_id == second.cluster_id


def test_a_first_start_waits_for_another_that_makes_the_roles_for_longer_than_a_lock_is_waited_for(
    server: Server, empty: DatabaseAddress, monkeypatch: pytest.MonkeyPatch
):
    """Found by a breaker: it ended with exit code 1 and `canceling statement due to lock timeout`, where the
    other's write waited for a standby.
    """
    monkeypatch.setattr(schema, "READER", "coterie_meanwhile")
    monkeypatch.setattr(schema, "LOCK_TIMEOUT_MS", 50)
    tries: list[object] = []
    monkeypatch.setattr("coterie.storage.postgres.starting.AGAIN_AFTER_S", 0.01)
    migrated = schema.migrate_over

    async def counted(*arguments: object, **words: object) -> object:
        tries.append(arguments)
        return await migrated(*arguments, **words)  # type: ignore[arg-type]

    monkeypatch.setattr("coterie.storage.postgres.starting.migrate_over", counted)

    async def behind_another() -> OpenedStore:
        faster = await connect(empty)
        await faster.execute("BEGIN; CREATE ROLE coterie_meanwhile NOLOGIN")
        starting = asyncio.create_task(open_store(empty, waiting=lambda _: None))
        await until(lambda: starting.done() or len(tries) > 2)
        await faster.execute("COMMIT")
        opened = await starting
        faster.terminate()
        return opened

    try:
        assert asyncio.run(behind_another()).cluster_id
    finally:
        server.sql("postgres", "DROP ROLE coterie_meanwhile")


@pytest.mark.parametrize("word", ["migrate", "load", "restored"])
def test_a_command_says_that_its_own_write_is_not_confirmed(
    word: str, server: Server, empty: DatabaseAddress, tmp_path: Path
):
    """Found by a breaker: it stood still without a word, and so it was when it was stopped."""
    name = empty.url.rpartition("/")[2].partition("?")[0]
    if word != "migrate":
        asyncio.run(schema.migrate(empty))
    writer = Writer(tmp_path / "data")
    writer.do(Step("append", 0, 4))
    writer.close()
    words = ("load", tmp_path / "data") if word == "load" else (word,)
    running = subprocess.Popen(
        [sys.executable, "-m", "coterie", "store", *map(str, words), empty.url + WAITS],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=take_interrupts,
    )
    assert running.stderr is not None

    assert select.select([running.stderr], [], [], 20)[0], running.kill()
    said = running.stderr.readline()

    assert said.startswith("this waits for a write of process ")
    assert NOT_CONFIRMED in said
    assert said.endswith("; it is made, and counts once that is over, even if this command is ended\n")
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=20)
    assert running.returncode == 130
    server.sql(name, CONFIRM)
    described = [sys.executable, "-m", "coterie", "store", "describe", empty.url]
    assert subprocess.run(described, check=False, capture_output=True).returncode == 0
