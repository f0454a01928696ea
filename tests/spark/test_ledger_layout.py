"""How rows lie in a ledger's table: files, partitions, statistics, columns that come later, older tables."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.ids import TopicPartition
from coterie.spark.ledger.layout import bounds_of, columns_in, measured
from coterie.spark.ledger.ledger import Ledger
from coterie.spark.ledger.outcome import Outcome
from coterie.spark.ledger.tables import LedgerError

from .test_ledger import held, rows

OLD = Path(__file__).with_name("table_of_2026_11")
"""As the ledger of 494ad684 wrote it: t-0 up to 7 and t-1 up to 11 of group g, with gaps; then of another."""
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def entries(folder):
    """What the table's log says, entry by entry."""
    for path in sorted(folder.joinpath("_delta_log").glob("*.json")):
        yield from map(json.loads, path.read_text().strip().split("\n"))


def read_back(folder):
    """The rows of a table by a reader of its log that is not the library."""
    added, kinds = {}, {}
    for entry in entries(folder):
        if "metaData" in entry:
            fields = json.loads(entry["metaData"]["schemaString"])["fields"]
            kinds = {one["name"]: one["type"] for one in fields}
        if "add" in entry:
            added[entry["add"]["path"]] = entry["add"]["partitionValues"]
        if "remove" in entry:
            del added[entry["remove"]["path"]]
    made = {"integer": int, "long": int, "string": str, "date": date.fromisoformat}
    for path, values in added.items():
        typed = {name: None if text is None else made[kinds[name]](text) for name, text in values.items()}
        for row in pq.ParquetFile(folder / unquote(path)).read().to_pylist():
            yield {**dict.fromkeys(kinds), **row, **typed}


def flights(first, until, *, partition=0, day=None, **more):
    """Rows of a partition, each of a day: its offset's, or all of one."""
    days = [day or date(2026, 1, 1) + timedelta(days=offset % 7) for offset in range(first, until)]
    found = rows((partition, first, until)).append_column("day", pa.array(days, pa.date32()))
    for name, made in more.items():
        found = found.append_column(name, pa.array([made(offset) for offset in range(first, until)]))
    return found


def test_a_table_that_is_partitioned_has_one_file_a_task_and_value(tmp_path):
    ledger = Ledger(str(tmp_path), group="g", partition_by=["day"])

    ledger.append(flights(0, 21))
    ledger.append(flights(14, 24))

    assert len(DeltaTable(str(tmp_path)).file_uris()) == 7 + 3
    assert {one["day"] for one in DeltaTable(str(tmp_path)).partitions()} == {
        f"2026-01-0{number}" for number in range(1, 8)
    }
    assert held(tmp_path) == [(0, offset) for offset in range(24)]
    wanted = [(offset, date(2026, 1, 1 + offset % 7), b"%d" % offset) for offset in range(24)]
    assert sorted((one["offset"], one["day"], one["value"]) for one in read_back(tmp_path)) == wanted
    by_library = DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist()
    assert sorted((one["offset"], one["day"], one["value"]) for one in by_library) == wanted


def test_a_table_that_is_there_is_written_as_it_is_partitioned(tmp_path):
    """By the columns of the records, too, of which no file then has them."""
    by = ["topic", "partition"]
    DeltaTable.create(str(tmp_path), schema=rows((0, 0, 1)).schema, partition_by=by)
    ledger = Ledger(str(tmp_path), group="g")

    ledger.append(rows((0, 0, 9), (1, 0, 4)))
    assert Ledger(str(tmp_path), group="g").append(rows((0, 3, 12), (1, 2, 6))) == Outcome(5, 8, 0)

    assert held(tmp_path) == [(0, offset) for offset in range(12)] + [(1, offset) for offset in range(6)]
    assert len(DeltaTable(str(tmp_path)).partitions()) == 2
    with pytest.raises(LedgerError, match="is partitioned by topic, partition, and not by offset"):
        Ledger(str(tmp_path), group="g", partition_by=["offset"]).append(rows((0, 12, 13)))


def test_rows_of_several_groups_are_told_apart_in_a_partitioned_table(tmp_path):
    one, other = (
        Ledger(str(tmp_path), group=name, partition_by=["topic", "day"]) for name in ("one", "other")
    )
    one.append(flights(0, 10))
    other.append(flights(0, 5))
    other.append(flights(10, 12))

    assert other.append(flights(3, 5)) == Outcome(0, 2, 0)
    with pytest.raises(LedgerError, match="does not have offsets 7 to 8"):
        other.append(flights(7, 9))


TEXTS = ["plain", "", None, "a b/c=d%25", "ü\u2028", "..", "x" * 300]


