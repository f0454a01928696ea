"""Whether an application watches its queries: a file that it holds for as long as it lives tells its readers.

Spark tells a listener of a query's first batch, and its readers nothing. So a reader that knows of a listener
waits for its word before it commits that batch, and one that knows of none waits for nobody.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from coterie.arrow.folders import own_folder
from coterie.spark.batch_ends import readers_folder
from coterie.spark.held_files import CAN_HOLD, hold, is_held

HELD: dict[Path, int] = {}
"""The files that this process holds, which are let go of when it ends, however."""


CLIENT = "watched-client-"


def mark_path(jvm: int | None, folder: Path | None = None) -> Path:
    """Return the path of the file that says that somebody watches the queries of a JVM; None: those of a
    Spark Connect server, whose client this process is.
    """
    name = f"{CLIENT}{os.getpid()}" if jvm is None else f"watched-{jvm}"
    return (folder or readers_folder()) / name


def mark_watched(jvm: int | None, folder: Path | None = None) -> bool:
    """Return whether readers that a JVM starts about now know that their queries are watched: listeners say
    so whenever a query of theirs starts, as there may be others of which none hears. A client of Spark
    Connect does not know the server's JVM (None), and says so to all of this user's on this machine.
    """
    path = mark_path(jvm, folder)
    if path in HELD:
        with suppress(OSError):
            os.utime(HELD[path])
        return True
    with suppress(OSError):
        # Another process of the application may have said so.
        if CAN_HOLD and own_folder(path.parent) and not says(path, 0.0):
            HELD[path] = hold(path)
            return True
    return False


def is_watched(jvm: int, since_s: float, folder: Path | None = None) -> bool:
    """Return whether somebody has said since then that queries of a JVM are watched, and still lives: its
    application, or a client of Spark Connect, which may be another server's.
    """
    path = mark_path(jvm, folder)
    return any(says(one, since_s) for one in (path, *path.parent.glob(f"{CLIENT}*[0-9]")))


def says(path: Path, since_s: float) -> bool:
    """Return whether a file has said so since then; one that nobody holds any more is removed."""
    if not CAN_HOLD:
        return False
    with suppress(OSError), path.open("r+") as file:
        if is_held(file):
            return os.fstat(file.fileno()).st_mtime >= since_s
        path.unlink()
    return False


def jvm_of_session() -> int | None:
    """Return the process id of the JVM of this application; None over Spark Connect."""
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    return None if jvm is None else int(jvm.java.lang.ProcessHandle.current().pid())
