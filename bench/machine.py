"""What the figures were measured on, and what the system says about a process: memory, processor time."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

__all__ = ["cpu_seconds", "describe", "peaks_mb", "resident_mb"]


def describe() -> dict[str, str]:
    """Return the machine and the versions, as the report names them."""
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def _processor() -> str:
    """Return the processor's name, as far as the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown processor"


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process and its descendants, in MB (10**6 bytes)."""
    return sum(_resident_kib(process) for process in _family(pid)) * 1024 / 1e6


def peaks_mb(pid: int, word: str) -> list[float]:
    """Return the most memory that each descendant with this word in its command ever held, in MB.

    Nothing where there is no /proc. What a process shares with the one that it was forked from counts, too.
    """
    if not sys.platform.startswith("linux"):
        return []
    family = [Path(f"/proc/{process}") for process in _family(pid)]
    named = [process for process in family if word in (process / "cmdline").read_text()]
    told = [(process / "status").read_text().partition("VmHWM:")[2].split()[0] for process in named]
    return [int(kib) * 1024 / 1e6 for kib in told]


def _resident_kib(pid: int) -> int:
    said = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return int(said or 0)


def _family(pid: int) -> list[int]:
    """Return `pid` and all that descend from it."""
    table = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    children: dict[int, list[int]] = {}
    for line in table.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    family = [pid]
    for member in family:
        family.extend(children.get(member, ()))
    return family


def cpu_seconds(pid: int) -> float | None:
    """Return the processor time that a process and all that descend from it have used, or None where there is
    no /proc.
    """
    if not sys.platform.startswith("linux"):
        return None
    ticks = 0
    for process in _family(pid):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
