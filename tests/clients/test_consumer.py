"""Our consumer on a real broker: what it reads, where it stands, what it commits, and how it ends."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from coterie.assign.model import RebalanceProtocol
from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.client.admin.admin import Admin
from coterie.client.blocking.consumer import BlockingConsumer
from coterie.client.consumer.consumer import Consumer
from coterie.client.consumer.listener import RebalanceListener
from coterie.client.errors import (
    Closed,
    Disconnected,
    MissingLibrary,
    NoOffset,
    NotAssigned,
    Undecodable,
    WrongUse,
)
from coterie.wire.api.apis import ApiKey
from no_task_left import run

from .adapters import CLIENTS, Message
from .brokers import Broker
from .proxy import Proxy, until
from .test_produce_consume import CODECS, EARLIEST_MS, contents, some_messages

NewTopic = Callable[..., str]

CONFLUENT, KAFKA_PYTHON = CLIENTS[:2]
WITHIN_MS = 40_000


def produce(bootstrap: str, messages: list[Message], codec: str = "none") -> None:
    CONFLUENT.produce(bootstrap, messages, codec=codec)


def numbered(topic: str, count: int, *, partition: int = 0, first: int = 0) -> list[Message]:
    """Return records with a number as their value, a second apart."""
    return [
        Message(topic=topic, partition=partition, value=str(n).encode(), timestamp_ms=EARLIEST_MS + n * 1000)
        for n in range(first, first + count)
    ]


def plain(record: Any) -> Message:
    """Return a record as the tests compare it."""
    return Message(
        topic=record.topic, partition=record.partition, offset=record.offset, key=record.key,
        value=record.value, timestamp_ms=record.timestamp, headers=record.headers,
    )  # fmt: skip


def a_consumer(bootstrap: str, **settings: Any) -> Consumer:
    wanted = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 100, **settings}
    return Consumer(bootstrap_servers=bootstrap, **wanted)


async def take(consumer: Consumer, count: int, **terms: Any) -> list[Any]:
    """Return at least so many records."""
    got: list[Any] = []
    until = time.monotonic() + WITHIN_MS / 1000
    while len(got) < count:
        assert time.monotonic() < until, f"{len(got)} of {count} records"
        for records in (await consumer.getmany(timeout_ms=200, **terms)).values():
            got += records
    return got


@pytest.mark.parametrize("codec", CODECS)
def test_records_come_out_as_they_went_in(codec: str, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = some_messages(topic)
    produce(bootstrap, sent, codec)

    async def scenario() -> list[Any]:
        async with a_consumer(bootstrap) as consumer:
            consumer.assign([(topic, 0)])
            return await take(consumer, len(sent))

    got = [plain(record) for record in run(scenario())]

    assert contents(got) == contents(sent)
    assert [message.offset for message in got] == list(range(len(sent)))


def test_records_come_one_by_one_in_batches_and_in_columns(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=2)
    sent = [numbered(topic, 1000, partition=partition) for partition in (0, 1)]
    for messages in sent:
        produce(bootstrap, messages)

    async def scenario() -> None:
        async with a_consumer(bootstrap, max_poll_records=77) as consumer:
            consumer.assign([(topic, 0), (topic, 1)])
            batch = await take(consumer, 500)
            singles = []
            async for record in consumer:
                singles.append(record)
                if len(singles) == 500:
                    break
            await consumer.getmany()  # what was left of the walk is read again, as nobody saw it
            await consumer.seek_to_beginning()
            rows = []
            while len(rows) < 2000:
                rows += (await consumer.getmany(timeout_ms=200, columns=True)).to_pylist()

            seen = [record[1:3] for record in batch + singles]
            assert len(seen) == len(set(seen))
            columns = {(row["partition"], row["offset"]): row["value"] for row in rows}
            assert columns == {(p, n): str(n).encode() for p in (0, 1) for n in range(1000)}
            assert all(columns[record[1:3]] == record.value for record in batch + singles)

    run(scenario())


def test_positions_are_sought_and_told(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    place = TopicPartition(topic, 0)
    produce(bootstrap, numbered(topic, 100))

    async def scenario() -> None:
        async with a_consumer(bootstrap) as consumer:
            consumer.assign([place])
            assert await consumer.position(place) == 0
            assert (await take(consumer, 10, max_records=10))[-1].offset == 9
            assert await consumer.position(place) == 10
            assert await consumer.lag() == {place: 90}

            consumer.seek(place, 42)
            assert (await take(consumer, 1, max_records=1))[0].offset == 42
            await consumer.seek_to_time(EARLIEST_MS + 41_500)
            assert (await take(consumer, 1))[0].offset == 42
            await consumer.seek_to_beginning([place])
            assert (await take(consumer, 1))[0].offset == 0
            await consumer.seek_to_end()
            assert await consumer.position(place) == 100

            found = await consumer.offsets_for_times({place: EARLIEST_MS + 99_000})
            assert found == {place: (99, EARLIEST_MS + 99_000)}
            assert await consumer.offsets_for_times({place: EARLIEST_MS + 99_001}) == {place: None}
            assert await consumer.beginning_offsets([place]) == {place: 0}
            assert await consumer.end_offsets([place]) == {place: 100}
            assert await consumer.partitions_for(topic) == (place,)
            assert topic in await consumer.topics()
            with pytest.raises(NotAssigned):
                await consumer.position((topic, 1))
            with pytest.raises(WrongUse, match="no offset -1"):
                consumer.seek(place, -1)

    run(scenario())


def test_a_paused_partition_keeps_what_it_has_until_it_is_resumed(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        produce(bootstrap, numbered(topic, 50, partition=partition))

    async def scenario() -> None:
        async with a_consumer(bootstrap) as consumer:
            consumer.assign([(topic, 0), (topic, 1)])
            await take(consumer, 1, max_records=1)
            consumer.pause([(topic, 1)])
            assert consumer.paused() == {(topic, 1)}
            before = await consumer.position((topic, 1))
            others = {record.partition for _ in range(3) for record in await drain(consumer)}
            assert others <= {0}
            consumer.resume()

            got = await take(consumer, 50 - before)
            assert [record.offset for record in got] == list(range(before, 50))

    run(scenario())


async def drain(consumer: Consumer) -> list[Any]:
    """Return what comes within a moment."""
    return [one for records in (await consumer.getmany(timeout_ms=150)).values() for one in records]


def test_what_a_transaction_aborted_is_not_read_by_who_wants_committed_records(
    bootstrap: str, new_topic: NewTopic
) -> None:
    from confluent_kafka import Producer

    topic = new_topic()
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions()
    for number, end in enumerate(("abort", "commit", "abort", "commit")):
        producer.begin_transaction()
        for _ in range(10):
            producer.produce(topic, f"{end} {number}", partition=0)
        producer.flush()
        (producer.abort_transaction if end == "abort" else producer.commit_transaction)()

    async def scenario(isolation: str, count: int) -> tuple[set[bytes], int, int]:
        async with a_consumer(bootstrap, isolation_level=isolation) as consumer:
            consumer.assign([(topic, 0)])
            got = await take(consumer, count)
            while (position := await consumer.position((topic, 0))) < 44:
                got += await drain(consumer)
            return {record.value for record in got}, len(got), position

    assert run(scenario("read_committed", 20)) == ({b"commit 1", b"commit 3"}, 20, 44)
    assert run(scenario("read_uncommitted", 40))[1:] == (40, 44)


def test_where_to_begin_is_the_committed_offset_or_what_the_policy_says(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """CP-6, CP-7; what is assigned by hand is committed without a member (CC-3)."""
    topic = new_topic()
    place = TopicPartition(topic, 0)
    produce(bootstrap, numbered(topic, 10))

    async def begin(policy: str, group: str | None = None) -> int:
        async with a_consumer(bootstrap, auto_offset_reset=policy, group_id=group) as consumer:
            consumer.assign([place])
            return await consumer.position(place)

    async def commit(offset: int) -> None:
        async with a_consumer(bootstrap, group_id=topic, enable_auto_commit=False) as consumer:
            consumer.assign([place])
            assert await consumer.committed() == {place: None}
            await consumer.commit({place: offset})
            assert await consumer.committed([place]) == {place: offset}
            await consumer.commit({place: OffsetAndMetadata(offset)})

    assert run(begin("earliest")) == 0
    assert run(begin("latest")) == 10
    assert run(begin("by_duration:P1D")) == 0
    assert run(begin("by_duration:PT30M")) == 10  # the records are an hour old
    with pytest.raises(NoOffset, match='no offset is committed, and auto_offset_reset is "none"'):
        run(begin("none"))
    run(commit(7))
    assert run(begin("none", topic)) == 7


def test_an_offset_that_is_out_of_range_is_reset_or_told(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    produce(bootstrap, numbered(topic, 10))

    async def beyond(policy: str) -> list[Any]:
        async with a_consumer(bootstrap, auto_offset_reset=policy) as consumer:
            consumer.assign([(topic, 0)])
            consumer.seek((topic, 0), 1_000)
            return await take(consumer, 10)

    assert [record.offset for record in run(beyond("earliest"))] == list(range(10))
    with pytest.raises(NoOffset, match="the log does not have its offset"):
        run(beyond("none"))


def test_auto_commit_spares_what_the_application_has_in_its_hands(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """CC-1, CV-4: on close, too; after an error what was in hand is left out."""
    topic = new_topic()
    place = TopicPartition(topic, 0)
    produce(bootstrap, numbered(topic, 100))

    async def read(group: str, *, fail_at: int) -> None:
        async with a_consumer(bootstrap, group_id=group, max_poll_records=30) as consumer:
            consumer.assign([place])
            async for record in consumer:
                if record.offset == fail_at:
                    raise ZeroDivisionError
                if record.offset == 50:
                    return

    async def committed(group: str) -> int | None:
        async with a_consumer(bootstrap, group_id=group) as consumer:
            return (await consumer.committed([place]))[place]

    run(read(f"{topic}-ends", fail_at=-1))
    assert run(committed(f"{topic}-ends")) == 51
    with pytest.raises(ZeroDivisionError):
        run(read(f"{topic}-fails", fail_at=40))
    assert run(committed(f"{topic}-fails")) == 40


def test_an_auto_commit_that_failed_takes_back_nothing_that_was_committed_since(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic, group, cuts = new_topic(), f"group-{uuid.uuid4()}", []
    produce(bootstrap, numbered(topic, 6))

    def cut(api_key: int) -> bool:
        if api_key != ApiKey.OFFSET_COMMIT or cuts:
            return False
        cuts.append(api_key)
        return True

    async def scenario() -> int | None:
        async with Proxy(hidden=True) as proxy:
            proxy.target = int(bootstrap.rpartition(":")[2])
            settings = {"group_id": group, "max_poll_records": 3, "auto_commit_interval_ms": 60_000}
            async with a_consumer(f"127.0.0.1:{proxy.port}", **settings, retry_backoff_ms=300) as consumer:
                consumer.assign([(topic, 0)])
                await take(consumer, 3)
                proxy.cut_after = cut
                consumer._commit_at = 0.0
                await take(consumer, 3)
                await until(lambda: cuts)
                await asyncio.sleep(0.05)  # until the consumer has heard of it
                await consumer.commit()
                await until(lambda: consumer._committing is None)
                return (await consumer.committed([(topic, 0)]))[TopicPartition(topic, 0)]

    assert run(scenario()) == 6


def test_fetching_ahead_stops_at_the_bound(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=4)
    for partition in range(4):
        messages = [Message(topic=topic, partition=partition, value=bytes(1000))] * 1000
        KAFKA_PYTHON.produce(bootstrap, messages)  # in batches of 16 KiB; one comes whole, however large

    async def scenario() -> None:
        bound, fetch = 400_000, 50_000
        settings = {"max_buffered_bytes": bound, "max_partition_fetch_bytes": fetch, "max_poll_records": 100}
        async with a_consumer(bootstrap, **settings) as consumer:
            consumer.assign([(topic, partition) for partition in range(4)])
            got, most = 0, 0
            while got < 4000:
                got += sum(map(len, (await consumer.getmany(timeout_ms=1000)).values()))
                await asyncio.sleep(0.005)
                most = max(most, consumer._fetcher.buffered)
            assert 0 < most <= bound + 4 * fetch
            assert consumer._fetcher.buffered == 0

    run(scenario())


def test_a_partition_at_its_end_does_not_hold_up_one_that_has_more(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """A broker that has nothing keeps the answer for fetch_max_wait_ms, here far longer than the test has."""
    topic = new_topic(partitions=2)
    KAFKA_PYTHON.produce(bootstrap, [Message(topic=topic, partition=0, value=b"the only one")])
    KAFKA_PYTHON.produce(bootstrap, [Message(topic=topic, partition=1, value=bytes(1000))] * 1000)

    async def scenario() -> None:
        settings = {"fetch_max_wait_ms": 60_000, "max_partition_fetch_bytes": 20_000, "max_poll_records": 5}
        async with a_consumer(bootstrap, **settings) as consumer:
            consumer.assign([(topic, 0), (topic, 1)])
            assert len(await take(consumer, 1001)) == 1001

    run(scenario())


def test_deserialisers_and_interceptors_see_each_record_and_a_bad_one_can_be_left_out(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    values = [b"1", b"2", None, b"three", b"4"]
    produce(bootstrap, [Message(topic=topic, partition=0, key=b"k", value=value) for value in values])

    def odd(records: list[Any]) -> list[Any]:
        return [record for record in records if record.value is None or record.value % 2]

    async def scenario() -> None:
        settings = {"key_deserializer": bytes.decode, "value_deserializer": int, "interceptors": [odd]}
        async with a_consumer(bootstrap, **settings) as consumer:
            consumer.assign([(topic, 0)])
            assert [(one.key, one.value) for one in await take(consumer, 2)] == [("k", 1), ("k", None)]
            for _ in range(2):
                with pytest.raises(Undecodable, match=r"value of .* at offset 3 .*seek to 4") as failed:
                    await consumer.getmany(timeout_ms=WITHIN_MS)
            assert failed.value.record.value == b"three"
            consumer.seek((topic, 0), 4)
            assert await drain(consumer) == []  # an even number
            consumer.seek((topic, 0), 0)
            ones = [await consumer.getone(timeout_ms=WITHIN_MS) for _ in range(2)]
            assert [one and one.offset for one in ones] == [0, 2]

    run(scenario())


@pytest.mark.parametrize("broken", ["value_deserializer", "interceptors"])
def test_records_reach_the_application_though_its_own_code_was_interrupted_between_them(
    bootstrap: str, new_topic: NewTopic, broken: str
) -> None:
    """As Ctrl-C, or an interceptor's mistake: two batches come together, and it strikes in the second."""
    topic = new_topic()
    produce(bootstrap, numbered(topic, 3))
    produce(bootstrap, numbered(topic, 3, first=3))
    left = [4]

    def strike(given: Any) -> Any:
        left[0] -= 1 if broken == "value_deserializer" else len(given)
        if -3 < left[0] <= 0:
            left[0] -= 3
            raise SystemExit
        return given

    async def scenario() -> None:
        settings = {broken: strike if broken == "value_deserializer" else [strike]}
        async with a_consumer(bootstrap, **settings) as consumer:
            consumer.assign([(topic, 0)])
            with pytest.raises(SystemExit):
                await take(consumer, 6)
            assert sorted(one.value for one in await take(consumer, 6)) == [b"%d" % n for n in range(6)]

    run(scenario())


