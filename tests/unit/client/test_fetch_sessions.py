"""Fetch sessions (KIP-227), held against a broker's side of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client.consumer.fetch_session import LAST_EPOCH, FetchSession

A, B, C = (TopicPartition("t", number) for number in range(3))


def an_open_session(wanted):
    session = FetchSession()
    session.ask(wanted)
    session.answered(7)
    return session


def test_the_first_request_is_whole_and_asks_for_a_session():
    ask = FetchSession().ask({A: 5, B: 6})

    assert ask == ((0, 0), {A: 5, B: 6}, frozenset())


def test_then_only_what_moved_came_or_went_is_said():
    session = an_open_session({A: 5, B: 6})

    ask = session.ask({A: 5, C: 0})
    assert ask == ((7, 1), {C: 0}, {B})
    session.answered(7)

    assert session.ask({A: 9, C: 0}) == ((7, 2), {A: 9}, frozenset())


def test_a_broker_without_sessions_is_asked_for_everything_each_time():
    session = FetchSession()
    for _ in range(3):
        assert session.ask({A: 5}) == ((0, 0), {A: 5}, frozenset())
        session.answered(0)


def test_a_session_that_the_broker_forgot_begins_anew():
    session = an_open_session({A: 5})
    session.ask({A: 6})
    session.failed(Code.FETCH_SESSION_ID_NOT_FOUND)

    assert session.ask({A: 6}) == ((0, 0), {A: 6}, frozenset())


def test_an_answer_that_did_not_come_closes_the_old_session_with_the_next_request():
    session = an_open_session({A: 5})
    session.ask({A: 6})
    session.failed()

    assert session.ask({A: 6}) == ((7, 0), {A: 6}, frozenset())


def test_epochs_go_round_without_the_two_that_mean_something_else():
    session = an_open_session({A: 5})
    session.epoch = LAST_EPOCH
    session.answered(7)

    assert session.ask({A: 5}).session == (7, 1)


class BrokerSession:
    """What a broker keeps of a session: which partitions from where, and the epoch it expects."""

    def __init__(self):
        self.epoch, self.held = None, {}

    def take(self, ask):
        if ask.session[1] == 0:
            self.epoch, self.held = 1, dict(ask.positions)
            return
        assert ask.session == (7, self.epoch)
        self.epoch += 1
        assert not ask.forgotten & ask.positions.keys()
        for gone in ask.forgotten:
            del self.held[gone]
        self.held.update(ask.positions)


@given(st.lists(st.tuples(st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 3)), st.booleans())))
def test_the_broker_s_idea_of_what_is_wanted_is_always_ours(steps):
    ours, theirs = FetchSession(), BrokerSession()
    for wanted, lost in steps:
        theirs.take(ours.ask(wanted))
        assert theirs.held == wanted
        if lost:
            ours.failed()
        else:
            ours.answered(7)
