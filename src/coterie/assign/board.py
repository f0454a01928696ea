"""A group as numbers: members, topics and partitions by their places in sorted lists.

The sticky assignors look at each partition many times; numbers in lists keep that cheap.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise, repeat
from operator import attrgetter

from coterie.assign.model import Assigned, Cluster, Member, partitions_named, racks_matter, sorted_by
from coterie.base.ids import TopicPartition

UNASSIGNED = -1
UNWANTED = (0, 0)


class Board:
    """Who wants what. Members are numbered by member id, topics by name, partitions by topic and number."""

    def __init__(self, cluster: Cluster, members: Sequence[Member]) -> None:
        self.listed = members
        self.members = sorted_by(attrgetter("member_id"), members)
        there = frozenset(topic for topic, count in cluster.partition_counts.items() if count > 0)
        lists = {member.subscription.topics for member in members}
        self.all_want_the_same = all(set(one) == set(other) for one, other in pairwise(lists))
        """Whether all members name the same topics (SK-7, but a list without any is one like the others)."""
        known = {listed: there.intersection(listed) for listed in lists}
        self.wants = [known[member.subscription.topics] for member in self.members]
        """The topics that each member wants and that have partitions (AS-1)."""
        self.topics = sorted(frozenset().union(*known.values()))
        counts = [cluster.partition_counts[topic] for topic in self.topics]
        self.starts = list(accumulate(counts, initial=0))
        """The number of each topic's first partition, and at the end how many partitions there are."""
        self.spans = dict(zip(self.topics, zip(self.starts, counts, strict=False), strict=True))
        self.near = Nearness.of(self, cluster)

    @property
    def size(self) -> int:
        """How many partitions there are to give."""
        return self.starts[-1]

    def partitions_of(self, topic: int) -> range:
        """Return the partitions of a topic."""
        return range(self.starts[topic], self.starts[topic + 1])

    def topic_of(self, partition: int) -> int:
        """Return the topic of a partition."""
        return bisect_right(self.starts, partition) - 1

    def crowds(self) -> list[int]:
        """Return the number of members that want each topic. Many name the same topics, in the same words."""
        crowds = dict.fromkeys(self.topics, 0)
        for listed, many in Counter(member.subscription.topics for member in self.members).items():
            for topic in crowds.keys() & listed:
                crowds[topic] += many
        return [*crowds.values()]

    def members_that_want(self, topic: int) -> list[int]:
        """Return the members that want a topic, by member id."""
        name = self.topics[topic]
        return [member for member, wanted in enumerate(self.wants) if name in wanted]

    def wanted(self, partition: int, member: int) -> bool:
        """Whether the member wants the partition's topic."""
        return self.topics[self.topic_of(partition)] in self.wants[member]

    def by_number(self, partition: int) -> tuple[int, int]:
        """Return a sort key: by the partition's number within the topic, then by topic (CS-1)."""
        topic = self.topic_of(partition)
        return partition - self.starts[topic], topic

    def numbers_of(self, topic: str, listed: Iterable[int]) -> list[int]:
        """Return the existing ones of a topic's partitions, none if nobody may get them (SK-5)."""
        start, count = self.spans.get(topic, UNWANTED)
        return [start + number for number in listed if 0 <= number < count]

    def numbers_in(self, partitions: Iterable[TopicPartition]) -> list[int]:
        """Return the numbers of those partitions that somebody may get (SK-5)."""
        span_of = self.spans.get
        return [
            start + number
            for topic, number in partitions
            for start, count in (span_of(topic, UNWANTED),)
            if 0 <= number < count
        ]

    def topic_names(self) -> list[str]:
        """Return the topic of each partition."""
        counts = (stop - start for start, stop in pairwise(self.starts))
        return list(chain.from_iterable(map(repeat, self.topics, counts)))

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions in the order of their numbers."""
        counts = (stop - start for start, stop in pairwise(self.starts))
        return list(chain.from_iterable(map(partitions_named, self.topics, counts)))

    def assigned(self, owners: Sequence[int]) -> Assigned:
        """Return each member's partitions, sorted; `owners` has the owner of each partition, or nobody."""
        shares: list[list[TopicPartition]] = [[] for _ in range(len(self.members) + 1)]
        take = [share.append for share in shares]
        for partition, owner in zip(self.partitions(), owners, strict=True):
            take[owner](partition)  # what is nobody's gathers at the end of the list
        places = {member.member_id: place for place, member in enumerate(self.members)}
        return {member.member_id: tuple(shares[places[member.member_id]]) for member in self.listed}


class Nearness:
    """Which partitions have a replica in the rack of which member, where racks tell them apart (AS-3)."""

    def __init__(self, homes: list[str | None], racks: list[frozenset[str]]) -> None:
        self.homes, self.racks = homes, racks
        self._crowds = Counter(home for home in homes if home is not None)

    @classmethod
    def of(cls, board: Board, cluster: Cluster) -> "Nearness | None":
        """Return the nearness, None where racks do not matter."""
        partitions = board.partitions() if cluster.racks else []
        if not racks_matter(board.members, partitions, cluster):
            return None
        racks = [cluster.racks.get(partition, frozenset()) for partition in partitions]
        return cls([member.rack for member in board.members], racks)

    def fits(self, member: int, partition: int) -> bool:
        """Whether a replica is in the member's rack; a member without a rack is near to all."""
        home = self.homes[member]
        return home is None or home in self.racks[partition]

    def shares_rack(self, member: int, partition: int) -> bool:
        """Whether the member has a rack and a replica is in it."""
        return self.homes[member] in self.racks[partition]

    def hardest_first(self, partitions: Iterable[int]) -> list[int]:
        """Return the partitions, those with the fewest members in their racks first."""
        return sorted(partitions, key=lambda each: sum(self._crowds[rack] for rack in self.racks[each]))
