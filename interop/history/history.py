"""Groups of librdkafka consumers on Apache Kafka, what is done to them by seed, and whether the log tells it.

Each act lets members go in one way. A rebalance is right if its causes are those of the acts; a floor says
how many must be. Close, crash and stall look alike in the log but for their times. The tests of a watched
cluster run on the same broker.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from bench.brokers import BROKERS
from bench.kafka import REPOSITORY
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from coterie.cli.history import histories_in
from coterie.history.tables import Generation, History
from interop.history.member import TOPIC

SEED = int(os.environ.get("SEED", "1"))
PARTITIONS, ACTS, SETTLED_S = 8, 3, 12.0
SESSION_MS, POLL_MS = 6_000, 9_000
FLOOR, LEAST_JUDGED = 0.8, 20
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": "2000",
    "group.consumer.min.heartbeat.interval.ms": "2000",
}
CAUSE = {"close": "member-left", "crash": "session-expired", "stall": "poll-interval-exceeded"}
GONE = frozenset(CAUSE.values())
CLASSIC = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 1_500}
KINDS: dict[str, dict[str, object]] = {
    "eager": {**CLASSIC, "partition.assignment.strategy": "range"},
    "cooperative": {**CLASSIC, "partition.assignment.strategy": "cooperative-sticky"},
    "newer": {"group.protocol": "consumer"},
}


class Act(NamedTuple):
    """What was done to a client, and when."""

    at_ms: int
    client: str
    what: str


class Group:
    """A group, its members' processes and its journal."""

    def __init__(self, name: str, bootstrap: str) -> None:
        self.name, self.bootstrap = name, bootstrap
        self.journal: list[Act] = []
        self.live: dict[str, subprocess.Popen[str]] = {}
        self.chance = random.Random(f"{SEED}-{name}")

    def start(self) -> None:
        client = f"{self.name}-{len(self.journal)}"
        settings = {
            "bootstrap.servers": self.bootstrap, "group.id": self.name, "client.id": client, "log_level": 3,
            "auto.offset.reset": "earliest", "auto.commit.interval.ms": 500, "max.poll.interval.ms": POLL_MS,
            **KINDS[self.name],
        }  # fmt: skip
        command = [sys.executable, "-m", "interop.history.member", json.dumps(settings)]
        self.note(client, "start")
        self.live[client] = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, cwd=REPOSITORY)

    def note(self, client: str, what: str) -> None:
        self.journal.append(Act(int(time.time() * 1000), client, what))

    def live_through(self) -> None:
        """Let members come, and each act happen once it has been quiet."""
        for _ in range(3):
            self.start()
            time.sleep(4)
        acts = [*CAUSE, *self.chance.choices(list(CAUSE), k=ACTS - len(CAUSE))]
        self.chance.shuffle(acts)
        for what in acts:
            time.sleep(SETTLED_S / 2)
            self.act(what)
            time.sleep(SETTLED_S)
        for client in list(self.live):
            self.say(client, "close")

    def act(self, what: str) -> None:
        client = self.chance.choice(sorted(self.live))
        if what == "stall":
            self.say(client, "stall", f"stall {POLL_MS / 1000 + 5}")
            return
        if what == "crash":
            self.note(client, what)
            self.live.pop(client).kill()
        else:
            self.say(client, what)
            self.live.pop(client).wait(20)
        self.start()

    def say(self, client: str, what: str, order: str = "") -> None:
        self.note(client, what)
        stdin = self.live[client].stdin
        assert stdin is not None
        print(order or what, file=stdin, flush=True)


def main() -> int:
    """Print `ok` or `FAILED` for each group and for all; returns 1 if one failed."""
    cache = REPOSITORY / ".cache" / "interop"
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="history-", dir=cache) as work:
        kafka = BROKERS["kafka"](Path(work) / "kafka", SETTINGS)
        kafka.prepare()
        kafka.start()
        try:
            groups = lived(kafka.address)
            unwatched = watched(kafka.address)
        finally:
            kafka.stop()
        return unwatched | judged(
            groups, {one.group_id: one for one in histories_in(kafka.directory / "log")}
        )


def watched(bootstrap: str) -> int:
    """Print whether a query that watches raises a stuck group and a storm there; returns 1 if not."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/spark/test_history_live.py"]
    environment = {**os.environ, "COTERIE_TEST_BOOTSTRAP": bootstrap}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    print("ok watch" if not done.returncode else f"FAILED watch: {done.stdout[-2_000:]}", flush=True)
    return int(done.returncode != 0)


def lived(bootstrap: str) -> list[Group]:
    """Let all groups live while records come; return them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
    over = threading.Event()
    producing = threading.Thread(target=produce, args=(bootstrap, over))
    producing.start()
    groups = [Group(name, bootstrap) for name in KINDS]
    lives = [threading.Thread(target=group.live_through) for group in groups]
    for life in lives:
        life.start()
    for life in lives:
        life.join()
    for group in groups:
        for process in group.live.values():
            process.wait(60)
    over.set()
    producing.join()
    return groups


def produce(bootstrap: str, over: threading.Event) -> None:
    """Produce to all partitions, ten times a second, until it is over."""
    producer = Producer({"bootstrap.servers": bootstrap})
    while not over.wait(0.1):
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, b"x", partition=partition)
        producer.poll(0)
    producer.flush(10)


def judged(groups: list[Group], told: dict[str, History]) -> int:
    """Print how each group was told; returns 1 if too little was right, or too little was to be told."""
    failed = all_right = all_of = 0
    for group in groups:
        wrong, count = wrong_of(group, told[group.name])
        words = f"{count - len(wrong)} of {count} rebalances are told with the right causes"
        bad = count - len(wrong) < FLOOR * count or not count
        failed += bad
        print(
            f"FAILED {group.name}: {words}; {'; '.join(wrong[:4])}" if bad else f"ok {group.name}", flush=True
        )
        print(f"# {group.name}: {words} {wrong}", flush=True)
        all_right, all_of = all_right + count - len(wrong), all_of + count
    enough = all_of >= LEAST_JUDGED
    print(f"# {all_right} of {all_of} in all, seed {SEED}")
    print("ok enough-to-judge" if enough else f"FAILED enough-to-judge: {all_of} rebalances are too few")
    return 1 if failed or not enough else 0


def wrong_of(group: Group, history: History) -> tuple[list[str], int]:
    """Return what is told otherwise than the journal has it, and how many rebalances were judged."""
    names = {one.member_id: one.client_id for one in history.assignments}
    wrong = []
    for one in history.generations:
        wanted, got = wanted_of(group, one, names), set(one.causes) & (GONE | {"member-joined"})
        if wanted != got:
            wrong.append(f"generation {one.generation}: {sorted(wanted)} was told as {sorted(one.causes)}")
    return wrong, len(history.generations)


def wanted_of(group: Group, one: Generation, names: dict[str, str]) -> set[str]:
    """Return the causes by the journal: what was last done to who is gone, and whether somebody came."""
    wanted = {"member-joined"} if one.joined else set()
    for member in one.left:
        acts = [
            act for act in group.journal if act.client == names.get(member) and act.at_ms <= one.formed_at
        ]
        done = [act.what for act in acts if act.what in CAUSE]
        wanted.add(CAUSE[done[-1]] if done else "nothing was done to it")
    return wanted


if __name__ == "__main__":
    sys.exit(main())
