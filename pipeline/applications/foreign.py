"""A process with an ordinary confluent-kafka consumer: the member of the group that knows nothing of Spark.

What it consumes is entered into the same ledger as that of the Spark applications before its offsets are
committed: whoever reads a record again finds it there. It joins at the word `go` on its standard input, and
leaves at `leave`.
"""

from __future__ import annotations

import argparse
import json
import select
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from coterie.spark.ledger.ledger import Ledger
from pipeline.applications.events import emit
from pipeline.plan import ASSIGNOR, FOREIGN, GROUP, HEARTBEAT_MS, SESSION_TIMEOUT_MS, TOPIC

KEPT = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("member", pa.string()),
        ("carrier", pa.string()),
        ("hour", pa.int32()),
        ("dep_delay", pa.int32()),
        ("arr_delay", pa.int32()),
    ]
)
POLL_S = 0.1


def settings(bootstrap: str) -> dict[str, Any]:
    """The consumer's settings: the group's, and no commit but its own."""
    return {
        "bootstrap.servers": bootstrap,
        "group.id": GROUP,
        "client.id": FOREIGN,
        "partition.assignment.strategy": ASSIGNOR,
        "session.timeout.ms": SESSION_TIMEOUT_MS,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "allow.auto.create.topics": False,
    }


def as_row(message: Any) -> dict[str, Any]:
    """Return the row of a record: where it stood, and the columns of the table."""
    flight = json.loads(message.value())
    row = {name: flight[name] for name in ("carrier", "hour", "dep_delay", "arr_delay")}
    where = {"topic": message.topic(), "partition": message.partition(), "offset": message.offset()}
    return row | where | {"member": FOREIGN}


def ends_of(rows: list[dict[str, Any]]) -> dict[int, int]:
    """Return the offset to commit for each partition: one past the last that was entered."""
    ends: dict[int, int] = {}
    for row in rows:
        ends[row["partition"]] = max(ends.get(row["partition"], 0), row["offset"] + 1)
    return ends


def commit(consumer: Any, ends: dict[int, int]) -> bool:
    """Commit; false when the group has moved on meanwhile: another member will read these records again."""
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    try:
        consumer.commit(
            offsets=[TopicPartition(TOPIC, partition, end) for partition, end in ends.items()],
            asynchronous=False,
        )
    except KafkaException as refusal:
        moved_on = (
            KafkaError.ILLEGAL_GENERATION,
            KafkaError.REBALANCE_IN_PROGRESS,
            KafkaError.UNKNOWN_MEMBER_ID,
        )
        if refusal.args[0].code() not in moved_on:
            raise
        return False
    return True


def must_leave() -> bool:
    """Whether a word, or the end of the input, has come."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def work(consumer: Any, ledger: Ledger, *, per_batch: int, pause_s: float) -> int:
    """Consume, enter and commit at a steady pace until told to leave; return the number of rows read."""
    read = 0
    while not must_leave():
        next_at = time.monotonic() + pause_s
        messages = consumer.consume(per_batch, POLL_S)
        rows = [as_row(message) for message in messages if message.error() is None]
        if rows:
            ledger.append(pa.Table.from_pylist(rows, KEPT))
            read += len(rows)
            emit("batch", rows=len(rows), committed=commit(consumer, ends_of(rows)))
        while not must_leave() and (left_s := next_at - time.monotonic()) > 0:
            time.sleep(min(left_s, 0.05))
    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--records", type=Path, required=True, help="the table that all members write")
    parser.add_argument("--per-batch", type=int, required=True)
    parser.add_argument("--pause-ms", type=int, required=True, help="from the start of a batch to the next")
    args = parser.parse_args()
    from confluent_kafka import Consumer

    consumer = Consumer(settings(args.bootstrap))
    emit("ready")  # what has to be imported is: from the word on it takes a moment to join
    if sys.stdin.readline().strip() != "go":
        return
    consumer.subscribe(
        [TOPIC],
        on_assign=lambda _, got: emit("assigned", partitions=sorted(one.partition for one in got)),
        on_revoke=lambda _, gone: emit("revoked", partitions=sorted(one.partition for one in gone)),
    )
    try:
        ledger = Ledger(str(args.records), group=GROUP)
        read = work(consumer, ledger, per_batch=args.per_batch, pause_s=args.pause_ms / 1000)
    finally:
        consumer.close()
    emit("left", rows=read)


if __name__ == "__main__":
    main()
