"""Work in pieces that waits for answers, where no queue runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coterie.broker.runtime.pieces import Aside, MustWait, Pieces, Until, at_once, paced, straight_on

Take = Callable[[Any], None]


def now(answer: Any) -> Until:
    return Until(lambda take: take(answer))


def test_work_is_done_at_once_where_every_answer_comes_when_it_is_asked_for():
    def pieces() -> Pieces[list[Any]]:
        return [(yield now(1)), (yield None), (yield now(None)), (yield Aside(len, ("abc",))), (yield now(2))]

    assert at_once(pieces()) == [1, None, None, 3, 2]


def test_work_that_is_to_be_done_at_once_is_refused_where_it_has_to_wait_and_tidies_up():
    asked: list[Take] = []
    done: list[str] = []

    def pieces() -> Pieces[None]:
        try:
            yield now("first")
            yield Until(asked.append)
        finally:
            done.append("tidied up")

    with pytest.raises(MustWait, match="to be done at once, and waits for an answer"):
        at_once(pieces())

    assert done == ["tidied up"]
    asked[0]("too late")  # harms nobody


def test_work_without_a_queue_goes_on_where_the_answer_comes():
    asked: list[Take] = []
    got: list[Any] = []

    def pieces() -> Pieces[None]:
        got.append((yield now("at once")))
        got.append((yield Until(asked.append)))
        got.append((yield Aside(len, ("abc",))))
        got.append((yield Until(asked.append)))

    straight_on(pieces())
    assert got == ["at once"]
    asked.pop()("later")
    assert got == ["at once", "later", 3]
    asked.pop()("later still")
    assert got == ["at once", "later", 3, "later still"]
    assert asked == []


def test_so_many_answers_that_come_at_once_need_no_deep_stack():
    got: list[int] = []

    def pieces() -> Pieces[None]:
        for number in range(10_000):
            got.append((yield now(number)))

    straight_on(pieces())

    assert got == [*range(10_000)]


def test_a_few_items_that_wait_are_returned_as_pieces_that_go_on_from_there():
    asked: list[Take] = []
    got: list[Any] = []

    def pieces() -> Pieces[str]:
        got.append((yield Until(asked.append)))
        return "whole"

    rest = paced(pieces(), 1)

    def work() -> Pieces[None]:
        got.append((yield from rest))

    straight_on(work())
    asked[0]("answer")

    assert got == ["answer", "whole"]
