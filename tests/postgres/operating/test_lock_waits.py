"""What is said of locks that somebody keeps, and how long it is known, in virtual time."""

from __future__ import annotations

import pytest

from coterie.storage.postgres.blocking import (
    AGAIN_S,
    GONE_S,
    JUST_NOW_S,
    LASTS_S,
    LockHolder,
    LockWait,
    SeenWaits,
)

ME, OTHER = 100, 101


class Seeing:
    """What was seen, by a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.seen = SeenWaits(lambda: self.now_s)

    def take(self, wait: LockWait, *, after_s: float = 0, pid: int = ME) -> bool:
        """Have a wait be seen after a while; return whether it is said."""
        self.now_s += after_s
        return self.seen.take(pid, wait)


@pytest.fixture
def seeing() -> Seeing:
    """Nothing was seen yet."""
    return Seeing()


def a_wait(*holders: int, table: str = "coterie.topics", since_s: float | None = 60.0) -> LockWait:
    """Return the wait for a lock on a table that sessions keep, the last of them for so long."""
    return LockWait(table, tuple(LockHolder(one, "psql", "me", "active", since_s) for one in holders or (7,)))


def test_what_lasts_is_said_at_first_and_then_every_ten_minutes(seeing: Seeing):
    said_at = [at_s for at_s in range(0, 2_000, 10) if seeing.take(a_wait(), after_s=10 if at_s else 0)]

    assert said_at == [0, AGAIN_S, 2 * AGAIN_S, 3 * AGAIN_S]


def test_what_is_seen_again_once_it_was_over_is_said_again(seeing: Seeing):
    assert seeing.take(a_wait())
    assert not seeing.take(a_wait(), after_s=GONE_S - 1)
    assert seeing.take(a_wait(), after_s=GONE_S)


def test_another_table_and_another_who_is_waited_for_last_are_each_said(seeing: Seeing):
    assert [
        seeing.take(one) for one in (a_wait(), a_wait(table="coterie.brokers"), a_wait(7, 8), a_wait(9, 8))
    ] == [
        True,
        True,
        True,
        False,
    ]


def test_nothing_is_said_of_who_has_just_begun_unless_the_database_does_not_tell_since_when(seeing: Seeing):
    assert not seeing.take(a_wait(since_s=LASTS_S / 2))
    assert seeing.seen.latest() is None
    assert seeing.take(a_wait(since_s=LASTS_S))
    assert seeing.take(a_wait(8, since_s=None))


def test_what_was_waited_for_last_is_known_until_it_is_over(seeing: Seeing):
    seeing.take(a_wait(8))
    seeing.take(a_wait(7), pid=OTHER, after_s=1)
    seeing.take(a_wait(9), after_s=1)

    assert seeing.seen.latest() == a_wait(9)
    seeing.now_s += GONE_S
    assert seeing.seen.latest() is None


def test_what_a_session_has_just_waited_for_is_its_own(seeing: Seeing):
    seeing.take(a_wait(7))
    seeing.take(a_wait(8), pid=OTHER, after_s=JUST_NOW_S - 0.1)

    assert (seeing.seen.just_now(ME), seeing.seen.just_now(OTHER)) == (a_wait(7), a_wait(8))
    seeing.now_s += 0.1
    assert seeing.seen.just_now(ME) is None
    assert seeing.seen.just_now(102) is None


def test_of_a_session_stands_what_the_database_tells():
    assert (
        str(a_wait(7))
        == "a lock on coterie.topics that somebody keeps: process 7 (psql, user me, active, for 60 s)"
    )
    untold = LockWait(None, (LockHolder(7, None, None, None, None), LockHolder(0, None, None, None, None)))
    assert str(untold) == (
        "a lock that somebody keeps: process 7, which waits for a prepared transaction (the database's"
        " pg_prepared_xacts says which)"
    )


# -- a write that is not confirmed


def unconfirmed(application: str | None, *, event: str = "SyncRep", pid: int = 7) -> LockWait:
    """Return the wait for a session that waits for its commit to be confirmed."""
    return LockWait("coterie.cluster", (LockHolder(pid, application, "me", "active", 3.0, event),))


def test_of_a_write_that_waits_for_a_standby_nobody_is_said_to_keep_a_lock():
    """Found by a breaker: a broker's own commit that waited was told of as somebody who keeps a lock."""
    assert str(unconfirmed("coterie broker 1: membership")) == (
        "a write of broker 1's that the database has not confirmed for 3 s: it waits for a synchronous"
        " standby (SyncRep; synchronous_standby_names says which)"
    )


@pytest.mark.parametrize("event", ["WALSync", "WalSync", "WALWrite"])
def test_of_one_that_waits_for_the_disk_it_is_said(event: str):
    assert str(unconfirmed("coterie broker 12: metadata", event=event)).endswith(
        f"a write of broker 12's that the database has not confirmed for 3 s: it waits for its disk ({event})"
    )


def test_whose_it_is_where_it_is_no_brokers():
    assert str(unconfirmed("psql")).startswith("a write of process 7's that the database has not confirmed")


def test_all_that_wait_for_the_standby_are_told_of_once(seeing: Seeing):
    assert seeing.take(unconfirmed("coterie broker 1: membership"))
    assert not seeing.take(unconfirmed("coterie broker 1: metadata", pid=8))
