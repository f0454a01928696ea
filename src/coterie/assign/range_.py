"""The range assignor: for each topic, members in order get neighbouring partitions (5.3).

With racks, members first get partitions that have a replica near them; topics with the same members
and as many partitions are given out together, so that a member has the same numbers of each.
"""

from collections.abc import Callable, Sequence
from itertools import islice

from coterie.assign.model import (
    Assigned,
    Cluster,
    Member,
    in_order,
    racks_matter,
    subscribers_by_topic,
)
from coterie.base.ids import TopicPartition

__all__ = ["NAME", "assign"]

NAME = "range"

Fits = Callable[[Member, TopicPartition], bool]


class Topic:
    """One topic that is being given out: what is left, and how much each member may still get."""

    def __init__(self, name: str, members: Sequence[Member], cluster: Cluster) -> None:
        self.name, self.members = name, members
        partitions = cluster.partitions_of(name)
        self.partition_count = len(partitions)
        self.needs_racks = racks_matter(members, partitions, cluster)
        # A dict for its order and for taking things out of it cheaply.
        self.left = dict.fromkeys(partitions)
        self.given: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
        self._racks = cluster.racks
        self._base, self._extra = divmod(self.partition_count, len(members))

    def capacity(self, member: Member) -> int:
        """Return how many more partitions the member may get (RA-2)."""
        return max(0, self._base + (self._extra > 0) - len(self.given[member.member_id]))

    def near(self, member: Member, partition: TopicPartition) -> bool:
        """Return whether a replica is in the member's rack; a member without a rack is near all."""
        return member.rack is None or member.rack in self._racks.get(partition, ())

    def give(self, member: Member, partitions: Sequence[TopicPartition]) -> None:
        """Give partitions to a member. Who gets more than the base uses up one of the extra shares."""
        given = self.given[member.member_id]
        given += partitions
        self._extra -= len(given) > self._base
        for partition in partitions:
            del self.left[partition]

    def give_ranges(self, fits: Fits | None = None) -> None:
        """Let the members, in order, each take what it may of what is left and fits (RA-3, RA-6)."""
        for member in self.members:
            if not self.left:
                return
            fitting = (each for each in self.left if fits is None or fits(member, each))
            share = list(islice(fitting, self.capacity(member)))
            if share:
                self.give(member, share)


def assign(cluster: Cluster, members: Sequence[Member]) -> Assigned:
    """Return what every member gets, sorted by topic and partition."""
    subscribers = subscribers_by_topic(in_order(members), cluster)
    topics = [Topic(name, subscribers[name], cluster) for name in subscribers]
    if any(topic.needs_racks for topic in topics):
        give_near(topics)
    for topic in topics:
        topic.give_ranges()

    got: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
    for topic in topics:
        for member_id, given in topic.given.items():
            got[member_id] += given
    return {member_id: tuple(sorted(partitions)) for member_id, partitions in got.items()}


def give_near(topics: Sequence[Topic]) -> None:
    """Give out what is near somebody, topics of the same members and size together (RA-4)."""
    alike: dict[tuple[tuple[str, ...], int], list[Topic]] = {}
    for topic in topics:
        audience = tuple(member.member_id for member in topic.members)
        alike.setdefault((audience, topic.partition_count), []).append(topic)
    for group in alike.values():
        if len(group) > 1:
            give_near_together(group)
        elif group[0].needs_racks:
            group[0].give_ranges(group[0].near)


def give_near_together(topics: Sequence[Topic]) -> None:
    """Give each number of all topics to the first member that is near it and may have it in each (RA-5)."""
    hungry = list(topics[0].members)
    for number in range(topics[0].partition_count):
        taker = next((member for member in hungry if _may_take(member, number, topics)), None)
        if taker is None:
            continue
        for topic in topics:
            topic.give(taker, [TopicPartition(topic.name, number)])
        if not any(topic.capacity(taker) for topic in topics):
            hungry.remove(taker)


def _may_take(member: Member, number: int, topics: Sequence[Topic]) -> bool:
    return all(
        topic.capacity(member) and topic.near(member, TopicPartition(topic.name, number)) for topic in topics
    )
