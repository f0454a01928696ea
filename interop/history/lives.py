"""One life under several settings at once on Apache Kafka 4.3.1, kept with what was really done and seen.

`python -m interop.history.lives three DIRECTORY` leaves the segments of `__consumer_offsets` there, and of
each group a journal of what was done to its members, and one of what they saw. Members are librdkafka's; a
crash is SIGKILL.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from bench.brokers import BROKERS
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

USAGE = "usage: python -m interop.history.lives LIFE DIRECTORY"
TOPIC, RECORD_EVERY_S = "orders", 0.02
COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}
Life = tuple[int, Mapping[str, Mapping[str, Any]], Sequence[tuple[Any, ...]]]
SESSION_10 = {"session.timeout.ms": 10_000}
POLL_20 = {"session.timeout.ms": 8_000, "max.poll.interval.ms": 20_000}
POLL_12 = {"session.timeout.ms": 8_000, "max.poll.interval.ms": 12_000}
LIVES: Mapping[str, Life] = {
    "two": (
        6,
        {
            "base": {"session.timeout.ms": 6_000},
            "session20": {"session.timeout.ms": 20_000},
            "session45": {"session.timeout.ms": 45_000},
            "coop": {"session.timeout.ms": 6_000, **COOPERATIVE},
            "static": {"session.timeout.ms": 6_000, "static": True},
            "static45": {"session.timeout.ms": 45_000, "static": True},
        },
        [
            (0, "start", 0), (3, "start", 1), (6, "start", 2), (25, "crash", 0), (29, "start", 0),
            (60, "crash", 1), (75, "start", 1), (110, "start", 3), (130, "crash", 2), (185, "crash", 0),
            (215, "close", 1), (218, "close", 3),
        ],
    ),
    "three": (
        8,
        {
            "base": POLL_12,
            "poll30": POLL_12 | {"max.poll.interval.ms": 30_000},
            "coop": POLL_12 | COOPERATIVE,
            "static": POLL_12 | {"static": True},
            "session12": POLL_12 | {"session.timeout.ms": 12_000},
        },
        [
            (0, "start", 0), (0.5, "start", 1), (1, "start", 2), (10, "start", 3), (35, "stall", 2, 18),
            (85, "stall", 1, 20), (125, "crash", 0), (145, "start", 0), (165, "close", 3), (167, "start", 3),
            (190, "crash", 1), (191, "crash", 2), (210, "crash", 0), (212, "crash", 3),
        ],
    ),
    "four": (
        7,
        {
            "base": POLL_20,
            "session20": POLL_20 | {"session.timeout.ms": 20_000},
            "poll45": POLL_20 | {"max.poll.interval.ms": 45_000},
            "coop": POLL_20 | COOPERATIVE,
            "static": POLL_20 | {"static": True},
            "static20": POLL_20 | {"static": True, "session.timeout.ms": 20_000},
        },
        [
            (0, "start", 0), (1, "start", 1), (2, "start", 2),
            # a rolling restart
            (30, "close", 0), (33, "start", 0), (40, "close", 1), (43, "start", 1), (50, "close", 2),
            (53, "start", 2),
            # a deploy, held up by a member that is slow
            (80, "stall", 1, 11), (82, "close", 0), (85, "start", 0), (92, "close", 2), (95, "start", 2),
            # a death, a newcomer that makes the group wait for the dead, and another death meanwhile
            (120, "crash", 2), (123, "start", 3), (125, "crash", 1), (150, "start", 1), (151, "start", 2),
            (175, "stall", 0, 27), (215, "crash", 3), (217, "crash", 2), (245, "close", 0), (262, "close", 1),
        ],
    ),
    "five": (
        9,
        {
            "base": SESSION_10,
            "session25": {"session.timeout.ms": 25_000},
            "coop": SESSION_10 | COOPERATIVE,
            "static": SESSION_10 | {"static": True},
            "static25": {"session.timeout.ms": 25_000, "static": True},
            "coopstatic": SESSION_10 | COOPERATIVE | {"static": True},
        },
        [
            (0, "start", 0), (2, "start", 1), (4, "start", 2), (6, "start", 3), (30, "crash", 1),
            (48, "start", 1), (70, "close", 2), (74, "start", 2), (95, "crash", 3), (98, "start", 3),
            (130, "start", 4), (150, "crash", 0), (153, "crash", 4), (185, "start", 0), (205, "close", 3),
            (220, "crash", 2), (250, "close", 0), (251, "close", 1),
        ],
    ),
    "six": (
        6,
        {
            "base": {"session.timeout.ms": 15_000},
            "session8": {"session.timeout.ms": 8_000},
            "session40": {"session.timeout.ms": 40_000},
            "coop": {"session.timeout.ms": 15_000, **COOPERATIVE},
            "static": {"session.timeout.ms": 15_000, "static": True},
        },
        [
            (0, "start", 0), (5, "start", 1), (10, "start", 2), (40, "crash", 2), (80, "start", 2),
            (100, "close", 0), (103, "start", 0), (112, "close", 1), (115, "start", 1), (124, "close", 2),
            (127, "start", 2), (160, "crash", 0), (166, "start", 0), (200, "crash", 1), (245, "start", 3),
            (270, "crash", 3), (310, "close", 0), (311, "close", 2),
        ],
    ),
}  # fmt: skip
"""Partitions, settings by group, and what is done to every group: after so many seconds, what, to whom."""


class Group:
    """One group: its members' processes, and the journals of what was done to them and what they saw."""

    def __init__(self, name: str, settings: Mapping[str, Any], server: str, directory: Path) -> None:
        self.name, self.settings, self.server = name, settings, server
        self.directory = directory
        self.done = (directory / f"journal-{name}.jsonl").open("a")
        self.saw = (directory / f"saw-{name}.jsonl").open("a")
        self.processes: dict[int, int] = {}

    def do(self, what: str, member: int, *words: float) -> None:
        """Do something to a member, and note it."""
        note(self.done, member, did=what, **({"s": words[0]} if words else {}))
        if what == "start":
            self.processes[member] = process = os.fork()
            if not process:
                try:
                    consume(self, member)
                finally:
                    os._exit(0)
        elif what == "stall":
            self.stall(member).write_text(str(words[0]))
        else:
            process = self.processes.pop(member)
            os.kill(process, signal.SIGKILL if what == "crash" else signal.SIGTERM)

    def stall(self, member: int) -> Path:
        """Return the file in which the working loop of a member finds for how long it is to work."""
        return self.directory / f"{self.name}.stall-{member}"


