"""A Spark session for the time of a command, and what of a session Spark Connect has otherwise."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

REMOTE, OF_A_SESSION = "sc://", "spark.sql."
CORES_MOST = 65_536
"""As many rows are counted by task where the number of cores cannot be asked."""

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
}


def cores(spark: SparkSession) -> int:
    """Return the number of tasks that run at once. Of Spark Connect, a range tells."""
    if hasattr(spark, "sparkContext"):
        return spark.sparkContext.defaultParallelism
    return tasks_of_a_range(spark)


def tasks_of_a_range(spark: SparkSession) -> int:
    """Return into how many tasks Spark cuts what has no number of its own: one a core."""
    return spark.range(CORES_MOST).select(f.spark_partition_id()).distinct().count()


@contextmanager
def a_session(master: str) -> Iterator[SparkSession]:
    """Start Spark, or take the session that is there, and stop it in the end; `sc://…` is Spark Connect."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    named = SparkSession.builder.appName("coterie history")
    remote = master.startswith(REMOTE)
    if master.startswith("local"):  # it looks its own name up otherwise, which not every machine knows
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = named.remote(master) if remote else named.master(master)
    for name, value in SETTINGS.items():
        if name.startswith(OF_A_SESSION) or not remote:  # the rest is the server's own
            builder = builder.config(name, value)
    spark = builder.getOrCreate() if remote else made_beside(builder)
    if not remote:
        spark.sparkContext.setLogLevel("OFF")  # what fails is raised, and said once
    if " " in os.environ["PYSPARK_PYTHON"] and not remote:  # Spark finds no source of such a Python
        from pyspark_coterie import DefaultSource

        spark.dataSource.register(DefaultSource)
    try:
        yield spark
    finally:
        spark.stop()


def made_beside(builder: SparkSession.Builder) -> SparkSession:
    """Return the session, started in a thread of its own.

    Started in the main thread, Spark takes Ctrl-C for itself, and interrupts its own answers when it comes.
    """
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(builder.getOrCreate).result()
