"""What tasks do: segments are read, decoded in columns and reduced; whole partitions told at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa

from coterie.arrow.plan import Plan, check_sums, chunks_of, header_rows, headers_in, visible
from coterie.arrow.records import decoder
from coterie.history.log.layout import STORY
from coterie.history.log.segments import unfinished
from coterie.spark.history.files import Unit
from coterie.spark.history.histories import no_collector, packed_histories
from coterie.spark.history.reduce import PARTITION_AT, STORY_LINE, Reducer, batches_of, filled
from coterie.spark.worker_reuse import settle
from coterie.wire.records.batches import CONTROL_BIT, TRANSACTIONAL_BIT

CHUNK_BYTES = 8 * 1024 * 1024
ORDER = [("group_id", "ascending"), ("place", "ascending")]
FIRST, UNTIL = -(2**63), 2**63 - 1


def events_of_units(units: Iterable[Unit]) -> Iterator[pa.RecordBatch]:
    """Yield the events of some units, each of which stands for itself."""
    for unit in units:
        if unit.topic == STORY:
            yield from events_of_story(decoded(unit), unit.partition)
            continue
        reducer = Reducer()
        yield from batches_of(reducer, (taken(reducer, columns) for columns in decoded(unit)))


def histories_of_units(units: Iterable[Unit]) -> Iterator[pa.RecordBatch]:
    """Yield the packed histories of whole partitions: all of a group's records are in one of them."""
    with no_collector():
        for unit in units:
            events = list(events_of_units([unit]))
            if events:
                yield from packed_histories(pa.Table.from_batches(events).sort_by(ORDER).to_batches())
    settle("telling")


class Room:
    """Memory for one segment after another: what is read goes where the last one was.

    Fresh memory for each, emptied by the system page by page, costs as much as to decode what is read.
    """

    def __init__(self) -> None:
        self._bytes = bytearray()

    def read(self, path: str) -> memoryview:
        """Return the contents of the file, until the next one is read."""
        with Path(path).open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if len(self._bytes) < size:
                self._bytes = bytearray(size)
            found = memoryview(self._bytes)[:size]
            read = 0
            while read < size and (more := file.readinto(found[read:])):
                read += more
        return found[:read]


room = Room()
"""That of this worker process. A task decodes one segment at a time."""


def decoded(unit: Unit) -> Iterator[dict[str, pa.Array]]:
    """Yield the visible records of a unit's segments, in columns, some megabytes at a time."""
    decode = decoder()
    for number, path in enumerate(unit.paths):
        data = cast(bytes, room.read(path))  # a view does for them
        later = (Path(after).read_bytes() for after in (*unit.paths[number + 1 :], *unit.later))
        for chunk in chunks_of(visible_in(data, later), chunk_bytes=CHUNK_BYTES):
            yield decode(chunk, first=FIRST, until=UNTIL, headers=False)


def visible_in(segment: bytes, later: Iterable[bytes]) -> Plan:
    """Return the batches of a segment that count: no markers, nothing aborted or not over.

    Corrupt if any batch fails its checksum.
    """
    starts, headers = headers_in(segment)
    check_sums(segment, starts, headers)
    wanted = (headers["attributes"] & CONTROL_BIT == 0) & (headers["count"] > 0)
    if (headers["attributes"] & TRANSACTIONAL_BIT).any():
        located = zip(starts.tolist(), header_rows(headers), strict=True)
        wanted &= visible(headers, unfinished(segment, [*located], later))
    return Plan(segment, starts[wanted], headers[wanted], FIRST, UNTIL, 0)


def taken(reducer: Reducer, columns: dict[str, pa.Array]) -> pa.RecordBatch | None:
    places = columns["offset"].to_numpy(zero_copy_only=False)
    stamps_ms = columns["timestamp"].cast(pa.int64()).to_numpy(zero_copy_only=False) // 1000
    return reducer.take(columns["key"], columns["value"], places, stamps_ms)


def events_of_story(
    found: Iterable[Mapping[str, pa.Array] | pa.RecordBatch], partition: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield lines of our own story as events of their groups. Where they are not all of one partition each
    says which. In their places those of one partition come together: several coordinators tell of a group.
    """
    for columns in found:
        partitions = columns["partition"].to_numpy() if partition is None else np.int64(partition)
        offsets = columns["offset"].to_numpy(zero_copy_only=False)
        keys = [b"" if key is None else key for key in columns["key"].to_pylist()]
        count = len(keys)
        events = {
            "group_id": pa.array([key.decode(errors="replace") for key in keys], pa.string()),
            "kind": pa.array(np.full(count, STORY_LINE, np.int32)),
            "place": pa.array((partitions.astype(np.int64) << PARTITION_AT) + offsets),
            "value": columns["value"],
        }
        yield filled(events, count)


def events_of_records(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the events of records as the source has them: key, value, offset, timestamp."""
    reducer = Reducer()

    def each() -> Iterator[pa.RecordBatch | None]:
        for batch in batches:
            columns = {name: batch.column(name) for name in ("key", "value", "offset", "timestamp")}
            yield taken(reducer, columns) if batch.num_rows else None

    yield from batches_of(reducer, each())
