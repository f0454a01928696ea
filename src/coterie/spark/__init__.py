"""Spark: `format("coterie")`, a source whose streaming query is a member of its consumer group.

source     reads topics: options, the protocol between Spark's offsets and the group's, readers, tasks
sink       writes topics, at least once or exactly once
ledger     writes a Delta Lake table, each record once
history    the history of every group, from segments or a live cluster
listener   tells an application what its query's membership is doing
whatif     every group's life under other settings

`watch(spark)` has batches committed as soon as they are done; `Ledger` and `GroupListener` do that, too.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def watch(spark: "SparkSession") -> None:
    """Have the offsets of each batch committed when it is done, not when the next is planned: for all queries
    of a session, from now on. Over Spark Connect from another machine nothing changes.
    """
    from coterie.spark.listener import watch

    watch(spark)
