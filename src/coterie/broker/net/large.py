"""Requests and answers that are too large to be copied whole: 50 MB take the loop's time for 70 ms."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from mmap import ACCESS_COPY, ACCESS_WRITE, mmap

LARGE_BYTES = 1 << 22
ROOM_FROM = 1 << 20  # so much of a large request is there before room is made for all of it
WRITTEN_AT_ONCE = 1 << 20  # so much of a large answer is written between two stops
ROOM_ACCESS = ACCESS_WRITE if sys.platform == "win32" else ACCESS_COPY  # for this process alone


class LargeRequest:
    """A request of which a part has come, without its size.

    It is read where it lies: a buffer that grows would be moved as it does, 32 MB at a time. Room for all of
    it is filled page by page; but a page may have 2 MB, and some systems count all of the room at once, so
    there is none for who announces much and sends little.
    """

    __slots__ = ("missing", "room")

    def __init__(self, room: mmap, size: int) -> None:
        self.room = room
        self.missing = size
        """How many of its bytes are still to come."""

    @property
    def held(self) -> int:
        """How many of its bytes have come."""
        return self.room.tell()

    def gather(self, data: bytes | memoryview) -> bytes | memoryview:
        """Put what has come to it; return what comes behind it."""
        taken = self.room.write(data[: self.missing])
        self.missing -= taken
        return data[taken:]


def room_for(size: int) -> mmap:
    """Return room for a request of this size. Raises OSError where there is no memory for it."""
    return mmap(-1, size, access=ROOM_ACCESS)


class LargeAnswer:
    """The rest of an answer, written as it is taken: a copy of all would take as much again."""

    __slots__ = ("_stretches", "left", "under_way")

    def __init__(self, parts: list[bytes], size: int) -> None:
        self._stretches, self.left = stretches(parts), size
        self.under_way = False  # whether somebody is about to go on

    def write(self, write: Callable[[bytes], None], is_taken: Callable[[], bool]) -> Iterator[None]:
        """Write as long as it is taken, until none is left."""
        while self.left and is_taken():
            data = next(self._stretches)
            self.left -= len(data)
            write(data)
            yield
        self.under_way = False


def stretches(parts: list[bytes]) -> Iterator[bytes]:
    """Yield an answer as it is written, so much at once."""
    some: list[memoryview] = []
    size = 0
    for part in parts:
        for at in range(0, len(part), WRITTEN_AT_ONCE):
            some.append(memoryview(part)[at : at + WRITTEN_AT_ONCE])
            size += len(some[-1])
            if size >= WRITTEN_AT_ONCE:
                yield b"".join(some)
                some, size = [], 0
    if some:
        yield b"".join(some)
