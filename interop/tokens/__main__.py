"""`python -m interop.tokens`: minutes of tokens that end within seconds, on Apache Kafka.

Standing clients and a Spark application go on as if they had one for ever, also while the issuer is away for
half a token's life. `MINUTES=60 TOKEN_S=60`: an hour of tokens that last a minute.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.kafka import SetupError

import coterie
from coterie.client import BlockingConsumer, Consumer, Producer
from coterie.security.sasl import AuthenticationFailed
from interop.client.works import (
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
from interop.spark.applications import Application, wait_for
from interop.spark.topics import Feeder, Topic
from interop.tokens.issuer import CLIENT_ID, CLIENT_SECRET, Issuer
from interop.tokens.kafka import LISTENER, TokenKafka
from interop.tokens.provider import WHERE

MINUTES = float(os.environ.get("MINUTES", "3"))
TOKEN_S = float(os.environ.get("TOKEN_S", "5"))
AWAY_S = TOKEN_S / 2
QUICK = {"kafka.session.timeout.ms": "6000", "kafka.heartbeat.interval.ms": "500"}


@dataclass(frozen=True)
class Place:
    """What the checks need: the node, who issues its tokens, and a folder."""

    kafka: TokenKafka
    issuer: Issuer
    folder: Path

    def by_provider(self, **more: Any) -> Settings:
        """Return the settings of a client whose tokens come from a function, by its name."""
        return self.listener() | {"sasl_oauth_token_provider": "interop.tokens.provider:token", **more}

    def by_endpoint(self) -> Settings:
        """Return the settings of a client whose tokens come from the issuer's endpoint."""
        return self.listener() | {
            "sasl_oauthbearer_token_endpoint_url": f"{self.issuer.url}/endpoint",
            "sasl_oauthbearer_client_credentials_client_id": CLIENT_ID,
            "sasl_oauthbearer_client_credentials_client_secret": CLIENT_SECRET,
        }

    def listener(self) -> Settings:
        """Return where and how to connect, but for the tokens."""
        return {
            "bootstrap_servers": self.kafka.at(LISTENER),
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
        }


async def standing(place: Place) -> None:
    """A member of a group reads what a producer sends, for all the time, and keeps its place."""
    Topic(place.kafka.address, "standing", partitions=2)
    settings = place.by_provider()
    sent, got = 0, Counter[bytes]()
    until = time.monotonic() + MINUTES * 60
    away_at = time.monotonic() + MINUTES * 30
    async with (
        Producer(**settings) as producer,
        Consumer(auto_offset_reset="earliest", group_id="standing", **settings) as consumer,
    ):
        consumer.subscribe(["standing"])
        while time.monotonic() < until or got.total() < sent:
            if time.monotonic() < until:
                await producer.send("standing", b"%d" % sent)
                sent += 1
            place.issuer.away_while(away_at <= time.monotonic() < away_at + AWAY_S)
            for records in (await consumer.getmany(timeout_ms=20)).values():
                got.update(record.value or b"" for record in records)
            assert time.monotonic() < until + 30, f"only {got.total()} of {sent} records came"
        generation = consumer.group_metadata().generation
    assert got == Counter(b"%d" % number for number in range(sent)), "not each record once"
    assert generation == 1, f"it lost its place: generation {generation}"
    print(f"    {sent} records, each once; one generation", flush=True)


def copied(place: Place) -> None:
    """A Spark application copies a topic exactly once; its query ends with the first task that fails."""
    source = Topic(place.kafka.address, "copied", partitions=4)
    copies = Topic(place.kafka.address, "copies", partitions=4)
    app = Application(place.folder, "copying")
    app.module = "interop.tokens.copying"
    app.wanted |= {
        "source": source.options(**in_kafkas_words(place.by_provider()), **QUICK, **{"group.id": "copying"}),
        "sink": in_kafkas_words(place.by_endpoint())
        | {"topic": copies.name, "semantics": "exactly-once", "startLedger": "true"},
    }
    with ExitStack() as undo:
        undo.callback(app.kill_if_it_lives)
        app.start()
        with Feeder(source, count=20, every_s=0.25):
            ended = threading.Event()
            until = time.monotonic() + MINUTES * 60
            while time.monotonic() < until and not ended.wait(0.5):
                assert app.process is not None
                assert app.process.poll() is None, f"its query ended:\n{app.last_words}"
        wait_for(lambda: source.committed("copying") == source.ends(), what="all is committed", within_s=60)
        app.stop()
        undo.pop_all()
    found = values_of(place.kafka.address, copies.name)
    wanted = Counter(b"%d" % (number + 1) for number in range(len(source.places)))
    assert found == wanted, f"{found.total()} copies of {wanted.total()} records, or not each once"
    print(f"    {found.total()} records copied, each once; no task failed", flush=True)


