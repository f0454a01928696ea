"""A pretended disk that can be stopped between any two effects, and that loses power.

An effect is whatever changes the disk: a write, a file made, cut, renamed or removed, a flush. `kill_after`
counts them down; the one that it comes to is not done (a write: not all of it), and nothing after it either,
as if the process had been killed there.

It keeps beside everything what a loss of power would leave of it. The content of a file is
certain once it is flushed, and so is a name once its directory is. Of what is not, a loss of power keeps by
seed: of the names in a directory the first so many changes; of a file what was flushed, or the first so many
bytes of what was written since, with zeros behind them or not.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from os import strerror
from random import Random
from typing import NoReturn

from coterie.storage.disk import Buffer, FileInfo, Space

__all__ = ["CrashDisk", "Illness", "Killed"]

ROOM = Space(1 << 40, 1 << 40)
SURVIVALS = ("flushed", "cut", "cut", "zeros")


class Killed(BaseException):
    """The process has ended here. No `except` of the code that runs may think otherwise."""


@dataclass(slots=True)
class Illness:
    """Operations that a disk refuses with EIO, each with this chance."""

    operations: frozenset[str] = frozenset()
    chance: float = 1.0


class Countdown:
    """How many effects the process lives to see."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self.effects = 0
        self.left = -1
        self.dead = False
        self._kill = kill

    def step(self) -> None:
        """Count an effect that is about to happen; the last one does not."""
        self.effects += 1
        if self.left == 0:
            self.dead = True
            self._kill()
        self.left -= self.left > 0


@dataclass(slots=True, eq=False)
class Content:
    """The bytes of a file, and those that were there when it was last flushed."""

    data: bytearray = field(default_factory=bytearray)
    flushed: bytes = b""
    modified_ms: int = 0
    dropped: tuple[int, int] = (0, 0)
    """What a failed flush did not write: the system does not try it again, and says so only once."""

    def flush(self) -> None:
        """Have what is written survive, but for what was dropped."""
        first, end = self.dropped
        self.flushed = (
            bytes(self.data[:first]) + bytes(max(0, end - first)) + bytes(self.data[max(first, end) :])
        )

    def drop(self) -> None:
        """Forget to write what is not flushed."""
        self.dropped = (_common(self.data, self.flushed), len(self.data))

    def recall(self) -> None:
        """Have nothing dropped any more."""
        self.dropped = (0, 0)

    def put(self, data: bytes, at: int) -> None:
        """Write, over what was dropped as well."""
        if at > len(self.data):
            self.data += bytes(at - len(self.data))
        self.data[at : at + len(data)] = data
        first, end = self.dropped
        if at <= first:
            self.dropped = (max(first, at + len(data)), end)

    def truncate(self, size: int) -> None:
        """Cut the file, or make it longer."""
        del self.data[size:]
        self.data += bytes(size - len(self.data))
        self.dropped = (self.dropped[0], min(self.dropped[1], size))

    def renew(self) -> None:
        """Become a new, empty file: of what the one before it held nothing comes back."""
        self.data.clear()
        self.flushed, self.dropped = b"", (0, 0)

    def lose_power(self, random: Random) -> None:
        """Become what is left of it."""
        data, flushed = self.data, self.flushed
        same = _common(data, flushed)
        how = random.choice(SURVIVALS)
        cut = random.randint(min(same, len(data)), len(data))
        if how == "flushed" or self.dropped[0] < self.dropped[1]:
            data[:] = flushed
        elif how == "cut":
            del data[cut:]
        else:
            data[cut:] = bytes(len(data) - cut)
        self.flushed, self.dropped = bytes(data), (0, 0)


def _common(data: bytearray, flushed: bytes) -> int:
    if data.startswith(flushed):
        return len(flushed)
    pairs = zip(data, flushed, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), len(data))


class Folder:
    """The names in a directory, and those that are certain; what changed since, in order."""

    __slots__ = ("_certain", "_changes", "names")

    def __init__(self) -> None:
        self.names: dict[str, Content | Folder] = {}
        self._certain: dict[str, Content | Folder] = {}
        self._changes: list[dict[str, Content | Folder | None]] = []

    def change(self, changes: dict[str, Content | Folder | None]) -> None:
        """Bind names, or with None remove them: all at once."""
        self._changes.append(changes)
        _apply(self.names, changes)

    def sync(self) -> None:
        """Make the names certain."""
        self._certain = dict(self.names)
        self._changes.clear()

    def recall(self) -> None:
        """Have nothing dropped any more: that a system forgets over several lives nobody can know of."""
        for node in self.names.values():
            node.recall()

    def lose_power(self, random: Random) -> None:
        """Become what is left of it, with everything below."""
        for changes in self._changes[: random.randint(0, len(self._changes))]:
            _apply(self._certain, changes)
        self.names = dict(self._certain)
        self._changes.clear()
        for name in sorted(self.names):
            self.names[name].lose_power(random)


