"""The core's facts as records of `__transaction_state`, and those records as facts again.

And what a coordinator no longer knows after a loss of power, and the logs of the partitions still do:
`__transaction_state` may have lost its end where they have kept theirs. An epoch that was given out already
would let a new transaction pass for an old one, and what is open in a log and unknown to the coordinator
would never end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.coordinator.machine import RawRecord
from coterie.coordinator.txn.apply import IDLE
from coterie.coordinator.txn.facts import Fact, IdForgotten, TransactionLoaded
from coterie.coordinator.txn.model import (
    BUMPS_EPOCH_SINCE,
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    NO_TIME,
    NUMBERS,
    STATES,
    State,
    Transaction,
)
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


def record_of(
    transactions: Mapping[str, Transaction], fact: Fact, *, wall_ahead_ms: int = 0
) -> tuple[RawRecord, ...]:
    """Return the record of a fact, asked for right after it was applied; () for a volatile one."""
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
    """Return the facts of a piece of the log: of each transactional id its last record.

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


# -- what the logs of the partitions still know


def recalled(txn: Transaction, newest: int, opened: Mapping[TopicPartition, int]) -> Transaction:
    """Return the Transaction that is to be known of an id, itself if the logs know no more.

    `newest` is the greatest epoch that a log has of its producer; `opened` are the partitions in which a
    transaction of it is open, each with its epoch.
    """
    if txn.state is State.ONGOING and newest <= txn.epoch:  # its owner may go on
        joined = dict.fromkeys(one for one, epoch in opened.items() if epoch == txn.epoch)
        return txn if txn.has(joined) else txn._replace(partitions={**txn.partitions, **joined})
    if txn.state is not State.ONGOING and txn.state not in IDLE:  # its markers are about to be written
        later = {one for one in strays(txn, newest, opened) if opened[one] >= txn.epoch}
        if newest <= txn.epoch and not later:
            return txn
        left = {one: None for one in txn.partitions if one not in later}  # the others have theirs
        return txn._replace(epoch=min(newest + 1, EPOCH_MAX), last_epoch=NO_PRODUCER_EPOCH, partitions=left)
    if txn.state in IDLE and not opened:
        return txn if newest <= txn.epoch else txn._replace(epoch=newest, last_epoch=NO_PRODUCER_EPOCH)
    return txn._replace(
        state=State.PREPARE_COMMIT if _was_committed(txn, newest, opened) else State.PREPARE_ABORT,
        epoch=min(max(txn.epoch, newest + 1), EPOCH_MAX),
        last_epoch=NO_PRODUCER_EPOCH,
        partitions={**txn.partitions, **dict.fromkeys(opened)},
    )


def strays(txn: Transaction, newest: int, opened: Mapping[TopicPartition, int]) -> Collection[TopicPartition]:
    """Return the partitions in which what is open is of another transaction than the one under way.

    Nobody knows how it ended, if it did, so it is to be aborted there by itself. There are none where
    `recalled` ends all that is open.
    """
    if txn.state in IDLE or (txn.state is State.ONGOING and newest > txn.epoch):
        return ()
    if txn.state is State.ONGOING:
        return [one for one, epoch in opened.items() if epoch < txn.epoch]
    last = txn.epoch - 1 if txn.client_version >= BUMPS_EPOCH_SINCE else txn.epoch
    return [
        one
        for one, epoch in opened.items()
        if one not in txn.partitions or not txn.epoch - 1 <= epoch <= last
    ]


def _was_committed(txn: Transaction, newest: int, opened: Mapping[TopicPartition, int]) -> bool:
    """Return whether what is open is the transaction that was committed last: its markers are lost."""
    return (
        txn.state is State.COMPLETE_COMMIT
        and txn.client_version >= BUMPS_EPOCH_SINCE
        and newest <= txn.epoch
        and all(epoch == txn.epoch - 1 for epoch in opened.values())
    )
