"""`python -m bench.spark_write ADDRESS RECORDS REPEATS`: a Spark application writes topics by three sinks.

The same rows by Spark's own Kafka sink and by ours, in turn, in one run; prints the records a second of each.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.kafka import CACHE, REPOSITORY, fetched
from bench.tools import create_topic, delete_topic

__all__ = ["SINKS", "connector_jars"]

# What is measured: a sink and its options.
SINKS: dict[str, tuple[str, dict[str, str]]] = {
    "coterie": ("coterie", {}),
    "kafka": ("kafka", {}),
    "kafka, tuned": ("kafka", {"kafka.batch.size": "262144", "kafka.linger.ms": "20"}),
}
PARTITIONS = 4
SMALL_B, LARGE_B = 100, 1_000
# Of nine records, so many are small.
SMALL_SHARE = 8 / 9
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.log.level": "ERROR",
}


def main() -> None:
    """Measure what the command line asks for."""
    address, records, repeats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    rates: dict[str, list[float]] = {sink: [] for sink in SINKS}
    with session() as spark:
        for sink in SINKS:
            write(spark, sink, address, records // 5)
        for repetition in range(repeats):
            for sink in list(SINKS)[:: 1 if repetition % 2 else -1]:
                rates[sink].append(records / write(spark, sink, address, records))
    print(json.dumps(rates))


@contextmanager
def session() -> Iterator[Any]:
    """Yield a Spark session with Spark's Kafka sink."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("bench").master("local[2]")
    for name, value in {**SETTINGS, "spark.jars": connector_jars()}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    yield spark
    spark.stop()


def connector_jars() -> str:
    """Return the jars of Spark's own Kafka source and sink, as Spark's setting wants them."""
    folder = CACHE / "spark-connector-4.2.0"
    fetched(REPOSITORY / "interop" / "spark" / "pom.xml", folder, what="Spark's Kafka source")
    return ",".join(map(str, sorted(folder.glob("*.jar"))))


def write(spark: Any, sink: str, address: str, records: int) -> float:
    """Write a fresh topic; return how many seconds it took."""
    form, options = SINKS[sink]
    topic = f"{form}-{time.monotonic_ns()}"
    create_topic(address, topic, partitions=PARTITIONS)
    small = int(records * SMALL_SHARE)
    rows = of_size(spark, small, SMALL_B).unionAll(of_size(spark, records - small, LARGE_B))
    to = {"kafka.bootstrap.servers": address, "topic": topic}
    began = time.perf_counter()
    rows.write.format(form).options(**to, **options).mode("append").save()
    spent = time.perf_counter() - began
    delete_topic(address, topic)
    return spent


def of_size(spark: Any, count: int, size: int) -> Any:
    """Return so many rows with values of that size."""
    return spark.range(0, count, 1, 2).selectExpr(f"lpad(cast(id as string), {size}, 'coterie ') as value")


if __name__ == "__main__":
    main()
