"""Claim: what Spark's Python workers hold is bounded by the size of a fetch, not by that of the topic.

The same workers read a fifth of the records and then all of them; the most that one of them ever held must
not grow. It is given as it is, with Python, Arrow and numba in it.
"""

from __future__ import annotations

from bench import machine
from bench.brokers import BROKERS, data_directory
from bench.figures import Figure, Goal, Plan
from bench.spark.running import OURS, Application
from bench.spark.topics import MIXED, Records, fill

__all__ = ["measure"]

WORKER = "pyspark.daemon"
MOST_MB = 500.0
GROWTH_MOST = 1.1


def measure(plan: Plan) -> list[Figure]:
    """Return the most that a worker held, and how much more it was with five times the records."""
    most = Figure("spark-memory", "Spark, Python worker's peak", "MB", Goal(MOST_MB, "both", at_most=True))
    growth = Figure(
        "spark-memory",
        "Spark, Python worker's peak with five times the records",
        "x",
        Goal(GROWTH_MOST, "both", at_most=True),
    )
    all_records = MIXED.scaled(plan)
    a_fifth = Records(tuple((count // 5, size) for count, size in all_records.counts))
    for name in plan.brokers:
        plan.say(f"spark-memory: {name}")
        with BROKERS[name](data_directory() / name) as broker:
            fill(broker.address, "few", a_fifth)
            fill(broker.address, "many", all_records)
            with Application(data_directory() / "spark", broker.address) as application:
                few_mb, many_mb = (peak_mb(application, topic) for topic in ("few", "many"))
        most.add(name, many_mb)
        growth.add(name, many_mb / few_mb)
    return [most, growth]


def peak_mb(application: Application, topic: str) -> float:
    """Return the most that a worker has held when the topic has been read a few times."""
    for job in ("noop", "lengths", "noop"):
        application.does(job, OURS, topic)
    return max(machine.peaks_mb(application.process.pid, WORKER))