def _apply(names: dict[str, Content | Folder], changes: dict[str, Content | Folder | None]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class CrashFile:
    """An open file of a `CrashDisk`."""

    __slots__ = ("_content", "_disk")

    def __init__(self, disk: CrashDisk, content: Content) -> None:
        self._disk = disk
        self._content = content

    def size(self) -> int:
        self._disk.look()
        return len(self._content.data)

    def write(self, parts: Sequence[Buffer], at: int) -> None:
        data = b"".join(parts)
        try:
            self._disk.effect("write")
        except (Killed, OSError):
            self._content.put(data[: self._disk.random.randint(0, len(data))], at)
            raise
        self._content.put(data, at)

    def read(self, size: int, at: int) -> bytes:
        self._disk.look("read")
        return bytes(self._content.data[at : at + size])

    def truncate(self, size: int) -> None:
        self._disk.effect("truncate")
        self._content.truncate(size)

    def renew(self) -> None:
        """Put a new file in the place of this one. That the old one goes first is no effect of its own."""
        self._disk.effect("truncate")
        self._content.renew()

    def sync(self) -> None:
        try:
            self._disk.effect("sync")
        except OSError:
            self._content.drop()
            raise
        self._content.flush()

    def close(self) -> None:
        return


class CrashDisk:
    """A disk that exists only here."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.illness = Illness()
        self.countdown = Countdown(_raise_killed)
        self._root = Folder()
        self.make_directory("data")
        self._root.sync()

    # -- the end of a process

    def kill_after(self, effects: int) -> None:
        """End the process when it has come to so many more effects; -1: never."""
        self.countdown.left = effects

    def revive(self, *, power_lost: bool) -> None:
        """Be there for the next process."""
        self.countdown.left, self.countdown.dead = -1, False
        self.illness = Illness()
        if power_lost:
            self._root.lose_power(self.random)
        else:
            self._root.recall()

    def look(self, operation: str = "") -> None:
        """Fail if there is nobody any more who could look, or the disk is ill."""
        if self.countdown.dead:
            raise Killed
        if operation in self.illness.operations and self.random.random() < self.illness.chance:
            _fail(errno.EIO)

    def effect(self, operation: str) -> None:
        """Count what is about to happen; raise if it must not."""
        self.look(operation)
        self.countdown.step()

    # -- a disk

    def open(self, path: str, *, create: bool = False) -> CrashFile:
        self.look("open")
        folder, name = self._place(path)
        node = folder.names.get(name)
        if node is None:
            if not create:
                _fail(errno.ENOENT)
            self.effect("make")
            node = Content()
            folder.change({name: node})
        if isinstance(node, Folder):
            _fail(errno.EISDIR)
        return CrashFile(self, node)

    def load(self, path: str) -> bytes:
        self.look("read")
        return bytes(self._content(path).data)

    def save(self, path: str, data: bytes, *, sync: bool = False) -> None:
        self.look("save")
        file = self.open(path + ".tmp", create=True)
        file.renew()
        file.write([data], 0)
        if sync:
            file.sync()
        self.rename(path + ".tmp", path)
        if sync:
            self.sync_directory(path.rpartition("/")[0])

    def directories(self, path: str) -> list[str]:
        self.look()
        return [name for name, node in self._folder(path).names.items() if isinstance(node, Folder)]

    def files(self, directory: str) -> dict[str, FileInfo]:
        self.look()
        return {
            name: FileInfo(len(node.data), node.modified_ms)
            for name, node in self._folder(directory).names.items()
            if isinstance(node, Content)
        }

    def space(self, path: str) -> Space:
        return ROOM

    def exists(self, path: str) -> bool:
        self.look()
        folder, name = self._place(path)
        return name in folder.names

    def touch(self, path: str, modified_ms: int) -> None:
        self.look()
        self._content(path).modified_ms = modified_ms

    def make_directory(self, path: str) -> None:
        folder, name = self._place(path)
        if name not in folder.names:
            self.effect("make")
            folder.change({name: Folder()})

    def rename(self, old: str, new: str) -> None:
        (folder, name), (target, wanted) = self._place(old), self._place(new)
        assert folder is target, "nobody moves a file to another directory"
        if name not in folder.names:
            _fail(errno.ENOENT)
        self.effect("rename")
        folder.change({name: None, wanted: folder.names[name]})

    def remove(self, path: str) -> None:
        folder, name = self._place(path)
        if name in folder.names:
            self.effect("remove")
            folder.change({name: None})

    def remove_tree(self, path: str) -> None:
        inside = self._folder(path)
        for name in sorted(inside.names):
            if isinstance(inside.names[name], Folder):
                self.remove_tree(f"{path}/{name}")
            else:
                self.remove(f"{path}/{name}")
        self.remove(path)

    def sync_directory(self, path: str) -> None:
        self.effect("sync")
        self._folder(path).sync()

    # -- places

    def _folder(self, path: str) -> Folder:
        node: Content | Folder = self._root
        for part in path.split("/"):
            below = node.names.get(part) if isinstance(node, Folder) else None
            if below is None:
                _fail(errno.ENOENT)
            node = below
        if not isinstance(node, Folder):
            _fail(errno.ENOTDIR)
        return node

    def _place(self, path: str) -> tuple[Folder, str]:
        above, slash, name = path.rpartition("/")
        return (self._folder(above) if slash else self._root), name

    def _content(self, path: str) -> Content:
        folder, name = self._place(path)
        node = folder.names.get(name)
        if not isinstance(node, Content):
            _fail(errno.ENOENT)
        return node


def _raise_killed() -> NoReturn:
    raise Killed


def _fail(error: int) -> NoReturn:
    raise OSError(error, strerror(error))
