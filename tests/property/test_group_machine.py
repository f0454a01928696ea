"""Any sequence of commands, time-outs, failing appends and failovers, and what must hold after each step."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any
from uuid import UUID

import pytest
from group_rig import Pending, Rig, a_commit, a_heartbeat, a_join, a_subscription, a_sync
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from timer_oracle import Seen, TimerOracle, seen

from coterie.base.codes import Code
from coterie.coordinator.group.classic.sync import renewal
from coterie.coordinator.group.commands import (
    CleanOffsets,
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    Describe,
    EndTransaction,
    Expire,
    FetchOffsets,
    Heartbeat,
    JoinAnswer,
    Leave,
    Leaver,
    OffsetToCommit,
    Sync,
    SyncAnswer,
    TopicsDeleted,
    TxnCommitOffsets,
)
from coterie.coordinator.group.facts import (
    Fact,
    GroupRemoved,
    GroupStored,
    OffsetsCommitted,
    OffsetsPending,
    OffsetsRemoved,
)
from coterie.coordinator.group.loading import Loader
from coterie.coordinator.group.model import Group, Member, State
from coterie.coordinator.group.shard import Shard
from coterie.coordinator.machine import Decision
from coterie.wire.payloads.consumer_offsets import OffsetCommitKey, read_key, read_offset_value
from coterie.wire.records.batches import (
    Record,
    build_batch,
    build_marker,
    read_header,
    read_marker,
    records_of,
)
from examples import drawn

GROUPS = ("g", "g", "g", "g", "h")
INSTANCES = (None, None, "i-1", "i-2")
METADATA = (a_subscription(), a_subscription("t", "u"), b"", b"rubbish")
NAMES = ("range", "roundrobin", "sticky")
TOPICS = ("flights", "t", "u")
TOPIC_IDS = (None, UUID(int=1), UUID(int=2))
PRODUCERS = (70, 71, 72)
LONGEST_MS = 10_000_000
# No call waits longer: a session, a new member's five minutes, and some rounds of the longest phase.
LONGEST_WAIT_MS = 400_000 + 300_000 + 4 * 60_000


def snapshot(shard: Shard) -> tuple[Any, ...]:
    """Return everything a shard holds, as values that later changes do not reach."""
    groups = {group_id: group_values(group) for group_id, group in shard.groups.items()}
    return groups, offsets_of(shard), shard.pending.view()


def offsets_of(shard: Shard) -> dict[str, dict[str, dict[int, Any]]]:
    return {g: {t: dict(partitions) for t, partitions in table.items()} for g, table in shard.offsets.items()}


def shares(call: int, member_ids: Iterable[str]) -> dict[str, bytes]:
    """Return an assignment that gives every member something of its own, and tells whose word it is."""
    return {member_id: b"%d/%d" % (call, at) for at, member_id in enumerate(dict.fromkeys(member_ids))}


def group_values(group: Group) -> tuple[Any, ...]:
    names = [one.name for one in fields(group) if one.compare and one.name != "members"]
    members = {
        m.member_id: [getattr(m, one.name) for one in fields(m) if one.compare]
        for m in group.members.values()
    }
    return *(copy.copy(getattr(group, name)) for name in names), members


def unordered(decision: Decision) -> Decision:
    """A decision without the order in which groups and offsets lie, which nobody has promised."""
    decided = [
        replace(fact, partitions=tuple(sorted(fact.partitions))) if isinstance(fact, OffsetsRemoved) else fact
        for fact in decision.facts
    ]
    return decision._replace(
        facts=tuple(sorted(decided, key=repr)),
        records=sorted(decision.records, key=repr),
        timers=tuple(sorted(decision.timers, key=repr)),
        steps=tuple(sorted(decision.steps)),
    )


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


# 2.1, with what one fact may do at a time. A group may also come into being, and be removed.
MOVES = {
    State.EMPTY: {State.PREPARING},
    State.PREPARING: {State.EMPTY, State.COMPLETING},
    State.COMPLETING: {State.PREPARING, State.STABLE},
    State.STABLE: {State.PREPARING},
}


class CheckedRig(Rig):
    """A rig that holds every decision against what a decision may do, and knows what the log holds."""

    def __init__(self, **terms: int) -> None:
        super().__init__(**terms)
        self.batches: list[bytes] = []
        self.stored: dict[str, Any] = {}  # by group: what its last record says; None for a simple group
        self.oracle = TimerOracle(self.settings)
        self.asked_ms: dict[int, int] = {}
        self.syncs: dict[int, Sync] = {}
        # By group and generation: whose each partition is, and which leader's sync said so.
        self.owners: dict[tuple[str, int], dict[bytes, str]] = {}
        self._held_stored: dict[str, Any] = {}
        self._producer: int | None = None
        self._states: dict[str, State] = {}
        self._held_before: Any = None
        self._checked = -1
        self.ids = 0
        self.shard._new_id = self.new_id

    def new_id(self) -> str:
        self.ids += 1
        return f"uuid{self.ids}"

    # -- what a decision may do

    def ask(self, command: Command) -> Any:
        before = seen(self.shard)
        self._states = {group_id: group.state for group_id, group in self.shard.groups.items()}
        if isinstance(command, Sync):
            self.syncs[command.call] = command
        self.asked_ms[getattr(command, "call", 0)] = self.now_ms
        asked = super().ask(command)
        self.oracle.watch(command, asked.decision, before, seen(self.shard), self.now_ms)
        if isinstance(command, Heartbeat | Sync | CommitOffsets | TxnCommitOffsets):
            check_fenced(command, asked.decision, before)
        self.check_timers()
        return asked

    def armed(self) -> dict[Any, int]:
        return {key: armed.at_ms for key, armed in self.deadlines._armed.items()}

    def check_timers(self) -> None:
        """What is armed is what the rows ask for, to the millisecond; what is due now may be under way."""
        expected = {
            key: at_ms
            for key, at_ms in self.oracle.due.items()
            if not (at_ms <= self.now_ms and key in self._due)
        }
        assert self.armed() == expected

    def perform(self, command: Command) -> Decision:
        if isinstance(command, Heartbeat):
            self.check_beat(command)
        before, mark, ids = snapshot(self.shard), self.shard.journal.mark(), self.ids
        tried = self.shard.perform(command, self.now_ms)
        after = snapshot(self.shard)
        self.shard.undo_to(mark)
        assert snapshot(self.shard) == before, "undoing has not restored the state"
        self.shard._revived.clear()  # a shell that undoes goes on with append_failed; this one does not
        self.ids = ids
        decision = super().perform(command)
        assert unordered(decision) == unordered(tried)
        assert snapshot(self.shard) == after
        return decision

    def check_beat(self, command: Heartbeat) -> None:
        """The fast path answers as the table does, and moves the same deadline."""
        decision = self.shard.perform(command, self.now_ms)
        renewed = renewal(self.shard.groups.get(command.group_id), command)
        code = decision.replies[0].answer.code
        assert decision.facts == ()
        if renewed is None:
            assert code not in (Code.NONE, Code.REBALANCE_IN_PROGRESS)
            assert decision.timers == ()
            return
        assert renewed[0] is code
        member = renewed[1]
        assert decision.timers == ((member.session_key, self.now_ms + member.session_timeout_ms),)

    def carried(self, fact: Fact) -> None:
        group_id = getattr(fact, "group_id", "")
        group = self.shard.groups.get(group_id)
        earlier = self._states.get(group_id, State.EMPTY)
        if group is not None and group.state is not earlier:
            assert group.state in MOVES[earlier]
            self._states[group_id] = group.state
        if isinstance(fact, GroupStored):
            assert group is not None
            self._held_stored[group_id] = stored_view(group)
        elif isinstance(fact, GroupRemoved):
            self._held_stored[group_id] = "removed"
            self._states.pop(group_id)
        elif isinstance(fact, OffsetsCommitted | OffsetsPending):
            known = self._held_stored.get(group_id, self.stored.get(group_id, "removed"))
            if known == "removed":
                self._held_stored[group_id] = None

    # -- the log, in Kafka's bytes

    def _release(self, pending: Pending) -> None:
        if pending.records:
            records = [Record(at, self.now_ms, *record) for at, record in enumerate(pending.records)]
            self.batches.append(self._batch(records))
        for group_id, view in self._held_stored.items():
            if view == "removed":
                self.owners = {key: owned for key, owned in self.owners.items() if key[0] != group_id}
        super()._release(pending)
        self.stored.update(self._held_stored)
        self._held_stored.clear()
        for reply in pending.replies:
            if reply.call in self.syncs and reply.answer.code is Code.NONE:
                self.own(self.syncs[reply.call], reply.answer)

    def _batch(self, records: list[Record]) -> bytes:
        if self._producer is None:
            return build_batch(records)
        return build_batch(records, producer_id=self._producer, producer_epoch=0, transactional=True)

    def own(self, sync: Sync, answer: SyncAnswer) -> None:
        """In one generation a partition has one owner, and one leader's word counts."""
        owned = self.owners.setdefault((sync.group_id, sync.generation), {})
        if not answer.assignment:
            return
        owner = sync.instance_id or sync.member_id
        assert owned.setdefault(answer.assignment, owner) == owner
        assert len({assignment.split(b"/")[0] for assignment in owned}) == 1

    def commit_in_transaction(self, command: TxnCommitOffsets, *, failing: Code | None) -> None:
        """Append what a producer commits in a batch of its own (TX-7), or have the log refuse that."""
        if self._held is not None:
            self.append()
        self._producer = command.producer_id
        self.hold()
        self.ask(command)
        if failing is None:
            self.append()
        else:
            self.fail(failing)
        self._producer = None

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Write a marker and tell the shard of it."""
        if self._held is not None:
            self.append()
        self.batches.append(
            build_marker(
                commit=commit,
                producer_id=producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp=self.now_ms,
            )
        )
        self.ask(EndTransaction(producer_id=producer_id, commit=commit))

    def replay(self, shard: Shard) -> None:
        for batch in self.batches:
            header = read_header(batch)
            if header.control:
                shard.end_transaction(header.producer_id, commit=read_marker(batch).commit)
            else:
                records = [(record.key or b"", record.value) for record in records_of(batch)]
                shard.load(records, self.now_ms, producer_id=header.producer_id)

    def replay_fast(self, shard: Shard) -> None:
        loader = Loader(shard)
        for batch in self.batches:
            for _ in loader.read(batch, self.now_ms):
                pass
        for _ in loader.settle(self.now_ms):
            pass

    # -- what the log refuses

    def hold(self) -> None:
        super().hold()
        self._held_before = snapshot(self.shard)

    def undone(self) -> None:
        assert snapshot(self.shard) == self._held_before, "what the log refused has left something behind"
        self._states = {group_id: group.state for group_id, group in self.shard.groups.items()}

    def fail(self, code: Code) -> list[Decision]:
        self._held_stored.clear()
        assert self._held is not None
        commands = list(self._held.commands)
        decisions = super().fail(code)
        for command in commands:
            group = self.shard.groups.get(getattr(command, "group_id", ""))
            if group is not None and isinstance(command, Sync) and command.member_id == group.leader:
                same = group.state is State.COMPLETING and group.generation == command.generation
                assert not same, "SG-12: a lost assignment sends everybody back"
        self.oracle.take_over(self.armed(), self.shard)
        return decisions

    def restarted(self) -> CheckedRig:
        other = super().restarted()
        assert isinstance(other, CheckedRig)
        other.batches, other.stored, other.owners = list(self.batches), self.stored, self.owners
        other.syncs, other.ids, other.shard._new_id = self.syncs, self.ids, other.new_id
        other.oracle = TimerOracle(self.settings)
        other.oracle.loaded(seen(other.shard), other.now_ms)
        other.check_timers()
        return other

    def naive_offsets(self) -> dict[tuple[str, str, int], int]:
        """Return what the log says is committed, by the rules of 3.3 once more (OM-1 to OM-4)."""
        stored: dict[Any, tuple[int, int]] = {}  # where in the log, and the offset
        pending: dict[int, dict[Any, tuple[int, int]]] = {}
        for place, batch in enumerate(self.batches):
            header = read_header(batch)
            if header.control:
                for key, later in pending.pop(header.producer_id, {}).items():
                    if read_marker(batch).commit and later > stored.get(key, (-1, -1)):
                        stored[key] = later
                continue
            for record in records_of(batch):
                key = read_key(record.key or b"")
                if not isinstance(key, OffsetCommitKey):
                    continue
                if record.value is None:
                    for table in (stored, *pending.values()):
                        table.pop(key, None)
                else:
                    table = stored if header.producer_id < 0 else pending.setdefault(header.producer_id, {})
                    table[key] = place, read_offset_value(record.value).offset
        return {tuple(key): offset for key, (_, offset) in stored.items()}

    def check_log(self) -> None:
        """A failover finds every offset, and every group as its last record left it (RB-11, LO-5)."""
        if self._checked == len(self.batches):
            return
        self._checked = len(self.batches)
        for replay in (self.replay, self.replay_fast):
            shard = Shard(settings=self.settings, new_id=lambda: "")
            replay(shard)
            assert offsets_of(shard) == offsets_of(self.shard)
            assert shard.pending.view() == self.shard.pending.view()
            assert self.naive_offsets() == {
                (group_id, topic, partition): stored.offset
                for group_id, table in offsets_of(shard).items()
                for topic, partitions in table.items()
                for partition, stored in partitions.items()
            }
            found = {group_id: stored_view(group) for group_id, group in shard.groups.items()}
            expected = {group_id: view for group_id, view in self.stored.items() if view != "removed"}
            assert found.keys() == expected.keys()
            for group_id, view in expected.items():
                if view is not None:
                    assert found[group_id] == view


def check_fenced(command: Any, decision: Decision, before: dict[str, Seen]) -> None:
    """Nobody but a member of the generation gets a yes; a commit may also be nobody's in particular."""
    answers = [reply.answer for reply in decision.replies if reply.call == command.call]
    codes = {code for answer in answers for code in (getattr(answer, "codes", None) or (code_of(answer),))}
    if not codes & {Code.NONE, Code.REBALANCE_IN_PROGRESS}:
        return
    if isinstance(command, CommitOffsets | TxnCommitOffsets) and command.generation < 0:
        return
    group = before[command.group_id]
    assert command.member_id in group.members
    assert command.generation == group.generation


