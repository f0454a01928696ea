"""The records of `__transaction_state`: what Kafka's own brokers write and read.

A key is its type and a struct, a value its version and a struct; each value is a transactional id whole.
"""

from typing import NamedTuple

from coterie.wire.api.codec import decode
from coterie.wire.api.declared import NEVER_FLEXIBLE, VERSION, Declared, Field, read_version, shared
from coterie.wire.api.writers import writer_of

NO_PRODUCER = -1

TRANSACTION_LOG = 0
VALUE_VERSION = 1  # since transaction.version 1 (KIP-890): the tagged fields have a place only there


class TransactionLogKey(NamedTuple):
    """Which transactional id it is."""

    transactional_id: str


class UnknownTransactionKey(NamedTuple):
    """A key of a kind that is not read here; a loading broker skips its record."""

    type: int


class PartitionsOfTopic(NamedTuple):
    """Those partitions of one topic that a transaction has written to."""

    topic: str
    partition_ids: tuple[int, ...]


class TransactionLogValue(NamedTuple):
    """All that is remembered of a transactional id. Times are milliseconds; -1 is no time, id or epoch.

    `transaction_status` is the state's number; no partitions at all (None) go with Empty and nothing else.
    """

    producer_id: int
    producer_epoch: int
    transaction_timeout: int
    transaction_status: int
    transaction_partitions: tuple[PartitionsOfTopic, ...] | None
    last_update_timestamp: int
    start_timestamp: int
    previous_producer_id: int = NO_PRODUCER
    next_producer_id: int = NO_PRODUCER
    client_transaction_version: int = 0
    next_producer_epoch: int = NO_PRODUCER


KEY = Declared(
    "TransactionLogKey",
    most=0,
    flexible_from=NEVER_FLEXIBLE,
    fields=(Field("transactional_id", "string"),),
)
PARTITIONS = Declared(
    "TransactionPartitions",
    most=1,
    flexible_from=1,
    fields=(Field("topic", "string"), Field("partition_ids", "int32", array=True)),
)
VALUE = Declared(
    "TransactionLogValue",
    most=1,
    flexible_from=1,
    fields=(
        Field("producer_id", "int64"),
        Field("previous_producer_id", "int64", NO_PRODUCER, since=1, tag=0),
        Field("next_producer_id", "int64", NO_PRODUCER, since=1, tag=1),
        Field("producer_epoch", "int16"),
        Field("next_producer_epoch", "int16", NO_PRODUCER, since=1, tag=3),
        Field("transaction_timeout", "int32"),
        Field("transaction_status", "int8"),
        Field("transaction_partitions", PARTITIONS, None, nullable=True),
        Field("last_update_timestamp", "int64"),
        Field("start_timestamp", "int64"),
        Field("client_transaction_version", "int16", 0, since=1, tag=2),
    ),
)


def read_transaction_key(data: bytes) -> TransactionLogKey | UnknownTransactionKey:
    """Return the key of a record, by its type, or raise Corrupt."""
    kind = read_version(data)
    if kind != TRANSACTION_LOG:
        return UnknownTransactionKey(kind)
    return TransactionLogKey(decode(KEY.at(0), data, VERSION.size).transactional_id)


def read_transaction_value(data: bytes) -> TransactionLogValue | None:
    """Return a value of any version, None for one of a version yet to come, or raise Corrupt."""
    version = read_version(data)
    if not 0 <= version <= VALUE.most:
        return None
    found = decode(VALUE.at(version), data, VERSION.size)
    values = shared(TransactionLogValue, found)
    if found.transaction_partitions is not None:
        topics = found.transaction_partitions
        values["transaction_partitions"] = tuple(PartitionsOfTopic(t.topic, t.partition_ids) for t in topics)
    return TransactionLogValue(**values)


def transaction_record(
    transactional_id: str, value: TransactionLogValue | None
) -> tuple[bytes, bytes | None]:
    """Return key and value of a transactional id; no value is a tombstone."""
    out = [KEY_HEAD]
    _write_key(out, TransactionLogKey(transactional_id))
    key = b"".join(out)
    if value is None:
        return key, None
    out = [VALUE_HEAD]
    _write_value(out, value)
    return key, b"".join(out)


KEY_HEAD, VALUE_HEAD = VERSION.pack(TRANSACTION_LOG), VERSION.pack(VALUE_VERSION)
_write_key, _write_value = writer_of(KEY.at(0)), writer_of(VALUE.at(VALUE_VERSION))
