"""Claim: our client produces at least twice as fast as aiokafka and kafka-python, and near confluent-kafka.

All four send the same records to the same broker with the same settings, one after the other, each in a
process of its own; the order turns with each repetition. What is compared is the client: both columns of the
table are our rate divided by the other's, against either broker.
"""

from __future__ import annotations

from bench import tools
from bench.brokers import Broker
from bench.claims.throughput import SIZES, topic_for
from bench.figures import Figure, Goal, Plan
from bench.python_load import PRODUCERS

__all__ = ["measure"]

OURS = "coterie"
RECORDS = {100: 1_000_000, 1_000: 300_000}
# The slow ones get less to do: their rates do not depend on it.
SHARES = {OURS: 1.0, "confluent-kafka": 1.0, "aiokafka": 0.2, "kafka-python": 0.1}
GOALS = {"aiokafka": 2.0, "kafka-python": 2.0, "confluent-kafka": 0.5}


def measure(plan: Plan) -> list[Figure]:
    """Return our rate divided by each other client's, by size of records. Consuming is measured below it."""
    figures = {
        (other, size): Figure(
            "python-clients",
            f"Python clients: produce {size:,} B, ours / {other}",
            "x",
            Goal(limit, "own", at_most=False),
        )
        for other, limit in GOALS.items()
        for size in SIZES
    }
    for turn, (name, broker) in enumerate(plan.rounds("python-clients")):
        with broker:
            for size in SIZES:
                rates = produced(plan, broker, size, turn)
                plan.say(", ".join(f"{client} {rate:,.0f}/s" for client, rate in rates.items()))
                for other in GOALS:
                    figures[other, size].add(name, rates[OURS] / rates[other])
    return list(figures.values())


def produced(plan: Plan, broker: Broker, size: int, turn: int) -> dict[str, float]:
    """Return the records a second that each client produced."""
    clients = list(PRODUCERS)
    first = turn // 2 % len(clients)
    rates = {}
    for client in clients[first:] + clients[:first]:
        with topic_for(broker, f"{client}-{size}") as topic:
            records = int(plan.scaled(RECORDS[size]) * SHARES[client])
            said = tools.python_load("produce", client, broker.address, topic, records, size)
            rates[client] = float(said["records_per_second"])
    return rates
