"""What a member waits for, and what it says when its query comes back late."""

from __future__ import annotations

import logging

import pytest

from coterie.client.member import MemberSettings
from coterie.spark.source.group.pacing import (
    LONGEST_WAIT_S,
    SHORT_WAIT_S,
    OtherSources,
    PollIntervalCheck,
    WaitLog,
)


@pytest.fixture
def said(caplog):
    """A function that says what was warned of."""
    with caplog.at_level(logging.WARNING, "coterie.spark"):
        yield lambda: caplog.messages


def pace():
    return PollIntervalCheck(MemberSettings(group_id="g", max_poll_interval_ms=10_000))


def test_a_batch_in_time_is_no_news(said):
    one = pace()
    for begun in range(0, 100, 10):
        one.planned(begun)
        one.called(begun + 7.9)

    assert said() == []


def test_a_query_that_waits_for_records_is_not_late(said):
    one = pace()
    one.called(0.0)
    one.called(100.0)
    one.planned(100.0)
    one.called(101.0)
    one.called(200.0)

    assert said() == []


def test_nearly_too_long_and_too_long_are_told_with_what_to_do(said):
    one = pace()
    one.planned(0.0)
    one.called(8.5)
    one.planned(10.0)
    one.called(18.6)
    one.planned(20.0)
    one.called(35.0)

    nearly, late = said()
    assert "8.5 s, 85% of kafka.max.poll.interval.ms (10 s)" in nearly
    assert "15.0 s, more than kafka.max.poll.interval.ms" in late
    assert "maxOffsetsPerTrigger" in late


def test_of_a_batch_whose_end_was_heard_of_it_and_the_wait_for_a_trigger_are_looked_at_apart(said):
    one = pace()
    one.planned(0.0)
    one.ended(7.0)
    one.called(14.0)
    assert said() == []

    one.planned(20.0)
    one.ended(28.5)
    one.ended(28.5)
    one.called(45.0)

    batch, wait = said()
    assert "a batch took 8.5 s, 85% of" in batch
    assert "the wait for a trigger took 16.5 s, more than" in wait


def test_a_source_that_is_alone_waits_for_records():
    sources = OtherSources()
    for _ in range(3):
        assert sources.longest_wait_s() == LONGEST_WAIT_S
        sources.has_rows()
        sources.batch_began()


def test_a_source_without_news_holds_up_no_batch_of_the_others():
    """Spark tells each source that a batch begins, also one that had nothing for it."""
    sources = OtherSources()
    assert sources.longest_wait_s() == LONGEST_WAIT_S
    for _ in range(3):
        sources.batch_began()
        assert sources.longest_wait_s() == 0


def test_where_nothing_comes_anywhere_a_source_in_company_waits_a_little():
    sources = OtherSources()
    sources.batch_began()
    sources.longest_wait_s()

    assert [sources.longest_wait_s() for _ in range(3)] == [SHORT_WAIT_S] * 3
    sources.has_rows()
    sources.batch_began()
    assert sources.longest_wait_s() == 0


def test_a_query_that_gets_nothing_to_read_from_says_what_it_waits_for_and_ever_more_seldom(said):
    log = WaitLog("g")
    for second in range(100):
        log.about("a partition", float(second))

    assert said() == [
        f"group g: reads nothing for {waited} s: it waits for a partition" for waited in (10, 20, 40, 80)
    ]


def test_a_query_that_has_something_to_read_from_says_nothing_and_begins_anew_when_it_waits_again(said):
    log = WaitLog("g")
    for second in range(0, 60, 9):
        log.about("a partition", float(second))
        log.about("", second + 5.0)

    assert said() == []
