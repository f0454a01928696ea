"""`python -m interop.connect WORK CLASSPATH`: Connect with a worker killed, and MirrorMaker 2.

Lines of a file go to a topic exactly once, and from there to another file, while the worker dies that reads
them. Then an Apache Kafka is mirrored, exactly once, and the place of a group with it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.brokers import BROKERS, Broker, free_port
from bench.kafka import SetupError, java
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

LINES, MIRRORED, READ = 4_000, 800, 500
SETTLE_S = 150.0
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "3000"}
WORKER = """bootstrap.servers={broker}
group.id=workers
listeners=http://127.0.0.1:{port}
rest.advertised.host.name=127.0.0.1
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.storage.topic=connect-offsets
config.storage.topic=connect-configs
status.storage.topic=connect-status
offset.storage.replication.factor=1
config.storage.replication.factor=1
status.storage.replication.factor=1
exactly.once.source.support=enabled
offset.flush.interval.ms=500
session.timeout.ms=5000
heartbeat.interval.ms=1000
scheduled.rebalance.max.delay.ms=2000
"""
MIRROR = """clusters=source,target
source.bootstrap.servers={source}
target.bootstrap.servers={target}
source->target.enabled=true
source->target.topics=orders
source->target.groups=readers
target->source.enabled=false
target.exactly.once.source.support=enabled
source->target.sync.group.offsets.enabled=true
replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset-syncs.topic.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
config.storage.replication.factor=1
emit.checkpoints.interval.seconds=1
sync.group.offsets.interval.seconds=1
refresh.topics.interval.seconds=2
refresh.groups.interval.seconds=2
offset.lag.max=0
"""


def main() -> int:
    """Run both; returns 1 if something is lost or there twice."""
    parser = argparse.ArgumentParser(prog="python -m interop.connect", description="Connect and mirrors.")
    parser.add_argument("work", type=Path)
    parser.add_argument("classpath")
    parser.add_argument("--on", choices=list(BROKERS), default="coterie")
    asked = parser.parse_args()
    failed = 0
    for name, part in (("connect-worker-killed", connect), ("mirror-of-kafka", mirror)):
        wrong = part(asked.work / name, asked.classpath, asked.on)
        failed += wrong is not None
        print(f"ok {name}" if wrong is None else f"FAILED {name}: {wrong}", flush=True)
    return 1 if failed else 0


@contextmanager
def running(work: Path, name: str, classpath: str, main_class: str, settings: str) -> Iterator[Any]:
    """Run a program of Connect's with these settings."""
    properties = work / f"{name}.properties"
    properties.write_text(settings)
    command = [java(), "-Xmx384m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classpath]
    with (work / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, main_class, str(properties)], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def eventually(what: str, look: Callable[[], Any]) -> Any:
    """Return what `look` finds once that is something. Raises `AssertionError` when nothing comes."""
    until = time.monotonic() + SETTLE_S
    while time.monotonic() < until:
        found = look()
        if found:
            return found
        time.sleep(0.3)
    raise AssertionError(f"no {what} within {SETTLE_S:.0f} s")


# -- Connect


def connect(work: Path, classpath: str, on: str) -> str | None:
    """Return what is wrong with the lines after the worker was killed that read them."""
    work.mkdir(parents=True)
    source, sink = work / "in.txt", work / "out.txt"
    source.write_text("")
    with ExitStack() as stack:
        broker = stack.enter_context(BROKERS[on](work / "broker", SETTINGS))
        ports = [free_port(), free_port()]
        workers = [
            stack.enter_context(
                running(
                    work, f"worker-{port}", classpath, "org.apache.kafka.connect.cli.ConnectDistributed",
                    WORKER.format(broker=broker.address, port=port),
                )
            )
            for port in ports
        ]  # fmt: skip
        eventually("worker", lambda: None not in [rest(port, "/connectors") for port in ports])
        begin(ports[0], source, sink)
        place: str = eventually("task that reads", lambda: where_it_runs(ports[0], "reads"))
        victim = next(at for at, port in enumerate(ports) if str(port) in place)
        for number in range(LINES):
            with source.open("a") as file:
                file.write(f"line {number}\n")
            if number == LINES // 3:
                workers[victim].kill()
            time.sleep(0.002)
        wanted = [f"line {number}" for number in range(LINES)]
        found = read(broker, "copied", LINES)
        if sorted(found) != sorted(wanted):
            return f"{LINES} lines, {len(found)} in the topic, {len(set(found))} of them different"
        eventually("lines in the sink's file", lambda: set(sink.read_text().split("\n")) >= set(wanted))
    return None


def begin(port: int, source: Path, sink: Path) -> None:
    """Have a connector read the one file and another write the other."""
    package = "org.apache.kafka.connect.file"
    sink.touch()
    reads = {
        "connector.class": f"{package}.FileStreamSourceConnector",
        "file": str(source),
        "topic": "copied",
        "batch.size": "100",
        "tasks.max": "1",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
    }
    writes = {
        "connector.class": f"{package}.FileStreamSinkConnector",
        "file": str(sink),
        "topics": "copied",
        "tasks.max": "1",
        "consumer.override.isolation.level": "read_committed",
    }
    eventually("connector", lambda: rest(port, "/connectors/reads/config", reads))
    eventually("connector", lambda: rest(port, "/connectors/writes/config", writes))


def where_it_runs(port: int, connector: str) -> str | None:
    status = rest(port, f"/connectors/{connector}/status")
    tasks = [] if status is None else status["tasks"]
    return tasks[0]["worker_id"] if tasks and tasks[0]["state"] == "RUNNING" else None


def rest(port: int, path: str, put: dict[str, str] | None = None) -> Any:
    """Return what a worker answers, None while it does not."""
    data = None if put is None else json.dumps(put).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=data,
        method="GET" if put is None else "PUT",
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)
    except (OSError, urllib.error.HTTPError):
        return None


