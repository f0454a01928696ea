"""What cannot be answered at once waits for its turn; neither heartbeats nor the rest starve the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.broker.net.connection import Connection
from coterie.broker.net.context import Read
from coterie.broker.net.request_queue import SLICE_S, RequestQueue
from coterie.broker.runtime.pieces import Aside, Pieces, Until
from coterie.wire.api.codec import (
    encode_request,
)
from coterie.wire.api.entities import (
    build,
    request_type,
)
from unit.broker.rig import Line, Rig

FIND_COORDINATOR, HEARTBEAT, API_VERSIONS = 10, 12, 18
COST_S = SLICE_S / 3.5  # four requests make a slice


class Loop:
    """An event loop whose rounds, and whose clock, are turned by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, act: Callable[[], None]) -> None:
        self.soon.append(act)

    def clock(self) -> float:
        return self.now_s

    def round(self) -> None:
        """Run what was put off until after the reading, but not what that puts off."""
        todo, self.soon = self.soon, []
        for act in todo:
            act()


class Asking:
    """A connection that takes its time to answer."""

    def __init__(self, loop: Loop, name: str, answered: list[str]) -> None:
        self.loop, self.name, self.answered = loop, name, answered

    def answer_queued(self, sized: bytes, read: Read | None = None) -> None:
        self.loop.now_s += COST_S
        self.answered.append(f"{self.name}{sized.decode()}")


