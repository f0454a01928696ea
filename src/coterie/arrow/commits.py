"""Committed offsets read and made into runs by kernels that numba compiles: one pass each.

Importing this module needs numba (`pip install 'coterie[spark]'`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.arrow.kernel import compiled
from coterie.wire.payloads.consumer_offsets import COMPACT_SINCE, EPOCH_AT, EPOCH_SINCE, OFFSET_AT
from coterie.wire.payloads.consumer_offsets import METADATA_AT as TEXT_AT

Ints = npt.NDArray[np.int64]

OFFSET, AT_MS, LEADER_EPOCH, METADATA_AT, METADATA_SIZE = range(5)
VALUE_FIELDS = 5
(
    KEY, EPOCH, SPAN, PLACE, COUNT, FIRST_MS, LAST_MS, FIRST, LAST,
    SILENT_FROM, SILENT_TO, SILENT_BEFORE, SILENT_AFTER, ROW,
) = range(14)  # fmt: skip
RUN_FIELDS = 14


@compiled
def number(data, at, size):  # type: ignore[no-untyped-def]
    """Return the big-endian number of so many bytes, as it is without a sign."""
    found = np.int64(0)
    for place in range(size):
        found = (found << 8) | np.int64(data[at + place])
    return found


@compiled
def value_at(data, at, end, out, row):  # type: ignore[no-untyped-def]
    """Note what one value says; return False for one of rare shape, which somebody else has to read."""
    if end - at < TEXT_AT:
        return False
    version = number(data, at, 2)
    if version > COMPACT_SINCE:  # the newest
        return False
    out[OFFSET, row] = number(data, at + OFFSET_AT, 8)
    epochs = version >= EPOCH_SINCE
    out[LEADER_EPOCH, row] = np.int64(np.int32(number(data, at + EPOCH_AT, 4))) if epochs else -1
    place = at + (TEXT_AT if epochs else EPOCH_AT)
    width = 1 if version == COMPACT_SINCE else 2
    if place + width > end:
        return False
    size = number(data, place, width)
    if version == COMPACT_SINCE:
        size = size - 1 if size < 128 else -1
    stamp_at = place + width + size
    if size < 0 or stamp_at + 8 + (version == COMPACT_SINCE) > end:
        return False
    out[METADATA_AT, row], out[METADATA_SIZE, row] = place + width, size
    out[AT_MS, row] = number(data, stamp_at, 8)
    return True


@compiled
def read_values(starts, data, rows, out, rare):  # type: ignore[no-untyped-def]
    """Fill a column of the table for each row; return how many are of rare shape, and which."""
    seen = 0
    for place in range(len(rows)):
        row = rows[place]
        if not value_at(data, np.int64(starts[row]), np.int64(starts[row + 1]), out, place):
            rare[seen] = place
            seen += 1
    return seen


@compiled
def begin(table, used, key, epoch, span, place, at_ms, offset, row):  # type: ignore[no-untyped-def]
    """Write a run of one commit."""
    table[KEY, used], table[EPOCH, used], table[SPAN, used] = key, epoch, span
    table[PLACE, used], table[COUNT, used], table[ROW, used] = place, 1, row
    table[FIRST_MS, used] = table[LAST_MS, used] = at_ms
    table[FIRST, used] = table[LAST, used] = offset
    table[SILENT_FROM, used] = table[SILENT_TO, used] = at_ms
    table[SILENT_BEFORE, used] = table[SILENT_AFTER, used] = offset


@compiled
def silence(table, run, from_ms, to_ms, before, after):  # type: ignore[no-untyped-def]
    """Keep a silence if it is longer than the run's longest so far, as `coterie.history.log.runs.longer`."""
    if to_ms - from_ms > table[SILENT_TO, run] - table[SILENT_FROM, run]:
        table[SILENT_FROM, run], table[SILENT_TO, run] = from_ms, to_ms
        table[SILENT_BEFORE, run], table[SILENT_AFTER, run] = before, after


