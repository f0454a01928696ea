"""`coterie store` behind somebody's lock: each command ends in time, with a sentence about who keeps it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.postgres import Server

from coterie.storage.postgres import advice, blocking
from coterie.storage.postgres.advice import connected
from coterie.storage.postgres.blocking import LockWatch
from coterie.storage.postgres.connecting import Connections, DatabaseAddress, connect
from coterie.storage.postgres.serial import Connection

from ..rigs.directories import Step, Writer

pytestmark = pytest.mark.interop

TABLES = ("cluster", "topics")


async def locked(address: DatabaseAddress, table: str) -> Connection:
    """Return a connection that keeps a lock on a table."""
    holder = await connect(address, use="by hand")
    await holder.execute(f"BEGIN; LOCK TABLE coterie.{table}")
    return holder


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest, address: DatabaseAddress) -> Iterator[str]:
    """A table that somebody keeps a lock on."""
    with asyncio.Runner() as runner:
        holder = runner.run(locked(address, request.param))
        yield request.param
        holder.terminate()


def test_a_command_that_waits_for_a_lock_in_vain_says_who_keeps_it_and_what_to_do(
    table: str, server: Server, address: DatabaseAddress, database: str, tmp_path: Path
):
    """Found by a breaker: dump said that a statement was canceled due to lock timeout, or waited for ever."""
    writer = Writer(tmp_path / "data")
    writer.do(Step("append", 0, 4))
    writer.close()
    commands = [("dump", address.url, tmp_path / "there"), ("load", tmp_path / "data", address.url)]
    if table == "cluster":
        commands += [("describe", address.url), ("restored", address.url), ("migrate", address.url)]
    began_s = time.monotonic()

    running = [
        subprocess.Popen(
            [sys.executable, "-m", "coterie", "store", *map(str, words)], stderr=subprocess.PIPE, text=True
        )
        for words in commands
    ]
    said = [one.communicate(timeout=60)[1] for one in running]

    holder = server.sql(
        database, "SELECT DISTINCT pid FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted"
    )
    for words, line in zip(commands, said, strict=True):
        assert f"this has waited in vain for a lock on coterie.{table} that somebody keeps: process" in line
        assert f"process {holder} (coterie: by hand, user postgres, idle in transaction, for " in line, words
        assert line.endswith("run it again once that is over, or ended by pg_terminate_backend\n")
        assert line.count("\n") == 1
    assert [one.returncode for one in running] == [1] * len(running)
    assert time.monotonic() - began_s < 40


def test_it_is_looked_over_one_connection_whatever_a_command_takes(
    server: Server, address: DatabaseAddress, database: str, monkeypatch: pytest.MonkeyPatch
):
    """Found by a reviewer: a dump of half an hour opened 900."""
    looking = "FROM pg_stat_activity WHERE application_name LIKE '%who keeps a lock'"
    opened, looks = list[int](), asyncio.Queue[int]()

    class Counted(Connections):
        async def connect(self, **how: Any) -> Connection:
            connection = await super().connect(**how)
            opened.append(connection.get_server_pid())
            return connection

    class Counting(LockWatch):
        def look(self, pid: int) -> None:
            looks.put_nowait(pid)
            super().look(pid)

    async def command() -> None:
        async with connected(address) as connection:
            own = connection.get_server_pid()
            assert [await looks.get() for _ in range(8)] == [own] * 8
            assert len(opened) == 1
            server.sql(database, f"SELECT pg_terminate_backend(pid) {looking}")
            assert [await looks.get() for _ in range(8)] == [own] * 8

    for name, pause_s in (("LOOK_AFTER_S", 0.02), ("LOOK_AGAIN_AFTER_S", 0.02), ("LOOK_EVERY_S", 0.02)):
        monkeypatch.setattr(blocking, name, pause_s)
    monkeypatch.setattr(blocking, "REST_S", 0.0)
    monkeypatch.setattr(advice, "Connections", Counted)
    monkeypatch.setattr(advice, "LockWatch", Counting)
    asyncio.run(command())

    assert len(opened) == 2
    while int(server.sql(database, f"SELECT count(*) {looking}")):
        time.sleep(0.01)


def test_it_is_looked_over_no_connection_any_more_once_nothing_takes_long(
    address: DatabaseAddress, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(blocking, "LOOK_AFTER_S", 0.01)
    looking = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%who keeps a lock'"

    async def until(connection: Connection, count: int) -> None:
        while await connection.fetchval(looking) != count:
            pass

    async def work() -> None:
        watch = LockWatch(Connections(address, asyncio.get_running_loop()))
        connection, other = await connect(address), await connect(address)
        with watch.over(connection):
            with watch.over(other):
                await until(connection, 1)
            assert await connection.fetchval(looking) == 1
        await until(connection, 0)
        connection.terminate()
        other.terminate()

    asyncio.run(work())
