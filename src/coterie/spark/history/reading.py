"""What tasks do: segments are read, decoded in columns and reduced; a group's events become its history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from coterie.columns.plan import Plan, chunks_of
from coterie.columns.records import decoder
from coterie.history.group import history_of
from coterie.history.records import OFFSET_KINDS, read_entry
from coterie.history.runs import Run
from coterie.history.segments import visible
from coterie.history.told import overlaid, read_story
from coterie.spark.history.files import STORY, Unit
from coterie.spark.history.reduce import RUN, TOLD, Reducer, batches_of, filled
from coterie.spark.history.schemas import TABLES, arrow_table

__all__ = ["events_of_records", "events_of_units", "told_of"]

CHUNK_BYTES = 16 * 1024 * 1024
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
        planned = Plan(data, tuple(wanted), 0, UNTIL, 0)
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


def told_of(events: pa.Table) -> pa.Table:
    """Return what happened to the group whose events these are: one row."""
    rows = events.sort_by("place").combine_chunks()
    group_id = rows["group_id"][0].as_py()
    kinds = rows["kind"].to_numpy()
    entries = tuple(entries_in(rows.filter(pa.array(kinds >= 0))))
    runs = tuple(runs_in(rows.filter(pa.array(kinds == RUN))))
    history = history_of(group_id, entries, runs)
    story = rows.filter(pa.array(kinds == TOLD))["value"].to_pylist()
    if story:
        history = overlaid(history, read_story(one for one in story if one).get(group_id, ()))
    return arrow_table(group_id, {name: getattr(history, name) for name in TABLES})


def entries_in(rows: pa.Table) -> Iterator[Any]:
    """Yield the records among a group's events; of commits only tombstones are left."""
    columns = (rows[name].to_pylist() for name in ("key", "value", "place", "at_ms", "kind"))
    for key, value, place, at_ms, kind in zip(*columns, strict=True):
        if kind not in OFFSET_KINDS:
            yield read_entry(key, value, place=place, at_ms=at_ms)


def runs_in(rows: pa.Table) -> Iterator[Run]:
    """Yield the runs among a group's events."""
    columns = [rows[name].to_pylist() for name in Run._fields[:-1]]
    ids = [None if one is None else UUID(bytes=one) for one in rows["topic_id"].to_pylist()]
    return map(Run, *columns, ids)
