"""Records in columns, reduced as they are read: of the commits only runs go on (`coterie.history.log.runs`).

Nothing here is done commit by commit: keys are numbered by Arrow, values read and runs made by compiled
loops. Values of rare shape (metadata longer than 126 bytes, versions to come) are read one by one, and bad
bytes found so.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coterie.base.errors import Corrupt
from coterie.history.log.runs import RUN_ENDS_MS, Run
from coterie.wire.payloads.consumer_offsets import OffsetCommitKey, read_key, read_offset_value

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

RUN, STORY_LINE = -1, -2
"""Kinds of events that are no records: a run of commits, a line of our own story."""
PARTITION_AT = 48
"""The place of a line of our own story is its offset, and from this bit on the number of its partition."""

EVENTS = pa.schema(
    [
        ("group_id", pa.string()),
        ("kind", pa.int32()),
        ("place", pa.int64()),
        ("at_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("count", pa.int64()),
        ("first_ms", pa.int64()),
        ("last_ms", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("silent_from_ms", pa.int64()),
        ("silent_to_ms", pa.int64()),
        ("silent_before", pa.int64()),
        ("silent_after", pa.int64()),
        ("topic_id", pa.binary()),
    ]
)


@cache
def loops() -> ModuleType:
    """Return `coterie.arrow.commits`, loaded where records are read.

    The driver, which takes this module's schema only, need not wait half a second for numba.
    """
    from coterie.arrow import commits

    return commits


class KeyBook:
    """Numbers the keys of records, each of which is read once."""

    def __init__(self) -> None:
        self.keys: list[OffsetCommitKey | None] = []
        self.raw: list[bytes] = []
        self.groups: list[str] = []
        self.group_of: list[int] = []
        self._numbers: dict[bytes, int] = {}
        self._group_numbers: dict[str, int] = {}

    def number(self, key: bytes) -> int:
        """Return a key's number."""
        found = self._numbers.get(key)
        return self._add(key) if found is None else found

    def _add(self, key: bytes) -> int:
        read = read_key(key)
        group = read.group or ""
        self._numbers[key] = len(self.keys)
        self.keys.append(read if isinstance(read, OffsetCommitKey) else None)
        self.raw.append(key)
        if group not in self._group_numbers:
            self._group_numbers[group] = len(self.groups)
            self.groups.append(group)
        self.group_of.append(self._group_numbers[group])
        return self._numbers[key]

    def commits(self) -> dict[str, pa.Array]:
        """Return the group, topic and partition of commits' keys, in columns, by number; those of other
        records are null.
        """
        return {
            "group_id": pa.array([key and key.group for key in self.keys], pa.string()),
            "topic": pa.array([key and key.topic for key in self.keys], pa.string()),
            "partition": pa.array([key and key.partition for key in self.keys], pa.int32()),
        }

    def numbers(self, keys: pa.Array) -> Ints:
        """Return the numbers of many keys. A record without a key is a record of nobody's: Corrupt."""
        encoded = keys.dictionary_encode()
        if encoded.null_count:
            raise Corrupt("record without a key", expected="none in this topic")
        known = np.array([self.number(key) for key in encoded.dictionary.to_pylist()], np.int64)
        return known[encoded.indices.to_numpy(zero_copy_only=False)] if len(known) else known


class Values(NamedTuple):
    """What committed offsets say, in columns."""

    offset: Ints
    at_ms: Ints
    leader_epoch: Ints
    metadata_at: Ints
    metadata_size: Ints


def offset_values(values: pa.Array, rows: Ints) -> Values:
    """Return the committed offsets of these rows, none of which is null. Corrupt for bad bytes."""
    starts, data = parts(values)
    table, rare = loops().values_table(starts, data, rows)
    found = Values(*table[: len(Values._fields)])
    for place in rare.tolist():
        row = int(rows[place])
        read_slowly(data, int(starts[row]), int(starts[row + 1]), place, found)
    return found


def parts(values: pa.Array) -> tuple[npt.NDArray[Any], Bytes]:
    """Return the start of each value of an array of bytes, with the end of the last, and the bytes."""
    _, stops, data = values.buffers()
    width = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    starts = np.frombuffer(stops, width)[values.offset : values.offset + len(values) + 1]
    return starts, np.frombuffer(data or b"", np.uint8)


def read_slowly(data: Bytes, start: int, end: int, place: int, into: Values) -> None:
    """Read one value by the general reader; it raises Corrupt if it is none."""
    raw = data[start:end].tobytes()
    found = read_offset_value(raw)
    text = found.metadata.encode()
    into.offset[place], into.at_ms[place] = found.offset, found.commit_timestamp
    into.leader_epoch[place] = found.leader_epoch
    into.metadata_at[place], into.metadata_size[place] = start + raw.find(text), len(text)


class Runs(NamedTuple):
    """Runs in columns, as `coterie.arrow.commits` has them: whose, in which epoch and quarter, and what
    `coterie.history.log.runs.Run` has. `topic_id`: a number, 0 for none.
    """

    key: Ints
    epoch: Ints
    quarter: Ints
    place: Ints
    number: Ints
    first_ms: Ints
    last_ms: Ints
    first: Ints
    last: Ints
    silent_from: Ints
    silent_to: Ints
    silent_before: Ints
    silent_after: Ints
    topic_id: Ints


