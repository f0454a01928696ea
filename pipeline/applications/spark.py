"""A process with one Spark application: a member of the group that enters what it reads into the ledger.

It obeys words on its standard input: `go` starts the query, `stop` ends it, `table` runs the last job. It
goes away when that input ends, so it never outlives the job.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.applications.events import emit
from pipeline.plan import (
    ASSIGNOR,
    GROUP,
    HEARTBEAT_MS,
    MAX_POLL_MS,
    SESSION_TIMEOUT_MS,
    TOPIC,
    WARM_UP,
    Paths,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FLIGHT = "carrier STRING, hour INT, dep_delay INT, arr_delay INT"

# Two applications, a broker and a producer may share two cores: a small heap, one collector thread, and only
# the quick compiler. The thorough one would spend more than it saves in a minute.
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+PerfDisableSharedMem"


def session(member: str, scratch: Path) -> SparkSession:
    """Start Spark for one member on the loopback interface, with nothing switched on but the work."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": f'{JAVA} "-Dderby.system.home={scratch}"',
        "spark.local.dir": str(scratch),
        "spark.python.unix.domain.socket.enabled": str(sys.platform == "linux").lower(),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        # The other manager forks a process for every file it makes.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName(member)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    if " " in os.environ["PYSPARK_PYTHON"]:  # the JVM that looks for sources does not find such a Python
        from pyspark_coterie import DefaultSource

        spark.dataSource.register(DefaultSource)
    return spark


def source_options(member: str, *, bootstrap: str, per_batch: int) -> dict[str, str]:
    """Return the options of `format("coterie")`: the names are those of Spark's own Kafka source."""
    return {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(per_batch),
        "kafka.group.id": GROUP,
        "kafka.client.id": member,
        "kafka.partition.assignment.strategy": ASSIGNOR,
        "kafka.session.timeout.ms": str(SESSION_TIMEOUT_MS),
        "kafka.heartbeat.interval.ms": str(HEARTBEAT_MS),
        "kafka.max.poll.interval.ms": str(MAX_POLL_MS),
    }


def kept(records: DataFrame, member: str) -> DataFrame:
    """Return the rows of records: the ledger's columns, who read them, and the table's columns."""
    from pyspark.sql import functions as f

    flight = f.from_json(f.col("value").cast("string"), FLIGHT)
    who = f.lit(member).alias("member")
    parsed = records.select("topic", "partition", "offset", who, flight.alias("flight"))
    return parsed.select("topic", "partition", "offset", "member", "flight.*")


def warm_up(spark: SparkSession, args: argparse.Namespace, paths: Paths) -> None:
    """Send the one record of a topic made for it through everything that a batch needs, outside the group.

    The first use of each part costs seconds: Python workers, generated code, the ledger. They are spent
    before the member joins, so that the group does not wait for them.
    """
    from coterie.spark.ledger.ledger import Ledger

    options = {"kafka.bootstrap.servers": args.bootstrap, "subscribe": WARM_UP}
    records = spark.read.format("coterie").options(**options).load()
    Ledger(str(paths.scratch / f"{args.member}-{os.getpid()}-warm"), group=WARM_UP).write(
        kept(records, args.member), 0
    )


def begin(spark: SparkSession, member: str, paths: Paths, args: argparse.Namespace) -> StreamingQuery:
    """Start the query, or take it up where its checkpoint says."""
    from coterie.spark.ledger.ledger import Ledger

    options = source_options(member, bootstrap=args.bootstrap, per_batch=args.per_batch)
    records = spark.readStream.format("coterie").options(**options).load()
    ledger = Ledger(str(paths.records), group=GROUP)
    writer = kept(records, member).writeStream.foreachBatch(ledger.write).queryName(member)
    writer = writer.option("checkpointLocation", str(paths.checkpoint(member)))
    return writer.trigger(processingTime=f"{args.trigger_ms} milliseconds").start()


def watch(query: StreamingQuery) -> None:
    """Say so and leave when the query fails; a stopped query ends in silence."""
    try:
        query.awaitTermination()
    except Exception as failure:  # noqa: BLE001 - the root of this thread
        emit("failed", error=str(failure).strip().splitlines()[0])
        os._exit(1)


def obey(spark: SparkSession, paths: Paths, args: argparse.Namespace) -> None:
    """Do what the words on standard input say until it ends."""
    query: StreamingQuery | None = None
    for line in sys.stdin:
        match line.strip():
            case "go":
                query = begin(spark, args.member, paths, args)
                threading.Thread(target=watch, args=(query,), daemon=True).start()
                emit("started")
            case "stop":
                assert query is not None
                query.stop()
                emit("stopped")
            case "table":
                from pipeline.applications.last_job import last_job

                found: dict[str, Any] = last_job(spark, paths)
                emit("table", **found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--member", required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--per-batch", type=int, required=True)
    parser.add_argument("--trigger-ms", type=int, required=True)
    args = parser.parse_args()
    paths = Paths(args.run.resolve())
    spark = session(args.member, paths.scratch / args.member)
    emit("loading", what="Spark runs; now the first batch, outside the group, loads everything it needs")
    warm_up(spark, args, paths)
    emit("ready")
    obey(spark, paths, args)
    spark.stop()


if __name__ == "__main__":
    main()
