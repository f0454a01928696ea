"""Deadlines, against a dict that is searched each time."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from coterie.base.deadlines import Deadlines

KEYS = st.sampled_from("abcdef")
TIMES = st.integers(0, 40)


@pytest.fixture
def deadlines() -> Deadlines[str]:
    return Deadlines()


def test_without_deadlines_nothing_is_next_and_nothing_is_due(deadlines):
    assert (deadlines.next_ms(), deadlines.pop_due(10**12), len(deadlines)) == (None, [], 0)


def test_what_is_due_comes_earliest_first_and_once(deadlines):
    deadlines.arm("late", 30)
    deadlines.arm("early", 10)
    deadlines.arm("later", 31)

    assert deadlines.pop_due(30) == ["early", "late"]
    assert deadlines.pop_due(30) == []
    assert deadlines.next_ms() == 31


def test_a_deadline_is_due_at_its_own_millisecond(deadlines):
    deadlines.arm("m-1", 45_000)

    assert deadlines.pop_due(44_999) == []
    assert deadlines.pop_due(45_000) == ["m-1"]


def test_moving_a_deadline_later_pushes_nothing(deadlines):
    for now_ms in range(100_000):
        deadlines.arm("m-1", now_ms + 45_000)

    assert len(deadlines._heap) == 1
    assert deadlines.next_ms() == 99_999 + 45_000


def test_moving_a_deadline_earlier_counts(deadlines):
    deadlines.arm("m-1", 100)
    deadlines.arm("m-1", 50)

    assert deadlines.next_ms() == 50
    assert deadlines.pop_due(200) == ["m-1"]


def test_a_cleared_deadline_never_comes_and_may_be_armed_again(deadlines):
    deadlines.arm("m-1", 10)
    deadlines.clear("m-1")
    deadlines.clear("never armed")
    assert deadlines.next_ms() is None
    assert deadlines.at("m-1") is None

    deadlines.arm("m-1", 20)
    assert deadlines.pop_due(15) == []
    assert deadlines.pop_due(20) == ["m-1"]


def test_stale_entries_never_outnumber_the_live_ones_by_much(deadlines):
    for round_ in range(50):
        for member in range(1000):
            deadlines.arm(f"m-{member}", 10**6 - round_)
    assert len(deadlines._heap) <= 2 * 1000 + 64

    for member in range(1000):
        deadlines.clear(f"m-{member}")
    assert len(deadlines._heap) <= 64


def test_keys_need_not_be_comparable(deadlines):
    deadlines.arm(("m", None), 5)
    deadlines.arm(("m", 1), 5)

    assert deadlines.pop_due(5) == [("m", None), ("m", 1)]


class DeadlinesAgainstADict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.deadlines: Deadlines[str] = Deadlines()
        self.model: dict[str, int] = {}

    @rule(key=KEYS, at_ms=TIMES)
    def arm(self, key, at_ms):
        self.deadlines.arm(key, at_ms)
        self.model[key] = at_ms

    @rule(key=KEYS)
    def clear(self, key):
        self.deadlines.clear(key)
        self.model.pop(key, None)

    @rule(now_ms=TIMES)
    def pop(self, now_ms):
        due = self.deadlines.pop_due(now_ms)

        assert sorted(due) == sorted(key for key, at_ms in self.model.items() if at_ms <= now_ms)
        assert [self.model[key] for key in due] == sorted(self.model[key] for key in due)
        for key in due:
            del self.model[key]

    @invariant()
    def both_agree(self):
        assert len(self.deadlines) == len(self.model)
        assert self.deadlines.next_ms() == min(self.model.values(), default=None)
        assert all(self.deadlines.at(key) == at_ms for key, at_ms in self.model.items())
        assert all(key in self.deadlines for key in self.model)


TestDeadlinesAgainstADict = DeadlinesAgainstADict.TestCase
TestDeadlinesAgainstADict.settings = settings(deadline=None, stateful_step_count=30)
