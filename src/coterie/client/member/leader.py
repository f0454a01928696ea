"""The leader's work: who wants what, and who gets what (behaviours 4.7)."""

from collections.abc import Mapping

from coterie.assign.model import Assignor, Cluster, RebalanceProtocol
from coterie.assign.model import Member as Subscriber
from coterie.base.errors import Corrupt, CoterieError
from coterie.base.ids import TopicPartition
from coterie.client.member.requests import Joined
from coterie.wire.payloads.consumer_protocol import Assignment, Subscription

BUILT_IN = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
View = tuple[frozenset[str], ...]
"""A topic as a leader sees it: the racks of each partition, empty where they do not matter (CP-9)."""


class BadAssignment(CoterieError):
    """The assignor did what its protocol does not allow. The member rejoins; mend the assignor."""


def view_of(cluster: Cluster, *, racks: bool) -> dict[str, View]:
    """Return each topic as a member compares it; with `racks`, where its replicas are matters too (CP-9)."""
    no_racks: frozenset[str] = frozenset()
    if not racks:
        return {topic: (no_racks,) * count for topic, count in cluster.partition_counts.items()}
    return {
        topic: tuple(cluster.racks.get(one, no_racks) for one in cluster.partitions_of(topic))
        for topic in cluster.partition_counts
    }


class Leadership:
    """One generation that this member leads."""

    def __init__(self, joined: Joined, assignor: Assignor, protocol: RebalanceProtocol) -> None:
        self.assignor, self.protocol = assignor, protocol
        self.skip = joined.skip_assignment
        self.subscribers = [
            Subscriber(member_id=member_id, instance_id=instance_id, subscription=subscription_of(data))
            for member_id, instance_id, data in joined.members
        ]
        self.topics = frozenset(topic for one in self.subscribers for topic in one.subscription.topics)
        self.given: Mapping[str, tuple[TopicPartition, ...]] | None = None

    def assign(self, cluster: Cluster) -> None:
        """Give out what there is, once. Another assignor may add topics that nobody named (CA-5).

        A static leader that came back finds its group assigned already (CA-3).
        """
        if self.given is not None:
            return
        if self.skip:
            self.given = {}
            return
        self.given = self.assignor.assign(cluster, self.subscribers)
        if self.assignor.name not in BUILT_IN:
            self._check_moves(self.given)
            self.topics |= {one.topic for share in self.given.values() for one in share}

    def _check_moves(self, given: Mapping[str, tuple[TopicPartition, ...]]) -> None:
        """Refuse to give away what its owner has not given up yet (CA-4)."""
        if self.protocol is not RebalanceProtocol.COOPERATIVE:
            return
        before = {one.member_id: frozenset(one.subscription.owned) for one in self.subscribers}
        added: set[TopicPartition] = set()
        revoked: set[TopicPartition] = set()
        for member_id, share in given.items():
            added |= set(share) - before.get(member_id, frozenset())
            revoked |= before.get(member_id, frozenset()) - set(share)
        if added & revoked:
            moved = ", ".join(map(str, sorted(added & revoked)))
            raise BadAssignment(
                f"assignor {self.assignor.name} is cooperative and gives {moved} to new owners"
                " before the old ones have given them up"
            )

    @property
    def encoded(self) -> Mapping[str, bytes]:
        """The assignments by member id, as SyncGroup carries them."""
        return {
            member_id: Assignment(partitions=tuple(share)).encode()
            for member_id, share in (self.given or {}).items()
        }


def subscription_of(data: bytes) -> Subscription:
    """Return a member's subscription; bytes that cannot be read are none of a leader's to refuse."""
    try:
        return Subscription.decode(data)
    except Corrupt:
        return Subscription(topics=())
