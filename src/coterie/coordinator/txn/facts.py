"""What happened. State moves by these and by nothing else; `apply.py` says how.

Each durable fact is written to `__transaction_state` as the transactional id that it leaves (`records.py`).
They are made once and never changed; frozen dataclasses would take three times as long to make.
"""

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from coterie.base.ids import TopicPartition
from coterie.coordinator.txn.model import Producer, Transaction


@dataclass(slots=True)
class ProducerInitialized:
    """A producer has the transactional id for itself, no transaction open. Whoever had it is fenced."""

    durable: ClassVar[bool] = True
    transactional_id: str
    producer: Producer
    last_epoch: int
    timeout_ms: int
    at_ms: int


@dataclass(slots=True)
class PartitionsAdded:
    """The transaction, begun with this if none was open, reaches into these partitions."""

    durable: ClassVar[bool] = True
    transactional_id: str
    partitions: tuple[TopicPartition, ...]
    client_version: int
    at_ms: int


@dataclass(slots=True)
class EndPrepared:
    """How the transaction ends is settled: from here on only markers are missing.

    They carry `epoch`. `next_id` follows where it is the last one of its producer id.
    """

    durable: ClassVar[bool] = True
    transactional_id: str
    commit: bool
    epoch: int
    last_epoch: int
    next_id: int
    client_version: int
    started_ms: int
    at_ms: int


@dataclass(slots=True)
class EndCompleted:
    """Every marker is written."""

    durable: ClassVar[bool] = True
    transactional_id: str
    at_ms: int


@dataclass(slots=True)
class IdForgotten:
    """Nobody has used the transactional id for long, and it is removed."""

    durable: ClassVar[bool] = True
    transactional_id: str


@dataclass(slots=True)
class TransactionLoaded:
    """The log's last word on a transactional id. It replaces what was known of it."""

    durable: ClassVar[bool] = False
    transaction: Transaction

    @property
    def transactional_id(self) -> str:
        return self.transaction.transactional_id


Fact: TypeAlias = (
    ProducerInitialized | PartitionsAdded | EndPrepared | EndCompleted | IdForgotten | TransactionLoaded
)
