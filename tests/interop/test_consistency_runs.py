"""What a run makes of clients that fail, and of a moment in which a busy machine has somebody stuck."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from interop.consistency.apart import STOOD, apart
from interop.consistency.checks import Problem, write_problems
from interop.consistency.runs import DEADLOCK, DEADLOCKED_RUNS, RAISED, STUCK, Deadlock, OnceMore, attempt
from interop.consistency.transactional import told_by

from gone import wait_until_gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
STANDS = Problem(STUCK, "somebody does not go on")
LOST = Problem("lost", "a record")
LOCKED = Problem(DEADLOCK, "librdkafka has locked itself out")
LOCKS_TWICE = """
import ctypes, threading, time
from interop.consistency.deadlocks import deadlocked_threads

libc = ctypes.CDLL(None)
PR_SET_NAME = 15

def wait(name, lock):
    libc.prctl(PR_SET_NAME, name)
    lock()
    lock()

def start(name, lock):
    threading.Thread(target=wait, args=(name, lock), daemon=True).start()

mutexes = [ctypes.create_string_buffer(64) for _ in range(2)]
start(b"rdk:main", lambda: libc.pthread_mutex_lock(mutexes[0]))
start(b"another", lambda: libc.pthread_mutex_lock(mutexes[1]))
start(b"rdk:broker1", threading.Event().wait)
for _ in range(100):
    if found := deadlocked_threads():
        break
    time.sleep(0.05)
print(found, flush=True)
"""
"""Three threads stand still, each in another way; one of them is librdkafka's that waits for a lock."""


@pytest.mark.parametrize(
    ("runs", "shown"),
    [
        ([[]], []),
        ([[STANDS], []], []),
        ([[STANDS], [STANDS]], [STANDS]),
        ([[STANDS], [LOST]], [LOST]),
        ([[STANDS, LOST]], [STANDS, LOST]),
        ([[LOST]], [LOST]),
        ([[LOCKED], [LOCKED], []], []),
        ([[LOCKED], [STANDS], []], []),
        ([[LOCKED], [STANDS], [STANDS]], [STANDS]),
        ([[LOCKED, LOST]], [LOST]),
        ([[LOCKED, STANDS], [LOCKED, STANDS]], [STANDS]),
        ([[LOCKED]] * (DEADLOCKED_RUNS + 1), []),
    ],
)
def test_a_run_that_only_has_somebody_stuck_is_done_once_more_and_a_loss_is_a_loss(
    runs: list[list[Problem]], shown: list[Problem]
):
    left = iter(runs)

    assert OnceMore(lambda _: None).run(lambda: next(left)) == shown
    assert not [*left]


def test_where_a_second_run_has_somebody_stuck_it_is_no_moment_of_the_machine():
    left = iter([[STANDS], [], [STANDS]])
    runs = OnceMore(lambda _: None)

    assert runs.run(lambda: next(left)) == []
    assert runs.run(lambda: next(left)) == [STANDS]


def test_that_librdkafka_locks_itself_out_is_seen_and_takes_nobody_s_second_run():
    told = subprocess.run(
        [sys.executable, "-c", LOCKS_TWICE], capture_output=True, text=True, timeout=60, check=True
    )
    left = iter([[LOCKED], [], [STANDS], []])
    runs = OnceMore(lambda _: None)

    assert told.stdout == "['rdk:main']\n"
    assert [runs.run(lambda: next(left)), runs.run(lambda: next(left))] == [[], []]


def test_whatever_a_client_raises_is_a_problem_of_its_run_and_its_traceback_is_kept(tmp_path: Path):
    def fails() -> None:  # a mistake, which no second run makes good
        raise KeyError("orders-3")

    assert attempt(fails, tmp_path) == [Problem(RAISED, "KeyError: 'orders-3'")]
    assert "in fails" in (tmp_path / "threads.txt").read_text()


def test_a_deadlock_of_a_client_s_is_told_from_one_that_is_stuck(tmp_path: Path):
    def locks_itself_out() -> None:
        raise Deadlock("reader does not end")

    [problem] = attempt(locks_itself_out, tmp_path)

    assert problem.kind == DEADLOCK


def test_a_fatal_error_is_known_by_what_fails_behind_it():
    fatal = KafkaException(KafkaError(KafkaError._FENCED))
    behind = SystemError("returned a result with an exception set")
    other = SystemError("of its own")
    behind.__cause__ = fatal

    assert told_by(fatal) is fatal
    assert told_by(behind) is fatal
    with pytest.raises(SystemError, match="of its own"):
        told_by(other)


def test_a_run_apart_returns_what_it_found_and_what_it_raised(tmp_path: Path):
    def fails() -> list[Problem]:
        raise KeyError("orders-3")

    assert apart(lambda: [LOST, STANDS], tmp_path, 60.0) == [LOST, STANDS]
    assert apart(fails, tmp_path, 60.0) == [Problem(RAISED, "KeyError: 'orders-3'")]


def test_a_thread_that_waits_for_ever_keeps_no_run_from_its_end(tmp_path: Path):
    def leaves_a_thread() -> list[Problem]:
        threading.Thread(target=threading.Event().wait).start()
        return [LOST]

    assert apart(leaves_a_thread, tmp_path, 60.0) == [LOST]


def test_a_run_that_does_not_end_is_ended_with_all_it_started_and_is_somebody_stuck(tmp_path: Path):
    def waits() -> list[Problem]:
        with subprocess.Popen(["sleep", "600"]) as server:
            (tmp_path / "server").write_text(str(server.pid))
            server.wait()
        return []

    [problem] = apart(waits, tmp_path, 3.0)

    assert problem.kind == STUCK
    assert "in waits" in (tmp_path / STOOD).read_text()
    wait_until_gone(int((tmp_path / "server").read_text()), within_s=30.0)


def test_of_a_run_that_a_client_ends_by_a_crash_nothing_is_left(tmp_path: Path):
    def crashes() -> list[Problem]:
        with subprocess.Popen(["sleep", "600"]) as server:
            (tmp_path / "server").write_text(str(server.pid))
            os.kill(os.getpid(), signal.SIGSEGV)
        return []

    [problem] = apart(crashes, tmp_path, 60.0)

    assert problem == Problem(STUCK, "the run has ended with -11 before its end")
    wait_until_gone(int((tmp_path / "server").read_text()), within_s=30.0)


def test_a_run_that_exits_by_itself_has_not_found_that_all_is_well(tmp_path: Path):
    def exits() -> list[Problem]:
        sys.exit(0)

    assert apart(exits, tmp_path, 60.0) == [Problem(STUCK, "the run has ended with 0 before its end")]


def test_a_run_whose_end_does_not_come_shows_what_it_had_found(tmp_path: Path):
    def stands_at_its_end() -> list[Problem]:
        write_problems([LOST], tmp_path)
        threading.Event().wait()
        return []

    found = apart(stands_at_its_end, tmp_path, 3.0)

    assert found[0] == LOST
    assert [one.kind for one in found[1:]] == [STUCK]
