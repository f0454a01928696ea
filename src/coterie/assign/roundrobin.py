"""The roundrobin assignor: all partitions dealt out in turn, as cards are (5.4)."""

from collections.abc import Sequence

from coterie.assign.model import Assigned, Cluster, Member, in_order, subscribers_by_topic
from coterie.base.ids import TopicPartition

__all__ = ["NAME", "assign"]

NAME = "roundrobin"


def assign(cluster: Cluster, members: Sequence[Member]) -> Assigned:
    """Return what every member gets. The turn carries over from topic to topic; racks play no part."""
    got: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
    players = in_order(members)
    turn = 0
    for topic, subscribers in subscribers_by_topic(players, cluster).items():
        wants = {member.member_id for member in subscribers}
        for partition in cluster.partitions_of(topic):
            # Ends within a round: somebody wants the topic, or it would not be here.
            while players[turn].member_id not in wants:
                turn = (turn + 1) % len(players)
            got[players[turn].member_id].append(partition)
            turn = (turn + 1) % len(players)
    return {member_id: tuple(partitions) for member_id, partitions in got.items()}
