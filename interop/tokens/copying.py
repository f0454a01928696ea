"""`python -m interop.tokens.copying JSON`: a Spark application that copies a topic exactly once.

A task that fails once ends the query: a local Spark tries none again. It says `started`, and ends when its
standard input does.
"""

from __future__ import annotations

import json
import sys

from bench.spark.local import session

from interop.spark.app import SETTINGS, stop_with_input_later


def main() -> None:
    """Run the query that the argument describes."""
    wanted = json.loads(sys.argv[1])
    with session("interop-tokens", SETTINGS, master="local[2]") as spark:
        records = spark.readStream.format("coterie").options(**wanted["source"]).load()
        writer = records.select("key", "value").writeStream.format("coterie").options(**wanted["sink"])
        writer = writer.option("checkpointLocation", wanted["checkpoint"])
        query = writer.trigger(processingTime="500 milliseconds").start()
        print("started", flush=True)
        stop_with_input_later(query)
        query.awaitTermination()


if __name__ == "__main__":
    main()
