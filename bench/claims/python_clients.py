"""Claim: our client is at least twice as fast as aiokafka and kafka-python, and near confluent-kafka.

All four send the same records to the same broker with the same settings, and read the same topic, one after
the other, each in a process of its own; the order turns with each repetition. What is compared is the client:
both columns of the table are our rate divided by the other's, against either broker.
"""

from __future__ import annotations

from collections.abc import Callable

from bench import tools
from bench.brokers import Broker
from bench.claims import librdkafka
from bench.claims.throughput import PARTITIONS, SIZES, topic_for
from bench.figures import Figure, Goal, Plan
from bench.python_consumers import CONSUMERS
from bench.python_producers import PRODUCERS

__all__ = ["measure"]

OURS = "coterie"
SENT = {100: 1_000_000, 1_000: 300_000}
READ = {100: 3_000_000, 1_000: 800_000}
WARM_UP = 2_000_000
# The slow ones get less to do: their rates do not depend on it.
SHARES = {OURS: 1.0, "confluent-kafka": 1.0, "aiokafka": 0.3, "kafka-python": 0.1}
GOALS = {"aiokafka": 2.0, "kafka-python": 2.0, "confluent-kafka": 0.5}

Run = Callable[[str, int], float]  # a client and how many records, to records a second


def measure(plan: Plan) -> list[Figure]:
    """Return our rate divided by each other client's, producing and consuming, by size of records."""
    figures = {
        (mode, other, size): Figure(
            "python-clients",
            f"Python clients: {mode} {size:,} B, ours / {other}",
            "x",
            Goal(limit, "own", at_most=False),
        )
        for mode in ("produce", "consume")
        for other, limit in GOALS.items()
        for size in SIZES
    }
    for turn, (name, broker) in enumerate(plan.rounds("python-clients")):
        with broker:
            librdkafka.warm_up(broker, plan.scaled(WARM_UP))  # or the first client would find a cold JVM
            for size in SIZES:
                for mode, rates in rates_of(plan, broker, size, turn):
                    plan.say(
                        f"{mode} {size:,} B: " + ", ".join(f"{who} {n:,.0f}/s" for who, n in rates.items())
                    )
                    for other in GOALS:
                        figures[mode, other, size].add(name, rates[OURS] / rates[other])
    return list(figures.values())


def rates_of(plan: Plan, broker: Broker, size: int, turn: int) -> list[tuple[str, dict[str, float]]]:
    """Return the records a second that each client produced, and those that each consumed."""

    def produce(client: str, records: int) -> float:
        with topic_for(broker, f"{client}-{size}") as topic:
            said = tools.python_load("produce", client, broker.address, topic, records, size)
            return float(said["records_per_second"])

    produced = by_client(list(PRODUCERS), plan.scaled(SENT[size]), turn, produce)
    with topic_for(broker, f"full-{size}") as topic:
        librdkafka.produce(broker, topic, plan.scaled(READ[size]), size, "1")

        def consume(client: str, records: int) -> float:
            said = tools.python_load("consume", client, broker.address, topic, records, PARTITIONS)
            return float(said["records_per_second"])

        consumed = by_client(list(CONSUMERS), plan.scaled(READ[size]), turn, consume)
    return [("produce", produced), ("consume", consumed)]


def by_client(clients: list[str], records: int, turn: int, run: Run) -> dict[str, float]:
    """Return the rate of each client; another one comes first each time."""
    first = turn // 2 % len(clients)
    return {
        client: run(client, int(records * SHARES[client])) for client in clients[first:] + clients[:first]
    }
