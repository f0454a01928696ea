"""A streaming table that is a member of a consumer group, and a view over it."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count

BOOTSTRAP = os.environ.get("COTERIE_BOOTSTRAP", "127.0.0.1:9092")


@dp.table
def flights() -> DataFrame:
    """The records of the topic, each read once by whoever of the group has its partition."""
    spark = SparkSession.active()
    return (
        spark.readStream.format("coterie")
        .option("kafka.bootstrap.servers", BOOTSTRAP)
        .option("subscribe", "flights")
        .option("group.id", "delays")
        .option("startingOffsets", "earliest")
        .load()
        .select(col("value").cast("string").alias("flight"), "partition", "offset")
    )


@dp.materialized_view
def flights_by_partition() -> DataFrame:
    """How many records of each partition have come so far."""
    return SparkSession.active().read.table("flights").groupBy("partition").agg(count("*").alias("flights"))
