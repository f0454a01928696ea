"""`coterie store dump` and `load` that are stopped midway: they say what is left, and nothing looks whole."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench.postgres import Server

from coterie.broker.transfer.directory import opened_directory
from coterie.broker.transfer.loading import load
from coterie.storage.postgres.connecting import DatabaseAddress, connect
from coterie.storage.postgres.serial import Connection

from ..rigs.directories import Step, Writer

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND wait_event_type = 'Lock'"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A data directory with records."""
    writer = Writer(tmp_path / "data")
    writer.do(Step("append", 0, 4))
    writer.close()
    return tmp_path / "data"


async def locked(address: DatabaseAddress) -> Connection:
    """Return a connection that keeps a lock on the table of records."""
    holder = await connect(address)
    await holder.execute("BEGIN; LOCK TABLE coterie.chunks_keep")
    return holder


def take_interrupts() -> None:
    """Have Ctrl-C end a command, also where these tests run in the background of a shell."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def waiting(server: Server, database: str, *words: object) -> Iterator[subprocess.Popen[str]]:
    """Yield the process of a command that waits for that lock."""
    with asyncio.Runner() as runner:
        holder = runner.run(locked(DatabaseAddress(server.url(database))))
        running = subprocess.Popen(
            [sys.executable, "-m", "coterie", "store", *map(str, words)],
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=take_interrupts,
        )
        try:
            end = time.monotonic() + 30
            while server.sql("postgres", WAITS.format(database)) == "0":
                assert running.poll() is None, running.communicate()
                assert time.monotonic() < end
            yield running
        finally:
            running.kill()
            running.wait()
            holder.terminate()


STOPPED = pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])


@STOPPED
def test_a_dump_that_is_stopped_says_what_it_has_left(
    number: signal.Signals, code: int, server: Server, database: str, directory: Path, tmp_path: Path
):
    """Found by a reviewer: it ended without a word."""
    address, there = DatabaseAddress(server.url(database)), tmp_path / "there"
    with opened_directory(str(directory)) as contents:
        asyncio.run(load(address, contents, (1,)))

    with waiting(server, database, "dump", address.url, there) as running:
        (tmp_path / "there.unfinished" / "half").touch()
        running.send_signal(number)
        said = running.communicate(timeout=20)[1]

    assert running.returncode == code
    assert said == (
        f"coterie: stopped: what was written until then is {there}.unfinished, which no broker is to open;"
        " remove it, or run this again, which begins anew\n"
    )
    assert not there.exists()


@STOPPED
def test_a_load_that_is_stopped_has_brought_nothing_in_and_says_so(
    number: signal.Signals, code: int, server: Server, database: str, directory: Path
):
    with waiting(server, database, "load", directory, server.url(database), "--brokers", "1") as running:
        running.send_signal(number)
        said = running.communicate(timeout=20)[1]

    assert running.returncode == code
    assert said.startswith("coterie: stopped: all of it is brought in or nothing")
    assert said.count("\n") == 1
    assert server.sql(database, "SELECT count(*) FROM coterie.topics") == "0"
