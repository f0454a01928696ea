"""One row a key: the newest stays, one without a value deletes, however often, and wherever a writer dies."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from coterie.base.ids import TopicPartition
from coterie.spark.ledger.ledger import Ledger
from coterie.spark.ledger.outcome import Outcome
from coterie.spark.ledger.tables import LedgerError

from .test_ledger import SeveralTasks, rows
from .test_ledger_layout import read_back
from .test_ledger_lives import Crash, Danger, danger  # noqa: F401  a fixture

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


def changes(*each, partition=0, first=0):
    """A row for each key and value (and time), from an offset on."""
    keys, values, times = zip(*((*one, None)[:3] for one in each), strict=True)
    count = range(first, first + len(each))
    return pa.table(
        {
            "topic": pa.array(["t"] * len(count), pa.string()),
            "partition": pa.array([partition] * len(count), pa.int32()),
            "offset": pa.array(count, pa.int64()),
            "id": pa.array(keys, pa.int64() if isinstance(keys[0], int) else pa.string()),
            "value": pa.array(values, pa.string()),
            "at": pa.array(times, pa.int64()),
        }
    )


def held(folder):
    """Each key's value; of a key that is there twice the test fails."""
    found = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    assert len(found) == len({one["id"] for one in found})
    model = {one["id"]: one["value"] for one in found}
    if not {"checkpoint"} & {path.name.split(".")[1] for path in (folder / "_delta_log").iterdir()}:
        assert {one["id"]: one["value"] for one in read_back(folder)} == model
    return model


@pytest.fixture
def ledger(tmp_path):
    return Ledger(str(tmp_path), group="g", key=["id"])


def test_of_a_key_the_newest_row_stays_and_one_without_a_value_deletes(ledger, tmp_path):
    ledger.append(changes((1, "a"), (2, "b"), (1, "c"), (3, "d"), (3, None)))
    assert held(tmp_path) == {1: "c", 2: "b"}

    outcome = ledger.append(changes((2, None), (4, "e"), (1, "f"), (9, None), first=5))

    assert held(tmp_path) == {1: "f", 4: "e"}
    assert outcome == Outcome(2, 0, 0)
    assert ledger.stored([ZERO]) == {ZERO: 9}


def test_a_batch_that_does_nothing_but_delete_is_committed(ledger, tmp_path):
    ledger.append(changes((1, "a"), (2, "b")))
    ledger.append(changes((1, None), (2, None), first=2))
    ledger.append(changes((7, None), first=4))

    assert held(tmp_path) == {}
    assert DeltaTable(str(tmp_path)).file_uris() == []
    assert ledger.stored([ZERO]) == {ZERO: 5}


def test_a_replay_brings_no_older_row_and_no_deleted_key_back(ledger, tmp_path):
    batches = [changes((1, "a"), (2, "b")), changes((1, "c"), (2, None), first=2), changes((3, "d"), first=4)]
    for one in batches:
        ledger.append(one)
    for one in batches:
        assert Ledger(str(tmp_path), group="g", key=["id"]).append(one).written == 0

    overlapping = changes((2, None), (3, "d"), (2, "x"), first=3)
    assert ledger.append(overlapping) == Outcome(1, 2, 0)

    assert held(tmp_path) == {1: "c", 2: "x", 3: "d"}


def test_only_files_with_a_key_of_the_batch_are_written_anew(ledger, tmp_path):
    ledger.append(changes((1, "a"), (2, "b")))
    ledger.append(changes((7, "c"), (8, "d"), first=2))
    before = {*DeltaTable(str(tmp_path)).file_uris()}
    ledger.append(changes((8, "e"), first=4))

    after = {*DeltaTable(str(tmp_path)).file_uris()}
    assert len(before & after) == 1
    assert held(tmp_path) == {1: "a", 2: "b", 7: "c", 8: "e"}


