"""Whose appends are taken is decided with who is registered: in the same moment, in the same epoch."""

from __future__ import annotations

from uuid import UUID

import pytest

from coterie.broker.cluster.changes import (
    Change,
    Changed,
    CreateTopics,
    DeleteTopics,
    LeaveCluster,
    NewTopic,
    RegisterBroker,
    TakeOver,
    UnregisterBroker,
)
from coterie.broker.cluster.database import Database
from coterie.storage.remote.chunk import Chunk
from coterie.storage.remote.pretended import Fate

ORDERS = UUID(int=1)


@pytest.fixture
def database() -> Database:
    """A database whose statements nobody waits for."""
    return Database(choose=lambda _: Fate(), later=lambda *_: None, lanes=2)


def change(database: Database, change: Change) -> int:
    """Have a change made, and return its version."""
    answer = database.metadata.execute(change)
    assert isinstance(answer, Changed)
    return answer.version


def append(database: Database, broker_epoch: int, partition_id: int, offset: int) -> int:
    """Append a record through lane 0 of broker 1, and return the number of rows that were taken."""
    chunk = Chunk(partition_id, offset, offset, 0, 0, 1, 1, b"", b"x")
    return database.tables.append(1, 0, broker_epoch, 0, [chunk])


def test_a_broker_appends_in_the_epoch_of_its_last_registration(database: Database):
    first = change(database, RegisterBroker(1, UUID(int=1), 0))
    other = change(database, RegisterBroker(2, UUID(int=2), 0))
    second = change(database, RegisterBroker(1, UUID(int=3), first))

    assert not database.takes_appends(1, first)
    assert database.takes_appends(1, second)
    assert database.takes_appends(2, other)


def test_a_broker_that_is_taken_over_or_has_left_or_is_removed_appends_nothing(database: Database):
    dead = change(database, RegisterBroker(1, UUID(int=1), 0))
    leaving = change(database, RegisterBroker(2, UUID(int=2), 0))
    other = change(database, RegisterBroker(3, UUID(int=3), 0))
    removed = change(database, RegisterBroker(4, UUID(int=4), 0))

    change(database, TakeOver(1, dead, beats=0))
    change(database, LeaveCluster(2, leaving))
    change(database, UnregisterBroker(4, removed))

    assert not database.takes_appends(1, dead)
    assert not database.takes_appends(2, leaving)
    assert not database.takes_appends(4, removed)
    assert database.takes_appends(3, other)


def test_with_a_topic_its_records_go(database: Database):
    epoch = change(database, RegisterBroker(1, UUID(int=1), 0))
    change(database, CreateTopics((NewTopic(ORDERS, "orders", ((1,),)),)))
    (row,) = database.metadata.image.partitions(ORDERS)
    assert append(database, epoch, row.partition_id, 0) == 1

    change(database, DeleteTopics((ORDERS,)))

    assert not database.tables.rows(row.partition_id)


def test_a_database_that_goes_back_goes_back_in_all(database: Database):
    epoch = change(database, RegisterBroker(1, UUID(int=1), 0))
    append(database, epoch, 1, 0)
    moment = database.moment()
    append(database, epoch, 1, 1)
    later = change(database, RegisterBroker(1, UUID(int=2), epoch))

    database.fall_back(moment, "1")

    assert database.metadata.image.version == epoch
    assert database.metadata.history == database.storage.history == "1"
    assert database.tables.end(1) == 1
    assert database.takes_appends(1, epoch)
    assert not database.takes_appends(1, later)
