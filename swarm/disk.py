"""A broker's disk in the simulation: the memory disk of the store, its faults by seed, and what a crash
leaves.

A process that is killed loses nothing that it wrote. A loss of power cuts every file somewhere behind what
was flushed of it: with one replica and Kafka's default of never flushing, acknowledged records may go, and
so they may here; what was flushed may not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from coterie.storage.memory import Faults, MemoryDisk


class SimDisk(MemoryDisk):
    """A disk that may be ill for a while, and whose directories another disk can take over."""

    @property
    def is_ill(self) -> bool:
        """Whether anything may fail now."""
        faults = self.faults
        return bool(faults.refuse or faults.every or faults.chance or faults.capacity is not None)

    def heal(self) -> None:
        """Make everything work again."""
        self.faults = Faults()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Let nothing fail meanwhile: whoever only looks, or must start, is not to be hit."""
        faults, self.faults = self.faults, Faults()
        try:
            yield
        finally:
            self.faults = faults

    def bytes_used(self) -> int:
        """Return the number of bytes that lie on the disk."""
        return sum(
            info.size for directory in ("data", *self._paths()) for info in self.files(directory).values()
        )

    def _paths(self) -> list[str]:
        return [f"data/{name}" for name in self.directories("data")]

    def take_over(self, directory: str, other: SimDisk) -> None:
        """Copy a directory of another disk to the same place of this one, safe from a loss of power."""
        with self.quiet(), other.quiet():
            self.make_directory(directory)
            for name in sorted(other.files(directory)):
                self.save(f"{directory}/{name}", other.load(f"{directory}/{name}"), sync=True)


def ill(disk: SimDisk, random: Random) -> str:
    """Make a disk ill in one of the ways a disk can be, and return in which."""
    kind = random.choice(("writes fail", "some writes fail", "full", "flushes fail", "saves fail"))
    if kind == "full":
        disk.faults = Faults(capacity=disk.bytes_used() + random.randint(0, 300))
    elif kind == "writes fail":
        disk.faults = Faults(refuse={"write"})
    elif kind == "some writes fail":
        disk.faults = Faults(chance={"write": random.uniform(0.1, 0.9)})
    elif kind == "flushes fail":
        disk.faults = Faults(chance={"sync": random.uniform(0.1, 1.0)})
    else:
        disk.faults = Faults(chance={"save": 0.5, "rename": 0.3, "truncate": 0.5, "write": 0.2})
    return kind
