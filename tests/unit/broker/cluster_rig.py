"""A broker that is one of several, without sockets, over an engine of the metadata that a test holds.

Who leads and what is in the logs is no part of it: topics are looked up and changed, and clients are told.
"""

from __future__ import annotations

from collections.abc import Callable
from types import GeneratorType
from typing import Any
from uuid import UUID

from coterie.base.ids import TopicPartition
from coterie.broker.cluster.changes import Change, Changed, NotChanged, RegisterBroker, Why
from coterie.broker.cluster.pretended import PretendedEngine
from coterie.broker.cluster.statements import ProducerIds, ReserveProducerIds
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.net.context import WAITS, Context
from coterie.broker.node import Node
from coterie.broker.runtime.leadership import ElectedLeaders, Led, NodeEndpoint
from coterie.broker.runtime.pieces import Pieces, straight_on
from coterie.broker.topics.cluster_topics import ClusterTopics
from coterie.broker.topics.producer_ids import ReservedProducerIds
from coterie.broker.topics.proposals import TopicProposals
from coterie.broker.topics.replica_proposals import ReplicaProposals
from coterie.storage.memory import MemoryStore
from coterie.wire.api.codec import decode_response, encode_response
from coterie.wire.api.entities import build, request_type
from unit.broker.rig import a_context

NOW_MS = 1_700_000_000_000
PROCESS = UUID(int=7)
PROPOSALS_MOST = 50  # of a test: whoever proposes without end is not to run without end
Answered = Callable[[Any], None]


class Asked:
    """A request, and its answer as it comes out of its bytes; None until it has come."""

    def __init__(self) -> None:
        self.answer: Any = None

    def take(self, context: Context, response: Any) -> None:
        """Take what a handler returns, or answers later."""
        if type(response) is GeneratorType:
            straight_on(self._collect(context, response))
        elif response is not WAITS:
            assert self.answer is None, "answered twice"
            frame = encode_response(1, response)
            self.answer = decode_response(response.__class__, frame[4:])[1]

    def _collect(self, context: Context, pieces: Any) -> Pieces[None]:
        self.take(context, (yield from pieces))


