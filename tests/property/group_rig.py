"""The smallest shell of the group core: it applies, logs, keeps deadlines, and notes who was answered what.

A log is a list, time is a number, and `fail` is a log that refuses. Builders start with `a_`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

from shard_rig import Asked, Pending, ShardRig

from coterie.base.codes import Code
from coterie.coordinator.group.commands import (
    CleanOffsets,
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    Describe,
    Expire,
    FetchOffsets,
    Heartbeat,
    Join,
    Leave,
    Leaver,
    OffsetToCommit,
    Sync,
)
from coterie.coordinator.group.model import Group
from coterie.coordinator.group.settings import GroupSettings
from coterie.coordinator.group.shard import Shard
from coterie.coordinator.machine import Decision
from coterie.wire.payloads.consumer_protocol import Subscription

SESSION_MS, REBALANCE_MS = 45_000, 300_000


def a_subscription(*topics: str) -> bytes:
    return Subscription(topics=topics or ("flights",)).encode(version=0)


def protocols(*names: str, metadata: bytes | None = None) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, a_subscription() if metadata is None else metadata) for name in names)


RANGE = protocols("range")


class Rig(ShardRig[Decision, Pending]):
    """Drives one shard of groups."""

    expire = Expire
    pending = Pending
    shard: Shard

    def __init__(self, **settings: int) -> None:
        settings.setdefault("initial_rebalance_delay_ms", 3_000)
        uuids = count(1)
        self.settings = GroupSettings(**settings)
        self.shard = Shard(settings=self.settings, new_id=lambda: f"uuid{next(uuids)}")
        self.dropped: set[int] = set()
        super().__init__(now_ms=0)

    # -- the shell

    def _carry_out(self, decision: Decision, pending: Pending) -> None:
        self.whys.append(decision.why)
        assert bool(decision.records) == any(fact.durable for fact in decision.facts)
        pending.records.extend(decision.records)
        pending.replies.extend(decision.replies)
        for call in decision.dropped:
            self.dropped.add(call)
        for timer in decision.timers:
            self._set(timer)

    def undone(self) -> None:
        """A batch that the log refused has been undone."""

    def replay(self, shard: Shard) -> None:
        """Have a shard load what the log holds."""
        shard.load(self.log, self.now_ms)

    def _release(self, pending: Pending) -> None:
        super()._release(pending)
        assert self.dropped <= self.waiting
        self.waiting -= self.dropped
        self.dropped.clear()

    def fail(self, code: Code) -> list[Decision]:
        """Have the log refuse the batch; return what the core says of each of its commands."""
        held = self._let_go()
        self.dropped.clear()
        self.shard.undo_to(self._mark)
        self.undone()
        decisions, pending = [], Pending()
        for command in held.commands:
            with self._watched() as before:
                decision = self.shard.append_failed(command, code, self.now_ms, before)
            self._carry_out(decision, pending)
            decisions.append(decision)
        self._release(pending)
        return decisions

    def restarted(self) -> Rig:
        """Return a rig whose shard has loaded this one's log."""
        other = type(self)()
        other.settings = self.settings
        other.shard = Shard(settings=self.settings, new_id=self.shard._new_id)
        other.now_ms, other.log, other._calls = self.now_ms, list(self.log), self._calls
        self.replay(other.shard)
        other._carry_out(other.shard.loaded(other.now_ms), Pending())
        return other

    # -- asking

    def answer(self, asked: Asked) -> Any:
        return self.answers.get(asked.call)

    @property
    def group(self) -> Group:
        return self.shard.groups["g"]

    def join(self, name: str = "c", **terms: Any) -> Asked:
        return self.ask(a_join(self, name, **terms))

    def sync(self, member_id: str, assignments: dict[str, bytes] | None = None, **terms: Any) -> Asked:
        return self.ask(a_sync(self, member_id, assignments, **terms))

    def beat(self, member_id: str, generation: int | None = None, **terms: Any) -> Any:
        """Ask a Heartbeat and return its code."""
        if generation is None:
            generation = self.group.generation
        asked = self.ask(a_heartbeat(self, member_id, generation, **terms))
        return self.answers[asked.call].code

    def leave(self, *leavers: Leaver | str, group_id: str = "g", version: int = 5) -> Asked:
        members = tuple(Leaver(m, None, None) if isinstance(m, str) else m for m in leavers)
        return self.ask(Leave(group_id=group_id, call=self.call(), members=members, version=version))

    def commit(self, member_id: str = "", generation: int = -1, **terms: Any) -> Asked:
        return self.ask(a_commit(self, member_id, generation, **terms))

    def fetch(self, *partitions: tuple[str, int], group_id: str = "g", **terms: Any) -> Any:
        """Ask for partitions, for all if none is named, and return the answer."""
        topics: Any = None
        if partitions:
            by_topic: dict[str, list[int]] = {}
            for topic, partition in partitions:
                by_topic.setdefault(topic, []).append(partition)
            topics = tuple((topic, tuple(numbers)) for topic, numbers in by_topic.items())
        command = FetchOffsets(group_id=group_id, call=self.call(), topics=topics, **terms)
        return self.answers[self.ask(command).call]

    def committed(self, topic: str = "flights", partition: int = 0, group_id: str = "g") -> int:
        """Return the committed offset, -1 if there is none."""
        return self.fetch((topic, partition), group_id=group_id).partitions[0].offset

    def delete_offsets(self, *partitions: tuple[str, int], group_id: str = "g") -> Any:
        command = DeleteOffsets(group_id=group_id, call=self.call(), partitions=partitions)
        return self.answers[self.ask(command).call]

    def describe(self, group_id: str = "g") -> Any:
        return self.answers[self.ask(Describe(group_id=group_id, call=self.call())).call]

    def delete(self, group_id: str = "g") -> Any:
        return self.answers[self.ask(DeleteGroup(group_id=group_id, call=self.call())).call].code

    def clean(self) -> Asked:
        return self.ask(CleanOffsets())


