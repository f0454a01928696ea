"""Any sequence of commands, time-outs, failing appends and failovers, and what must hold after each step."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, fields
from typing import Any

import pytest
from group_rig import Pending, Rig, a_commit, a_heartbeat, a_join, a_subscription, a_sync
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coterie.base.codes import Code
from coterie.group import Shard
from coterie.group.commands import (
    CleanOffsets,
    Command,
    DeleteGroup,
    DeleteOffsets,
    Describe,
    Expire,
    FetchOffsets,
    Heartbeat,
    Leave,
    Leaver,
    OffsetToCommit,
    TopicsDeleted,
)
from coterie.group.decision import Decision, JoinAnswer
from coterie.group.facts import Fact, GroupRemoved, GroupStored, OffsetsCommitted
from coterie.group.model import Group, Member, State

GROUPS = ("g", "g", "g", "g", "h")
INSTANCES = (None, None, "i-1", "i-2")
METADATA = (a_subscription(), a_subscription("t", "u"), b"", b"rubbish")
NAMES = ("range", "roundrobin", "sticky")
TOPICS = ("flights", "t", "u")
LONGEST_MS = 10_000_000


def snapshot(shard: Shard) -> tuple[Any, Any]:
    """Return everything a shard holds, as values that later changes do not reach."""
    groups = {group_id: group_values(group) for group_id, group in shard.groups.items()}
    offsets = {
        g: {t: dict(partitions) for t, partitions in table.items()} for g, table in shard.offsets.items()
    }
    return groups, offsets


def group_values(group: Group) -> tuple[Any, ...]:
    names = [one.name for one in fields(group) if one.compare and one.name != "members"]
    members = {m.member_id: [getattr(m, one.name) for one in fields(m)] for m in group.members.values()}
    return *(copy.copy(getattr(group, name)) for name in names), members


def stored_view(group: Group) -> Any:
    """Return what a record keeps of a group (RC-1 to RC-3)."""
    members = {
        m.member_id: (
            m.instance_id,
            m.client_id,
            m.client_host,
            m.session_timeout_ms,
            m.rebalance_timeout_ms,
            m.metadata(group.protocol),
            m.assignment,
        )
        for m in group.members.values()
    }
    kept = group.generation, group.protocol_type or None, group.protocol, group.leader, group.since_ms
    return State.STABLE if members else State.EMPTY, *kept, members


class CheckedRig(Rig):
    """A rig that holds every decision against what a decision may do, and knows what the log holds."""

    def __init__(self, **terms: int) -> None:
        super().__init__(**terms)
        self.stored: dict[str, Any] = {}  # by group: what its last record says; None for a simple group
        self._held_stored: dict[str, Any] = {}

    def decide(self, command: Command) -> Decision:
        before = snapshot(self.shard)
        decision = super().decide(command)
        assert snapshot(self.shard) == before, "deciding has changed something"
        self.try_undo(decision, before)
        if isinstance(command, Heartbeat):
            self.check_beat(command, decision)
        return decision

    def try_undo(self, decision: Decision, before: tuple[Any, Any]) -> None:
        mark = self.shard.mark()
        for fact in decision.facts:
            self.shard.apply(fact)
        after = snapshot(self.shard)
        self.shard.undo_to(mark)
        assert snapshot(self.shard) == before, "undoing has not restored the state"
        self.shard._revived.clear()  # a shell that undoes goes on with append_failed; this one does not
        for fact in decision.facts:
            self.shard.apply(fact)
        assert snapshot(self.shard) == after
        self.shard.undo_to(mark)
        self.shard._revived.clear()

    def check_beat(self, command: Heartbeat, decision: Decision) -> None:
        """The short way answers as the long one, and moves the same deadline."""
        heard = self.shard.beat(command.group_id, command.member_id, command.instance_id, command.generation)
        code = decision.replies[0].answer.code
        assert decision.facts == ()
        if heard is None:
            assert code not in (Code.NONE, Code.REBALANCE_IN_PROGRESS)
            assert decision.wakes == ()
            return
        assert heard[0] is code
        assert decision.wakes == ((heard[2], self.now_ms + heard[1]),)

    def carried(self, fact: Fact) -> None:
        if isinstance(fact, GroupStored):
            self._held_stored[fact.group_id] = stored_view(self.shard.groups[fact.group_id])
        elif isinstance(fact, GroupRemoved):
            self._held_stored[fact.group_id] = "removed"
        elif isinstance(fact, OffsetsCommitted):
            known = self._held_stored.get(fact.group_id, self.stored.get(fact.group_id, "removed"))
            if known == "removed":
                self._held_stored[fact.group_id] = None

    def _release(self, pending: Pending) -> None:
        super()._release(pending)
        self.stored.update(self._held_stored)
        self._held_stored.clear()

    def fail(self, code: Code) -> list[Decision]:
        self._held_stored.clear()
        return super().fail(code)

    def check_log(self) -> None:
        """A failover finds every offset, and every group as its last record left it (RB-11, LO-5)."""
        shard = Shard(settings=self.settings, new_id=lambda: "")
        shard.load(self.log, self.now_ms)
        assert shard.offsets == self.shard.offsets
        found = {group_id: stored_view(group) for group_id, group in shard.groups.items()}
        expected = {group_id: view for group_id, view in self.stored.items() if view != "removed"}
        assert found.keys() == expected.keys()
        for group_id, view in expected.items():
            if view is not None:
                assert found[group_id] == view


@dataclass
class Actor:
    """A client that believes what it was told, most of the time."""

    name: str
    instance_id: str | None
    member_id: str = ""
    generation: int = -1
    calls: list[int] = field(default_factory=list)


class GroupMachine(RuleBasedStateMachine):
    """Clients, good and bad, and a log that may refuse, around one shard."""

    @initialize(
        delay_ms=st.sampled_from((0, 3_000)),
        max_size=st.sampled_from((2, 3, 2**31 - 1)),
    )
    def begin(self, delay_ms: int, max_size: int) -> None:
        self.rig = CheckedRig(initial_rebalance_delay_ms=delay_ms, max_size=max_size)
        self.actors = [Actor(f"c{n}", INSTANCES[n % len(INSTANCES)]) for n in range(6)]
        self.ids = ["", "nobody"]

    def settled(self) -> bool:
        return self.rig._held is None

    def learn(self, actor: Actor, call: int) -> None:
        actor.calls.append(call)
        for one in tuple(actor.calls):
            answer = self.rig.answers.get(one)
            if isinstance(answer, JoinAnswer) and answer.member_id:
                actor.member_id, actor.generation = answer.member_id, answer.generation
                self.ids.append(answer.member_id)
            if answer is not None:
                actor.calls.remove(one)

    # -- what clients do

    @rule(data=st.data(), who=st.integers(0, 5), group_id=st.sampled_from(GROUPS), restart=st.booleans())
    def join(self, data: st.DataObject, who: int, group_id: str, restart: bool) -> None:
        actor = self.actors[who]
        member_id = "" if restart else self.an_id(data, actor)
        names = data.draw(st.lists(st.sampled_from(NAMES), max_size=3))
        metadata = data.draw(st.sampled_from(METADATA))
        command = a_join(
            self.rig,
            actor.name,
            group_id=group_id,
            member_id=member_id,
            instance_id=actor.instance_id,
            protocol_type=data.draw(st.sampled_from((*["consumer"] * 8, "connect", ""))),
            protocols=tuple((name, metadata) for name in ["range", *names]),
            session_timeout_ms=data.draw(st.sampled_from((*[20_000] * 4, 6_000, 400_000, 1))),
            rebalance_timeout_ms=data.draw(st.sampled_from((60_000, 60_000, 5_000, 0))),
            version=data.draw(st.sampled_from((3, 9))),
        )
        self.learn(actor, self.rig.ask(command).call)

    @rule(data=st.data(), who=st.integers(0, 5), group_id=st.sampled_from(GROUPS))
    def sync(self, data: st.DataObject, who: int, group_id: str) -> None:
        actor = self.actors[who]
        member_id = self.an_id(data, actor)
        assignments = {m: m.encode() for m in self.ids[: data.draw(st.integers(0, 6))]}
        command = a_sync(
            self.rig,
            member_id,
            assignments,
            group_id=group_id,
            instance_id=actor.instance_id,
            generation=self.a_generation(data, group_id),
            protocol_name=data.draw(st.sampled_from((None, None, None, "range", "sticky"))),
        )
        self.learn(actor, self.rig.ask(command).call)

    @rule(group_id=st.sampled_from(GROUPS), everybody=st.booleans(), leader_last=st.booleans())
    def go_on(self, group_id: str, everybody: bool, leader_last: bool) -> None:
        """Bring a group on its way: whoever is missing in its phase, or the first of them, acts."""
        group = self.rig.shard.groups.get(group_id)
        if group is None:
            return
        state = group.state
        members = sorted(group.members.values(), key=lambda m: (m.member_id == group.leader) == leader_last)
        for member in members:
            if group.state is not state:
                return
            done = self.step(group, member)
            if done and not everybody:
                return
        if group.initial and group.join_due_ms is not None and self.settled():
            self.rig.run_to(group.join_due_ms)

    def step(self, group: Group, member: Member) -> bool:
        """Have a member do what its group's phase asks for, if it has not."""
        if group.state is State.PREPARING and member.join_call is None:
            command = a_join(
                self.rig,
                group_id=group.group_id,
                member_id=member.member_id,
                protocol_type=group.protocol_type,
                protocols=member.protocols,
                session_timeout_ms=member.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
            )
        elif (group.state is State.COMPLETING and member.sync_call is None) or (
            group.state is State.STABLE and member.member_id in group.pending_sync
        ):
            command = a_sync(self.rig, member.member_id, group_id=group.group_id)
        else:
            return False
        self.rig.ask(command)
        return True

    @rule(data=st.data(), group_id=st.sampled_from(GROUPS))
    def member_speaks(self, data: st.DataObject, group_id: str) -> None:
        """A member of the generation beats, commits, syncs, rejoins, comes back, or leaves."""
        group = self.rig.shard.groups.get(group_id)
        if group is None or not group.members:
            return
        member = data.draw(st.sampled_from(sorted(group.members.values(), key=lambda m: m.order)))
        terms: dict[str, Any] = {
            "group_id": group_id,
            "protocol_type": group.protocol_type,
            "protocols": data.draw(st.sampled_from((member.protocols, member.protocols[::-1]))),
            "session_timeout_ms": member.session_timeout_ms,
            "version": data.draw(st.sampled_from((5, 9))),
        }
        known = a_join(self.rig, member_id=member.member_id, **terms)
        leave = (Leaver(member.member_id, member.instance_id, None),)
        commands: list[Command] = [
            a_heartbeat(self.rig, member.member_id, group.generation, group_id=group_id),
            a_commit(self.rig, member.member_id, group.generation, group_id=group_id),
            a_sync(self.rig, member.member_id, group_id=group_id),
            known,
            Leave(group_id=group_id, call=self.rig.call(), members=leave, version=5),
        ]
        if member.instance_id is not None:
            back = a_join(self.rig, instance_id=member.instance_id, **terms)
            commands += [back, back, back]
        self.rig.ask(data.draw(st.sampled_from(commands)))

    @rule(data=st.data(), who=st.integers(0, 5), group_id=st.sampled_from(GROUPS))
    def beat(self, data: st.DataObject, who: int, group_id: str) -> None:
        actor = self.actors[who]
        instance_id = data.draw(st.sampled_from((None, actor.instance_id)))
        generation = self.a_generation(data, group_id)
        member_id = self.an_id(data, actor)
        self.rig.ask(a_heartbeat(self.rig, member_id, generation, group_id=group_id, instance_id=instance_id))

    @rule(data=st.data(), group_id=st.sampled_from(GROUPS))
    def leave(self, data: st.DataObject, group_id: str) -> None:
        leavers = data.draw(
            st.lists(st.tuples(st.sampled_from(self.ids), st.sampled_from(INSTANCES)), max_size=3)
        )
        members = tuple(Leaver(member_id, instance_id, None) for member_id, instance_id in leavers)
        self.rig.ask(Leave(group_id=group_id, call=self.rig.call(), members=members, version=5))

    @rule(data=st.data(), who=st.integers(0, 5), group_id=st.sampled_from(GROUPS), alone=st.booleans())
    def commit(self, data: st.DataObject, who: int, group_id: str, alone: bool) -> None:
        actor = self.actors[who]
        offsets = data.draw(
            st.lists(
                st.builds(
                    OffsetToCommit,
                    st.sampled_from(TOPICS),
                    st.integers(0, 2),
                    st.integers(0, 100),
                    st.just(-1),
                    st.sampled_from(("", "md", "x" * 5_000)),
                    st.none(),
                ),
                max_size=3,
            )
        )
        member_id = "" if alone else self.an_id(data, actor)
        generation = -1 if alone else self.a_generation(data, group_id)
        command = a_commit(
            self.rig,
            member_id,
            generation,
            group_id=group_id,
            offsets=tuple(offsets),
            retention_ms=data.draw(st.sampled_from((-1, -1, 1_000))),
        )
        self.rig.ask(command)

    # -- what administrators do

    @rule(data=st.data(), group_id=st.sampled_from(GROUPS), topic=st.sampled_from(TOPICS))
    def administer(self, data: st.DataObject, group_id: str, topic: str) -> None:
        call = self.rig.call()
        commands: list[Command] = [
            FetchOffsets(group_id=group_id, call=call, topics=None),
            FetchOffsets(group_id=group_id, call=call, topics=((topic, (0, 1)),), require_stable=True),
            Describe(group_id=group_id, call=call),
            DeleteOffsets(group_id=group_id, call=call, partitions=((topic, 0), (topic, 1))),
            DeleteGroup(group_id=group_id, call=call),
            TopicsDeleted(topics=(topic,)),
            CleanOffsets(),
        ]
        self.rig.ask(data.draw(st.sampled_from(commands)))

    # -- what time and the log do

    @rule(span_ms=st.sampled_from((0, 1, 1, 500, 500, 3_000, 6_000, 60_000)))
    def pass_time(self, span_ms: int) -> None:
        self.rig.run_ms(span_ms)

    @rule(data=st.data(), group_id=st.sampled_from(GROUPS), kind=st.sampled_from(("join", "sync")))
    def ring_late(self, data: st.DataObject, group_id: str, kind: str) -> None:
        """A deadline that was moved or cleared while its event was under way (EX-7)."""
        if self.rig.deadlines.at((kind, group_id)) != self.rig.now_ms:
            self.rig.ask(Expire(key=(kind, group_id)))

    @precondition(lambda self: self.settled())
    @rule()
    def hold(self) -> None:
        self.rig.hold()

    @precondition(lambda self: not self.settled())
    @rule()
    def append(self) -> None:
        self.rig.append()

    @precondition(lambda self: not self.settled())
    @rule(code=st.sampled_from((Code.KAFKA_STORAGE_ERROR, Code.NOT_ENOUGH_REPLICAS)))
    def refuse(self, code: Code) -> None:
        self.rig.fail(code)

    @precondition(lambda self: self.settled())
    @rule(really=st.integers(0, 3))
    def fail_over(self, really: int) -> None:
        """The shard goes elsewhere: who waits is told so, and the log is all that is left."""
        if really:
            return
        told = {reply.call for reply in self.rig.shard.unload().replies}
        assert told == self.rig.waiting
        stored = self.rig.stored
        self.rig = self.rig.restarted()
        self.rig.stored = stored

    # -- what must hold

    @invariant()
    def one_leader_that_is_a_member(self) -> None:
        for group in self.groups():
            assert (group.leader is None) == (not group.members)
            assert group.leader is None or group.leader in group.members

    @invariant()
    def the_counts_are_right(self) -> None:
        for group in self.groups():
            members = list(group.members.values())
            supporters: dict[str, int] = {}
            for member in members:
                for name in dict(member.protocols):
                    supporters[name] = supporters.get(name, 0) + 1
            assert group.supporters == supporters
            assert group.awaiting_join == sum(m.join_call is not None for m in members)
            assert group.static == {m.instance_id: m.member_id for m in members if m.instance_id is not None}
            assert not group.pending.keys() & group.members.keys()
            assert group.pending_sync <= group.members.keys()
            assert len({m.order for m in members}) == len(members)
            assert not members or group.state is State.PREPARING or group.candidates()

    @invariant()
    def a_state_holds_what_belongs_to_it(self) -> None:
        for group in self.groups():
            members = list(group.members.values())
            if group.state is State.EMPTY:
                assert not members
                assert group.protocol is None
            if group.state is not State.PREPARING:
                assert group.awaiting_join == 0
                assert group.join_due_ms is None
            if group.state is not State.COMPLETING:
                assert all(m.sync_call is None for m in members)
            if group.state in (State.COMPLETING, State.STABLE):
                assert members
                assert group.protocol is not None
            if group.state is State.COMPLETING:
                assert group.leader in group.pending_sync, "nobody would end this phase"

    @invariant()
    def whoever_waits_is_parked_and_nobody_else(self) -> None:
        if not hasattr(self, "rig") or not self.settled():
            return
        parked = [
            call
            for group in self.groups()
            for member in group.members.values()
            for call in (member.join_call, member.sync_call)
            if call is not None
        ]
        assert len(parked) == len(set(parked))
        assert set(parked) == self.rig.waiting

    @invariant()
    def nothing_waits_without_a_deadline(self) -> None:
        for group in self.groups():
            deadlines = self.rig.deadlines
            for member in group.members.values():
                assert member.satisfied or deadlines.at(member.session_key) is not None, member
            for member_id in group.pending:
                assert deadlines.at(("session", group.group_id, member_id)) is not None
            assert (group.join_due_ms is not None) == (group.state is State.PREPARING)
            assert bool(group.pending_sync) == (group.sync_due_ms is not None)
            for kind, due_ms in (("join", group.join_due_ms), ("sync", group.sync_due_ms)):
                armed_ms = deadlines.at((kind, group.group_id))
                assert due_ms is None or (armed_ms is not None and armed_ms >= due_ms)

    @invariant()
    def a_failover_finds_what_was_answered(self) -> None:
        if hasattr(self, "rig") and self.settled():
            self.rig.check_log()

    def teardown(self) -> None:
        """Left alone, everybody who waits is answered."""
        if not hasattr(self, "rig"):
            return
        if not self.settled():
            self.rig.append()
        self.rig.run_ms(LONGEST_MS)
        assert self.rig.waiting == set()
        assert all(group.state is State.EMPTY for group in self.groups())

    # -- drawing

    def groups(self) -> list[Group]:
        return list(self.rig.shard.groups.values()) if hasattr(self, "rig") else []

    def an_id(self, data: st.DataObject, actor: Actor) -> str:
        """Return mostly the actor's own id, sometimes one of another's or of nobody."""
        return data.draw(st.sampled_from((*[actor.member_id] * 4, data.draw(st.sampled_from(self.ids)))))

    def a_generation(self, data: st.DataObject, group_id: str) -> int:
        group = self.rig.shard.groups.get(group_id)
        current = 0 if group is None else group.generation
        return data.draw(st.sampled_from((current, current, current, current - 1, current + 1, -1)))


GroupMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
TestGroupMachine = pytest.mark.slow(GroupMachine.TestCase)
