"""`python -m interop.spark_kills.app JSON`: an application that copies a topic, each record once, into
another or into a ledger's table.

Its query starts again by itself when it fails, and ends when standard input does.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from typing import Any

from bench.spark.local import session

# A task whose worker is killed is tried again, as on a cluster.
MASTER = "local[2,8]"
# A line of a traceback that names an exception and what it says.
RAISED = re.compile(r"(Caused by: )?(\w+\.)*\w+(Error|Exception|Lost|Ours|Aborted|Failed|Fenced|By|Loss): ")


def main() -> None:
    """Copy until there is no more input."""
    wanted = json.loads(sys.argv[1])
    from pyspark.errors import StreamingQueryException

    spark = session("kills", {"spark.driver.memory": "512m"}, master=MASTER)
    over = threading.Event()
    running: list[Any] = []
    threading.Thread(target=stop_with_input, args=(over, running), daemon=True).start()
    while not over.is_set():
        query = started(spark, wanted)
        running[:] = [query]
        if over.is_set():
            query.stop()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            named = [line for line in str(error).splitlines() if RAISED.match(line)]
            print("query failed:", " | ".join(named[-2:]) or error, file=sys.stderr, flush=True)
    spark.stop()


def started(spark: Any, wanted: dict[str, Any]) -> Any:
    """Start the query."""
    records = spark.readStream.format("coterie").options(**wanted["source"]).load()
    if wanted["ledger"] is None:
        writer = records.select("value", "source").writeStream.format("coterie").options(**wanted["sink"])
    else:
        from coterie.spark.ledger import Ledger

        rows = records.selectExpr("topic", "partition", "offset", "cast(value as string) as number")
        writer = rows.writeStream.foreachBatch(Ledger(wanted["ledger"], group=wanted["group"]).write)
    return writer.option("checkpointLocation", wanted["checkpoint"]).start()


def stop_with_input(over: threading.Event, running: list[Any]) -> None:
    """Stop the query when standard input ends."""
    sys.stdin.read()
    over.set()
    for query in running:
        query.stop()


if __name__ == "__main__":
    main()
