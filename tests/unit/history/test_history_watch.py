"""The watch raises a storm while it rages, and a group that is stuck with records left, each of them once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coterie.history.records import Entry
from coterie.history.segments import entries_of
from coterie.history.watch import Watch
from coterie.wire.internal import OffsetCommitValue
from unit.history.history_rig import CAPTURES, captured_history

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

    raised = [(alarm, entry.at_ms) for entry in the_log() for alarm in watch.hear([entry])]

    (wave,) = captured_history("storm").waves
    ((alarm, at_ms),) = raised
    assert (alarm.kind, alarm.group_id, alarm.since_ms) == ("storm", "storm", wave.from_ms)
    assert at_ms < wave.to_ms


def test_a_silent_partition_with_records_left_is_raised_once_until_it_is_committed_again():
    watch = Watch(stuck_after_ms=STUCK_AFTER_MS)
    assert list(watch.hear([*steady(20_000), *steady(40_000, partition=1)])) == []
    assert watch.silent(29_999) == []

    (alarm,) = watch.stuck({("t", 0): 500, ("t", 1): 500}, 40_000)

    assert (alarm.kind, alarm.group_id, alarm.since_ms) == ("stuck", "g", 20_000)
    assert alarm.words == "nothing committed for 20 s, records wait in t-0 (300)"
    assert list(watch.stuck({("t", 0): 500}, 45_000)) == []
    list(watch.hear(committed(46_000)))
    assert [one.since_ms for one in watch.stuck({("t", 0): 500}, 90_000)] == [46_000]


def test_who_has_read_everything_is_not_stuck():
    watch = Watch(stuck_after_ms=STUCK_AFTER_MS)
    list(watch.hear(steady(20_000)))

    assert watch.silent(60_000) == [("g", "t", 0)]
    assert list(watch.stuck({("t", 0): 200}, 60_000)) == []


def test_who_commits_seldom_may_be_silent_for_longer():
    watch = Watch(stuck_after_ms=STUCK_AFTER_MS)
    list(watch.hear(committed(0, 60_000, 120_000)))

    assert watch.silent(300_000) == []
    assert watch.silent(360_000) == [("g", "t", 0)]


def test_an_offset_that_was_deleted_is_nobodys_any_more():
    watch = Watch(stuck_after_ms=STUCK_AFTER_MS)
    list(watch.hear([*steady(20_000), Entry(99, 21_000, 1, "g", "", "t", 0, None)]))

    assert watch.silent(90_000) == []
