"""What an assignor is and what it is told: the members with what they want, and the partitions there are."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Protocol, TypeAlias

from coterie.base.ids import TopicPartition, partitions_of
from coterie.wire.payloads.consumer_protocol import Subscription

# What every member gets, those that get nothing included (AS-1).
Assigned: TypeAlias = dict[str, tuple[TopicPartition, ...]]

TOPICS_REMEMBERED = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member as the leader of the group sees it."""

    member_id: str
    instance_id: str | None = None
    subscription: Subscription

    @property
    def rack(self) -> str | None:
        """Return the rack that the member runs in, None if it says none."""
        return self.subscription.rack or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """How many partitions each topic has, and the racks of each partition's replicas where they are known."""

    partition_counts: Mapping[str, int]
    racks: Mapping[TopicPartition, frozenset[str]] = field(default_factory=dict)

    def partitions_of(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions of a topic in order; none if it is unknown."""
        return partitions_named(topic, self.partition_counts.get(topic, 0))


class RebalanceProtocol(Enum):
    """What members give up before they rejoin. A later one is preferred where all support it (CA-6)."""

    EAGER = 0
    """Everything."""
    COOPERATIVE = 1
    """Nothing; what has to move is withheld in one rebalance and given in the next."""


class Assignor(Protocol):
    """A way to share partitions out, and what a member has to say for it. An object serves one member.

    The leader of a group calls `assign`; every member calls the others: `user_data` before each JoinGroup,
    `on_assignment` after each SyncGroup that gave it something to do.
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
        """Return the user data of the member's subscription, for the leader's `assign`."""

    def assign(self, cluster: Cluster, members: Sequence[Member]) -> Mapping[str, tuple[TopicPartition, ...]]:
        """Return each member's partitions; members without any are included."""

    def on_assignment(self, partitions: Sequence[TopicPartition], *, generation: int, member_id: str) -> None:
        """Take note of what the member was given, and in which generation."""


@dataclass(frozen=True, slots=True)
class Stateless:
    """An eager assignor whose members have nothing to say for it and nothing to remember."""

    name: str
    share: Callable[[Cluster, Sequence[Member]], Assigned]
    protocols: tuple[RebalanceProtocol, ...] = (RebalanceProtocol.EAGER,)

    def user_data(
        self, *, topics: Sequence[str], owned: Sequence[TopicPartition], generation: int
    ) -> bytes | None:
        """Return nothing."""
        return None

    def assign(self, cluster: Cluster, members: Sequence[Member]) -> Assigned:
        """Return each member's partitions; members without any are included."""
        return self.share(cluster, members)

    def on_assignment(self, partitions: Sequence[TopicPartition], *, generation: int, member_id: str) -> None:
        """Remember nothing."""


@lru_cache(maxsize=TOPICS_REMEMBERED)
def partitions_named(topic: str, count: int) -> tuple[TopicPartition, ...]:
    """Return the first `count` partitions of a topic. A leader asks for the same ones again and again."""
    return tuple(partitions_of(topic, range(count)))


def sorted_by(name: Callable[[Member], str], members: Iterable[Member]) -> list[Member]:
    """Return the members by their names as Java sorts these: it compares UTF-16 units, not characters."""
    listed = list(members)
    if all(map(str.isascii, map(name, listed))):
        return sorted(listed, key=name)
    return sorted(listed, key=lambda member: name(member).encode("utf-16-be", "surrogatepass"))


def in_order(members: Sequence[Member]) -> list[Member]:
    """Return the members in Kafka's order: static ones by instance id, then the rest by member id (AS-2)."""
    static = [member for member in members if member.instance_id is not None]
    dynamic = [member for member in members if member.instance_id is None]
    by_instance = sorted_by(attrgetter("instance_id"), static)
    return by_instance + sorted_by(attrgetter("member_id"), dynamic)


def audiences(members: Sequence[Member], cluster: Cluster) -> dict[str, Sequence[int]]:
    """Return the members, by their places, that want each topic that has partitions, by its name."""
    there = {topic for topic, count in cluster.partition_counts.items() if count > 0}
    lists = {member.subscription.topics for member in members}
    if len(lists) == 1:
        return dict.fromkeys(sorted(there.intersection(*lists)), range(len(members)))
    wanted: dict[str, list[int]] = {topic: [] for topic in sorted(there.intersection(chain(*lists)))}
    known = {listed: there.intersection(listed) for listed in lists}
    for place, member in enumerate(members):
        for topic in known[member.subscription.topics]:
            wanted[topic].append(place)
    return dict(wanted)


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
