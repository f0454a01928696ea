"""The silences of many partitions at once, in columns: those that `coterie.history.ownership` finds.

There are runs by the million, and few silences among them: docs/decisions/0018 has what this saves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coterie.history.activity import HELD_TIMES
from coterie.history.ownership import (
    BURST,
    BUSY_BURST,
    BUSY_TIMES,
    SILENT_TIMES,
    STALL_LEAST_MS,
    Silence,
    part_least_ms,
)

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class RunColumns(NamedTuple):
    """Runs in columns, those of a partition together and in the order of the log (`log.runs.Run`)."""

    count: Ints  # type: ignore[assignment]
    first_ms: Ints
    last_ms: Ints
    first: Ints
    last: Ints
    silent_from_ms: Ints
    silent_to_ms: Ints
    silent_before: Ints
    silent_after: Ints


def silences_in(runs: RunColumns, begins: Flags) -> Iterator[tuple[int, Silence]]:
    """Yield the silences with the rows of the runs that they end with or lie in, in order.

    `begins` says which rows are the first of a partition.
    """
    if not len(begins):
        return
    spoken_ms = runs.last_ms - runs.first_ms - (runs.silent_to_ms - runs.silent_from_ms)
    tells = (runs.count >= 4) & (spoken_ms > 0)
    brought = runs.silent_after - runs.silent_before
    read = np.maximum(runs.last - runs.first - brought, 0)
    intervals = np.maximum(runs.count - 2, 1)
    safe_ms = np.where(tells, spoken_ms, 1)
    known = last_telling(tells, begins)
    rate = np.where(known >= 0, (read / safe_ms)[known], 0.0)
    cadence = np.where(known >= 0, (safe_ms / intervals)[known], 0.0)

    within_ms = runs.silent_to_ms - runs.silent_from_ms
    within = waited(within_ms, brought, rate, cadence)
    late = (runs.silent_to_ms == runs.last_ms) & (brought * intervals <= HELD_TIMES * read)  # gave_up_late
    is_last = np.roll(begins, -1)
    within |= waited(within_ms, np.roll(runs.first, -1) - runs.silent_before, rate, cadence) & late & ~is_last

    between_ms = runs.first_ms - np.roll(runs.last_ms, 1)
    caught_up = runs.first - np.roll(runs.last, 1)
    between = waited(between_ms, caught_up, np.roll(rate, 1), np.roll(cadence, 1)) & ~begins
    for row in np.flatnonzero(within | between).tolist():
        if between[row]:
            yield row, silence(int(runs.last_ms[row - 1]), int(runs.first_ms[row]), float(cadence[row - 1]))
        if within[row]:
            yield (
                row,
                silence(int(runs.silent_from_ms[row]), int(runs.silent_to_ms[row]), float(cadence[row])),
            )


def silence(from_ms: int, to_ms: int, cadence_ms: float) -> Silence:
    return Silence(from_ms + int(cadence_ms / 2), to_ms, part_least_ms(to_ms - from_ms, cadence_ms))


def last_telling(tells: Flags, begins: Flags) -> Ints:
    """Return the last row up to each that tells something of the same partition, -1 for none."""
    rows = np.arange(len(tells))
    last = np.maximum.accumulate(np.where(tells, rows, -1))
    start = np.maximum.accumulate(np.where(begins, rows, 0))
    return np.where(last >= start, last, -1)


def waited(length_ms: Ints, brought: Ints, rate: Floats, cadence: Floats) -> Flags:
    """Return a flag for each silence that was long, and left more waiting than a moment brings."""
    long = length_ms >= np.maximum(STALL_LEAST_MS, BUSY_TIMES * cadence)
    burst = np.where(length_ms >= SILENT_TIMES * cadence, BURST, BUSY_BURST)
    waiting: Flags = long & (rate > 0.0) & (brought >= burst * rate * length_ms)
    return waiting
