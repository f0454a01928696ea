"""The account that a table keeps of a group's rows, as of one version: how far each partition is in it, and
which rows below that it has.

How far is an application transaction, `group/topic/partition`: the offset after the last. It says nothing of
what lies below, which may have been left out (a fill-in, a row that a join held back) as well as written. The
rows themselves say that: whether one of our own with this offset is in the table.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from coterie.base.ids import TopicPartition
from coterie.spark.ledger.files import (
    RECORDS,
    ByPartition,
    Offsets,
    offsets_by_partition,
    offsets_in,
    tag_of,
)
from coterie.spark.ledger.location import TableLocation, deltalake
from coterie.spark.ledger.tables import LedgerError

ONLY_GROUP = "coterie/only-group"
"""Whose rows the table has: a number of the one group, or 0 for several."""
SEVERAL = 0
KEY = "coterie/key"
"""A number of the key by which rows replace others."""
COMPACTED, CLEANED, LONGEST_BATCH = "coterie/compacted", "coterie/cleaned", "coterie/longest-batch"
"""At which version the table was compacted; in ms up to when leftovers were removed, and how long a batch has
taken at most.
"""
PARTED = "partition."
"""Before the names of a table's partition columns, where the library tells of its files."""
ASKED_AT_ONCE = 50
"""So many Kafka partitions are asked for by one query of a table."""
Bounds = Mapping[TopicPartition, tuple[int, int]]
TAGGED = re.compile(r"part-[0-9a-f]{12}-[0-9a-f-]{36}\.zstd\.parquet")


