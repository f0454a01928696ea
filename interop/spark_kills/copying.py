"""The applications that copy, what of them can be killed, and what came of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from bench.kafka import REPOSITORY
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place
from pipeline.processes import Process, readers_first, signal_all, tree, wait_gone

from interop.spark.topics import Topic

__all__ = ["Copier", "numbers_in"]

WITHIN_S = 120.0
DAEMON, WORKER = "pyspark.daemon", "pyspark.worker"
SESSION = {"kafka.session.timeout.ms": "6000", "kafka.heartbeat.interval.ms": "500"}
QUICK = {"kafka.retry.backoff.ms": "20"}


class Copier:
    """One application. It may be killed in part or whole, and started again."""

    def __init__(self, folder: Path, name: str, source: Topic, target: Topic, *, group: str) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        self.process: subprocess.Popen[str] | None = None
        member = {"group.id": group, "includeSource": "true", "columns": "value", **SESSION, **QUICK}
        self._wanted: dict[str, Any] = {
            "source": source.options(maxOffsetsPerTrigger="400", **member),
            "sink": {
                "kafka.bootstrap.servers": target.bootstrap,
                "topic": target.name,
                "semantics": "exactly-once",
                "commitSourceOffsets": "true",
                "kafka.transaction.timeout.ms": "10000",
                **QUICK,
            },
            "checkpoint": str(folder / name),
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

    def kill_workers(self) -> None:
        """Kill the workers, but not who forks them: Spark has their tasks run again."""
        _, *workers = self.workers()
        signal_all(workers, signal.SIGKILL)

    def kill_driver(self) -> None:
        """Kill all but the workers, which may finish what they are at; start it again."""
        spared = {one.pid for one in self.workers()}
        self._kill([one for one in self.family() if one.pid not in spared])

    def kill_both(self) -> None:
        """Kill all of it; start it again."""
        self._kill(self.family())

    def _kill(self, family: list[Process]) -> None:
        assert self.process is not None
        signal_all(readers_first(family), signal.SIGKILL)
        self.process.wait(WITHIN_S)
        left = wait_gone(family, within_s=WITHIN_S)
        assert not left, f"they survived SIGKILL: {left}"
        self.start()

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
        for message in consumer.consume(1_000, WITHIN_S):
            if message.error():
                ended.add(message.partition() or 0)
            else:
                found[int(message.value() or b"")] += 1
    consumer.close()
    return found
