"""Our producer against a running broker; what it wrote is read back with confluent-kafka.

Every test runs under `asynchronous.run`: no task is left behind, and no delivery without an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from coterie.base.codes import Code
from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.ids import TopicPartition
from coterie.client.admin.admin import Admin
from coterie.client.errors import ClientTimeout, Disconnected, WrongUse
from coterie.client.producer.batcher import Batch
from coterie.client.producer.delivery import (
    Delivery,
)
from coterie.client.producer.errors import (
    BufferFull,
    DeliveryTimeout,
    NotWritten,
    ProducerClosed,
    RecordTooLarge,
)
from coterie.wire.api.apis import ApiKey

from .adapters import CLIENTS, Message
from .asynchronous import WatchedProducer as Producer
from .asynchronous import run
from .brokers import Broker, broker
from .proxy import Proxy, Slow, until

NewTopic = Callable[..., str]
CONFLUENT = CLIENTS[0]


def everything(bootstrap: str, topic: str, *, count: int, partitions: int = 1) -> list[Message]:
    """Return what is in the topic, which has so many records, and no more."""
    places = [(topic, number) for number in range(partitions)]
    with CONFLUENT.reader(bootstrap, *places) as reader:
        found = reader.take(count)
        ends = sum(reader.bounds(place)[1] for place in places)
    assert len(found) == ends == count
    return sorted(found, key=lambda message: (message.partition, message.offset))


def values(messages: list[Message]) -> list[int]:
    """Return the values, which are numbers."""
    return [int(message.value or b"-1") for message in messages]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_sent_is_there_in_every_compression(codec: str, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    now = int(time.time() * 1000)  # what is a week old may be deleted before it is read

    async def scenario() -> None:
        async with Producer(bootstrap, compression_type=codec) as producer:
            await producer.send(
                topic, b"v" * 5_000, key=b"k", headers={"h": b"1", "n": None}, timestamp=now - 2
            )
            await producer.send(topic, None, key=b"gone", timestamp=now - 3)
            await producer.send(topic, b"", timestamp=now - 1)

    run(scenario())

    found = everything(bootstrap, topic, count=3)
    assert [(one.key, one.value, one.timestamp_ms) for one in found] == [
        (b"k", b"v" * 5_000, now - 2),
        (b"gone", None, now - 3),
        (None, b"", now - 1),
    ]
    assert found[0].headers == (("h", b"1"), ("n", None))


@pytest.mark.parametrize("acks", ["all", 1, 0])
def test_a_delivery_tells_where_the_record_is(acks: int | str, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=2)

    async def scenario() -> list[tuple[int, int]]:
        async with Producer(bootstrap, acks=acks) as producer:
            sent = [await producer.send(topic, b"%d" % number, partition=number % 2) for number in range(6)]
            await producer.flush()
            assert all(delivery.done() for delivery in sent)
            return [(delivery.result().partition, delivery.result().offset) for delivery in sent]

    told = run(scenario())

    offsets = [-1] * 6 if acks == 0 else [0, 0, 1, 1, 2, 2]
    assert told == [(number % 2, offset) for number, offset in enumerate(offsets)]
    assert values(everything(bootstrap, topic, count=6, partitions=2)) == [0, 2, 4, 1, 3, 5]


def test_records_go_out_by_themselves_after_the_linger(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()

    async def scenario() -> tuple[float, int]:
        async with Producer(bootstrap, linger_ms=50) as producer:
            await producer.partitions_for(topic)
            begun = time.monotonic()
            return (await (await producer.send(topic, b"1"))).offset, time.monotonic() - begun

    offset, waited_s = run(scenario())

    assert offset == 0
    assert waited_s >= 0.045


def test_keys_go_where_other_clients_put_them(bootstrap: str, new_topic: NewTopic) -> None:
    ours, theirs = new_topic(partitions=5), new_topic(partitions=5)
    keys = [b"key-%d" % number for number in range(50)]

    async def scenario() -> None:
        async with Producer(bootstrap) as producer:
            for key in keys:
                await producer.send(ours, b"0", key=key)

    run(scenario())
    for client in CLIENTS[1:]:  # librdkafka's default hash is another
        client.produce(bootstrap, [Message(topic=theirs, value=b"0", key=key) for key in keys])
        places = {one.key: one.partition for one in everything(bootstrap, ours, count=50, partitions=5)}
        with client.reader(bootstrap, *((theirs, number) for number in range(5))) as reader:
            assert {one.key: one.partition for one in reader.take(50)} == places
        break


def test_records_without_a_key_are_spread_batch_by_batch(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=3)

    async def scenario() -> None:
        # Some 100 batches, so that no partition is left out by chance: 3 * (2 / 3) ** 100 is nothing.
        async with Producer(bootstrap, batch_size=200) as producer:
            for number in range(2_000):
                await producer.send(topic, b"%d" % number)

    run(scenario())

    found = everything(bootstrap, topic, count=2_000, partitions=3)
    assert sorted(values(found)) == list(range(2_000))
    for place in range(3):
        there = values([one for one in found if one.partition == place])
        assert there == sorted(there)
        assert there


def test_serializers_make_bytes_of_what_is_sent(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()

    async def scenario() -> None:
        settings = {"value_serializer": lambda number: b"%d" % number, "key_serializer": str.encode}
        async with Producer(bootstrap, **settings) as producer:
            await producer.send(topic, 1, key="one")
            await producer.send(topic, 2, key="two")

    run(scenario())

    assert [(one.key, one.value) for one in everything(bootstrap, topic, count=2)] == [
        (b"one", b"1"),
        (b"two", b"2"),
    ]


def test_a_partitioner_of_ones_own_is_asked(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=3)

    def last(topic: str, key: bytes | None, partitions: int, available: Sequence[int]) -> int:
        return partitions - 1

    async def scenario() -> None:
        async with Producer(bootstrap, partitioner=last) as producer:
            for _ in range(3):
                assert (await (await producer.send(topic, b"0"))).partition == 2

    run(scenario())


def test_what_cannot_be_sent_is_refused_at_once(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=2)

    async def scenario() -> None:
        async with Producer(bootstrap, retry_backoff_ms=20) as producer:
            with pytest.raises(CoterieError, match="no partition 2"):
                await producer.send(topic, b"v", partition=2)
            with pytest.raises(RecordTooLarge, match="max_request_size is 1048576"):
                await producer.send(topic, bytes(1 << 20))
            with pytest.raises(TypeError, match=r"value_serializer, for example str\.encode"):
                await producer.send(topic, "text")
            with pytest.raises(TypeError, match="a topic's name is text, not b'orders'"):
                await producer.send(b"orders", b"v")
            for wrong in ({"h": "text"}, [("h", 7)], {7: b"v"}, ["h"], {"h": bytearray(1)}):
                with pytest.raises(TypeError, match="a header is a name and bytes or None"):
                    await producer.send(topic, b"v", headers=wrong)  # type: ignore[arg-type]
            with pytest.raises(WrongUse, match="a header's name is text that UTF-8 can write"):
                await producer.send(topic, b"v", headers={"\udc80": b"from os.fsdecode"})
            with pytest.raises(WrongUse, match="Metadata cannot carry what was given"):
                await producer.send("\udc80", b"v")
            for never in (-1, 1.5, "now", 1 << 63):
                with pytest.raises(WrongUse, match="a timestamp is milliseconds since 1970"):
                    await producer.send(topic, b"v", timestamp=never)  # type: ignore[arg-type]
            with pytest.raises(CoterieError, match="no partition '1'"):
                await producer.send(topic, b"v", partition="1")  # type: ignore[arg-type]
            with pytest.raises(RefusedBy, match="INVALID_TOPIC_EXCEPTION"):
                await producer.send("no topic of this name!", b"v")
            await (await producer.send(topic, b"none of it has harmed the others"))
        with pytest.raises(ProducerClosed):
            await producer.send(topic, b"v")

    run(scenario())


def test_a_mistake_of_ours_leaves_nobody_waiting(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails while batches are made ready fails all of them, those that count as under way included."""
    topic = new_topic(partitions=2)
    told: list[dict[str, Any]] = []

    def breaks(*_: Any, **__: Any) -> bytes:
        raise AssertionError("a mistake of ours")

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        async with Producer(bootstrap) as producer:
            monkeypatch.setattr(Batch, "encoded", breaks)
            deliveries = [await producer.send(topic, b"v", partition=one) for one in (0, 1)]
            for delivery in deliveries:
                with pytest.raises(ProducerClosed, match=r"the producer broke: .* please report it"):
                    await delivery

    run(scenario())

    assert "a mistake of ours" in str(told[0]["exception"])


