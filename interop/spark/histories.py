"""`python -m interop.spark.histories`: histories told by Spark Connect are those that one process tells.

A process of its own: the client holds no driver, and its server starts with it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from bench.history_log import Shape, write

SERVER = "sc://localhost:15002"
SETTINGS = ("group.instance.id=on",)


def main() -> None:
    """Write a log, have it told both ways, and compare."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from coterie.cli.history import histories_in
    from coterie.simulate.what_if.what_if import answers, questions
    from coterie.spark.history import a_session, read_directory
    from coterie.spark.whatif import what_if

    with tempfile.TemporaryDirectory() as directory:
        write(Path(directory), Shape(groups=20, days=1, commits=4_000, commits_a_generation=25))
        here = {history.group_id: history for history in histories_in(Path(directory))}
        SparkSession.builder.remote("local[2]").getOrCreate()  # starts the server
        with a_session(SERVER) as spark:
            found = read_directory(spark, directory)
            there = {history.group_id: history for history in found.each()}
            rows = {(row.group_id, row.setting): row for row in what_if(found, SETTINGS).collect()}
            tasks = found.packed.selectExpr("spark_partition_id() as task").distinct().count()
    asked = [question for setting in SETTINGS for question in questions(setting)]
    replayed = [answer for history in here.values() for answer in answers(history, asked)]
    assert there == here
    assert tasks > 1, "all was told by one task"
    assert {(one.group_id, one.setting): one.rebalances for one in replayed} == {
        key: row.rebalances for key, row in rows.items()
    }
    print(f"{len(there)} histories told by {tasks} tasks, {len(rows)} answers")


if __name__ == "__main__":
    main()