def test_any_value_names_a_partition(tmp_path):
    """No text is empty in the log of such a table: it is null."""
    for offset, text in enumerate(TEXTS):
        some = rows((0, offset, offset + 1)).append_column("name", pa.array([text], pa.string()))
        Ledger(str(tmp_path), group="g", partition_by=["name"]).append(some)

    wanted = {offset: text or None for offset, text in enumerate(TEXTS)}
    assert {one["offset"]: one["name"] for one in read_back(tmp_path)} == wanted
    by_library = DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist()
    assert {one["offset"]: one["name"] for one in by_library} == wanted


@pytest.mark.parametrize(
    ("by", "why"),
    [
        (["price"], "cannot be partitioned by price, which is double: take a text"),
        (["value"], "cannot be partitioned by value"),
        (["hour"], "rows have no column hour, by which the table is partitioned"),
        ("day", "takes a list of columns"),
    ],
)
def test_columns_that_part_no_table_are_refused(tmp_path, by, why):
    with pytest.raises(LedgerError, match=why):
        Ledger(str(tmp_path), group="g", partition_by=by).append(flights(0, 3, price=float))


def reads(folder, condition):
    """The offsets that a query finds."""
    table = DeltaTable(str(folder))
    found = (
        QueryBuilder().register("flights", table).execute(f'select "offset" from flights where {condition}')
    )
    return sorted(one for each in found for one in pa.record_batch(each)["offset"].to_pylist())


def at(offset):
    return BEGAN + timedelta(hours=offset, microseconds=offset)


def test_statistics_of_the_columns_that_people_filter_by_are_in_the_log(tmp_path):
    more = {"at": at, "price": float, "name": lambda offset: "n" * 40 + str(offset), "paid": bool}
    ledger = Ledger(str(tmp_path), group="g")
    for first in (0, 10):
        ledger.append(flights(first, first + 10, day=date(2026, 1, 1 + first), **more))

    first, second = (json.loads(one["add"]["stats"]) for one in entries(tmp_path) if "add" in one)

    assert first["numRecords"] == 10
    assert first["minValues"] == {
        "topic": "t", "partition": 0, "offset": 0, "day": "2026-01-01", "at": "2026-01-01T00:00:00.000000Z",
        "price": 0.0, "name": "n" * 32,
    }  # fmt: skip
    assert second["maxValues"] == {
        "topic": "t", "partition": 0, "offset": 19, "day": "2026-01-11", "at": "2026-01-01T19:00:00.000019Z",
        "price": 19.0, "name": "n" * 32 + "\U0010ffff",
    }  # fmt: skip
    assert first["nullCount"] == dict.fromkeys([*first["minValues"], "value", "paid"], 0)
    assert reads(tmp_path, f"\"at\" = timestamp '{at(7).isoformat()}'") == [7]
    assert reads(tmp_path, '"name" > \'' + "n" * 40 + "8'") == [9]
    assert reads(tmp_path, '"price" >= 18.0') == [18, 19]


def test_what_has_no_order_has_no_statistics(tmp_path):
    """Nulls alone, NaN, which Spark has behind all others, and texts too long for Parquet's own."""
    some = flights(0, 3, price=lambda offset: float("nan") if offset == 1 else 1.0, none=lambda _: None)
    some = some.set_column(some.column_names.index("none"), "none", pa.nulls(3, pa.int64()))
    some = some.append_column("long", pa.array(["x" * 9000] * 3))
    Ledger(str(tmp_path), group="g").append(some)

    (noted,) = (json.loads(one["add"]["stats"]) for one in entries(tmp_path) if "add" in one)

    assert noted["minValues"].keys() == noted["maxValues"].keys() == {"topic", "partition", "offset", "day"}
    assert noted["nullCount"]["none"] == 3
    assert reads(tmp_path, '"price" > 5.0 or "long" > \'w\' and "offset" < 1') == [0, 1]


@pytest.mark.parametrize(
    ("properties", "has"),
    [
        ({}, ["a", "b", "c"]),
        ({"delta.dataSkippingNumIndexedCols": "1"}, ["a"]),
        ({"delta.dataSkippingNumIndexedCols": "-1"}, ["a", "b", "c"]),
        ({"delta.dataSkippingStatsColumns": "c, `a`"}, ["a", "c"]),
    ],
)
def test_the_table_s_properties_say_of_which_columns_there_are_statistics(properties, has):
    assert [*measured(["a", "b", "c"], properties)] == has


numbers = st.lists(st.one_of(st.none(), st.integers(-9, 9)), min_size=1, max_size=20)


