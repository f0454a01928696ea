"""`python -m bench.spark.schema_values [--records N] [--rounds N]`: Avro decoded here and in the JVM.

A topic has records of a registry's schema of eight fields, in Confluent's wire format. A batch query reads
all of them into nothing (`noop`): by `value.format=avro`; by this source and Spark's `from_avro` behind the
header; by Spark's own source and `from_avro`; and their bytes alone, which is what reading costs. In turn,
medians.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import statistics
import tempfile
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import coterie.testing
from bench.kafka import CACHE, fetched
from bench.machine import describe
from bench.spark.local import connector_jars, session

TOPIC, PARTITIONS, SCHEMA_ID = "flights", 4, 7
POM = Path(__file__).parent / "avro" / "pom.xml"
SPARK_AVRO = CACHE / "spark-avro-4.2.0"
SCHEMA = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "double"], "default": None},
        {"name": "origin", "type": "string"},
        {"name": "dest", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "number", "type": "int"},
        {"name": "late", "type": "boolean"},
    ],
}


def main() -> None:
    """Measure all four ways, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark.schema_values", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    fetched(POM, SPARK_AVRO, what="Spark's Avro functions")
    jars = ",".join([connector_jars(), *map(str, SPARK_AVRO.glob("*.jar"))])
    with (
        tempfile.TemporaryDirectory() as name,
        coterie.testing.broker() as broker,
        session("schema values", {"spark.jars": jars}) as spark,
    ):
        schemas = Path(name) / "schemas.json"
        schemas.write_text(
            json.dumps({"subjects": {f"{TOPIC}-value": [{"id": SCHEMA_ID, "schema": SCHEMA}]}})
        )
        write(broker.bootstrap, asked.records)
        ways = frames(spark, broker.bootstrap, schemas)
        took: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(asked.rounds + 1):
            for way, frame in ways.items():
                began = time.perf_counter()
                frame.write.format("noop").mode("overwrite").save()
                if number:  # the first loads and compiles
                    took[way].append(time.perf_counter() - began)
    show(took, asked.records)


def write(bootstrap: str, records: int) -> None:
    """Write the records, round robin."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(30)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.kbytes": 1 << 20}
    )
    schema, rng = fastavro.parse_schema(json.loads(json.dumps(SCHEMA))), random.Random(1)
    header = b"\0" + SCHEMA_ID.to_bytes(4, "big")
    for number in range(records):
        body = BytesIO(header)
        body.seek(len(header))
        fastavro.schemaless_writer(body, schema, flight(number, rng))
        producer.produce(TOPIC, body.getvalue(), partition=number % PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0)
            while len(producer) > 90_000:
                producer.poll(0.05)
    assert producer.flush(60) == 0


def flight(number: int, rng: random.Random) -> dict[str, Any]:
    """Return a record."""
    return {
        "id": number,
        "carrier": rng.choice(["UA", "AA", "DL", "B6"]),
        "delay": rng.choice([None, 1.5, -4.0]),
        "origin": rng.choice(["JFK", "LGA", "EWR"]),
        "dest": rng.choice([None, "LAX", "SFO"]),
        "at": 1_700_000_000_000 + number,
        "number": number % 10_000,
        "late": number % 3 == 0,
    }


def frames(spark: Any, bootstrap: str, schemas: Path) -> dict[str, Any]:
    """Return what is read each way."""
    from pyspark.sql.avro.functions import from_avro
    from pyspark.sql.functions import expr

    def read(form: str, **more: str) -> Any:
        reader = spark.read.format(form).option("kafka.bootstrap.servers", bootstrap)
        return reader.option("subscribe", TOPIC).options(**more).load()

    by_jvm = from_avro(expr("substring(value, 6)"), json.dumps(SCHEMA)).alias("value")
    decoded = {"value.format": "avro", "schema.registry.url": f"file:{schemas}"}
    return {
        "value.format=avro": read("coterie", **decoded, columns="value").select("value.*"),
        "this source, from_avro": read("coterie", columns="value").select(by_jvm).select("value.*"),
        "Spark's source, from_avro": read("kafka").select(by_jvm).select("value.*"),
        "this source, bytes": read("coterie", columns="value"),
    }


def show(took: dict[str, list[float]], records: int) -> None:
    """Print the table."""
    print(f"{datetime.date.today()}, {describe()['processor']}, load {os.getloadavg()[0]:.1f}")
    goal = statistics.median(took["this source, from_avro"])
    print("| way | million rows/s | beside from_avro on this source |\n|---|---|---|")
    for way, seconds in took.items():
        median = statistics.median(seconds)
        print(f"| {way} | {records / median / 1e6:.2f} | {goal / median:.2f} |")


if __name__ == "__main__":
    main()
