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

import numpy as np
import pyarrow as pa

from coterie.base.ids import TopicPartition
from coterie.spark.ledger.files import Offsets, offsets_in, tag_of
from coterie.spark.ledger.location import TableLocation, deltalake
from coterie.spark.ledger.tables import LedgerError

ONLY_GROUP = "coterie/only-group"
"""Whose rows the table has: a number of the one group, or 0 for several."""
SEVERAL = 0
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

    def claim(self) -> dict[str, int]:
        """Return the transaction by which later commits know whose rows these are; {} if it is there."""
        noted, ours = self._noted(ONLY_GROUP), number_of(self._group)
        if noted is None:
            return {ONLY_GROUP: ours}
        return {} if noted in (ours, SEVERAL) else {ONLY_GROUP: SEVERAL}

    def has(self, at: TopicPartition, offsets: Offsets) -> Any:
        """Return for each offset whether the table has a row of it from this group, or raise LedgerError."""
        asked, places = np.unique(offsets, return_inverse=True)
        found = np.zeros(len(asked), bool)
        if len(asked):
            for there in self._rows(at, int(asked[0]), int(asked[-1])):
                nearest = np.minimum(np.searchsorted(asked, there), len(asked) - 1)
                found[nearest[asked[nearest] == there]] = True
            if not found.all():
                self._refuse_mixed(at, int(asked[0]), int(asked[-1]))
        return found[places]

    @property
    def _alone(self) -> bool:
        """Whether all rows are this group's."""
        return self._noted(ONLY_GROUP) in (None, number_of(self._group))

    def _rows(self, at: TopicPartition, first: int, last: int) -> Iterator[Offsets]:
        """Yield the offsets of our rows of a partition from one offset to another."""
        if not self._alone:
            # Whose rows these are is told by the names of their files only.
            store = self._place.store()
            names = [one for one in self._overlapping(at, first, last) if one.startswith(self._tag)]
            yield from (offsets_in(store, name) for name in names)
            return
        topic = at.topic.replace("'", "''")
        where = f""""topic" = '{topic}' and "partition" = {at.partition}"""
        sql = f"""select "offset" from ledger where {where} and "offset" between {first} and {last}"""
        for batch in deltalake().QueryBuilder().register("ledger", self.table).execute(sql):
            yield pa.record_batch(batch)["offset"].to_numpy()

    def _refuse_mixed(self, at: TopicPartition, first: int, last: int) -> None:
        """Raise LedgerError if our rows may be in files that do not say whose they are."""
        if self._alone or all(TAGGED.fullmatch(one) for one in self._overlapping(at, first, last)):
            return
        raise LedgerError(
            f"table {self._place.uri} holds rows of several groups, and they were mixed (by compaction, or by"
            f" an older version): whether it has offsets {first} to {last} of {at} from group {self._group}"
            " cannot be known. Let each group write to a table of its own"
        )

    def _overlapping(self, at: TopicPartition, first: int, last: int) -> list[str]:
        """Return the files that may have rows of a partition between these offsets."""
        asked = {"offset": (first, last), "topic": (at.topic,) * 2, "partition": (at.partition,) * 2}
        found = pa.table(self.table.get_add_actions(flatten=True)).to_pylist()
        return [one["path"] for one in found if all(overlaps(one, name, *asked[name]) for name in asked)]


def overlaps(added: Mapping[str, Any], column: str, first: Any, last: Any) -> bool:
    """Return whether a file may have values of a column between two, by what was noted of it."""
    low, high = added.get(f"min.{column}"), added.get(f"max.{column}")
    return (low is None or low <= last) and (high is None or high >= first)


def number_of(group: str) -> int:
    """Return a group's number: never 0."""
    return int.from_bytes(hashlib.sha256(group.encode()).digest()[:7]) + 1
