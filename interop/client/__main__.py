"""`python -m interop.client`: works with a secured Apache Kafka in every way it demands, and with racks."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from bench.kafka import SetupError

import coterie
from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.client import Admin, BlockingAdmin, BlockingProducer, Consumer, Producer
from coterie.client.errors import Disconnected
from coterie.security.sasl import AuthenticationFailed
from interop.client.racks import RACK_CHECKS, three_racks
from interop.client.secured import PASSWORD, SESSION_MS, TLS, USER, SecuredKafka

TOPIC, WRITTEN = "secured", "written"
RECORDS = [str(number).encode() * 100 for number in range(500)]
WITHIN_S = 30.0
TRIES = 300

Settings = dict[str, Any]
Check = Callable[[SecuredKafka], Awaitable[None]]

TRUST: Settings = {"ssl_truststore_location": str(TLS / "authority.pem")}


def tls(kafka: SecuredKafka, **more: Any) -> Settings:
    """Return the settings for the TLS listener."""
    return {"bootstrap_servers": kafka.at("TLS"), "security_protocol": "SSL", **TRUST, **more}


def mutual(kafka: SecuredKafka, **more: Any) -> Settings:
    """Return the settings for the listener that wants a certificate."""
    return {"bootstrap_servers": kafka.at("MUTUAL"), "security_protocol": "SSL", **TRUST, **more}


def sasl(kafka: SecuredKafka, mechanism: str, **more: Any) -> Settings:
    """Return the settings for SASL without TLS."""
    return {
        "bootstrap_servers": kafka.at("SASL"),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_username": USER,
        "sasl_password": PASSWORD,
        **more,
    }


def sasl_tls(kafka: SecuredKafka, mechanism: str, **more: Any) -> Settings:
    """Return the settings for SASL over TLS."""
    over = {"bootstrap_servers": kafka.at("SASLTLS"), "security_protocol": "SASL_SSL", **TRUST}
    return sasl(kafka, mechanism, **over, **more)


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


async def renewed(kafka: SecuredKafka) -> None:
    """Expect that a consumer outlives its SASL session without a new connection."""
    async with Consumer(auto_offset_reset="earliest", **sasl(kafka, "PLAIN")) as consumer:
        consumer.assign(await consumer.partitions_for(TOPIC))
        brokers = consumer._brokers
        before = {key: id(one) for key, one in brokers._connections.items()}
        until = time.monotonic() + 3 * SESSION_MS / 1000
        while time.monotonic() < until:
            await consumer.getmany(timeout_ms=200)
            await consumer.end_offsets(consumer.assignment())
        after = {key: id(one) for key, one in brokers._connections.items()}
        lost = [key for key in before if after.get(key) != before[key]]
        assert not lost, f"connections were made anew: {lost}"


CHECKS: Mapping[str, Check] = {
    "tls": lambda kafka: read(tls(kafka)),
    "tls-by-name": lambda kafka: read(
        tls(kafka, bootstrap_servers=kafka.at("TLS").replace("127.0.0.1", "localhost"))
    ),
    "tls-group": lambda kafka: read(tls(kafka, group_id="over-tls")),
    "tls-untrusted": lambda kafka: refused(
        tls(kafka, ssl_truststore_location=None), AuthenticationFailed, "ssl_truststore_location"
    ),
    "tls-wanted": lambda kafka: refused(
        {"bootstrap_servers": kafka.at("TLS"), "request_timeout_ms": 5000}, CoterieError, "security_protocol"
    ),
    "certificate": lambda kafka: read(mutual(kafka, ssl_keystore_location=str(TLS / "client.pem"))),
    "no-certificate": lambda kafka: refused(mutual(kafka), Disconnected, "connection to"),
    "plain": lambda kafka: read(sasl(kafka, "PLAIN")),
    "scram-256": lambda kafka: read(sasl(kafka, "SCRAM-SHA-256")),
    "scram-512": lambda kafka: read(sasl(kafka, "SCRAM-SHA-512")),
    "plain-over-tls": lambda kafka: read(sasl_tls(kafka, "PLAIN")),
    "scram-256-over-tls": lambda kafka: read(sasl_tls(kafka, "SCRAM-SHA-256")),
    "scram-512-over-tls": lambda kafka: read(sasl_tls(kafka, "SCRAM-SHA-512")),
    "scram-512-group": lambda kafka: read(sasl_tls(kafka, "SCRAM-SHA-512", group_id="over-scram")),
    "wrong-password": lambda kafka: refused(
        sasl(kafka, "PLAIN", sasl_password="guess"), AuthenticationFailed, "refused"
    ),
    "wrong-scram-password": lambda kafka: refused(
        sasl(kafka, "SCRAM-SHA-256", sasl_password="guess"), AuthenticationFailed, "refused"
    ),
    "unknown-scram-user": lambda kafka: refused(
        sasl(kafka, "SCRAM-SHA-512", sasl_username="mallory"), AuthenticationFailed, "refused"
    ),
    "session-renewed": renewed,
    "write-over-tls": lambda kafka: written(tls(kafka)),
    "write-with-certificate": lambda kafka: written(
        mutual(kafka, ssl_keystore_location=str(TLS / "client.pem"))
    ),
    "write-plain": lambda kafka: written(sasl(kafka, "PLAIN")),
    "write-scram-512-over-tls": lambda kafka: written(sasl_tls(kafka, "SCRAM-SHA-512")),
    "write-wrong-password": lambda kafka: refused(
        sasl(kafka, "PLAIN", sasl_password="guess"), AuthenticationFailed, "refused", work=written
    ),
    "admin-over-tls": lambda kafka: administered(tls(kafka)),
    "admin-with-certificate": lambda kafka: administered(
        mutual(kafka, ssl_keystore_location=str(TLS / "client.pem"))
    ),
    "admin-scram-256": lambda kafka: administered(sasl(kafka, "SCRAM-SHA-256")),
    "admin-scram-512-over-tls": lambda kafka: administered(sasl_tls(kafka, "SCRAM-SHA-512")),
    "admin-untrusted": lambda kafka: refused(
        tls(kafka, ssl_truststore_location=None),
        AuthenticationFailed,
        "ssl_truststore_location",
        work=administered,
    ),
    "blocking-scram-512-over-tls": lambda kafka: asyncio.to_thread(
        blocking, sasl_tls(kafka, "SCRAM-SHA-512")
    ),
    "command-scram-512-over-tls": lambda kafka: commanded(sasl_tls(kafka, "SCRAM-SHA-512")),
}


def produce(kafka: SecuredKafka) -> None:
    """Write the records through the plain listener."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": kafka.address})
    for created in admin.create_topics([NewTopic(TOPIC, 3, 1), NewTopic(WRITTEN, 1, 1)]).values():
        created.result(WITHIN_S)
    producer = Producer({"bootstrap.servers": kafka.address, "log_level": 0})
    for number, value in enumerate(RECORDS):
        producer.produce(TOPIC, value, partition=number % 3)
    assert producer.flush(WITHIN_S) == 0


