"""The processes of this machine: who started whom, and how to end all of an application at once.

Reads /proc where there is one and asks `ps` elsewhere, so nothing has to be installed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
BEGAN = 17  # among the fields of stat behind the parent's number: clock ticks since the machine started
READER = "python_streaming_source_runner"  # how Spark's command line calls the process with the stream reader


@dataclass(frozen=True, slots=True)
class Process:
    """One living process: its number, its parent's, its command line, and when it began, if that is known."""

    pid: int
    parent: int
    command: str
    began: str = ""

    @property
    def identity(self) -> tuple[int, str]:
        """By what it is known again: its number may be another's later, and its command line is another once
        it runs another program, which a process that has just been started is about to.
        """
        return self.pid, self.began or self.command


def living() -> list[Process]:
    """Return every process of this machine that runs; the dead that nobody has buried yet are left out."""
    if (PROC / "self" / "stat").exists():
        return [found for entry in PROC.iterdir() if entry.name.isdigit() and (found := from_proc(entry))]
    listed = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,state=,command="], capture_output=True, text=True, check=True
    )
    rows = (line.split(None, 3) for line in listed.stdout.splitlines())
    return [Process(int(row[0]), int(row[1]), row[3]) for row in rows if len(row) == 4 and row[2][0] != "Z"]


def from_proc(entry: Path) -> Process | None:
    """Return the process of one folder of /proc, None if it has just ended."""
    try:
        # The name in parentheses may hold anything, spaces and parentheses included.
        state, parent, *others = (entry / "stat").read_text().rpartition(")")[2].split()
        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else Process(int(entry.name), int(parent), command, others[BEGAN])


def tree(root: int, processes: Iterable[Process] | None = None) -> list[Process]:
    """Return a process and all that descend from it, parents before children."""
    everyone = list(living() if processes is None else processes)
    children = defaultdict(list)
    for process in everyone:
        children[process.parent].append(process)
    found = [process for process in everyone if process.pid == root]
    for process in found:  # grows while it is walked
        found += children[process.pid]
    return found


def readers_first(family: Iterable[Process]) -> list[Process]:
    """Return the order in which to kill: the Python stream reader before all that it could see die.

    It would otherwise notice the end of its pipe and leave the group politely, and the group would never find
    out by itself that a member is gone.
    """
    return sorted(family, key=lambda process: READER not in process.command)


def stop(process: Process, *, within_s: float) -> bool:
    """Send SIGSTOP, and return whether every thread of the process stands within that time.

    A thread that runs, or waits for the disk, goes on for as long as a busy machine lets it.
    """
    os.kill(process.pid, signal.SIGSTOP)
    until = time.monotonic() + within_s
    while set(states(process.pid)) != {"T"}:
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def states(pid: int) -> list[str]:
    """Return the letters of what the threads of a process do; nothing where it is gone."""
    if not (PROC / "self" / "stat").exists():
        listed = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True)
        return [listed.stdout.strip()[:1]]
    found = []
    for thread in (PROC / str(pid) / "task").glob("*/stat"):
        try:
            found.append(thread.read_text().rpartition(") ")[2][:1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
    return found


def signal_all(family: Iterable[Process], number: signal.Signals) -> None:
    """Send a signal to each, in order; who is gone already is passed over."""
    for process in family:
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            continue


def wait_gone(family: Iterable[Process], *, within_s: float) -> list[Process]:
    """Wait until none of these lives; return those that still do when the time is up."""
    pids, until = {process.pid for process in family}, time.monotonic() + within_s
    while left := [process for process in living() if process.pid in pids]:
        if time.monotonic() > until:
            return left
        time.sleep(0.02)
    return []
