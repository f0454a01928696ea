"""The applications that copy, what of them can be killed, and what came of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.kafka import REPOSITORY
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place
from pipeline.processes.process_tree import Process, readers_first, signal_all, tree, wait_gone

from interop.spark.topics import Topic

__all__ = ["Copier", "insist_on_each_once", "numbers_in", "show_failures"]

WITHIN_S = 120.0
SOON_S = 0.2  # confluent-kafka waits so long for the whole number that it is asked for
DAEMON, WORKER = "pyspark.daemon", "pyspark.worker"
SESSION = {"kafka.session.timeout.ms": "6000", "kafka.heartbeat.interval.ms": "500"}
QUICK = {"kafka.retry.backoff.ms": "20"}


class Copier:
    """One application. It may be killed in part or whole, and started again."""

    def __init__(
        self,
        folder: Path,
        name: str,
        source: Topic,
        target: Topic,
        *,
        group: str,
        ledger: Path | None = None,
    ) -> None:
        """It copies into the `target`, or into the table of a `ledger`."""
        self.name, self.log = name, folder / f"{name}.log"
        self.process: subprocess.Popen[str] | None = None
        self._checkpoint = folder / name
        columns = "value" if ledger is None else "topic,partition,offset,value"
        member = {"group.id": group, "includeSource": "true", "columns": columns, **SESSION, **QUICK}
        self._wanted: dict[str, Any] = {
            "source": source.options(maxOffsetsPerTrigger="5000", **member),
            "sink": {
                "kafka.bootstrap.servers": target.bootstrap,
                "topic": target.name,
                "semantics": "exactly-once",
                "commitSourceOffsets": "true",
                "kafka.transaction.timeout.ms": "10000",
                **QUICK,
            },
            "checkpoint": str(self._checkpoint),
            "group": group,
            "ledger": None if ledger is None else str(ledger),
        }

    def start(self) -> None:
        """Start it; its query begins some seconds later."""
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "interop.spark_kills.app", json.dumps(self._wanted)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                cwd=REPOSITORY,
                env=dict(os.environ),
            )

    @property
    def pid(self) -> int:
        """The process that was started."""
        assert self.process is not None
        return self.process.pid

    def family(self) -> list[Process]:
        """All its processes."""
        return tree(self.pid)

    def workers(self) -> list[Process]:
        """The processes in which its tasks run, and the one that forks them."""
        return [one for one in self.family() if DAEMON in one.command and WORKER in one.command]

    @property
    def works(self) -> bool:
        """Whether there are processes in which tasks run."""
        return len(self.workers()) > 1

    def victims(self, kind: str) -> list[Process]:
        """Return whom to kill: the workers, but not who forks them, since Spark has their tasks run again;
        the driver, that is all but the workers, which may finish what they are at; or both.
        """
        family = self.family()
        if kind == "both":
            return readers_first(family)
        workers = {one.pid for one in self.workers()}
        if kind == "driver":
            return readers_first([one for one in family if one.pid not in workers])
        return self.workers()[1:]

    def start_again(self, family: Sequence[Process]) -> None:
        """Start it again, once these of its processes are gone."""
        assert self.process is not None
        self.process.wait(WITHIN_S)
        left = wait_gone(family, within_s=WITHIN_S)
        assert not left, f"they survived SIGKILL: {left}"
        self.start()

    @property
    def query(self) -> str:
        """Its query's number, by which its transactions are called."""
        found = json.loads(self._checkpoint.joinpath("metadata").read_text())
        return str(found["id"])

    def under_way(self) -> list[tuple[str, int, int, int]]:
        """Return what the batch reads that Spark has begun and not finished: topic, partition, from, to."""
        begun, done = self._newest("offsets"), self._newest("commits")
        if begun is None or (done is not None and int(done.name) >= int(begun.name)):
            return []
        document = json.loads(begun.read_text().splitlines()[-1])
        return [(topic, partition, first, until) for topic, partition, first, until in document["ranges"]]

    def _newest(self, kind: str) -> Path | None:
        """Return the newest entry of a log of its checkpoint."""
        found = [one for one in self._checkpoint.joinpath(kind).glob("*") if one.name.isdecimal()]
        return max(found, key=lambda one: int(one.name), default=None)

    def end(self) -> None:
        """Kill what lives of it, if anything does."""
        if self.process is not None and self.process.poll() is None:
            signal_all(readers_first(self.family()), signal.SIGKILL)
            self.process.wait(WITHIN_S)

    def stop(self) -> None:
        """End it politely."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"{self.name} did not end:\n{self.last_words}") from None

    def failures(self) -> list[str]:
        """What its queries have failed with."""
        return [line for line in self.log.read_text().splitlines() if line.startswith("query failed:")]

    @property
    def last_words(self) -> str:
        """The end of its log."""
        lines = [line for line in self.log.read_text().splitlines() if not line.lstrip().startswith("at ")]
        return "\n".join(lines[-25:])


def numbers_in(topic: Topic, *, isolation: str) -> Counter[int]:
    """How often each number is in the topic, for readers of such an isolation."""
    consumer = Consumer(
        {
            "bootstrap.servers": topic.bootstrap,
            "group.id": str(uuid.uuid4()),
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([Place(topic.name, number, 0) for number in range(topic.partitions)])
    found, ended = Counter[int](), set[int]()
    while len(ended) < topic.partitions:
        for message in consumer.consume(1_000, SOON_S):
            if message.error():
                ended.add(message.partition() or 0)
            else:
                found[int(message.value() or b"")] += 1
    consumer.close()
    return found


def insist_on_each_once(source: Topic, found: Counter[int]) -> None:
    """Raise AssertionError unless each number that was produced was found once, and no other."""
    expected = range(1, len(source.places) + 1)
    missing = [number for number in expected if not found[number]]
    twice = [number for number, times in found.items() if times > 1]
    assert not missing, f"{len(missing)} records are lost, the first {missing[0]}"
    assert not twice, f"{len(twice)} records are there more than once, the first {min(twice)}"
    assert len(found) == len(expected), "more was written than was read"


def show_failures(copiers: Sequence[Copier]) -> int:
    """Print what the queries of applications have failed with, and return how often they did."""
    failures = [line for copier in copiers for line in copier.failures()]
    for line in failures:
        print(f"  {line[:400]}", flush=True)
    return len(failures)