class Office:
    """RequestQueue, and what is answered at once or in turn."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.queue = RequestQueue(self.loop.call_soon, self.loop.clock)
        self.answered: list[str] = []

    def ask(self, name: str, sized: bytes = b"") -> None:
        """Read a request of somebody who is owed no other answer."""
        asking: Any = Asking(self.loop, name, self.answered)
        if self.queue.admits():
            asking.answer_queued(sized)
        else:
            self.queue.enqueue(asking, sized)

    def beat(self) -> None:
        """Read a heartbeat, and answer it at once."""
        self.loop.now_s += COST_S
        self.answered.append("beat")
        if self.queue.pending:
            self.queue.run_if_due()


def names(count: int) -> list[str]:
    return [f"m{number}" for number in range(count)]


def test_what_fits_into_a_slice_is_answered_at_once():
    office = Office()

    for name in names(4):
        office.ask(name)

    assert office.answered == names(4)


def test_whoever_has_to_look_before_the_rest_is_answered_looks_once_in_each_slice():
    office = Office()
    office.queue.before_slice = lambda: office.answered.append("looked")

    for name in names(9):
        office.ask(name)
    office.loop.round()
    office.loop.round()

    assert office.answered == [*names(4), "looked", *names(8)[4:], "looked", "m8"]


def test_the_rest_of_a_round_waits_and_is_answered_in_its_order():
    office = Office()
    for name in names(10):
        office.ask(name)
    assert office.answered == names(4)

    office.loop.round()
    assert office.answered == names(8)
    office.loop.round()

    assert office.answered == names(10)


def test_who_comes_later_waits_behind_those_who_wait():
    office = Office()
    for name in names(6):
        office.ask(name)
    office.loop.now_s += 1

    office.ask("late")

    assert office.answered == names(4)
    office.loop.round()
    assert office.answered == [*names(6), "late"]


def test_the_next_round_begins_with_a_slice_of_its_own():
    office = Office()
    for name in names(4):
        office.ask(name)
    office.loop.round()
    office.loop.now_s += 1

    office.ask("later")

    assert office.answered == [*names(4), "later"]


def test_rounds_end_when_nothing_waits():
    office = Office()
    for name in names(9):
        office.ask(name)

    for _ in range(3):
        office.loop.round()

    assert office.loop.soon == []
    assert not office.queue.pending


def test_a_flood_of_heartbeats_leaves_half_of_the_time_to_others():
    """Within one round of the event loop, which has no end while there is always somebody to read."""
    office = Office()
    for name in names(40):
        office.ask(name)

    for _ in range(36):
        office.beat()

    after_the_slice = office.answered[4:]
    assert after_the_slice.count("beat") == 36
    assert len(after_the_slice) - 36 == pytest.approx(36, abs=4)


def test_a_heartbeat_never_waits_for_more_than_a_slice():
    office = Office()
    for name in names(40):
        office.ask(name)
    waits = []

    for _ in range(36):
        before = office.loop.now_s
        office.beat()
        waits.append(office.loop.now_s - before)

    assert max(waits) <= SLICE_S + 2 * COST_S


def test_what_is_to_be_done_soon_is_done_after_the_round_and_before_who_waits():
    office = Office()
    office.queue.call_soon(lambda: office.answered.append("flush"))
    for name in names(5):
        office.ask(name)
    assert office.answered == names(4)

    office.loop.round()

    assert office.answered == [*names(4), "flush", "m4"]


def test_what_is_to_be_done_soon_is_not_put_off_by_a_flood():
    office = Office()
    office.queue.call_soon(lambda: office.answered.append("flush"))

    for _ in range(8):
        office.beat()

    assert office.answered.index("flush") <= 4


def test_what_is_put_off_again_has_the_next_round():
    office = Office()

    def again() -> None:
        office.answered.append("slice")
        if len(office.answered) < 3:
            office.queue.call_soon(again)

    office.queue.call_soon(again)

    for expected in (1, 2, 3, 3):
        office.loop.round()
        assert len(office.answered) == expected


def test_a_mistake_keeps_nobody_else_waiting(caplog: pytest.LogCaptureFixture):
    office = Office()

    def mistake() -> None:
        raise ValueError("ours")

    office.queue.call_soon(mistake)
    office.queue.call_soon(lambda: office.answered.append("flush"))
    for name in names(5):
        office.ask(name)

    with caplog.at_level(logging.ERROR, "coterie.broker"):
        office.loop.round()

    assert office.answered == [*names(4), "flush", "m4"]
    assert "ours" in caplog.text


@given(st.lists(st.sampled_from(["ask", "beat", "round", "soon"]), max_size=60))
def test_everybody_is_answered_once_and_in_order(script: list[str]):
    office, asked = Office(), []
    for number, step in enumerate(script):
        if step == "ask":
            asked.append(f"m{number}")
            office.ask(asked[-1])
        elif step == "beat":
            office.beat()
        elif step == "round":
            office.loop.round()
        else:
            office.queue.call_soon(lambda: None)

    while office.loop.soon:
        office.loop.round()

    assert [name for name in office.answered if name != "beat"] == asked
    assert not office.queue.pending


# -- work in pieces


def working(office: Office, name: str, pieces: int) -> Pieces[None]:
    """Work that takes so many pieces, and says which of them it does."""
    for piece in range(pieces):
        office.loop.now_s += COST_S
        office.answered.append(f"{name}.{piece}")
        yield


def test_work_that_fits_into_a_slice_is_done_at_once():
    office = Office()

    office.queue.work(working(office, "small", 3))

    assert office.answered == ["small.0", "small.1", "small.2"]


def test_work_of_many_pieces_stops_when_its_slice_is_over_and_who_waits_comes_first():
    office = Office()
    office.queue.work(working(office, "long", 10))
    assert office.answered == [f"long.{piece}" for piece in range(4)]
    office.answered.clear()

    for name in names(2):
        office.ask(name)
    office.loop.round()
    office.loop.round()

    assert office.answered == ["long.4", "long.5", "long.6", "long.7", "m0", "m1", "long.8", "long.9"]


def test_two_works_of_many_pieces_take_slices_in_turn():
    office = Office()
    office.queue.work(working(office, "a", 12))
    office.queue.work(working(office, "b", 12))

    while office.loop.soon:
        office.loop.round()

    whose = [name.split(".")[0] for name in office.answered]
    assert "".join(whose).startswith("aaaab" + "aaaa" + "bbbb")
    assert sorted(whose) == ["a"] * 12 + ["b"] * 12


def test_what_is_done_aside_is_given_to_the_work_that_wanted_it():
    office, asides = Office(), []
    queue = RequestQueue(office.loop.call_soon, office.loop.clock, lambda *asked: asides.append(asked))

    def pieces() -> Pieces[None]:
        office.answered.append((yield Aside("-".join, (["a", "b"],), 2)))

    queue.work(pieces())
    [(work, arguments, finish, items)] = asides
    assert items == 2
    assert office.answered == []
    done: Future[str] = Future()
    done.set_result(work(*arguments))
    finish(done)
    office.loop.round()

    assert office.answered == ["a-b"]


def test_a_failure_aside_is_raised_in_the_work_that_wanted_it():
    office, asides = Office(), []
    queue = RequestQueue(office.loop.call_soon, office.loop.clock, lambda *asked: asides.append(asked))

    def pieces() -> Pieces[None]:
        with pytest.raises(ZeroDivisionError):
            yield Aside(divmod, (1, 0))
        office.answered.append("went on")

    queue.work(pieces())
    done: Future[Any] = Future()
    done.set_exception(ZeroDivisionError())
    asides[0][2](done)
    office.loop.round()

    assert office.answered == ["went on"]


def test_work_that_waits_for_an_answer_goes_on_when_it_comes_and_others_are_served_meanwhile():
    office, asked = Office(), []

    def pieces() -> Pieces[None]:
        office.answered.append("asks")
        office.answered.append((yield Until(asked.append)))
        office.answered.append((yield Until(lambda take: take("at once"))))

    office.queue.work(pieces())
    office.ask("m0")
    office.loop.round()
    assert office.answered == ["asks", "m0"]

    asked[0]("the answer")
    assert office.answered == ["asks", "m0"]  # not in the middle of whoever answers
    while office.loop.soon:
        office.loop.round()

    assert office.answered == ["asks", "m0", "the answer", "at once"]


# -- connections


class Served:
    """A node whose connections take turns."""

    def __init__(self, directory: Path) -> None:
        self.rig = Rig(directory)
        self.loop = Loop()
        self.queue = RequestQueue(self.loop.call_soon, self.loop.clock)

    def connect(self) -> tuple[Connection, Line]:
        line, connection = Line(), Connection(self.rig.node, self.queue)
        connection.connection_made(line)
        return connection, line

    def use_up(self) -> None:
        """Have the slice be over, so that whoever asks now waits."""
        connection, line = self.connect()
        connection.data_received(asks(0))
        assert line.written
        self.loop.now_s += SLICE_S


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    served.rig.close()


def asks(correlation_id: int) -> bytes:
    return encode_request(correlation_id, "test", build(request_type(API_VERSIONS, 3)))


def beats(correlation_id: int) -> bytes:
    request = build(request_type(HEARTBEAT, 4), group_id="g", generation_id=1, member_id="m")
    return encode_request(correlation_id, "test", request)


def answered(line: Line) -> list[int]:
    """Return the correlation ids of what a connection was sent."""
    ids, rest = [], line.written
    while rest:
        size = int.from_bytes(rest[:4], "big")
        ids.append(int.from_bytes(rest[4:8], "big"))
        rest = rest[4 + size :]
    return ids


def test_a_connection_is_answered_in_the_order_of_its_requests(served: Served):
    served.use_up()
    connection, line = served.connect()

    connection.data_received(asks(1))
    connection.data_received(beats(2) + asks(3))
    assert answered(line) == []
    served.loop.round()

    assert answered(line) == [1, 2, 3]


def test_who_has_hung_up_is_not_answered(served: Served):
    served.use_up()
    connection, line = served.connect()
    other, others_line = served.connect()
    connection.data_received(asks(1))
    other.data_received(asks(2))

    connection.connection_lost(None)
    served.loop.round()

    assert answered(line) == []
    assert answered(others_line) == [2]
