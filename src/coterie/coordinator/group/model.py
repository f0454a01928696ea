"""A group, its members, and what can be read off them. Nothing here changes them: `apply.py` does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import TypeAlias

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.base.reasons import mark
from coterie.coordinator.group.facts import StoredOffset
from coterie.wire.payloads.consumer_protocol import read_topics_v0

CONSUMER = "consumer"  # the one protocol type whose metadata a coordinator may read (CG-10)

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
Roll: TypeAlias = tuple[tuple[str, str | None, bytes], ...]
OffsetTable: TypeAlias = dict[str, dict[int, StoredOffset]]


@unique
class State(Enum):
    """The five states of a classic group, by the names that ListGroups shows (LS-5)."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"

    def __str__(self) -> str:
        return self.value


@dataclass(slots=True)
class Member:
    """One member. `join_call`, `sync_call`: its parked requests. `order`: how early it joined."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    order: int
    group_id: str
    assignment: bytes = b""
    join_call: int | None = None
    sync_call: int | None = None
    is_new: bool = False
    # What was written of a static member, and from what: `records` may write the same again.
    written: tuple[tuple[object, ...], bytes] | None = field(default=None, compare=False, repr=False)

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for a protocol; b"" for one that it does not name."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    @property
    def session_key(self) -> tuple[str, str, str]:
        """The name of its session's deadline. Kept, it would take as much memory as the member."""
        return ("session", self.group_id, self.member_id)

    @property
    def satisfied(self) -> bool:
        """Whether the session cannot run out now: a parked member, unless new, cannot heartbeat (CG-4)."""
        return not self.is_new and (self.join_call is not None or self.sync_call is not None)


@dataclass(slots=True)
class Group:
    """One classic group. Which member leads is the earliest one that can; Kafka leaves it to hash order."""

    group_id: str
    state: State
    previous_state: State = State.DEAD
    since_ms: int | None = None
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)  # the earliest first
    static: dict[str, str] = field(default_factory=dict)  # instance id -> member id (CG-9)
    pending: dict[str, int] = field(default_factory=dict)  # promised member id -> session timeout
    pending_sync: set[str] = field(default_factory=set)
    supporters: dict[str, int] = field(default_factory=dict)  # protocol -> how many members name it (CG-6)
    awaiting_join: int = 0
    new_member_added: bool = False
    join_due_ms: int | None = None
    delay_ms: int = 0
    remaining_ms: int = 0
    sync_due_ms: int | None = None
    next_order: int = 0
    # What the members said when the generation began: CG-10 reads it when somebody asks, and not before.
    subscriptions: tuple[bytes, ...] | None = None
    _topics: tuple[tuple[bytes, ...], frozenset[str] | None] | None = field(
        default=None, compare=False, repr=False
    )

    @property
    def initial(self) -> bool:
        """Whether the group waits out the initial delay: nothing but its end completes the join (ID-5)."""
        return self.state is State.PREPARING and self.previous_state is State.EMPTY

    @property
    def all_joined(self) -> bool:
        """Whether every member's JoinGroup is parked and no promised id is outstanding (CG-3)."""
        return self.awaiting_join == len(self.members) and not self.pending

    def in_order(self) -> list[Member]:
        """Return the members, the earliest first."""
        return list(self.members.values())

    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout of any member (CG-5)."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return whether a member with these protocols fits in: one of them is common to all."""
        if self.state is State.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        everybody = len(self.members)
        for name, _ in protocols:  # noqa: SIM110 - a generator takes twice as long
            if self.supporters.get(name, 0) == everybody:
                return True
        return False

    def candidates(self) -> set[str]:
        """Return the protocols that every member names (PV-1)."""
        everybody = len(self.members)
        return {name for name, count in self.supporters.items() if count == everybody}

    def current_member(self, member_id: str, instance_id: str | None, generation: int) -> Member | None:
        """Return the member of this generation that is meant; None if there is none, or it was replaced."""
        if instance_id is not None and self.static.get(instance_id) != member_id:
            return None
        return self.members.get(member_id) if generation == self.generation else None

    def refusal(self, member_id: str, instance_id: str | None) -> Code:
        """Return why this is no member of the group, NONE if it is one.

        The instance id is looked at first.
        """
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is None:
                return Code.UNKNOWN_MEMBER_ID
            if current != member_id:
                return Code.FENCED_INSTANCE_ID
        return Code.NONE if member_id in self.members else Code.UNKNOWN_MEMBER_ID

    def roll(self) -> Roll:
        """Return the members as the leader gets them: id, instance id, metadata (JG-25, RB-10)."""
        protocol = self.protocol
        return tuple((m.member_id, m.instance_id, m.metadata(protocol)) for m in self.in_order())

    def topics(self) -> frozenset[str] | None:
        """Return the topics that this generation subscribes to, None if they are not known (CG-10)."""
        if self.subscriptions is None:
            return None
        if self._topics is None or self._topics[0] is not self.subscriptions:
            self._topics = (self.subscriptions, topics_of(self.subscriptions))
        return self._topics[1]

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether some member reads the topic. A consumer group that cannot say reads everything."""
        topics = self.topics()
        return self.protocol_type == CONSUMER if topics is None else topic in topics


def stranger_why(group: Group, refusal: Code, instance_id: str | None) -> str:
    """Return the why of a refusal that `Group.refusal` made."""
    if refusal is Code.FENCED_INSTANCE_ID:
        return "fenced-instance"
    unmapped = instance_id is not None and instance_id not in group.static
    return "unknown-instance" if unmapped else "unknown-member"


def topics_of(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Return the union of the topics, None if one of the subscriptions is not one."""
    topics: set[str] = set()
    try:
        for subscription in subscriptions:
            topics.update(read_topics_v0(subscription))
    except Corrupt:
        mark("subscription-unreadable")
        return None
    mark("subscriptions-read")
    return frozenset(topics)


def offset_of(
    table: Mapping[str, Mapping[int, StoredOffset]], topic: str, partition: int
) -> StoredOffset | None:
    """Return the offset that is stored for a partition, None if none is."""
    by_partition = table.get(topic)
    return None if by_partition is None else by_partition.get(partition)