# -- commands


def a_join(rig: Rig, name: str = "c", **terms: Any) -> Join:
    """A JoinGroup of a consumer that knows range."""
    defaults: dict[str, Any] = {
        "group_id": "g",
        "call": rig.call(),
        "member_id": "",
        "instance_id": None,
        "client_id": name,
        "client_host": "/127.0.0.1",
        "protocol_type": "consumer",
        "protocols": RANGE,
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": REBALANCE_MS,
        "version": 9,
    }
    return Join(**(defaults | terms))


def a_sync(rig: Rig, member_id: str, assignments: dict[str, bytes] | None = None, **terms: Any) -> Sync:
    group_id = terms.get("group_id", "g")
    group = rig.shard.groups.get(group_id)
    defaults: dict[str, Any] = {
        "group_id": group_id,
        "call": rig.call(),
        "member_id": member_id,
        "instance_id": None,
        "generation": 1 if group is None else group.generation,
        "protocol_type": None,
        "protocol_name": None,
        "assignments": tuple((assignments or {}).items()),
        "version": 5,
    }
    return Sync(**(defaults | terms))


def a_heartbeat(rig: Rig, member_id: str, generation: int, **terms: Any) -> Heartbeat:
    defaults: dict[str, Any] = {
        "group_id": "g",
        "call": rig.call(),
        "member_id": member_id,
        "instance_id": None,
        "generation": generation,
    }
    return Heartbeat(**(defaults | terms))


def a_commit(rig: Rig, member_id: str = "", generation: int = -1, **terms: Any) -> CommitOffsets:
    """An OffsetCommit of flights-0 at 42, by nobody in particular unless told."""
    defaults: dict[str, Any] = {
        "group_id": "g",
        "call": rig.call(),
        "member_id": member_id,
        "instance_id": None,
        "generation": generation,
        "version": 9,
        "offsets": (OffsetToCommit("flights", 0, 42),),
    }
    return CommitOffsets(**(defaults | terms))


# -- groups


def a_preparing_group(rig: Rig, *names: str, **terms: Any) -> list[Asked]:
    """Members whose JoinGroups are parked in the initial delay, under ids of their own (version 3)."""
    return [rig.join(name, **({"version": 3} | terms)) for name in names or ("a", "b")]


def a_completing_group(rig: Rig, *names: str, static: tuple[str, ...] = (), **terms: Any) -> dict[str, str]:
    """A group whose join phase has ended; return its member ids by name. The first one named leads."""
    asked = {}
    for name in names or ("a", "b"):
        instance_id = f"i-{name}" if name in static else None
        asked[name] = rig.join(name, **({"version": 3, "instance_id": instance_id} | terms))
    while rig.group.initial:
        next_ms = rig.deadlines.at(("join", "g"))
        assert next_ms is not None
        rig.run_to(next_ms)
    return {name: rig.answer(one).member_id for name, one in asked.items()}


def a_stable_group(rig: Rig, *names: str, static: tuple[str, ...] = (), **terms: Any) -> dict[str, str]:
    """A group at work; each member's assignment is "for NAME"."""
    ids = a_completing_group(rig, *names, static=static, **terms)
    leader = rig.group.leader
    assert leader is not None
    for member_id in ids.values():
        if member_id != leader:
            rig.sync(member_id)
    rig.sync(leader, {member_id: f"for {name}".encode() for name, member_id in ids.items()})
    return ids


def a_simple_group(rig: Rig) -> None:
    """A group that only its commits tell of."""
    rig.commit()


def session_of(rig: Rig, member_id: str) -> int | None:
    """Return when a member's session, or a promised id, runs out."""
    return rig.deadlines.at(("session", "g", member_id))


def a_copy(command: Any, **changes: Any) -> Any:
    return replace(command, **changes)
