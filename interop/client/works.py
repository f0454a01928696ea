"""What a client does with a secured Apache Kafka, each to its end or failing with what it has seen."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.client import Admin, BlockingAdmin, BlockingProducer, Consumer, Producer

__all__ = [
    "TOPIC",
    "WITHIN_S",
    "Settings",
    "administered",
    "blocking",
    "commanded",
    "passed",
    "produce",
    "read",
    "refused",
    "written",
]

TOPIC, WRITTEN = "secured", "written"
RECORDS = [str(number).encode() * 100 for number in range(500)]
WITHIN_S = 30.0
TRIES = 300

Settings = dict[str, Any]


async def read(settings: Settings) -> None:
    """Read all records from their beginning, or fail."""
    async with Consumer(auto_offset_reset="earliest", **settings) as consumer:
        if consumer.settings.group_id is None:
            consumer.assign(await consumer.partitions_for(TOPIC))
        else:
            consumer.subscribe([TOPIC])
        got: list[bytes | None] = []
        async with asyncio.timeout(WITHIN_S):
            while len(got) < len(RECORDS):
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    got += [record.value for record in records]
        assert sorted(got, key=repr) == sorted(RECORDS, key=repr), (
            f"{len(got)} records, not those that were sent"
        )


async def written(settings: Settings) -> None:
    """Write records, in a transaction and without one, and find them at the end of the log; or fail."""
    patient = {**settings, "delivery_timeout_ms": 20_000, "request_timeout_ms": 10_000}
    async with Producer(**patient) as producer:
        deliveries = [await producer.send(WRITTEN, value) for value in RECORDS[:50]]
        first = [await delivery for delivery in deliveries]
    async with Producer(**patient, transactional_id="secured") as producer:
        async with producer.transaction():
            last = await producer.send(WRITTEN, b"last")
        where = await last
    assert len({(one.partition, one.offset) for one in first}) == len(first)
    async with Admin(**settings) as admin:
        place = TopicPartition(where.topic, where.partition)
        for _ in range(TRIES):  # the marker follows when the transaction has ended
            end = (await admin.list_offsets([place]))[place].offset
            if end == where.offset + 2:
                return
            await asyncio.sleep(WITHIN_S / TRIES)
    raise AssertionError(f"the end is {end}, but a marker follows the record at {where.offset}")


async def administered(settings: Settings) -> None:
    """Create a topic, see it, set offsets, delete both; or fail."""
    async with Admin(**settings) as admin:
        await admin.create_topic("administered", partitions=2)
        described = (await admin.describe_topics(["administered"]))["administered"]
        assert len(described.partitions) == 2
        await admin.alter_group_offsets("administered", {TopicPartition("administered", 1): 0})
        assert "administered" in {one.group_id for one in await admin.list_groups()}
        await admin.delete_group("administered")
        await admin.delete_topic("administered")
        assert (await admin.describe_cluster()).brokers


async def commanded(settings: Settings) -> None:
    """Ask by the command line, with the settings in a file; or fail."""
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
        for name, value in settings.items():
            if name != "bootstrap_servers":
                file.write(f"{name.replace('_', '.')}={value}\n")
        file.flush()
        words = ("--bootstrap", settings["bootstrap_servers"], "--command-config", file.name)
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "coterie", "topics", "list", "--output", "json", *words),
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await command.communicate()
    assert command.returncode == 0, f"it ended with {command.returncode}"
    assert TOPIC.encode() in said, f"it said {said!r}"


def blocking(settings: Settings) -> None:
    """Do the same without asyncio, or fail."""
    with BlockingProducer(**settings) as producer:
        assert producer.send(WRITTEN, b"blocking").result().offset >= 0
    with BlockingAdmin(**settings) as admin:
        assert WRITTEN in {one.name for one in admin.list_topics()}


async def refused(
    settings: Settings,
    error: type[CoterieError],
    words: str,
    *,
    work: Callable[[Settings], Awaitable[None]] = read,
) -> None:
    """Expect that the way in is barred, with this error, and that it says so."""
    begun = time.monotonic()
    try:
        await work(settings)
    except error as raised:
        said = str(raised)
    else:
        raise AssertionError("it was let in")
    assert words in said, f"it says only: {said}"
    assert time.monotonic() - begun < WITHIN_S / 2, "it was tried again and again"


def produce(bootstrap: str) -> None:
    """Write the records through the plain listener."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(TOPIC, 3, 1), NewTopic(WRITTEN, 1, 1)]).values():
        created.result(WITHIN_S)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number, value in enumerate(RECORDS):
        producer.produce(TOPIC, value, partition=number % 3)
    assert producer.flush(WITHIN_S) == 0


def passed(name: str, check: Awaitable[None], *, within_s: float = 2 * WITHIN_S) -> bool:
    """Return whether a check holds, and say so."""
    try:
        asyncio.run(within(within_s, check))
    except (AssertionError, CoterieError, TimeoutError) as error:
        print(f"FAILED {name}: {type(error).__name__} {error}", flush=True)
        return False
    print(f"ok {name}", flush=True)
    return True


async def within(seconds: float, check: Awaitable[None]) -> None:
    """Wait for a check, so long at most."""
    async with asyncio.timeout(seconds):
        await check
