"""The application on the cluster: `spark-submit app.py JSON`. It knows nothing of this repository."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

STOP = Path("/var/stop")
"""Where this file is, the application stops."""


def main() -> None:
    """Do what is wanted, and say in lines of JSON what came of it."""
    wanted = json.loads(sys.argv[1])
    builder = SparkSession.builder.appName("cluster")
    for name, value in wanted.get("settings", {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("INFO")
    {"count": count, "copy": copy}[wanted["what"]](spark, wanted)
    spark.stop()


def say(**told: Any) -> None:
    """Print a line."""
    print(json.dumps(told), flush=True)


def count(spark: SparkSession, wanted: dict[str, Any]) -> None:
    """Read a topic to its end."""
    found = spark.read.format("coterie").options(**wanted["source"]).load()
    say(records=found.count(), at=time.time())


def copy(spark: SparkSession, wanted: dict[str, Any]) -> None:
    """Copy what a member reads into a ledger's table, until it is to stop."""
    from coterie.spark.ledger import Ledger

    ledger = Ledger(wanted["table"], group=wanted["source"]["group.id"], storage_options=wanted["storage"])
    rows = (
        spark.readStream.format("coterie")
        .options(**wanted["source"])
        .load()
        .selectExpr(
            "topic",
            "partition",
            "offset",
            "source.generation as generation",
            "cast(cast(value as string) as long) as number",
        )
    )
    query = (
        rows.writeStream.foreachBatch(ledger.write).option("checkpointLocation", wanted["checkpoint"]).start()
    )
    say(started=time.time())
    while query.isActive and not STOP.exists():
        query.awaitTermination(1)
    query.stop()
    failure = query.exception()
    if failure is not None:
        raise failure
    say(stopped=time.time())


if __name__ == "__main__":
    main()
