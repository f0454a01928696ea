"""`python -m bench.spark.writing ADDRESS RECORDS REPEATS`: a Spark application writes topics by three sinks.

The same rows by Spark's own Kafka sink and by ours, in turn, in one run; prints the records a second of each.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from bench.spark.local import connector_jars, session
from bench.tools import create_topic, delete_topic

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


def main() -> None:
    """Measure what the command line asks for."""
    address, records, repeats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    settings = {"spark.python.unix.domain.socket.enabled": "true", "spark.jars": connector_jars()}
    rates: dict[str, list[float]] = {sink: [] for sink in SINKS}
    with session("bench", settings) as spark:
        for sink in SINKS:
            write(spark, sink, address, records // 5)
        for repetition in range(repeats):
            for sink in list(SINKS)[:: 1 if repetition % 2 else -1]:
                rates[sink].append(records / write(spark, sink, address, records))
    print(json.dumps(rates))


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
