"""The roundrobin assignor: all partitions dealt out in turn, as cards are (5.4)."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain, cycle, islice

from coterie.assign.model import Assigned, Cluster, Member, audiences, in_order
from coterie.base.ids import TopicPartition

NAME = "roundrobin"


def assign(cluster: Cluster, members: Sequence[Member]) -> Assigned:
    """Return each member's partitions (AS-1). The turn goes on from topic to topic; racks play no part."""
    players = in_order(members)
    shares: list[list[TopicPartition]] = [[] for _ in players]
    turn = 0
    for topic, audience in audiences(players, cluster).items():
        partitions = cluster.partitions_of(topic)
        for player, partition in zip(from_turn(audience, turn, len(partitions)), partitions, strict=True):
            shares[player].append(partition)
        turn = player + 1
    got = {player.member_id: tuple(share) for player, share in zip(players, shares, strict=True)}
    return {member.member_id: got[member.member_id] for member in members}


def from_turn(audience: Sequence[int], turn: int, count: int) -> Iterator[int]:
    """Yield `count` members in turn: round the audience from the first whose place is not passed."""
    at = bisect_left(audience, turn)
    rest = islice(audience, at, None)
    return islice(chain(rest, cycle(audience)), count)
