"""Logs in files, in the layout of Apache Kafka's own data directory: `DATA/<topic>-<partition>/`."""

import os
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from coterie.storage.directory import Configs, Store
from coterie.storage.disk import OsDisk
from coterie.storage.lock import DirectoryLock
from coterie.storage.log.contract import DirectoryUnusable


class FileStore(Store):
    """The logs of one data directory, which is ours alone while it is open."""

    def __init__(self, lock: DirectoryLock, path: str, *, durable: bool, **rest: Any) -> None:
        self._lock = lock
        super().__init__(OsDisk(durable=durable), path, new_uuid=_new_uuid, **rest)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        now_ms: int,
        configs: Configs | None = None,
        cluster_id: str | None = None,
        node_id: int | None = None,
        durable: bool = True,
    ) -> "FileStore":
        """Return the store in a directory, made if it is missing, every log opened and mended.

        `configs` gives the settings of each partition found; `configure` may do so later as well. A store
        that is not `durable` never waits for the hardware, which suits a folder that is thrown away.
        Raises `DirectoryInUse`, or `DirectoryUnusable` with a sentence that says why.
        """
        where = os.fspath(path)
        try:
            _make_lasting(where, OsDisk(durable=durable))
            lock = DirectoryLock(where)
        except OSError as error:
            taken = isinstance(error, FileExistsError)
            why = f"cannot use {where}: it is a file, not a directory" if taken else unusable(where, error)
            raise DirectoryUnusable(why) from error
        try:
            return cls(
                lock,
                where,
                now_ms=now_ms,
                configs=configs,
                cluster_id=cluster_id,
                node_id=node_id,
                durable=durable,
            )
        except OSError as error:
            lock.release()
            raise DirectoryUnusable(unusable(where, error)) from error
        except BaseException:
            lock.release()
            raise

    def release(self) -> None:
        """Unlock the directory."""
        self._lock.release()


def _make_lasting(directory: str, disk: OsDisk) -> None:
    """Make a directory, and what it lies in, as far as they are missing. A loss of power leaves what is
    written there no name to be found by until those that they lie in are flushed.
    """
    path = Path(directory).absolute()
    missing = [one for one in (path, *path.parents) if not one.exists()]
    os.makedirs(path, exist_ok=True)
    for made in reversed(missing):
        disk.sync_directory(str(made.parent))


def unusable(directory: str, error: OSError) -> str:
    """Return a sentence: the cause that keeps a directory from being used, and the file in it."""
    file = error.filename2 or error.filename
    where = f"{file}: " if file not in (None, directory) else ""
    return f"cannot use {directory}: {where}{error.strerror or error}"


def _new_uuid() -> UUID:
    """Return a random uuid whose text does not start with a dash, which would pass for a command's option."""
    while True:
        uuid = uuid4()
        if uuid.bytes[0] >> 2 != 62:
            return uuid
