"""Reads the story of a group from the topic `__group_story` of a running broker (docs/story.md)."""

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from coterie.base.codes import Code
from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.ids import TopicPartition
from coterie.client.net import messages
from coterie.client.net.cluster import Cluster
from coterie.wire.api.apis import ApiKey
from coterie.wire.records.batches import records_of, scan

log = logging.getLogger("coterie.client")

STORY_TOPIC = "__group_story"
PLACE = TopicPartition(STORY_TOPIC, 0)
FETCH_BYTES = 4 << 20
WAIT_MS = 500


class NoStory(CoterieError):
    """The broker keeps no story."""

    def __init__(self, broker: str) -> None:
        super().__init__(
            f"{broker} keeps no story of its groups: it has no topic {STORY_TOPIC}. Coterie's broker makes "
            "it when the first group is moved, unless coterie.story.enable is false; Apache Kafka has none"
        )


class StoryReader:
    """Reads the records of one group, the oldest first, as the JSON values that the topic holds."""

    def __init__(self, cluster: Cluster, group_id: str, *, offset: int, end: int) -> None:
        self._cluster = cluster
        self._key = group_id.encode()
        self._offset = offset
        self._end = end

    @classmethod
    async def open(cls, cluster: Cluster, group_id: str) -> "StoryReader":
        """Return a reader that stands at the beginning. Raises `NoStory` where there is none."""
        found = (await cluster.metadata([STORY_TOPIC])).topics[STORY_TOPIC]
        if found.code is Code.UNKNOWN_TOPIC_OR_PARTITION:
            raise NoStory(", ".join(map(str, cluster.bootstrap)))
        first, end = await bounds(cluster)
        return cls(cluster, group_id, offset=first, end=end)

    async def until_now(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the documents that were there when the reader was opened."""
        while self._offset < self._end:
            for document in await self.more():
                yield document

    async def more(self) -> list[dict[str, Any]]:
        """Return the next documents; none if that takes more than a moment, or they are about other groups.

        What is there no more is passed over: retention took it, or the broker has begun another story.
        """
        try:
            batches = await self._fetch()
        except RefusedBy as refusal:
            if refusal.code is not Code.OFFSET_OUT_OF_RANGE:
                raise
            log.warning("what was to be told next is gone; the story goes on from where it now begins")
            self._offset, end = await bounds(self._cluster)
            self._end = min(self._end, end)
            return []
        found = []
        for at, header in scan(batches):
            if not header.control:
                found += [
                    json.loads(record.value or b"{}")
                    for record in records_of(batches, at)
                    if record.key == self._key and record.offset >= self._offset
                ]
            self._offset = header.last_offset + 1
        return found

    async def _fetch(self) -> bytes:
        async def ask() -> bytes:
            address = (await self._cluster.leaders([PLACE]))[PLACE]
            broker = await self._cluster.connection(address)
            answer = await broker.call(
                ApiKey.FETCH,
                lambda version: messages.fetch(
                    version,
                    {PLACE: self._offset},
                    max_wait_ms=WAIT_MS,
                    max_bytes=FETCH_BYTES,
                    partition_max_bytes=FETCH_BYTES,
                    isolation=0,
                ),
                self._cluster.request_timeout_s,
            )
            code, batches = messages.read_fetch(answer)
            if code:
                raise RefusedBy(code, f"Fetch of {PLACE}")
            return batches

        return await self._cluster.retrying("Fetch", ask, forget=lambda: self._cluster.forget([STORY_TOPIC]))


async def bounds(cluster: Cluster) -> tuple[int, int]:
    """Return the first offset of the story, and the one after its last."""
    first = (await cluster.list_offsets({PLACE: messages.EARLIEST}))[PLACE].offset
    end = (await cluster.list_offsets({PLACE: messages.LATEST}))[PLACE].offset
    return first, end
