"""What transactional ids answer, and the draft in which a decision about one is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.coordinator.machine import decision as machine
from coterie.coordinator.txn.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Producer, Transaction
from coterie.coordinator.txn.reasons import WHYS

if TYPE_CHECKING:
    from coterie.coordinator.txn.facts import EndPrepared
    from coterie.coordinator.txn.shard import Shard

NO_PRODUCER = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


# -- answers; the shell turns them into responses of the version that was asked


class ProducerAnswer(NamedTuple):
    """Of InitProducerId and EndTxn: who the client is from now on."""

    code: Code
    producer: Producer = NO_PRODUCER


class PartitionsAnswer(NamedTuple):
    """Of AddPartitions: one code for all of them."""

    code: Code


class VerifyAnswer(NamedTuple):
    """Of VerifyPartitions: a code for each partition of the command, in its order."""

    codes: tuple[Code, ...]


class DescribeAnswer(NamedTuple):
    """A transactional id as DescribeTransactions shows it; with an error Kafka leaves all at zero."""

    code: Code
    state: str = ""
    timeout_ms: int = 0
    started_ms: int = 0
    producer: Producer = Producer(0, 0)
    partitions: tuple[TopicPartition, ...] = ()


Answer: TypeAlias = ProducerAnswer | PartitionsAnswer | VerifyAnswer | DescribeAnswer


# -- the draft


class Draft(machine.Draft):
    """A decision about a transactional id in the making."""

    __slots__ = ()

    shard: Shard
    reasons = WHYS

    def settle(self, txn: Transaction, fact: EndPrepared) -> None:
        """Settle how a transaction ends, and have its markers written."""
        producer = Producer(txn.producer_id, fact.epoch)
        partitions = tuple(txn.partitions)
        self.apply(fact)
        self.markers += (
            machine.Markers(txn.transactional_id, producer, fact.commit, partitions, fact.client_version),
        )
