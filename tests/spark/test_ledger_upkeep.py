"""A ledger's table kept in shape: compaction, sorting, and leftovers, beside writers and through deaths."""

from __future__ import annotations

import json
import logging
import os
import random
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.table import TableOptimizer

from coterie.base.ids import TopicPartition
from coterie.spark.ledger.account import Account
from coterie.spark.ledger.files import tag_of, writer_to
from coterie.spark.ledger.layout import Layout
from coterie.spark.ledger.ledger import Ledger
from coterie.spark.ledger.outcome import LedgerProgress, Outcome, progress_of_batch
from coterie.spark.ledger.tables import LedgerError
from coterie.spark.ledger.tasks import OwnTasks

from .small_s3 import small_s3
from .test_ledger import given_batch, held, rows

ZERO = TopicPartition("t", 0)
LONG_AGO = time.time() - 30 * 86_400


@pytest.fixture
def ledger(tmp_path):
    return Ledger(str(tmp_path / "table"), group="g")


def files(folder):
    return {path.name for path in (folder / "table").rglob("*.parquet")}


def active(folder):
    return len(DeltaTable(str(folder / "table")).file_uris())


def left_by_a_failed_task(ledger, folder, *ranges):
    """Files that a task has written a month ago, and no commit names."""
    before = files(folder)
    some = rows(*ranges)
    [*writer_to(ledger._place, tag_of("g"), Layout(schema=some.schema))(some.to_batches())]
    left = files(folder) - before
    for name in left:
        os.utime(folder / "table" / name, (LONG_AGO, LONG_AGO))
    return left


def test_compaction_leaves_rows_and_account_as_they_are(ledger, tmp_path):
    for first in range(0, 50, 5):
        ledger.append(rows((0, first, first + 5), (1, first, first + 3)))

    assert ledger.optimize()["numFilesRemoved"] == 10

    assert active(tmp_path) == 1
    assert ledger.append(rows((0, 48, 53), (1, 45, 48))) == Outcome(3, 5, 0)
    with pytest.raises(LedgerError, match="does not have offsets 43 to 44: "):
        ledger.append(rows((1, 43, 46)))
    assert ledger.stored([ZERO]) == {ZERO: 53}


def test_rows_of_several_groups_are_not_mixed_by_compaction(ledger, tmp_path):
    ledger.append(rows((0, 0, 5)))
    Ledger(str(tmp_path / "table"), group="other").append(rows((0, 0, 5)))

    with pytest.raises(LedgerError, match=r"holds rows of several groups.*compaction would mix them"):
        ledger.optimize()


def test_sorting_after_a_catch_up_has_a_day_in_few_files(ledger, tmp_path):
    """A year's records come in any order; a query of one day reads at most one file in twenty."""
    chance, year = random.Random(7), 365
    for number in range(20):
        days = [chance.randrange(year) for _ in range(2_000)]
        at = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day, seconds=day) for day in days]
        some = rows((0, number * 2_000, (number + 1) * 2_000))
        noise = pa.array([chance.randbytes(100) for _ in days])
        ledger.append(some.append_column("at", pa.array(at)).append_column("noise", noise))

    ledger.optimize(sort_by=["at"], target_size=60_000)

    added = pa.table(DeltaTable(str(tmp_path / "table")).get_add_actions(flatten=True)).to_pylist()
    first, until = datetime(2026, 6, 1, tzinfo=UTC), datetime(2026, 6, 2, tzinfo=UTC)
    read = [one for one in added if one["min.at"] < until and one["max.at"] >= first]
    assert len(added) >= 40
    assert 1 <= len(read) <= len(added) / 20


def test_small_files_are_merged_every_so_many_commits_whoever_makes_them(tmp_path):
    """Also if those who write are started anew, and remember nothing."""
    most = []
    for number in range(25):
        ledger = Ledger(str(tmp_path / "table"), group="g", compact_every=6)
        ledger.append(rows((number % 3, number, number + 2)))
        most.append(active(tmp_path))

    assert max(most) <= 7
    compactions = [
        one for one in DeltaTable(str(tmp_path / "table")).history() if one["operation"] == "OPTIMIZE"
    ]
    assert 3 <= len(compactions) <= 5
    wanted = {(number % 3, offset) for number in range(25) for offset in (number, number + 1)}
    assert held(tmp_path / "table") == sorted(wanted)


