"""The faces for scripts that block: each does what its asyncio face does, and leaves no thread behind."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from queue import Queue
from typing import Any

import pytest

from coterie.base.errors import CoterieError
from coterie.base.ids import GroupMetadata, TopicPartition
from coterie.client import (
    Admin,
    BlockingAdmin,
    BlockingConsumer,
    BlockingProducer,
    Consumer,
    Producer,
    RebalanceListener,
)
from coterie.client.admin import resets
from coterie.client.admin.groups import NoSuchGroup
from coterie.client.errors import Closed, Disconnected, Undecodable, WrongUse
from coterie.client.producer.errors import ProducerClosed, TransactionMisuse

NewTopic = Callable[..., str]
WITHIN_MS = 10_000
# Spark's sink hands over encoded columns, on the producer's own loop; a blocking face hands back by itself.
INNER = {"send_packed", "start_on", "hand_back"}


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Each face ends its thread when it closes."""
    before = set(threading.enumerate())
    yield
    left = [one.name for one in set(threading.enumerate()) - before if one.name.startswith("coterie ")]
    assert left == []


@pytest.mark.parametrize(
    ("face", "blocking"), [(Admin, BlockingAdmin), (Producer, BlockingProducer), (Consumer, BlockingConsumer)]
)
def test_what_a_face_can_its_blocking_one_can(face: type, blocking: type) -> None:
    missing = {name for name, _ in inspect.getmembers(face, callable) if name[0] != "_"} - set(dir(blocking))

    assert missing - INNER == set()