def read(broker: Broker, topic: str, count: int) -> list[str]:
    """Return the values of a topic, read committed: so many, and what comes within some seconds after."""
    settings = {"bootstrap.servers": broker.address, "group.id": "judge", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": False})
    consumer.subscribe([topic])
    found: list[str] = []
    until = time.monotonic() + SETTLE_S
    try:
        while len(found) < count and time.monotonic() < until:
            found += values(consumer.consume(500, timeout=1.0))
        found += values(consumer.consume(500, timeout=5.0))
    finally:
        consumer.close()
    return found


def values(messages: list[Any]) -> list[str]:
    return [message.value().decode() for message in messages if message.error() is None]


# -- MirrorMaker 2


def mirror(work: Path, classpath: str, on: str) -> str | None:
    """Return what is wrong with the mirror of an Apache Kafka and with the place of its readers."""
    work.mkdir(parents=True)
    with ExitStack() as stack:
        source = stack.enter_context(BROKERS["kafka"](work / "source", SETTINGS))
        target = stack.enter_context(BROKERS[on](work / "target", SETTINGS))
        topic = NewTopic(
            "orders", num_partitions=1, replication_factor=1, config={"retention.ms": "86400000"}
        )
        admin = AdminClient({"bootstrap.servers": source.address})
        for created in admin.create_topics([topic]).values():
            created.result()
        producer = Producer({"bootstrap.servers": source.address})
        for number in range(MIRRORED):
            producer.produce("orders", str(number).encode())
        producer.flush(SETTLE_S)
        eventually("commit", lambda: commits(source))
        settings = MIRROR.format(source=source.address, target=target.address)
        main_class = "org.apache.kafka.connect.mirror.MirrorMaker"
        with running(work, "mirror", classpath, main_class, settings):
            eventually("mirrored topic", lambda: "source.orders" in topics_of(target))
            found = read(target, "source.orders", MIRRORED)
            if found != [str(number) for number in range(MIRRORED)]:
                return f"{MIRRORED} records, {len(found)} in the mirror, {len(set(found))} of them different"
            place = eventually("place of the readers", lambda: committed(target))
        first = first_from(target, place)
        return None if 0 < first <= READ else f"the readers go on at record {first}, they had read {READ}"


def commits(broker: Broker) -> bool:
    """Return whether the readers' place could be committed; a fresh coordinator may not be there yet."""
    readers = Consumer({"bootstrap.servers": broker.address, "group.id": "readers"})
    try:
        readers.commit(offsets=[TopicPartition("orders", 0, READ)], asynchronous=False)
    except KafkaException:
        return False
    finally:
        readers.close()
    return True


def topics_of(broker: Broker) -> set[str]:
    return set(AdminClient({"bootstrap.servers": broker.address}).list_topics(timeout=30).topics)


def committed(broker: Broker) -> int:
    """Return what is committed for the readers in the mirror, 0 for nothing."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "readers"})
    try:
        (found,) = consumer.committed([TopicPartition("source.orders", 0)], timeout=30)
    finally:
        consumer.close()
    return max(0, found.offset)


def first_from(broker: Broker, offset: int) -> int:
    """Return which record a reader of the mirror gets first."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "looks"})
    consumer.assign([TopicPartition("source.orders", 0, offset)])
    try:
        message = eventually("record", lambda: consumer.poll(1.0))
    finally:
        consumer.close()
    return int(message.value())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (SetupError, AssertionError) as error:
        sys.exit(f"interop.connect: {error}")
