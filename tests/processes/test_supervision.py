"""When a child is started, in virtual time: again with pauses that grow, and at some time no more."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coterie.broker.processes.supervision import (
    Action,
    Back,
    Gone,
    Kill,
    KillSilent,
    ParentExit,
    RestartTerms,
    SayReady,
    Start,
    Stop,
    Supervisor,
)

TERMS = RestartTerms()


def started(*broker_ids: int) -> Supervisor:
    supervisor = Supervisor(broker_ids)
    assert supervisor.tick(0) == [Start(broker_id) for broker_id in broker_ids]
    return supervisor


def all_ready(*broker_ids: int) -> Supervisor:
    supervisor = started(*broker_ids)
    said = [action for one in broker_ids for action in supervisor.ready(one, f"h:{one}", 0)]
    assert said == [SayReady(tuple(f"h:{one}" for one in broker_ids))]
    return supervisor


def started_again(supervisor: Supervisor, actions: list[Action], now_ms: int) -> int:
    """Have time pass until a child that has ended is started again, or is not to be, and return it."""
    while not any(isinstance(action, Start | ParentExit | Stop) for action in actions):
        assert supervisor.due_ms is not None
        now_ms = supervisor.due_ms
        actions = supervisor.tick(now_ms)
    return now_ms


def look(supervisor: Supervisor, until_ms: int, *alive: int) -> list[tuple[int, Action]]:
    """Have time pass, some children showing meanwhile that they live; return what is done, and when."""
    done: list[tuple[int, Action]] = []
    while (now_ms := supervisor.due_ms) is not None and now_ms <= until_ms:
        for broker_id in alive:
            assert supervisor.alive(broker_id, now_ms) == []
        done += ((now_ms, action) for action in supervisor.tick(now_ms))
    return done


def test_it_is_ready_when_all_are_and_names_them_in_the_order_of_their_ids():
    supervisor = started(1, 2, 3)

    assert supervisor.ready(3, "h:3", 10) == []
    assert supervisor.ready(1, "h:1", 20) == []
    assert supervisor.ready(2, "h:2", 30) == [SayReady(("h:1", "h:2", "h:3"))]


def test_a_child_that_dies_is_started_again_at_once_and_nobody_is_said_to_be_ready_anew():
    supervisor = all_ready(1, 2)

    assert supervisor.ended(2, -9, 1_000) == [Gone(2, -9, 0), Start(2)]
    assert supervisor.ready(2, "h:2", 1_300) == [Back(2)]


def test_the_pauses_before_further_starts_grow():
    supervisor, now_ms, pauses = all_ready(1), 0, []
    for _ in range(TERMS.ends_max - 1):
        gone, *rest = supervisor.ended(1, -9, now_ms)
        assert isinstance(gone, Gone)
        assert gone.again_in_ms is not None
        pauses.append(gone.again_in_ms)
        if not rest:
            due_ms = supervisor.due_ms
            assert due_ms == now_ms + gone.again_in_ms
            assert supervisor.tick(due_ms - 1) == []
            now_ms = due_ms
            rest = supervisor.tick(now_ms)
        assert rest == [Start(1)]

    assert pauses == [0, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]
    assert supervisor.due_ms is None


def test_whoever_dies_again_and_again_ends_all_with_a_sentence():
    supervisor, now_ms = all_ready(1, 2), 0
    for _ in range(TERMS.ends_max - 1):
        now_ms = started_again(supervisor, supervisor.ended(2, -9, now_ms), now_ms)

    assert supervisor.ended(2, 1, now_ms) == [Gone(2, 1, None), Stop(1)]
    assert supervisor.ended(1, 0, now_ms) == [
        Gone(1, 0, None),
        ParentExit(1, "broker 2 has ended 10 times in a row, the last time with exit code 1"),
    ]


def test_whoever_has_answered_for_a_minute_begins_anew():
    supervisor, now_ms = all_ready(1), 0
    for _ in range(5 * TERMS.ends_max):
        now_ms += TERMS.steady_ms
        assert supervisor.ended(1, -9, now_ms) == [Gone(1, -9, 0), Start(1)]
        supervisor.ready(1, "h:1", now_ms)


def test_a_broker_that_cannot_be_started_at_first_ends_all():
    supervisor = started(1, 2)
    supervisor.ready(1, "h:1", 0)

    assert supervisor.ended(2, 1, 10) == [Gone(2, 1, None), Stop(1)]
    assert supervisor.ended(1, 0, 20)[-1] == ParentExit(1, "broker 2 could not be started (exit code 1)")


def test_a_broker_that_is_killed_before_it_answers_is_started_again():
    assert started(1).ended(1, -9, 10) == [Gone(1, -9, 0), Start(1)]


def test_a_child_that_shows_no_sign_of_life_is_killed_and_started_again():
    supervisor = all_ready(1, 2)

    assert look(supervisor, 100_000, 1, 2) == []
    silent_ms = TERMS.silent_max_ms
    killed_ms = 100_000 + silent_ms
    assert look(supervisor, killed_ms, 1) == [(killed_ms, KillSilent(2, silent_ms))]
    assert supervisor.ended(2, -9, killed_ms + 5) == [Gone(2, -9, 0), Start(2)]
    assert supervisor.ready(2, "h:2", killed_ms + 300) == [Back(2)]
    assert look(supervisor, killed_ms + silent_ms, 1) == []


def test_a_child_that_cannot_be_killed_is_killed_again_later():
    supervisor = all_ready(1)
    silent_ms = TERMS.silent_max_ms

    killed = look(supervisor, 3 * silent_ms)

    assert killed == [(times * silent_ms, KillSilent(1, silent_ms)) for times in (1, 2, 3)]


def test_nobody_is_taken_for_silent_who_starts_or_stops_for_long():
    supervisor = started(1)
    supervisor.tick(10 * TERMS.silent_max_ms)
    supervisor.ready(1, "h:1", 10 * TERMS.silent_max_ms)
    supervisor.stop(10 * TERMS.silent_max_ms)

    later_ms = 11 * TERMS.silent_max_ms
    assert supervisor.tick(later_ms) == []


def test_a_parent_that_was_stopped_itself_takes_nobody_for_silent():
    supervisor, stopped_ms = all_ready(1, 2), 10 * TERMS.silent_max_ms

    assert supervisor.tick(stopped_ms) == []
    assert look(supervisor, stopped_ms + TERMS.silent_max_ms - 1) == []
    killed = look(supervisor, stopped_ms + TERMS.silent_max_ms)
    assert [action for _, action in killed] == [KillSilent(one, TERMS.silent_max_ms) for one in (1, 2)]


def test_all_are_stopped_and_waited_for_and_nobody_is_started_again():
    supervisor = all_ready(1, 2, 3)
    supervisor.ended(2, -9, 0)
    supervisor.ended(2, -9, 0)  # it pauses now

    assert supervisor.stop(4) == [Stop(1), Stop(3)]
    assert supervisor.ended(3, 0, 5) == [Gone(3, 0, None)]
    assert supervisor.ended(1, -15, 6) == [Gone(1, -15, None), ParentExit(0, "")]


def test_who_is_asked_to_stop_once_more_or_does_not_for_long_is_killed():
    by_signal, by_time = all_ready(1, 2), all_ready(1, 2)
    for supervisor in (by_signal, by_time):
        supervisor.stop(1_000)
        supervisor.ended(1, 0, 1_001)

    assert by_signal.stop(1_002) == [Kill(2)]
    due_ms = by_time.due_ms
    assert due_ms == 1_000 + TERMS.stop_within_ms
    assert by_time.tick(due_ms - 1) == []
    assert by_time.tick(due_ms) == [Kill(2)]
    assert by_time.due_ms is None
    assert by_time.ended(2, -9, due_ms) == [Gone(2, -9, None), ParentExit(0, "")]


def test_who_is_stopped_before_anybody_runs_ends_at_once():
    assert Supervisor([1, 2]).stop(0) == [ParentExit(0, "")]


def test_nobody_is_said_to_be_ready_who_is_to_stop():
    supervisor = started(1, 2)
    supervisor.ready(1, "h:1", 0)
    supervisor.stop(0)

    assert supervisor.ready(2, "h:2", 1) == []


@pytest.mark.parametrize(("status", "words"), [(-11, "SIGSEGV"), (-63, "signal 63"), (137, "exit code 137")])
def test_the_sentence_says_how_a_process_has_ended(status: int, words: str):
    supervisor, now_ms = all_ready(1), 0
    for _ in range(TERMS.ends_max):
        actions = supervisor.ended(1, status, now_ms)
        now_ms = started_again(supervisor, actions, now_ms)

    last = actions[-1]
    assert isinstance(last, ParentExit)
    assert last.sentence.endswith(f"the last time with {words}")


class SupervisorByChance(RuleBasedStateMachine):
    """Processes come and go in any order; whoever runs is known here too."""

    @initialize(count=st.integers(1, 3))
    def begin(self, count: int) -> None:
        self.now_ms = 0
        self.supervisor = Supervisor(range(count), RestartTerms(look_every_ms=400, silent_max_ms=1_000))
        self.alive_ms: dict[int, int] = {}
        self.running: set[int] = set()
        self.ready: set[int] = set()
        self.said: list[SayReady] = []
        self.exits: list[ParentExit] = []
        self.stopping = False
        self.count = count
        self.do(self.supervisor.tick(0))

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(broker_id):
                    assert broker_id not in self.running, "two processes of one broker"
                    assert not self.stopping, "nobody is started who would be stopped"
                    self.running.add(broker_id)
                case Stop(broker_id):
                    assert broker_id in self.running
                    self.stopping = True
                case Kill(broker_id):
                    assert broker_id in self.running
                    assert self.stopping, "nobody is killed who was not asked to stop"
                case KillSilent(broker_id, silent_ms):
                    assert broker_id in self.running
                    assert not self.stopping
                    assert silent_ms >= 1_000
                    assert self.now_ms - self.alive_ms[broker_id] >= silent_ms
                case SayReady():
                    assert self.ready == {*range(self.count)}
                    self.said.append(action)
                case ParentExit():
                    assert not self.running, "the parent waits for all"
                    self.exits.append(action)

    @rule(ms=st.sampled_from((1, 400, 30_000, 70_000)))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        self.do(self.supervisor.tick(self.now_ms))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def one_is_ready(self, data: st.DataObject) -> None:
        broker_id = data.draw(st.sampled_from(sorted(self.running)))
        self.ready.add(broker_id)
        self.alive_ms[broker_id] = self.now_ms
        self.do(self.supervisor.ready(broker_id, f"h:{broker_id}", self.now_ms))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def one_lives(self, data: st.DataObject) -> None:
        broker_id = data.draw(st.sampled_from(sorted(self.running)))
        self.alive_ms[broker_id] = self.now_ms
        self.do(self.supervisor.alive(broker_id, self.now_ms))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), status=st.sampled_from((-9, 0, 1)))
    def one_ends(self, data: st.DataObject, status: int) -> None:
        broker_id = data.draw(st.sampled_from(sorted(self.running)))
        self.running.discard(broker_id)
        self.do(self.supervisor.ended(broker_id, status, self.now_ms))

    @rule()
    def stop(self) -> None:
        actions = self.supervisor.stop(self.now_ms)
        self.do(actions)
        self.stopping = True

    @invariant()
    def it_says_each_thing_once_and_forgets_nobody(self) -> None:
        if not hasattr(self, "supervisor"):
            return
        assert len(self.said) <= 1
        assert len(self.exits) <= 1
        if not self.running and not self.exits:
            assert self.supervisor.due_ms is not None, "nobody runs, and nobody is waited for"


TestSupervisorByChance = SupervisorByChance.TestCase
TestSupervisorByChance.settings = settings(max_examples=60, stateful_step_count=30)
