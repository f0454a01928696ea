"""`python -m interop.streams WORK CLASSPATH`: words are counted exactly once while others are killed.

Each word's counts in the output must be 1, 2, 3 up to how often it was written, read committed: a gap is a
loss, a repeat is twice.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from bench.kafka import SetupError, java
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from interop.places import PLACES, Place

LINES, WORDS_IN_A_LINE, VOCABULARY = 12_000, 3, 58
LINES_A_SECOND = 800
KILL_AFTER, COME_BACK_AFTER_S = 1 / 3, 3.0
SETTLE_S = 400.0
NOTHING_MORE_S = 5.0
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "6000"}


def main() -> int:
    """Run both lives; returns 1 if a word is lost or counted twice."""
    parser = argparse.ArgumentParser(prog="python -m interop.streams", description="Exactly once.")
    parser.add_argument("work", type=Path)
    parser.add_argument("classpath")
    parser.add_argument("--on", choices=PLACES, default="coterie")
    asked = parser.parse_args()
    failed = 0
    for victim in ("instance", "broker"):
        wrong = life(asked.work / victim, asked.classpath, asked.on, victim)
        failed += wrong is not None
        name = f"counts-exactly-once-{victim}-killed"
        print(f"ok {name}" if wrong is None else f"FAILED {name}: {wrong}", flush=True)
    return 1 if failed else 0


def life(work: Path, classpath: str, on: str, victim: str) -> str | None:
    """Return what is wrong with the counts when one is killed on the way and comes back, None if nothing."""
    work.mkdir(parents=True)
    with PLACES[on](work / "broker", SETTINGS) as broker:
        make_topics(broker)
        with instance(work, "one", classpath, broker), instance(work, "two", classpath, broker) as two:
            wanted = write(broker, lambda: strike(victim, broker, two))
            if victim == "instance":
                with instance(work, "two", classpath, broker):
                    return difference(broker, wanted)
            return difference(broker, wanted)


def make_topics(broker: Place) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    topics = [NewTopic(name, num_partitions=4, replication_factor=1) for name in ("lines", "counts")]
    for created in admin.create_topics(topics).values():
        created.result()


@contextmanager
def instance(work: Path, name: str, classpath: str, broker: Place) -> Iterator[subprocess.Popen[bytes]]:
    """Run one instance of the application, over the state that it had before."""
    command = [java(), "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classpath]
    command += ["Counting", broker.address, "counting", str(work / f"state-{name}")]
    with (work / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def strike(victim: str, broker: Place, two: subprocess.Popen[bytes]) -> None:
    """Kill one; the broker, of several a coordinator, comes back by itself."""
    if victim == "instance":
        os.kill(two.pid, signal.SIGKILL)
    else:
        broker.crash()
        time.sleep(COME_BACK_AFTER_S)
        broker.start()


def write(broker: Place, strike_now: object) -> Counter[str]:
    """Write lines at a pace, and have one killed on the way; returns how often each word was written."""
    assert callable(strike_now)
    chance = Random(7)
    words = [f"word-{number}" for number in range(VOCABULARY)]
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True, "log_level": 0})
    wanted: Counter[str] = Counter()
    begun = time.monotonic()
    for number in range(LINES):
        line = chance.choices(words, k=WORDS_IN_A_LINE)
        wanted.update(line)
        producer.produce("lines", " ".join(line).encode(), str(number).encode())
        producer.poll(0)
        if number == int(LINES * KILL_AFTER):
            strike_now()
        ahead = number / LINES_A_SECOND - (time.monotonic() - begun)
        if ahead > 0:
            time.sleep(ahead)
    left = producer.flush(SETTLE_S)
    assert not left, f"{left} lines were not written"
    return wanted


def difference(broker: Place, wanted: Counter[str]) -> str | None:
    """Return how the counts differ from what they must be, once they are all there or nothing more comes."""
    settings = {"bootstrap.servers": broker.address, "group.id": "judge", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": False})
    consumer.subscribe(["counts"])
    counts: dict[str, list[tuple[int, int | None, int | None]]] = {}
    total, found = sum(wanted.values()), 0
    until = time.monotonic() + SETTLE_S
    try:
        while time.monotonic() < until:
            messages = consumer.consume(1_000, timeout=1.0 if found < total else NOTHING_MORE_S)
            if found >= total and not messages:
                break
            for message in messages:
                key, value = message.key(), message.value()
                if message.error() is None and key is not None and value is not None:
                    counts.setdefault(key.decode(), []).append(
                        (int(value), message.partition(), message.offset())
                    )
                    found += 1
    finally:
        consumer.close()
    for word, times in wanted.items():
        there = counts.get(word, [])
        numbers = [number for number, *_ in there]
        if numbers != list(range(1, times + 1)):
            wrong = next((at for at, number in enumerate(numbers) if number != at + 1), len(there))
            return (
                f"{word} was written {times} times, and has {len(there)} counts of {found}, wrong about"
                f" {there[max(0, wrong - 3) : wrong + 3]} (count, partition, offset)"
            )
    return None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as error:
        sys.exit(f"interop.streams: {error}")
