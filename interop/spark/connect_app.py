"""`python -m interop.spark.connect_app SERVER JSON`: a client of Spark Connect, and what it sees of queries.

It runs a query of each kind that it is given, one after the other in one session, and prints a line of JSON:
of each what the group has committed soon after its first batch was done, and what became of it.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import coterie.spark
from coterie.spark.ledger.ledger import Ledger
from coterie.spark.listener import GroupListener
from interop.spark.topics import committed_by

AN_HOUR = {"processingTime": "1 hour"}
AT_ONCE = ("state, now", "state, ledger")
"""Kinds that ask for a second batch as soon as the first is done."""
SOON_S = 5.0
STOPPED_WITHIN_S = 30.0
WITHIN_S = 300.0


def main() -> None:
    """Run the queries that the arguments describe."""
    from pyspark.sql import SparkSession

    server, wanted = sys.argv[1], json.loads(sys.argv[2])
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    spark = SparkSession.builder.remote(server).getOrCreate()
    try:
        print(json.dumps({kind: outcome_of(kind, one, spark) for kind, one in wanted.items()}))
    finally:
        spark.stop()  # its thread of listeners would keep this process


def outcome_of(kind: str, wanted: dict[str, Any], spark: Any) -> dict[str, Any]:
    """Return what became of a query of a kind."""
    endpoint = None
    if kind == "watched":
        coterie.spark.watch(spark)
    elif kind == "listener":
        endpoint = coterie.spark.serve_metrics(spark, port=0)
    elif "ledger" not in kind:
        spark.streams.addListener(GroupListener())
    query = started(kind, wanted, spark)
    until(WITHIN_S, lambda: not query.isActive or query.lastProgress is not None)
    done_s = time.monotonic()
    if kind.startswith("state"):
        until(STOPPED_WITHIN_S, lambda: not query.isActive)
    else:
        until(SOON_S, lambda: sum(committed_by(wanted["options"], wanted["partitions"]).values()))
    found = {
        "after_s": round(time.monotonic() - done_s, 2),
        "committed": sum(committed_by(wanted["options"], wanted["partitions"]).values()),
        "active": query.isActive,
        "error": str(query.exception() or ""),
        "scraped": "" if endpoint is None else scraped(endpoint.url),
    }
    if query.isActive:
        query.stop()
    return found


def scraped(url: str) -> str:
    """Return what Prometheus is told."""
    with urlopen(url, timeout=SOON_S) as answer:
        told: str = answer.read().decode()
    return told


def until(within_s: float, holds: Callable[[], object]) -> None:
    """Wait until something holds, so long at most."""
    end_s = time.monotonic() + within_s
    while not holds() and time.monotonic() < end_s:
        time.sleep(0.05)


def started(kind: str, wanted: dict[str, Any], spark: Any) -> Any:
    """Return a query of a kind, which waits for an hour when its first batch is done, or ends then."""
    folder, group = Path(wanted["folder"]), wanted["options"]["group.id"]
    rows = spark.readStream.format("coterie").options(**wanted["options"]).load()
    if kind == "state, ledger":
        rows = rows.dropDuplicates(["partition", "offset"])
    elif kind.startswith("state"):
        rows = rows.groupBy("partition").count()
    writer = rows.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    writer = writer.trigger(**({"availableNow": True} if kind in AT_ONCE else AN_HOUR))
    if "ledger" in kind:
        return writer.foreachBatch(Ledger(str(folder / "table"), group=group).write).start()
    if kind.startswith("state"):
        return writer.outputMode("complete").format("memory").queryName(f"counts{len(kind)}").start()
    return writer.format("parquet").start(str(folder / "rows"))


if __name__ == "__main__":
    main()
