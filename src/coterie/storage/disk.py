"""What a log asks of a disk, and the real one. Paths are strings with `/`; whatever fails raises OSError.

The pretended disk, which the simulator and the tests of faults use, is in `memory`.
"""

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview


class FileInfo(NamedTuple):
    """What a directory tells about a file."""

    size: int
    modified_ms: int


class Space(NamedTuple):
    """How many bytes the disk has that a directory is on, and how many more can be written."""

    total: int
    usable: int


class DiskFile(Protocol):
    """An open file. Nothing is buffered: what was written survives the end of the process."""

    def size(self) -> int: ...
    def write(self, parts: Sequence[Buffer], at: int) -> None:
        """Write all parts one after the other from `at` on; a failure may leave some of it written."""
        ...

    def read(self, size: int, at: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file."""
        ...

    def truncate(self, size: int) -> None: ...
    def sync(self) -> None:
        """Flush: after it, what was written survives a loss of power."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A tree of directories and files. It has no state of its own that another process would miss."""

    def open(self, path: str, *, create: bool = False) -> DiskFile: ...
    def load(self, path: str) -> bytes: ...
    def save(self, path: str, data: bytes, *, sync: bool = False) -> None:
        """Replace the file at once: a crash leaves the old content or the new.

        With `sync`, a loss of power leaves the new one from the moment this returns; without, perhaps only
        its beginning, but never what an earlier save has left unfinished. After an OSError it may be either.
        """
        ...

    def directories(self, path: str) -> list[str]:
        """Return the names of the directories in a directory."""
        ...

    def files(self, directory: str) -> dict[str, FileInfo]:
        """Return the files (not the directories) of a directory by name."""
        ...

    def space(self, path: str) -> Space: ...
    def exists(self, path: str) -> bool: ...
    def touch(self, path: str, modified_ms: int) -> None: ...
    def make_directory(self, path: str) -> None:
        """Make a directory, or do nothing if it is there. What it lies in has to be there, or its disk may be
        gone, and nobody would miss what was on it.
        """
        ...

    def rename(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None:
        """Remove a file, or do nothing if it is gone already."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all that it holds; of a link the link alone."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory survive a loss of power."""
        ...


MOST_PARTS = 1024  # POSIX lets a system refuse more in one call


class OsFile:
    """A file of the operating system, read and written by position."""

    __slots__ = ("_durable", "_fd")

    def __init__(self, fd: int, *, durable: bool = True) -> None:
        self._fd = fd
        self._durable = durable

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def write(self, parts: Sequence[Buffer], at: int) -> None:
        if len(parts) > MOST_PARTS:
            parts = [b"".join(parts)]
        wanted = sum(map(len, parts))
        written = _write_at(self._fd, parts, at)
        while written < wanted:  # a full disk writes what fits first, and says so the next time
            rest = b"".join(parts)[written:]
            written += _write_at(self._fd, [rest], at + written)

    def read(self, size: int, at: int) -> bytes:
        data = _read_at(self._fd, size, at)
        if len(data) == size or not data:
            return data
        pieces = [data]
        while (missing := size - sum(map(len, pieces))) > 0:
            more = _read_at(self._fd, missing, at + size - missing)
            if not more:
                break
            pieces.append(more)
        return b"".join(pieces)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        if self._durable:
            SYNC(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class OsDisk:
    """The operating system's files.

    One that is not `durable` never waits for the hardware: for tests, whose files nobody needs tomorrow.
    """

    def __init__(self, *, durable: bool = True) -> None:
        self._durable = durable

    def open(self, path: str, *, create: bool = False) -> OsFile:
        flags = os.O_RDWR | BINARY | (os.O_CREAT if create else 0)
        return OsFile(os.open(path, flags, 0o644), durable=self._durable)

    def load(self, path: str) -> bytes:
        fd = os.open(path, os.O_RDONLY | BINARY)  # a third of the time that open() takes
        try:
            return OsFile(fd).read(os.fstat(fd).st_size, 0)
        except OSError as error:
            error.filename = path  # as what cannot be opened has it
            raise
        finally:
            os.close(fd)

    def save(self, path: str, data: bytes, *, sync: bool = False) -> None:
        beside = path + ".tmp"
        self.remove(beside)  # a loss of power could give what is written over its earlier content back
        with open(beside, "xb") as file:
            file.write(data)
            if sync and self._durable:
                file.flush()
                SYNC(file.fileno())
        os.replace(beside, path)
        if sync:
            self.sync_directory(os.path.dirname(path))

    def directories(self, path: str) -> list[str]:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def files(self, directory: str) -> dict[str, FileInfo]:
        with os.scandir(directory) as entries:
            found = [(entry.name, entry.stat()) for entry in entries if entry.is_file()]
        return {name: FileInfo(stat.st_size, stat.st_mtime_ns // 1_000_000) for name, stat in found}

    def space(self, path: str) -> Space:
        import shutil

        usage = shutil.disk_usage(path)
        return Space(usage.total, usage.free)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def touch(self, path: str, modified_ms: int) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def make_directory(self, path: str) -> None:
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def remove_tree(self, path: str) -> None:
        import shutil

        if os.path.islink(path):
            os.unlink(path)
        else:
            shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        if sys.platform == "win32" or not self._durable:
            return  # Windows cannot open a directory for this, and keeps names in its own journal
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _write_slowly(fd: int, parts: Sequence[Buffer], at: int) -> int:
    os.lseek(fd, at, os.SEEK_SET)
    return os.write(fd, b"".join(parts))


def _read_slowly(fd: int, size: int, at: int) -> bytes:
    os.lseek(fd, at, os.SEEK_SET)
    return os.read(fd, size)


BINARY = getattr(os, "O_BINARY", 0)  # Windows would change line ends
# Windows has no calls by position, and macOS before 11 no pwritev.
_write_at = getattr(os, "pwritev", _write_slowly)
_read_at = getattr(os, "pread", _read_slowly)
# fdatasync leaves out the file's times, which nobody here reads back.
SYNC = getattr(os, "fdatasync", os.fsync)