def test_a_key_in_two_partitions_is_refused_until_a_column_orders_its_rows(ledger, tmp_path):
    ledger.append(changes((1, "a", 10), (2, "b", 10)))
    both = pa.concat_tables([changes((3, "x", 1), first=2), changes((3, "y", 2), partition=1)])

    why = "a key is in two partitions, in t-{} at offset {} and in t-{} at offset {}: offsets do not say"
    with pytest.raises(LedgerError, match=why.format(1, 0, 0, 2)):
        ledger.append(both)
    with pytest.raises(LedgerError, match=why.format(0, 1, 1, 0)):
        ledger.append(changes((2, "y", 2), partition=1))

    assert held(tmp_path) == {1: "a", 2: "b"}
    ordered = Ledger(str(tmp_path / "ordered"), group="g", key=["id"], order_by="at")
    ordered.append(pa.concat_tables([both, changes((2, "b", 10), (4, "n"), first=3)]))
    ordered.append(changes((2, "y", 9), (3, "z", 2), (4, "m", 0), first=1, partition=1))
    ordered.append(changes((2, "w", 11), (3, "v", 1), (4, "o"), first=5))
    assert held(tmp_path / "ordered") == {2: "w", 3: "z", 4: "m"}


def test_keys_of_several_columns_are_not_taken_for_each_other(tmp_path):
    ledger = Ledger(str(tmp_path), group="g", key=["id", "also"])
    some = changes(("a", "1"), ("ab", "2"), ("a:", "3"), ("", "4"))
    also = [pa.array(["bc", "c", "b", "abc"]), pa.array(["bc", "c", "b", "x"])]

    ledger.append(some.append_column("also", also[0]))
    ledger.append(
        changes(("a", "5"), ("ab", "6"), ("a:", "7"), ("", "8"), first=4).append_column("also", also[1])
    )

    assert sorted(DeltaTable(str(tmp_path)).to_pyarrow_table()["value"].to_pylist()) == [
        "4",
        "5",
        "6",
        "7",
        "8",
    ]


def test_a_key_may_move_from_one_value_of_a_partitioned_table_to_another(tmp_path):
    ledger = Ledger(str(tmp_path), group="g", key=["id"], partition_by=["value"], merge_schema=True)
    ledger.append(changes((1, "a"), (2, "a"), (3, "b")))
    ledger.append(changes((1, "b"), (3, None), first=3).append_column("more", pa.array([5, 6])))
    ledger.append(changes((2, "b"), first=5))

    assert held(tmp_path) == {1: "b", 2: "b"}
    found = DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist()
    assert {one["id"]: one["more"] for one in found} == {1: 5, 2: None}


@pytest.mark.parametrize(
    ("given", "batch", "why"),
    [
        ({"key": "id"}, None, "key takes a list of columns"),
        ({"key": []}, None, "key takes a list of columns"),
        ({"key": ["id"], "once": "batch"}, None, "with a key there are no once='batch'"),
        ({"key": ["id"], "late": "write"}, None, "with a key there are no once='batch', late='write'"),
        ({"key": ["name"]}, changes((1, "a")), "rows have no column name, which is of their key"),
        ({"key": ["id"], "order_by": "when"}, changes((1, "a")), "no column when, by which the newest"),
        ({"key": ["id"], "value": "v"}, changes((1, "a")), "no column v, whose null deletes a key"),
        ({"key": ["id"]}, changes((1, "a"), (None, "b")), "a row has no id: without its key"),
        (
            {"key": ["x"]},
            changes((1, "a")).append_column("x", pa.array([1.0])),
            "x is double, and no part of",
        ),
    ],
)
def test_what_is_no_key_is_refused(tmp_path, given, batch, why):
    with pytest.raises(LedgerError, match=why):
        Ledger(str(tmp_path), group="g", **given).append(batch)


