"""The last Spark job: from the records that all members entered into the ledger to the table of delays.

Runs inside a Spark application that has stopped reading. The ledger's table says which files count: what a
killed batch left behind is not among them. Nothing is made distinct on the way; that is what is counted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.plan import MEMBERS, Paths

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLACE = ["topic", "partition", "offset"]
ROW = (
    "topic STRING, partition INT, offset BIGINT, member STRING,"
    " carrier STRING, hour INT, dep_delay INT, arr_delay INT"
)


def last_job(spark: SparkSession, paths: Paths) -> dict[str, Any]:
    """Make the table and count what it was made from; return the counts."""
    files = files_of(paths.records)
    rows = spark.read.schema(ROW).parquet(*map(str, files)).cache()
    write_table(rows, paths)
    return {
        "rows_by_member": rows_by_member(rows),
        **compared(rows, spark.read.parquet(str(paths.produced))),
        "unlogged_files": len({*paths.records.glob("*.parquet")} - {*files}),
    }


def files_of(table: Path) -> list[Path]:
    """Return the files that a Delta Lake table consists of; Spark itself reads the format only with a jar."""
    from deltalake import DeltaTable

    return [table / name for name in DeltaTable(str(table)).get_add_actions().column("path").to_pylist()]


def rows_by_member(rows: DataFrame) -> dict[str, int]:
    """Return the number of rows that each member wrote."""
    from pyspark.sql import functions as f

    counts = (f.count_if(f.col("member") == member).alias(member) for member in MEMBERS)
    return rows.agg(*counts).collect()[0].asDict()


def compared(rows: DataFrame, produced: DataFrame) -> dict[str, int]:
    """Return the counts of records that were read, and of those that only one side has."""
    from pyspark.sql import functions as f

    read = rows.select(*PLACE).distinct().withColumn("read", f.lit(True))
    made = produced.select(*PLACE, f.lit(True).alias("made"))
    both = read.join(made, PLACE, "full_outer")
    counts = both.agg(
        f.count("read").alias("distinct"),
        f.count_if(f.isnull("read")).alias("lost"),
        f.count_if(f.isnull("made")).alias("strange"),
    )
    return counts.collect()[0].asDict()


def write_table(rows: DataFrame, paths: Paths) -> None:
    """Write delays by carrier and hour of day: sums of whole minutes and counts, never a mean."""
    import pyarrow.parquet as pq
    from pyspark.sql import functions as f

    table = rows.groupBy("carrier", "hour").agg(
        f.count("*").alias("flights"),
        f.count("dep_delay").alias("departed"),
        f.coalesce(f.sum("dep_delay"), f.lit(0)).alias("dep_delay_sum"),
        f.count("arr_delay").alias("arrived"),
        f.coalesce(f.sum("arr_delay"), f.lit(0)).alias("arr_delay_sum"),
    )
    pq.write_table(table.orderBy("carrier", "hour").toArrow(), paths.delays)