def test_records_are_produced_and_told_where_they_are(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with BlockingProducer(bootstrap, linger_ms=50) as producer:
        deliveries = [producer.send(topic, b"%d" % number) for number in range(100)]
        assert producer.partitions_for(topic) == 1
        producer.flush()
        assert all(delivery.done() for delivery in deliveries)
        late = producer.send(topic, b"100", key=b"k", headers={"h": b"1"})

        assert [delivery.result().offset for delivery in deliveries] == list(range(100))
        assert late.result().offset == 100
    with pytest.raises((Closed, ProducerClosed)):
        producer.send(topic, b"late")


def test_what_is_not_acknowledged_when_it_closes_fails(bootstrap: str, new_topic: NewTopic) -> None:
    producer = BlockingProducer(bootstrap, linger_ms=60_000, delivery_timeout_ms=120_000)
    producer.start()
    delivery = producer.send(new_topic(), b"v")
    producer.close(timeout_ms=0)

    with pytest.raises(ProducerClosed):
        delivery.result()


def test_transactions_are_whole_or_nothing(bootstrap: str, new_topic: NewTopic) -> None:
    topic, group = new_topic(), f"group-{new_topic()}"
    place = TopicPartition(topic, 0)
    with BlockingProducer(bootstrap, transactional_id=topic) as producer:
        with producer.transaction():
            producer.send(topic, b"kept")
            producer.send_offsets({place: 7}, GroupMetadata(group))
        try:
            with producer.transaction():
                producer.send(topic, b"taken back")
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass

    settings = {"bootstrap_servers": bootstrap, "auto_offset_reset": "earliest", "group_id": group}
    with BlockingConsumer(isolation_level="read_committed", **settings) as consumer:
        consumer.assign([place])
        assert consumer.partitions_for(topic) == (place,)
        assert topic in consumer.topics()
        assert (consumer.subscription(), consumer.paused()) == (None, frozenset())
        assert consumer.committed([place]) == {place: 7}
        consumer.seek_to_beginning()
        found = consumer.getmany(timeout_ms=WITHIN_MS)
        assert [record.value for record in found[place]] == [b"kept"]
        consumer.commit({place: 1})
        noted = consumer.committed(metadata=True)[place]
        assert noted is not None
        assert noted.offset == 1


def test_an_administrator_asks_and_changes_a_cluster(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=2)
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    with BlockingAdmin(bootstrap) as admin:
        assert admin.partitions_named([topic]) == places
        assert topic in {one.name for one in admin.list_topics()}
        admin.alter_group_offsets(topic, dict.fromkeys(places, 0))
        moves = admin.reset_group_offsets(topic, resets.ToLatest())
        assert [(move.partition, move.after) for move in moves] == [(place, 0) for place in places]
        admin.delete_group(topic)
        with pytest.raises(NoSuchGroup):
            admin.describe_group(topic)
    with pytest.raises(Closed, match="this administrator does not run"):
        admin.list_topics()


@pytest.mark.parametrize("face", [BlockingAdmin, BlockingProducer, BlockingConsumer])
def test_nobody_at_the_address_is_told_at_once(face: Callable[..., BlockingAdmin]) -> None:
    with (
        pytest.raises(Disconnected, match=r"no connection to 127\.0\.0\.1:1"),
        face(bootstrap_servers=["127.0.0.1:1"]),
    ):
        pass


@pytest.mark.parametrize("left_by", [SystemExit(3), KeyboardInterrupt(), ValueError()])
def test_however_its_block_is_left_a_producer_writes_what_was_sent(
    left_by: BaseException, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()

    def script() -> None:
        with BlockingProducer(bootstrap, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
            for _ in range(10):
                producer.send(topic, b"v")
            raise left_by

    async def same() -> None:
        async with Producer(bootstrap, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
            for _ in range(10):
                await producer.send(topic, b"v")
            raise left_by

    with pytest.raises(type(left_by)):
        script()
    assert end_of(bootstrap, topic) == 10
    if not isinstance(left_by, KeyboardInterrupt):  # asyncio makes a cancellation of that
        runner = asyncio.Runner()
        with pytest.raises(type(left_by)):
            runner.run(same())
        runner.close()
        assert end_of(bootstrap, topic) == 20


def end_of(bootstrap: str, topic: str) -> int:
    with BlockingAdmin(bootstrap) as admin:
        return admin.list_offsets([(topic, 0)])[TopicPartition(topic, 0)].offset


NEVER_CLOSED = """
import sys
from coterie.client import BlockingAdmin, BlockingConsumer, BlockingProducer
bootstrap, topic = sys.argv[1:]
producer = BlockingProducer(bootstrap, linger_ms=60_000, delivery_timeout_ms=120_000)
admin = BlockingAdmin(bootstrap)
consumer = BlockingConsumer(topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest")
for face in (admin, producer, consumer):
    face.start()
for _ in range(10):
    producer.send(topic, b"v").done()
while not consumer.assignment():
    consumer.getmany(timeout_ms=10)
print("over")
"""


def test_what_a_script_does_not_close_is_closed_when_its_process_ends(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """What was sent is written, and the member has left."""
    topic = new_topic()

    ran = python(NEVER_CLOSED, bootstrap, topic)

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "over\n", "")
    assert end_of(bootstrap, topic) == 10
    with BlockingAdmin(bootstrap) as admin:
        assert admin.describe_group(topic).members == ()


FORKS = """
import os, sys
from coterie.client import BlockingAdmin, BlockingConsumer, BlockingProducer
bootstrap, topic = sys.argv[1:]
with BlockingProducer(bootstrap) as producer, BlockingAdmin(bootstrap) as admin, BlockingConsumer(
    bootstrap_servers=bootstrap, auto_offset_reset="earliest"
) as consumer:
    consumer.assign([(topic, 0)])
    first = producer.send(topic, b"parent")
    child = os.fork()
    if child == 0:
        calls = [lambda: producer.send(topic, b"child"), producer.flush]
        for call in [*calls, admin.list_topics, consumer.getmany, consumer.assignment]:
            try:
                call()
            except Exception as error:
                print(type(error).__name__, "before os.fork" in str(error))
        producer.close()
        with BlockingProducer(bootstrap) as own:
            own.send(topic, b"child").result()
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    first.result()
    producer.send(topic, b"parent again").result()
    read = []
    while len(read) < 3:
        read += [one.value for part in consumer.getmany(timeout_ms=100).values() for one in part]
    print(sorted(read), len(admin.list_topics()) > 0)
"""


def test_after_a_fork_the_child_is_told_to_make_its_own_and_the_parent_goes_on(
    bootstrap: str, new_topic: NewTopic
) -> None:
    ran = python(FORKS, bootstrap, new_topic())

    told = "WrongUse True\n" * 5 + "7\n"
    assert (ran.stdout, ran.stderr) == (told + "[b'child', b'parent', b'parent again'] True\n", "")


FORKED_BY_THREADS = """
import os, sys, threading
from coterie.client import BlockingAdmin

def fork_often():
    for _ in range(30):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

admin = BlockingAdmin(sys.argv[1])
admin.start()
threads = [threading.Thread(target=fork_often) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

def ask():
    admin.list_topics()
    print("answered", flush=True)
    os._exit(0)

threading.Thread(target=ask, daemon=True).start()
threading.Event().wait(50)
os._exit(1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_several_threads_may_fork_at_the_same_time(bootstrap: str) -> None:
    assert python(FORKED_BY_THREADS, bootstrap).stdout == "answered\n"


HELD_FOR_EVER = """
import sys, threading
from coterie.client import BlockingAdmin
from coterie.client.blocking import face, loop

face.SILENCE_TIMEOUT_S = loop.ANSWER_TIMEOUT_S = 0.1
admin = BlockingAdmin(sys.argv[1])
admin.start()
admin._thread.loop.call_soon_threadsafe(threading.Event().wait)
print("ends")
"""


def test_a_process_ends_though_code_of_the_applications_holds_the_loop_for_ever(bootstrap: str) -> None:
    ended = python(HELD_FOR_EVER, bootstrap)

    assert (ended.returncode, ended.stdout) == (0, "ends\n")
    assert "that was not closed: not done in time" in ended.stderr


def python(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own; it must end by itself."""
    command = [
        sys.executable,
        "-W",
        "ignore::DeprecationWarning",
        "-c",
        script,
        *words,
    ]  # 3.12 warns of forks
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


class Calls(RebalanceListener):
    """Calls a consumer in its plain methods, and notes what came of it."""

    def __init__(self, consumer: BlockingConsumer, **calls: Callable[[], object]) -> None:
        self.consumer, self.calls = consumer, calls
        self.came: list[object] = []

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._call("assigned")

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._call("revoked")

    def _call(self, kind: str) -> None:
        for name in [name for name in self.calls if name.startswith(kind)]:
            try:
                self.came.append(self.calls.pop(name)())
            except CoterieError as error:
                self.came.append(type(error))


def test_a_listeners_plain_methods_commit_as_who_the_member_is_now(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """Those who have been handed records, as who they were then."""
    topic = new_topic()
    with BlockingProducer(bootstrap) as producer:
        producer.send(topic, b"v")
    with BlockingConsumer(
        bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest", heartbeat_interval_ms=50
    ) as consumer:
        seen: Queue[GroupMetadata] = Queue()
        consumer.subscribe([topic], listener=(listener := Calls(consumer)))
        assert consumer.getone().value == b"v"
        before = consumer.group_metadata()
        listener.calls["assigned"] = lambda: seen.put(consumer.group_metadata())
        consumer.enforce_rebalance()
        assert seen.get(timeout=60) == before._replace(generation=before.generation + 1)
        assert consumer.group_metadata() == before


def test_a_listeners_plain_methods_may_call_the_consumer(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    place = TopicPartition(topic, 0)
    with BlockingProducer(bootstrap) as producer:
        for _ in range(5):
            producer.send(topic, b"v")
    with BlockingConsumer(
        bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest"
    ) as consumer:
        listener = Calls(
            consumer,
            assigned_seek=lambda: consumer.seek(place, 3),
            assigned_records=lambda: consumer.getmany(timeout_ms=10),
            assigned_next=lambda: next(iter(consumer)),
            revoked_commit=consumer.commit,
            revoked_owned=consumer.assignment,
        )
        consumer.subscribe([topic], listener=listener)
        assert consumer.getone().offset == 3
        assert listener.came == [None, WrongUse, WrongUse]
    assert listener.came[3:] == [None, {place}]
    with BlockingAdmin(bootstrap) as admin:
        assert admin.list_group_offsets(topic) == {place: 4}


@pytest.mark.parametrize("end", ["close", "unsubscribe"])
def test_a_listeners_plain_methods_may_end_the_consumer(
    end: str, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    with BlockingConsumer(bootstrap_servers=bootstrap, group_id=topic) as consumer:
        listener = Calls(consumer, assigned=getattr(consumer, end))
        consumer.subscribe([topic], listener=listener)
        with pytest.raises(WrongUse, match="closed" if end == "close" else "nothing to read"):
            consumer.getmany(timeout_ms=WITHIN_MS)
    assert listener.came == [None]
    with BlockingAdmin(bootstrap) as admin:
        assert admin.describe_group(topic).members == ()


def test_a_call_in_the_faces_own_thread_is_refused_instead_of_waiting_for_itself(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    with BlockingProducer(bootstrap) as producer:
        producer.send(topic, b"v")
    consumer = BlockingConsumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        value_deserializer=lambda value: consumer.assignment(),
    )

    class Asynchronous(RebalanceListener):
        async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            consumer.commit()

    with consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(Undecodable, match="would wait for the thread that it is made in"):
            consumer.getmany(timeout_ms=WITHIN_MS)
    with BlockingConsumer(bootstrap_servers=bootstrap, group_id=topic) as member:
        consumer = member
        member.subscribe([topic], listener=Asynchronous())
        with pytest.raises(WrongUse, match="no async one"):
            member.getmany(timeout_ms=WITHIN_MS)


def test_a_face_that_is_closed_in_another_thread_tells_who_waits(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    consumer = BlockingConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    consumer.start()
    consumer.assign([(topic, 0)])
    closing = threading.Timer(0.1, consumer.close)
    closing.start()
    with pytest.raises(Closed):
        consumer.getmany(timeout_ms=WITHIN_MS)
    closing.join()


def test_what_comes_as_a_call_is_interrupted_is_handed_out_by_the_next(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """Ctrl-C between the loop's last step and the script's first: nobody has seen those records."""
    topic = new_topic()
    with BlockingProducer(bootstrap) as producer:
        for number in range(6):
            producer.send(topic, b"%d" % number)
    with BlockingConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        run = consumer._run

        def interrupted(work: Coroutine[Any, Any, Any]) -> Any:
            run(work)
            raise KeyboardInterrupt

        read = []
        for ask in (
            lambda: [consumer.getone()],
            lambda: consumer.getmany(timeout_ms=WITHIN_MS, max_records=2)[TopicPartition(topic, 0)],
        ):
            read += ask()
            consumer._run = interrupted  # type: ignore[method-assign]
            with pytest.raises(KeyboardInterrupt):
                ask()
            consumer._run = run  # type: ignore[method-assign]
            read += ask()
        assert [one.offset for one in read] == list(range(6))


def test_a_transaction_that_is_interrupted_as_it_begins_is_none(bootstrap: str, new_topic: NewTopic) -> None:
    """Ctrl-C between the loop's last step and the script's first."""
    topic = new_topic()
    with BlockingProducer(bootstrap, transactional_id=topic) as producer:
        run = producer._run

        def interrupted(work: Coroutine[Any, Any, Any]) -> Any:
            producer._run = run  # type: ignore[method-assign]
            run(work)
            raise KeyboardInterrupt

        producer._run = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt) as told, producer.transaction():
            pass
        with producer.transaction(), pytest.raises(TransactionMisuse, match="open"), producer.transaction():
            pass
        with producer.transaction():
            sent = producer.send(topic, b"v")
        assert sent.result().offset == 0
        assert told.tb is not None  # whoever holds it holds all that was there then


@pytest.mark.parametrize("face", [BlockingAdmin, BlockingProducer, BlockingConsumer])
def test_a_face_is_started_once(face: type[Any], bootstrap: str) -> None:
    with face(bootstrap_servers=bootstrap) as one, pytest.raises(WrongUse, match="started before"):
        one.start()
