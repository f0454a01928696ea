"""The proof: the table from the data, the sums of the summary, and what counts as wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipeline.applications.flights import Flight
from pipeline.report.verify import (
    Delays,
    by_carrier,
    by_hour,
    differences,
    faults,
    read_table,
    summary,
    table_of,
)


def a_flight(carrier: str = "UA", hour: int = 5, dep: int | None = 2, arr: int | None = 11) -> Flight:
    return {"carrier": carrier, "hour": hour, "dep_delay": dep, "arr_delay": arr}


COUNTED = {
    "rows_by_member": {"spark-a": 60, "spark-b": 30, "foreign": 10},
    "distinct": 100,
    "lost": 0,
    "strange": 0,
    "unlogged_files": 1,
}


def a_summary(**changes: Any) -> dict[str, Any]:
    return summary(produced=100, counted=COUNTED, lag=(0, 0), rebalances=[], seconds=12.34) | changes


def test_delays_are_summed_and_missing_ones_are_not_counted():
    table = table_of([a_flight(), a_flight(dep=-3, arr=None), a_flight(dep=None, arr=None), a_flight(hour=6)])

    assert table[("UA", 5)] == Delays(flights=3, departed=2, dep_delay_sum=-1, arrived=1, arr_delay_sum=11)
    assert table[("UA", 6)].flights == 1


def test_the_table_is_summed_by_carrier_and_by_hour():
    table = table_of([a_flight("UA", 6), a_flight("AA", 5), a_flight("UA", 5, dep=None)])

    carriers, hours = by_carrier(table), by_hour(table)

    assert list(carriers) == ["AA", "UA"]
    assert carriers["UA"] == Delays(flights=2, departed=1, dep_delay_sum=2, arrived=2, arr_delay_sum=22)
    assert {hour: delays.flights for hour, delays in hours.items()} == {5: 2, 6: 1}


def test_the_table_that_spark_wrote_is_read_back(tmp_path: Path):
    row = {"carrier": "UA", "hour": 5, "flights": 3, "departed": 2, "dep_delay_sum": -1, "arrived": 1}
    pq.write_table(pa.Table.from_pylist([row | {"arr_delay_sum": 11}]), tmp_path / "table")

    assert read_table(tmp_path / "table") == {("UA", 5): Delays(3, 2, -1, 1, 11)}


def test_a_cell_that_differs_or_is_missing_is_told():
    made, expected = table_of([a_flight(), a_flight("AA")]), table_of([a_flight(dep=3), a_flight("DL")])

    told = differences(made, expected)

    assert [line.split(":")[0] for line in told] == [
        "carrier AA, hour 5",
        "carrier DL, hour 5",
        "carrier UA, hour 5",
    ]
    assert differences(made, made) == []


def test_the_summary_counts_rows_and_repeats():
    found = summary(
        produced=100, counted=COUNTED | {"distinct": 93}, lag=(0, 0), rebalances=[], seconds=12.34
    )

    assert (found["rows"], found["repeated"]) == (100, 7)
    assert found["lag"] == {"0": 0, "1": 0}
    assert found["seconds"] == 12.3


def test_nothing_is_wrong_with_a_run_that_lost_nothing():
    assert faults(a_summary(), expected=100, wrong_cells=[]) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"distinct": 99}, "99 distinct records"),
        ({"lost": 2}, "2 records that were produced are in nobody's rows"),
        ({"repeated": 7}, "7 rows are in the table a second time"),
        ({"strange": 2}, "2 rows are of records that nobody produced"),
        ({"lag": {"0": 0, "1": 7}}, "partition 1 has a lag of 7"),
        ({"rows_by_member": {"spark-a": 100, "foreign": 0}}, "foreign read nothing"),
        ({"produced": 90, "distinct": 90}, "90 records were produced instead of 100"),
    ],
)
def test_each_equality_that_does_not_hold_is_told(changes: dict[str, Any], words: str):
    (told,) = faults(a_summary(**changes), expected=100, wrong_cells=[])

    assert words in told


def test_a_wrong_table_is_told_with_its_first_cell():
    (told,) = faults(a_summary(), expected=100, wrong_cells=["carrier UA, hour 5: x", "another"])

    assert told == "the table is wrong in 2 cells, the first: carrier UA, hour 5: x"
