"""The process of a broker: its clocks, limits and signals, and the line that says that it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.base.signals import stop_signals

if TYPE_CHECKING:
    from coterie.broker.node import Node

FILES_WANTED = 100_000
WARM_UP_AFTER_S = 0.05
# What lives long here has no cycles: looking through all of it less often costs nothing and pauses less.
GC_THRESHOLDS = (20_000, 20, 20)
ARG_START = 45  # of the fields of proc(5)'s stat, behind the program's name
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt(3)


def steady_clock_ms() -> Callable[[], int]:
    """Return a clock of wall-clock milliseconds that never jumps: deadlines and timestamps share it."""
    offset = time.time() - time.monotonic()
    monotonic = time.monotonic

    def now_ms() -> int:
        return int((monotonic() + offset) * 1000)

    return now_ms


def ageing_clock_ms() -> Callable[[], int]:
    """Return a clock of wall-clock milliseconds that never goes back, and goes on while the machine is
    suspended, where the system has one that does: others may have taken over meanwhile.
    """
    number = getattr(time, "CLOCK_BOOTTIME", None)
    if number is None:
        return steady_clock_ms()
    read = time.clock_gettime_ns
    offset = time.time_ns() - read(number)

    def now_ms() -> int:
        return (read(number) + offset) // 1_000_000

    return now_ms


def wall_clock_ms() -> int:
    """Return the wall clock's ms: it may have been set, or gone on while the machine was suspended."""
    return int(time.time() * 1000)


def new_runner() -> asyncio.Runner:
    """Return a runner of the fastest event loop there is."""
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def raise_file_limit() -> None:
    """Let the process open as many files as it may: partitions and connections each hold some."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, FILES_WANTED)
    if wanted > soft:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def file_limit() -> int | None:
    """Return the number of files that the process may have open, None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    soft: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def keep_freed_blocks() -> None:
    """Have glibc keep blocks of a fetch's size once they are freed.

    Taken from the kernel anew for each fetch, their page faults cost ten times the read itself
    (docs/decisions/0006-freed-blocks.md).
    """
    try:
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
    except (ImportError, OSError, AttributeError, TypeError):  # no glibc: nothing to tell it
        return
    mallopt(M_MMAP_THRESHOLD, 32 << 20)
    mallopt(M_TRIM_THRESHOLD, 64 << 20)


def hide_in_command_line(secrets: Iterable[str]) -> None:
    """Have the list of processes show asterisks for what this process was given on its command line."""
    try:
        import ctypes

        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[ARG_START]), int(fields[ARG_START + 1])
        if not 0 < start < end:
            return
        words = ctypes.string_at(start, end - start)
        for secret in map(os.fsencode, secrets):
            at = words.find(secret)
            while at >= 0:
                ctypes.memset(start + at, ord("*"), len(secret))
                at = words.find(secret, at + len(secret))
    except (ImportError, OSError, ValueError, IndexError):  # no Linux: it stays as it is
        return


def on_stop_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], object]) -> None:
    """Have `stop` called with each signal that asks the process to stop."""
    for number in (*stop_signals(), signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # Windows has no signal handlers in its loops
            loop.add_signal_handler(number, stop)


def keep_what_is_there() -> None:
    """Have the garbage collector never look through what start-up has made."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def say_ready(host: str, port: int) -> None:
    """Say on standard output that the broker answers."""
    sys.stdout.write(f"ready {f'[{host}]' if ':' in host else host}:{port}\n")
    sys.stdout.flush()


def warm_up_soon(loop: asyncio.AbstractEventLoop, node: Node) -> None:
    """Have done soon after the start what the start itself need not wait for."""

    def warm_up() -> None:
        keep_freed_blocks()
        node.warm_up()
        node.get_ready()

    loop.call_later(WARM_UP_AFTER_S, warm_up)
