"""`python -m anyrequest.watched`: `coterie serve` in a process of its own, with a watch on its event loop.

Arguments: the directory, where to write, and the fault to plant, if any. The CPU time of the longest callback
of the event loop since it was last read lies in the first eight bytes of the watch; a file `where` beside it
tells what it was doing. A file `full` beside it fills the disk.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import mmap
import os
import struct
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from coterie.broker import main
from coterie.broker.config.settings import BrokerSettings
from coterie.storage.disk import OsDisk, OsFile

DOUBLE = struct.Struct("d")
LOOK_S = 0.01
TOLD_FROM_S = 0.03


class Watch:
    """How long the loop's callbacks take of their thread's time, and what the longest did."""

    def __init__(self, path: Path) -> None:
        file = os.open(path, os.O_RDWR)
        self.shared = mmap.mmap(file, DOUBLE.size)
        self.where = path.with_name("where")
        self.loop = threading.get_ident()
        self.begun = 0.0  # when the present callback began, 0 between two
        self.seen: Counter[str] = Counter()
        self.collecting = self.collected = 0.0

    def begin(self) -> None:
        """Watch from now on."""
        run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            self.collected = 0.0
            self.seen.clear()
            self.begun = begun = time.thread_time()
            run(handle)
            self.begun = 0.0
            spent = time.thread_time() - begun
            if spent > DOUBLE.unpack_from(self.shared)[0]:
                DOUBLE.pack_into(self.shared, 0, spent)
                if spent > TOLD_FROM_S:
                    self.tell(spent)

        asyncio.Handle._run = timed  # type: ignore[method-assign]
        main.new_runner = asyncio.Runner  # type: ignore[assignment]  # uvloop's callbacks are its own
        gc.callbacks.append(self.collect)
        threading.Thread(target=self.look, daemon=True).start()

    def collect(self, phase: str, _: object) -> None:
        now = time.thread_time()
        if phase == "stop":
            self.collected += now - self.collecting
        self.collecting = now

    def look(self) -> None:
        """Look again and again at what a callback does that takes its time."""
        while True:
            time.sleep(LOOK_S)
            if self.begun:
                frame = sys._current_frames().get(self.loop)
                stack = traceback.extract_stack(frame)[:-7:-1] if frame else ()
                told = (f"{Path(one.filename).stem}.{one.name}:{one.lineno}" for one in stack)
                self.seen[" < ".join(told)] += 1

    def tell(self, spent: float) -> None:
        lines = [f"{times:4} x {where}" for where, times in self.seen.most_common(6)]
        head = f"{spent * 1000:.0f} ms, of those {self.collected * 1000:.0f} ms of garbage collection"
        self.where.write_text("\n".join((head, *lines)) + "\n")


def fill_when_told(flag: Path) -> None:
    """Have the disk be full while there is a file of this name."""
    for owner, name in ((OsDisk, "save"), (OsDisk, "make_directory"), (OsFile, "write")):
        act = getattr(owner, name)

        def guarded(self: Any, *arguments: Any, _act: Any = act, **terms: Any) -> Any:
            if flag.exists():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return _act(self, *arguments, **terms)

        setattr(owner, name, guarded)


def serve(directory: str, watched: str, plant: str) -> int:
    """Serve, watched."""
    Watch(Path(watched)).begin()
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
