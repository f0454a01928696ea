"""Histories from events, many groups at once: causes are weighed in Python, the rest is counted in columns.

The events come sorted by group and place. Of commits there are only runs, and they are rows of numpy but
for the moment in which a group's causes are weighed.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coterie.history.from_story import overlaid, read_story
from coterie.history.group import history_of, outlined
from coterie.history.log.records import CLASSIC, NEXT_GENERATION, OFFSET_KINDS, Entry, read_entry
from coterie.history.log.runs import Run
from coterie.history.tables import History
from coterie.spark.history.ownership import Register, Spans
from coterie.spark.history.reduce import RUN, TOLD
from coterie.spark.history.schemas import TABLES, rows_batch, told_batch
from coterie.wire.payloads.consumer_offsets import read_group_value

EVENTS_AT_ONCE = 60_000
NUMBERS = ("place", *Run._fields[3:-1])
"""What of a run is a number, in its order."""
PASSED_OVER = (RUN, *OFFSET_KINDS)
IN_COLUMNS = frozenset((RUN, CLASSIC, *OFFSET_KINDS))
"""A group that has no other events can be told of in columns."""


def told_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what happened to groups, a row for some of them, from their events: sorted by group and place."""
    with no_collector():
        for events in whole_groups(batches):
            yield told_at_once(Groups(events))


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
        self.kinds = [set(some.tolist()) for some in np.split(kind, np.searchsorted(group, groups[1:-1]))]
        self._take_runs(events.filter(pa.array(is_run)), group[is_run])
        told = ~np.isin(kind, PASSED_OVER)
        self.records = events.filter(pa.array(told)).select(("kind", "place", "at_ms", "key", "value"))
        self.record_at = np.searchsorted(group[told], groups).tolist()
        self.run_at = np.searchsorted(self.run_group, groups).tolist()

    def _take_runs(self, events: pa.Table, group: npt.NDArray[np.int64]) -> None:
        """Keep the runs, as columns and as tuples."""
        self.run_group = group
        topics = events["topic"].combine_chunks().dictionary_encode()
        self.topics: list[str] = topics.dictionary.to_pylist()
        self.topic = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        self.partition = events["partition"].to_numpy().astype(np.int64)
        self.numbers = {name: events[name].to_numpy() for name in NUMBERS}
        lists = [self.numbers[name].tolist() for name in NUMBERS]
        ids = repeat(None) if events["topic_id"].null_count == len(group) else topic_ids(events["topic_id"])
        topic = map(self.topics.__getitem__, self.topic.tolist())
        columns = zip(topic, self.partition.tolist(), *lists, ids, strict=False)
        self.runs: list[Run] = [*map(tuple.__new__, repeat(Run), columns)]

    def runs_of(self, number: int) -> Sequence[Run]:
        """Return the runs of one group."""
        return self.runs[self.run_at[number] : self.run_at[number + 1]]

    def records_of(self, number: int) -> Iterator[tuple[Any, ...]]:
        """Yield the records of one group: kind, place, time, key and value."""
        first, until = self.record_at[number], self.record_at[number + 1]
        rows = self.records.slice(first, until - first)
        yield from zip(*(column.to_pylist() for column in rows.columns), strict=True)

    def entries_of(self, number: int) -> list[Entry]:
        """Return the records of one group as they are told of. Of commits only tombstones are records."""
        name = self.names[number]
        return [
            Entry(place, at_ms, CLASSIC, name, value=None if value is None else read_group_value(value))
            if kind == CLASSIC
            else read_entry(key, value, place=place, at_ms=at_ms)
            for kind, place, at_ms, key, value in self.records_of(number)
            if kind == CLASSIC or kind in NEXT_GENERATION
        ]

    def history(self, number: int) -> History:
        """Return what happened to one group, told by itself."""
        name = self.names[number]
        found = history_of(name, self.entries_of(number), self.runs_of(number))
        story = [value for kind, *_, value in self.records_of(number) if kind == TOLD and value]
        return overlaid(found, read_story(story).get(name, ())) if story else found

    def spans(self, registered: dict[int, int]) -> Spans:
        """Return the runs of those groups that were registered, under these numbers."""
        given = np.full(len(self.names), -1, np.int64)
        given[list(registered)] = list(registered.values())
        group = given[self.run_group]
        numbers = (self.numbers[name] for name in NUMBERS[1:])
        return Spans(group, self.topics, self.topic, self.partition, *numbers)


def topic_ids(column: pa.ChunkedArray) -> Iterator[UUID | None]:
    for value in column.to_pylist():
        yield None if value is None else UUID(bytes=value)


def told_at_once(groups: Groups) -> pa.RecordBatch:
    """Return what happened to these groups, packed: in columns, or one by one where that cannot be."""
    register, registered = Register(), dict[int, int]()
    rows: dict[str, list[Any]] = defaultdict(list)
    for number, name in enumerate(groups.names):
        if groups.kinds[number] <= IN_COLUMNS:
            outline = outlined(name, groups.entries_of(number), groups.runs_of(number))
            if all(len(chapter.records) == 1 for chapter in outline.chapters):
                registered[number] = register.add(outline)
                rows["generations"] += outline.generations
                rows["waves"] += outline.waves()
                rows["subscriptions"] += outline.subscriptions()
                continue
        history = groups.history(number)
        for table in TABLES:
            rows[table] += getattr(history, table)
    tables = {table: [rows_batch(table, rows[table])] for table in TABLES}
    for table, batch in register.tables(groups.spans(registered)).items():
        tables[table].append(batch)
    return told_batch(len(groups.names), tables)