@given(st.lists(numbers, min_size=1, max_size=4))
def test_bounds_hold_all_values_of_all_row_groups(groups):
    footer = []
    with pq.ParquetWriter(
        pa.BufferOutputStream(), pa.schema([("n", pa.int64())]), metadata_collector=footer
    ) as writer:
        for each in groups:
            writer.write_table(pa.table({"n": pa.array(each, pa.int64())}))
    ((name, found),) = columns_in(footer[0])

    values = [one for each in groups for one in each if one is not None]
    assert (name, bounds_of(found)) == ("n", (min(values), max(values)) if values else (None, None))
    assert sum(one.null_count for one in found) == sum(each.count(None) for each in groups)


def test_columns_that_come_later_are_added_where_the_ledger_is_told_to(tmp_path):
    ledger = Ledger(str(tmp_path), group="g", merge_schema=True, partition_by=["day"])
    ledger.append(flights(0, 5))
    ledger.append(flights(3, 8, gate=str))
    ledger.append(flights(8, 9))

    table = DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("offset")
    assert table["gate"].to_pylist() == [None] * 5 + ["5", "6", "7", None]
    assert [one["gate"] for one in sorted(read_back(tmp_path), key=lambda one: one["offset"])] == table[
        "gate"
    ].to_pylist()
    with pytest.raises(LedgerError, match="a column gate of another type"):
        ledger.append(flights(9, 10, gate=int))


def test_two_that_add_the_same_column_at_the_same_time_both_write(tmp_path, monkeypatch):
    one, other = (Ledger(str(tmp_path), group="g", merge_schema=True) for _ in range(2))
    one.append(flights(0, 5))
    looked, rivals = DeltaTable.schema, [lambda: other.append(flights(5, 8, gate=str))]

    def overtaken(table):
        found = looked(table)
        if rivals:
            rivals.pop()()
        return found

    monkeypatch.setattr(DeltaTable, "schema", overtaken)
    one.append(flights(3, 10, gate=str))

    assert held(tmp_path) == [(0, offset) for offset in range(10)]


@pytest.fixture
def old(tmp_path):
    return Path(shutil.copytree(OLD, tmp_path / "table"))


@pytest.mark.parametrize("groups", [1, 2])
def test_a_table_of_the_ledger_before_goes_on_as_it_is(old, groups):
    """It had a file for each Kafka partition, and statistics of the records' place alone."""
    if groups == 1:
        old.joinpath("_delta_log", f"{3:020}.json").unlink()
    before = [(0, offset) for offset in range(8)] + [(1, offset) for offset in (*range(3, 9), 10, 11)]
    assert held(old) == sorted(before + [(0, 1), (0, 2)] * (groups - 1))
    ledger = Ledger(str(old), group="g")

    assert ledger.stored([TopicPartition("t", 0), TopicPartition("t", 1)]) == {("t", 0): 8, ("t", 1): 12}
    assert ledger.append(rows((0, 6, 10), (1, 7, 9), (1, 11, 14))) == Outcome(4, 5, 0)
    with pytest.raises(LedgerError, match=r"t-1 up to offset 13 .* does not have offsets 9: "):
        ledger.append(rows((1, 9, 11)))

    assert held(old) == sorted(before + [(0, 1), (0, 2)] * (groups - 1) + [(0, 8), (0, 9), (1, 12), (1, 13)])


@pytest.mark.parametrize(
    "beyond",
    [pa.array([1_790_000_000_000_000_000], pa.timestamp("us", "UTC")), pa.array([10_000_000], pa.date32())],
    ids=["timestamp", "date"],
)
def test_a_time_beyond_the_year_9999_is_written_like_any_other(tmp_path, beyond):
    """A producer that takes microseconds for milliseconds sends such: the log has no statistics of it."""
    ledger = Ledger(str(tmp_path), group="g")

    assert ledger.append(rows((0, 0, 1)).append_column("at", beyond)) == Outcome(1, 0, 0)

    (added,) = [json.loads(one["add"]["stats"]) for one in entries(tmp_path) if "add" in one]
    assert "at" not in added["minValues"]
    assert added["maxValues"]["offset"] == 0


def test_a_date_by_which_no_table_can_be_parted_is_refused_with_a_reason(tmp_path):
    far = rows((0, 0, 1)).append_column("day", pa.array([10_000_000], pa.date32()))

    with pytest.raises(LedgerError, match="day one is no value that a table can be parted by"):
        Ledger(str(tmp_path), group="g", partition_by=["day"]).append(far)


def test_a_property_that_is_no_number_is_named():
    with pytest.raises(LedgerError, match=r"dataSkippingNumIndexedCols is 'many', no number"):
        measured(["a"], {"delta.dataSkippingNumIndexedCols": "many"})
