"""When the first unread records were written, by a real broker: what other clients have put into its log."""

from __future__ import annotations

import asyncio
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from coterie.base.ids import TopicPartition
from coterie.spark.source.options import parse
from coterie.spark.source.topics import cluster_for
from coterie.spark.source.unread import PARTITION_BYTES, OldestUnread

START_MS = 1_700_000_000_000
READ_COMMITTED = {"kafka.isolation.level": "read_committed"}


def times(topic, positions, *, rounds=1, **more):
    """Return what is known of these positions after so many plans."""
    given = {"kafka.bootstrap.servers": topic.bootstrap, "subscribe": topic.name, **more}
    options = parse(given, streaming=True)
    left = {TopicPartition(topic.name, partition): offset for partition, offset in positions.items()}

    async def ask():
        cluster = cluster_for(options)
        try:
            await cluster.leaders(left)
            unread = OldestUnread(cluster, isolation=options.isolation)
            for number in range(rounds):
                await asyncio.sleep(0.7 if number else 0)  # the pause after what has come
                found = await unread.times(left)
            return {at.partition: time_ms for at, time_ms in found.items()}
        finally:
            await cluster.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("codec", ["none", "zstd", "lz4"])
def test_batches_of_another_client_say_when_their_first_record_was_written(new_topic, codec):
    topic = new_topic()
    for number in range(3):
        topic.produce([b"v"] * 5, timestamp=START_MS + 1000 * number, **{"compression.type": codec})

    assert times(topic, {0: 5}) == {0: START_MS + 1000}
    assert times(topic, {0: 12}) == {0: START_MS + 2000}


def test_of_partitions_with_batches_of_any_size_all_are_known(new_topic):
    topic = new_topic(partitions=4)
    written = {}
    for partition, size in enumerate((10 * PARTITION_BYTES, PARTITION_BYTES + 1, 10, 20 * PARTITION_BYTES)):
        for number in range(2):
            written[partition] = START_MS + 1000 * partition + number
            topic.produce([b"v" * size], partition=partition, timestamp=written[partition])

    assert times(topic, dict.fromkeys(range(4), 1), rounds=4) == written


def test_where_the_broker_dates_records_it_is_exact(new_topic):
    topic = new_topic(config={"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000) - 1000
    made = topic.produce([b"v"] * 5, timestamp=START_MS)

    found = times(topic, {0: 3})
    assert found == {0: made[3].timestamp}
    assert found[0] >= before_ms


@pytest.mark.parametrize("aborted", [False, True])
@pytest.mark.parametrize("isolation", [{}, READ_COMMITTED])
def test_behind_a_transaction_s_marker_the_next_record_counts(new_topic, aborted, isolation):
    topic = new_topic()
    producer = Producer({"bootstrap.servers": topic.bootstrap, "transactional.id": topic.name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic.name, b"v", timestamp=START_MS)
    producer.flush(30)
    if aborted:
        producer.abort_transaction(30)
    else:
        producer.commit_transaction(30)
    topic.produce([b"v"], timestamp=START_MS + 5000)

    assert times(topic, {0: 0}, **isolation) == {0: START_MS}
    assert times(topic, {0: 1}, **isolation) == {0: START_MS + 5000}


def test_what_was_deleted_before_it_was_read_does_not_count(new_topic):
    topic = new_topic()
    for number in range(3):
        topic.produce([b"v"], timestamp=START_MS + 1000 * number)
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    for deleted in admin.delete_records([Place(topic.name, 0, 2)]).values():
        deleted.result(30)

    assert times(topic, {0: 1}) == {0: START_MS + 2000}
