"""Dead letters in a table of their own: each record is in one of the two, once, wherever a writer dies."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.ids import TopicPartition
from coterie.spark.ledger.ledger import Ledger
from coterie.spark.ledger.tables import LedgerError
from coterie.spark.listener import GroupListener

from .small_registry import running_registry, written
from .test_stream import begin

LETTER = pa.struct([("reason", pa.string()), ("schemaId", pa.int32()), ("value", pa.binary())])
DELAY = {"type": "record", "name": "Delay", "fields": [{"name": "minutes", "type": "int"}]}


def rows(first, until, dead=(), partition=0):
    """Rows of a partition, of which those at some offsets are dead letters."""
    offsets = range(first, until)
    letters = [
        {"reason": "none", "schemaId": 1, "value": b"%d" % one} if one in dead else None for one in offsets
    ]
    return pa.table(
        {
            "topic": pa.array(["t"] * len(offsets), pa.string()),
            "partition": pa.array([partition] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "minutes": pa.array([None if one in dead else one for one in offsets], pa.int64()),
            "deadLetter": pa.array(letters, LETTER),
        }
    )


def held(folder):
    """What a table has, partition and offset."""
    found = DeltaTable(str(folder)).to_pyarrow_table()
    return sorted(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))


def places(*offsets):
    return [(0, one) for one in offsets]


class Killed(Exception):
    """The writer is no more."""


def killed_between(ledger):
    """Have a ledger's writer die once its dead letters are committed, and all else is not."""

    def die(*_):
        raise Killed

    ledger.dead_letters._counted = die
    return ledger


def ledger_in(folder):
    return Ledger(str(folder / "table"), group="g", dead_letters=str(folder / "dead"))


@pytest.fixture
def ledger(tmp_path):
    return ledger_in(tmp_path)


def test_what_is_dead_goes_to_a_table_of_its_own_with_its_bytes_and_the_reason(ledger, tmp_path):
    ledger.append(rows(0, 6, dead={2, 5}))

    assert held(tmp_path / "table") == places(0, 1, 3, 4)
    assert DeltaTable(str(tmp_path / "table")).to_pyarrow_table().column_names == [
        "topic", "partition", "offset", "minutes",
    ]  # fmt: skip
    letters = DeltaTable(str(tmp_path / "dead")).to_pyarrow_table().sort_by("offset")
    assert letters.drop_columns(["topic", "partition"]).to_pylist() == [
        {"offset": one, "reason": "none", "schemaId": 1, "value": b"%d" % one} for one in (2, 5)
    ]
    assert (ledger.outcome.written, ledger.dead_letters.outcome.written) == (4, 2)


def test_a_batch_that_is_written_again_changes_neither(ledger, tmp_path):
    for _ in range(2):
        ledger_in(tmp_path).append(rows(0, 6, dead={2, 5}))
    ledger_in(tmp_path).append(rows(4, 9, dead={5, 7}))

    assert held(tmp_path / "table") == places(0, 1, 3, 4, 6, 8)
    assert held(tmp_path / "dead") == places(2, 5, 7)


def test_a_writer_that_dies_between_the_two_repeats_nothing(ledger, tmp_path):
    ledger.append(rows(0, 3, dead={1}))
    with pytest.raises(Killed):
        killed_between(ledger_in(tmp_path)).append(rows(3, 9, dead={4, 8}))
    assert held(tmp_path / "dead") == places(1, 4, 8)

    ledger_in(tmp_path).append(rows(3, 9, dead={4, 8}))

    assert held(tmp_path / "table") == places(0, 2, 3, 5, 6, 7)
    assert held(tmp_path / "dead") == places(1, 4, 8)


def test_what_decodes_after_all_when_its_batch_is_run_again_stays_where_it_is(ledger, tmp_path):
    """Its schema has been registered meanwhile, or the check has changed."""
    with pytest.raises(Killed):
        killed_between(ledger).append(rows(0, 6, dead={2, 5}))

    ledger_in(tmp_path).append(rows(0, 6, dead={5}))
    ledger_in(tmp_path).append(rows(0, 6))

    assert held(tmp_path / "table") == places(0, 1, 3, 4)
    assert held(tmp_path / "dead") == places(2, 5)


