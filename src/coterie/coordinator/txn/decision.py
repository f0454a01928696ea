"""What a command leads to: the facts, the answers, the deadlines, the markers to write, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.coordinator.txn.model import NOBODY, Producer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.coordinator.txn.facts import Fact
    from coterie.coordinator.txn.records import RawRecord

WakeKey: TypeAlias = tuple[str, ...]

NO_PRODUCER = Producer(NOBODY, NOBODY)


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


# -- the decision


class Reply(NamedTuple):
    """Who is answered, and what."""

    call: int
    answer: Answer


class Wake(NamedTuple):
    """A deadline to arm. When it is due the shell asks `Expire(key)`."""

    key: WakeKey
    at_ms: int


class Markers(NamedTuple):
    """The control records that end a transaction: one into each partition, then `MarkersWritten`.

    From `client_version` 2 on their epoch is newer than the transaction's, and a log may insist on it.
    """

    transactional_id: str
    producer: Producer
    commit: bool
    partitions: tuple[TopicPartition, ...]
    client_version: int


class Decision(NamedTuple):
    """What one command leads to. The shell applies, appends, arms, replies and marks; nothing else.

    `why` is the test's handle and the metric's label, a slug of `whys.py`. Neither `replies` nor `markers`
    leave before the facts are durable. `overdue` names transactional ids: for each, the shell asks
    `Expire((*key, id))` with the key of the command that has found it. `records` are those of the facts.
    """

    why: str
    facts: tuple[Fact, ...] = ()
    replies: tuple[Reply, ...] = ()
    wakes: tuple[Wake, ...] = ()
    markers: tuple[Markers, ...] = ()
    overdue: tuple[str, ...] = ()
    records: Sequence[RawRecord] = ()
