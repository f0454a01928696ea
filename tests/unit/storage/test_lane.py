"""A lane's states: what is sent, what is in doubt, and who is called back when."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from lane_stage import ALL_WELL, LANDED, NOT_LEADER, REFUSED, Stage

from coterie.storage.remote.lane import PAUSES_MS, SILENCE_MS, Lane
from coterie.storage.remote.session import Broken, Failed, Fenced, Inserted, Look, Reopened

GONE = Broken("reset by peer")
UNKNOWN = [
    GONE,
    Failed("57014"),
    Failed("40003"),
    Failed("01000"),
    Failed("25006"),
    Failed("57P01"),
    Failed("08006"),
]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def in_doubt(stage: Stage) -> None:
    """Have a round of a and b under way, c gathered, and the connection gone and made anew."""
    stage.put("a", "b")
    stage.run()
    stage.put("c")
    stage.answer(GONE)
    stage.pass_time(PAUSES_MS[0])


# -- idle, and a round under way


def test_an_idle_lane_sends_what_was_put_once_whoever_puts_is_done(stage: Stage):
    stage.put("a", "b", partition=1)
    assert not stage.session.sent

    stage.run()

    assert stage.session.sent == [(1, [(1, 0)])]  # two appends, one row
    assert stage.lane.state == Lane.SENDING


def test_what_is_put_while_a_round_is_under_way_goes_out_with_the_next(stage: Stage):
    stage.put("a")
    stage.run()

    stage.put("b", partition=1)
    stage.put("c", partition=2)
    assert len(stage.session.sent) == 1
    stage.all_inserted()

    assert stage.last_sent == [(1, 0), (2, 0)]


def test_a_round_that_has_landed_is_called_back_in_the_order_of_its_puts(stage: Stage):
    stage.put("a", "b")
    stage.put("c", partition=1)
    stage.put("d")
    stage.run()
    assert not stage.calls

    stage.all_inserted()

    assert stage.calls == [(name, LANDED) for name in "abcd"]
    assert stage.lane.state == Lane.IDLE


def test_a_free_lane_calls_those_who_have_asked_oldest_first_and_once(stage: Stage):
    stage.put("first")
    stage.run()
    for name in "abc":
        stage.lane.ask(lambda name=name: stage.put(name, partition=ord(name)))
    assert len(stage.session.sent) == 1

    stage.all_inserted()
    stage.all_inserted()
    stage.run()

    assert stage.session.sent[1:] == [(1, [(97, 0), (98, 0), (99, 0)])]
    assert [name for name, _ in stage.calls] == ["first", "a", "b", "c"]


def test_an_idle_lane_calls_nobody_from_within_asking(stage: Stage):
    stage.lane.ask(lambda: stage.put("a"))
    assert not stage.session.sent

    stage.run()

    assert stage.last_sent == [(0, 0)]


def test_what_was_put_goes_before_what_is_pulled(stage: Stage):
    stage.lane.ask(lambda: stage.put("pulled"))
    stage.put("full")
    stage.run()
    stage.all_inserted()

    assert [name for name, _ in stage.calls] == ["full", "pulled"]


def test_a_round_that_is_full_leaves_the_others_asked():
    stage = Stage(round_bytes=100)
    for name in "abcd":
        stage.lane.ask(lambda name=name: stage.put(name, partition=ord(name), size=60))

    stage.run()
    assert stage.last_sent == [(97, 0)]  # the second was handed over, and does not go into this one
    stage.all_inserted()
    assert stage.last_sent == [(98, 0)]
    stage.all_inserted()
    stage.all_inserted()
    stage.all_inserted()

    assert [name for name, _ in stage.calls] == ["a", "b", "c", "d"]
    assert stage.lane.idle


def test_an_append_larger_than_a_round_goes_alone():
    stage = Stage(round_bytes=100)
    stage.put("large", size=500)
    stage.put("small", partition=1)

    stage.run()
    assert stage.last_sent == [(0, 0)]
    stage.all_inserted()

    assert stage.last_sent == [(1, 0)]


def test_who_asks_again_while_called_is_called_in_the_next_round(stage: Stage):
    def twice() -> None:
        stage.put("a")
        stage.lane.ask(lambda: stage.put("b"))

    stage.lane.ask(twice)
    stage.run()
    assert stage.last_sent == [(0, 0)]
    stage.all_inserted()

    assert stage.last_sent == [(0, 1)]


def test_who_asks_and_has_nothing_to_say_does_not_keep_the_others(stage: Stage):
    stage.lane.ask(lambda: stage.lane.ask(lambda: stage.put("late")))
    stage.run()

    assert stage.last_sent == [(0, 0)]


def test_what_is_put_from_within_a_landing_goes_out_next_and_behind_what_was_gathered(stage: Stage):
    stage.lane.put(stage.append("a", then=lambda: stage.put("echo")))
    stage.run()
    stage.put("gathered", partition=1)
    stage.all_inserted()
    stage.all_inserted()

    assert [name for name, _ in stage.calls] == ["a", "gathered", "echo"]


def test_held_bytes_are_those_that_are_not_decided(stage: Stage):
    stage.put("a", size=30)
    stage.run()
    stage.put("b", size=12)
    assert stage.lane.held_bytes == 42

    stage.all_inserted()
    assert stage.lane.held_bytes == 12
    stage.answer(Failed("53100"))

    assert stage.lane.held_bytes == 0


# -- none inserted


def test_a_round_of_which_nothing_was_inserted_closes_the_lane_as_fenced(stage: Stage):
    stage.put("a", "b")
    stage.run()
    stage.put("c")

    stage.answer(Inserted(0))

    assert stage.lane.closed
    assert stage.lane.closed_by == "fenced"
    assert stage.heard == [("fenced", frozenset())]
    assert stage.calls == [("c", NOT_LEADER), ("b", NOT_LEADER), ("a", NOT_LEADER)]


def test_a_closed_lane_answers_each_put_at_once_and_calls_those_who_ask(stage: Stage):
    stage.put("a")
    stage.run()
    stage.lane.ask(lambda: stage.put("asked before"))
    stage.answer(Inserted(0))
    stage.put("late")
    stage.lane.ask(lambda: stage.put("asked later"))
    stage.run()

    assert [name for name, _ in stage.calls] == ["a", "asked before", "late", "asked later"]
    assert {answer for _, answer in stage.calls} == {NOT_LEADER}
    assert len(stage.session.sent) == 1


# -- refused


@pytest.mark.parametrize("sqlstate", ["53100", "54000", "22001", "42501", "XX000"])
def test_a_refusal_undoes_what_is_under_way_and_gathered_newest_first(stage: Stage, sqlstate: str):
    stage.put("a", "b")
    stage.run()
    stage.put("c", partition=1)

    stage.answer(Failed(sqlstate, "no"))

    assert stage.calls == [("c", REFUSED), ("b", REFUSED), ("a", REFUSED)]
    assert stage.lane.state == Lane.IDLE
    assert not stage.heard


def test_that_the_database_refuses_is_told_once_and_that_it_takes_rounds_again(caplog):
    logging.disable(logging.NOTSET)
    stage = Stage()
    for answer in (Failed("53100", "disk full"), Failed("53100", "disk full"), Inserted(1)):
        stage.put("a", partition=len(stage.calls))
        stage.run()
        stage.answer(answer)

    assert caplog.messages == [
        "lane 0: the database refuses what is written: 53100 disk full",
        "lane 0: what is written is taken again",
    ]


def test_after_a_refusal_those_who_have_asked_are_called_for_the_next_round(stage: Stage):
    stage.put("a")
    stage.run()
    stage.lane.ask(lambda: stage.put("b", partition=1))

    stage.answer(Failed("53100"))

    assert stage.last_sent == [(1, 0)]


def test_what_is_put_from_within_an_undoing_is_neither_undone_nor_reordered(stage: Stage):
    stage.lane.put(stage.append("a", partition=1, then=lambda: stage.put("third", partition=7)))
    stage.lane.put(stage.append("b", partition=2, then=lambda: stage.put("second", partition=7)))
    stage.run()
    stage.lane.put(stage.append("c", partition=3, then=lambda: stage.put("first", partition=7)))

    stage.answer(Failed("53100"))
    assert [name for name, _ in stage.calls] == ["c", "b", "a"]
    stage.all_inserted()

    assert stage.calls[3:] == [("first", LANDED), ("second", LANDED), ("third", LANDED)]


@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
def test_what_the_database_wants_again_is_sent_again_in_the_same_life(stage: Stage, sqlstate: str):
    stage.put("a")
    stage.run()
    stage.put("b", partition=1)

    stage.answer(Failed(sqlstate))

    assert stage.session.sent == [(1, [(0, 0)])] * 2
    assert not stage.calls


def test_a_unique_violation_is_said_before_anybody_is_answered_and_is_no_end(stage: Stage):
    stage.lane.put(stage.append("a", partition=4, then=lambda: stage.heard.append(("answered", frozenset()))))
    stage.put("b", partition=5)
    stage.run()
    stage.put("c", partition=6)

    stage.answer(Failed("23505"))

    assert stage.heard == [("conflicted", frozenset({4, 5})), ("answered", frozenset())]
    assert stage.calls == [("c", NOT_LEADER), ("b", NOT_LEADER), ("a", NOT_LEADER)]
    assert stage.lane.state == Lane.IDLE


# -- in doubt


@pytest.mark.parametrize("answer", UNKNOWN, ids=str)
def test_an_outcome_that_is_not_known_is_answered_by_nobody_and_the_lane_reopens(stage: Stage, answer):
    stage.put("a")
    stage.run()

    stage.answer(answer)
    assert stage.session.aborted == 1
    assert stage.lane.suspended
    stage.pass_time(PAUSES_MS[0])

    assert stage.session.looks[1:] == [(2, Look((0, 0, 3), None))]
    assert not stage.calls


def test_a_silence_is_an_outcome_that_is_not_known(stage: Stage):
    stage.put("a")
    stage.run()
    assert stage.lane.next_ms() == SILENCE_MS

    stage.pass_time(SILENCE_MS)
    assert stage.session.aborted == 1
    stage.pass_time(PAUSES_MS[0])

    assert stage.session.looks[1:] == [(2, Look((0, 0, 3), None))]


def test_a_row_in_doubt_that_is_there_has_landed(stage: Stage):
    in_doubt(stage)

    stage.answer(Reopened(in_doubt_there=True, acknowledged_there=True))

    assert stage.calls == [("a", LANDED), ("b", LANDED)]
    assert stage.session.sent[1:] == [(2, [(0, 2)])]


def test_rows_in_doubt_that_are_not_there_are_sent_again_in_the_new_life(stage: Stage):
    in_doubt(stage)

    stage.answer(Reopened(in_doubt_there=False, acknowledged_there=True))
    assert not stage.calls
    assert stage.session.sent == [(1, [(0, 0)]), (2, [(0, 0)])]
    stage.all_inserted()

    assert stage.calls == [("a", LANDED), ("b", LANDED)]


def test_the_look_is_for_the_last_row_that_has_landed_too(stage: Stage):
    stage.put("a", partition=1)
    stage.run()
    stage.all_inserted()
    stage.put("b", partition=2)
    stage.run()
    stage.all_inserted()

    stage.answer(GONE)
    stage.pass_time(PAUSES_MS[0])

    assert stage.session.looks[-1] == (2, Look(None, (2, 0, 3)))


def test_a_row_that_is_about_to_be_deleted_is_not_looked_for(stage: Stage):
    for partition in (1, 2):
        stage.put(f"{partition}", partition=partition)
        stage.run()
        stage.all_inserted()
    stage.lane.forget(2, before_offset=0)
    stage.lane.forget(2, before_offset=1)

    stage.answer(GONE)
    stage.pass_time(PAUSES_MS[0])
    assert stage.session.looks[-1] == (2, Look(None, (1, 0, 3)))
    stage.lane.forget(1)
    stage.answer(Reopened(in_doubt_there=True, acknowledged_there=False))
    stage.pass_time(PAUSES_MS[1])

    assert not stage.heard  # it went while the lane was looking
    assert stage.session.looks[-1] == (3, Look(None, None))


def test_each_attempt_to_reopen_waits_longer_and_is_a_life_of_its_own(stage: Stage):
    stage.put("a")
    stage.run()
    stage.answer(GONE)
    pauses = []
    for answer in [GONE, Failed("53300"), Failed("57P03"), GONE, GONE, GONE]:
        pauses.append((stage.lane.next_ms() or 0) - stage.now_ms)
        stage.pass_time(pauses[-1])
        stage.answer(answer)

    assert pauses == [*PAUSES_MS, PAUSES_MS[-1]]
    assert [life for life, _ in stage.session.looks] == [1, 2, 3, 4, 5, 6, 7]


def test_a_silent_attempt_to_reopen_is_given_up_too(stage: Stage):
    stage.answer(GONE)
    stage.pass_time(PAUSES_MS[0] + SILENCE_MS + PAUSES_MS[1])

    assert [life for life, _ in stage.session.looks] == [1, 2, 3]


def test_the_pauses_begin_anew_once_a_round_has_landed_or_a_connection_was_of_use(stage: Stage):
    in_doubt(stage)
    stage.answer(Reopened(in_doubt_there=False, acknowledged_there=True))
    stage.answer(GONE)
    assert stage.lane.next_ms() == stage.now_ms + PAUSES_MS[1]
    stage.pass_time(PAUSES_MS[1])
    stage.answer(ALL_WELL)
    stage.answer(GONE)
    assert stage.lane.next_ms() == stage.now_ms + PAUSES_MS[0]
    stage.pass_time(PAUSES_MS[0])
    stage.answer(Reopened(in_doubt_there=False, acknowledged_there=True))
    stage.pass_time(PAUSES_MS[-1])

    stage.answer(GONE)

    assert stage.lane.next_ms() == stage.now_ms + PAUSES_MS[0]


@pytest.mark.parametrize(
    "answer", [Inserted(1), Inserted(0), Failed("53100"), Fenced(), GONE, ALL_WELL], ids=str
)
def test_what_an_earlier_life_is_answered_with_decides_nothing(stage: Stage, answer):
    in_doubt(stage)
    stage.lane.answered(1, answer)
    assert not stage.calls
    stage.answer(Reopened(in_doubt_there=False, acknowledged_there=True))

    stage.lane.answered(1, answer)

    assert not stage.calls
    assert stage.lane.state == Lane.SENDING
    assert stage.lane.life == 2


def test_a_connection_that_breaks_while_the_lane_is_idle_is_made_anew(stage: Stage):
    stage.answer(GONE)
    stage.put("a")
    stage.run()
    assert not stage.session.sent
    stage.pass_time(PAUSES_MS[0])
    stage.answer(ALL_WELL)

    assert stage.session.sent == [(2, [(0, 0)])]


def test_what_is_put_before_the_first_connection_is_held():
    stage = Stage(opened=False)
    stage.put("a")
    stage.lane.open()
    stage.put("b")
    stage.run()
    assert stage.lane.held_bytes == 20

    stage.answer(ALL_WELL)
    stage.all_inserted()

    assert stage.calls == [("a", LANDED), ("b", LANDED)]


def test_a_lane_that_no_life_can_begin_in_is_fenced(stage: Stage):
    in_doubt(stage)

    stage.answer(Fenced())

    assert stage.lane.closed
    assert stage.calls == [("c", NOT_LEADER), ("b", NOT_LEADER), ("a", NOT_LEADER)]


# -- what the database has lost


def lose(stage: Stage) -> None:
    """Have a of partition 1 land and be lost, with b of partition 2 under way and c of 3 gathered."""
    stage.put("a", partition=1)
    stage.run()
    stage.all_inserted()
    stage.put("b", partition=2)
    stage.run()
    stage.put("c", partition=3)
    stage.answer(GONE)
    stage.pass_time(PAUSES_MS[0])
    stage.answer(Reopened(in_doubt_there=False, acknowledged_there=False))


def test_an_acknowledged_row_that_is_gone_is_said_and_what_is_held_is_undone(stage: Stage):
    lose(stage)

    assert stage.heard == [("lost", frozenset({1, 2, 3}))]
    assert stage.calls[1:] == [("c", NOT_LEADER), ("b", NOT_LEADER)]
    assert stage.lane.suspended


def test_a_lane_that_has_lost_rows_takes_nothing_until_it_is_told_to_go_on(stage: Stage):
    lose(stage)
    stage.put("too early", partition=1)
    stage.lane.ask(lambda: stage.put("asked", partition=1))
    stage.run()
    stage.pass_time(10 * SILENCE_MS)
    assert stage.calls[3:] == [("too early", NOT_LEADER)]
    assert stage.lane.next_ms() is None

    stage.lane.go_on()
    stage.pass_time(PAUSES_MS[1])
    assert stage.session.looks[-1] == (3, Look(None, None))
    stage.answer(ALL_WELL)
    stage.all_inserted()

    assert stage.calls[4:] == [("asked", LANDED)]


def test_who_may_be_connected_with_an_engine_of_before_looks_again(stage: Stage):
    stage.put("a")
    stage.run()
    stage.all_inserted()
    stage.put("b")
    stage.run()
    looks = len(stage.session.looks)

    stage.lane.look_again()
    stage.lane.look_again()  # it does already
    decided: list[int] = []
    stage.lane.when_decided(lambda: decided.append(1))
    stage.run()

    assert [look.acknowledged for _, look in stage.session.looks[looks:]] == [(0, 0, 3)]
    assert decided == []
    stage.answer(Reopened(in_doubt_there=False, acknowledged_there=False))
    assert stage.heard == [("lost", frozenset({0}))]
    assert stage.calls == [("a", LANDED), ("b", NOT_LEADER)]


def test_rows_that_landed_in_doubt_are_acknowledged_even_if_others_are_gone(stage: Stage):
    stage.put("a", partition=1)
    stage.run()
    stage.all_inserted()
    stage.put("b", partition=2)
    stage.run()
    stage.answer(GONE)
    stage.pass_time(PAUSES_MS[0])

    stage.answer(Reopened(in_doubt_there=True, acknowledged_there=False))

    assert stage.calls == [("a", LANDED), ("b", LANDED)]
    assert stage.heard == [("lost", frozenset({1, 2}))]


# -- stopping


def test_when_all_is_decided_whoever_wants_to_know_is_called(stage: Stage):
    stage.put("a")
    stage.run()
    stage.lane.ask(lambda: stage.put("b"))
    stage.lane.when_decided(lambda: stage.calls.append(("decided", "")))
    stage.all_inserted()
    assert [name for name, _ in stage.calls] == ["a"]
    stage.put("later")

    stage.all_inserted()

    assert [name for name, _ in stage.calls] == ["a", "b", "decided"]


def test_an_idle_lane_has_decided_everything_already(stage: Stage):
    stage.lane.when_decided(lambda: stage.calls.append(("decided", "")))
    stage.run()

    assert stage.calls == [("decided", "")]


@pytest.mark.parametrize("end", [Inserted(0), Failed("53100")], ids=str)
def test_what_is_refused_is_decided(stage: Stage, end):
    stage.put("a")
    stage.run()
    stage.lane.when_decided(lambda: stage.calls.append(("decided", "")))

    stage.answer(end)

    assert [name for name, _ in stage.calls] == ["a", "decided"]


def test_a_lane_that_is_closed_refuses_what_it_holds_and_says_nothing_of_a_fence(stage: Stage):
    stage.put("a")
    stage.run()

    stage.lane.close()
    stage.lane.close()
    stage.answer(Inserted(1))

    assert stage.calls == [("a", NOT_LEADER)]
    assert stage.lane.closed_by == "stopped"
    assert not stage.heard


def test_a_lane_that_is_closed_from_within_a_landing_answers_everybody_once(stage: Stage):
    in_doubt(stage)
    stage.lane.put(stage.append("d"))
    stage.put("e")
    stage.answer(ALL_WELL)
    stage.lane.put(stage.append("f", then=stage.lane.close))
    stage.all_inserted()
    stage.put("g", partition=1)

    stage.all_inserted()

    assert [name for name, _ in stage.calls] == ["a", "b", "c", "d", "e", "f", "g"]
    assert stage.lane.state == Lane.CLOSED