def main() -> int:
    """Run all checks; returns 1 if one failed."""
    logging.disable(logging.CRITICAL)  # refusals are what is checked here
    failed = 0
    print(f"client Coterie {coterie.__version__} as a client of Apache Kafka", flush=True)
    place = tempfile.TemporaryDirectory(prefix="coterie-client-", dir=os.environ.get("CACHE"))
    with place as folder:
        with SecuredKafka(Path(folder) / "kafka") as kafka:
            assert isinstance(kafka, SecuredKafka)
            produce(kafka)
            for name, check in CHECKS.items():
                failed += not passed(name, check(kafka))
        with three_racks(Path(folder)) as addresses:
            for name, wants in RACK_CHECKS.items():
                failed += not passed(name, wants(addresses))
    return 1 if failed else 0


def passed(name: str, check: Awaitable[None]) -> bool:
    """Return whether a check holds, and say so."""
    try:
        asyncio.run(within(2 * WITHIN_S, check))
    except (AssertionError, CoterieError, TimeoutError) as error:
        print(f"FAILED {name}: {type(error).__name__} {error}", flush=True)
        return False
    print(f"ok {name}", flush=True)
    return True


async def within(seconds: float, check: Awaitable[None]) -> None:
    """Wait for a check, so long at most."""
    async with asyncio.timeout(seconds):
        await check


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as failure:
        sys.exit(str(failure))
