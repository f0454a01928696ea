"""A decision that is taken back was nothing, whatever was asked: made again, it is the same to the byte."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from group_rig import (
    RANGE,
    Rig,
    a_commit,
    a_completing_group,
    a_heartbeat,
    a_join,
    a_preparing_group,
    a_stable_group,
    a_sync,
    protocols,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.coordinator.group import table
from coterie.coordinator.group.commands import Command, DeleteGroup, Join, Leave, Leaver
from coterie.coordinator.group.facts import Fact
from coterie.coordinator.group.model import State
from coterie.coordinator.group.shard import Draft
from coterie.coordinator.machine import Decision
from examples import drawn


class WaveringRig(Rig):
    """Makes each decision twice: the first is taken back."""

    def __init__(self, **terms: int) -> None:
        super().__init__(**terms)
        self.shard._new_id = lambda: f"uuid{len(self.whys)}"  # the same for one command, however often

    def perform(self, command: Command) -> Decision:
        before, mark = self.state(), self.shard.journal.mark()
        shown: list[Fact] = []
        tried = self.shard.perform(command, self.now_ms, shown.append)
        after = self.state()
        assert tuple(shown) == tried.facts
        self.shard.take_back(mark)
        assert self.state() == before

        decision = super().perform(command)
        assert decision == tried
        assert self.state() == after
        return decision

    def state(self) -> Any:
        """Return a copy of all there is."""
        return deepcopy((self.shard.groups, dict(self.shard.offsets.items())))


def asked_of(rig: Rig, kind: str, who: int, number: int, instance: str | None) -> Command | None:
    """Return what is asked, by one of those whom the group knows as a rule; None for time that passes."""
    group = rig.shard.groups.get("g")
    known = [] if group is None else [*group.members, *group.pending]
    member_id = known[who % len(known)] if known and number else ""
    generation = 0 if group is None else group.generation
    match kind:
        case "join":
            names = protocols("range", "roundrobin") if number == 3 else RANGE
            return a_join(rig, member_id=member_id, instance_id=instance, protocols=names)
        case "old join":
            return a_join(rig, member_id=member_id, instance_id=instance, version=3)
        case "sync":
            return a_sync(rig, member_id, dict.fromkeys(known, b"mine") if number == 1 else None)
        case "beat":
            return a_heartbeat(rig, member_id, generation)
        case "leave":
            leavers = (Leaver(member_id, instance, None), Leaver("nobody", None, None))
            return Leave(group_id="g", call=rig.call(), members=leavers, version=5)
        case "commit":
            return a_commit(rig, member_id, generation if member_id else -1)
        case "delete":
            return DeleteGroup(group_id="g", call=rig.call())
    return None


KINDS = (
    "join",
    "join",
    "join",
    "old join",
    "sync",
    "sync",
    "beat",
    "leave",
    "commit",
    "delete",
    "wait",
    "wait",
)
asked = st.tuples(
    st.sampled_from(KINDS), st.integers(0, 3), st.integers(0, 3), st.sampled_from((None, None, None, "i-s"))
)


STARTS = {
    "nothing": lambda rig: None,
    "preparing": lambda rig: a_preparing_group(rig, "a", "b"),
    "completing": lambda rig: a_completing_group(rig, "a", "b", "s", static=("s",)),
    "stable": lambda rig: a_stable_group(rig, "a", "b", "s", static=("s",)),
}


@settings(max_examples=drawn(150))
@given(st.sampled_from(sorted(STARTS)), st.lists(asked, min_size=5, max_size=30))
def test_a_decision_that_is_taken_back_was_nothing(start, script):
    rig = WaveringRig()
    STARTS[start](rig)
    for kind, who, number, instance in script:
        command = asked_of(rig, kind, who, number, instance)
        if command is None:
            rig.run_ms((1, 3_000, 45_000, 300_000)[number])
        else:
            rig.ask(command)


def test_a_decision_that_raises_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    rig = WaveringRig()
    a_stable_group(rig, "a", "b")
    before, mark = rig.state(), rig.shard.journal.mark()
    join_stable = table.ANSWERS[State.STABLE][Join]

    def trips(draft: Draft, group: Any, command: Any) -> Decision:
        join_stable(draft, group, command)
        assert draft.facts
        raise AssertionError("our own mistake")

    rows = {**table.ANSWERS, State.STABLE: {**table.ANSWERS[State.STABLE], Join: trips}}
    monkeypatch.setattr(table, "ANSWERS", rows)

    with pytest.raises(AssertionError, match="our own mistake"):
        rig.shard.perform(a_join(rig, version=3), rig.now_ms)

    assert rig.state() == before
    assert rig.shard.journal.mark() == mark
