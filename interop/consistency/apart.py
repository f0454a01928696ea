"""Runs in processes of their own, which end in time, whatever in them does not."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

from interop.consistency.checks import Problem, read_problems, write_problems
from interop.consistency.runs import STUCK, attempt

__all__ = ["STOOD", "apart"]

STOOD = "stood.txt"
MARK = "COTERIE_APART"
"""In the environment of all that a run starts: its folder."""
WRITTEN_WITHIN_S = 10.0


def apart(what: Callable[[], list[Problem]], folder: Path, within_s: float) -> list[Problem]:
    """Return what `what` returns, which is called in a process of its own, or that it was stuck, beside what
    it had written of its findings: after so many seconds it is ended, and all that it has started. Where
    each of its threads stood is in the folder then.

    A thread that waits for ever, in a client of others', would keep this process from its end, too.
    """
    # From a fork what is to be called need not be sent; nothing here has threads yet.
    process = get_context("fork").Process(target=_run, args=(what, folder))
    process.start()
    assert process.pid is not None
    process.join(within_s)
    if process.exitcode is None:
        os.kill(process.pid, signal.SIGUSR1)
        _until_written(folder / STOOD)
        process.kill()
        process.join()
        _end_started_by(folder)
        stuck = Problem(STUCK, f"the run has not ended within {within_s:.0f} s; {STOOD} says where it stood")
        return [*(read_problems(folder) or []), stuck]
    found = read_problems(folder)
    if process.exitcode or found is None:
        _end_started_by(folder)
        stuck = Problem(STUCK, f"the run has ended with {process.exitcode} before its end")
        return [*(found or []), stuck]
    return found


def _until_written(file: Path) -> None:
    """Return once something is in a file, and it grows no more."""
    until = time.monotonic() + WRITTEN_WITHIN_S
    before, size = 0, 0
    while (not size or size != before) and time.monotonic() < until:
        time.sleep(0.1)
        before, size = size, file.stat().st_size


def _end_started_by(folder: Path) -> None:
    """End all that was started by the run of a folder, which has ended: they are nobody's children then."""
    mark = f"{MARK}={folder}".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environment.read_bytes().split(b"\0"):
                os.kill(int(environment.parent.name), signal.SIGKILL)
        except OSError:  # it is somebody else's, or has ended
            continue


def _run(what: Callable[[], list[Problem]], folder: Path) -> None:
    os.environ[MARK] = str(folder)
    with (folder / STOOD).open("w") as stood:
        faulthandler.register(signal.SIGUSR1, stood, all_threads=True)
        found: list[Problem] = []
        raised = attempt(lambda: found.extend(what()), folder)
        write_problems(found + raised, folder)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # whatever threads are left
