"""What tasks do: segments are read, decoded in columns and reduced; whole partitions told at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from coterie.columns.headers import headers_of
from coterie.columns.plan import Plan, chunks_of
from coterie.columns.records import decoder
from coterie.history.layout import STORY
from coterie.history.segments import visible
from coterie.spark.history.files import Unit
from coterie.spark.history.reduce import TOLD, Reducer, batches_of, filled
from coterie.spark.history.telling import no_collector, told_of
from coterie.spark.workers import settle

__all__ = ["events_of_records", "events_of_units", "told_of_units"]

CHUNK_BYTES = 4 * 1024 * 1024
ORDER = [("group_id", "ascending"), ("place", "ascending")]
FIRST, UNTIL = -(2**63), 2**63 - 1


def events_of_units(units: Iterable[Unit]) -> Iterator[pa.RecordBatch]:
    """Yield the events of some units, each of which stands for itself."""
    for unit in units:
        if unit.topic == STORY:
            yield from (story_events(columns) for columns in decoded(unit))
            continue
        reducer = Reducer()
        yield from batches_of(reducer, (taken(reducer, columns) for columns in decoded(unit)))


def told_of_units(units: Iterable[Unit]) -> Iterator[pa.RecordBatch]:
    """Yield what happened to the groups of whole partitions: all of a group's records are in one of them."""
    with no_collector():
        for unit in units:
            events = list(events_of_units([unit]))
            if events:
                yield from told_of(pa.Table.from_batches(events).sort_by(ORDER).to_batches())
    settle("telling")


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
