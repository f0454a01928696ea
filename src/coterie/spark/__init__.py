"""Spark: `format("coterie")`, a source whose streaming query is a member of its consumer group.

source     reads topics: options, the protocol between Spark's offsets and the group's, readers, tasks
sink       writes topics, at least once or exactly once
ledger     writes a Delta Lake table, each record once
history    the history of every group, from segments or a live cluster
asked_progress  the same without a listener, where Spark Connect runs foreachBatch
listener   tells an application where its queries stand, and what their memberships are doing
metrics    tells Prometheus the same
whatif     every group's life under other settings

`watch(spark)` has batches committed as soon as they are done; `Ledger` and `GroupListener` do that, too.
`serve_metrics(spark, port=…)` has Prometheus see the lag of all queries.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from coterie.spark.metrics import MetricsEndpoint


def watch(spark: "SparkSession") -> None:
    """Have the offsets of each batch committed when it is done, not when the next is planned: for all queries
    of a session, from now on. Over Spark Connect from another machine it only stops those that are refused.
    """
    from coterie.spark.listener import watch

    watch(spark)


def serve_metrics(spark: "SparkSession", *, port: int, host: str = "127.0.0.1") -> "MetricsEndpoint":
    """Return an HTTP server where Prometheus scrapes the lag of all queries of a session, at /metrics; port 0
    picks a free one. It also does what `watch` does. Raises MissingLibrary without the extra `metrics`.
    """
    from coterie.spark.metrics import MetricsEndpoint

    return MetricsEndpoint(spark, port=port, host=host)
