"""A disk that fills up beneath a running broker: clients are told, nothing is half done, and it goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

import coterie.testing

from .adapters.confluent import ConfluentAdmin
from .running import wait_until

pytestmark = pytest.mark.ours("what a client is told when the disk is full is our broker's choice")

SIZE = "8m"
QUIET = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
TOPIC, GROUP = "orders", "readers"


class SmallDisk:
    """A file system of 8 MB, which a large file beside the data fills to the last byte."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "data"
        self._filler = path / "filler"

    def fill(self) -> None:
        """Leave no room at all."""
        with open(self._filler, "ab", buffering=0) as filler:
            size = 1 << 20
            while size:
                try:
                    filler.write(bytes(size))
                except OSError:
                    size //= 2

    def make_room(self) -> None:
        """Take away what fills it."""
        self._filler.unlink(missing_ok=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A small file system; only root may mount one."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(tmp_path)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command: a small file system cannot be made here")
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.fixture
def broker(disk: SmallDisk) -> Iterator[coterie.testing.Broker]:
    """A broker whose data lies on the small disk, with a topic."""
    settings = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 2}
    with coterie.testing.broker(settings, data=disk.data) as running:
        with ConfluentAdmin(running.bootstrap) as admin:
            admin.create(TOPIC, partitions=2)
        yield running
        disk.make_room()


def produce(bootstrap: str, value: bytes) -> Any:
    """Produce one record without another try; return the error, None if it was acknowledged."""
    told: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, "retries": 0, **QUIET})
    producer.produce(TOPIC, value, partition=0, on_delivery=lambda error, message: told.append(error))
    producer.flush(20)
    (error,) = told
    return error


class Committing:
    """A consumer that commits for a group without members."""

    def __init__(self, bootstrap: str) -> None:
        self.group = f"group-{uuid.uuid4()}"
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": self.group, **QUIET})

    def commit(self, offset: int) -> str | None:
        """Commit and return the name of the error, None without one."""
        try:
            (place,) = self._consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
        except KafkaException as problem:
            return str(problem.args[0].name())
        return None if place.error is None else str(place.error.name())

    def committed(self) -> int:
        """Return what is committed."""
        (place,) = self._consumer.committed([TopicPartition(TOPIC, 0)], 10)
        return int(place.offset)

    def close(self) -> None:
        self._consumer.close()


def test_clients_are_told_of_a_full_disk_and_served_again_when_there_is_room(
    disk: SmallDisk, broker: coterie.testing.Broker
) -> None:
    committing = Committing(broker.bootstrap)
    assert committing.commit(1) is None
    assert produce(broker.bootstrap, b"before") is None
    disk.fill()

    refused = produce(broker.bootstrap, bytes(100_000))
    acknowledged, error, offset = 1, None, 1
    while error is None:  # what is left of the last page takes some
        acknowledged, offset = offset, offset + 1
        error = committing.commit(offset)

    assert refused.code() == KafkaError.KAFKA_STORAGE_ERROR
    assert error == "NOT_COORDINATOR"
    assert committing.committed() == acknowledged
    (told,) = [line for line in broker.log.splitlines() if f"{TOPIC}-0: No space left on device" in line]
    assert "no records can be written for now" in told
    with ConfluentAdmin(broker.bootstrap) as admin, pytest.raises(Exception, match="error 56"):
        admin.create("another", partitions=2)

    disk.make_room()

    assert produce(broker.bootstrap, b"after") is None
    assert "records are written again: " in broker.log
    assert committing.commit(1_000_000) is None
    with ConfluentAdmin(broker.bootstrap) as admin:
        admin.create("another", partitions=2)
    broker.kill()
    broker.start()
    assert committing.committed() == 1_000_000
    committing.close()


def test_a_group_gets_through_a_full_disk(disk: SmallDisk, broker: coterie.testing.Broker) -> None:
    members = [
        Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": GROUP,
                "heartbeat.interval.ms": 100,
                "session.timeout.ms": 6_000,
                **QUIET,
            }
        )
        for _ in range(2)
    ]
    first, second = members
    first.subscribe([TOPIC])
    wait_until(lambda: first.poll(0.05) is None and len(first.assignment()) == 2)
    disk.fill()
    committing = Committing(broker.bootstrap)
    while committing.commit(1) is None:
        pass

    second.subscribe([TOPIC])  # its assignment cannot be stored
    for _ in range(40):
        first.poll(0.05)
        second.poll(0.05)
    assert len(second.assignment()) == 0
    disk.make_room()

    def shared() -> bool:
        for member in members:
            member.poll(0.05)
        return [len(member.assignment()) for member in members] == [1, 1]

    wait_until(shared)
    for member in (*members, committing):
        member.close()


def serve(disk: SmallDisk) -> subprocess.CompletedProcess[str]:
    """Start a broker that is expected to give up."""
    command = [sys.executable, "-m", "coterie", "serve", "--listen", "127.0.0.1:0", "--data", str(disk.data)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_a_broker_that_cannot_begin_on_a_full_disk_says_why_in_a_sentence(disk: SmallDisk) -> None:
    disk.fill()

    ended = serve(disk)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.strip().splitlines()[-1].startswith("coterie: ")
    assert "No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_broker_that_was_killed_on_a_full_disk_starts_on_it_or_says_why_it_cannot(
    disk: SmallDisk, broker: coterie.testing.Broker
) -> None:
    committing = Committing(broker.bootstrap)
    assert committing.commit(7) is None
    disk.fill()
    broker.kill()

    said = ""
    try:
        broker.start()
    except coterie.testing.BrokerFailed as failed:
        said = str(failed)
        disk.make_room()
        broker.start()

    assert not said or ("No space left on device" in said and "Traceback" not in said)
    assert committing.committed() == 7
    disk.make_room()
    assert committing.commit(8) is None
    committing.close()


def test_a_small_disk_is_small(disk: SmallDisk) -> None:
    """Or else the tests above prove nothing."""
    disk.fill()

    assert os.statvfs(disk.path).f_bavail == 0
