"""A ledger's lives, drawn by seed: batches, replays in any cut, late rows, races, lost answers, crashes.

Whatever happens, and between whichever two effects, a batch that is through has each of its rows in the table
exactly once, one that cannot be accounted for fails loudly, and the table can be read.

More lives: `LIVES=2000 FIRST=300 pytest tests/spark/test_ledger_lives.py`.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem

from coterie.spark.ledger.account import Account
from coterie.spark.ledger.batch import Batch
from coterie.spark.ledger.ledger import (
    Ledger,
)
from coterie.spark.ledger.location import TableLocation
from coterie.spark.ledger.tables import (
    LedgerError,
)

from .test_ledger import held, rows

LIVES, FIRST = int(os.environ.get("LIVES", "60")), int(os.environ.get("FIRST", "0"))
PARTITIONS = 2
commit_for_real = DeltaTable.create_write_transaction


class Crash(BaseException):
    """The process has died."""


class Danger:
    """What is to happen to the effects that come: a crash after so many, or something at the next commit."""

    ANSWERS: tuple[type[Exception], ...] = (CommitFailedError, OSError)
    """What a writer hears instead of an answer that was lost."""

    def __init__(self):
        self.effects = 0
        self.crash_at = None
        self.lost_answer = None
        self.rival = None

    def effect(self):
        self.effects += 1
        if self.crash_at == self.effects:
            raise Crash

    def commit(self, table, *given, **more):
        """The library's commit, with what may come before and after."""
        if given[0] if given else more["actions"]:
            rival, self.rival = self.rival, None
            if rival is not None:
                rival()
        self.effect()
        commit_for_real(table, *given, **more)
        self.effect()
        lost, self.lost_answer = self.lost_answer, None
        if lost is not None:
            raise lost("the answer was lost")


class Store(DeltaStorageHandler):
    """The table's store, whose effects are counted."""

    danger = Danger()

    def open_output_stream(self, path, metadata=None):
        self.danger.effect()
        return super().open_output_stream(path, metadata)

    def get_file_info(self, paths):
        self.danger.effect()  # a file has been closed
        return super().get_file_info(paths)

    def delete_file(self, path):
        self.danger.effect()
        super().delete_file(path)
        self.danger.effect()


@pytest.fixture
def danger(monkeypatch, caplog):
    """What happens to the effects of every ledger of the test."""
    caplog.set_level(logging.CRITICAL, "coterie.spark")
    danger = Danger()
    monkeypatch.setattr(Store, "danger", danger)
    monkeypatch.setattr(TableLocation, "store", lambda place: PyFileSystem(Store(place.uri, place.options)))
    monkeypatch.setattr(DeltaTable, "create_write_transaction", lambda *a, **b: danger.commit(*a, **b))
    monkeypatch.setattr("coterie.spark.ledger.batch.LONGEST_PAUSE_MS", 0)
    monkeypatch.setattr("coterie.spark.ledger.batch.FIRST_PAUSE_MS", 0)
    monkeypatch.setattr("coterie.spark.ledger.upkeep.CLOCKS_DIFFER_MS", -1_000)  # what is there now is old
    monkeypatch.setattr(Account, "longest_batch_ms", lambda _: 0)
    return danger


