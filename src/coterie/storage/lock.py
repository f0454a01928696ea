"""The lock that keeps two brokers out of one data directory, Apache Kafka's among them.

It is a POSIX record lock on `.lock`, as Java takes it. Such a lock belongs to the whole process and is lost
when any handle on the file is closed, so a list of the directories held by this process comes first.
"""

import os
from contextlib import suppress
from typing import Any

from coterie.storage.checkpoints import LOCK
from coterie.storage.log.contract import DirectoryInUse

try:
    import fcntl as _fcntl

    fcntl: Any = _fcntl
except ImportError:  # Windows
    fcntl = None

_held: set[str] = set()


class DirectoryLock:
    """The right to a data directory. Raises `DirectoryInUse` if somebody has it; ends with the process."""

    def __init__(self, directory: str) -> None:
        self._key = os.path.realpath(directory)
        if self._key in _held:
            raise DirectoryInUse(directory)
        self._fd = os.open(f"{directory}/{LOCK}", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _take(self._fd)
        except OSError:
            os.close(self._fd)
            raise DirectoryInUse(directory) from None
        _held.add(self._key)

    def release(self) -> None:
        """Let the next one in."""
        if self._key in _held:
            _held.discard(self._key)
            os.close(self._fd)


def _take(fd: int) -> None:
    """Lock the file or raise OSError. Closing it, or the end of the process, unlocks it."""
    if fcntl is not None:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    with suppress(ImportError):
        import msvcrt

        windows: Any = msvcrt
        windows.locking(fd, windows.LK_NBLCK, 1)
