"""The purgatory: every operation is finished exactly once, as soon as it can be and no later than its
deadline.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.broker.runtime.purgatory import Purgatory


class Waiting:
    """An operation that is ready when told so."""

    def __init__(self) -> None:
        self.is_ready = False
        self.finished: list[bool] = []

    def ready(self, changed: object = None) -> bool:
        return self.is_ready

    def finish(self, *, forced: bool) -> None:
        self.finished.append(forced)


class Broken(Waiting):
    """An operation whose end fails."""

    def finish(self, *, forced: bool) -> None:
        raise ZeroDivisionError


def a_purgatory() -> tuple[Purgatory, list[int]]:
    alarms: list[int] = []
    return Purgatory(alarms.append), alarms


def test_what_is_ready_finishes_at_once_and_does_not_wait():
    purgatory, alarms = a_purgatory()
    operation = Waiting()
    operation.is_ready = True

    assert purgatory.park(operation, keys=["t-0"], deadline_ms=10) is None

    assert operation.finished == [False]
    assert alarms == []


def test_a_change_of_what_it_watches_tries_an_operation_again():
    purgatory, _ = a_purgatory()
    operation = Waiting()
    purgatory.park(operation, keys=["t-0", "t-1"], deadline_ms=10)

    purgatory.changed("t-1")
    operation.is_ready = True
    purgatory.changed("u-0")
    assert operation.finished == []
    purgatory.changed("t-1")

    assert operation.finished == [False]
    assert len(purgatory) == 0


def test_the_deadline_forces_an_operation():
    purgatory, alarms = a_purgatory()
    operation = Waiting()
    purgatory.park(operation, keys=["t-0"], deadline_ms=10)

    purgatory.expire(9)
    assert operation.finished == []
    purgatory.expire(10)

    assert operation.finished == [True]
    assert alarms == [10, 10]


def test_a_mistake_in_one_that_is_due_costs_none_of_the_others():
    purgatory, _ = a_purgatory()
    rung: list[str] = []
    gone, parked = Waiting(), Waiting()

    def fail(key: str, now_ms: int) -> None:
        purgatory.withdraw(withdrawn)
        purgatory.clear("cleared")
        raise ZeroDivisionError

    purgatory.arm("bad", 9, fail)
    withdrawn = purgatory.park(gone, keys=["t-0"], deadline_ms=10)
    assert withdrawn is not None
    purgatory.park(parked, keys=["t-0"], deadline_ms=10)
    for name in ("cleared", "good"):
        purgatory.arm(name, 10, lambda key, now_ms: rung.append(key))

    with pytest.raises(ZeroDivisionError):
        purgatory.expire(10)

    assert (rung, parked.finished, gone.finished) == (["good"], [True], [])
    assert len(purgatory) == 0


def test_a_mistake_in_one_that_watches_costs_neither_the_others_nor_who_brought_the_news():
    purgatory, alarms = a_purgatory()
    bad, good = Broken(), Waiting()
    purgatory.park(bad, keys=["t-0"], deadline_ms=10)
    purgatory.park(good, keys=["t-0"], deadline_ms=10)
    bad.is_ready = good.is_ready = True

    purgatory.changed("t-0")

    assert good.finished == [False]
    assert len(purgatory) == 0
    assert alarms[-1] == 0
    with pytest.raises(ZeroDivisionError):
        purgatory.expire(1)
    purgatory.expire(2)


def test_a_withdrawn_operation_is_never_finished():
    purgatory, _ = a_purgatory()
    operation = Waiting()
    parked = purgatory.park(operation, keys=["t-0"], deadline_ms=10)
    assert parked is not None

    purgatory.withdraw(parked)
    operation.is_ready = True
    purgatory.changed("t-0")
    purgatory.expire(10)

    assert operation.finished == []


def test_a_timer_that_is_armed_anew_in_the_round_it_was_due_in_does_not_ring():
    """EX-7: a callback whose timer was armed again or cleared before it ran is dropped."""
    purgatory, _ = a_purgatory()
    rung: list[str] = []

    def first(key: str, now_ms: int) -> None:
        rung.append("first")
        purgatory.arm("second", now_ms + 5, lambda *_: rung.append("second, later"))
        purgatory.clear("third")

    purgatory.arm("first", 1, first)
    purgatory.arm("second", 2, lambda *_: rung.append("second"))
    purgatory.arm("third", 3, lambda *_: rung.append("third"))
    purgatory.expire(3)
    assert rung == ["first"]
    purgatory.expire(8)

    assert rung == ["first", "second, later"]


def test_a_timer_armed_for_now_rings_in_the_next_round():
    """ID-8: a join with no delay completes at the next tick, not within the call."""
    purgatory, alarms = a_purgatory()
    rung: list[int] = []

    def ring(key: str, now_ms: int) -> None:
        rung.append(now_ms)

    purgatory.arm("one", 5, lambda key, now_ms: purgatory.arm("two", now_ms, ring))
    purgatory.expire(5)
    assert rung == []
    assert alarms[-1] == 5
    purgatory.expire(5)

    assert rung == [5]


def test_a_moved_timer_rings_at_its_new_time():
    purgatory, _ = a_purgatory()
    rung: list[int] = []
    purgatory.arm("session", 10, lambda key, now_ms: rung.append(now_ms))

    purgatory.move("session", 20)
    purgatory.expire(10)
    purgatory.expire(20)

    assert rung == [20]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("park"), st.sampled_from("abc"), st.integers(0, 20)),
        st.tuples(st.just("ready"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("change"), st.sampled_from("abc"), st.just(0)),
        st.tuples(st.just("pass"), st.just(""), st.integers(0, 8)),
    )
)


@given(steps)
def test_nothing_is_finished_twice_and_nothing_outlives_its_deadline(script):
    purgatory, alarms = a_purgatory()
    parked: list[tuple[Waiting, int]] = []
    now_ms = 0

    for kind, what, number in script:
        if kind == "park":
            operation = Waiting()
            parked.append((operation, now_ms + number))
            purgatory.park(operation, keys=[what], deadline_ms=now_ms + number)
        elif kind == "ready" and parked:
            parked[what % len(parked)][0].is_ready = True
        elif kind == "change":
            purgatory.changed(what)
        elif kind == "pass":
            now_ms += number
            purgatory.expire(now_ms)
            for operation, deadline_ms in parked:
                assert len(operation.finished) <= 1
                assert operation.finished or deadline_ms > now_ms

    waiting = [deadline_ms for operation, deadline_ms in parked if not operation.finished]
    assert len(purgatory) == len(waiting)
    assert not waiting or alarms
