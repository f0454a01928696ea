"""What is half done, as the disk tells it: a Spark checkpoint's batches, and the transactions of the table.

Spark names the files of both its logs by the batch's number, Delta Lake those of its log by the version; all
are renamed into place, so a name that is there is a record that is whole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

Reached = tuple[str, int]
"""A partition, as `group/topic/partition`, and the offset that it was brought to."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that Spark has committed, and when."""

    number: int
    at_ms: int


class Planned(NamedTuple):
    """A batch as it was planned: how many records it has, and how far it brings each of its partitions."""

    number: int
    records: int
    reached: frozenset[Reached]


def numbers(folder: Path) -> list[int]:
    """Return the batch numbers that a log holds, in order; temporary files and checksums are left out."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if name.isdigit())


def last_committed(checkpoint: Path) -> int:
    """Return the number of the last committed batch, -1 before the first."""
    return max(numbers(checkpoint / "commits"), default=-1)


def under_way(checkpoint: Path) -> int | None:
    """Return the batch whose offsets are logged and whose commit is not: what a crash leaves half done."""
    # Offsets are read first: a batch that is committed in between counts as finished, never as half done.
    last = max(numbers(checkpoint / "offsets"), default=-1)
    return last if last > last_committed(checkpoint) else None


def planned(checkpoint: Path, number: int) -> Planned:
    """Return a batch as the offset log has it: the source's document stands in its last line."""
    document = json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[-1])
    group, ranges = document["group"], document["ranges"]
    return Planned(
        number,
        sum(end - begin for _, _, begin, end in ranges),
        frozenset((f"{group}/{topic}/{partition}", end) for topic, partition, _, end in ranges),
    )


def commits(checkpoint: Path) -> list[Batch]:
    """Return the committed batches that the log still holds, with their times, for the picture."""
    folder = checkpoint / "commits"
    found = [
        Batch(number, (folder / str(number)).stat().st_mtime_ns // 1_000_000) for number in numbers(folder)
    ]
    return sorted(found, key=lambda batch: batch.number)


class Transactions:
    """Follows the application transactions of a Delta Lake table from now on."""

    def __init__(self, table: Path) -> None:
        self.reached: set[Reached] = set()
        self._log = table / "_delta_log"
        versions = (int(entry.stem) for entry in self._log.glob("*.json") if entry.stem.isdigit())
        self._next = 1 + max(versions, default=-1)

    def read_on(self) -> None:
        """Read what was committed since the last look."""
        while (entry := self._log / f"{self._next:020}.json").exists():
            for line in entry.read_text().splitlines():
                transaction = json.loads(line).get("txn")
                if transaction is not None:
                    self.reached.add((transaction["appId"], transaction["version"]))
            self._next += 1

    def have(self, batch: Planned) -> bool:
        """Return whether a batch is in the table, all of it."""
        return bool(batch.reached) and batch.reached <= self.reached
