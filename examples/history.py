"""Which groups stood still the longest, and why they rebalanced: from a cluster's log directory, on Spark.

Takes a broker's directory as it lies there, or a copy of it; nothing is written. Needs coterie[spark].

    python examples/history.py /var/lib/kafka
"""

import os
import sys

from pyspark.sql import SparkSession

from coterie.spark.history import read_directory

if len(sys.argv) < 2:
    sys.exit(__doc__)

os.environ["PYSPARK_PYTHON"] = sys.executable
spark = SparkSession.builder.master("local[2]").getOrCreate()
found = read_directory(spark, sys.argv[1])

causes = found.generations.selectExpr("group_id", "explode(causes) as cause")
causes.groupBy("group_id", "cause").count().orderBy("group_id", "cause").show(truncate=False)
stalls = found.stalls.selectExpr("group_id", "unix_millis(`to`) - unix_millis(`from`) as ms")
stalls.groupBy("group_id").sum("ms").orderBy("sum(ms)", ascending=False).show(truncate=False)
