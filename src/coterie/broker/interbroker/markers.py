"""WriteTxnMarkers to other brokers: the ends of transactions, to whoever leads what they have written to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.interbroker.lives import epochs_of
from coterie.broker.interbroker.sender import Senders, taken_together
from coterie.broker.runtime.leadership import why_absent
from coterie.broker.runtime.markers import TransactionEnd
from coterie.wire.api.apis import APIS, ApiKey
from coterie.wire.api.entities import build, entity, request_type

if TYPE_CHECKING:
    from coterie.broker.interbroker.sender import SenderParts
    from coterie.broker.runtime.leadership import Leadership
    from coterie.broker.runtime.markers import MarkerWriter
    from coterie.broker.topics.catalog import TopicCatalog

VERSION = APIS[ApiKey.WRITE_TXN_MARKERS].most


class MarkerElsewhere(NamedTuple):
    """A marker to be written elsewhere; `deliver` is called once."""

    watched: TopicPartition
    end: TransactionEnd
    deliver: Callable[[Code], None]


class MarkerRequests:
    """Markers as requests: several transactions together, partition by partition answered."""

    name = "markers"
    waits = True  # a transaction may have thousands, all of which would be asked again 20 times a second

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    def cut(self, gathered: deque[MarkerElsewhere]) -> tuple[Any, Sequence[MarkerElsewhere]]:
        """Take markers for one request: of a producer one end, and of that each partition once.

        They are answered by producer and partition, and in no other way told apart.
        """
        ends: dict[int, TransactionEnd] = {}
        keys: set[tuple[int, TopicPartition]] = set()

        def added_by(marker: MarkerElsewhere) -> int | None:
            producer_id = marker.end.producer_id
            key = producer_id, marker.watched
            if ends.setdefault(producer_id, marker.end) != marker.end or key in keys:
                return None
            keys.add(key)
            return 1

        taken = taken_together(gathered, added_by)
        return _request(ends, taken), taken

    def suffix(self, asked: Sequence[MarkerElsewhere]) -> str:
        """Return the leader epochs that the markers are meant for."""
        return f"-{epochs_of((marker.watched for marker in asked), self._leadership)}"

    def answered(self, asked: Sequence[MarkerElsewhere], response: Any | None) -> None:
        """Deliver to each marker its code. One of which nothing is said may be written or not."""
        codes: dict[tuple[int, str, int], Code] = {}
        for result in () if response is None else response.markers:
            for topic in result.topics:
                for one in topic.partitions:
                    codes[result.producer_id, topic.name, one.partition_index] = Code(one.error_code)
        for marker in asked:
            key = marker.end.producer_id, *marker.watched
            marker.deliver(codes.get(key, Code.NETWORK_EXCEPTION))


def _request(ends: dict[int, TransactionEnd], taken: Sequence[MarkerElsewhere]) -> Any:
    topics: dict[int, dict[str, list[int]]] = {producer_id: {} for producer_id in ends}
    for (topic, partition), end, _ in taken:
        topics[end.producer_id].setdefault(topic, []).append(partition)
    marker_type = entity("write_txn_markers", VERSION, "WritableTxnMarker")
    topic_type = entity("write_txn_markers", VERSION, "WritableTxnMarkerTopic")
    markers = tuple(
        build(
            marker_type,
            producer_id=end.producer_id,
            producer_epoch=end.producer_epoch,
            coordinator_epoch=end.coordinator_epoch,
            transaction_result=end.commit,
            transaction_version=end.transaction_version,
            topics=tuple(
                build(topic_type, name=name, partition_indexes=tuple(partitions))
                for name, partitions in topics[end.producer_id].items()
            ),
        )
        for end in ends.values()
    )
    return build(request_type(ApiKey.WRITE_TXN_MARKERS, VERSION), markers=markers)


class TransactionMarkers:
    """The way of a coordinator's markers: into a log of this broker, or to the broker that leads."""

    def __init__(
        self, senders: SenderParts, *, topics: TopicCatalog, leadership: Leadership, local: MarkerWriter
    ) -> None:
        self._topics = topics
        self._leadership = leadership
        self._local = local
        self.senders: Senders[MarkerElsewhere] = Senders(senders, MarkerRequests(leadership))

    def write(self, watched: TopicPartition, end: TransactionEnd, deliver: Callable[[Code], None]) -> None:
        """End a producer's transaction in one partition; `deliver` is called once, at once or later.

        It gets UNKNOWN_TOPIC_OR_PARTITION by what this broker knows itself: another's metadata may be older,
        so that what it says of the partition is to be asked again, as its silence is.
        """
        gone = why_absent(self._topics, self._leadership, *watched) is Code.UNKNOWN_TOPIC_OR_PARTITION
        if gone or self._leadership.leads(*watched):
            self._local.write(watched, end, deliver)
            return
        leader = self._leadership.leader_of(*watched)
        if leader is None:
            deliver(Code.NOT_LEADER_OR_FOLLOWER)
            return

        def answered(code: Code) -> None:
            unknown = code is Code.UNKNOWN_TOPIC_OR_PARTITION
            deliver(Code.NOT_LEADER_OR_FOLLOWER if unknown else code)

        self.senders.send(leader, MarkerElsewhere(watched, end, answered))
