"""Who is dead, by counting: for how long, in how many polls, and when nobody may be judged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coterie.broker.cluster.judging import Judging
from coterie.broker.cluster.statements import Counted, HeartbeatAnswer
from coterie.broker.cluster.terms import LifecycleTerms

ME, OTHER = 1, 2


class Polls:
    """One broker's polls, answered 10 ms after each."""

    def __init__(self, *, presence: bool = True) -> None:
        self.judging = Judging(LifecycleTerms(presence=presence))
        self.now = 0
        self.judging.begin_anew(0)

    def poll(self, at: int, beats: int, *, present: bool = True, took: int = 10, epoch: int = 5) -> bool:
        """Return whether the other is dead by the answer to a poll sent at a time."""
        shown = (Counted(ME, 4, 1, True, 0), Counted(OTHER, epoch, beats, present, 0))
        self.now = at + took
        return bool(self.judging.dead(HeartbeatAnswer(True, 1, shown), ME, at, self.now))

    def dead_at(self, *, beats: int, present: bool, begin: int) -> int:
        """Return when a broker is found dead that shows the same from a time on."""
        at = begin
        while not self.poll(at, beats, present=present):
            at += 300
            assert at < begin + 10_000
        return at + 10 - begin


def seen_for_long(**terms: bool) -> Polls:
    polls = Polls(**terms)
    for at in range(0, 3_000, 300):
        assert not polls.poll(at, at)
    return polls


def test_who_shows_the_same_for_the_session_is_dead():
    assert seen_for_long().dead_at(beats=7, present=True, begin=3_000) == 1_810


def test_a_poll_is_sent_when_it_may_find_somebody_dead_and_does_not_wait_for_its_turn():
    polls = seen_for_long()
    assert not any(polls.poll(at, 7) for at in range(3_000, 4_501, 300))
    assert polls.judging.next_ms(4_500) == 4_510
    assert polls.poll(4_510, 7)
    assert polls.judging.next_ms(4_510) is None


def test_who_holds_no_session_is_dead_after_two_polls():
    assert seen_for_long().dead_at(beats=7, present=False, begin=3_000) == 310


def test_a_session_says_nothing_where_it_is_not_known():
    assert seen_for_long(presence=False).dead_at(beats=7, present=False, begin=3_000) == 1_810


def test_who_beats_is_not_dead_though_it_holds_no_session():
    polls = seen_for_long()

    assert not any(polls.poll(at, at, present=False) for at in range(3_000, 9_000, 300))


def test_who_has_registered_anew_is_another():
    polls = seen_for_long()
    for at in range(3_000, 4_500, 300):
        assert not polls.poll(at, 0, epoch=5)

    assert not polls.poll(4_500, 0, epoch=9)


def test_two_polls_that_are_close_to_each_other_are_one():
    polls = seen_for_long()

    assert not polls.poll(3_000, 7, present=False, took=250)
    assert not polls.poll(3_300, 7, present=False)  # 50 ms after the answer to the one before
    assert polls.poll(3_600, 7, present=False)


def test_who_shows_a_session_in_between_is_not_without_one():
    polls = seen_for_long()

    assert not polls.poll(3_000, 7, present=False)
    assert not polls.poll(3_300, 7, present=True)
    assert not polls.poll(3_600, 7, present=False)


def test_nobody_is_dead_within_one_session_of_connecting():
    for present in (True, False):
        polls = Polls()
        polls.judging.begin_anew(3_000)
        assert polls.dead_at(beats=7, present=present, begin=3_000) in (1_510, 1_810)


@given(st.lists(st.tuples(st.integers(1, 2_000), st.integers(1, 2_000)), min_size=2, max_size=2))
def test_two_polls_are_not_enough_however_far_they_are_apart(polled):
    polls = seen_for_long(presence=False)
    at = 2_710
    for gap, took in polled:
        at += gap
        assert not polls.poll(at, 7, took=took)
        at += took


def test_a_late_answer_begins_everything_anew():
    """The engine may have stood still, and the other's heartbeat be the next that it does."""
    polls = seen_for_long()
    assert not polls.poll(3_000, 7)
    assert not polls.poll(3_300, 7)
    assert not polls.poll(3_600, 7, took=10_000)

    assert polls.dead_at(beats=7, present=True, begin=13_610) >= 1_500


def test_a_stretch_without_polls_begins_everything_anew():
    polls = seen_for_long()
    for at in (3_000, 3_300, 3_600):
        assert not polls.poll(at, 7)

    assert polls.dead_at(beats=7, present=True, begin=13_600) >= 1_500


@given(
    st.lists(st.tuples(st.integers(20, 700), st.integers(1, 740)), min_size=1, max_size=30),
    st.integers(0, 2_000),  # not later than the first poll, which sees it
)
def test_nobody_is_dead_who_has_beaten_within_the_session(gaps, phase):
    """However one's own polls come: a broker whose count went up at an answer, or later, is alive for one
    session from there.
    """
    polls = Polls(presence=False)
    at, last_change = 2_000, phase
    beats = 0
    for gap, took in gaps:
        answered = at + took
        if answered - last_change > 1_400:  # it beats in time
            beats, last_change = beats + 1, answered
        assert not polls.poll(at, beats, took=took)
        at = answered + gap
