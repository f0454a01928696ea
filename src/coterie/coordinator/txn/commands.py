"""What may be asked of a transactional id, a time-out included, and what it answers. Both are data.

`call` is a number of the shell's making for one request that wants an answer; the core only hands it back.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.coordinator.txn.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Producer

NO_PRODUCER = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerId:
    """InitProducerId: fence whoever used the id before, and get a producer id and epoch of one's own.

    `expected` is what a producer that goes on after an error believes to be (KIP-360).
    """

    transactional_id: str
    call: int
    timeout_ms: int
    expected: Producer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """AddPartitionsToTxn, AddOffsetsToTxn, and the joining that Produce and TxnOffsetCommit imply (KIP-890).

    `client_version` is the transaction.version that the client goes by, as far as the request shows it.
    """

    transactional_id: str
    call: int
    producer: Producer
    partitions: tuple[TopicPartition, ...]
    client_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPartitions:
    """Ask whether these are in the transaction, changing nothing (KIP-890, part 1)."""

    transactional_id: str
    call: int
    producer: Producer
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """EndTxn: commit or abort. From `client_version` 2 on the epoch is bumped on the way (KIP-890)."""

    transactional_id: str
    call: int
    producer: Producer
    commit: bool
    client_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersWritten:
    """Every partition of a transaction that is being ended has its marker."""

    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Describe:
    """DescribeTransactions for one transactional id."""

    transactional_id: str
    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire:
    """A deadline that a `Timer` of this key set is due, or what a look at all has found overdue."""

    key: tuple[str, ...]


Command: TypeAlias = (
    InitProducerId | AddPartitions | VerifyPartitions | EndTransaction | MarkersWritten | Describe | Expire
)


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
