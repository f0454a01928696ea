"""What tasks do: segments are read, decoded in columns and reduced; a group's events become its history."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from coterie.columns.headers import headers_of
from coterie.columns.plan import Plan, chunks_of
from coterie.columns.records import decoder
from coterie.history.group import history_of
from coterie.history.layout import STORY
from coterie.history.records import OFFSET_KINDS, Entry, read_entry
from coterie.history.runs import Run
from coterie.history.segments import visible
from coterie.history.tables import History
from coterie.history.told import overlaid, read_story
from coterie.spark.history.files import Unit
from coterie.spark.history.reduce import RUN, TOLD, Reducer, batches_of, filled
from coterie.spark.history.schemas import told_batch

__all__ = ["GROUP", "events_of_records", "events_of_units", "history_from", "rows_of", "told_of"]

CHUNK_BYTES = 16 * 1024 * 1024
GROUPS_AT_ONCE = 100
HEAD = ("group_id", "kind", "place", "at_ms", "key", "value")
COLUMNS = (*HEAD, *Run._fields)
"""In the order that a row of them is read in: a run's columns are the run, but for its topic's id."""
GROUP, RUN_AT = 0, len(HEAD)
FIRST, UNTIL = -(2**63), 2**63 - 1


def events_of_units(units: Iterable[Unit]) -> Iterator[pa.RecordBatch]:
    """Yield the events of some units, each of which stands for itself."""
    for unit in units:
        if unit.topic == STORY:
            yield from (story_events(columns) for columns in decoded(unit))
            continue
        reducer = Reducer()
        yield from batches_of(reducer, (taken(reducer, columns) for columns in decoded(unit)))


def decoded(unit: Unit) -> Iterator[dict[str, pa.Array]]:
    """Yield the visible records of a unit's segments, in columns, some megabytes at a time."""
    decode = decoder()
    for number, path in enumerate(unit.paths):
        data = Path(path).read_bytes()
        later = (Path(after).read_bytes() for after in (*unit.paths[number + 1 :], *unit.later))
        wanted = visible(data, later)
        planned = Plan(data, *headers_of(wanted), 0, UNTIL, 0)
        for chunk in chunks_of(planned, chunk_bytes=CHUNK_BYTES):
            yield decode(chunk, first=FIRST, until=UNTIL, headers=False)


def taken(reducer: Reducer, columns: dict[str, pa.Array]) -> pa.RecordBatch | None:
    places = columns["offset"].to_numpy(zero_copy_only=False)
    stamps_ms = columns["timestamp"].cast(pa.int64()).to_numpy(zero_copy_only=False) // 1000
    return reducer.take(columns["key"], columns["value"], places, stamps_ms)


def story_events(columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """Return lines of our own story as events of their groups."""
    keys = [b"" if key is None else key for key in columns["key"].to_pylist()]
    count = len(keys)
    events = {
        "group_id": pa.array([key.decode(errors="replace") for key in keys], pa.string()),
        "kind": pa.array(np.full(count, TOLD, np.int32)),
        "place": columns["offset"],
        "value": columns["value"],
    }
    return filled(events, count)


def events_of_records(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the events of records as the source has them: key, value, offset, timestamp."""
    reducer = Reducer()

    def each() -> Iterator[pa.RecordBatch | None]:
        for batch in batches:
            columns = {name: batch.column(name) for name in ("key", "value", "offset", "timestamp")}
            yield taken(reducer, columns) if batch.num_rows else None

    yield from batches_of(reducer, each())


def told_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what happened to groups, from their events: sorted by group, and by place within it."""
    told: list[History] = []
    with no_collector():
        for group_id, rows in groupby(rows_of(batches), key=itemgetter(GROUP)):
            told.append(history_from(group_id, rows))
            if len(told) >= GROUPS_AT_ONCE:
                yield told_batch(told)
                told = []
        if told:
            yield told_batch(told)


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


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True)


def history_from(group_id: str, rows: Iterable[tuple[Any, ...]]) -> History:
    """Return what happened to the group whose events these are. Of commits only tombstones are records."""
    entries: list[Entry] = []
    runs: list[Run] = []
    story: list[bytes] = []
    for row in rows:
        _, kind, place, at_ms, key, value = row[:RUN_AT]
        if kind == RUN:
            run: Run = tuple.__new__(Run, row[RUN_AT:])
            runs.append(run if run.topic_id is None else run._replace(topic_id=UUID(bytes=row[-1])))
        elif kind == TOLD:
            story += [value] if value else []
        elif kind not in OFFSET_KINDS:
            entries.append(read_entry(key, value, place=place, at_ms=at_ms))
    history = history_of(group_id, entries, runs)
    return overlaid(history, read_story(story).get(group_id, ())) if story else history
