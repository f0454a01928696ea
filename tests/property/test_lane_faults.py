"""That the net holds: faults planted into lanes and database, each found by the machine of
`test_lane_machine`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from lane_rig import World
from test_lane_machine import LaneMachine

from coterie.base.codes import Code
from coterie.storage.log.contract import AppendRefused
from coterie.storage.remote import lane as lanes
from coterie.storage.remote import session
from coterie.storage.remote.chunk import Chunk
from coterie.storage.remote.lane import Lane
from coterie.storage.remote.pretended import Fate, LaneRow, PretendedConnection, PretendedSession, Tables
from coterie.storage.remote.session import Failed, Inserted, LaneAnswer, Reopened, Verdict
from planting import GENERATED, Faults, instead

FAULTS = fault = Faults()


def reopened_as(patch: pytest.MonkeyPatch, **believed: bool) -> None:
    """Have a lane believe something of the rows, whatever the look has found."""
    instead(
        patch,
        Lane,
        "_begin_life",
        lambda begin: lambda self, answer: begin(self, answer._replace(**believed)),
    )


# -- gate and lives


@fault
def an_append_without_a_gate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tables, "passes_gate", lambda *_: True)


@fault.from_seed(0)
def a_gate_without_lives(patch: pytest.MonkeyPatch) -> None:
    def passes(self: Tables, broker_id: int, lane: int, broker_epoch: int, life: int) -> bool:
        row = self.lanes.get((broker_id, lane))
        return row is not None and row.broker_epoch == broker_epoch

    patch.setattr(Tables, "passes_gate", passes)


@fault.from_seed(3)
def a_gate_without_broker_epochs(patch: pytest.MonkeyPatch) -> None:
    def passes(self: Tables, broker_id: int, lane: int, broker_epoch: int, life: int) -> bool:
        row = self.lanes.get((broker_id, lane))
        return row is not None and row.life == life

    patch.setattr(Tables, "passes_gate", passes)


@fault.from_seed(0)
def a_reopening_that_begins_no_life(patch: pytest.MonkeyPatch) -> None:
    """What was sent before may still happen: the row has the life of every append."""

    def begin(self: Tables, broker_id: int, lane: int, broker_epoch: int, life: int) -> bool:
        row = self.lanes.get((broker_id, lane))
        return row is not None and row.broker_epoch == broker_epoch

    patch.setattr(Tables, "begin_life", begin)
    a_gate_without_lives(patch)


@fault.from_seed(3)
def a_late_reopening_that_goes_back_to_an_earlier_life(patch: pytest.MonkeyPatch) -> None:
    def begin(self: Tables, broker_id: int, lane: int, broker_epoch: int, life: int) -> bool:
        row = self.lanes.get((broker_id, lane))
        if row is None or row.broker_epoch != broker_epoch:
            return False
        self.journal.put(self.lanes, (broker_id, lane), LaneRow(broker_epoch, life))
        return True

    patch.setattr(Tables, "begin_life", begin)


@fault.from_seed(3)
def lives_that_the_database_numbers(patch: pytest.MonkeyPatch) -> None:
    """A late attempt to reopen takes the next number, and the lane takes itself for fenced."""

    def begin(self: Tables, broker_id: int, lane: int, broker_epoch: int, life: int) -> int:
        row = self.lanes.get((broker_id, lane))
        if row is None or row.broker_epoch != broker_epoch:
            return 0
        return self.journal.put(self.lanes, (broker_id, lane), row._replace(life=row.life + 1)).life

    def learning(execute: Any) -> Any:
        def executed(self: Any, name: str, statement: Any, answer: Any, fail: Any) -> None:
            def learn(result: Any) -> None:
                self.given = result
                answer(result)

            execute(self, name, statement, learn if name == "begin-life" else answer, fail)

        return executed

    def append(self: PretendedSession, life: int, chunks: Sequence[Chunk]) -> None:
        connection: Any = self.connection
        connection.execute(
            "append",
            partial(self.engine.tables.append, *self.place, connection.given, chunks),
            lambda rows: self.answered(life, Inserted(rows)),
            partial(self.answered, life),
        )

    patch.setattr(Tables, "begin_life", begin)
    instead(patch, PretendedConnection, "execute", learning)
    patch.setattr(PretendedSession, "append", append)


@fault
def a_takeover_that_leaves_the_lanes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tables, "fence", lambda *_: None)


@fault
def an_outcome_of_an_earlier_life_that_is_believed(patch: pytest.MonkeyPatch) -> None:
    def answered(take: Any) -> Any:
        return lambda self, life, answer: take(self, self.life, answer)

    instead(patch, Lane, "answered", answered)


# -- outcomes


@fault
def rows_that_are_sent_again_without_a_look(patch: pytest.MonkeyPatch) -> None:
    reopened_as(patch, in_doubt_there=False)


@fault.from_seed(0)
def rows_that_are_taken_to_be_there_without_a_look(patch: pytest.MonkeyPatch) -> None:
    reopened_as(patch, in_doubt_there=True)


@fault
def a_look_that_takes_another_leaders_row_for_its_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tables, "has", lambda self, partition_id, base, epoch: (partition_id, base) in self.chunks)


@fault
def a_loss_that_nobody_looks_for(patch: pytest.MonkeyPatch) -> None:
    reopened_as(patch, acknowledged_there=True)


@fault
def an_answer_before_the_landing(patch: pytest.MonkeyPatch) -> None:
    def early(send: Any) -> Any:
        def sent(self: Lane, round_: Any) -> None:
            send(self, round_)
            self._round = round_._replace(appends=[])
            for append in round_.appends:
                append.done(None)

        return sent

    instead(patch, Lane, "_send", early)


@fault
def a_connection_that_is_gone_taken_for_a_refusal(patch: pytest.MonkeyPatch) -> None:
    def reopen(begin: Any) -> Any:
        def refused(self: Lane, reason: str) -> None:
            begin(self, reason)
            self._undo(AppendRefused(Code.KAFKA_STORAGE_ERROR, reason))

        return refused

    instead(patch, Lane, "_reopen", reopen)


@fault
def a_cancelled_statement_taken_for_a_refusal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(session, "SQLSTATES", {**session.SQLSTATES, "57014": (Verdict.REFUSE, "cancelled")})


@fault.from_seed(4)
def a_cancelled_wait_for_the_replica_taken_for_a_refusal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(session, "SQLSTATES", {**session.SQLSTATES, "01000": (Verdict.REFUSE, "cancelled")})


@fault
def a_cancelled_statement_that_is_sent_again_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(session, "SQLSTATES", {**session.SQLSTATES, "57014": (Verdict.RESEND, "cancelled")})


@fault
def refused_rows_that_are_left_in(patch: pytest.MonkeyPatch) -> None:
    def choose(draw: Any) -> Any:
        def drawn(self: World, name: str) -> Fate:
            fate: Fate = draw(self, name)
            return fate._replace(effect_ms=1) if fate.failure == "53100" else fate

        return drawn

    instead(patch, World, "choose", choose)


@fault.from_seed(0)
def a_shut_gate_that_is_sent_to_again(patch: pytest.MonkeyPatch) -> None:
    """Nobody is told that the broker is fenced."""

    def taken(take: Any) -> Any:
        def answered(self: Lane, round_: Any, answer: LaneAnswer) -> None:
            take(self, round_, Failed("40001") if answer == Inserted(0) else answer)

        return answered

    instead(patch, Lane, "_take_append", taken)


# -- order


@fault
def an_undoing_oldest_first(patch: pytest.MonkeyPatch) -> None:
    def oldest_first(sequence: Any) -> Iterator[Any]:
        return iter(sequence) if isinstance(sequence, list) else reversed(sequence)

    patch.setattr(lanes, "reversed", oldest_first, raising=False)


@fault
def an_undoing_of_the_round_alone(patch: pytest.MonkeyPatch) -> None:
    def undo(whole: Any) -> Any:
        def undone(self: Lane, refusal: AppendRefused) -> None:
            gathered, size, self._gathered = self._gathered, self._gathered_bytes, []
            self._decided_count -= len(gathered)
            whole(self, refusal)
            self._decided_count += len(gathered)
            self._gathered[:0] = gathered
            self._gathered_bytes += size
            self.held_bytes += size

        return undone

    instead(patch, Lane, "_undo", undo)


@fault
def a_pull_that_overtakes_what_was_put(patch: pytest.MonkeyPatch) -> None:
    def pull(all_: Any) -> Any:
        def pulled(self: Lane) -> None:
            gathered, self._gathered = self._gathered, []
            all_(self)
            self._gathered += gathered

        return pulled

    instead(patch, Lane, "_pull", pull)


@fault
def a_round_in_two_statements(patch: pytest.MonkeyPatch) -> None:
    def split(whole: Any) -> Any:
        def append(self: PretendedSession, life: int, chunks: Sequence[Chunk]) -> None:
            connection, execute = self.connection, Tables.append
            assert connection is not None
            tables, failed = self.engine.tables, partial(self.answered, life)

            def rest(rows: int) -> None:
                second = partial(execute, tables, *self.place, life, chunks[1:])
                connection.execute(
                    "append", second, lambda more: self.answered(life, Inserted(rows + more)), failed
                )

            if len(chunks) == 1:
                whole(self, life, chunks)
            else:
                connection.execute(
                    "append", partial(execute, tables, *self.place, life, chunks[:1]), rest, failed
                )

        return append

    instead(patch, PretendedSession, "append", split)


@fault
def a_handing_over_before_all_is_decided(patch: pytest.MonkeyPatch) -> None:
    def called(self: Lane, callback: Callable[[], None]) -> None:
        self.call_soon(callback)

    patch.setattr(Lane, "when_decided", called)


# -- who is called back


@fault
def a_round_that_is_answered_twice(patch: pytest.MonkeyPatch) -> None:
    def land(once: Any) -> Any:
        def landed(self: Lane, round_: Any) -> None:
            once(self, round_)
            self._round = round_

        return landed

    instead(patch, Lane, "_land", land)


@fault.from_seed(4)
def a_closed_lane_that_keeps_what_is_put(patch: pytest.MonkeyPatch) -> None:
    def put(take: Any) -> Any:
        def kept(self: Lane, append: Any) -> None:
            if not self.closed:
                take(self, append)

        return kept

    instead(patch, Lane, "put", put)


@fault
def a_lane_that_goes_on_by_itself_after_a_loss(patch: pytest.MonkeyPatch) -> None:
    def lose(tell: Any) -> Any:
        def lost(self: Lane) -> None:
            tell(self)
            self.go_on()

        return lost

    instead(patch, Lane, "lose", lose)


@fault.from_seed(0)
def rows_that_are_missed_though_they_were_deleted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lane, "forget", lambda *_: None)


@fault
def a_row_that_was_deleted_during_the_look(patch: pytest.MonkeyPatch) -> None:
    def begin(go_on: Any) -> Any:
        def begun(self: Lane, answer: Reopened) -> None:
            self._look = self._look._replace(acknowledged=self._last_acknowledged())
            go_on(self, answer)

        return begun

    instead(patch, Lane, "_begin_life", begin)


@fault.from_seed(4)
def a_silence_that_nobody_ends(patch: pytest.MonkeyPatch) -> None:
    def tick(act: Any) -> Any:
        return lambda self: act(self) if self.state == Lane.REOPENING else setattr(self, "_due_ms", None)

    instead(patch, Lane, "tick", tick)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_the_machine_finds(name: str, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(AssertionError):
        FAULTS.hunt(name, LaneMachine, monkeypatch)


def test_the_machine_finds_nothing_where_nothing_is_planted():
    run_state_machine_as_test(LaneMachine, settings=settings(GENERATED, max_examples=20))