class Account:
    """What one version of a table says of one group."""

    def __init__(self, place: TableLocation, table: Any, group: str) -> None:
        self.table = table
        self._place, self._group, self._tag = place, group, tag_of(group)
        self._notes: dict[str, int | None] = {}

    def reached(self, at: TopicPartition) -> int:
        """Return up to which offset the table has a partition; 0 if it has nothing of it."""
        return self._noted(self.app_id(at)) or 0

    def batch(self, query: str) -> int | None:
        """Return the last batch of a query that the table has."""
        return self._noted(self.query_id(query))

    def batch_rows(self, query: str) -> int | None:
        """Return the number of rows of that batch, None where none is noted."""
        return self._noted(self.rows_id(query))

    def _noted(self, app: str) -> int | None:
        """Return an application's transaction; asked for once, as the library looks through all of them."""
        if app not in self._notes:
            self._notes[app] = self.table.transaction_version(app)
        return self._notes[app]

    def app_id(self, at: TopicPartition) -> str:
        """Return the application that says how far a partition is."""
        return f"{self._group}/{at.topic}/{at.partition}"

    def query_id(self, query: str) -> str:
        """Return the application that says which batch of a query was the last."""
        return f"{self._group}//{query}"

    def rows_id(self, query: str) -> str:
        """Return the application that says how many rows that batch had."""
        return f"{self._group}//{query}/rows"

    def claim(self, key_number: int) -> dict[str, int]:
        """Return the transactions by which later commits know whose rows these are, and by which key they are
        replaced; without those that are there.
        """
        noted, ours = self._noted(ONLY_GROUP), number_of(self._group)
        key = {KEY: key_number} if key_number and self._noted(KEY) is None else {}
        if noted is None:
            return {ONLY_GROUP: ours, **key}
        return key if noted in (ours, SEVERAL) else {ONLY_GROUP: SEVERAL, **key}

    def refuse_other_key(self, key_number: int) -> None:
        """Raise LedgerError if rows of the table are not replaced by this key (0: by none)."""
        noted = self._noted(KEY) or 0
        if key_number and self._noted(ONLY_GROUP) not in (None, number_of(self._group)):
            raise LedgerError(
                f"table {self._place.uri} is another group's: one group alone can write a table by key"
            )
        if noted != key_number and self._noted(ONLY_GROUP) is not None:
            by = "by another key, or another column orders them" if noted and key_number else "without a key"
            raise LedgerError(
                f"rows of table {self._place.uri} were written"
                f" {'by key' if noted and not key_number else by}: go on so, or take another table"
            )

    def there(self, asked: ByPartition) -> ByPartition:
        """Return the offsets of these that the table has a row of from this group, or raise LedgerError."""
        wanted = {at: np.unique(offsets) for at, offsets in asked.items()}
        found = {at: np.zeros(len(offsets), bool) for at, offsets in wanted.items()}
        bounds = {at: (int(offsets[0]), int(offsets[-1])) for at, offsets in wanted.items()}
        for at, some in self._rows(bounds):
            nearest = np.minimum(np.searchsorted(wanted[at], some), len(wanted[at]) - 1)
            found[at][nearest[wanted[at][nearest] == some]] = True
        self._refuse_mixed({at: bounds[at] for at, marks in found.items() if not marks.all()})
        return {at: wanted[at][marks] for at, marks in found.items()}

    def compacted(self) -> int:
        """Return the version at which the table was compacted last."""
        return self._noted(COMPACTED) or 0

    def cleaned_ms(self) -> int:
        """Return the time up to which files that no commit names may be gone, in ms since 1970."""
        return self._noted(CLEANED) or 0

    def longest_batch_ms(self) -> int:
        """Return the time that a batch has taken at most, until its commit."""
        return self._noted(LONGEST_BATCH) or 0

    def longest_note(self, taken_ms: int) -> dict[str, int]:
        """Return the transaction that says that a batch has taken so long; {} if one has taken longer."""
        return {LONGEST_BATCH: taken_ms} if taken_ms > self.longest_batch_ms() else {}

    @property
    def alone(self) -> bool:
        """Whether all rows are this group's."""
        return self._noted(ONLY_GROUP) in (None, number_of(self._group))

    def _rows(self, bounds: Bounds) -> Iterator[tuple[TopicPartition, Offsets]]:
        """Yield the offsets of our rows of partitions, each from one offset to another, by partition."""
        if not self.alone:
            # Whose rows these are is told by the names of their files only.
            store = self._place.store()
            for one in self._overlapping(bounds):
                if name_of(one).startswith(self._tag):
                    found = offsets_in(store, unquote(one["path"]), values_in(one))
                    yield from (some for some in found if some[0] in bounds)
            return
        conditions = [condition(at, *bound) for at, bound in bounds.items()]
        for start in range(0, len(conditions), ASKED_AT_ONCE):
            where = " or ".join(conditions[start : start + ASKED_AT_ONCE])
            sql = f"""select "topic", "partition", "offset" from ledger where {where}"""
            for batch in deltalake().QueryBuilder().register("ledger", self.table).execute(sql):
                yield from offsets_by_partition(pa.record_batch(batch).cast(RECORDS))

    def _refuse_mixed(self, bounds: Bounds) -> None:
        """Raise LedgerError if our rows may be in files that do not say whose they are."""
        if not bounds or self.alone or all(map(TAGGED.fullmatch, map(name_of, self._overlapping(bounds)))):
            return
        at, (first, last) = next(iter(bounds.items()))
        raise LedgerError(
            f"table {self._place.uri} holds rows of several groups, and they were mixed (by compaction, or by"
            f" an older version): whether it has offsets {first} to {last} of {at} from group {self._group}"
            " cannot be known. Let each group write to a table of its own"
        )

    def _overlapping(self, bounds: Bounds) -> list[dict[str, Any]]:
        """Return the log entries of the files that may have rows of partitions between these offsets."""
        added = pa.table(self.table.get_add_actions(flatten=True)).to_pylist()
        return [one for one in added if any(may_have(one, at, *bound) for at, bound in bounds.items())]


def name_of(added: Mapping[str, Any]) -> str:
    """Return a file's name without its folder."""
    name: str = added["path"].rpartition("/")[2]
    return name


def values_in(added: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a table's partition columns that the library tells of a file."""
    return {name.removeprefix(PARTED): value for name, value in added.items() if name.startswith(PARTED)}


def condition(at: TopicPartition, first: int, last: int) -> str:
    """Return the rows of a partition between two offsets, in SQL."""
    topic = at.topic.replace("'", "''")
    place = f""""topic" = '{topic}' and "partition" = {at.partition}"""
    return f"""({place} and "offset" between {first} and {last})"""


def may_have(added: Mapping[str, Any], at: TopicPartition, first: int, last: int) -> bool:
    """Return whether a file may have rows of a partition between two offsets."""
    asked = {"offset": (first, last), "topic": (at.topic,) * 2, "partition": (at.partition,) * 2}
    return all(overlaps(added, name, *asked[name]) for name in asked)


def overlaps(added: Mapping[str, Any], column: str, first: Any, last: Any) -> bool:
    """Return whether a file may have values of a column between two, by what was noted of it."""
    only = added.get(PARTED + column)
    low, high = added.get(f"min.{column}", only), added.get(f"max.{column}", only)
    return (low is None or low <= last) and (high is None or high >= first)


def number_of(group: str) -> int:
    """Return a group's number: never 0."""
    return int.from_bytes(hashlib.sha256(group.encode()).digest()[:7]) + 1
