"""What other settings would have changed: the recorded life of each group, lived again under them, on Spark.

    python examples/what_if.py /var/lib/kafka group.instance.id=on 'session.timeout.ms=10s|45s'

Read `fidelity` first: how true the replay with the recorded settings is.
"""

import os
import sys

from pyspark.sql import SparkSession

from coterie.spark.history import read_directory
from coterie.spark.whatif import what_if

if len(sys.argv) < 2:
    sys.exit(__doc__)

os.environ["PYSPARK_PYTHON"] = sys.executable
spark = SparkSession.builder.master("local[2]").getOrCreate()
answers = what_if(read_directory(spark, sys.argv[1]), sys.argv[2:])
answers.select("group_id", "setting", "fidelity", "rebalances", "stood_still_ms", "helps").show(
    truncate=False
)
