"""The ledger: a table that holds each record once, whoever writes, however often, and at the same time."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.ids import TopicPartition
from coterie.client.errors import MissingLibrary
from coterie.spark.ledger.files import refuse_missing, writer_to
from coterie.spark.ledger.layout import Layout
from coterie.spark.ledger.ledger import (
    Ledger,
)
from coterie.spark.ledger.location import TableLocation
from coterie.spark.ledger.outcome import Outcome
from coterie.spark.ledger.tables import (
    LedgerError,
    refuse_other_writers,
)
from coterie.spark.ledger.tasks import OwnTasks, spare_in

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


def rows(*ranges):
    """Rows of partitions from offset to offset, as a table."""
    places = [(number, offset) for number, first, until in ranges for offset in range(first, until)]
    return pa.table(
        {
            "topic": pa.array(["t"] * len(places), pa.string()),
            "partition": pa.array([number for number, _ in places], pa.int32()),
            "offset": pa.array([offset for _, offset in places], pa.int64()),
            "value": pa.array([b"%d" % offset for _, offset in places], pa.binary()),
        }
    )


def held(folder):
    """What the table has, partition and offset."""
    found = DeltaTable(str(folder)).to_pyarrow_table()
    return sorted(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))


def commits(folder):
    return len([*folder.joinpath("_delta_log").glob("*.json")])


@pytest.fixture
def ledger(tmp_path):
    return Ledger(str(tmp_path / "table"), group="g")


def test_a_batch_and_how_far_it_goes_are_one_commit(ledger, tmp_path):
    ledger.append(rows((0, 0, 5), (1, 3, 9)))

    assert held(tmp_path / "table") == [(0, offset) for offset in range(5)] + [(1, n) for n in range(3, 9)]
    assert ledger.stored([ZERO, ONE]) == {ZERO: 5, ONE: 9}
    assert commits(tmp_path / "table") == 2  # the table's making, and the batch


def test_a_batch_that_is_written_again_changes_nothing(ledger, tmp_path):
    for _ in range(2):
        ledger.append(rows((0, 0, 5), (1, 3, 9)))

    assert len(held(tmp_path / "table")) == 11
    assert commits(tmp_path / "table") == 2
    assert len([*tmp_path.joinpath("table").glob("*.parquet")]) == 1


def test_what_another_has_written_of_a_batch_is_cut_away(ledger, tmp_path):
    ledger.append(rows((0, 0, 5)))
    ledger.append(rows((0, 2, 8), (1, 0, 2)))

    assert held(tmp_path / "table") == [(0, offset) for offset in range(8)] + [(1, 0), (1, 1)]


def test_groups_have_accounts_of_their_own(ledger, tmp_path):
    ledger.append(rows((0, 0, 5)))
    Ledger(str(tmp_path / "table"), group="another").append(rows((0, 0, 5)))

    assert len(held(tmp_path / "table")) == 10


def test_a_library_that_forgets_application_transactions_is_refused(ledger, monkeypatch, tmp_path):
    """1.2 to 1.5 write them, and do not find them again: a batch that is repeated would be there twice."""
    monkeypatch.setattr(deltalake, "__version__", "1.5.1")

    with pytest.raises(MissingLibrary, match=r"needs deltalake 1\.6 or newer, and this is 1\.5\.1"):
        ledger.append(rows((0, 0, 5)))

    assert not [*tmp_path.joinpath("table").iterdir()]


def test_what_is_no_table_and_a_place_that_is_none_are_refused(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    rows = pa.table({"topic": ["orders"], "partition": [0], "offset": [0]})

    with pytest.raises(LedgerError, match="append takes a pyarrow Table, not list"):
        Ledger(str(tmp_path / "table"), group="app").append([])  # type: ignore[arg-type]
    with pytest.raises(LedgerError, match=r"a table cannot be made at .*file: File exists; it is a folder"):
        Ledger(str(tmp_path / "file"), group="app").append(rows)

    assert (tmp_path / "file").read_text() == "mine"


def test_rows_that_do_not_say_where_they_came_from_are_refused(ledger):
    with pytest.raises(LedgerError, match="without offset cannot be accounted for"):
        ledger.append(rows((0, 0, 5)).drop_columns(["offset"]))
    with pytest.raises(LedgerError, match="no Delta Lake table"):
        ledger.stored([ZERO])


def test_a_row_without_an_offset_is_refused(ledger):
    no_offset = rows((0, 0, 1)).set_column(2, "offset", pa.array([None], pa.int64()))

    with pytest.raises(LedgerError, match="has no topic, partition or offset"):
        ledger.append(no_offset)


def made(folder, **more):
    """The table, made by somebody else than the ledger."""
    return DeltaTable.create(str(folder / "table"), schema=rows((0, 0, 1)).schema, **more)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            {"configuration": {"delta.setTransactionRetentionDuration": "interval 7 days"}},
            "would forget how far each Kafka partition is",
        ),
        ({"configuration": {"delta.columnMapping.mode": "name"}}, "columns by their own names"),
    ],
)
def test_a_table_that_asks_more_of_its_writers_is_refused(ledger, tmp_path, more, why):
    """The library commits files as they are: the table would be broken, or forget its account."""
    made(tmp_path, **more)

    with pytest.raises(LedgerError, match=why):
        ledger.append(rows((0, 0, 5)))

    assert commits(tmp_path / "table") == 1


def test_a_table_with_constraints_is_refused(ledger, tmp_path):
    made(tmp_path).alter.add_constraint({"small": "offset < 7"})

    with pytest.raises(LedgerError, match="does not check: drop small"):
        ledger.append(rows((0, 0, 5)))


def test_a_column_that_the_table_lacks_is_refused_until_it_is_added(ledger, tmp_path):
    ledger.append(rows((0, 0, 5)))
    wider = rows((0, 3, 8)).append_column("late", pa.array([True] * 5))

    with pytest.raises(LedgerError, match=r"has no column late: have it added .*merge_schema=True"):
        ledger.append(wider)
    table = DeltaTable(str(tmp_path / "table"))
    table.alter.add_columns(Schema.from_arrow(wider.schema).fields[-1:])
    ledger.append(wider)

    assert held(tmp_path / "table") == [(0, offset) for offset in range(8)]
    late = DeltaTable(str(tmp_path / "table")).to_pyarrow_table()["late"].to_pylist()
    assert sorted(map(str, late)) == ["None"] * 5 + ["True"] * 3


def test_a_column_of_another_type_is_refused(ledger):
    ledger.append(rows((0, 0, 5)))
    other = rows((0, 5, 6)).set_column(3, "value", pa.array(["5"]))

    with pytest.raises(LedgerError, match="a column value of another type"):
        ledger.append(other)


def test_a_column_that_must_have_values_is_refused(ledger, tmp_path):
    kinds = [one.with_nullable(one.name != "value") for one in rows((0, 0, 1)).schema]
    DeltaTable.create(str(tmp_path / "table"), schema=pa.schema(kinds))

    with pytest.raises(LedgerError, match="demands values in column value"):
        ledger.append(rows((0, 0, 5)))


def test_the_account_outlives_compaction_vacuum_a_checkpoint_and_its_log(ledger, tmp_path):
    for first in (0, 5):
        ledger.append(rows((0, first, first + 5)))
    table = DeltaTable(str(tmp_path / "table"))
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    table.create_checkpoint()
    for old in sorted(tmp_path.joinpath("table", "_delta_log").glob("*.json"))[:-1]:
        old.unlink()

    ledger.append(rows((0, 7, 12)))

    assert held(tmp_path / "table") == [(0, offset) for offset in range(12)]
    assert ledger.stored([ZERO]) == {ZERO: 12}


def test_what_a_replay_brings_again_is_counted(ledger, caplog):
    assert ledger.append(rows((0, 0, 5))) == Outcome(5, 0, 0)

    with caplog.at_level(logging.WARNING, "coterie.spark"):
        assert ledger.append(rows((0, 2, 8), (1, 0, 2))) == Outcome(5, 3, 0)

    assert ledger.outcome == Outcome(10, 3, 0)
    assert "5 rows written, 3 left out that the table had already (a replay)" in caplog.text


def test_rows_below_the_account_that_the_table_lacks_fail_the_batch(ledger, tmp_path):
    """A group that began at latest is set back to fill in: what comes is no replay."""
    ledger.append(rows((0, 1000, 1010)))

    with pytest.raises(
        LedgerError, match=r"t-0 up to offset 1009 .* not have offsets 0 to 9: .*late='write'"
    ):
        ledger.append(rows((0, 0, 10)))
    with pytest.raises(LedgerError, match="offsets 995 to 999"):
        ledger.append(rows((0, 995, 1020)))

    assert held(tmp_path / "table") == [(0, offset) for offset in range(1000, 1010)]
    assert ledger.stored([ZERO]) == {ZERO: 1010}


def test_rows_to_fill_in_are_written_once_where_the_ledger_is_told_to(ledger, tmp_path):
    ledger.append(rows((0, 10, 20)))
    filling = Ledger(str(tmp_path / "table"), group="g", late="write")

    assert filling.append(rows((0, 0, 12))) == Outcome(10, 2, 10)
    assert filling.append(rows((0, 0, 22))) == Outcome(2, 20, 0)

    assert held(tmp_path / "table") == [(0, offset) for offset in range(22)]
    assert ledger.stored([ZERO]) == {ZERO: 22}


def test_a_row_that_comes_late_out_of_a_gap_is_told_from_a_replay(ledger, tmp_path):
    """What a filter has dropped lies below the account as what a join keeps back does."""
    ledger.append(rows((0, 0, 3), (0, 7, 10)))
    ledger.append(rows((0, 1, 2), (0, 8, 10)))

    with pytest.raises(LedgerError, match="does not have offsets 4 to 5: "):
        ledger.append(rows((0, 1, 2), (0, 4, 6), (0, 7, 12)))
    with pytest.raises(LedgerError, match="does not have offsets 5: "):
        ledger.append(rows((0, 5, 6)))

    assert held(tmp_path / "table") == [(0, offset) for offset in (0, 1, 2, 7, 8, 9)]


def test_another_group_s_rows_are_no_proof_of_a_replay(tmp_path):
    """Both groups have offsets 0 to 4; only one has 5 to 9, and the other has begun at 10."""
    one, other = (Ledger(str(tmp_path / "table"), group=name) for name in ("one", "other"))
    one.append(rows((0, 0, 10)))
    other.append(rows((0, 0, 5)))
    other.append(rows((0, 10, 12)))

    assert other.append(rows((0, 3, 5), (0, 10, 13))) == Outcome(1, 4, 0)
    with pytest.raises(LedgerError, match="does not have offsets 7 to 8"):
        other.append(rows((0, 7, 9)))
    DeltaTable(str(tmp_path / "table")).optimize.compact()
    with pytest.raises(LedgerError, match="holds rows of several groups, and they were mixed"):
        other.append(rows((0, 3, 5)))

    assert len(held(tmp_path / "table")) == 10 + 5 + 2 + 1


@pytest.mark.parametrize("told", [CommitFailedError("version 2 already exists"), OSError("the line is cut")])
def test_a_commit_whose_answer_is_lost_is_found_in_the_log(ledger, tmp_path, monkeypatch, told):
    """As on an object store: the first PUT takes effect unheard, and its repetition overlaps a conflict."""
    ledger.append(rows((0, 0, 5)))
    commit, lost = DeltaTable.create_write_transaction, [told]

    def unheard(self, *given, **more):
        commit(self, *given, **more)
        if lost:
            raise lost.pop()

    monkeypatch.setattr(DeltaTable, "create_write_transaction", unheard)

    ledger.append(rows((0, 5, 10)))

    assert held(tmp_path / "table") == [(0, offset) for offset in range(10)]
    assert commits(tmp_path / "table") == 3
    assert ledger.stored([ZERO]) == {ZERO: 10}


def test_a_commit_that_is_refused_for_ever_says_why(ledger, tmp_path, monkeypatch):
    ledger.append(rows((0, 0, 5)))
    monkeypatch.setattr("coterie.spark.ledger.batch.MOST_TRIES", 3)

    def refuse(*_, **__):
        raise CommitFailedError("the log is read-only")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", refuse)

    with pytest.raises(LedgerError, match=r"3 commits were refused .*: the log is read-only") as told:
        ledger.append(rows((0, 5, 10)))

    assert isinstance(told.value.__cause__, CommitFailedError)
    assert held(tmp_path / "table") == [(0, offset) for offset in range(5)]


def test_a_table_that_has_lost_a_commit_is_not_written_on(ledger, tmp_path):
    """A writer that does not ask before it writes the log may overwrite an entry of ours."""
    ledger.append(rows((0, 0, 5)))
    ledger.append(rows((0, 5, 10)))
    tmp_path.joinpath("table", "_delta_log", f"{2:020}.json").unlink()

    with pytest.raises(LedgerError, match="has lost a commit: it had t-0 up to offset 10, and now up to 5"):
        ledger.append(rows((0, 10, 15)))

    assert held(tmp_path / "table") == [(0, offset) for offset in range(5)]


def test_files_that_the_driver_does_not_see_are_not_committed(ledger, tmp_path, monkeypatch):
    """Executors with disks of their own: what a task has written is somewhere else."""
    ledger.append(rows((0, 0, 5)))
    looked = refuse_missing

    def elsewhere(place, written):
        for one in written[1:]:
            tmp_path.joinpath("table", one.path).unlink()
        looked(place, written)

    monkeypatch.setattr("coterie.spark.ledger.batch.refuse_missing", elsewhere)

    with pytest.raises(LedgerError, match="of 2 files that the tasks have written, 1 cannot be found"):
        given_batch(ledger, 1, (0, 5, 10), (1, 0, 5))

    assert held(tmp_path / "table") == [(0, offset) for offset in range(5)]
    assert commits(tmp_path / "table") == 2


def test_a_task_without_the_table_s_folder_makes_none(tmp_path):
    """It is another machine, and what it wrote there nobody would find."""
    place = TableLocation.of(str(tmp_path / "not-here"))
    rowset = rows((0, 0, 5))

    with pytest.raises(LedgerError, match=r"no folder .*not-here on this machine"):
        list(writer_to(place, "part-", Layout(schema=rowset.schema))(rowset.to_batches()))

    assert not tmp_path.joinpath("not-here").exists()


@pytest.mark.parametrize(
    ("given", "at"),
    [
        ("/tables/delays", "/tables/delays"),
        ("file:/tables/de%20lays", "/tables/de lays"),
        ("file:///tables/delays", "/tables/delays"),
        ("s3://bucket/delays", "s3://bucket/delays"),
        ("s3a://bucket/delays", "s3a://bucket/delays"),
        (
            "abfss://box@account.dfs.core.windows.net/delays",
            "abfss://box@account.dfs.core.windows.net/delays",
        ),
        ("az://box/delays", "az://box/delays"),
        ("gs://bucket/delays", "gs://bucket/delays"),
    ],
)
def test_a_table_is_named_as_spark_names_it(given, at):
    assert TableLocation.of(given).uri == at


def test_a_relative_path_means_the_same_folder_to_every_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert TableLocation.of("run/tables").uri == str(tmp_path / "run" / "tables")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            "wasbs://box@account.blob.core.windows.net/a/b",
            "give abfss://box@account.dfs.core.windows.net/a/b",
        ),
        ("dbfs:/delays", "give the storage that lies behind it"),
        ("s3n://bucket/delays", "give s3a://bucket/delays"),
        ("memory:///delays", "a memory of its own"),
        ("file://host/delays", "file:///folder"),
        ("file:delays", "file:///folder"),
        ("ftp://host/delays", "known are paths, file:///"),
        ("s3:/bucket/delays", "known are paths, file:///"),
    ],
)
def test_a_table_that_no_store_reaches_is_refused_with_what_to_name(given, why):
    with pytest.raises(LedgerError, match=why):
        Ledger(given, group="g")


def test_a_store_whose_commits_overwrite_each_other_is_refused():
    for unsafe in ({"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}, {"conditional_put": "disabled"}):
        with pytest.raises(LedgerError, match="overwrite each other's commits"):
            Ledger("s3://bucket/delays", group="g", storage_options=unsafe)


@pytest.mark.parametrize(
    ("uri", "options", "engine", "allowed", "refused"),
    [
        ("s3a://bucket/delays", {}, "Apache-Spark/4.2.0 Delta-Lake/4.4.0", [], True),
        ("s3a://bucket/delays", {}, "Apache-Spark/4.2.0 Delta-Lake/4.4.0", ["Trino"], True),
        ("s3a://bucket/delays", {}, "Apache-Spark/4.2.0 Delta-Lake/4.4.0", ["Apache-Spark"], False),
        ("s3://bucket/delays", {}, None, [], True),
        ("s3://bucket/delays", {}, None, ["unnamed"], False),
        ("s3://bucket/delays", {"AWS_S3_LOCKING_PROVIDER": "dynamodb"}, "Apache-Spark/4.2.0", [], False),
        ("s3://bucket/delays", {}, "delta-rs:py-1.6.6", [], False),
        ("abfss://box@account.dfs.core.windows.net/delays", {}, "Apache-Spark/4.2.0", [], False),
        ("/tables/delays", {}, "Apache-Spark/4.2.0", [], False),
    ],
)
def test_an_engine_that_may_overwrite_commits_on_s3_is_refused_unless_it_is_allowed(
    uri, options, engine, allowed, refused
):
    commits = [{"operation": "OPTIMIZE", "engineInfo": engine}, {"engineInfo": "delta-rs:py-1.6.6"}]

    if not refused:
        refuse_other_writers(uri, options, commits, allowed)
        return
    name = "unnamed" if engine is None else "Apache-Spark"
    with pytest.raises(LedgerError, match=rf"allow it by name: .* other_writers=\['{name}'\]"):
        refuse_other_writers(uri, options, commits, allowed)


@pytest.mark.parametrize("given", ["Apache-Spark", [""]])
def test_engines_are_allowed_by_a_list_of_names(given):
    with pytest.raises(LedgerError, match="other_writers takes a list of names"):
        Ledger("s3://bucket/delays", group="g", other_writers=given)


def test_secrets_in_storage_options_are_not_shown():
    assert "hush" not in repr(TableLocation.of("s3://bucket/delays", {"AWS_SECRET_ACCESS_KEY": "hush"}))


class SeveralTasks(OwnTasks):
    """A task for each of some rows."""

    def __init__(self, *each):
        super().__init__(pa.concat_tables(each))
        self._each = each

    def write(self, writer):
        return [one for each in self._each for one in OwnTasks(each).write(writer)]


def given_batch(ledger, number, *ranges, query="q"):
    """A batch as `write` hands it on, without Spark; each range is what a task has."""
    tasks = SeveralTasks(*map(rows, ranges))
    return ledger._write(tasks, rows(*ranges).schema, query=query, number=number)


def test_each_batch_is_there_once_with_all_its_rows_where_the_ledger_is_told_so(tmp_path):
    """As a join gives them: late, and several of one record."""
    ledger = Ledger(str(tmp_path / "table"), group="g", once="batch")
    ledger._place.make()
    given_batch(ledger, 0, (0, 9, 10))

    assert given_batch(ledger, 1, (0, 0, 3), (0, 9, 10)) == Outcome(4, 0, 0)
    assert given_batch(ledger, 1, (0, 0, 3), (0, 9, 10)) == Outcome(0, 4, 0)
    with pytest.raises(LedgerError, match="in the table with 4 rows, and a replay has 2"):
        given_batch(ledger, 1, (0, 0, 2))
    with pytest.raises(LedgerError, match="its checkpoint was set back"):
        given_batch(ledger, 0, (0, 9, 10))
    with pytest.raises(LedgerError, match="needs a streaming query's foreachBatch"):
        ledger.append(rows((0, 0, 1)))
    given_batch(ledger, 2, (0, 5, 6))

    assert held(tmp_path / "table") == [(0, offset) for offset in (0, 1, 2, 5, 9, 9)]
    assert ledger.stored([ZERO]) == {ZERO: 10}


@pytest.mark.parametrize("name", ["once", "late"])
def test_a_rule_that_is_none_is_refused(name, tmp_path):
    with pytest.raises(LedgerError, match=f"{name} must be"):
        Ledger(str(tmp_path), group="g", **{name: "sometimes"})


def test_a_file_of_which_a_part_is_left_is_cut_a_few_rows_at_a_time(ledger, tmp_path, monkeypatch):
    """A task need not hold what another has written."""
    many = 200_000
    ledger.append(rows((0, 0, many // 2)))
    most = []

    def noted(batch, spare):
        most.append(batch.num_rows)
        return spare_in(batch, spare)

    monkeypatch.setattr("coterie.spark.ledger.tasks.spare_in", noted)

    assert ledger.append(rows((0, 0, many))) == Outcome(many // 2, many // 2, 0)

    assert sum(most) == many
    assert max(most) <= 65_536


@pytest.mark.parametrize("attempt", range(3))
def test_writers_that_make_the_table_at_the_same_time_both_write(tmp_path, attempt):
    start = threading.Barrier(4)

    def write(number):
        start.wait()
        Ledger(str(tmp_path / "table"), group="g").append(rows((number, 0, 3)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))

    assert held(tmp_path / "table") == [(number, offset) for number in range(4) for offset in range(3)]


@pytest.mark.interop
def test_writers_that_race_write_each_record_once(tmp_path):
    folder = tmp_path / "table"
    start = threading.Barrier(4)

    def life(seed):
        """Batches of 7 over the same records, cut in another place by each writer."""
        ledger = Ledger(str(folder), group="g")
        start.wait()
        for first in range(seed, 60, 7):
            ledger.append(rows((0, max(0, first - 7), first + 7)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(life, range(4)))

    found = held(folder)
    assert len(found) == len(set(found))
    assert found == [(0, offset) for offset in range(len(found))]
    assert len(found) >= 60


@pytest.mark.interop
@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12)), max_size=8))
def test_batches_that_are_repeated_in_any_way_leave_each_record_once(tmp_path_factory, steps):
    """Each step goes back by some records, as a replay may, and on by five."""
    folder = tmp_path_factory.mktemp("ledger") / "table"
    ledger, reached = Ledger(str(folder), group="g"), [0, 0]
    ledger.append(rows((0, 0, 1)))
    reached[0] = 1
    for number, back in steps:
        first = max(0, reached[number] - back)
        ledger.append(rows((number, first, first + 5)))
        reached[number] = max(reached[number], first + 5)

    assert held(folder) == [(number, offset) for number in range(2) for offset in range(reached[number])]


def test_a_file_is_cut_on_an_executor_and_never_here(spark, tmp_path, monkeypatch):
    """Twelve Kafka partitions in two tasks, of which each has some rows that the table has."""
    places = "'t' topic, cast(id % 12 as int) partition, id div 12 offset, cast(id as string) value"
    frame = spark.range(240).repartition(2).selectExpr(*places.split(", "))
    ledger = Ledger(str(tmp_path / "table"), group="g")
    assert ledger.write(frame.where("offset < 5 and partition < 9"), 0) == Outcome(45, 0, 0)

    def refuse(*_):
        raise AssertionError("a file was cut in the driver")

    monkeypatch.setattr("coterie.spark.ledger.tasks.spare_in", refuse)
    assert ledger.write(frame, 1) == Outcome(195, 45, 0)

    assert held(tmp_path / "table") == [(n, offset) for n in range(12) for offset in range(20)]
    assert len([*DeltaTable(str(tmp_path / "table")).file_uris()]) <= 4


def test_a_query_s_batches_go_through_the_ledger(spark, new_topic, group, tmp_path):
    topic = new_topic(partitions=3)
    topic.produce([b"%d" % number for number in range(60)])
    frame = (
        spark.read.format("coterie")
        .option("kafka.bootstrap.servers", topic.bootstrap)
        .option("subscribe", topic.name)
        .load()
    )
    ledger = Ledger(str(tmp_path / "table"), group=group)

    ledger.write(frame.where("offset < 12"), 0)
    ledger.write(frame, 1)

    assert held(tmp_path / "table") == sorted((one.partition, one.offset) for one in topic.sent)
    places = [TopicPartition(topic.name, number) for number in range(3)]
    assert ledger.stored(places) == {one: topic.ends()[one.partition] for one in places}