def test_records_that_could_not_be_made_columns_are_handed_out_yet(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(partitions=2)
    produce(bootstrap, numbered(topic, 3) + numbered(topic, 3, partition=1))

    async def scenario() -> None:
        async with a_consumer(bootstrap, group_id=topic) as consumer:
            consumer.assign([(topic, 0), (topic, 1)])
            monkeypatch.setitem(sys.modules, "coterie.arrow.records", None)  # as where pyarrow is not there
            for _ in range(2):
                with pytest.raises(MissingLibrary):
                    await consumer.getmany(timeout_ms=WITHIN_MS, columns=True)
            monkeypatch.undo()
            assert len(await take(consumer, 6)) == 6

    run(scenario())


def test_tasks_that_share_a_consumer_get_each_record_once(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=2)
    produce(bootstrap, numbered(topic, 400) + numbered(topic, 400, partition=1))
    got: list[Any] = []

    async def scenario() -> None:
        async with a_consumer(bootstrap, max_poll_records=30) as consumer:
            consumer.assign([(topic, 0), (topic, 1)])

            async def work() -> None:
                while len(got) < 800:
                    got.append(await consumer.getone())
                    await asyncio.sleep(0)

            async with asyncio.timeout(WITHIN_MS / 1000):
                done = [asyncio.create_task(work()) for _ in range(3)]
                await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.cancel()
            await asyncio.gather(*done, return_exceptions=True)

    run(scenario())
    assert sorted((one.partition, one.offset) for one in got) == [
        (at, n) for at in range(2) for n in range(400)
    ]


def test_a_consumer_waits_for_a_topic_that_is_not_there_yet(bootstrap: str, new_topic: NewTopic) -> None:
    async def scenario() -> None:
        async with a_consumer(bootstrap) as consumer:
            consumer.assign([("nowhere-to-be-seen", 0)])
            assert await consumer.getmany(timeout_ms=300) == {}

    run(scenario())


def test_calls_that_make_no_sense_say_what_does(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()

    async def scenario() -> None:
        consumer = a_consumer(bootstrap)
        with pytest.raises(WrongUse, match="not started"):
            await consumer.getmany()
        async with a_consumer(bootstrap, group_id="g") as placed:
            placed.assign([(topic, 0)])
            for never, why in ((2**63, "no offset"), (-1, "no offset"), ("5", "a whole number")):
                with pytest.raises(WrongUse, match=why):
                    placed.seek((topic, 0), never)  # type: ignore[arg-type]
            for beyond in (OffsetAndMetadata(2**63), OffsetAndMetadata(1, -1, "\ud800")):
                with pytest.raises(WrongUse, match="OffsetCommit cannot carry what was given"):
                    await placed.commit({(topic, 0): beyond})
            for never in (-1, -2, 2**63, "now"):
                with pytest.raises(WrongUse, match="a timestamp is milliseconds since 1970"):
                    await placed.offsets_for_times({(topic, 0): never})  # type: ignore[dict-item]
                with pytest.raises(WrongUse, match="a timestamp is milliseconds since 1970"):
                    await placed.seek_to_time(never)  # type: ignore[arg-type]
        with pytest.raises(WrongUse, match=r"a topic's name is text, not \['orders'\]"):
            Consumer(["orders"], bootstrap_servers=bootstrap, group_id="g")
        with pytest.raises(WrongUse, match="needs a group_id"):
            consumer.subscribe(["t"])
        with pytest.raises(WrongUse, match="needs a group_id"):
            Consumer("t", bootstrap_servers=bootstrap, group_id="")
        async with consumer:
            with pytest.raises(WrongUse, match="subscribe to topics or assign"):
                await consumer.getmany()
            with pytest.raises(WrongUse, match="no group to commit for"):
                await consumer.commit({})
            with pytest.raises(WrongUse, match="only a subscribed consumer"):
                consumer.group_metadata()
            with pytest.raises(WrongUse, match="started before"):
                await consumer.start()
        with pytest.raises(Closed):
            await consumer.getmany()
        with pytest.raises(Closed):
            await consumer.start()
        await consumer.close()

    run(scenario())


def test_nobody_at_the_address_is_told_at_once() -> None:
    async def scenario() -> None:
        async with a_consumer("127.0.0.1:1"):
            pass

    with pytest.raises(Disconnected, match=r"no connection to 127\.0\.0\.1:1"):
        run(scenario())


def test_closing_wakes_whoever_waits_and_a_cancelled_wait_harms_nobody(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()

    async def scenario() -> None:
        consumer = a_consumer(bootstrap)
        await consumer.start()
        consumer.assign([(topic, 0)])
        cancelled = asyncio.create_task(consumer.getmany(timeout_ms=WITHIN_MS))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await asyncio.to_thread(produce, bootstrap, numbered(topic, 1))
        assert len(await take(consumer, 1)) == 1

        waiting = asyncio.create_task(consumer.getmany(timeout_ms=WITHIN_MS))
        await asyncio.sleep(0.05)
        await consumer.close()
        with pytest.raises(Closed):
            await waiting

    run(scenario())


def test_a_partition_that_comes_back_is_not_fed_with_what_was_asked_for_before_it_went(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """What had come and was not handed out yet is dropped with it; a fetch from behind that is under way."""
    topic = new_topic()
    place = TopicPartition(topic, 0)
    produce(bootstrap, numbered(topic, 1))

    async def scenario() -> list[int]:
        async with a_consumer(bootstrap, fetch_max_wait_ms=20_000) as consumer:
            consumer.assign([place])
            await consumer._fetcher.came(WITHIN_MS / 1000)
            await consumer.end_offsets([place])  # meanwhile the next fetch is asked for
            consumer.assign([])
            consumer.assign([place])
            assert await consumer.position(place) == 0
            await asyncio.to_thread(produce, bootstrap, numbered(topic, 1, first=1))
            return [record.offset for record in await take(consumer, 2)]

    assert run(scenario()) == [0, 1]


@pytest.mark.slow
def test_a_consumer_goes_on_when_its_broker_comes_back(restartable: Broker) -> None:
    bootstrap = restartable.bootstrap
    produce(bootstrap, numbered("t", 10))

    async def scenario() -> list[Any]:
        async with a_consumer(bootstrap) as consumer:
            consumer.assign([("t", 0)])
            got = await take(consumer, 10)
            restartable.kill()
            assert await drain(consumer) == []
            await asyncio.to_thread(restartable.restart)
            await asyncio.to_thread(produce, bootstrap, numbered("t", 10, first=10))
            return got + await take(consumer, 10)

    assert [record.offset for record in run(scenario())] == list(range(20))


class Heard(RebalanceListener):
    """A listener that notes what it hears, one method plain and one async."""

    def __init__(self) -> None:
        self.assigned: list[list[TopicPartition]] = []
        self.revoked: list[list[TopicPartition]] = []

    def on_partitions_assigned(self, partitions: Any) -> None:
        self.assigned.append(list(partitions))

    async def on_partitions_revoked(self, partitions: Any) -> None:
        self.revoked.append(list(partitions))


GROUP = {"heartbeat_interval_ms": 200, "session_timeout_ms": 20_000, "partition_assignment_strategy": "range"}


class Seeking(RebalanceListener):
    """A listener that takes its time and then begins where it kept its place itself."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.consumer: Consumer | None = None
        self.may_seek = asyncio.Event()

    async def on_partitions_assigned(self, partitions: Any) -> None:
        await self.may_seek.wait()
        assert self.consumer is not None
        for one in partitions:
            self.consumer.seek(one, self.offset)


def test_nothing_is_handed_out_before_the_listener_knows_of_it(bootstrap: str, new_topic: NewTopic) -> None:
    """CB-8: records of a new partition come once `on_partitions_assigned` has returned."""
    topic = new_topic()
    produce(bootstrap, numbered(topic, 10))

    async def scenario() -> list[Any]:
        listener = Seeking(7)
        async with a_consumer(bootstrap, **GROUP, group_id=topic) as consumer:
            listener.consumer = consumer
            consumer.subscribe([topic], listener=listener)
            until = time.monotonic() + WITHIN_MS / 1000
            while not consumer._fetcher.buffered:
                assert time.monotonic() < until
                assert await consumer.getmany(timeout_ms=20) == {}
            assert await consumer.getmany(timeout_ms=20) == {}
            listener.may_seek.set()
            return await take(consumer, 3)

    assert [record.offset for record in run(scenario())] == [7, 8, 9]


def test_members_share_the_partitions_and_miss_nothing(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=6)
    for partition in range(6):
        produce(bootstrap, numbered(topic, 20, partition=partition))
    group = {**GROUP, "group_id": topic}
    heard = Heard()

    async def shared(*members: Consumer) -> list[Any]:
        """Read with all members until they own the same number of partitions."""
        got: list[Any] = []
        until = time.monotonic() + WITHIN_MS / 1000
        while sorted(len(member.assignment()) for member in members) != [6 // len(members)] * len(members):
            assert time.monotonic() < until, [member.assignment() for member in members]
            for batches in await asyncio.gather(*(member.getmany(timeout_ms=50) for member in members)):
                got += [record for records in batches.values() for record in records]
        return got

    async def scenario() -> None:
        async with a_consumer(bootstrap, **group) as first:
            first.subscribe([topic], listener=heard)
            got = await shared(first)
            got += await take(first, 120 - len(got))
            await first.commit()
            async with a_consumer(bootstrap, **group) as second:
                second.subscribe([topic])
                assert await shared(first, second) == []
                assert not first.assignment() & second.assignment()
                await asyncio.to_thread(produce, bootstrap, numbered(topic, 5, partition=0, first=20))
                owner = first if TopicPartition(topic, 0) in first.assignment() else second
                got += await take(owner, 5)
                await owner.commit()
            assert await shared(first) == []
            assert {record[1:3] for record in got} == (
                {(p, n) for p in range(6) for n in range(20)} | {(0, n) for n in range(20, 25)}
            )
            assert len(got) == 125
            assert await first.lag() == {TopicPartition(topic, p): 0 for p in range(6)}

    run(scenario())

    everything = [TopicPartition(topic, p) for p in range(6)]
    assert everything in heard.assigned
    assert everything in heard.revoked


def test_a_pattern_finds_topics_that_are_there_and_such_as_come(bootstrap: str, new_topic: NewTopic) -> None:
    """CP-1, CP-5: all whose whole name matches; what comes later is found with the next look."""
    first = new_topic()
    admin = Admin(bootstrap)
    names = [f"pattern-{first}", f"pattern-{first}-late", f"no-pattern-{first}"]

    async def scenario() -> None:
        async with admin, a_consumer(bootstrap, **GROUP, group_id=first, metadata_max_age_ms=300) as consumer:
            for name in (names[0], names[2]):
                await admin.create_topic(name)
            consumer.subscribe(pattern=f"pattern-{first}.*")
            await owns(consumer, {(names[0], 0)})
            await admin.create_topic(names[1])
            await owns(consumer, {(names[0], 0), (names[1], 0)})
            await consumer.unsubscribe()
            assert consumer.assignment() == frozenset()
            for name in names:
                await admin.delete_topic(name)

    run(scenario())


async def owns(consumer: Consumer, partitions: set[tuple[str, int]]) -> None:
    """Poll until these are the consumer's."""
    until = time.monotonic() + WITHIN_MS / 1000
    while consumer.assignment() != partitions:
        assert time.monotonic() < until, consumer.assignment()
        await consumer.getmany(timeout_ms=50)


def test_what_is_noted_beside_an_offset_is_told_again(bootstrap: str, new_topic: NewTopic) -> None:
    """By a member, and by nobody's member; what was read is committed with the epoch of its leader."""
    topic = new_topic()
    place = TopicPartition(topic, 0)
    produce(bootstrap, numbered(topic, 10))

    async def scenario() -> None:
        settings = {**GROUP, "group_id": topic, "enable_auto_commit": False}
        async with a_consumer(bootstrap, **settings) as member:
            member.subscribe([topic])
            await take(member, 10)
            await member.commit()
            (read,) = (await member.committed(metadata=True)).values()
            await member.commit({place: OffsetAndMetadata(7, -1, "lunch")})
            assert await member.committed([place]) == {place: 7}
            assert await member.committed([place], metadata=True) == {place: (7, -1, "lunch")}
        assert read is not None
        assert (read.offset, read.leader_epoch >= 0, read.metadata) == (10, True, "")
        async with a_consumer(bootstrap, **settings) as nobody:
            nobody.assign([place])
            await nobody.commit({place: OffsetAndMetadata(8, 0, "tea")})
            assert await nobody.committed(metadata=True) == {place: (8, 0, "tea")}
            assert await nobody.position(place) == 8

    run(scenario())


def test_members_are_upgraded_from_eager_to_cooperative_one_by_one(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """CA-6, CO-4: by default a member supports both and is eager; when none lists range any more, what stays
    with its owner is not given up.
    """
    topic = new_topic(partitions=4)
    both = {**GROUP, "group_id": topic, "partition_assignment_strategy": "range,cooperative-sticky"}
    alone = {**both, "partition_assignment_strategy": "cooperative-sticky"}
    by_default = Consumer(bootstrap_servers=bootstrap).settings.assignors()
    assert [one.name for one in by_default] == ["range", "cooperative-sticky"]

    async def shared(*members: Consumer) -> None:
        until = time.monotonic() + WITHIN_MS / 1000
        while sorted(len(one.assignment()) for one in members) != [4 // len(members)] * len(members):
            assert time.monotonic() < until, [one.assignment() for one in members]
            await asyncio.gather(*(one.getmany(timeout_ms=50) for one in members))

    async def scenario() -> list[list[TopicPartition]]:
        heard = Heard()
        async with a_consumer(bootstrap, **both) as old:
            old.subscribe([topic])
            await shared(old)
            async with a_consumer(bootstrap, **alone) as first:
                first.subscribe([topic], listener=heard)
                await shared(old, first)
                await old.unsubscribe()
                await shared(first)
                async with a_consumer(bootstrap, **alone) as second:
                    second.subscribe([topic])
                    await shared(first, second)
                    return list(heard.revoked)

    revoked = run(scenario())

    assert [] not in revoked  # an eager member is called even if it has nothing to give up (CB-3)
    assert len(revoked[-1]) == 2


class ByCapacity:
    """The assignor of docs/assignors.md: in proportion to a number that each member tells."""

    name = "by-capacity"
    protocols = (RebalanceProtocol.EAGER,)

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.given: list[int] = []

    def user_data(self, *, topics: Any, owned: Any, generation: int) -> bytes:
        return bytes([self.capacity])

    def assign(self, cluster: Any, members: Any) -> dict[str, tuple[TopicPartition, ...]]:
        given: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
        for topic in cluster.partition_counts:
            for partition in cluster.partitions_of(topic):
                taker = min(
                    members, key=lambda one: len(given[one.member_id]) / one.subscription.user_data[0]
                )
                given[taker.member_id].append(partition)
        return {member: tuple(partitions) for member, partitions in given.items()}

    def on_assignment(self, partitions: Any, *, generation: int, member_id: str) -> None:
        self.given.append(len(partitions))


def test_members_share_by_an_assignor_of_their_own(bootstrap: str, new_topic: NewTopic) -> None:
    """CA-5, CA-6: what an application brings is what the group's leader runs, with what each member tells."""
    topic = new_topic(partitions=8)
    small, large = ByCapacity(1), ByCapacity(3)

    def settings(own: ByCapacity) -> dict[str, Any]:
        return {**GROUP, "group_id": topic, "partition_assignment_strategy": [own]}

    async def scenario() -> None:
        until = time.monotonic() + WITHIN_MS / 1000
        async with (
            a_consumer(bootstrap, **settings(small)) as one,
            a_consumer(bootstrap, **settings(large)) as two,
        ):
            for consumer in (one, two):
                consumer.subscribe([topic])
            while (len(one.assignment()), len(two.assignment())) != (2, 6):
                assert time.monotonic() < until, (one.assignment(), two.assignment())
                await asyncio.gather(one.getmany(timeout_ms=50), two.getmany(timeout_ms=50))

    run(scenario())

    assert (small.given[-1], large.given[-1]) == (2, 6)


def test_what_names_no_partition_or_topics_is_refused(bootstrap: str, new_topic: NewTopic) -> None:
    async def scenario() -> None:
        async with a_consumer(bootstrap, group_id="nobody's") as consumer:
            with pytest.raises(WrongUse, match=r"'ord\(' is no pattern: missing \)"):
                consumer.subscribe(pattern="ord(")
            for wrong in ("orders", ("orders",), ("orders", "0"), ("orders", -1), 7):
                with pytest.raises(WrongUse, match="is no partition: give pairs like"):
                    consumer.assign([wrong])  # type: ignore[list-item]
            for topic_alone in (consumer.position("orders"), consumer.end_offsets(["orders"])):  # type: ignore[arg-type, list-item]
                with pytest.raises(WrongUse, match="is no partition"):
                    await topic_alone
            with pytest.raises(WrongUse, match="is no partition"):
                consumer.seek("orders", 5)  # type: ignore[arg-type]

    run(scenario())


def test_the_blocking_consumer_reads_commits_and_seeks(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    place = TopicPartition(topic, 0)
    produce(bootstrap, numbered(topic, 30))
    settings = {"bootstrap_servers": bootstrap, "auto_offset_reset": "earliest", "group_id": topic}

    with BlockingConsumer(**settings) as consumer:
        consumer.assign([place])
        got = []
        for record in consumer:
            got.append(record.offset)
            if len(got) == 10:
                break
        consumer.seek(place, 20)
        assert consumer.position(place) == 20
        consumer.commit({place: 5})
        assert consumer.committed() == {place: 5}
        assert consumer.lag() == {place: 10}
        assert consumer.getcolumns(timeout_ms=WITHIN_MS).num_rows == 10

    assert got == list(range(10))
    with pytest.raises(Closed):
        consumer.getmany()
