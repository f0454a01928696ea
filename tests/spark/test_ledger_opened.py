"""A ledger opens its table for each batch, and notices what became of it meanwhile."""

from __future__ import annotations

import shutil

import pytest

from coterie.spark.ledger.ledger import Ledger
from coterie.spark.ledger.location import TableLocation
from coterie.spark.ledger.tables import LedgerError

from .test_ledger import held, rows


@pytest.fixture
def ledger(tmp_path):
    return Ledger(str(tmp_path / "table"), group="g")


def test_a_table_is_opened_once_a_batch(ledger, monkeypatch):
    """To open a table of many files takes long."""
    opened, table = [], TableLocation.table
    monkeypatch.setattr(TableLocation, "table", lambda place: opened.append(place) or table(place))
    ledger.append(rows((0, 0, 3)))
    made = len(opened)
    for number in range(1, 8):
        ledger.append(rows((0, number, number + 3)))

    assert len(opened) - made == 7 + 1  # how it is partitioned is asked for once, too


def test_a_table_that_was_made_anew_beneath_is_not_taken_for_the_old_one(ledger, tmp_path):
    for first in (0, 5):
        ledger.append(rows((0, first, first + 5)))
    shutil.rmtree(tmp_path / "table")
    for first in range(0, 6, 2):
        Ledger(str(tmp_path / "table"), group="g").append(rows((0, first, first + 2)))

    with pytest.raises(LedgerError, match="has lost a commit: it had t-0 up to offset 10, and now up to 6"):
        ledger.append(rows((0, 10, 15)))
    assert len(held(tmp_path / "table")) == 6


def test_a_commit_of_ours_that_another_has_overwritten_is_noticed(ledger, tmp_path):
    ledger.append(rows((0, 0, 5)))
    ledger.append(rows((0, 5, 10)))
    log = tmp_path / "table" / "_delta_log"
    mine, theirs = (log / f"{version:020}.json" for version in (2, 1))
    mine.write_bytes(theirs.read_bytes())

    with pytest.raises(LedgerError, match="has lost a commit: it had t-0 up to offset 10"):
        ledger.append(rows((0, 10, 15)))
