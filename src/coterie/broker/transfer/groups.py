"""The topics of a database that tell of groups, as segments in a folder, for whoever reads those."""

from __future__ import annotations

from pathlib import Path

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC, STORY_TOPIC
from coterie.broker.transfer.segments import snapshot_of, write_end, write_segments, written
from coterie.storage.postgres.connecting import DatabaseAddress
from coterie.storage.postgres.copying import partition_ids, read_place

TOPICS = (OFFSETS_TOPIC, STORY_TOPIC)


async def dump_groups(address: DatabaseAddress, into: Path) -> None:
    """Write what tells of groups; of all other topics only where their logs end.

    A user who may only read will do, and brokers may serve meanwhile. Raises `CoterieError`, also where no
    group has been yet.
    """
    async with snapshot_of(address) as (connection, image):
        if image.topic(OFFSETS_TOPIC) is None:
            raise CoterieError(f"{address} has no {OFFSETS_TOPIC}: no group has been there yet")
        for topic in image.topics():
            for number, partition_id in enumerate(await partition_ids(connection, topic.name)):
                folder = into / str(TopicPartition(topic.name, number))
                place = await read_place(connection, partition_id)
                if topic.name in TOPICS:
                    await write_segments(folder, place, connection)
                else:
                    with written(folder):
                        folder.mkdir()
                        write_end(folder, place.end_offset)
