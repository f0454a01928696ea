"""The members of a generation and what they had: a group's record, read down to its members' payloads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from coterie.base.errors import Corrupt
from coterie.base.ids import ShortNames, TopicPartition
from coterie.history.log.records import Entry
from coterie.wire.payloads.consumer_offsets import GroupMetadataValue, MemberMetadata
from coterie.wire.payloads.consumer_protocol import PROTOCOL_TYPE, Assignment, Subscription

NOTHING: frozenset[TopicPartition] = frozenset()


class StoredMember(NamedTuple):
    """A member in a generation. What cannot be read is None; `owned` is what it still held when it joined."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    session_ms: int
    rebalance_ms: int
    topics: frozenset[str] | None
    owned: frozenset[TopicPartition]
    assigned: frozenset[TopicPartition]
    distinct_name: str | None = None
    """Its short name, where others of its group have its client id, too."""

    @property
    def who(self) -> tuple[str, str]:
        """Return the client id and host: they stay when a client is started again in its place."""
        return self.client_id, self.host

    @property
    def name(self) -> str:
        """Return the name that stays when its client is started again."""
        return self.instance_id or self.client_id or self.member_id

    @property
    def short_name(self) -> str:
        """Return the name that people read (`coterie.base.ids.ShortNames`)."""
        return self.distinct_name or self.name


class Formed(NamedTuple):
    """A generation as it was stored, or stored again: a static replacement does that."""

    place: int
    written_ms: int
    formed_ms: int
    generation: int
    protocol_type: str
    protocol: str | None
    leader: str | None
    members: Mapping[str, StoredMember]
    counts: Mapping[str, int]
    """How many partitions each topic has at least: as the highest of them says that has an owner."""

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """Return all that has an owner."""
        return NOTHING.union(*(member.assigned for member in self.members.values()))


def formed(entry: Entry) -> Formed:
    """Return the generation that a group's record stores."""
    value = entry.value
    assert isinstance(value, GroupMetadataValue)
    ours = value.protocol_type == PROTOCOL_TYPE
    members = {member.member_id: stored_member(member, ours) for member in value.members}
    at_ms = value.current_state_timestamp
    return Formed(
        entry.place,
        entry.at_ms,
        at_ms if at_ms > 0 else entry.at_ms,
        value.generation,
        value.protocol_type,
        value.protocol,
        value.leader,
        members,
        counts_of(members.values()),
    )


def named(records: Sequence[Formed | None]) -> list[Formed | None]:
    """Return a group's records with short names that tell its members apart."""
    names = ShortNames(record.members.values() for record in records if record is not None)
    return [record and record._replace(members=named_members(record.members, names)) for record in records]


def named_members(members: Mapping[str, StoredMember], names: ShortNames) -> Mapping[str, StoredMember]:
    """Return the same members where their names tell them apart already."""
    if all(names.of(member_id) == one.name for member_id, one in members.items()):
        return members
    return {member_id: one._replace(distinct_name=names.of(member_id)) for member_id, one in members.items()}


def counts_of(members: Iterable[StoredMember]) -> dict[str, int]:
    found: dict[str, int] = {}
    for member in members:
        for topic, numbers in numbers_by_topic(member.assigned):
            if found.get(topic, 0) <= numbers[-1]:
                found[topic] = numbers[-1] + 1
    return found


def stored_member(member: MemberMetadata, ours: bool) -> StoredMember:
    """Return a member as its group's record has it. Payloads of other protocol types (Connect has one) are
    not looked into.
    """
    topics, owned = subscribed(member.subscription) if ours else (None, NOTHING)
    rebalance_ms = member.rebalance_timeout
    return StoredMember(
        member.member_id,
        member.client_id,
        member.client_host,
        member.group_instance_id,
        member.session_timeout,
        rebalance_ms if rebalance_ms >= 0 else member.session_timeout,
        topics,
        owned,
        assigned(member.assignment) if ours else NOTHING,
    )


@lru_cache(8192)
def subscribed(data: bytes) -> tuple[frozenset[str] | None, frozenset[TopicPartition]]:
    """Return topics and what is still owned, or None for what cannot be read."""
    try:
        found = Subscription.decode(data)
    except Corrupt:
        return None, NOTHING
    return frozenset(found.topics), frozenset(found.owned)


@lru_cache(8192)
def numbers_by_topic(partitions: frozenset[TopicPartition]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return each topic with its partitions' numbers, sorted. A group has the same shares again and again."""
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(partition)
    return tuple((topic, tuple(numbers)) for topic, numbers in found.items())


@lru_cache(8192)
def assigned(data: bytes) -> frozenset[TopicPartition]:
    """Return the partitions of an assignment, none if it cannot be read."""
    try:
        return frozenset(Assignment.decode(data).partitions)
    except Corrupt:
        return NOTHING
