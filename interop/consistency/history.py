"""What clients did and what they were answered: one operation each, kept as lines of JSON.

Times are seconds of one monotonic clock. An outcome is unknown where nobody can say whether the request
took effect.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias, TypeVar

__all__ = [
    "BY",
    "Commit",
    "Copies",
    "End",
    "EndRead",
    "FinalRead",
    "History",
    "OffsetRead",
    "Operation",
    "Outcome",
    "Poll",
    "Send",
    "Transaction",
    "read_history",
    "write_history",
]

BY = " by "


class Outcome(StrEnum):
    """What is known of a request."""

    OK = "ok"
    UNKNOWN = "unknown"


class End(StrEnum):
    """What is known of a transaction's end."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """A record that was sent, and the offset that was acknowledged. No two have the same value."""

    client: str
    topic: str
    partition: int
    value: str
    began: float
    ended: float
    outcome: Outcome
    offset: int | None = None
    transaction: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transaction, and how it ended."""

    name: str
    end: End


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """What a consumer with partitions of its own was given, each (topic, partition, offset, value).

    It has read from the beginning on; each `client` is one consumer, whose polls are in their order.
    """

    client: str
    read_committed: bool
    records: list[tuple[str, int, int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRead:
    """The end of a partition that a client was answered: the offset that the next record would get."""

    topic: str
    partition: int
    offset: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """An offset that was committed for a group; who owns the partition only commits higher ones."""

    group: str
    topic: str
    partition: int
    offset: int
    began: float
    ended: float
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRead:
    """A committed offset that a client was answered, -1 where nothing is committed."""

    group: str
    topic: str
    partition: int
    offset: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalRead:
    """All of a partition, each (offset, value), when nothing fails any more; `end` is where reading ended."""

    topic: str
    partition: int
    read_committed: bool
    end: int
    records: list[tuple[int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """A group that copies each record of a topic to the same partition of another, in transactions that
    commit its offsets. A copy has the record's value, `BY`, and what makes it one of a kind.
    """

    group: str
    source: str
    target: str


Operation: TypeAlias = Send | Transaction | Poll | EndRead | Commit | OffsetRead | FinalRead | Copies
KINDS: dict[str, type[Operation]] = {
    kind.__name__: kind for kind in (Send, Transaction, Poll, EndRead, Commit, OffsetRead, FinalRead, Copies)
}
Kind = TypeVar("Kind", bound=Operation)


class History:
    """The operations of all clients, in the order in which they ended. Any thread may add to it."""

    def __init__(self, operations: Iterable[Operation] = ()) -> None:
        self.operations: list[Operation] = list(operations)
        self._lock = threading.Lock()

    def add(self, *operations: Operation) -> None:
        """Note what has ended."""
        with self._lock:
            self.operations.extend(operations)

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Return the operations of a kind."""
        return [one for one in self.operations if isinstance(one, kind)]


def write_history(history: History, path: Path) -> None:
    """Keep a history as a file."""
    with path.open("w", encoding="utf-8") as file:
        for one in history.operations:
            file.write(json.dumps({"operation": type(one).__name__, **asdict(one)}) + "\n")


def read_history(path: Path) -> History:
    """Return the history that a file has."""
    found: list[Operation] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        kind = KINDS[fields.pop("operation")]
        if "records" in fields:
            fields["records"] = [tuple(one) for one in fields["records"]]
        for name, enum in (("outcome", Outcome), ("end", End)):
            if isinstance(fields.get(name), str):
                fields[name] = enum(fields[name])
        found.append(kind(**fields))
    return History(found)