def test_what_no_longer_decodes_when_its_batch_is_run_again_is_no_late_row(ledger, tmp_path):
    with pytest.raises(Killed):
        killed_between(ledger).append(rows(0, 6, dead={5}))

    ledger_in(tmp_path).append(rows(0, 6, dead={1, 5}))
    ledger_in(tmp_path).append(rows(0, 6, dead={0, 1, 5}))

    assert held(tmp_path / "table") == places(0, 2, 3, 4)
    assert held(tmp_path / "dead") == places(1, 5)


def test_a_row_that_neither_has_below_what_both_are_past_is_late(ledger):
    ledger.append(rows(3, 9, dead={4, 8}))

    with pytest.raises(LedgerError, match="they are no replay"):
        ledger.append(rows(0, 4))
    with pytest.raises(LedgerError, match="they are no replay"):
        ledger.append(rows(0, 4, dead={0, 1, 2, 3}))


@given(st.data())
@settings(max_examples=12, deadline=None)
def test_each_record_is_in_one_of_the_two_once_whatever_dies_and_whatever_decodes_anew(data):
    with tempfile.TemporaryDirectory() as name:
        folder, first = Path(name), 0
        for _ in range(data.draw(st.integers(1, 3))):
            until = first + data.draw(st.integers(1, 5))
            while True:
                dead = data.draw(st.sets(st.integers(first, until - 1)))
                ledger = ledger_in(folder)
                if not data.draw(st.booleans()):
                    ledger.append(rows(first, until, dead=dead))
                    break
                try:
                    killed_between(ledger).append(rows(first, until, dead=dead))
                except Killed:
                    continue
            first = until
            ledger_in(folder).append(
                rows(max(0, first - 3), first, dead=data.draw(st.sets(st.integers(0, first))))
            )

        found = [one for table in ("table", "dead") for one in held(folder / table)]

        assert sorted(found) == places(*range(first))


def test_dead_letters_that_could_not_be_accounted_for_are_refused(tmp_path):
    table = str(tmp_path / "table")
    with pytest.raises(LedgerError, match="dead_letters needs once='record'"):
        Ledger(table, group="g", once="batch", dead_letters=str(tmp_path / "dead"))
    with pytest.raises(LedgerError, match="needs a table of its own"):
        Ledger(table, group="g", dead_letters=f"{table}/")


def test_a_query_that_has_no_dead_letters_is_told_what_to_read(ledger):
    with pytest.raises(LedgerError, match="read with deadLetterColumn=true, and keep it"):
        ledger.append(rows(0, 3).drop_columns(["deadLetter"]))


def test_a_stream_s_values_and_dead_letters_are_in_two_tables_each_once(spark, new_topic, group, tmp_path):
    topic = new_topic(partitions=2)
    ledger, seen = ledger_in(tmp_path), []
    listener = GroupListener(on_progress=seen.append)
    spark.streams.addListener(listener)
    with running_registry() as registry:
        schema_id = registry.register("delays-value", DELAY)
        given = {"kafka.bootstrap.servers": topic.bootstrap, "subscribe": topic.name, "group.id": group}
        given |= {"startingOffsets": "earliest", "value.format": "avro", "value.subject": "delays-value"}
        given |= {"schema.registry.url": registry.url, "deadLetterColumn": "true"}
        for _ in range(2):
            topic.produce(
                [written(schema_id, DELAY, {"minutes": one}) if one % 10 else b"?" for one in range(40)]
            )
            frame = spark.readStream.format("coterie").options(**given).load()
            frame = frame.selectExpr("topic", "partition", "offset", "value.minutes", "deadLetter")
            query = frame.writeStream.foreachBatch(ledger.write).trigger(availableNow=True)
            begin(query.option("checkpointLocation", str(tmp_path / "c"))).awaitTermination()
    spark.streams.removeListener(listener)

    table, dead = held(tmp_path / "table"), held(tmp_path / "dead")
    assert len(table) == 72
    told = [one.ledger.outcome.written for one in seen if one.ledger is not None]
    assert sum(told) in (36, 72)  # the last batch may be heard of later
    assert len(dead) == 8
    assert sorted(table + dead) == sorted((one.partition, one.offset) for one in topic.sent)
    found = DeltaTable(str(tmp_path / "dead")).to_pyarrow_table()
    assert all("not in the wire format" in one for one in found["reason"].to_pylist())
    asked = [TopicPartition(topic.name, number) for number in range(2)]
    assert sum(ledger.stored(asked).values()) >= 78
