"""The core's facts as records of `__transaction_state`, and those records as facts again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.coordinator.txn.facts import Fact, IdForgotten, TransactionLoaded
from coterie.coordinator.txn.model import NO_TIME, NUMBERS, STATES, State, Transaction
from coterie.wire.payloads.transaction_state import (
    PartitionsOfTopic,
    TransactionLogKey,
    TransactionLogValue,
    read_transaction_key,
    read_transaction_value,
    transaction_record,
)

if TYPE_CHECKING:
    from coterie.coordinator.txn.shard import Shard

RawRecord: TypeAlias = tuple[bytes, bytes | None]


def record_of(
    transactions: Mapping[str, Transaction], fact: Fact, *, wall_ahead_ms: int = 0
) -> tuple[RawRecord, ...]:
    """Return what a fact is written as, asked for right after it was applied; () for a volatile one."""
    if not fact.durable:
        return ()
    return (snapshot_of(transactions, fact.transactional_id, wall_ahead_ms=wall_ahead_ms),)


def snapshot_of(
    transactions: Mapping[str, Transaction], transactional_id: str, *, wall_ahead_ms: int
) -> RawRecord:
    """Return as what a transactional id is written now, gone or not."""
    txn = transactions.get(transactional_id)
    return transaction_record(transactional_id, None if txn is None else value_of(txn, wall_ahead_ms))


def value_of(txn: Transaction, wall_ahead_ms: int) -> TransactionLogValue:
    return TransactionLogValue(
        txn.producer_id,
        txn.epoch,
        txn.timeout_ms,
        NUMBERS[txn.state],
        None if txn.state is State.EMPTY else by_topic(txn.partitions),
        txn.updated_ms + wall_ahead_ms,
        dated(txn.started_ms, wall_ahead_ms),
        txn.previous_id,
        txn.next_id,
        txn.client_version,
    )


def dated(at_ms: int, wall_ahead_ms: int) -> int:
    """Return a time by the wall's clock; there may be none."""
    return NO_TIME if at_ms == NO_TIME else at_ms + wall_ahead_ms


def by_topic(partitions: Iterable[TopicPartition]) -> tuple[PartitionsOfTopic, ...]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return tuple(PartitionsOfTopic(topic, tuple(ids)) for topic, ids in topics.items())


def facts_of(shard: Shard, records: Iterable[RawRecord], now_ms: int) -> Iterable[Fact]:
    """Return what a piece of the log amounts to: of each transactional id its last record.

    Raises Corrupt where a key cannot be read, or a value that is the last. What has a type or version of a
    time to come is passed over and counted, as Kafka passes over it.
    """
    last: dict[str, bytes | None] = {}
    for raw_key, value in records:
        key = read_transaction_key(raw_key)
        if isinstance(key, TransactionLogKey):
            last[key.transactional_id] = value
        else:
            shard.skipped += 1
    for transactional_id, raw in last.items():
        if raw is not None:
            yield from loaded(shard, transactional_id, raw, now_ms)
        elif transactional_id in shard.transactions:
            yield IdForgotten(transactional_id)


def loaded(shard: Shard, transactional_id: str, raw: bytes, now_ms: int) -> Iterable[Fact]:
    value = read_transaction_value(raw)
    if value is None:
        shard.skipped += 1
        return
    if not 0 <= value.transaction_status < len(STATES):
        raise Corrupt(f"transactional id {transactional_id}", expected=f"a state of 0 to {len(STATES) - 1}")
    topics = value.transaction_partitions or ()
    ahead_ms = shard.wall_ahead_ms
    yield TransactionLoaded(
        Transaction(
            transactional_id,
            STATES[value.transaction_status],
            value.producer_id,
            value.producer_epoch,
            value.transaction_timeout,
            value.last_update_timestamp - ahead_ms,
            previous_id=value.previous_producer_id,
            next_id=value.next_producer_id,
            started_ms=min(dated(value.start_timestamp, -ahead_ms), now_ms),
            client_version=value.client_transaction_version,
            partitions=dict.fromkeys(TopicPartition(t.topic, n) for t in topics for n in t.partition_ids),
        )
    )
