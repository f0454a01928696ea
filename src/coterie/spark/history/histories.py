"""Histories from events, group by group: only the silences among runs are found in columns, for all at once.

The events come sorted by group and place. Of commits there are only runs.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coterie.base.ids import TopicPartition
from coterie.history.from_story import overlaid, read_stories
from coterie.history.group import group_history
from coterie.history.log.records import CLASSIC, NEXT_GENERATION, OFFSET_KINDS, Entry, read_entry
from coterie.history.log.runs import Run
from coterie.history.ownership import Silence
from coterie.history.tables import History
from coterie.spark.history.reduce import PARTITION_AT, RUN, STORY_LINE
from coterie.spark.history.schemas import TABLES, packed_batch, rows_batch
from coterie.spark.history.silences import Ints, RunColumns, silences_in
from coterie.wire.payloads.consumer_offsets import read_group_value

EVENTS_AT_ONCE = 60_000
NUMBERS = ("place", *Run._fields[3:-1])
"""What of a run is a number, in its order."""
PASSED_OVER = (RUN, *OFFSET_KINDS)


def packed_histories(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield packed histories, a row for some groups, from their events: sorted by group and place."""
    with no_collector():
        for events in whole_groups(batches):
            yield packed_group_histories(Groups(events))


def histories_from(batches: Iterable[pa.RecordBatch]) -> Iterator[History]:
    """Yield the histories themselves, one by one, from the same events."""
    for events in whole_groups(batches):
        groups = Groups(events)
        yield from map(groups.history, range(len(groups.names)))


@contextmanager
def no_collector() -> Iterator[None]:
    """Keep the garbage collector from looking through rows by the million: no history refers to itself."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def whole_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield sorted events some thousands at a time, each group's together."""
    held: list[pa.RecordBatch] = []
    rows, most = 0, EVENTS_AT_ONCE
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows < most:
            continue
        table = pa.Table.from_batches(held)
        last = pc.index(table["group_id"], table["group_id"][rows - 1]).as_py()
        if last:
            yield table.slice(0, last)
        held, rows = table.slice(last).to_batches(), rows - last
        most = max(EVENTS_AT_ONCE, 2 * rows)  # one large group is not looked through again and again
    if rows:
        yield pa.Table.from_batches(held)


class Groups:
    """Events of some groups, taken apart."""

    def __init__(self, events: pa.Table) -> None:
        events = events.combine_chunks()
        encoded = events["group_id"].combine_chunks().dictionary_encode()
        self.names: list[str] = encoded.dictionary.to_pylist()
        group = encoded.indices.to_numpy().astype(np.int64)
        kind = events["kind"].to_numpy()
        is_run = kind == RUN
        groups = np.arange(len(self.names) + 1)
        self._take_runs(events.filter(pa.array(is_run)), group[is_run], groups)
        is_record = ~np.isin(kind, PASSED_OVER)
        records = events.filter(pa.array(is_record)).select(("kind", "place", "at_ms", "key", "value"))
        self.records = list(zip(*(column.to_pylist() for column in records.columns), strict=True))
        self.record_at = np.searchsorted(group[is_record], groups).tolist()

    def _take_runs(self, events: pa.Table, group: Ints, groups: Ints) -> None:
        """Keep the runs, those of one partition of one group together, and find the silences among them."""
        names, pairs, which = partitions_in(events)
        where = group * max(len(pairs), 1) + which
        order = np.argsort(where, kind="stable")  # they come in the order of the log
        where, which = where[order], which[order]
        columns = [events[name].to_numpy()[order] for name in NUMBERS]
        ids = repeat(None) if events["topic_id"].null_count == len(order) else topic_ids(events, order)
        topics = map(names.__getitem__, (pairs >> 32)[which].tolist())
        numbers = (pairs & 0xFFFFFFFF)[which].tolist()
        rows = zip(topics, numbers, *(column.tolist() for column in columns), ids, strict=False)
        self.runs: list[Run] = [*map(tuple.__new__, repeat(Run), rows)]
        begins = np.append(True, where[1:] != where[:-1])[: len(where)]
        starts = np.flatnonzero(begins)
        ends = np.append(starts[1:], len(where))[: len(starts)]
        known = [TopicPartition(names[pair >> 32], pair & 0xFFFFFFFF) for pair in pairs.tolist()]
        owned = [known[pair] for pair in which[starts].tolist()]
        self.stretches = list(zip(owned, starts.tolist(), ends.tolist(), strict=True))
        """Each partition of each group with the places of its runs."""
        self.stretch_at = np.searchsorted(group[order][starts], groups).tolist()
        self.silences: dict[int, list[Silence]] = defaultdict(list)
        """By the place of the partition's first run."""
        for row, silence in silences_in(RunColumns(*columns[1:]), begins):
            self.silences[int(starts[np.searchsorted(starts, row, "right") - 1])].append(silence)

    def records_of(self, number: int) -> Sequence[tuple[Any, ...]]:
        """Return the records of one group: kind, place, time, key and value."""
        return self.records[self.record_at[number] : self.record_at[number + 1]]

    def entries_of(self, number: int) -> list[Entry]:
        """Return the records of one group as entries. Of commits only tombstones are records."""
        name = self.names[number]
        return [
            Entry(place, at_ms, CLASSIC, name, value=None if value is None else read_group_value(value))
            if kind == CLASSIC
            else read_entry(key, value, place=place, at_ms=at_ms)
            for kind, place, at_ms, key, value in self.records_of(number)
            if kind == CLASSIC or kind in NEXT_GENERATION
        ]

    def history(self, number: int) -> History:
        """Return the history of one group."""
        name = self.names[number]
        stretches = self.stretches[self.stretch_at[number] : self.stretch_at[number + 1]]
        runs = {partition: self.runs[first:end] for partition, first, end in stretches}
        silent = {
            partition: self.silences[first] for partition, first, _ in stretches if first in self.silences
        }
        found = group_history(name, self.entries_of(number), runs, silent)
        lines = [
            (place >> PARTITION_AT, value)
            for kind, place, *_, value in self.records_of(number)
            if kind == STORY_LINE and value
        ]
        parts = ([value for _, value in part] for _, part in groupby(lines, key=itemgetter(0)))
        return overlaid(found, read_stories(parts).get(name, ())) if lines else found


def partitions_in(events: pa.Table) -> tuple[list[str], Ints, Ints]:
    """Return the names of topics, the different partitions as topic << 32 | number, and each row's place
    among them.
    """
    topics = events["topic"].combine_chunks().dictionary_encode()
    topic = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    pairs, which = np.unique(
        topic << 32 | events["partition"].to_numpy().astype(np.int64), return_inverse=True
    )
    return topics.dictionary.to_pylist(), pairs, which


def topic_ids(events: pa.Table, order: Ints) -> Iterator[UUID | None]:
    """Yield the topic id of each run, in this order."""
    for value in events["topic_id"].take(pa.array(order)).to_pylist():
        yield None if value is None else UUID(bytes=value)


def packed_group_histories(groups: Groups) -> pa.RecordBatch:
    """Return the histories of these groups, packed."""
    rows: dict[str, list[Any]] = defaultdict(list)
    for number in range(len(groups.names)):
        history = groups.history(number)
        for table in TABLES:
            rows[table] += getattr(history, table)
    tables = {table: [rows_batch(table, rows[table])] for table in TABLES}
    return packed_batch(len(groups.names), tables)