def in_kafkas_words(settings: Settings) -> dict[str, str]:
    """Return a client's settings as options of a query."""
    return {f"kafka.{name.replace('_', '.')}": value for name, value in settings.items()}


def values_of(bootstrap: str, topic: str) -> Counter[bytes]:
    """Return how often each value is in a topic, as one sees it who reads committed records alone."""
    found = Counter[bytes]()
    with BlockingConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
        partitions = consumer.partitions_for(topic)
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(one) < ends[one] for one in partitions):
            for records in consumer.getmany(timeout_ms=500).values():
                found.update(record.value or b"" for record in records)
    return found


Check = Callable[[Place], Awaitable[None]]
CHECKS: Mapping[str, Check] = {
    "read": lambda place: read(place.by_provider()),
    "read-in-a-group": lambda place: read(place.by_provider(group_id="by-token")),
    "read-by-endpoint": lambda place: read(place.by_endpoint()),
    "write": lambda place: written(place.by_provider()),
    "administer": lambda place: administered(place.by_provider()),
    "blocking": lambda place: asyncio.to_thread(blocking, place.by_endpoint()),
    "command": lambda place: commanded(place.by_endpoint()),
    "other-audience": lambda place: refused(
        place.by_provider(sasl_oauth_token_provider=lambda: place.issuer.token(aud="others")),
        AuthenticationFailed,
        "invalid_token",
    ),
    "token-that-has-ended": lambda place: refused(
        place.by_provider(sasl_oauth_token_provider=lambda: place.issuer.token(exp=time.time() - 1)),
        AuthenticationFailed,
        "invalid_token",
    ),
    "other-key": lambda place: refused(
        place.by_provider(sasl_oauth_token_provider=Issuer(TOKEN_S).token),
        AuthenticationFailed,
        "invalid_token",
    ),
    "wrong-secret": lambda place: refused(
        place.by_endpoint() | {"sasl_oauthbearer_client_credentials_client_secret": "guess"},
        AuthenticationFailed,
        "invalid_client",
    ),
}
BESIDE_EACH_OTHER: Mapping[str, Check] = {
    "standing-clients": standing,
    "spark-source-and-sink": lambda place: asyncio.to_thread(copied, place),
}


def run_beside_each_other(place: Place, asked: str) -> int:
    """Run the long checks that are asked for; returns how many failed."""
    within_s = MINUTES * 60 + 300
    with ThreadPoolExecutor() as threads:
        running = [
            threads.submit(passed, name, check(place), within_s=within_s)
            for name, check in BESIDE_EACH_OTHER.items()
            if asked in name
        ]
        return sum(not one.result() for one in running)


def main() -> int:
    """Run all checks, or those named in CHECKS; returns 1 if one failed."""
    logging.disable(logging.CRITICAL)  # refusals are what is checked here
    asked = os.environ.get("CHECKS", "")
    failed = 0
    print(f"client Coterie {coterie.__version__} as a client of Apache Kafka", flush=True)
    with tempfile.TemporaryDirectory(prefix="coterie-tokens-", dir=os.environ.get("CACHE")) as name:
        folder = Path(name)
        with Issuer(TOKEN_S) as issuer, TokenKafka(folder / "kafka", issuer) as kafka:
            assert isinstance(kafka, TokenKafka)
            os.environ[WHERE] = f"{issuer.url}/provider"
            produce(kafka.address)
            place = Place(kafka, issuer, folder)
            for check_name, check in CHECKS.items():
                if asked in check_name:
                    failed += not passed(check_name, check(place))
            failed += run_beside_each_other(place, asked)
            given = ", ".join(f"{count} by {path}" for path, count in sorted(issuer.given.items()))
            print(f"    tokens of {TOKEN_S:g} s given: {given}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as failure:
        sys.exit(str(failure))
