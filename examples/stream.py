"""A Spark query that is a member of its group. Needs coterie[spark], Java 17, and a topic `greetings`.

    python examples/stream.py [HOST:PORT]

Start it twice, in two terminals and without the trigger, and the two share the topic.
"""

import os
import sys

from pyspark.sql import SparkSession

os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's workers need the Python that has coterie
spark = SparkSession.builder.master("local[2]").getOrCreate()
greetings = (
    spark.readStream.format("coterie")
    .option("kafka.bootstrap.servers", sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
    .option("subscribe", "greetings")
    .option("group.id", "spark-readers")
    .option("startingOffsets", "earliest")
    .load()
)
rows = greetings.selectExpr("partition", "offset", "cast(value as string)").writeStream.format("console")
rows.trigger(availableNow=True).start().awaitTermination()  # without the trigger it goes on for ever
