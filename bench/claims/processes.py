"""Claim: one process, and up to four, beside one Apache Kafka: how fast, and what CPU the broker takes.

With more processes than the machine has cores, it is the CPU that tells how a larger one would do.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from bench import machine, tools
from bench.brokers import BROKERS, Broker, Processes, data_directory
from bench.claims import commits, heartbeats, java
from bench.claims.throughput import topic_for, warmed_up
from bench.figures import Figure, Goal, Plan

__all__ = ["measure"]

COUNTS = (1, 2, 3, 4)
MEMBERS, GROUP, SECONDS, QUICK_SECONDS = 50, 10, 8, 2
SIZE, RECORDS = 1_000, 600_000
HEARTBEATS, COMMITS = (
    "heartbeats, 50 connections in groups of 10",
    "offset commits, 50 members in groups of 10",
)
PRODUCE, CONSUME = "Java: produce 1,000 B, acks=1", "Java: consume 1,000 B"
PRODUCE_AT_ONCE, CONSUME_AT_ONCE = (
    "two Java producers at once, 1,000 B, acks=1",
    "two Java consumers at once, 1,000 B",
)
GOALS = {  # of how many times Kafka's rate, by processes; 1.0 unless it is named
    HEARTBEATS: {1: 1.1, 2: 1.5},
    COMMITS: {2: 1.5},
    PRODUCE: {2: 1.3},
    CONSUME: {2: 1.3},
    PRODUCE_AT_ONCE: {2: 1.2},
    CONSUME_AT_ONCE: {2: 1.2},
}
AT_ONCE = 2
CPU_GOALS = {PRODUCE_AT_ONCE: {2: 0.8}, CONSUME_AT_ONCE: {2: 0.8}}
"""Which will do where clients have nine tenths of a core each."""
UNITS = {what: "/s" if what in (HEARTBEATS, COMMITS) else "records/s" for what in GOALS}


def measure(plan: Plan) -> list[Figure]:
    """Return for each number of processes the operations a second, and what each takes the broker in CPU."""
    rates = {
        (what, count): Figure(
            "processes",
            f"{named(count)}: {what}",
            UNITS[what],
            Goal(goals.get(count, 1.0), "ratio", at_most=False),
        )
        for count in COUNTS
        for what, goals in GOALS.items()
    }
    costs = {
        (what, count): Figure(
            "processes",
            f"{named(count)}: CPU of the broker, {what}",
            "us",
            Goal(CPU_GOALS.get(what, {}).get(count, 1.0), "ratio", at_most=True),
        )
        for what, count in rates
    }
    for name, count, broker in rounds(plan):
        with broker:
            for what, rate, cost in worked(plan, broker):
                for of in COUNTS if name == "kafka" else (count,):
                    rates[what, of].add(name, rate)
                    costs[what, of].add(name, cost)
    return [*rates.values(), *costs.values()]


def named(count: int) -> str:
    """Return the name of so many processes, as rows have it."""
    return "one process" if count == 1 else f"--processes {count}"


def rounds(plan: Plan) -> Iterator[tuple[str, int, Broker]]:
    """Yield each broker, not yet started, with its number of processes, in an order that turns."""
    kinds = [(name, count) for name in plan.brokers for count in (COUNTS if name == "coterie" else (1,))]
    for repetition in range(plan.repeats):
        for name, count in kinds if repetition % 2 == 0 else kinds[::-1]:
            plan.say(f"processes: {name}, {count}, {repetition + 1} of {plan.repeats}")
            directory = data_directory() / name
            several = name == "coterie" and count > 1
            yield name, count, Processes(directory, count) if several else BROKERS[name](directory)


def worked(plan: Plan, broker: Broker) -> Iterator[tuple[str, float, float]]:
    """Yield what was done, how many of it a second, and the microseconds of CPU that each took the broker."""
    seconds = QUICK_SECONDS if plan.quick else SECONDS
    warmed_up(broker, plan.scaled(java.RECORDS[100]), java.produce, java.consume)
    tools.create_topic(broker.address, commits.TOPIC, partitions=GROUP)
    for what, mode, warm in (
        (HEARTBEATS, "heartbeats", heartbeats.WARM),
        (COMMITS, "commits", plan.scaled(commits.WARM)),
    ):
        load = {"members": MEMBERS, "group": GROUP, "warm": warm, "seconds": seconds}
        with taken(broker) as cpu:
            said = tools.group_load(broker.address, mode, **load)
        yield what, said["per_second"], cpu[0] / (warm + said["requests"])
    records = plan.scaled(RECORDS)
    with topic_for(broker, "records") as topic:
        with taken(broker) as cpu:
            rate = java.produce(broker, topic, records, SIZE, "1")
        yield PRODUCE, rate, cpu[0] / records
        os.sync()  # so that consuming does not share the disk with what was produced
        with taken(broker) as cpu:
            rate = java.consume(broker, topic, records)
        yield CONSUME, rate, cpu[0] / records
    yield from worked_at_once(plan, broker, records // AT_ONCE)


def worked_at_once(plan: Plan, broker: Broker, records: int) -> Iterator[tuple[str, float, float]]:
    """Yield the same of two clients at once, each with so many records in a topic of its own, which has
    partitions on all brokers.
    """
    with ExitStack() as stack:
        topics = [stack.enter_context(topic_for(broker, f"at-once-{number}")) for number in range(AT_ONCE)]
        yield at_once(
            plan,
            broker,
            PRODUCE_AT_ONCE,
            topics,
            records,
            lambda topic: java.produce(broker, topic, records, SIZE, "1"),
        )
        os.sync()
        yield at_once(
            plan, broker, CONSUME_AT_ONCE, topics, records, lambda topic: java.consume(broker, topic, records)
        )


def at_once(
    plan: Plan, broker: Broker, what: str, topics: list[str], records: int, work: Callable[[str], float]
) -> tuple[str, float, float]:
    """Return what was done, the records a second of all clients together, and the CPU that each took the
    broker; say how much of a core a client had.
    """
    began_s, before_s = time.monotonic(), clients_cpu_seconds()
    with taken(broker) as cpu, ThreadPoolExecutor(AT_ONCE) as pool:
        rate = sum(pool.map(work, topics))
    share = (clients_cpu_seconds() - before_s) / (time.monotonic() - began_s) / AT_ONCE
    plan.say(f"processes: {what}: a client has {share:.2f} of a core, {broker.name}")
    return what, rate, cpu[0] / (records * AT_ONCE)


def clients_cpu_seconds() -> float:
    """Return the CPU that programs took which were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def taken(broker: Broker) -> Iterator[list[float]]:
    """Yield a list that holds the microseconds of CPU that the broker took within, afterwards."""
    before_s, cpu = machine.cpu_seconds(broker.pid) or 0.0, list[float]()
    yield cpu
    cpu.append(((machine.cpu_seconds(broker.pid) or 0.0) - before_s) * 1e6)