def code_of(answer: Any) -> Code:
    """Return an answer's code; a commit of nothing has none, and is nobody's."""
    code = getattr(answer, "code", Code.UNKNOWN_MEMBER_ID)
    assert isinstance(code, Code)
    return code


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
        call = self.rig.call()
        command = a_sync(
            self.rig,
            member_id,
            shares(call, self.ids[: data.draw(st.integers(0, 6))]),
            group_id=group_id,
            call=call,
            instance_id=actor.instance_id,
            generation=self.a_generation(data, group_id),
            protocol_name=data.draw(st.sampled_from((None, None, None, "range", "sticky"))),
        )
        self.learn(actor, self.rig.ask(command).call)

    @rule(
        group_id=st.sampled_from(GROUPS),
        everybody=st.booleans(),
        leader_last=st.booleans(),
        phases=st.sampled_from((1, 1, 3)),
    )
    def go_on(self, group_id: str, everybody: bool, leader_last: bool, phases: int) -> None:
        """Bring a group on its way, a phase or three: whoever is missing acts, or the first of them."""
        for _ in range(phases):
            self.end_phase(group_id, everybody=everybody, leader_last=leader_last)

    @precondition(lambda self: self.settled())
    @rule(group_id=st.sampled_from(GROUPS), code=st.sampled_from((Code.MESSAGE_TOO_LARGE, Code.NONE)))
    def lose_the_assignment(self, group_id: str, code: Code) -> None:
        """Have the leader hand in what the log refuses."""
        group = self.rig.shard.groups.get(group_id)
        if group is None or group.state is not State.COMPLETING or not code:
            return
        self.rig.hold()
        self.step(group, group.members[group.leader or ""])
        self.rig.fail(code)

    def end_phase(self, group_id: str, *, everybody: bool, leader_last: bool) -> None:
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
            call = self.rig.call()
            given = shares(call, group.members) if member.member_id == group.leader else {}
            command = a_sync(
                self.rig,
                member.member_id,
                given,
                group_id=group.group_id,
                call=call,
                instance_id=member.instance_id,
            )
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
        stale = group.generation + data.draw(st.sampled_from((-1, 1)))
        commands: list[Command] = [
            a_heartbeat(self.rig, member.member_id, stale, group_id=group_id),
            a_commit(self.rig, member.member_id, stale, group_id=group_id),
            a_sync(self.rig, member.member_id, group_id=group_id, generation=stale),
            a_heartbeat(self.rig, member.member_id, group.generation, group_id=group_id),
            a_commit(self.rig, member.member_id, group.generation, group_id=group_id),
            a_sync(self.rig, member.member_id, group_id=group_id, instance_id=member.instance_id),
            known,
            Leave(group_id=group_id, call=self.rig.call(), members=leave, version=5),
        ]
        if member.instance_id is not None:
            back = a_join(self.rig, instance_id=member.instance_id, **terms)
            commands += [back] * 4
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
                    st.sampled_from(TOPIC_IDS),
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

    @rule(
        data=st.data(),
        who=st.integers(0, 5),
        group_id=st.sampled_from(GROUPS),
        alone=st.booleans(),
        producer_id=st.sampled_from(PRODUCERS),
        failing=st.sampled_from((None, None, None, Code.NOT_ENOUGH_REPLICAS)),
    )
    def commit_in_transaction(
        self,
        data: st.DataObject,
        who: int,
        group_id: str,
        alone: bool,
        producer_id: int,
        failing: Code | None,
    ) -> None:
        topics = data.draw(st.lists(st.sampled_from(TOPICS), min_size=1, max_size=2))
        command = TxnCommitOffsets(
            group_id=group_id,
            call=self.rig.call(),
            member_id="" if alone else self.an_id(data, self.actors[who]),
            instance_id=None,
            generation=-1 if alone else self.a_generation(data, group_id),
            producer_id=producer_id,
            producer_epoch=0,
            offsets=tuple(OffsetToCommit(topic, 0, data.draw(st.integers(0, 100))) for topic in topics),
        )
        self.rig.commit_in_transaction(command, failing=failing)

    @rule(producer_id=st.sampled_from(PRODUCERS), commit=st.booleans())
    def end_transaction(self, producer_id: int, commit: bool) -> None:
        self.rig.end_transaction(producer_id, commit=commit)

    # -- what administrators do

    @rule(data=st.data(), group_id=st.sampled_from(GROUPS), topic=st.sampled_from(TOPICS))
    def administer(self, data: st.DataObject, group_id: str, topic: str) -> None:
        call = self.rig.call()
        commands: list[Command] = [
            FetchOffsets(group_id=group_id, call=call, topics=None),
            FetchOffsets(group_id=group_id, call=call, topics=((topic, (0, 1)),), require_stable=True),
            FetchOffsets(
                group_id=group_id, call=call, topics=((topic, (0,)),), topic_ids={topic: UUID(int=2)}
            ),
            Describe(group_id=group_id, call=call),
            DeleteOffsets(group_id=group_id, call=call, partitions=((topic, 0), (topic, 1), (topic, 0))),
            DeleteGroup(group_id=group_id, call=call),
            TopicsDeleted(topics=(topic,)),
            TopicsDeleted(topics=(topic,), topic_ids={topic: UUID(int=1)}),
            CleanOffsets(),
            CleanOffsets(group_ids=tuple(self.rig.shard.groups)[:1]),
        ]
        self.rig.ask(data.draw(st.sampled_from(commands)))

    # -- what time and the log do

    @rule(span_ms=st.sampled_from((0, 1, 1, 500, 500, 3_000, 6_000, 60_000)))
    def pass_time(self, span_ms: int) -> None:
        self.rig.run_ms(span_ms)

    @rule(data=st.data(), group_id=st.sampled_from(GROUPS), kind=st.sampled_from(("join", "sync")))
    def ring_late(self, data: st.DataObject, group_id: str, kind: str) -> None:
        """A deadline that was moved or cleared while its event was under way (EX-7).

        One that is tried again (EX-8) is over by its phase's own time: a bell before that is no late one.
        """
        group = self.rig.shard.groups.get(group_id)
        armed = self.rig.deadlines.at((kind, group_id))
        due = None if group is None else group.join_due_ms if kind == "join" else group.sync_due_ms
        again = armed is not None and due is not None and armed > due
        if armed != self.rig.now_ms and not again:
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
        self.rig = self.rig.restarted()

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
    def nobody_waits_for_ever(self) -> None:
        for call in self.rig.waiting if hasattr(self, "rig") else ():
            assert self.rig.now_ms - self.rig.asked_ms[call] <= LONGEST_WAIT_MS

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
    max_examples=drawn(60),
    stateful_step_count=50,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
TestGroupMachine = pytest.mark.slow(GroupMachine.TestCase)
