"""The proof: the table made without Spark, the summary of a run, and everything that is wrong with it.

Pure but for reading the table back; `faults` is the whole of what decides whether the job succeeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from pipeline.applications.flights import Flight


@dataclass(slots=True)
class Delays:
    """The delays of one carrier in one hour of day: sums of whole minutes, and of how many flights."""

    flights: int = 0
    departed: int = 0
    dep_delay_sum: int = 0
    arrived: int = 0
    arr_delay_sum: int = 0

    def count(self, dep_delay: int | None, arr_delay: int | None) -> None:
        """Count one flight; where a delay is missing, the flight did not leave, or did not arrive."""
        self.flights += 1
        if dep_delay is not None:
            self.departed += 1
            self.dep_delay_sum += dep_delay
        if arr_delay is not None:
            self.arrived += 1
            self.arr_delay_sum += arr_delay

    def add(self, other: Delays) -> None:
        self.flights += other.flights
        self.departed += other.departed
        self.dep_delay_sum += other.dep_delay_sum
        self.arrived += other.arrived
        self.arr_delay_sum += other.arr_delay_sum


Table = dict[tuple[str, int], Delays]


def table_of(flights: Iterable[Flight]) -> Table:
    """Return the table by carrier and hour, computed directly from the data."""
    table: Table = {}
    for flight in flights:
        carrier, hour = flight["carrier"], flight["hour"]
        dep_delay, arr_delay = flight["dep_delay"], flight["arr_delay"]
        assert isinstance(carrier, str)
        assert isinstance(hour, int)
        assert not isinstance(dep_delay, str)
        assert not isinstance(arr_delay, str)
        table.setdefault((carrier, hour), Delays()).count(dep_delay, arr_delay)
    return table


def read_table(path: Path) -> Table:
    """Return the table that Spark made."""
    import pyarrow.parquet as pq

    rows = pq.read_table(path).to_pylist()
    return {(row.pop("carrier"), row.pop("hour")): Delays(**row) for row in rows}


def by_carrier(table: Table) -> dict[str, Delays]:
    return summed((carrier, delays) for (carrier, _), delays in table.items())


def by_hour(table: Table) -> dict[int, Delays]:
    return summed((hour, delays) for (_, hour), delays in table.items())


def summed(parts: Iterable[tuple[Any, Delays]]) -> dict[Any, Delays]:
    """Return the sums of the parts that have one key, in the order of the keys."""
    sums: dict[Any, Delays] = {}
    for key, delays in parts:
        sums.setdefault(key, Delays()).add(delays)
    return dict(sorted(sums.items()))


def differences(made: Table, expected: Table) -> list[str]:
    """Return a sentence for each cell in which the table differs from the one computed directly."""
    found = []
    for key in sorted(made.keys() | expected.keys()):
        mine, theirs = made.get(key, Delays()), expected.get(key, Delays())
        if mine != theirs:
            found.append(f"carrier {key[0]}, hour {key[1]}: {astuple(mine)} instead of {astuple(theirs)}")
    return found


def summary(
    *,
    produced: int,
    counted: Mapping[str, Any],
    lag: Sequence[int],
    rebalances: Sequence[Mapping[str, Any]],
    seconds: float,
    **more: Any,
) -> dict[str, Any]:
    """Return the contents of `summary.json`; `counted` is what the last Spark job found."""
    rows_by_member = dict(counted["rows_by_member"])
    rows = sum(rows_by_member.values())
    return {
        "produced": produced,
        "distinct": counted["distinct"],
        "rows": rows,
        "repeated": rows - counted["distinct"],
        "rows_by_member": rows_by_member,
        "lost": counted["lost"],
        "strange": counted["strange"],
        "lag": {str(partition): behind for partition, behind in enumerate(lag)},
        "rebalances": list(rebalances),
        "seconds": round(seconds, 1),
        "unlogged_files": counted["unlogged_files"],
        **more,
    }


def faults(found: Mapping[str, Any], *, expected: int, wrong_cells: Sequence[str]) -> list[str]:
    """Return all that is wrong with a run; an empty list proves that nothing was lost or counted twice."""
    wrong = []
    if found["produced"] != expected:
        wrong.append(f"{found['produced']:,} records were produced instead of {expected:,}")
    if found["distinct"] != found["produced"]:
        wrong.append(f"{found['distinct']:,} distinct records were read, {found['produced']:,} were produced")
    if found["lost"]:
        wrong.append(f"{found['lost']:,} records that were produced are in nobody's rows")
    if found["repeated"]:
        wrong.append(f"{found['repeated']:,} rows are in the table a second time")
    if found["strange"]:
        wrong.append(f"{found['strange']:,} rows are of records that nobody produced")
    wrong += [f"partition {partition} has a lag of {lag:,}" for partition, lag in found["lag"].items() if lag]
    if wrong_cells:
        wrong.append(f"the table is wrong in {len(wrong_cells)} cells, the first: {wrong_cells[0]}")
    wrong += [f"{member} read nothing" for member, rows in found["rows_by_member"].items() if not rows]
    return wrong