def test_a_table_is_written_by_one_key_and_one_group_or_by_none(ledger, tmp_path):
    ledger.append(changes((1, "a")))
    for other, why in [
        (Ledger(str(tmp_path), group="g"), "were written by key: go on so"),
        (Ledger(str(tmp_path), group="g", key=["value"]), "were written by another key, or another column"),
        (Ledger(str(tmp_path), group="g", key=["id"], order_by="at"), "by another key, or another column"),
        (Ledger(str(tmp_path), group="other", key=["id"]), "is another group's"),
    ]:
        with pytest.raises(LedgerError, match=why):
            other.append(changes((2, "b"), first=1))

    Ledger(str(tmp_path / "plain"), group="g").append(rows((0, 0, 3)))
    with pytest.raises(LedgerError, match="were written without a key"):
        Ledger(str(tmp_path / "plain"), group="g", key=["offset"]).append(rows((0, 3, 4)))
    assert held(tmp_path) == {1: "a"}


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"delta.enableDeletionVectors": "true"}, "has deletion vectors.* written anew they would be back"),
        ({"delta.appendOnly": "true"}, "has delta.appendOnly=true, and rows of a key replace others"),
    ],
)
def test_a_table_whose_files_cannot_be_written_anew_is_refused(ledger, tmp_path, properties, why):
    DeltaTable.create(str(tmp_path), schema=changes((1, "a")).schema, configuration=properties)

    with pytest.raises(LedgerError, match=why):
        ledger.append(changes((1, "a")))


def applied(model, reached, batch):
    """What a table has after a batch: each key's value, by the newest of its rows."""
    for one in batch.to_pylist():
        if one["offset"] >= reached.get(one["partition"], 0):
            if one["value"] is None:
                model.pop(one["id"], None)
            else:
                model[one["id"]] = one["value"]
    for one in batch.to_pylist():
        reached[one["partition"]] = max(reached.get(one["partition"], 0), one["offset"] + 1)


def one_life(seed, folder, danger):  # noqa: F811
    """Two writers, several tasks, replays, races, lost answers, deaths, upkeep; keys stay in a partition."""
    chance = random.Random(seed)
    log = {
        number: [
            (chance.randrange(6) * 2 + number, chance.choice([None, "a", "b", "c", "d"])) for _ in range(60)
        ]
        for number in (0, 1)
    }
    model, reached = {}, {}
    ledgers = [Ledger(str(folder), group="g", key=["id"]) for _ in range(2)]

    def batch():
        found = []
        for number in (0, 1):
            at = reached.get(number, 0)
            first = max(0, at - chance.choice([0, 0, 4]))
            some = log[number][first : at + chance.randrange(6)]
            found += [changes(*some, partition=number, first=first)] if some else []
        return found

    def append(ledger, some):
        if some:
            ledger._write(SeveralTasks(*some), some[0].schema)

    for _ in range(6):
        what, number, some = (
            chance.choice(["batch", "race", "lost", "crash", "tidy"]),
            chance.randrange(2),
            batch(),
        )
        danger.effects, danger.crash_at, danger.lost_answer, danger.rival = 0, None, None, None
        if what == "tidy" and folder.joinpath("_delta_log").exists():
            ledgers[0].optimize()
            ledgers[1]._upkeep().leftovers()
        if what == "lost":
            danger.lost_answer = chance.choice(danger.ANSWERS)
        if what == "race":
            other = batch()

            def rival(other=other, number=number, model=model, reached=reached):
                append(ledgers[1 - number], other)
                for one in other:
                    applied(model, reached, one)

            danger.rival = rival
        if what == "crash":
            danger.crash_at = chance.randrange(1, 12)
        before, was = dict(model), dict(reached)
        try:
            append(ledgers[number], some)
            for one in some:
                applied(model, reached, one)
        except Crash:
            danger.crash_at = None
            ledgers[number] = Ledger(str(folder), group="g", key=["id"])
            after, then = dict(before), dict(was)
            for one in some:
                applied(after, then, one)
            there = held(folder) if folder.joinpath("_delta_log").exists() else {}
            assert there in (before, after), "a part of a batch is there"
            at = ledgers[number].stored([ZERO, ONE]) if folder.joinpath("_delta_log").exists() else {}
            if any(at.get(("t", number), 0) > was.get(number, 0) for number in (0, 1)):
                model, reached = after, then
        if folder.joinpath("_delta_log").exists():
            assert held(folder) == model, f"life {seed}"