def test_a_compaction_that_fails_fails_no_batch(tmp_path, monkeypatch, caplog):
    ledger = Ledger(str(tmp_path / "table"), group="g", compact_every=1)

    def refuse(*_, **__):
        raise CommitFailedError("another has removed the files")

    monkeypatch.setattr(TableOptimizer, "compact", refuse)
    with caplog.at_level(logging.WARNING, "coterie.spark"):
        assert ledger.append(rows((0, 0, 5))) == Outcome(5, 0, 0)

    assert "is not compacted; it will be tried again" in caplog.text
    with pytest.raises(LedgerError, match="a number of commits, not 0"):
        Ledger(str(tmp_path / "table"), group="g", compact_every=0)


@pytest.mark.parametrize("partition_by", [None, ["partition"]])
def test_leftovers_of_failed_tasks_are_removed_and_nothing_else(tmp_path, partition_by):
    """Not what a commit names, nor what one has removed, which is VACUUM's; nor what is not the ledger's."""
    ledger = Ledger(str(tmp_path / "table"), group="g", partition_by=partition_by)
    for first in (0, 5):
        ledger.append(rows((0, first, first + 5)))
    ledger.optimize()
    ledger.append(rows((1, 0, 5)))
    tmp_path.joinpath("table", "mine.parquet").write_bytes(b"mine")
    before = files(tmp_path)
    for path in (tmp_path / "table").rglob("*.parquet"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    left = left_by_a_failed_task(ledger, tmp_path, (0, 10, 15))
    assert len(left) == 1

    assert ledger.clean(timedelta(days=31)) == 0
    assert files(tmp_path) == before | left
    assert ledger.clean() == 1

    assert files(tmp_path) == before
    assert len(held(tmp_path / "table")) == 15


def test_what_is_younger_than_the_longest_batch_is_not_taken_for_a_leftover(ledger, monkeypatch):
    slow = OwnTasks.write
    monkeypatch.setattr(OwnTasks, "write", lambda *given: (time.sleep(0.2), slow(*given))[1])
    ledger.append(rows((0, 0, 5)))
    monkeypatch.setattr(OwnTasks, "write", slow)
    ledger.append(rows((0, 5, 10)))

    with pytest.raises(LedgerError, match=r"a batch has taken 0:00:00\.[2-9].*keep them longer"):
        ledger.clean(timedelta(milliseconds=150))


def test_a_batch_that_leftovers_were_cleaned_beneath_is_refused_and_can_be_run_again(
    ledger, tmp_path, monkeypatch
):
    """It has looked whether its files are there, and commits when they are not any more."""
    ledger.append(rows((0, 0, 5)))
    monkeypatch.setattr(Account, "longest_batch_ms", lambda _: 0)
    monkeypatch.setattr("coterie.spark.ledger.upkeep.CLOCKS_DIFFER_MS", -1_000)
    commit = DeltaTable.create_write_transaction
    cleaned = []

    def overtaken(self, actions, *given, **more):
        if actions and not cleaned:
            cleaned.append(None)
            cleaned[0] = Ledger(str(tmp_path / "table"), group="g").clean(timedelta(0))
        commit(self, actions, *given, **more)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", overtaken)
    with pytest.raises(LedgerError, match="before this batch had taken so long was removed"):
        ledger.append(rows((0, 5, 10)))

    assert cleaned == [1]
    assert held(tmp_path / "table") == [(0, offset) for offset in range(5)]
    assert ledger.append(rows((0, 5, 10))) == Outcome(5, 0, 0)
    assert held(tmp_path / "table") == [(0, offset) for offset in range(10)]


def test_a_vacuum_of_somebody_else_that_keeps_nothing_is_noticed_before_the_commit(
    ledger, tmp_path, monkeypatch
):
    ledger.append(rows((0, 0, 5)))
    written = OwnTasks.write

    def vacuumed(tasks, writer):
        found = written(tasks, writer)
        table = DeltaTable(str(tmp_path / "table"))
        table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        return found

    monkeypatch.setattr(OwnTasks, "write", vacuumed)
    with pytest.raises(LedgerError, match="somebody has removed them while the batch ran, as a VACUUM does"):
        ledger.append(rows((0, 5, 10)))

    assert held(tmp_path / "table") == [(0, offset) for offset in range(5)]


def test_a_query_s_progress_has_what_was_cut_and_the_leftovers(tmp_path):
    query = "11111111-2222-3333-4444-555555555555"
    ledger = Ledger(str(tmp_path / "table"), group="g", compact_every=2)
    given_batch(ledger, 0, (0, 0, 5), query=query)
    left_by_a_failed_task(ledger, tmp_path, (0, 5, 9))
    given_batch(ledger, 1, (0, 3, 9), query=query)

    assert progress_of_batch(query, 0) == LedgerProgress(Outcome(5, 0, 0), None)
    cut, superseded = progress_of_batch(query, 1), 1  # the whole of the file that was cut is deleted at once
    assert cut.outcome == Outcome(4, 2, 0)
    assert cut.leftovers == superseded
    assert ledger.clean() == 1
    given_batch(ledger, 2, (0, 9, 10), query=query)
    assert progress_of_batch(query, 2).leftovers == 0
    assert progress_of_batch(query, 3) is None


def test_a_table_on_s3_is_compacted_and_cleaned():
    with small_s3() as s3:
        ledger = Ledger("s3://bucket/tables/t", group="g", storage_options=s3.options)
        ledger.append(rows((0, 0, 5), (1, 0, 5)))
        ledger.append(rows((0, 5, 9)))
        some = rows((0, 9, 12))
        [*writer_to(ledger._place, tag_of("g"), Layout(schema=some.schema))(some.to_batches())]

        assert ledger.optimize()["numFilesRemoved"] == 2
        assert ledger._upkeep().leftovers() == 1
        assert ledger.clean() == 1

        found = DeltaTable("s3://bucket/tables/t", storage_options=s3.options).to_pyarrow_table()
        assert len(found) == 14
        assert json.loads(json.dumps(s3.control()["deleted"]))[-1].endswith(".parquet")


def test_a_table_that_lies_below_another_keeps_its_files(ledger, tmp_path):
    """Its own log names them, and that of the other one does not."""
    below = Ledger(str(tmp_path / "table" / "2026" / "below"), group="g")
    ledger.append(rows((0, 0, 5)))
    below.append(rows((0, 0, 5)))
    for path in (tmp_path / "table" / "2026").rglob("*.parquet"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    left = left_by_a_failed_task(ledger, tmp_path, (0, 5, 9))

    assert ledger.clean() == len(left) == 1

    assert held(tmp_path / "table" / "2026" / "below") == [(0, offset) for offset in range(5)]


@pytest.mark.parametrize("other", ["{0}", "{0}/", "{0}/dead", "{0}/../table"])
def test_dead_letters_lie_in_no_other_table_s_folder(tmp_path, other):
    table = tmp_path / "table"

    with pytest.raises(LedgerError, match="neither may lie in the folder of the other"):
        Ledger(str(table), group="g", dead_letters=other.format(table))
    with pytest.raises(LedgerError, match="neither may lie in the folder of the other"):
        Ledger("s3://lake/rows", group="g", dead_letters="s3a://lake/rows/dead")
    Ledger(str(table), group="g", dead_letters=f"{table}-dead")


def test_how_long_a_batch_took_is_not_told_by_a_clock_that_is_set(ledger, tmp_path, monkeypatch):
    class SetForward:
        """A clock that was years behind when the batch began."""

        monotonic, sleep = time.monotonic, time.sleep
        seconds = iter([time.time() - 6 * 365 * 86_400])

        @classmethod
        def time(cls):
            return next(cls.seconds, time.time())

    monkeypatch.setattr("coterie.spark.ledger.batch.time", SetForward)
    ledger.append(rows((0, 0, 5)))

    assert ledger.clean() == 0


def test_whatever_fails_a_compaction_fails_no_batch(tmp_path, monkeypatch, caplog):
    ledger = Ledger(str(tmp_path / "table"), group="g", compact_every=1)

    def refuse(*_, **__):
        raise pa.ArrowInvalid("a page does not decompress")

    monkeypatch.setattr(TableOptimizer, "compact", refuse)
    for first in range(3):
        assert ledger.append(rows((0, first, first + 1))) == Outcome(1, 0, 0)
    assert "a page does not decompress" in caplog.text
