"""The range assignor: for each topic, members in order get neighbouring partitions (5.3).

With racks, members first get partitions that have a replica near them; topics with the same members
and as many partitions are given out together, so that a member has the same numbers of each.
"""

from collections.abc import Callable, Sequence
from itertools import islice

from coterie.assign.model import Assigned, Cluster, Member, audiences, in_order, racks_matter
from coterie.base.ids import TopicPartition

NAME = "range"

Fits = Callable[[int, TopicPartition], bool]


def assign(cluster: Cluster, members: Sequence[Member]) -> Assigned:
    """Return each member's partitions, sorted by topic and partition (RA-7, RA-8; AS-1).

    A static member's place among the others is its instance id's, and so are its ranges (RA-9).
    """
    players = in_order(members)
    shares: list[list[TopicPartition]] = [[] for _ in players]
    wanted = audiences(players, cluster)
    topics = {name: Topic(name, wanted[name], players, cluster) for name in wanted} if cluster.racks else {}
    if any(topic.needs_racks for topic in topics.values()):
        give_near(list(topics.values()))
        for topic in topics.values():
            topic.give_ranges()
            for player, given in topic.given.items():
                shares[player] += sorted(given)
    else:
        for name, audience in wanted.items():
            share_out(cluster.partitions_of(name), audience, shares)
    got = {player.member_id: tuple(share) for player, share in zip(players, shares, strict=True)}
    return {member.member_id: got[member.member_id] for member in members}


def share_out(
    partitions: Sequence[TopicPartition], audience: Sequence[int], shares: Sequence[list[TopicPartition]]
) -> None:
    """Give a topic's partitions in neighbouring ranges, the first ones longer by one (RA-1, RA-3)."""
    base, extra = divmod(len(partitions), len(audience))
    at = 0
    for player in audience if base else audience[:extra]:
        stop = at + base + (extra > 0)
        extra -= 1
        shares[player] += partitions[at:stop]
        at = stop


class Topic:
    """One topic that is given out by racks: what is left, and how much each member may still get."""

    def __init__(
        self, name: str, audience: Sequence[int], players: Sequence[Member], cluster: Cluster
    ) -> None:
        self.name, self.audience = name, audience
        partitions = cluster.partitions_of(name)
        self.partition_count = len(partitions)
        self.needs_racks = racks_matter([players[player] for player in audience], partitions, cluster)
        # A dict for its order and for taking things out of it cheaply.
        self.left = dict.fromkeys(partitions)
        self.given: dict[int, list[TopicPartition]] = {player: [] for player in audience}
        self._homes = [player.rack for player in players]
        self._racks = cluster.racks
        self._base, self._extra = divmod(self.partition_count, len(audience))

    def capacity(self, player: int) -> int:
        """Return the number of partitions that the member may still get (RA-2)."""
        return max(0, self._base + (self._extra > 0) - len(self.given[player]))

    def near(self, player: int, partition: TopicPartition) -> bool:
        """Return whether a replica is in the member's rack; a member without a rack is near all."""
        home = self._homes[player]
        return home is None or home in self._racks.get(partition, ())

    def give(self, player: int, partitions: Sequence[TopicPartition]) -> None:
        """Give partitions to a member. Who gets more than the base uses up one of the extra shares."""
        given = self.given[player]
        given += partitions
        self._extra -= len(given) > self._base
        for partition in partitions:
            del self.left[partition]

    def give_ranges(self, fits: Fits | None = None) -> None:
        """Let the members, in order, each take what it may of what is left and fits (RA-3, RA-6, RA-7)."""
        for player in self.audience:
            if not self.left:
                return
            fitting = (each for each in self.left if fits is None or fits(player, each))
            share = list(islice(fitting, self.capacity(player)))
            if share:
                self.give(player, share)


def give_near(topics: Sequence[Topic]) -> None:
    """Give out what is near somebody, topics of the same members and size together (RA-4)."""
    by_audience: dict[tuple[tuple[int, ...], int], list[Topic]] = {}
    for topic in topics:
        by_audience.setdefault((tuple(topic.audience), topic.partition_count), []).append(topic)
    for group in by_audience.values():
        if len(group) > 1:
            give_near_together(group)
        elif group[0].needs_racks:
            group[0].give_ranges(group[0].near)


def give_near_together(topics: Sequence[Topic]) -> None:
    """Give each number of all topics to the first member that is near it and may have it in each (RA-5)."""
    hungry = list(topics[0].audience)
    for number in range(topics[0].partition_count):
        taker = next((player for player in hungry if _may_take(player, number, topics)), None)
        if taker is None:
            continue
        for topic in topics:
            topic.give(taker, [TopicPartition(topic.name, number)])
        if not any(topic.capacity(taker) for topic in topics):
            hungry.remove(taker)


def _may_take(player: int, number: int, topics: Sequence[Topic]) -> bool:
    return all(
        topic.capacity(player) and topic.near(player, TopicPartition(topic.name, number)) for topic in topics
    )
