"""`python -m interop.spark.app JSON`: one Spark application with one query, in a process of its own.

It writes each batch's places, partition and offset, to a file named for the batch: a replay replaces what it
replays. It says `started`, and ends when its query does, or when standard input does.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from bench.spark.local import session

# The whole of an application has to live beside two others on two cores.
SETTINGS = {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2"}


def main() -> None:
    """Run the query that the argument describes."""
    wanted = json.loads(sys.argv[1])
    spark = session(
        "interop",
        SETTINGS | wanted.get("settings", {}),
        master=wanted.get("master", "local[1]"),
        connect=wanted.get("connect", False),
    )
    if "trigger" in wanted:
        stream(spark, wanted)
    else:
        rows = frame(spark.read, wanted).select("partition", "offset").collect()
        keep(wanted["out"], "batch", [tuple(row) for row in rows])
    spark.stop()


def frame(reader: Any, wanted: dict[str, Any]) -> Any:
    """Return the records that the query reads."""
    return reader.format(wanted["format"]).options(**wanted["options"]).load()


def stream(spark: Any, wanted: dict[str, Any]) -> None:
    """Run a streaming query until it ends or is to end."""
    records = frame(spark.readStream, wanted)
    writer = records.writeStream.option("checkpointLocation", wanted["checkpoint"])
    writer = writer.trigger(**wanted["trigger"])
    if wanted.get("connect"):  # its foreachBatch runs in another process
        query = writer.format("parquet").start(wanted["out"])
    else:
        query = writer.foreachBatch(lambda batch, number: kept(wanted["out"], batch, number)).start()
    print("started", flush=True)
    stop_with_input_later(query)
    query.awaitTermination()
    print(json.dumps({"progress": [one["sources"][0]["endOffset"] for one in query.recentProgress[-1:]]}))


def stop_with_input_later(query: Any) -> None:
    """Stop the query when standard input ends; returns at once."""
    threading.Thread(target=stop_with_input, args=(query,), daemon=True).start()


def stop_with_input(query: Any) -> None:
    """Stop the query when standard input ends."""
    sys.stdin.read()
    query.stop()


def kept(out: str, batch: Any, number: int) -> None:
    """Write a batch's places."""
    keep(out, str(number), [tuple(row) for row in batch.select("partition", "offset").collect()])


def keep(out: str, name: str, places: list[tuple[int, int]]) -> None:
    """Write a file as a whole, or not at all."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f".{name}"
    made.write_text(json.dumps(places))
    made.rename(folder / f"{name}.json")


if __name__ == "__main__":
    main()
