"""What a Spark checkpoint tells from outside: which batch was planned last, and which was committed.

Spark names the files of both logs by the batch's number and renames them into place, so a name that is there
is a record that is whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that Spark has committed, and when."""

    number: int
    at_ms: int


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
    planned = max(numbers(checkpoint / "offsets"), default=-1)
    return planned if planned > last_committed(checkpoint) else None


def commits(checkpoint: Path) -> list[Batch]:
    """Return the committed batches that the log still holds, with their times, for the picture."""
    folder = checkpoint / "commits"
    found = [
        Batch(number, (folder / str(number)).stat().st_mtime_ns // 1_000_000) for number in numbers(folder)
    ]
    return sorted(found, key=lambda batch: batch.number)
