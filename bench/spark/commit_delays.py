"""`python -m bench.spark.commit_delays [--batches N] [--trigger S]`: how soon a finished batch is committed.

A query reads a topic of four partitions that is written to all the time. A batch ends when Spark has written
its entry of the commit log (the file's time); its offsets stand when the group's last commit of it is dated,
by the broker, on the same machine. Once with `coterie.spark.watch`, and once without: then the next plan
commits, after the trigger.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import coterie.spark
import coterie.testing
from bench.machine import describe
from bench.spark.local import session
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.wire.payloads.consumer_offsets import OffsetCommitKey, read_key, read_offset_value

TOPIC, PARTITIONS, EVERY_S = "delays", 4, 0.02
SETTLED_S = 3.0

Commits = dict[tuple[str, int], list[tuple[int, int]]]


def main() -> None:
    """Measure both ways, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark.commit_delays", description=__doc__)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--trigger", type=float, default=1.0, metavar="SECONDS")
    asked = parser.parse_args()
    rows = []
    with coterie.testing.broker({"offsets.topic.num.partitions": 1}) as broker, session("delays") as spark:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(30)
        with written_to(broker.bootstrap):
            for group in ("unwatched", "watched"):
                if group == "watched":
                    coterie.spark.watch(spark)
                with tempfile.TemporaryDirectory() as folder:
                    run(spark, broker.bootstrap, group, Path(folder), asked.batches, asked.trigger)
                    found = delays(Path(folder), commits_of(broker.bootstrap, group))
                rows.append((group, found))
    print(f"{datetime.date.today()}, {describe()['processor']}, load {os.getloadavg()[0]:.1f}")
    print(f"a trigger every {asked.trigger:g} s; milliseconds from a batch's end until its offsets stand\n")
    print("| | batches | median | p95 | worst |\n|---|---:|---:|---:|---:|")
    for group, found in rows:
        p95 = statistics.quantiles(found, n=20)[-1]
        print(f"| {group} | {len(found)} | {statistics.median(found):.0f} | {p95:.0f} | {max(found):.0f} |")


@contextmanager
def written_to(bootstrap: str) -> Iterator[None]:
    """Have records come all the time."""
    over = threading.Event()

    def write() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        while not over.wait(EVERY_S):
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, b"v" * 100, partition=partition)
            producer.poll(0)
        producer.flush(30)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


def run(spark: Any, bootstrap: str, group: str, folder: Path, batches: int, trigger_s: float) -> None:
    """Have a query do so many batches."""
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC, "group.id": group}
    query = (
        spark.readStream.format("coterie")
        .options(**options)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(folder))
        .trigger(processingTime=f"{trigger_s * 1000:.0f} milliseconds")
        .start()
    )
    while len([*folder.glob("commits/[0-9]*")]) <= batches and query.isActive:
        time.sleep(EVERY_S)
    time.sleep(SETTLED_S)
    if query.exception() is not None:
        raise query.exception()
    query.stop()


def commits_of(bootstrap: str, group: str) -> Commits:
    """Return of each partition what the group has committed: offset, and when, milliseconds of the epoch."""
    found: Commits = defaultdict(list)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True}
        | {"auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe([OFFSETS_TOPIC])
    while True:
        message = consumer.poll(30)
        if message is None or message.error():
            break
        name, body = message.key(), message.value()
        key = read_key(name) if name is not None and body is not None else None
        if isinstance(key, OffsetCommitKey) and key.group == group and body is not None:
            value = read_offset_value(body)
            found[key.topic, key.partition].append((value.offset, value.commit_timestamp))
    consumer.close()
    return found


def delays(folder: Path, commits: Commits) -> list[float]:
    """Return how many milliseconds after its end each batch was committed, but for the first and the last."""
    found = []
    numbers = sorted(int(one.name) for one in folder.glob("commits/[0-9]*"))
    for number in numbers[1:-1]:
        ended_ms = (folder / "commits" / str(number)).stat().st_mtime * 1000
        document = json.loads((folder / "offsets" / str(number)).read_text().splitlines()[-1])
        stood = [
            min((at for offset, at in commits[topic, partition] if offset >= until), default=float("inf"))
            for topic, partition, _, until in document["ranges"]
        ]
        found.append(max(stood) - ended_ms)
    return found


if __name__ == "__main__":
    main()
