"""`python -m interop.registry`: Spark reads what Confluent's serializers wrote through a registry server."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.kafka import CACHE, REPOSITORY, SetupError
from bench.spark.local import session

import coterie.testing
from coterie.client import BlockingAdmin
from interop.registry.apicurio import VERSION, Apicurio
from interop.registry.writing_names import COUNT, TOPICS

SERIALIZERS = "confluent-kafka[avro,json,protobuf]"
Rows = Callable[..., list[Any]]


def avro(rows: Rows) -> None:
    """Two versions of a schema are in the columns of the latest, and rubbish is a dead letter."""
    found = rows(TOPICS[0], "avro")
    good = [(row.value.id, row.value.delay) for row in found if row.value is not None]
    assert sorted(good) == [(one, one / 2 if one % 2 else None) for one in range(COUNT)], f"{good[:5]}…"
    assert [row.deadLetter is None for row in found].count(False) == 1


def protobuf(rows: Rows) -> None:
    """Messages are in columns; another message of the same file and rubbish are dead letters."""
    found = rows(TOPICS[1], "protobuf", **{"value.message": "air.Flight"})
    good = [(row.value.id, row.value.delay) for row in found if row.value is not None]
    assert sorted(good) == [(one, one / 2) for one in range(COUNT)], f"{good[:5]}…"
    reasons = sorted(row.deadLetter.reason for row in found if row.deadLetter is not None)
    assert len(reasons) == 2, reasons
    assert reasons[0] == "a message air.Airport.Gate, and air.Flight is wanted", reasons


def nested_protobuf(rows: Rows) -> None:
    """A message within a message is found by its index."""
    found = rows(TOPICS[1], "protobuf", **{"value.message": "air.Airport.Gate"})
    assert [row.value.name for row in found if row.value is not None] == ["A1"]


def in_json(rows: Rows) -> None:
    """Objects are in columns, and rubbish is a dead letter."""
    found = rows(TOPICS[2], "json")
    good = [(row.value.id, row.value.delay) for row in found if row.value is not None]
    assert sorted(good) == [(one, one / 2) for one in range(COUNT)], f"{good[:5]}…"
    assert [row.deadLetter is None for row in found].count(False) == 1


CHECKS: Mapping[str, Callable[[Rows], None]] = {
    "avro": avro,
    "protobuf": protobuf,
    "protobuf-within-a-message": nested_protobuf,
    "json": in_json,
}


def main() -> int:
    """Run all checks; returns 1 if one failed."""
    print(f"client confluent-kafka's serializers, Apicurio Registry {VERSION}", flush=True)
    place = tempfile.TemporaryDirectory(prefix="coterie-registry-", dir=os.environ.get("CACHE"))
    failed = 0
    with place as name, Apicurio(Path(name)) as registry, coterie.testing.broker() as broker:
        with BlockingAdmin(bootstrap_servers=broker.bootstrap) as admin:
            for topic in TOPICS:
                admin.create_topic(topic, partitions=2)
        write(broker.bootstrap, registry.url)
        with session("registry") as spark:

            def rows(topic: str, kind: str, **more: str) -> list[Any]:
                reader = spark.read.format("coterie").option("kafka.bootstrap.servers", broker.bootstrap)
                reader = reader.option("subscribe", topic).option("schema.registry.url", registry.url)
                reader = (
                    reader.option("value.format", kind).option("deadLetterColumn", "true").options(**more)
                )
                found: list[Any] = reader.load().collect()
                return found

            for check_name, check in CHECKS.items():
                try:
                    check(rows)
                except Exception as error:  # noqa: BLE001  whatever Spark raises
                    failed += 1
                    print(f"FAILED {check_name}: {' '.join(str(error).split())[:1000]}", flush=True)
                else:
                    print(f"ok {check_name}", flush=True)
    return 1 if failed else 0


def write(bootstrap: str, url: str) -> None:
    """Have the serializers write, in a process that has what they need."""
    libraries = CACHE / "confluent-serializers"
    if not (libraries / ".complete").exists():
        words = [sys.executable, "-m", "pip", "install", "-q", "--target", str(libraries), SERIALIZERS]
        if subprocess.run(words, stdout=sys.stderr).returncode != 0:
            raise SetupError("pip could not fetch Confluent's serializers")
        (libraries / ".complete").touch()
    done = subprocess.run(
        [sys.executable, "-m", "interop.registry.writing", bootstrap, url],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(libraries)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SetupError(f"Confluent's serializers did not write:\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as failure:
        sys.exit(str(failure))