class Reducer:
    """Takes the records of a log in their order; gives back runs, and all other records as they are."""

    def __init__(self) -> None:
        self.book = KeyBook()
        self._runs: list[Ints] = []
        self._counted = np.zeros(0, np.int64)
        self._ids: dict[bytes, int] = {}

    def take(self, keys: pa.Array, values: pa.Array, places: Ints, stamps_ms: Ints) -> pa.RecordBatch | None:
        """Take records; return those of them that are no commits."""
        numbers = self.book.numbers(keys)
        commits = np.array([key is not None for key in self.book.keys], bool)
        is_commit = commits[numbers] & values.is_valid().to_numpy(zero_copy_only=False)
        rows, others = np.flatnonzero(is_commit), np.flatnonzero(~is_commit)
        fresh = np.zeros(len(self.book.groups) - len(self._counted), np.int64)
        self._counted = np.concatenate((self._counted, fresh))
        epochs = loops().epochs_table(
            numbers, np.array(self.book.group_of, np.int64), ~commits, self._counted
        )
        if len(rows):
            self._reduce(numbers[rows], epochs[rows], places[rows], stamps_ms[rows], values, rows)
        return self._others(others, numbers, values, places, stamps_ms) if len(others) else None

    def _reduce(
        self, keys: Ints, epochs: Ints, places: Ints, stamps_ms: Ints, values: pa.Array, rows: Ints
    ) -> None:
        found = offset_values(values, rows)
        at_ms = np.where(found.at_ms > 0, found.at_ms, stamps_ms)
        table = loops().runs_table(
            keys, epochs, places, at_ms, found.offset, span_ms=RUN_ENDS_MS, key_count=len(self.book.keys)
        )
        runs = Runs(*table)
        table[Runs._fields.index("topic_id")] = self._topic_ids(runs.key, rows[runs.topic_id], values)
        self._runs.append(table)

    def _topic_ids(self, keys: Ints, rows: Ints, values: pa.Array) -> Ints:
        """Return the number of each key's topic id, as its first value here has it; 0 for none."""
        unique, first = np.unique(keys, return_index=True)
        numbers = np.zeros(len(self.book.keys), np.int64)
        for key, row in zip(unique.tolist(), rows[first].tolist(), strict=True):
            topic_id = read_offset_value(values[row].as_py()).topic_id
            if topic_id is not None:
                numbers[key] = self._ids.setdefault(topic_id.bytes, len(self._ids) + 1)
        return numbers[keys]

    def _others(
        self, rows: Ints, numbers: Ints, values: pa.Array, places: Ints, stamps_ms: Ints
    ) -> pa.RecordBatch:
        """Return records as events; they are read where their group is told of."""
        which = numbers[rows].tolist()
        columns = {
            "group_id": pa.array([self.book.groups[self.book.group_of[one]] for one in which], pa.string()),
            "kind": pa.array([int.from_bytes(self.book.raw[one][:2], "big") for one in which], pa.int32()),
            "place": pa.array(places[rows]),
            "at_ms": pa.array(stamps_ms[rows]),
            "key": pa.array([self.book.raw[one] for one in which], pa.binary()),
            "value": values.take(pa.array(rows)).cast(pa.binary()),
        }
        return filled(columns, len(which))

    def runs(self) -> pa.RecordBatch | None:
        """Return the runs of all commits that were taken, and forget them."""
        if not self._runs:
            return None
        runs = Runs(*loops().joined(self._runs))
        self._runs = []
        which, count = pa.array(runs.key), len(runs.key)
        columns = {
            **{name: column.take(which) for name, column in self.book.commits().items()},
            "kind": pa.array(np.full(count, RUN, np.int32)),
            "place": pa.array(runs.place),
            "count": pa.array(runs.number),
            "first_ms": pa.array(runs.first_ms),
            "last_ms": pa.array(runs.last_ms),
            "first": pa.array(runs.first),
            "last": pa.array(runs.last),
            "silent_from_ms": pa.array(runs.silent_from),
            "silent_to_ms": pa.array(runs.silent_to),
            "silent_before": pa.array(runs.silent_before),
            "silent_after": pa.array(runs.silent_after),
            "topic_id": pa.array([None, *self._ids], pa.binary()).take(pa.array(runs.topic_id)),
        }
        return filled(columns, count)


assert set(EVENTS.names) >= set(Run._fields)


def filled(columns: dict[str, pa.Array], rows: int) -> pa.RecordBatch:
    """Return a batch of events, with nulls where an event has nothing to say."""
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(rows, field.type) for field in EVENTS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENTS)


def batches_of(reducer: Reducer, taken: Iterator[pa.RecordBatch | None]) -> Iterator[pa.RecordBatch]:
    """Yield all events: the records as they come, the runs when they are complete."""
    for batch in taken:
        if batch is not None:
            yield batch
    last = reducer.runs()
    if last is not None:
        yield last
