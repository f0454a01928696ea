"""The fake: the same logs on a pretended disk, which fails, fills up and loses what is not flushed."""

import errno
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import strerror
from random import Random
from typing import NoReturn
from uuid import UUID

from coterie.storage.directory import Configs, Store
from coterie.storage.disk import Buffer, FileInfo, Space

UNLIMITED_BYTES = 1 << 40
OPERATIONS = frozenset({"write", "sync", "save", "open", "read", "rename", "truncate"})


@dataclass(slots=True)
class Faults:
    """What goes wrong. May be changed at any time."""

    refuse: set[str] = field(default_factory=set)
    """Operations that fail with EIO, of `OPERATIONS`."""
    every: dict[str, int] = field(default_factory=dict)
    """Operations of which every n-th fails."""
    chance: dict[str, float] = field(default_factory=dict)
    """Operations that fail now and then, by the disk's seed."""
    capacity: int | None = None
    """How many bytes fit on the disk; beyond it ENOSPC, after what fitted was written."""

    def __post_init__(self) -> None:
        assert {*self.refuse, *self.every, *self.chance} <= OPERATIONS


class _Content:
    """The bytes of a file, and how many of them would survive a loss of power."""

    __slots__ = ("data", "durable", "modified_ms")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = 0
        self.modified_ms = 0


class MemoryFile:
    """An open file of a `MemoryDisk`."""

    __slots__ = ("_content", "_disk")

    def __init__(self, disk: "MemoryDisk", content: _Content) -> None:
        self._disk = disk
        self._content = content

    def size(self) -> int:
        return len(self._content.data)

    def write(self, parts: Sequence[Buffer], at: int) -> None:
        data = b"".join(parts)
        kept, error = self._disk.room_for(data, at, self._content)
        content = self._content
        if at > len(content.data):
            content.data += bytes(at - len(content.data))
        content.data[at : at + kept] = data[:kept]
        content.durable = min(content.durable, at)
        if error:
            _fail(error)

    def read(self, size: int, at: int) -> bytes:
        self._disk.perhaps("read")
        return bytes(self._content.data[at : at + size])

    def truncate(self, size: int) -> None:
        self._disk.perhaps("truncate")
        data = self._content.data
        del data[size:]
        data += bytes(size - len(data))
        self._content.durable = min(self._content.durable, size)

    def sync(self) -> None:
        self._disk.perhaps("sync")
        self._content.durable = len(self._content.data)

    def close(self) -> None:
        return


