"""The watch raises a storm while it rages, and a group that is stuck with records left, each of them once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coterie.history.log.records import CLASSIC, Entry
from coterie.history.log.segments import entries_of
from coterie.history.watch import Watch
from coterie.wire.payloads.consumer_offsets import OffsetCommitValue
from unit.history.history_rig import CAPTURES, Tale, captured_history

STUCK_AFTER_MS = 10_000


def the_log() -> list[Entry]:
    found: list[Entry] = []
    for directory in sorted(CAPTURES.glob("__consumer_offsets-*")):
        found += entries_of([path.read_bytes() for path in sorted(directory.glob("*.log"))])
    return sorted(found, key=lambda entry: entry.at_ms)


def committed(*times_ms: int, partition: int = 0) -> Iterator[Entry]:
    """Commits of ten records a second."""
    for at_ms in times_ms:
        value = OffsetCommitValue(at_ms // 100, 0, "", at_ms)
        yield Entry(at_ms, at_ms, 1, "g", "", "t", partition, value)


def steady(until_ms: int, partition: int = 0) -> Iterator[Entry]:
    return committed(*range(1_000, until_ms + 1, 1_000), partition=partition)


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures are not beside this checkout")
def test_the_captured_storm_is_raised_once_and_before_it_is_over_and_nothing_else_is():
    watch = Watch(stuck_after_ms=STUCK_AFTER_MS)

    raised = [(alarm, entry.at_ms) for entry in the_log() for alarm in watch.take([entry])]

    (wave,) = captured_history("storm").waves
    ((alarm, at_ms),) = raised
    assert (alarm.kind, alarm.group_id, alarm.since_ms) == ("storm", "storm", wave.from_ms)
    assert at_ms < wave.to_ms


def test_a_silent_partition_with_records_left_is_raised_once_until_it_is_committed_again():
    watch = Watch(stuck_after_ms=STUCK_AFTER_MS)
    assert list(watch.take([*steady(20_000), *steady(29_000, partition=1)])) == []
    assert watch.silent(29_999) == []
    assert list(watch.take(committed(40_000, partition=1))) == []

    (alarm,) = watch.stuck({("t", 0): 500, ("t", 1): 500}, 40_000)

    assert (alarm.kind, alarm.group_id, alarm.since_ms) == ("stuck", "g", 20_000)
    assert alarm.words == "nothing committed for 20 s, records wait in t-0 (300)"
    assert list(watch.stuck({("t", 0): 500}, 45_000)) == []
    list(watch.take(committed(46_000)))
    assert [one.since_ms for one in watch.stuck({("t", 0): 500}, 90_000)] == [46_000]


def test_who_has_read_everything_is_not_stuck():
    watch = Watch(stuck_after_ms=STUCK_AFTER_MS)
    list(watch.take(steady(20_000)))

    assert watch.silent(60_000) == [("g", "t", 0)]
    assert list(watch.stuck({("t", 0): 200}, 60_000)) == []


def test_who_commits_seldom_may_be_silent_for_longer():
    watch = Watch(stuck_after_ms=STUCK_AFTER_MS)
    list(watch.take(committed(0, 60_000, 120_000)))

    assert watch.silent(300_000) == []
    assert watch.silent(360_000) == [("g", "t", 0)]


def test_an_offset_that_was_deleted_is_nobodys_any_more():
    watch = Watch(stuck_after_ms=STUCK_AFTER_MS)
    list(watch.take([*steady(20_000), Entry(99, 21_000, 1, "g", "", "t", 0, None)]))

    assert watch.silent(90_000) == []


def test_a_group_that_is_gone_with_its_offsets_leaves_nothing_behind():
    watch = Watch(stuck_after_ms=STUCK_AFTER_MS)
    tale = Tale().formed(1_000, {"a/1": [0]})
    deleted = Entry(98, 21_000, 1, "g", "", "t", 0, None)
    end = Entry(99, 21_000, CLASSIC, "g")
    for ways in ((deleted, end), (end, deleted)):
        list(watch.take([*tale.entries, *steady(20_000)]))
        assert set(watch._groups) == {"g"}
        for one in ways:
            list(watch.take([one]))
        assert not watch._groups

    list(watch.take([*steady(20_000), deleted]))  # a group that only commits
    assert not watch._groups


def test_a_group_that_goes_over_to_the_other_protocol_is_watched_on():
    watch = Watch(stuck_after_ms=STUCK_AFTER_MS)
    list(watch.take([*Tale().formed(1_000, {"a/1": [0]}).entries, *steady(20_000)]))
    list(watch.take([Entry(99, 21_000, CLASSIC, "g")]))

    assert [one.since_ms for one in watch.stuck({("t", 0): 500}, 40_000)] == [20_000]


def dated(at_ms: int, *, said_ms: int) -> Entry:
    """A commit that was written at one time and says another."""
    return Entry(at_ms, at_ms, 1, "g", "", "t", 0, OffsetCommitValue(200, 0, "", said_ms))


def test_a_commit_that_says_it_is_of_tomorrow_is_as_old_as_its_record():
    watch = Watch(stuck_after_ms=STUCK_AFTER_MS)
    list(watch.take([*steady(20_000), dated(21_000, said_ms=90_000_000)]))

    assert [one.since_ms for one in watch.stuck({("t", 0): 500}, 40_000)] == [21_000]


def test_a_commit_by_a_clock_that_was_set_back_since_is_as_old_as_the_first_look_at_it():
    watch = Watch(stuck_after_ms=STUCK_AFTER_MS)
    list(watch.take([*steady(20_000), dated(90_000_000, said_ms=90_000_000)]))

    assert watch.silent(40_000) == []
    assert [one.since_ms for one in watch.stuck({("t", 0): 500}, 60_000)] == [40_000]
    list(watch.take(committed(61_000)))
    assert [one.since_ms for one in watch.stuck({("t", 0): 2_000}, 120_000)] == [61_000]


def test_a_query_that_notes_its_batches_is_not_stuck_whatever_the_topic_holds_whose_name_it_takes():
    watch = Watch(stuck_after_ms=STUCK_AFTER_MS)
    query = "coterie-sink-1f0c9a52-0b7e-4f0e-8d43-6a1f9b1c2d3e"
    list(watch.take(one._replace(group=query) for one in steady(20_000)))

    assert list(watch.stuck({("t", 0): 5_000}, 90_000)) == []
