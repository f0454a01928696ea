"""The last Spark job: from the rows of all members to the distinct records, and from those to the table.

Runs inside a Spark application that has stopped reading. Each application's folder is read through its own
sink log (`_spark_metadata`, which Spark follows by itself): what a killed batch left behind is not in it.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from pipeline.plan import MEMBERS, Paths

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLACE = ["topic", "partition", "offset"]
ROW = "topic STRING, partition INT, offset BIGINT, carrier STRING, hour INT, dep_delay INT, arr_delay INT"


def last_job(spark: SparkSession, paths: Paths) -> dict[str, Any]:
    """Make the table and count what it was made from; return the counts."""
    records = distinct_records(rows_of_all(spark, paths)).cache()
    write_table(records, paths)
    return {
        "rows_by_member": rows_by_member(records),
        **compared(records, spark.read.parquet(str(paths.produced))),
        "unlogged_files": unlogged_files(spark, paths),
    }


def rows_of_all(spark: SparkSession, paths: Paths) -> DataFrame:
    """Return the rows of every member, repeats included, each with the member's name."""
    from pyspark.sql import functions as f

    first, *others = (
        spark.read.schema(ROW).parquet(str(paths.rows(member))).withColumn("member", f.lit(member))
        for member in MEMBERS
    )
    return reduce(lambda some, more: some.unionByName(more), others, first)


def distinct_records(rows: DataFrame) -> DataFrame:
    """Return every record once, with a column a member that says how often that one has it.

    Grouped by all columns: should a record ever be read with two values, it is there twice, and the counts
    differ from what was produced.
    """
    from pyspark.sql import functions as f

    counts = (f.count_if(f.col("member") == member).alias(member) for member in MEMBERS)
    return rows.groupBy(*(name for name in rows.columns if name != "member")).agg(*counts)


def rows_by_member(records: DataFrame) -> dict[str, int]:
    """Return how many rows each member wrote."""
    from pyspark.sql import functions as f

    sums = (f.coalesce(f.sum(f.col(f"`{member}`")), f.lit(0)).alias(member) for member in MEMBERS)
    return records.agg(*sums).collect()[0].asDict()


def compared(records: DataFrame, produced: DataFrame) -> dict[str, int]:
    """Return how many records were read, and how many of them, or of those produced, the other side lacks."""
    from pyspark.sql import functions as f

    read = records.select(*PLACE, f.lit(True).alias("read"))
    made = produced.select(*PLACE, f.lit(True).alias("made"))
    both = read.join(made, PLACE, "full_outer")
    counts = both.agg(
        f.count("read").alias("distinct"),
        f.count_if(f.isnull("read")).alias("lost"),
        f.count_if(f.isnull("made")).alias("strange"),
    )
    return counts.collect()[0].asDict()


def write_table(records: DataFrame, paths: Paths) -> None:
    """Write delays by carrier and hour of day: sums of whole minutes and counts, never a mean."""
    import pyarrow.parquet as pq
    from pyspark.sql import functions as f

    table = records.groupBy("carrier", "hour").agg(
        f.count("*").alias("flights"),
        f.count("dep_delay").alias("departed"),
        f.coalesce(f.sum("dep_delay"), f.lit(0)).alias("dep_delay_sum"),
        f.count("arr_delay").alias("arrived"),
        f.coalesce(f.sum("arr_delay"), f.lit(0)).alias("arr_delay_sum"),
    )
    pq.write_table(table.orderBy("carrier", "hour").toArrow(), paths.delays)


def unlogged_files(spark: SparkSession, paths: Paths) -> int:
    """Count the Parquet files that lie in the applications' folders and are in no sink log: torn ones."""
    count = 0
    for member in MEMBERS:
        folder = paths.rows(member)
        read = {
            unquote(urlparse(name).path) for name in spark.read.schema(ROW).parquet(str(folder)).inputFiles()
        }
        count += sum(1 for file in folder.glob("*.parquet") if str(file) not in read)
    return count