class MemoryDisk:
    """A disk that exists only here. Names of files are durable at once, their content when it is flushed."""

    def __init__(self, *, seed: int = 0, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.random = Random(seed)
        self._files: dict[str, _Content] = {}
        self._directories: set[str] = set()
        self._count = dict.fromkeys(OPERATIONS, 0)

    # -- faults

    def perhaps(self, operation: str) -> None:
        """Fail if it is time to."""
        if self._due(operation):
            _fail(errno.EIO)

    def _due(self, operation: str) -> bool:
        faults = self.faults
        self._count[operation] += 1
        every = faults.every.get(operation, 0)
        chance = faults.chance.get(operation, 0.0)
        return (
            operation in faults.refuse
            or (every > 0 and self._count[operation] % every == 0)
            or (chance > 0 and self.random.random() < chance)
        )

    def room_for(self, data: bytes, at: int, content: _Content) -> tuple[int, int]:
        """Return the number of a write's bytes that get through, and the errno it ends with (0: none)."""
        if self._due("write"):
            return self.random.randint(0, len(data)), errno.EIO
        if self.faults.capacity is None:
            return len(data), 0
        used = self._used() - max(len(content.data) - at, 0)
        fits = max(0, self.faults.capacity - used)
        return (len(data), 0) if fits >= len(data) else (fits, errno.ENOSPC)

    def lose_power(self) -> None:
        """Cut every file somewhere beyond what was flushed of it, by seed."""
        for path in sorted(self._files):
            content = self._files[path]
            del content.data[self.random.randint(content.durable, len(content.data)) :]
            content.durable = len(content.data)

    # -- a disk

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        self.perhaps("open")
        if path not in self._files:
            if not create:
                _fail(errno.ENOENT)
            self._files[path] = _Content()
        return MemoryFile(self, self._files[path])

    def load(self, path: str) -> bytes:
        self.perhaps("read")
        return bytes(self._content(path).data)

    def save(self, path: str, data: bytes, *, sync: bool = False) -> None:
        self.perhaps("save")
        content = _Content()
        kept, error = self.room_for(data, 0, content)
        if error:
            _fail(error)
        content.data[:] = data[:kept]
        content.durable = kept if sync else 0
        self._files[path] = content
        if sync:
            self.perhaps("sync")

    def directories(self, path: str) -> list[str]:
        return sorted(name[len(path) + 1 :] for name in self._directories if _is_in(name, path))

    def files(self, directory: str) -> dict[str, FileInfo]:
        # Each housekeeping asks this of every log: a loop over strings, without a call for each.
        prefix = directory + "/"
        begin = len(prefix)
        return {
            path[begin:]: FileInfo(len(content.data), content.modified_ms)
            for path, content in self._files.items()
            if path.startswith(prefix) and path.find("/", begin) < 0
        }

    def space(self, path: str) -> Space:
        self.perhaps("read")
        total = UNLIMITED_BYTES if self.faults.capacity is None else self.faults.capacity
        return Space(total, max(0, total - self._used()))

    def _used(self) -> int:
        return sum(len(one.data) for one in self._files.values())

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._directories

    def touch(self, path: str, modified_ms: int) -> None:
        self._content(path).modified_ms = modified_ms

    def make_directory(self, path: str) -> None:
        self._directories.add(path)

    def rename(self, old: str, new: str) -> None:
        self.perhaps("rename")
        if old in self._directories:
            self._directories.remove(old)
            self._directories.add(new)
            moved = [path for path in self._files if _is_in(path, old)]
        else:
            self._content(old)
            moved = [old]
        for path in moved:
            self._files[new + path[len(old) :]] = self._files.pop(path)

    def remove(self, path: str) -> None:
        self._files.pop(path, None)

    def remove_tree(self, path: str) -> None:
        self._directories.discard(path)
        for inside in [name for name in self._files if _is_in(name, path)]:
            del self._files[inside]

    def sync_directory(self, path: str) -> None:
        self.perhaps("sync")

    def _content(self, path: str) -> _Content:
        if path not in self._files:
            _fail(errno.ENOENT)
        return self._files[path]


class MemoryStore(Store):
    """A store whose disk is in memory. `disk.faults` says what goes wrong."""

    disk: MemoryDisk

    @classmethod
    def open(
        cls,
        *,
        now_ms: int,
        disk: MemoryDisk | None = None,
        configs: Configs | None = None,
        cluster_id: str | None = None,
        node_id: int | None = None,
    ) -> "MemoryStore":
        """Return the store on a disk, by default an empty one that does not fail."""
        disk = disk or MemoryDisk()
        disk.make_directory("data")
        return cls(
            disk,
            "data",
            now_ms=now_ms,
            new_uuid=lambda: UUID(int=disk.random.getrandbits(126)),
            configs=configs,
            cluster_id=cluster_id,
            node_id=node_id,
        )

    def crash(self, *, power: bool = False) -> MemoryDisk:
        """Stop as by kill -9, or by a loss of `power`; return the disk, for the next start."""
        self.abandon()
        if power:
            self.disk.lose_power()
        return self.disk


def _is_in(path: str, directory: str) -> bool:
    return path.startswith(directory + "/")


def _fail(error: int) -> NoReturn:
    raise OSError(error, strerror(error))
