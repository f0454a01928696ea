"""One module a claim, each with `measure(plan) -> list[Figure]`."""

from __future__ import annotations

from collections.abc import Callable

from bench.claims import (
    assign,
    commits,
    compaction,
    crowd,
    heartbeats,
    history,
    java,
    librdkafka,
    loading,
    members,
    memory,
    postgres,
    processes,
    python_clients,
    recovery,
    simulate,
    spark_memory,
    spark_read,
    spark_stream,
    spark_write,
    startup,
    storm,
    story,
    transactions,
    what_if,
)
from bench.figures import Figure, Plan

__all__ = ["CLAIMS"]

CLAIMS: dict[str, Callable[[Plan], list[Figure]]] = {
    "startup": startup.measure,
    "memory": memory.measure,
    "heartbeats": heartbeats.measure,
    "librdkafka": librdkafka.measure,
    "java": java.measure,
    "members": members.measure,
    "commits": commits.measure,
    "storm": storm.measure,
    "crowd": crowd.measure,
    "transactions": transactions.measure,
    "processes": processes.measure,
    "postgres": postgres.measure,
    "python-clients": python_clients.measure,
    "recovery": recovery.measure,
    "loading": loading.measure,
    "compaction": compaction.measure,
    "story": story.measure,
    "assign": assign.measure,
    "simulate": simulate.measure,
    "what-if": what_if.measure,
    "history": history.measure,
    "spark-read": spark_read.read,
    "spark-codecs": spark_read.codecs,
    "spark-parquet": spark_read.parquet,
    "spark-stream": spark_stream.stream,
    "spark-micro": spark_stream.micro,
    "spark-memory": spark_memory.measure,
    "spark-write": spark_write.measure,
}
