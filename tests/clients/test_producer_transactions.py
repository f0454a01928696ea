"""Our producer's transactions: those of KIP-890, and the ones before, behind a proxy that hides the new."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from coterie.base.codes import Code
from coterie.base.ids import GroupMetadata, TopicPartition
from coterie.client.admin.admin import Admin
from coterie.client.blocking.loop import LoopThread
from coterie.client.consumer.consumer import Consumer
from coterie.client.errors import WrongSetting
from coterie.client.producer.delivery import Delivery
from coterie.client.producer.errors import (
    NotWritten,
    OutcomeUnknown,
    ProducerFenced,
    TransactionAborted,
    TransactionFailed,
    TransactionFatal,
    TransactionMisuse,
)
from coterie.wire.api.apis import ApiKey

from .asynchronous import WatchedProducer as Producer
from .asynchronous import run
from .brokers import Broker, broker
from .proxy import LAST_BEFORE_KIP_890, Proxy, Slow, until
from .test_producer import behind
from .test_transactions import a_name, committed_offset, committed_values, read

NewTopic = Callable[..., str]
ADDS_PARTITIONS = {ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN}


@dataclass
class Kind:
    """A broker with transactions of one kind, and what passes by the proxy before it."""

    bootstrap: str
    proxy: Proxy
    version_2: bool
    broker: Broker

    def topic(self) -> str:
        """Return the name of a topic that comes into being when it is written to."""
        return f"topic-{uuid.uuid4()}"

    async def committed(self, topic: str, *, count: int) -> list[bytes]:
        """Return what a reader of committed records sees, once there are so many."""
        return await asyncio.to_thread(committed_values, self.bootstrap, topic, count=count)

    async def everything(self, topic: str) -> list[bytes]:
        """Return what is in the log."""
        return await asyncio.to_thread(
            read, self.bootstrap, topic, partitions=1, isolation="read_uncommitted"
        )

    async def offset(self, group: str, place: TopicPartition) -> int:
        """Return what the group has committed."""
        return await asyncio.to_thread(committed_offset, self.bootstrap, group, tuple(place))


@pytest.fixture(scope="module", params=[True, False], ids=["kip-890", "before"])
def running_kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    """A broker whose clients take it for one of Kafka 4, or 3.9; a thread runs the proxy before it."""
    version_2 = bool(request.param)
    proxy, thread = Proxy(most=None if version_2 else LAST_BEFORE_KIP_890), LoopThread("proxy")
    block = behind(proxy)
    running = thread.submit(block.__aenter__()).result()
    yield Kind(f"127.0.0.1:{proxy.port}", proxy, version_2, running)
    thread.submit(block.__aexit__(None, None, None)).result()
    thread.stop()


@pytest.fixture
def kind(running_kind: Kind) -> Kind:
    """The same, with a proxy that passes everything on until the test says otherwise."""
    proxy = running_kind.proxy
    proxy.cut_after = proxy.hold = proxy.keep_back = lambda api_key: False
    running_kind.proxy.seen.clear()
    return running_kind


def a_producer(kind: Kind, transactional_id: str | None = None, **settings: object) -> Producer:
    given = {"linger_ms": 1, "retry_backoff_ms": 10, **settings}
    return Producer(kind.bootstrap, transactional_id=transactional_id or a_name(), **given)


def test_what_commits_is_seen_whole_and_what_aborts_is_not(kind: Kind) -> None:
    async def scenario() -> tuple[list[bytes], list[bytes], set[int]]:
        topic = kind.topic()
        async with a_producer(kind) as producer:
            for number in range(4):
                with contextlib.suppress(ZeroDivisionError):
                    async with producer.transaction():
                        first = await producer.send(topic, b"a%d" % number)
                        await producer.send(topic, b"b%d" % number)
                        await first
                        await producer.flush()
                        assert 1 / (1 - number % 2)
            asked = {key for who, key in kind.proxy.seen if who == producer.settings.client_id}
        return await kind.committed(topic, count=4), await kind.everything(topic), asked

    committed, everything, asked = run(scenario())

    assert committed == [b"a0", b"b0", b"a2", b"b2"]
    assert len(everything) == 8
    assert bool(ADDS_PARTITIONS & asked) is not kind.version_2


def test_offsets_count_with_the_transaction_that_they_came_in(kind: Kind) -> None:
    topic, group = kind.topic(), a_name("group")
    place = TopicPartition(topic, 0)

    async def scenario() -> tuple[int, int]:
        async with a_producer(kind) as producer:
            with contextlib.suppress(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send(topic, b"in vain")
                    await producer.send_offsets({place: 7}, GroupMetadata(group))
                    assert 1 / 0
            after_abort = await kind.offset(group, place)
            async with producer.transaction():
                await producer.send_offsets({place: 8}, GroupMetadata(group))
            return after_abort, await kind.offset(group, place)

    after_abort, at_last = run(scenario())

    assert after_abort < 0
    assert at_last == 8


def test_offsets_of_a_member_that_the_group_does_not_know_abort_the_transaction(kind: Kind) -> None:
    async def scenario() -> tuple[Code, list[bytes]]:
        topic = kind.topic()
        async with a_producer(kind) as producer:

            async def as_a_stranger() -> None:
                async with producer.transaction():
                    await producer.send(topic, b"in vain")
                    stranger = GroupMetadata(a_name("group"), 3, "a stranger")
                    await producer.send_offsets({TopicPartition(topic, 0): 7}, stranger)

            with pytest.raises(TransactionFailed) as refused:
                await as_a_stranger()
            async with producer.transaction():
                await producer.send(topic, b"for good")
        return refused.value.code, await kind.committed(topic, count=1)

    code, committed = run(scenario())

    assert code in (Code.ILLEGAL_GENERATION, Code.UNKNOWN_MEMBER_ID)
    assert committed == [b"for good"]


def test_offsets_asked_for_in_the_moment_of_the_end_count_with_it(kind: Kind) -> None:
    topic, group = kind.topic(), a_name("group")
    place = TopicPartition(topic, 0)

    async def scenario() -> tuple[int, int]:
        async with a_producer(kind) as producer, asyncio.timeout(30):
            async with producer.transaction():
                await producer.send(topic, b"first")
            async with producer.transaction():
                sending = asyncio.create_task(producer.send_offsets({place: 7}, GroupMetadata(group)))
                await asyncio.sleep(0)
            await sending
            at_the_end = await kind.offset(group, place)
            with contextlib.suppress(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send(topic, b"in vain")
                    assert 1 / 0
            return at_the_end, await kind.offset(group, place)

    assert run(scenario()) == (7, 7)


def test_the_owner_before_is_fenced(kind: Kind) -> None:
    async def scenario() -> list[bytes]:
        topic, name = kind.topic(), a_name()
        async with a_producer(kind, name) as zombie:

            async def write() -> None:
                async with zombie.transaction():
                    await (await zombie.send(topic, b"of the zombie"))
                    async with a_producer(kind, name) as owner, owner.transaction():
                        await owner.send(topic, b"of the owner")

            for attempt in (write(), zombie.send(topic, b"again"), zombie.transaction().__aenter__()):
                with pytest.raises(ProducerFenced, match="another producer has the transactional id"):
                    await attempt
        return await kind.committed(topic, count=1)

    assert run(scenario()) == [b"of the owner"]


def test_a_record_that_is_refused_takes_the_transaction_with_it(kind: Kind) -> None:
    async def scenario() -> list[bytes]:
        topic = kind.topic()
        async with a_producer(kind, max_request_size=3_000_000) as producer:

            async def write(value: bytes) -> Delivery:
                async with producer.transaction():
                    await producer.send(topic, b"small")
                    sent.append(await producer.send(topic, value))
                return sent[-1]

            sent: list[Delivery] = []
            await write(b"before")
            with pytest.raises(TransactionAborted) as aborted:
                await write(bytes(2_000_000))
            with pytest.raises(NotWritten, match="MESSAGE_TOO_LARGE"):
                await sent[-1]
            assert isinstance(aborted.value.__cause__, NotWritten)
            await write(b"after")
        return await kind.committed(topic, count=4)

    assert run(scenario()) == [b"small", b"before", b"small", b"after"]


@pytest.mark.parametrize("lost", [ApiKey.END_TXN, ApiKey.PRODUCE, ApiKey.INIT_PRODUCER_ID])
def test_answers_that_are_lost_are_asked_for_again(kind: Kind, lost: int) -> None:
    async def scenario() -> list[bytes]:
        topic, count = kind.topic(), [0]

        def cut(api_key: int) -> bool:
            count[0] += api_key == lost
            return api_key == lost and count[0] % 2 == 1

        kind.proxy.cut_after = cut
        async with a_producer(kind) as producer:
            for number in range(3):
                async with producer.transaction():
                    await producer.send(topic, b"%d" % number)
        kind.proxy.cut_after = lambda api_key: False
        return await kind.committed(topic, count=3)

    assert run(scenario()) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_coordinator_that_falls_silent_at_the_end_is_asked_by_the_next_transaction(
    kind: Kind, commit: bool
) -> None:
    async def scenario() -> list[bytes]:
        async def write(producer: Producer, topic: str) -> None:
            async with producer.transaction():
                await (await producer.send(topic, b"1"))
                assert commit or 1 / 0

        topic = kind.topic()
        patience = {"max_block_ms": 1_500, "request_timeout_ms": 600}
        async with a_producer(kind, **patience) as producer:
            async with producer.transaction():
                await producer.send(topic, b"0")
            kind.proxy.hold = lambda api_key: api_key == ApiKey.END_TXN
            with pytest.raises(OutcomeUnknown if commit else ZeroDivisionError):
                await write(producer, topic)
            kind.proxy.hold = lambda api_key: False
            async with producer.transaction():
                await producer.send(topic, b"2")
        return await kind.committed(topic, count=3 if commit else 2)

    assert run(scenario()) == ([b"0", b"1", b"2"] if commit else [b"0", b"2"])


def test_a_transaction_that_is_cancelled_is_aborted(kind: Kind) -> None:
    async def scenario() -> tuple[list[bytes], list[bytes]]:
        topic = kind.topic()
        async with a_producer(kind) as producer:
            written = asyncio.Event()

            async def work() -> None:
                async with producer.transaction():
                    await (await producer.send(topic, b"in vain"))
                    written.set()
                    await asyncio.sleep(60)

            task = asyncio.create_task(work())
            await written.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with producer.transaction():
                await producer.send(topic, b"for good")
        return await kind.committed(topic, count=1), await kind.everything(topic)

    assert run(scenario()) == ([b"for good"], [b"in vain", b"for good"])


def test_an_abort_that_is_cancelled_leaves_no_record_to_the_next_transaction(kind: Kind) -> None:
    async def scenario() -> list[bytes]:
        topic, slow = kind.topic(), Slow(ApiKey.PRODUCE)
        async with a_producer(kind) as producer:

            async def write(value: bytes, *, gives_up: bool = False) -> None:
                async with producer.transaction():
                    await producer.send(topic, value)
                    await until(lambda: slow.kept or not gives_up)
                    assert not gives_up

            await write(b"first")
            kind.proxy.keep_back = slow
            given_up = asyncio.create_task(write(b"in vain", gives_up=True))
            await until(lambda: slow.kept)
            await asyncio.sleep(0.01)
            given_up.cancel()  # while the abort waits for what was sent
            with pytest.raises((asyncio.CancelledError, AssertionError)):
                await given_up
            second = asyncio.create_task(write(b"second"))
            await asyncio.wait([second], timeout=0.2)
            slow.passes = True
            await second
        return await kind.committed(topic, count=2)

    assert run(scenario()) == [b"first", b"second"]


def test_a_cancelled_question_about_offsets_leaves_no_transaction_open(kind: Kind) -> None:
    async def scenario() -> str:
        place, name = TopicPartition(kind.topic(), 0), a_name()
        slow = Slow(ApiKey.TXN_OFFSET_COMMIT if kind.version_2 else ApiKey.ADD_OFFSETS_TO_TXN)
        async with a_producer(kind, name) as producer, Admin(kind.bootstrap) as admin:
            async with producer.transaction():
                await producer.send(place.topic, b"first")
            kind.proxy.keep_back = slow

            async def give_up() -> None:
                async with producer.transaction():
                    sending = asyncio.create_task(producer.send_offsets({place: 1}, GroupMetadata("g")))
                    await until(lambda: slow.kept)
                    sending.cancel()
                    await sending

            given_up = asyncio.create_task(give_up())
            await asyncio.wait([given_up], timeout=0.1)
            slow.passes = True
            with pytest.raises(asyncio.CancelledError):
                await given_up
            # Apache Kafka answers an EndTxn at PrepareAbort, and writes the markers after.
            while (state := (await admin.describe_transaction(name)).state) == "PrepareAbort":
                pass
            return state

    assert run(scenario()) == "CompleteAbort"


def test_a_producer_that_closes_aborts_what_is_open(kind: Kind) -> None:
    async def scenario() -> list[bytes]:
        topic = kind.topic()
        producer = a_producer(kind)
        await producer.start()
        block = producer.transaction()
        await block.__aenter__()
        await (await producer.send(topic, b"in vain"))
        await producer.close()
        async with a_producer(kind) as other, other.transaction():
            await other.send(topic, b"for good")
        return await kind.committed(topic, count=1)

    assert run(scenario()) == [b"for good"]


@pytest.mark.slow
def test_a_transaction_outlives_the_broker(kind: Kind) -> None:
    async def scenario() -> list[bytes]:
        async with a_producer(kind) as producer, producer.transaction():
            await (await producer.send("flights", b"before"))
            await asyncio.to_thread(kind.broker.kill)
            await producer.send("flights", b"between")
            await asyncio.to_thread(kind.broker.start)
            await producer.send("flights", b"after")
        return await kind.committed("flights", count=3)

    assert run(scenario()) == [b"before", b"between", b"after"]


def test_a_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_of_no_more_use() -> None:
    often = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50}

    async def scenario() -> list[bytes]:
        async def write_slowly(producer: Producer, admin: Admin) -> None:
            async with producer.transaction():
                await (await producer.send("flights", b"in vain"))
                while (await admin.describe_transaction("slow")).state != "CompleteAbort":
                    pass

        async with broker(often) as running, Admin(running.bootstrap) as admin:
            settings = {"transactional_id": "slow", "transaction_timeout_ms": 1_000, "linger_ms": 0}
            async with Producer(running.bootstrap, **settings) as producer:
                with pytest.raises(TransactionFatal, match="longer than transaction_timeout_ms"):
                    await write_slowly(producer, admin)
            return await asyncio.to_thread(committed_values, running.bootstrap, "flights")

    assert run(scenario()) == []


def test_a_copy_by_our_consumer_and_our_producer_is_exact_however_often_it_is_interrupted(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """Consume, transform, produce: after an abort the copy goes on from the group's offsets."""
    source, copy, group, transactional_id = new_topic(partitions=2), new_topic(), a_name("group"), a_name()
    settings = {"isolation_level": "read_committed", "enable_auto_commit": False}
    settings |= {"partition_assignment_strategy": "range"}

    async def copy_some(fail: bool) -> int:
        consumer = Consumer(
            source, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", **settings
        )
        async with consumer, Producer(bootstrap, transactional_id=transactional_id) as producer:
            while not (found := await consumer.getmany(timeout_ms=500, max_records=40)):
                pass
            with contextlib.suppress(ZeroDivisionError):
                async with producer.transaction():
                    for records in found.values():
                        for record in records:
                            await producer.send(copy, record.value)
                    done = {place: records[-1].offset + 1 for place, records in found.items()}
                    await producer.send_offsets(done, consumer.group_metadata())
                    assert not fail or 1 / 0
        return 0 if fail else sum(map(len, found.values()))

    async def scenario() -> list[int]:
        async with Producer(bootstrap, transactional_id=a_name()) as producer, producer.transaction():
            for number in range(100):
                await producer.send(source, b"%d" % number, partition=number % 2)
        copied = attempts = 0
        while copied < 100:
            copied += await copy_some(fail=attempts % 3 == 0)
            attempts += 1
        return sorted(map(int, await asyncio.to_thread(committed_values, bootstrap, copy, count=100)))

    assert run(scenario()) == list(range(100))


def test_calls_that_fit_no_transaction_say_what_to_do(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()

    async def scenario() -> None:
        async with Producer(bootstrap, transactional_id=a_name()) as producer:
            with pytest.raises(TransactionMisuse, match="within `async with"):
                await producer.send(topic, b"v")
            async with producer.transaction():
                await producer.send(topic, b"v")
                with pytest.raises(TransactionMisuse, match="leave its block"):
                    async with producer.transaction():
                        pass
            with pytest.raises(TransactionMisuse):
                await producer.send(topic, b"v")
        async with Producer(bootstrap) as producer:
            with pytest.raises(WrongSetting, match="transactional_id"):
                async with producer.transaction():
                    pass

    run(scenario())
