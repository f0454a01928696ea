"""Whether processes that a test has seen start are there, by /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path


def runs(pid: int) -> bool:
    """Return whether a process is there, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(*pids: int, within_s: float) -> None:
    """Return once none of some processes is there; fail where that takes too long."""
    end = time.monotonic() + within_s
    while any(map(runs, pids)):
        assert time.monotonic() < end, f"still there after {within_s} s"
        os.sched_yield()
