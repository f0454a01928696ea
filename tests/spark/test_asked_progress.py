"""Over Spark Connect a ledger asks for progress, as no listener tells it: the same calls on a session of
Spark's own, whose queries nobody watches. `python -m interop spark` has a server of Spark Connect.
"""

from __future__ import annotations

import pytest

from coterie.spark.asked_progress import ProgressAsker
from coterie.spark.listener import BatchEndListener

from .conftest import register_if_not_found
from .test_stream import wait_for

PATIENCE_S = 250


@pytest.mark.timeout(600)
def test_a_batch_is_committed_when_it_is_done_and_the_next_one_too(
    spark, new_topic, group, tmp_path, patient_session
):
    topic = new_topic(partitions=2)
    topic.produce([b"v"] * 10)
    own = spark.newSession()  # nobody listens to this one
    register_if_not_found(own)
    asker = ProgressAsker(own, BatchEndListener().onQueryProgress)
    given = {"kafka.bootstrap.servers": topic.bootstrap, "subscribe": topic.name, "group.id": group}
    given |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "6", **patient_session}

    def write(batch, number):
        batch.count()
        asker.batch_written(number)

    rows = own.readStream.format("coterie").options(**given).load()
    writer = rows.writeStream.foreachBatch(write).trigger(processingTime="15 seconds")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        wait_for(
            lambda: query.lastProgress is not None and query.lastProgress.batchId >= 1, limit_s=PATIENCE_S
        )
        # No plan has come since: the next is up to 15 s away.
        wait_for(lambda: topic.committed(group) == topic.ends(), limit_s=7)
        assert query.lastProgress.batchId == 1
    finally:
        query.stop()
