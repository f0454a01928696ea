"""Whether librdkafka has locked itself out: its threads wait for each other's locks, and so for ever."""

from __future__ import annotations

import platform
import time
from pathlib import Path

__all__ = ["deadlocked_threads"]

FUTEX = {"x86_64": 202, "aarch64": 98}
"""The number of the system call, by machine."""
FUTEX_WAIT_PRIVATE = 0x80
"""What waits for a mutex, in glibc and musl; a thread that waits for work waits otherwise."""
LOOKS_APART_S = 1.0


def deadlocked_threads() -> list[str]:
    """Return the names of the threads of librdkafka's in this process that wait for a mutex now and a second
    later, without a time limit. None of its locks is held for a second while somebody works.

    It is known to do that (its issue 5476): its main thread, answered an error to OffsetForLeaderEpoch, holds
    a partition's lock and wants the client's, and a broker's thread that ends, as that broker is in the
    metadata no more, holds the client's and wants the partition's.
    """
    before = _waiting()
    if not before:
        return []
    time.sleep(LOOKS_APART_S)
    return sorted(name for thread, (name, mutex) in _waiting().items() if before.get(thread) == (name, mutex))


def _waiting() -> dict[str, tuple[str, str]]:
    """Return which threads wait for a mutex: by the thread's number its name and the mutex."""
    found = {}
    for thread in Path("/proc/self/task").glob("*"):
        try:
            name = (thread / "comm").read_text().strip()
            call, *arguments = (thread / "syscall").read_text().split()
        except OSError:  # it has ended
            continue
        if name.startswith("rdk:") and call == str(FUTEX.get(platform.machine())):
            mutex, operation, _, time_limit = arguments[:4]
            if int(operation, 16) == FUTEX_WAIT_PRIVATE and not int(time_limit, 16):
                found[thread.name] = (name, mutex)
    return found
