"""Work beside the event loop, and that nobody waits for it when the broker stops."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from coterie.broker.net.request_queue import Done
from coterie.broker.runtime import background
from coterie.broker.runtime.background import Beside
from coterie.broker.shell.loop import thinking_of

AN_HOUR_S = 3_600


@pytest.mark.slow
def test_what_computes_runs_in_another_process_and_its_end_is_told_in_the_loop(
    caplog: pytest.LogCaptureFixture,
):
    async def ask() -> list[Any]:
        beside, told = Beside(asyncio.get_running_loop()), asyncio.Queue[Any]()
        for work, arguments in ((os.getpid, ()), (math.sqrt, (-1,)), (math.sqrt, (4,))):
            beside(work, arguments, told.put_nowait, computes=True)
        return [await told.get() for _ in range(3)]

    with caplog.at_level(logging.CRITICAL):
        process, failed, root = asyncio.run(ask())

    assert process != os.getpid()
    assert failed is None
    assert root == 2


@pytest.mark.slow
def test_one_process_does_what_comes_and_ends_when_nothing_comes_for_a_while():
    """Each compaction of commits had a process of its own, which took as long to start as it worked."""

    async def ask() -> tuple[list[int], list[int]]:
        beside, told = Beside(asyncio.get_running_loop(), idle_s=0.1), asyncio.Queue[int]()
        beside(os.getpid, (), told.put_nowait, computes=True)
        beside(os.getpid, (), told.put_nowait, computes=True)
        first = [await told.get(), await told.get()]
        beside(os.getpid, (), told.put_nowait, computes=True)
        first.append(await told.get())
        while beside._worker is not None:  # noqa: ASYNC110  it is a thread that ends it
            await asyncio.sleep(0.01)
        beside(os.getpid, (), told.put_nowait, computes=True)
        return first, [await told.get()]

    first, later = asyncio.run(ask())

    assert len({*first}) == 1
    assert later[0] != first[0]
    with pytest.raises(ProcessLookupError):
        os.kill(first[0], 0)


@pytest.mark.slow
def test_a_process_that_stands_still_is_killed_when_nothing_comes(monkeypatch: pytest.MonkeyPatch):
    """It kept the broker's process from its end."""
    monkeypatch.setattr(background, "ENDS_WITHIN_S", 0.1)

    async def ask() -> int:
        beside, told = Beside(asyncio.get_running_loop(), idle_s=0.1), asyncio.Queue[int]()
        beside(os.getpid, (), told.put_nowait, computes=True)
        process = await told.get()
        os.kill(process, signal.SIGSTOP)
        while beside._worker is not None:  # noqa: ASYNC110  it is a thread that ends it
            await asyncio.sleep(0.01)
        beside._computing.shutdown(wait=True)
        return process

    with pytest.raises(ProcessLookupError):
        os.kill(asyncio.run(ask()), 0)


@pytest.mark.slow
def test_work_whose_process_is_killed_has_failed_and_the_next_has_another(caplog: pytest.LogCaptureFixture):
    async def ask() -> list[Any]:
        beside, told = Beside(asyncio.get_running_loop()), asyncio.Queue[Any]()
        for work, arguments in ((os.getpid, ()), (os.kill, (0, signal.SIGKILL)), (math.sqrt, (4,))):
            given = (found[0], signal.SIGKILL) if work is os.kill else arguments
            beside(work, given, told.put_nowait, computes=True)
            found.append(await told.get())
        return found

    found: list[Any] = []
    with caplog.at_level(logging.CRITICAL):
        asyncio.run(ask())

    assert found[1:] == [None, 2]


@pytest.mark.slow
def test_a_stop_ends_what_is_computed_and_says_nothing_of_it(caplog: pytest.LogCaptureFixture):
    """The interpreter waits for its threads: a compaction of an hour held a stop up for as long."""
    told: list[Any] = []

    async def begin() -> Beside:
        beside = Beside(asyncio.get_running_loop())
        for _ in range(2):
            beside(time.sleep, (AN_HOUR_S,), told.append, computes=True)
        while beside._worker is None:  # noqa: ASYNC110  it is a thread that starts it
            await asyncio.sleep(0.01)
        beside.stop()
        await asyncio.gather(*beside._running)
        return beside

    beside = asyncio.run(begin())

    beside._computing.shutdown(wait=True)
    assert told == []
    assert caplog.records == []


COMPUTES = """
import asyncio
from coterie.broker.runtime.background import Beside

WORK = "import time; print('computing', flush=True); time.sleep(3_600)"

async def compute():
    Beside(asyncio.get_running_loop())(exec, (WORK,), print, computes=True)
    await asyncio.Event().wait()

if __name__ == "__main__":
    asyncio.run(compute())
"""


def test_what_is_computed_ends_with_a_broker_that_is_killed():
    """A compaction went on for minutes, beside that of the next broker, and wrote to the same files."""
    broker = subprocess.Popen([sys.executable, "-c", COMPUTES], stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    began = broker.stdout.readline()

    broker.kill()

    # What it has started shares its output, which ends with the last of them.
    assert (began, *broker.communicate(timeout=60)) == ("computing\n", "", None)


THINKS_FOR_EVER = """
import asyncio, threading
from coterie.broker.shell.loop import thinking_of

async def serve():
    aside, told = thinking_of(asyncio.get_running_loop()), asyncio.Queue()
    aside(len, ("four",), told.put_nowait, 1)
    aside(len, (4,), told.put_nowait, 1)
    print((await told.get()).result(), repr((await told.get()).exception()))
    for _ in range(2):
        aside(threading.Event().wait, (), told.put_nowait, 1)

asyncio.run(serve())
"""


def test_what_requests_are_thought_about_is_told_in_the_loop_and_no_process_waits_for_it_at_its_end():
    """Six requests of 800 bytes held a stop up for a minute."""
    ended = subprocess.run(
        [sys.executable, "-c", THINKS_FOR_EVER], capture_output=True, text=True, timeout=60, check=False
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == """4 TypeError("object of type 'int' has no len()")\n"""


def test_who_wants_little_looked_through_waits_for_none_of_those_who_want_much():
    """Twenty requests of 12 kB, a million records in each, kept honest producers waiting for 34 s."""

    async def ask() -> list[str]:
        begin, told = threading.Event(), asyncio.Queue[str]()
        aside = thinking_of(asyncio.get_running_loop())

        def tell(done: Done) -> None:
            told.put_nowait(done.result())

        aside(begin.wait, (), lambda _: None, 1)
        for wanted, items in (("much", 1_000_000), ("more", 2_000_000), ("little", 200), ("as little", 200)):
            aside(str, (wanted,), tell, items)
        begin.set()
        return [await told.get() for _ in range(4)]

    assert asyncio.run(ask()) == ["little", "as little", "much", "more"]
