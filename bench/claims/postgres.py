"""Claim: one broker over PostgreSQL, which writes to its disk before it answers, beside a Kafka that flushes
each batch, and beside one over files where nothing is written.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import machine, tools
from bench.brokers import Broker, Coterie, Kafka, data_directory
from bench.claims import commits, heartbeats, java
from bench.claims.throughput import topic_for, warmed_up
from bench.figures import Figure, Goal, Plan
from bench.over_postgres import OverPostgres
from bench.postgres import ensure_installed

__all__ = ["measure"]

MEMBERS, GROUP = (50, 500), 10
WARM = 2_000  # a broker that flushes each commit takes long for more
COMMITS_PER_SECOND = 25_000
FLUSHES = {"log.flush.interval.messages": "1"}
BATCH = {"batch.size": "16384", "linger.ms": "5"}
SIZE, RECORDS = 1_000, 300_000
MB_PER_SECOND, P99_MS = 150, 10
FLUSH_MS, FLUSHES_TRIED, FLUSHED = 0.5, 200, bytes(8_192)
AS_FILES = 0.97
"""What may be missing to a rate that nothing is written for."""


class Rows:
    """The figures of this claim."""

    def __init__(self) -> None:
        self.commits = {
            members: _row(f"offset commits, {members} members in groups of {GROUP}", "/s", COMMITS_PER_SECOND)
            for members in MEMBERS
        }
        self.brokers_cpu = {
            members: _row(f"CPU of the broker, a commit of {members} members", "us", 1.0, of="ratio")
            for members in MEMBERS
        }
        self.cpu = {
            members: _row(f"CPU of broker and database, a commit of {members} members", "us", 1.0, of="ratio")
            for members in MEMBERS
        }
        self.heartbeats = _row("heartbeats, 50 connections, beside those over files", "x", AS_FILES)
        self.flush = _row("a flush of the disk beneath, which each of these waits for", "ms", FLUSH_MS)
        self.produce = _row("Java: produce in batches of 16 KB, acks=all", "MB/s", MB_PER_SECOND)
        self.latency = _row("Java: the 99th percentile of a produce at a tenth of it", "ms", P99_MS)

    def all(self) -> list[Figure]:
        """All rows, in the order of the table."""
        of_members = [of[members] for members in MEMBERS for of in (self.commits, self.brokers_cpu, self.cpu)]
        return [*of_members, self.heartbeats, self.flush, self.produce, self.latency]


def _row(what: str, unit: str, limit: float, *, of: str = "own") -> Figure:
    goal = Goal(limit, of, at_most=unit in ("us", "ms"))
    return Figure("postgres", f"over PostgreSQL: {what}", unit, goal)


def measure(plan: Plan) -> list[Figure]:
    """Return what a broker over PostgreSQL does in a second, and what that takes it and the database."""
    ensure_installed()
    rows = Rows()
    for repetition in range(plan.repeats):
        rows.flush.add("coterie", _flush_ms(data_directory()))
        for name, broker in _brokers(plan, repetition):
            with broker:
                _commit(rows, plan, name, broker)
                if name == "coterie":  # a Kafka that flushes each batch takes minutes
                    _produce(rows, plan, name, broker)
        if "coterie" in plan.brokers:
            rows.heartbeats.add("coterie", _beside_files(plan, repetition))
    return rows.all()


def _brokers(plan: Plan, repetition: int) -> Iterator[tuple[str, Broker]]:
    """Yield each broker, not yet started, in an order that turns."""
    for name in plan.brokers if repetition % 2 == 0 else plan.brokers[::-1]:
        plan.say(f"postgres: {name}, {repetition + 1} of {plan.repeats}")
        directory = data_directory() / name
        yield name, OverPostgres(directory) if name == "coterie" else Kafka(directory, FLUSHES)


def _commit(rows: Rows, plan: Plan, name: str, broker: Broker) -> None:
    tools.create_topic(broker.address, commits.TOPIC, partitions=GROUP)
    warm = plan.scaled(WARM)
    seconds = commits.QUICK_SECONDS if plan.quick else commits.SECONDS
    for members in MEMBERS:
        before = _cpu_us(broker)
        load = {"members": members, "group": GROUP, "warm": warm, "seconds": seconds}
        said = tools.group_load(broker.address, "commits", **load)
        done = warm + said["requests"]
        of_broker, of_both = (
            (after - was) / done for was, after in zip(before, _cpu_us(broker), strict=True)
        )
        rows.commits[members].add(name, said["per_second"])
        rows.brokers_cpu[members].add(name, of_broker)
        rows.cpu[members].add(name, of_both)


def _cpu_us(broker: Broker) -> tuple[float, float]:
    """Return the microseconds of CPU that a broker has used, and with those of its database."""
    own = machine.cpu_seconds(broker.pid) or 0.0
    of_server = broker.server_cpu_seconds() if isinstance(broker, OverPostgres) else 0.0
    return own * 1e6, (own + of_server) * 1e6


def _produce(rows: Rows, plan: Plan, name: str, broker: Broker) -> None:
    records = plan.scaled(RECORDS)
    warmed_up(broker, plan.scaled(java.RECORDS[1_000]), java.produce, java.consume)
    produce = tools.java_produce
    with topic_for(broker, "records") as topic:
        rate = produce(broker.address, topic, records=records, size=SIZE, acks="all", settings=BATCH)
    rows.produce.add(name, rate * SIZE / 1e6)
    with topic_for(broker, "paced") as topic:
        paced = int(rate) // 10
        p99_ms = tools.java_produce_paced(
            broker.address, topic, records=paced * commits.SECONDS, size=SIZE, acks="all", per_second=paced
        )
    rows.latency.add(name, p99_ms)


def _flush_ms(folder: Path) -> float:
    """Return the median time of a write of 8 KB that is flushed to the disk of a folder, as of a WAL."""
    folder.mkdir(parents=True, exist_ok=True)
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(FLUSHED * FLUSHES_TRIED)
        os.fsync(file.fileno())
        for number in range(FLUSHES_TRIED):
            begun = time.perf_counter()
            os.pwrite(file.fileno(), FLUSHED, number * len(FLUSHED))
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - begun)
    return 1_000 * statistics.median(took)


def _beside_files(plan: Plan, repetition: int) -> float:
    """Return the heartbeats a second over PostgreSQL, divided by those over files."""
    rates = {}
    kinds: list[type[Broker]] = [OverPostgres, Coterie]
    seconds = heartbeats.QUICK_SECONDS if plan.quick else heartbeats.SECONDS
    for kind in kinds if repetition % 2 == 0 else kinds[::-1]:
        with kind(data_directory() / "coterie") as broker:
            load = {"members": MEMBERS[0], "group": GROUP, "warm": heartbeats.WARM, "seconds": seconds}
            rates[kind] = tools.group_load(broker.address, "heartbeats", **load)["per_second"]
    return float(rates[OverPostgres] / rates[Coterie])
