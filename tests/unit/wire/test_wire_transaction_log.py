"""Records of `__transaction_state`, against bytes that Apache Kafka 4.3.1 wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.errors import Corrupt
from coterie.wire.payloads.transaction_state import (
    PartitionsOfTopic,
    TransactionLogKey,
    TransactionLogValue,
    UnknownTransactionKey,
    read_transaction_key,
    read_transaction_value,
    transaction_record,
)

KEY = bytes.fromhex("0000000161")
WRITTEN = {
    "empty": (
        "0001000000000000000000000000ea600000000001a1feb00bb7ffffffffffffffff0100080000000000000000",
        TransactionLogValue(
            producer_id=0,
            producer_epoch=0,
            transaction_timeout=60000,
            transaction_status=0,
            transaction_partitions=None,
            last_update_timestamp=1795274312631,
            start_timestamp=-1,
            previous_producer_id=0,
            next_producer_id=-1,
            client_transaction_version=0,
            next_producer_epoch=-1,
        ),
    ),
    "ongoing without partitions": (
        "0001000000000000000000000000ea600101000001a1feb00cdb000001a1feb00cdb0100080000000000000000",
        TransactionLogValue(
            producer_id=0,
            producer_epoch=0,
            transaction_timeout=60000,
            transaction_status=1,
            transaction_partitions=(),
            last_update_timestamp=1795274312923,
            start_timestamp=1795274312923,
            previous_producer_id=0,
            next_producer_id=-1,
            client_transaction_version=0,
            next_producer_epoch=-1,
        ),
    ),
    "ongoing": (
        "0001000000000000000000000000ea6001020274020000000000000001a1feb00cfc000001a1feb00cdb0100080000000000000000",
        TransactionLogValue(
            producer_id=0,
            producer_epoch=0,
            transaction_timeout=60000,
            transaction_status=1,
            transaction_partitions=(PartitionsOfTopic(topic="t", partition_ids=(0,)),),
            last_update_timestamp=1795274312956,
            start_timestamp=1795274312923,
            previous_producer_id=0,
            next_producer_id=-1,
            client_transaction_version=0,
            next_producer_epoch=-1,
        ),
    ),
    "committing": (
        "0001000000000000000000010000ea600202027403000000010000000000000001a1feb011fc000001a1feb00cdb020008000000000000000002020002",
        TransactionLogValue(
            producer_id=0,
            producer_epoch=1,
            transaction_timeout=60000,
            transaction_status=2,
            transaction_partitions=(PartitionsOfTopic(topic="t", partition_ids=(1, 0)),),
            last_update_timestamp=1795274314236,
            start_timestamp=1795274312923,
            previous_producer_id=0,
            next_producer_id=-1,
            client_transaction_version=2,
            next_producer_epoch=-1,
        ),
    ),
    "committed": (
        "0001000000000000000000010000ea600401000001a1feb01200000001a1feb00cdb020008000000000000000002020002",
        TransactionLogValue(
            producer_id=0,
            producer_epoch=1,
            transaction_timeout=60000,
            transaction_status=4,
            transaction_partitions=(),
            last_update_timestamp=1795274314240,
            start_timestamp=1795274312923,
            previous_producer_id=0,
            next_producer_id=-1,
            client_transaction_version=2,
            next_producer_epoch=-1,
        ),
    ),
}

int16, int32, int64 = (st.integers(-(2 ** (n - 1)), 2 ** (n - 1) - 1) for n in (16, 32, 64))
topics = st.builds(PartitionsOfTopic, st.text(max_size=20), st.lists(int32, max_size=5).map(tuple))
values = st.builds(
    TransactionLogValue,
    int64,
    int16,
    int32,
    st.integers(0, 7),
    st.none() | st.lists(topics, max_size=3).map(tuple),
    int64,
    int64,
    int64,
    int64,
    int16,
    int16,
)


def test_a_key_says_which_transactional_id_it_is():
    assert read_transaction_key(KEY) == TransactionLogKey("a")
    assert read_transaction_key(bytes.fromhex("00010001")) == UnknownTransactionKey(1)


@pytest.mark.parametrize(("encoded", "value"), WRITTEN.values(), ids=WRITTEN)
def test_what_kafka_wrote_is_read_and_would_be_written_the_same(encoded, value):
    assert read_transaction_value(bytes.fromhex(encoded)) == value
    assert transaction_record("a", value) == (KEY, bytes.fromhex(encoded))


def test_no_value_is_a_tombstone():
    assert transaction_record("a", None) == (KEY, None)


def test_a_version_to_come_is_no_value():
    assert read_transaction_value(b"\0\2whatever") is None


@given(st.text(max_size=30), values)
def test_any_record_comes_back(transactional_id, value):
    key, raw = transaction_record(transactional_id, value)

    assert read_transaction_key(key) == TransactionLogKey(transactional_id)
    assert raw is not None
    assert read_transaction_value(raw) == value


@given(values, st.data())
def test_a_value_cut_short_is_corrupt(value, data):
    raw = transaction_record("a", value)[1]
    assert raw is not None
    cut = data.draw(st.integers(0, len(raw) - 1))

    with pytest.raises(Corrupt):
        read_transaction_value(raw[:cut])


@given(st.binary(max_size=80))
def test_rubbish_is_corrupt_or_something(data):
    for read in (read_transaction_key, read_transaction_value):
        try:
            read(data)
        except Corrupt:
            continue