def note(into: IO[str], member: int, **what: Any) -> None:
    into.write(json.dumps({"at": time.time(), "member": member, **what}) + "\n")
    into.flush()


def consume(group: Group, member: int) -> None:
    """Be a member until SIGTERM."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))

    def seen(what: str) -> Any:
        return lambda _, partitions: note(
            group.saw, member, saw=what, partitions=sorted(one.partition for one in partitions)
        )

    own = {name: value for name, value in group.settings.items() if name != "static"}
    static = {"group.instance.id": f"{group.name}-i{member}"} if group.settings.get("static") else {}
    consumer = Consumer(
        {
            "bootstrap.servers": group.server, "group.id": group.name, "client.id": f"{group.name}-{member}",
            "auto.commit.interval.ms": 500, "auto.offset.reset": "latest", "log_level": 0, **own, **static,
        }
    )  # fmt: skip
    consumer.subscribe([TOPIC], on_assign=seen("assigned"), on_revoke=seen("revoked"), on_lost=seen("lost"))
    while not stopped:
        consumer.poll(0.1)
        if group.stall(member).exists():
            takes_s = float(group.stall(member).read_text())
            group.stall(member).unlink()
            time.sleep(takes_s)
    consumer.close()
    note(group.saw, member, saw="closed", partitions=[])


def produce(server: str, partitions: int) -> None:
    """Write to every partition without end."""
    producer = Producer({"bootstrap.servers": server, "linger.ms": 20, "log_level": 0})
    while True:
        for number in range(partitions):
            producer.produce(TOPIC, b"x", partition=number)
        producer.poll(0)
        time.sleep(RECORD_EVERY_S)


def live(name: str, directory: Path, server: str) -> None:
    """Live a life under all its settings at once."""
    partitions, settings, acts = LIVES[name]
    admin = AdminClient({"bootstrap.servers": server})
    admin.create_topics([NewTopic(TOPIC, partitions, 1)])[TOPIC].result()
    writer = os.fork()
    if not writer:
        produce(server, partitions)
    time.sleep(2)
    groups = [Group(f"{name}-{called}", one, server, directory) for called, one in settings.items()]
    began = time.time()
    for after_s, what, member, *words in acts:
        time.sleep(max(0.0, began + after_s - time.time()))
        for group in groups:
            group.do(what, member, *words)
    longest_ms = max(one["session.timeout.ms"] for one in settings.values())
    time.sleep(longest_ms / 1000 + 8)  # until everybody who died is missed
    os.kill(writer, signal.SIGKILL)


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; returns the exit code."""
    if len(arguments) != 2 or arguments[0] not in LIVES:
        print(USAGE, file=sys.stderr)
        return 2
    name, directory = arguments[0], Path(arguments[1]).absolute()
    directory.mkdir(parents=True)
    broker = BROKERS["kafka"](directory / "kafka", {})
    broker.prepare()
    broker.start()
    try:
        live(name, directory, broker.address)
    finally:
        broker.stop()
    for segment in sorted((directory / "kafka" / "log").glob("__consumer_offsets-*/*.log")):
        if segment.stat().st_size:
            (directory / segment.parent.name).mkdir()
            shutil.move(segment, directory / segment.parent.name)
    shutil.rmtree(directory / "kafka")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
