"""`python -m bench.spark.app JARS`: one Spark application that reads topics, in a process of its own.

Each line of standard input is a job in JSON, each line of standard output what came of it.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.spark.local import session

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}
MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
ON_FILE_SYSTEM = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
LENGTHS = "sum(length(value))"
RICH_LENGTHS = (LENGTHS, "sum(length(key))", "sum(size(headers))")
UNMEASURED = 10
"""Micro-batches before those that count."""


class Application:
    """One Spark session, and a scratch folder."""

    def __init__(self, jars: str, folder: Path) -> None:
        self.spark = session("bench", {**SETTINGS, "spark.jars": jars})
        self.folder = folder

    def done(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return what came of a job and what it cost: seconds, if it does not say otherwise."""
        began = time.perf_counter()
        found = getattr(self, job["do"])(job)
        return {"cost": time.perf_counter() - began, **found}

    def frame(self, reader: Any, job: dict[str, Any]) -> Any:
        """Return the records of the job's topic."""
        return reader.format(job["format"]).options(**job["options"]).load()

    def lengths(self, job: dict[str, Any]) -> dict[str, Any]:
        """Sum the lengths of what the topic holds."""
        sums = RICH_LENGTHS if job["options"].get("includeHeaders") else (LENGTHS,)
        return {"sums": list(self.frame(self.spark.read, job).selectExpr(*sums).first())}

    def noop(self, job: dict[str, Any]) -> dict[str, Any]:
        """Take every key and value into rows of Spark's, and drop them."""
        columns = ["key", "value"] + ["headers"] * bool(job["options"].get("includeHeaders"))
        frame = self.frame(self.spark.read, job).select(*columns)
        frame.write.format("noop").mode("overwrite").save()
        return {}

    def parquet(self, job: dict[str, Any]) -> dict[str, Any]:
        """Write the topic to Parquet."""
        out = self.folder / "parquet"
        self.frame(self.spark.read, job).write.mode("overwrite").parquet(str(out))
        return {}

    def stream(self, job: dict[str, Any]) -> dict[str, Any]:
        """Stream what is there, to nothing; say how many rows came and what the batches took."""
        if job.get("manager"):
            self.spark.conf.set(MANAGER, ON_FILE_SYSTEM)
        checkpoint = self.folder / "checkpoint"
        try:
            records = self.frame(self.spark.readStream, job).select("key", "value")
            writer = records.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
        finally:
            self.spark.conf.unset(MANAGER)
            shutil.rmtree(checkpoint, ignore_errors=True)
        return told(query.recentProgress)

    def micro(self, job: dict[str, Any]) -> dict[str, Any]:
        """Do the same, and count the milliseconds of a batch."""
        told = self.stream(job)
        return {**told, "cost": told["steps"]["triggerExecution"]}


def told(progress: list[Any]) -> dict[str, Any]:
    """Return how many rows there were, and the median milliseconds of what a batch is made of."""
    batches = [one for one in progress if one["numInputRows"]]
    steps = [one["durationMs"] for one in batches[UNMEASURED:] or batches]
    names = {name for step in steps for name in step}
    return {
        "rows": sum(one["numInputRows"] for one in batches),
        "batches": len(batches),
        "steps": {name: statistics.median(step.get(name, 0) for step in steps) for name in sorted(names)},
    }


def main() -> None:
    """Do the jobs that standard input names, until it ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Spark prints is no answer
    with tempfile.TemporaryDirectory(prefix="coterie-bench-spark-") as folder:
        application = Application(sys.argv[1], Path(folder))
        for line in sys.stdin:
            print(json.dumps(application.done(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