def lives(seeds, folder, danger):  # noqa: F811
    for seed in seeds:
        one_life(seed, folder / str(seed), danger)


@pytest.mark.slow
def test_whatever_happens_each_key_has_its_newest_row(danger, tmp_path):  # noqa: F811
    lives(range(40), tmp_path, danger)


def takes_replays_for_news(monkeypatch):
    """A row below the account replaces what is newer."""
    monkeypatch.setattr("coterie.spark.ledger.upserts.is_above", lambda batch, _: [True] * batch.num_rows)


def leaves_older_rows(monkeypatch):
    """The commit adds what is new, and takes nothing out."""
    commit = Danger.commit
    monkeypatch.setattr(
        Danger,
        "commit",
        lambda self, table, actions, **more: commit(
            self, table, [one for one in actions if hasattr(one, "stats")], **more
        ),
    )


@pytest.mark.slow
@pytest.mark.parametrize("fault", [takes_replays_for_news, leaves_older_rows])
def test_a_fault_in_upserts_that_is_put_in_is_found(danger, tmp_path, monkeypatch, fault):  # noqa: F811
    fault(monkeypatch)

    with pytest.raises((AssertionError, LedgerError)):
        lives(range(60), tmp_path, danger)


def test_upserts_of_spark_s_are_made_on_executors(spark, tmp_path, monkeypatch):
    """The driver reads keys, and writes no file."""
    places = "'t' topic, cast(id % 4 as int) partition, id div 4 offset, id % 40 id, string(id) value"
    frame = spark.range(400).repartition(3).selectExpr(*places.split(", "))
    ledger = Ledger(str(tmp_path), group="g", key=["id"])

    def refuse(*_):
        raise AssertionError("a file was written in the driver")

    monkeypatch.setattr("coterie.spark.ledger.files.ParquetFile.__init__", refuse)
    ledger.write(frame.where("offset < 50"), 0)
    assert held(tmp_path) == {one % 40: str(one) for one in range(160, 200)}

    assert ledger.write(frame, 1) == Outcome(40, 200, 0)

    assert held(tmp_path) == {one % 40: str(one) for one in range(360, 400)}


def test_of_two_rows_of_one_record_the_newer_stays(tmp_path):
    """As of an array that a query has exploded: they have one place, and differ in their order alone."""
    ledger = Ledger(str(tmp_path), group="g", key=["id"], order_by="at")
    both = changes(("x", "old", 1), ("x", "new", 2))
    ledger.append(both.set_column(2, "offset", pa.array([5, 5], pa.int64())))
    assert held(tmp_path) == {"x": "new"}

    alike = changes(("y", "one", 1), ("y", "other", 1))
    with pytest.raises(LedgerError, match="offset 6, have the same key: which is newer is not known"):
        ledger.append(alike.set_column(2, "offset", pa.array([6, 6], pa.int64())))


def test_rows_are_ordered_by_what_has_an_order(tmp_path):
    ledger = Ledger(str(tmp_path), group="g", key=["id"], order_by="at")
    some = changes(("x", "a", 1), ("x", "b", 2))
    with pytest.raises(LedgerError, match="at is NaN"):
        ledger.append(some.set_column(5, "at", pa.array([1.0, float("nan")])))
    with pytest.raises(LedgerError, match=r"at is struct<a: int64>, by which no row is newer"):
        ledger.append(some.set_column(5, "at", pa.array([{"a": 1}, {"a": 2}])))
