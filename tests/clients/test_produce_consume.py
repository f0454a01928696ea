"""Records go in and come out as they were, whoever packs them and whoever unpacks them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from .adapters import CLIENTS, Client, Denied, Message

NewTopic = Callable[..., str]

MESSAGE_TOO_LARGE = 10
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EARLIEST_MS = int(time.time() * 1000) - 3_600_000  # within the retention time, or the records are soon gone


def some_messages(topic: str, count: int = 60) -> list[Message]:
    """Return records of every shape: keys or none, no values (with a key), headers, timestamps that go up."""
    return [
        Message(
            topic=topic,
            partition=0,
            key=None if n % 3 == 0 else f"key-{n}".encode(),
            value=None if n % 6 == 5 else f"value {n} ".encode() * (1 + n % 20),
            timestamp_ms=EARLIEST_MS + n * 1000,
            headers=(("n", str(n).encode()), ("empty", b"")) if n % 2 else (),
        )
        for n in range(count)
    ]


def contents(messages: list[Message]) -> list[tuple[object, ...]]:
    """Return what must be the same on both sides."""
    return [(m.key, m.value, m.timestamp_ms, m.headers) for m in messages]


@pytest.mark.parametrize("codec", CODECS)
def test_every_client_reads_what_this_one_packed(
    client: Client, codec: str, bootstrap: str, new_topic: NewTopic
) -> None:
    if codec not in client.codecs:
        pytest.skip(f"{client.name} has no {codec} here")
    topic = new_topic()
    sent = some_messages(topic)

    client.produce(bootstrap, sent, codec=codec)

    for other in CLIENTS:
        if codec in other.codecs:
            with other.reader(bootstrap, (topic, 0)) as consumer:
                got = consumer.take(len(sent))
            assert contents(got) == contents(sent), other.name
            assert [m.offset for m in got] == list(range(len(sent)))


@pytest.mark.parametrize("acks", ["0", "1"])
def test_records_arrive_without_waiting_for_all_acknowledgements(
    client: Client, acks: str, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()

    client.produce(bootstrap, some_messages(topic, 10), acks=acks)

    with client.reader(bootstrap, (topic, 0)) as consumer:
        assert len(consumer.take(10)) == 10


def test_an_idempotent_producer_writes_each_record_once_and_in_order(
    client: Client, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(partitions=2)
    sent = [Message(topic=topic, partition=n % 2, value=str(n).encode()) for n in range(2000)]

    client.produce(bootstrap, sent, idempotent=True)

    with client.reader(bootstrap, (topic, 0), (topic, 1)) as consumer:
        got = consumer.take(len(sent))
    for partition in (0, 1):
        values = [int(m.value or b"") for m in got if m.partition == partition]
        assert values == list(range(partition, 2000, 2))


def test_a_record_larger_than_the_topic_allows_is_refused(
    client: Client, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(config={"max.message.bytes": "20000"})

    with pytest.raises(Denied) as denied:
        client.produce(bootstrap, [Message(topic=topic, partition=0, value=bytes(50_000))])

    assert denied.value.code == MESSAGE_TOO_LARGE


def test_a_large_record_comes_back_whole(client: Client, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(config={"max.message.bytes": "8000000"})
    value = bytes(range(256)) * 12_000  # larger than what clients fetch of a partition at once

    client.produce(bootstrap, [Message(topic=topic, partition=0, value=value)])

    with client.reader(bootstrap, (topic, 0)) as consumer:
        [got] = consumer.take(1)
    assert got.value == value


def test_seeking_by_timestamp_finds_the_first_record_not_older(
    client: Client, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    place = (topic, 0)
    client.produce(bootstrap, some_messages(topic, 100))

    with client.reader(bootstrap, place) as consumer:
        consumer.take(1)
        assert consumer.offset_at_time(place, EARLIEST_MS) == 0
        assert consumer.offset_at_time(place, EARLIEST_MS + 41_500) == 42
        assert consumer.offset_at_time(place, EARLIEST_MS + 99_001) is None
        assert consumer.bounds(place) == (0, 100)

        consumer.seek(place, 42)
        end = time.monotonic() + 60
        offsets: list[int] = []
        while 42 not in offsets:  # records fetched before the seek may still come
            assert time.monotonic() < end
            offsets += [m.offset for m in consumer.poll(0.2)]
        while offsets[-1] != 99:
            offsets += [m.offset for m in consumer.poll(0.2)]
    assert offsets[offsets.index(42) :] == list(range(42, 100))


def test_a_waiting_consumer_gets_a_new_record_at_once(
    client: Client, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    with client.reader(bootstrap, (topic, 0)) as consumer:
        assert consumer.poll(0.3) == []

        client.produce(bootstrap, [Message(topic=topic, partition=0, value=b"news")])

        [got] = consumer.take(1, within_s=20)
    assert got.value == b"news"