class Life:
    """One table, its writers, and what they were given."""

    def __init__(self, seed: int, folder: Path, danger: Danger) -> None:
        self.chance, self.folder, self.danger = random.Random(seed), folder, danger
        self.late = self.chance.choice(["refuse", "write"])
        self.partition_by = self.chance.choice([None, None, ["partition"], ["topic", "partition"]])
        self.given = [0] * PARTITIONS
        self.dropped = {(n, o) for n in range(PARTITIONS) for o in range(60) if self.chance.random() < 0.2}
        self.ledgers = [self.ledger() for _ in range(2)]
        self.there: Counter[tuple[int, int]] = Counter()
        self.story: list[object] = []

    def ledger(self) -> Ledger:
        return Ledger(str(self.folder), group="g", late=self.late, partition_by=self.partition_by)

    def batch(self) -> list[tuple[int, int]]:
        """Rows of some partitions: what comes next, what was there, both, or what was left out before."""
        found = []
        for number in range(PARTITIONS):
            reached = self.given[number]
            first = self.chance.choice([reached, reached, max(0, reached - self.chance.randrange(12))])
            until = first + self.chance.randrange(9)
            found += [
                (number, offset) for offset in range(first, until) if (number, offset) not in self.dropped
            ]
        if self.chance.random() < 0.2:
            late = sorted(self.dropped)[: self.chance.randrange(4)]
            found += [one for one in late if one not in found]
        return sorted(found)

    def write(self, ledger: Ledger, batch: list[tuple[int, int]]) -> None:
        """Give a batch, and hold what comes of it against what must."""
        account = {number: self.account(number) for number in range(PARTITIONS)}
        unproven = [one for one in batch if one[1] < account[one[0]] and not self.there[one]]
        try:
            ledger.append(rows(*((number, offset, offset + 1) for number, offset in batch)))
        except LedgerError:
            assert unproven, "a batch that could be accounted for was refused"
            assert self.late == "refuse"
            self.agrees(Counter(self.there))
            return
        assert not (unproven and self.late == "refuse"), f"{unproven} were taken though they prove nothing"
        self.there |= Counter(batch)
        self.agrees(self.there)
        for number, offset in batch:
            self.given[number] = max(self.given[number], offset + 1)

    def account(self, number: int) -> int:
        return max([offset + 1 for n, offset in self.there if n == number], default=0)

    def agrees(self, wanted: Counter[tuple[int, int]]) -> None:
        assert self.held() == wanted

    def held(self) -> Counter[tuple[int, int]]:
        return Counter(held(self.folder)) if self.folder.joinpath("_delta_log").exists() else Counter()

    def step(self) -> None:
        """Something happens."""
        what = self.chance.choice(["batch", "batch", "race", "lost", "crash", "crash", "tidy", "cleaned"])
        batch, number = self.batch(), self.chance.randrange(2)
        self.story.append((what, number, batch))
        danger = self.danger
        danger.effects, danger.crash_at, danger.lost_answer, danger.rival = 0, None, None, None
        if what == "tidy":
            self.tidy()
            return
        if what == "lost":
            danger.lost_answer = self.chance.choice(danger.ANSWERS)
        if what == "crash":
            self.crash(number, batch)
            return
        if what == "race":
            self.race(number, batch)
            return
        if what == "cleaned":
            self.cleaned_beneath(number, batch)
            return
        self.write(self.ledgers[number], batch)

    def race(self, number: int, batch: list[tuple[int, int]]) -> None:
        """Another writer commits between our look at the table and our commit: as if it had come first."""
        rival, theirs = self.ledgers[1 - number], self.batch()
        self.story.append(("rival", theirs))
        told = []

        def first() -> None:
            try:
                self.write(rival, theirs)
            except AssertionError as error:  # it must not be taken for the commit's own
                told.append(error)

        self.danger.rival = first
        # What must come of ours is known when the rival is through: it may make a late row of a new one.
        try:
            self.ledgers[number].append(rows(*((n, offset, offset + 1) for n, offset in batch)))
        except LedgerError:
            assert self.late == "refuse"
            assert not told, told
            unproven = [one for one in batch if one[1] < self.account(one[0]) and not self.there[one]]
            assert unproven, "a batch that could be accounted for was refused"
        else:
            assert not told, told
            self.there |= Counter(batch)
            for n, offset in batch:
                self.given[n] = max(self.given[n], offset + 1)
        self.danger.rival = None
        self.agrees(self.there)

    def cleaned_beneath(self, number: int, batch: list[tuple[int, int]]) -> None:
        """Leftovers are removed, the batch's files taken for such: it commits nothing, and is run again."""
        removed = []

        def clean() -> None:
            removed.append(self.ledgers[1 - number].clean(timedelta(0)))

        self.danger.rival = clean
        try:
            self.ledgers[number].append(rows(*((n, offset, offset + 1) for n, offset in batch)))
        except LedgerError:
            assert removed or self.late == "refuse", "nothing was removed, and the batch refused"
            self.agrees(Counter(self.there))
        else:
            assert not removed, "files that were removed are in the table"
            self.there |= Counter(batch)
            for n, offset in batch:
                self.given[n] = max(self.given[n], offset + 1)
        self.danger.rival = None
        self.agrees(self.there)
        self.write(self.ledgers[number], batch)

    def crash(self, number: int, batch: list[tuple[int, int]]) -> None:
        """The process dies at one of its effects; the batch is there whole, or not at all."""
        self.danger.crash_at = self.chance.randrange(1, 12)
        before = Counter(self.there)
        try:
            self.write(self.ledgers[number], batch)
        except Crash:
            found = self.held()
            assert found in (before, before | Counter(batch)), "a part of a batch is there"
            self.there = found
            self.ledgers[number] = self.ledger()
        finally:
            self.danger.crash_at = None

    def tidy(self) -> None:
        """What looks after a table between batches."""
        if not self.folder.joinpath("_delta_log").exists():
            return
        if self.chance.random() < 0.5:
            self.ledgers[0].optimize(sort_by=self.chance.choice([[], ["offset"]]))
        if self.chance.random() < 0.5:
            DeltaTable(str(self.folder)).create_checkpoint()
        if self.chance.random() < 0.5:
            self.ledgers[1].clean(timedelta(0))
            assert self.ledgers[1]._upkeep().leftovers() == 0
        if self.chance.random() < 0.5:
            DeltaTable(str(self.folder)).vacuum(0, dry_run=False, enforce_retention_duration=False)
        self.agrees(self.there)