def test_a_topic_that_does_not_come_into_being_is_waited_for_and_no_longer(bootstrap: str) -> None:
    with broker(auto_create_topics_enable=False) as running:

        async def scenario() -> None:
            async with Producer(running.bootstrap, max_block_ms=200, retry_backoff_ms=20) as producer:
                with pytest.raises(
                    ClientTimeout,
                    match="topic nowhere is not known; it was looked for within max_block_ms=200",
                ):
                    await producer.send("nowhere", b"v")

        run(scenario())


def test_a_batch_that_the_topic_finds_too_large_is_divided(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(config={"max.message.bytes": "2000"})

    async def scenario() -> list[int]:
        async with Producer(bootstrap, linger_ms=1_000) as producer:
            sent = [await producer.send(topic, b"%0100d" % number) for number in range(120)]
            await producer.flush()
            with pytest.raises(NotWritten, match="MESSAGE_TOO_LARGE"):
                await (await producer.send(topic, bytes(3_000)))
            return [delivery.result().offset for delivery in sent]

    assert run(scenario()) == list(range(120))
    assert values(everything(bootstrap, topic, count=120)) == list(range(120))


def test_many_tasks_share_a_small_buffer(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=2)

    async def scenario() -> None:
        async with Producer(bootstrap, buffer_memory=4_000, batch_size=1_000) as producer:

            async def send_some(start: int) -> None:
                for number in range(start, start + 100):
                    await producer.send(topic, b"%0200d" % number)

            await asyncio.gather(*(send_some(start) for start in range(0, 1_000, 100)))

    run(scenario())

    assert sorted(values(everything(bootstrap, topic, count=1_000, partitions=2))) == list(range(1_000))


def test_a_topic_that_was_deleted_does_not_come_back_by_itself(bootstrap: str) -> None:
    deleted, other = (f"topic-{uuid.uuid4()}" for _ in range(2))

    async def scenario() -> list[bool]:
        there = []
        async with Admin(bootstrap) as admin, Producer(bootstrap, metadata_max_age_ms=20) as producer:
            await (await producer.send(deleted, b"v"))
            await admin.delete_topic(deleted)
            for _ in range(20):
                await (await producer.send(other, b"v"))
                await asyncio.sleep(0.01)
            there.append(deleted in {one.name for one in await admin.list_topics()})
            await (await producer.send(deleted, b"v"))
            there.append(deleted in {one.name for one in await admin.list_topics()})
        return there

    assert run(scenario()) == [False, True]


def test_a_batch_whose_time_is_over_takes_no_other_with_it(bootstrap: str, new_topic: NewTopic) -> None:
    """They go in one request; were its connection closed, the other one would be written twice."""
    topic = new_topic(partitions=2)

    async def scenario() -> int:
        async with Proxy(hidden=True) as proxy:
            proxy.target = int(bootstrap.rpartition(":")[2])
            slow = Slow(ApiKey.PRODUCE)
            proxy.keep_back = slow
            settings: dict[str, Any] = {
                "enable_idempotence": False,
                "linger_ms": 20_000,
                "retry_backoff_ms": 1,
            }
            async with Producer(f"127.0.0.1:{proxy.port}", **settings) as producer:
                old, young = [await producer.send(topic, b"%d" % one, partition=one) for one in (0, 1)]
                (batch,) = producer._accumulator.queue(TopicPartition(topic, 0)).waiting
                batch.created_ms -= producer.settings.delivery_timeout_ms - 50
                flushes = asyncio.create_task(producer.flush())
                with pytest.raises(DeliveryTimeout):
                    await old
                slow.passes = True
                await young
                await flushes
            return proxy.seen.count((producer.settings.client_id, ApiKey.PRODUCE))

    assert run(scenario()) == 1


@pytest.mark.parametrize("end", ["closed", "of no more use"])
def test_all_who_wait_for_room_hear_that_there_will_be_none(
    bootstrap: str, new_topic: NewTopic, end: str
) -> None:
    topic = new_topic()
    small: dict[str, Any] = {"buffer_memory": 1_000, "batch_size": 1_000, "max_block_ms": 5_000}

    async def scenario() -> list[Any]:
        async with Proxy(hidden=True) as proxy:
            proxy.target = int(bootstrap.rpartition(":")[2])
            producer = Producer(f"127.0.0.1:{proxy.port}", **small)
            await producer.start()
            await producer.partitions_for(topic)
            proxy.hold = lambda api_key: api_key == ApiKey.PRODUCE
            sends = [asyncio.create_task(producer.send(topic, bytes(900))) for _ in range(5)]
            assert producer._sender is not None
            sender = producer._sender
            await until(lambda: len(sender._waiting) == 4)
            if end == "of no more use":
                sender.abandon(ProducerClosed("refused"))
            else:
                await producer.close(timeout_ms=0)
            came = await asyncio.gather(*sends, return_exceptions=True)
            await producer.close(timeout_ms=0)
            return came

    _, *waited = run(scenario())

    assert [type(one) for one in waited] == [ProducerClosed] * 4


def test_whoever_waits_may_be_cancelled_and_nobody_else_notices(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()

    async def scenario() -> int:
        async with Producer(bootstrap, linger_ms=100) as producer:
            sent = [await producer.send(topic, b"%d" % number) for number in range(3)]

            async def wait(number: int) -> int:
                return (await sent[number]).offset

            gives_up, waits, flushes = (
                asyncio.create_task(wait(0)),
                asyncio.create_task(wait(1)),
                asyncio.create_task(producer.flush()),
            )
            await asyncio.sleep(0.01)
            gives_up.cancel()
            flushes.cancel()
            await asyncio.gather(gives_up, flushes, return_exceptions=True)
            return await waits

    assert run(scenario()) == 1
    assert values(everything(bootstrap, topic, count=3)) == [0, 1, 2]


def test_a_producer_that_is_cancelled_closes_at_once(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()

    async def scenario() -> None:
        sent: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            async with Producer(bootstrap, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
                sent.set_result(await producer.send(topic, b"v"))
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        delivery = await sent
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ProducerClosed):
            await delivery

    run(scenario())


def test_a_producer_without_a_broker_says_so() -> None:
    async def scenario() -> None:
        with pytest.raises(Disconnected, match=r"127\.0\.0\.1:1"):
            async with Producer("127.0.0.1:1"):
                pass

    run(scenario())


# -- brokers that go and come


def test_a_broker_that_is_gone_is_waited_for_and_no_longer(restartable: Broker) -> None:
    async def scenario() -> None:
        settings = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 2_500, "linger_ms": 0}
        small = {"buffer_memory": 16_384, "max_block_ms": 1_500, "retry_backoff_ms": 20}
        async with Producer(restartable.bootstrap) as first:
            await (await first.send("flights", b"1"))
        async with Producer(restartable.bootstrap, **settings, **small) as producer:
            await producer.partitions_for("flights")
            await asyncio.to_thread(restartable.kill)
            delivery = await producer.send("flights", b"2")
            with pytest.raises(BufferFull, match="buffer_memory=16384"):
                await producer.send("flights", bytes(16_384))
            with pytest.raises(DeliveryTimeout):
                await delivery

    run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("count", [3])
def test_a_broker_that_is_killed_and_comes_back_loses_nothing_and_has_nothing_twice(
    count: int, restartable: Broker
) -> None:
    async def scenario() -> int:
        async with Producer(restartable.bootstrap, batch_size=2_000, linger_ms=1) as producer:
            sent, stop = [], False

            async def write() -> None:
                while not stop:
                    sent.append(await producer.send("flights", b"%d" % len(sent), partition=0))
                    if len(sent) % 50 == 0:
                        await asyncio.sleep(0.001)

            writing = asyncio.create_task(write())
            for _ in range(count):
                await asyncio.sleep(0.3)
                await asyncio.to_thread(restartable.kill)
                await asyncio.to_thread(restartable.start)
            await asyncio.sleep(0.2)
            stop = True
            await writing
            await producer.flush()
            assert [delivery.result().offset for delivery in sent] == list(range(len(sent)))
            return len(sent)

    written = run(scenario())

    assert values(everything(restartable.bootstrap, "flights", count=written)) == list(range(written))


@contextlib.asynccontextmanager
async def behind(proxy: Proxy):
    """A broker that is reached through the proxy alone: what it says its address is."""
    async with proxy:
        told = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
        async with broker(told) as running:
            proxy.target = running.port
            yield running


def test_answers_that_are_lost_are_asked_for_again_and_nothing_is_twice() -> None:
    async def scenario() -> list[int]:
        proxy, lost, topic = Proxy(), [0], f"topic-{uuid.uuid4()}"

        def cut(api_key: int) -> bool:
            lost[0] += api_key == ApiKey.PRODUCE
            return api_key == ApiKey.PRODUCE and lost[0] % 3 == 1

        async with behind(proxy) as running:
            proxy.cut_after = cut
            bootstrap = f"127.0.0.1:{proxy.port}"
            async with Producer(bootstrap, batch_size=300, linger_ms=0, retry_backoff_ms=5) as producer:
                sent = [await producer.send(topic, b"%d" % number, partition=0) for number in range(200)]
                await producer.flush()
            proxy.cut_after = lambda api_key: False
            offsets = [delivery.result().offset for delivery in sent]
            assert offsets == list(range(200))
            assert lost[0] > 10
            found = await asyncio.to_thread(everything, bootstrap, topic, count=200)
            assert running.pid
            return values(found)

    assert run(scenario()) == list(range(200))


def test_a_broker_that_falls_silent_is_hung_up_on() -> None:
    async def scenario() -> None:
        proxy, topic = Proxy(), f"topic-{uuid.uuid4()}"
        async with behind(proxy):
            settings = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 30_000, "linger_ms": 0}
            async with Producer(f"127.0.0.1:{proxy.port}", **settings) as producer:
                await (await producer.send(topic, b"1"))
                proxy.hold = lambda api_key: api_key == ApiKey.PRODUCE
                delivery = await producer.send(topic, b"2")
                await asyncio.sleep(1.2)
                proxy.hold = lambda api_key: False
                assert (await delivery).offset == 1

    run(scenario())


def test_a_record_that_the_broker_refuses_is_told_of_and_the_rest_goes_on(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(config={"message.timestamp.after.max.ms": "1000"})

    async def scenario() -> tuple[Code, int]:
        async with Producer(bootstrap, linger_ms=0) as producer:
            await (await producer.send(topic, b"0"))
            refused = await producer.send(topic, b"late", timestamp=int(time.time() * 1000) + 3_600_000)
            with pytest.raises(NotWritten) as error:
                await refused
            return error.value.code, (await (await producer.send(topic, b"1"))).offset

    assert run(scenario()) == (Code.INVALID_TIMESTAMP, 1)
    assert values(everything(bootstrap, topic, count=2)) == [0, 1]


def test_producers_of_one_loop_do_not_mind_each_other(bootstrap: str, new_topic: NewTopic) -> None:
    topics = [new_topic() for _ in range(3)]

    async def scenario() -> None:
        async def write(topic: str) -> None:
            async with Producer(bootstrap, client_id=str(uuid.uuid4())) as producer:
                for number in range(100):
                    await producer.send(topic, b"%d" % number)

        await asyncio.gather(*map(write, topics))

    run(scenario())

    for topic in topics:
        assert values(everything(bootstrap, topic, count=100)) == list(range(100))
