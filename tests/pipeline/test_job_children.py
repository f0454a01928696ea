"""The processes of the job: what they say is heard, and they end when they must."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest
from pipeline.applications.events import parsed
from pipeline.job import patience_s
from pipeline.processes.children import Child, JobError, TooSlow
from pipeline.processes.process_tree import tree

pytestmark = pytest.mark.slow

ECHO = """
import sys
print("ready 127.0.0.1:9", flush=True)
print('{"event": "got", "word": "%s"}' % sys.stdin.readline().strip())
"""


async def a_child(tmp_path: Path, code: str) -> Child:
    return await Child.start("a child", [sys.executable, "-c", code], log=tmp_path / "log")


def test_a_plain_line_is_an_event_named_by_its_first_word():
    assert parsed("ready 127.0.0.1:9092\n") | {"at_ms": 0} == {
        "event": "ready",
        "text": "127.0.0.1:9092",
        "at_ms": 0,
    }
    assert parsed('{"event": "x", "at_ms": 5}') == {"event": "x", "at_ms": 5}


def test_a_child_is_heard_and_obeys(tmp_path: Path):
    async def talk() -> tuple[str, str]:
        child = await a_child(tmp_path, ECHO)
        address = (await child.expect("ready", within_s=60))["text"]
        child.send("hello")
        word = (await child.expect("got", within_s=60))["word"]
        await child.end(within_s=60)
        return address, word

    assert asyncio.run(talk()) == ("127.0.0.1:9", "hello")


def test_a_child_that_ends_instead_is_trouble_with_the_end_of_its_log(tmp_path: Path):
    async def talk() -> None:
        child = await a_child(tmp_path, "import sys; print('no room left', file=sys.stderr); sys.exit(3)")
        await child.expect("ready", within_s=60)

    with pytest.raises(JobError, match=r"(?s)a child ended with code 3.*no room left"):
        asyncio.run(talk())


def test_a_silent_child_is_trouble(tmp_path: Path):
    async def talk() -> None:
        child = await a_child(tmp_path, "import sys; sys.stdin.read()")
        try:
            await child.expect("ready", within_s=0.1)
        finally:
            await child.terminate(within_s=60)

    with pytest.raises(TooSlow, match=r"(?s)did not say 'ready'.*is empty\..*Is the machine busy\?"):
        asyncio.run(talk())


def test_of_a_long_log_the_first_cause_is_shown_beside_its_end(tmp_path: Path):
    log = [
        "WARN nothing",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "Error: Could not find or load main class kafka.coterie",
        *["at somewhere"] * 50,
        "the end",
    ]

    async def talk() -> None:
        child = await a_child(tmp_path, f"import sys; sys.exit({chr(10).join(log)!r})")
        await child.expect("ready", within_s=60)

    with pytest.raises(JobError, match=r"(?s)says first:\n  Error: Could not find.*and ends with:.*the end"):
        asyncio.run(talk())


def test_a_run_that_was_slow_so_far_is_waited_for_as_long_again():
    assert (patience_s(20), patience_s(230)) == (60, 230)


def test_a_child_that_will_not_end_is_killed_with_all_that_it_started(tmp_path: Path):
    stubborn = (
        "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        "print('ready x', flush=True); sys.stdin.read()"
    )

    async def talk() -> list[int]:
        child = await a_child(tmp_path, stubborn)
        await child.expect("ready", within_s=60)
        family = [process.pid for process in tree(child.pid)]
        await child.terminate(within_s=0.2)
        return family

    family = asyncio.run(talk())
    until = time.monotonic() + 60
    while any(tree(pid) for pid in family) and time.monotonic() < until:
        pass

    assert len(family) == 2
    assert not any(tree(pid) for pid in family)


def test_a_child_that_has_become_another_program_is_killed_as_well(tmp_path: Path):
    """So is one that was only just started: then it has no command line yet."""
    sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    changing = (
        "import os, signal, sys; me = sys.executable;"
        f"signal.signal(signal.SIGTERM, lambda *_: os.execv(me, [me, '-c', {sleeper!r}]));"
        "print('ready x', flush=True); signal.pause()"
    )

    async def talk() -> Child:
        child = await a_child(tmp_path, changing)
        await child.expect("ready", within_s=60)
        await child.terminate(within_s=0.5)
        return child

    child = asyncio.run(talk())

    assert child.ended
    assert not tree(child.pid)
