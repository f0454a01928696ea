"""Claim: one process, and two, beside one Apache Kafka: how fast, and what CPU the broker takes for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from bench import machine, tools
from bench.brokers import BROKERS, Broker, Processes, data_directory
from bench.claims import commits, heartbeats, java
from bench.claims.throughput import topic_for, warmed_up
from bench.figures import Figure, Goal, Plan

__all__ = ["measure"]

COUNTS = (1, 2)
MEMBERS, GROUP, SECONDS, QUICK_SECONDS = 50, 10, 8, 2
SIZE, RECORDS = 1_000, 600_000
HEARTBEATS, COMMITS = (
    "heartbeats, 50 connections in groups of 10",
    "offset commits, 50 members in groups of 10",
)
PRODUCE, CONSUME = "Java: produce 1,000 B, acks=1", "Java: consume 1,000 B"
GOALS = {  # of how many times Kafka's rate, by processes
    HEARTBEATS: {1: 1.1, 2: 1.5},
    COMMITS: {1: 1.0, 2: 1.5},
    PRODUCE: {1: 1.0, 2: 1.3},
    CONSUME: {1: 1.0, 2: 1.3},
}
UNITS = {HEARTBEATS: "/s", COMMITS: "/s", PRODUCE: "records/s", CONSUME: "records/s"}


def measure(plan: Plan) -> list[Figure]:
    """Return for each number of processes the operations a second, and what each takes the broker in CPU."""
    rates = {
        (what, count): Figure(
            "processes", f"{named(count)}: {what}", UNITS[what], Goal(goal, "ratio", at_most=False)
        )
        for count in COUNTS
        for what, goal in ((what, GOALS[what][count]) for what in GOALS)
    }
    costs = {
        (what, count): Figure(
            "processes", f"{named(count)}: CPU of the broker, {what}", "us", Goal(1.0, "ratio", at_most=True)
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


@contextmanager
def taken(broker: Broker) -> Iterator[list[float]]:
    """Yield a list that holds the microseconds of CPU that the broker took within, afterwards."""
    before_s, cpu = machine.cpu_seconds(broker.pid) or 0.0, list[float]()
    yield cpu
    cpu.append(((machine.cpu_seconds(broker.pid) or 0.0) - before_s) * 1e6)
