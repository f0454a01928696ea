"""When a group committed last. No request of Kafka's tells that: it stands in `__consumer_offsets`."""

from __future__ import annotations

from typing import Any

from coterie.base.hashes import coordinator_partition
from coterie.base.ids import TopicPartition
from coterie.client.consumer.consumer import Consumer
from coterie.wire.payloads.consumer_offsets import OffsetCommitKey, read_key, read_offset_value

OFFSETS_TOPIC = "__consumer_offsets"
WAIT_MS = 1_000


async def commit_times(settings: dict[str, Any], group_id: str) -> dict[TopicPartition, int]:
    """Return the time (ms since 1970) of each partition's last commit by a group, from the log up to now."""
    own = {"group_id": None, "auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    async with Consumer(**{"client_id": "coterie-cli", **settings, **own}) as consumer:
        count = len(await consumer.partitions_for(OFFSETS_TOPIC))
        if not count:
            return {}
        place = TopicPartition(OFFSETS_TOPIC, coordinator_partition(group_id, partition_count=count))
        consumer.assign([place])
        end = (await consumer.end_offsets([place]))[place]
        found: dict[TopicPartition, int] = {}
        while await consumer.position(place) < end:
            for records in (await consumer.getmany(timeout_ms=WAIT_MS)).values():
                for record in records:
                    take_note(found, group_id, record.key, record.value)
        return found


def take_note(
    found: dict[TopicPartition, int], group_id: str, key: bytes | None, value: bytes | None
) -> None:
    """Note the time of a commit, or that the offset has gone."""
    what = None if key is None else read_key(key)
    if not isinstance(what, OffsetCommitKey) or what.group != group_id:
        return
    partition = TopicPartition(what.topic, what.partition)
    if value is None:
        found.pop(partition, None)
    else:
        found[partition] = read_offset_value(value).commit_timestamp
