"""A node that is a member of a cluster over an engine: its parts, put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from coterie.broker.cluster.member import ClusterMember
from coterie.broker.hosting import HostingParts, NodeHosting
from coterie.broker.node import Node, nothing
from coterie.broker.runtime.leadership import ElectedLeaders
from coterie.broker.runtime.pieces import Pieces, straight_on
from coterie.broker.topics.cluster_topics import ClusterTopics
from coterie.broker.topics.producer_ids import ReservedProducerIds
from coterie.broker.topics.proposals import TopicProposals
from coterie.broker.topics.replica_proposals import ReplicaProposals

if TYPE_CHECKING:
    from coterie.broker.cluster.changes import Change, Proposed
    from coterie.broker.cluster.engine import MetadataEngine
    from coterie.broker.cluster.lifecycle import BrokerLifecycle
    from coterie.broker.cluster.statements import ProducerIds
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.interbroker.sender import Connect
    from coterie.broker.runtime.cleaner import WorksBeside
    from coterie.storage.remote.store import RemoteStore


class ClusteredNode:
    """The node, its membership, and what connects them.

    `clock` and `wall` return milliseconds, the first of a clock that never goes back; `alarm` has `ring`
    called at a time, `arm` has `member.tick`. `exit_with` ends the process, and says why; `serving` is called
    whenever a broker epoch has begun and the others know of it, or some time later.
    """

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        cluster_id: str,
        engine: MetadataEngine,
        lifecycle: BrokerLifecycle,
        store: RemoteStore,
        listener: str,
        clock: Callable[[], int],
        wall: Callable[[], int] | None = None,
        call_soon: Callable[[Callable[[], None]], object],
        alarm: Callable[[int], None],
        arm: Callable[[int | None], None],
        aside: WorksBeside,
        work: Callable[[Pieces[None]], None] = straight_on,
        new_uuid: Callable[[], UUID],
        connect: Connect | None = None,
        exit_with: Callable[[str], None],
        serving: Callable[[], None] = nothing,
    ) -> None:
        """`listener` names the one that clients use; `connect` opens connections to other brokers."""
        self.store = store
        self.topics = ClusterTopics(cluster_id, new_uuid=new_uuid)
        self.leaders = ElectedLeaders(settings.node_id)
        self.node = Node(
            settings=settings,
            topics=self.topics,
            store=store,
            clock=clock,
            wall=wall,
            call_soon=call_soon,
            alarm=alarm,
            aside=aside,
            work=work,
            new_uuid=new_uuid,
            leadership=self.leaders,
            when_writable=store.ask,
            connect=connect,
            topic_manager=TopicProposals(
                settings=settings,
                topics=self.topics,
                propose=self._propose,
                wall_ms=wall or clock,
                new_uuid=new_uuid,
            ),
            replica_changes=self._replica_changes(lifecycle.level),
            producer_ids=ReservedProducerIds(self._reserve_producer_ids),
        )
        self.hosting = NodeHosting(
            self.node.parts(HostingParts), store, listener=listener, exit_with=exit_with
        )
        self.member = ClusterMember(
            lifecycle, engine, self.hosting, clock=clock, arm=arm, serving=serving, cluster_id=cluster_id
        )
        self.hosting.member = self.member
        store.listener = self.hosting
        self.node.look_at_clock = self.member.look_at_clock

    def start(self) -> None:
        """Begin to be a member, and to keep house."""
        self.node.start()
        self.member.begin()

    def ring(self) -> None:
        """Look at the clock, and do what is due. Where the broker may not serve any more it is suspended by
        then: what is due answers that others may lead.
        """
        self.member.look_at_clock()
        self.node.purgatory.expire(self.node.clock.now_ms())

    def _replica_changes(self, level: int) -> ReplicaProposals:
        return ReplicaProposals(topics=self.topics, propose=self._propose, software_level=level)

    def _propose(self, change: Change, answered: Proposed) -> None:
        self.member.propose(change, answered)

    def _reserve_producer_ids(self, answered: Callable[[ProducerIds | None], None]) -> None:
        self.member.reserve_producer_ids(answered)
