"""AddPartitionsToTxn to other brokers: partitions that join a transaction, or that are to be in it (KIP-890).

Who leads a partition asks the transaction's coordinator before it takes a batch. Named after Kafka's
AddPartitionsToTxnManager.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.base.codes import Code
from coterie.base.hashes import coordinator_partition
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import TRANSACTIONS_TOPIC
from coterie.broker.interbroker.sender import Senders, taken_together
from coterie.wire.api.apis import APIS, ApiKey
from coterie.wire.api.entities import build, entity, request_type

if TYPE_CHECKING:
    from coterie.broker.interbroker.sender import SenderParts
    from coterie.broker.runtime.transactions import TransactionCoordinator
    from coterie.broker.topics.catalog import TopicCatalog

VERSION = APIS[ApiKey.ADD_PARTITIONS_TO_TXN].most
# What a coordinator says among brokers, as whoever writes expects it. A broker that may not ask has no better
# word for a producer than Kafka's; what another partition has kept out is to be asked again.
OF_WRITER = {
    Code.PRODUCER_FENCED: Code.INVALID_PRODUCER_EPOCH,
    Code.CLUSTER_AUTHORIZATION_FAILED: Code.INVALID_TXN_STATE,
    Code.OPERATION_NOT_ATTEMPTED: Code.NETWORK_EXCEPTION,
}
FIRST_PAUSE_MS = 2

Deliver = Callable[[Mapping[TopicPartition, Code]], None]


class Question(NamedTuple):
    """What a coordinator is asked about one transaction; `deliver` is called once."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    wanted: tuple[TopicPartition, ...]
    add: bool
    deliver: Deliver

    def refuse(self, code: Code) -> None:
        """Answer all partitions with one code."""
        self.deliver(dict.fromkeys(self.wanted, OF_WRITER.get(code, code)))


class PartitionRequests:
    """Questions as requests: several transactions together."""

    name = "partitions"
    waits = False  # the producer tries again, and may be told of another leader

    def cut(self, gathered: deque[Question]) -> tuple[Any, Sequence[Question]]:
        """Take questions for one request: about a transaction one, by whose id it is answered."""
        about: set[str] = set()

        def added_by(question: Question) -> int | None:
            if question.transactional_id in about:
                return None
            about.add(question.transactional_id)
            return len(question.wanted)

        taken = taken_together(gathered, added_by)
        transactions = tuple(map(_transaction, taken))
        return build(request_type(ApiKey.ADD_PARTITIONS_TO_TXN, VERSION), transactions=transactions), taken

    def suffix(self, asked: Sequence[Question]) -> str:
        """Return nothing: a question that comes late is about its own epoch of the producer."""
        return ""

    def answered(self, asked: Sequence[Question], response: Any | None) -> None:
        """Deliver to each question its codes. What nothing is said about is not allowed, and asked again."""
        code = Code.NETWORK_EXCEPTION if response is None else Code(response.error_code)
        if response is None or code:
            for question in asked:
                question.refuse(code)
            return
        results = {one.transactional_id: one.topic_results for one in response.results_by_transaction}
        for question in asked:
            codes = {
                TopicPartition(topic.name, one.partition_index): Code(one.partition_error_code)
                for topic in results.get(question.transactional_id, ())
                for one in topic.results_by_partition
            }
            found = ((one, codes.get(one, Code.NETWORK_EXCEPTION)) for one in question.wanted)
            question.deliver({one: OF_WRITER.get(code, code) for one, code in found})


def _transaction(question: Question) -> Any:
    topics: dict[str, list[int]] = {}
    for topic, partition in question.wanted:
        topics.setdefault(topic, []).append(partition)
    topic_type = entity("add_partitions_to_txn", VERSION, "AddPartitionsToTxnTopic")
    return build(
        entity("add_partitions_to_txn", VERSION, "AddPartitionsToTxnTransaction"),
        transactional_id=question.transactional_id,
        producer_id=question.producer_id,
        producer_epoch=question.producer_epoch,
        verify_only=not question.add,
        topics=tuple(
            build(topic_type, name=name, partitions=tuple(partitions)) for name, partitions in topics.items()
        ),
    )


class TransactionPartitions:
    """The way of a leader's questions: to this broker's own coordinator, or to the broker that has it."""

    def __init__(
        self,
        senders: SenderParts,
        *,
        topics: TopicCatalog,
        load_transactions: Callable[[], TransactionCoordinator],
    ) -> None:
        self.parts = senders
        self._topics = topics
        self._load_transactions = load_transactions
        self.senders: Senders[Question] = Senders(senders, PartitionRequests())

    def partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        wanted: Sequence[TopicPartition],
        *,
        add: bool,
        deliver: Deliver,
    ) -> None:
        """Join partitions to a producer's transaction, or ask whether they are in it (KIP-890).

        `deliver` is called once, maybe before this returns. A coordinator that nobody reaches has allowed
        nothing: NETWORK_EXCEPTION, or COORDINATOR_NOT_AVAILABLE while there is none.
        """
        asked = (transactional_id, producer_id, producer_epoch, tuple(wanted), add)
        if add:
            JoiningElsewhere(self, asked, deliver).ask()
        else:
            self.ask(Question(*asked, deliver))

    def ask(self, question: Question) -> None:
        """Ask the coordinator, wherever it is, once."""
        topic = self._topics.get(TRANSACTIONS_TOPIC)
        leadership, partition = self.parts.leadership, -1
        if topic is not None:
            partition = coordinator_partition(question.transactional_id, partition_count=topic.partitions)
        if topic is None or leadership.leads(TRANSACTIONS_TOPIC, partition):
            transactional_id, producer_id, epoch, wanted, add, deliver = question
            local = self._load_transactions()
            local.partitions(transactional_id, producer_id, epoch, wanted, add=add, deliver=deliver)
            return
        coordinator = leadership.leader_of(TRANSACTIONS_TOPIC, partition)
        if coordinator is None:
            question.refuse(Code.COORDINATOR_NOT_AVAILABLE)
        else:
            self.senders.send(coordinator, question)


class JoiningElsewhere:
    """Partitions that join, asked for again while the end of the transaction before is under way.

    A coordinator here waits for that end itself; another answers at once, and is asked again, as Kafka's is.
    Most ends take some milliseconds, so the first pauses are shorter than those of
    `add.partitions.to.txn.retry.backoff.ms`.
    """

    def __init__(
        self,
        transactions: TransactionPartitions,
        asked: tuple[str, int, int, tuple[TopicPartition, ...], bool],
        deliver: Deliver,
    ) -> None:
        self._transactions, self._deliver = transactions, deliver
        self._question = Question(*asked, self._answered)
        settings = transactions.parts.settings
        most_ms = min(settings.add_partitions_to_txn_retry_backoff_max_ms, settings.request_timeout_ms)
        self._until_ms = transactions.parts.clock.now_ms() + most_ms
        self._pause_ms = FIRST_PAUSE_MS

    def ask(self) -> None:
        """Ask whoever is the coordinator by now."""
        self._transactions.ask(self._question)

    def _answered(self, codes: Mapping[TopicPartition, Code]) -> None:
        parts = self._transactions.parts
        now_ms = parts.clock.now_ms()
        if now_ms < self._until_ms and set(codes.values()) == {Code.CONCURRENT_TRANSACTIONS}:
            pause_ms = min(self._pause_ms, parts.settings.add_partitions_to_txn_retry_backoff_ms)
            self._pause_ms *= 2
            parts.purgatory.arm(self, now_ms + pause_ms, lambda *_: self.ask())
        else:
            self._deliver(codes)
