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
from coterie.client import Consumer
from coterie.client.errors import Disconnected
from coterie.security.sasl import AuthenticationFailed
from interop.client.racks import RACK_CHECKS, three_racks
from interop.client.secured import PASSWORD, SESSION_MS, TLS, USER, SecuredKafka
from interop.client.works import (
    TOPIC,
    Settings,
    administered,
    blocking,
    commanded,
    passed,
    produce,
    read,
    refused,
    written,
)

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


def main() -> int:
    """Run all checks; returns 1 if one failed."""
    logging.disable(logging.CRITICAL)  # refusals are what is checked here
    failed = 0
    print(f"client Coterie {coterie.__version__} as a client of Apache Kafka", flush=True)
    place = tempfile.TemporaryDirectory(prefix="coterie-client-", dir=os.environ.get("CACHE"))
    with place as folder:
        with SecuredKafka(Path(folder) / "kafka") as kafka:
            assert isinstance(kafka, SecuredKafka)
            produce(kafka.address)
            for name, check in CHECKS.items():
                failed += not passed(name, check(kafka))
        with three_racks(Path(folder)) as addresses:
            for name, wants in RACK_CHECKS.items():
                failed += not passed(name, wants(addresses))
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as failure:
        sys.exit(str(failure))
