"""What of a session Spark Connect has otherwise."""

from __future__ import annotations

from typing import Any


def test_the_number_of_cores_shows_in_how_a_range_is_cut_as_spark_connect_cannot_be_asked(spark: Any):
    from coterie.spark.history.session import cores, tasks_of_a_range

    assert tasks_of_a_range(spark) == cores(spark) == spark.sparkContext.defaultParallelism