@compiled
def add_commit(table, run, at_ms, offset):  # type: ignore[no-untyped-def]
    """Write one more commit into a run."""
    table[COUNT, run] += 1
    silence(table, run, table[LAST_MS, run], at_ms, table[LAST, run], offset)
    table[LAST_MS, run], table[LAST, run] = at_ms, offset


@compiled
def add_run(table, run, more):  # type: ignore[no-untyped-def]
    """Write the commits of another run, which come after its own, into a run."""
    table[COUNT, run] += table[COUNT, more]
    silence(table, run, table[LAST_MS, run], table[FIRST_MS, more], table[LAST, run], table[FIRST, more])
    silence(
        table, run, table[SILENT_FROM, more], table[SILENT_TO, more],
        table[SILENT_BEFORE, more], table[SILENT_AFTER, more],
    )  # fmt: skip
    table[LAST_MS, run], table[LAST, run] = table[LAST_MS, more], table[LAST, more]


@compiled
def join(table):  # type: ignore[no-untyped-def]
    """Make one run of those in a row that belong together, in place; return how many are left."""
    used = 0
    for more in range(table.shape[1]):
        run = used - 1
        if (
            used
            and table[KEY, run] == table[KEY, more]
            and table[EPOCH, run] == table[EPOCH, more]
            and table[SPAN, run] == table[SPAN, more]
        ):
            add_run(table, run, more)
            continue
        table[:, used] = table[:, more]
        used += 1
    return used


@compiled
def stretch(keys, epochs, places, at_ms, offsets, span_ms, last, table):  # type: ignore[no-untyped-def]
    """Make runs of commits, in their order; return how many. A run that was left is not taken up again."""
    used = 0
    for row in range(len(keys)):
        key, span = keys[row], at_ms[row] // span_ms
        run = last[key]
        if run >= 0 and table[EPOCH, run] == epochs[row] and table[SPAN, run] == span:
            add_commit(table, run, at_ms[row], offsets[row])
            continue
        begin(table, used, key, epochs[row], span, places[row], at_ms[row], offsets[row], row)
        last[key] = used
        used += 1
    return used


@compiled
def count_epochs(numbers, groups, marks, counted, out):  # type: ignore[no-untyped-def]
    """Note for each row how many marked records its group had before it, and count on."""
    for row in range(len(numbers)):
        group = groups[numbers[row]]
        out[row] = counted[group]
        if marks[numbers[row]]:
            counted[group] += 1


def values_table(starts: Any, data: Any, rows: Ints) -> tuple[Ints, Ints]:
    """Return the fields of these rows' values, a line a field, and the rows with values of rare shape."""
    out = np.empty((VALUE_FIELDS, len(rows)), np.int64)
    rare = np.empty(len(rows), np.int64)
    return out, rare[: read_values(starts, data, rows, out, rare)]


def runs_table(
    keys: Ints, epochs: Ints, places: Ints, at_ms: Ints, offsets: Ints, *, span_ms: int, key_count: int
) -> Ints:
    """Return the runs of commits that come in this order, a line a field."""
    table = np.empty((RUN_FIELDS, len(keys)), np.int64)
    last = np.full(key_count, -1, np.int64)
    return table[:, : stretch(keys, epochs, places, at_ms, offsets, span_ms, last, table)]


def joined(tables: Sequence[Ints]) -> Ints:
    """Return the runs of these tables with those that belong together made one, ordered by key."""
    table = np.concatenate(tables, axis=1)
    table = table[:, np.lexsort((table[PLACE], table[SPAN], table[EPOCH], table[KEY]))]
    return table[:, : join(table)]


def epochs_table(numbers: Ints, groups: Ints, marks: npt.NDArray[np.bool_], counted: Ints) -> Ints:
    """Return each row's epoch; `counted`, a number a group, is counted on."""
    out = np.empty(len(numbers), np.int64)
    count_epochs(numbers, groups, marks, counted, out)
    return out
