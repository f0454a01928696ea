"""`python -m anyrequest.watched`: `coterie serve` in a process of its own, with a watch on its event loop.

Arguments: the directory, where to write, and the fault to plant, if any. The CPU time of the longest callback
of the event loop since it was last read lies in the first eight bytes of the watch; a file `full` beside it
fills the disk.
"""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

from coterie.broker import main
from coterie.broker.settings import BrokerSettings
from coterie.store.disk import OsDisk

DOUBLE = struct.Struct("d")


def watch(path: Path) -> None:
    """Have the loop say how long its callbacks take of their thread's time."""
    file = os.open(path, os.O_RDWR)
    shared = mmap.mmap(file, DOUBLE.size)
    run = asyncio.Handle._run

    def timed(self: asyncio.Handle) -> None:
        begun = time.thread_time()
        run(self)
        spent = time.thread_time() - begun
        if spent > DOUBLE.unpack_from(shared)[0]:
            DOUBLE.pack_into(shared, 0, spent)

    asyncio.Handle._run = timed  # type: ignore[method-assign]
    main._runner = asyncio.Runner  # type: ignore[assignment]  # uvloop's callbacks are its own


def fill_when_told(flag: Path) -> None:
    """Have the disk be full while there is a file of this name."""
    for name in ("save", "make_directory"):
        act = getattr(OsDisk, name)

        def guarded(self: Any, *arguments: Any, _act: Any = act, **terms: Any) -> Any:
            if flag.exists():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return _act(self, *arguments, **terms)

        setattr(OsDisk, name, guarded)


def serve(directory: str, watched: str, plant: str) -> int:
    """Serve, watched."""
    watch(Path(watched))
    fill_when_told(Path(watched).with_name("full"))
    if plant:
        from anyrequest.plants import PLANTS

        PLANTS[plant]()
    given = {
        "log.dirs": directory,
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "group.initial.rebalance.delay.ms": "0",
    }
    return main.serve(BrokerSettings.of(given))


if __name__ == "__main__":
    sys.exit(serve(*sys.argv[1:4]))
