"""`coterie store` behind somebody's lock: each command ends in time, with a sentence about who keeps it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.postgres import Server

from coterie.storage.postgres.connecting import DatabaseAddress, connect
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