class ClusterRig:
    """Broker 1 of some that are registered, by their racks, with an engine; or another, of one that is there.

    What it proposes is done at once, and its image shows it before it has the answer, unless a test says
    otherwise: `meanwhile` is done before the next change, in which `fate` is called instead if there is one.
    """

    def __init__(
        self,
        *racks: str | None,
        node_id: int = 1,
        engine: PretendedEngine | None = None,
        moves_replicas: bool = True,
        **settings: object,
    ) -> None:
        texts = {name.replace("_", "."): str(value) for name, value in settings.items()}
        self.settings = BrokerSettings.of({"log.dirs": "data", "node.id": str(node_id), **texts})
        self.engine = engine or PretendedEngine()
        self.epochs = {
            broker_id: self.change(RegisterBroker(broker_id, PROCESS, 0, rack=rack))
            for broker_id, rack in enumerate((racks or (None, None, None)) if engine is None else (), 1)
        }
        self.proposed: list[Change] = []
        self.meanwhile: Callable[[], object] | None = None
        self.fate: Callable[[Change, Answered], None] | None = None
        self.reserving: list[Callable[[ProducerIds | None], None]] | None = None
        """Who waits for producer ids, where a test brings them; None where they come at once."""
        self.topics = ClusterTopics("the-cluster")
        self.leaders = ElectedLeaders(node_id)
        self.now_ms = NOW_MS
        self._moves_replicas = moves_replicas
        self._numbers = iter(range(1 << 20))
        self.node = self._a_node()
        self.hear()

    def _a_node(self) -> Node:
        return Node(
            settings=self.settings,
            topics=self.topics,
            store=MemoryStore.open(now_ms=NOW_MS, node_id=self.settings.node_id),
            clock=lambda: self.now_ms,
            call_soon=lambda act: act(),
            alarm=lambda at_ms: None,
            aside=lambda work, arguments, finish, computes: finish(work(*arguments)),
            leadership=self.leaders,
            topic_manager=TopicProposals(
                settings=self.settings,
                topics=self.topics,
                propose=self.propose,
                wall_ms=lambda: NOW_MS,
                new_uuid=lambda: UUID(int=7919 * next(self._numbers)),
            ),
            replica_changes=ReplicaProposals(topics=self.topics, propose=self.propose, software_level=2)
            if self._moves_replicas
            else None,
            producer_ids=ReservedProducerIds(self._reserve),
        )

    # -- the engine

    def change(self, change: Change) -> int:
        """Have somebody else change the metadata; return the version."""
        answer = self.engine.execute(change)
        assert isinstance(answer, Changed), answer
        return answer.version

    def propose(self, change: Change, answered: Answered) -> None:
        """Take what the broker proposes."""
        assert len(self.proposed) < PROPOSALS_MOST, "it proposes without end"
        self.proposed.append(change)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        fate, self.fate = self.fate, None
        (fate or self.carry_out)(change, answered)

    def carry_out(self, change: Change, answered: Answered) -> None:
        """Have the engine make a change or refuse it. A refusal may come before the news of why."""
        answer = self.engine.execute(change)
        assert isinstance(answer, Changed | NotChanged)
        if isinstance(answer, Changed):
            self.hear()
        answered(answer)

    def lose_answer(self, change: Change, answered: Answered) -> None:
        """Have the engine make a change, and nobody hear of it for now."""
        self.engine.execute(change)
        answered(None)

    def lose(self, change: Change, answered: Answered) -> None:
        """Have a change come to nothing, which nobody knows."""
        answered(None)

    def refuse(self, change: Change, answered: Answered) -> None:
        """Have the engine refuse a change for a reason of its own."""
        answered(NotChanged(Why.REFUSED, reason="permission denied (42501)"))

    def keep_locked(self, change: Change, answered: Answered) -> None:
        """Have somebody keep the engine from a change by a lock."""
        answered(NotChanged(Why.LOCKED, reason="a lock that somebody keeps: process 4711"))

    def hear(self) -> None:
        """Have the broker go by the metadata as it stands."""
        image = self.engine.image
        live = [NodeEndpoint(one, f"b{one}", 9092, image.brokers[one].rack) for one in image.unfenced]
        fenced = [
            NodeEndpoint(one, f"b{one}", 9092, row.rack)
            for one, row in image.brokers.items()
            if row.is_registered and one not in image.unfenced
        ]
        self.leaders.set_live(live, leaving=set(image.unfenced) - set(image.live), fenced=fenced)
        for row in image.all_partitions():
            topic = image.topic_by_id(row.topic_id)
            assert topic is not None
            self.leaders.elect(TopicPartition(topic.name, row.number), Led(row.leader, row.leader_epoch))
        self.topics.take(image)

    def _reserve(self, answered: Callable[[ProducerIds | None], None]) -> None:
        if self.reserving is None:
            self.bring(answered)
        else:
            self.reserving.append(answered)

    def bring(self, answered: Callable[[ProducerIds | None], None]) -> None:
        """Bring a block of producer ids."""
        answer = self.engine.execute(ReserveProducerIds())
        assert isinstance(answer, ProducerIds)
        answered(answer)

    # -- clients

    def begin(self, api_key: int, version: int, **fields: Any) -> Asked:
        """Return a request, answered or not."""
        asked = Asked()
        context = a_context(api_key, version, send=asked.take)
        handler = self.node.handlers[api_key, version]
        assert handler is not None
        asked.take(context, handler(context, build(request_type(api_key, version), **fields)))
        return asked

    def ask(self, api_key: int, version: int, **fields: Any) -> Any:
        """Return the answer to a request, which is there at once."""
        answer = self.begin(api_key, version, **fields).answer
        assert answer is not None, "it waits"
        return answer
