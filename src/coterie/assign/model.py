"""What an assignor is told: the members with what they want, and the partitions there are."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeAlias

from coterie.base.ids import TopicPartition
from coterie.wire.consumer import Subscription

__all__ = [
    "Assigned",
    "Assignor",
    "Cluster",
    "Member",
    "RebalanceProtocol",
    "in_order",
    "racks_matter",
    "subscribers_by_topic",
]

# What every member gets, those that get nothing included (AS-1).
Assigned: TypeAlias = dict[str, tuple[TopicPartition, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member as the leader of the group sees it."""

    member_id: str
    instance_id: str | None = None
    subscription: Subscription

    @property
    def rack(self) -> str | None:
        """Return where the member runs, if it says."""
        return self.subscription.rack or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """How many partitions each topic has, and the racks of each partition's replicas where they are known."""

    partition_counts: Mapping[str, int]
    racks: Mapping[TopicPartition, frozenset[str]] = field(default_factory=dict)

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic in order; none if it is unknown."""
        return [TopicPartition(topic, number) for number in range(self.partition_counts.get(topic, 0))]


class RebalanceProtocol(Enum):
    """What members give up before they rejoin. A later one is preferred where all support it (CA-6)."""

    EAGER = 0
    """Everything."""
    COOPERATIVE = 1
    """Nothing; what has to move is withheld in one rebalance and given in the next."""


class Assignor(Protocol):
    """A way to share partitions out, and what a member has to say for it. An object serves one member.

    The leader of a group calls `assign`; every member calls the others: `user_data` before each JoinGroup,
    `on_assignment` after each SyncGroup.
    """

    @property
    def name(self) -> str:
        """What goes over the wire; all members of a group must know it."""

    @property
    def protocols(self) -> tuple[RebalanceProtocol, ...]:
        """The rebalance protocols that its assignments keep to."""

    def user_data(
        self, *, topics: Sequence[str], owned: Sequence[TopicPartition], generation: int
    ) -> bytes | None:
        """Return what the member's subscription shall carry for the leader's `assign`."""

    def assign(self, cluster: Cluster, members: Sequence[Member]) -> Mapping[str, tuple[TopicPartition, ...]]:
        """Return what every member gets, those that get nothing included."""

    def on_assignment(self, partitions: Sequence[TopicPartition], *, generation: int, member_id: str) -> None:
        """Take note of what the member was given, and in which generation."""


def in_order(members: Iterable[Member]) -> list[Member]:
    """Return the members in Kafka's order: static ones by instance id, then the rest by member id (AS-2)."""
    return sorted(members, key=_place)


def _place(member: Member) -> tuple[bool, bytes]:
    """Return what sorts as Java sorts: it compares UTF-16 units, not characters."""
    name = member.member_id if member.instance_id is None else member.instance_id
    return member.instance_id is None, name.encode("utf-16-be", "surrogatepass")


def subscribers_by_topic(members: Sequence[Member], cluster: Cluster) -> dict[str, list[Member]]:
    """Return who wants each topic that has partitions: topics by name, members in the order given."""
    wanted: dict[str, list[Member]] = {}
    for member in members:
        for topic in dict.fromkeys(member.subscription.topics):
            wanted.setdefault(topic, []).append(member)
    return {topic: wanted[topic] for topic in sorted(wanted) if cluster.partition_counts.get(topic, 0) > 0}


def racks_matter(members: Iterable[Member], partitions: Sequence[TopicPartition], cluster: Cluster) -> bool:
    """Return whether racks tell partitions apart for these members (AS-3).

    Not if no member is in a rack of a partition, nor if every partition is in all racks.
    """
    homes = {member.rack for member in members if member.rack is not None}
    if not homes or not cluster.racks:
        return False
    racks = [cluster.racks.get(partition, frozenset()) for partition in partitions]
    everywhere = frozenset().union(*racks)
    return not homes.isdisjoint(everywhere) and any(some != everywhere for some in racks)