def live(seed: int, folder: Path, danger: Danger, steps: int = 5) -> None:
    """One life; raises AssertionError with its story where a promise is broken."""
    life = Life(seed, folder / str(seed), danger)
    try:
        for _ in range(steps):
            life.step()
    except Exception as error:
        raise AssertionError(f"life {seed}, late={life.late}: {life.story}: {error!r}") from error
    finally:
        shutil.rmtree(life.folder, ignore_errors=True)


def lives(seeds: Iterable[int], folder: Path, danger: Danger) -> None:
    for seed in seeds:
        live(seed, folder, danger)


@pytest.mark.slow
def test_whatever_happens_a_batch_that_is_through_is_there_once(danger, tmp_path):
    lives(range(FIRST, FIRST + LIVES), tmp_path, danger)


def deletes_what_it_has_named(monkeypatch):
    """As R2 was: a conflict is taken at its word, and a file is deleted for what the table has of it."""
    monkeypatch.setattr(Danger, "ANSWERS", Danger.ANSWERS[:1])
    monkeypatch.setattr(Batch, "_took_effect", lambda self, *, since: False)
    tidy = Batch._tidy

    def forgetful(self, files):
        self._named = set()
        tidy(self, files)

    monkeypatch.setattr(Batch, "_tidy", forgetful)


def takes_all_below_for_replays(monkeypatch):
    """As R3 and S2 were: the account is a high-water mark, and nothing else."""
    monkeypatch.setattr(Account, "there", lambda self, asked: asked)


def writes_all_below(monkeypatch):
    """No replay is recognised."""
    monkeypatch.setattr(Account, "reached", lambda self, at: 0)


def judges_once(monkeypatch):
    """A commit that another has overtaken is repeated without a look at what that one wrote."""
    left = Batch._left
    monkeypatch.setattr(
        Batch,
        "_left",
        lambda self, account, before, tasks: before if self._named else left(self, account, before, tasks),
    )


def forgets_the_account_in_a_commit(monkeypatch):
    """Rows, and how far they go, are two commits: the second is lost."""
    notes = Batch._notes
    monkeypatch.setattr(
        Batch, "_notes", lambda *given: {app: 0 if "/t/" in app else at for app, at in notes(*given).items()}
    )


def commits_files_that_were_cleaned_away(monkeypatch):
    """A batch does not ask whether leftovers were removed since it has begun."""
    monkeypatch.setattr(Batch, "_refuse_cleaned", lambda self, account, left: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        commits_files_that_were_cleaned_away,
        deletes_what_it_has_named,
        takes_all_below_for_replays,
        writes_all_below,
        judges_once,
        forgets_the_account_in_a_commit,
    ],
)
def test_a_fault_that_is_put_back_is_found(danger, tmp_path, monkeypatch, fault):
    fault(monkeypatch)

    with pytest.raises(AssertionError, match="life "):
        lives(range(150), tmp_path, danger)
