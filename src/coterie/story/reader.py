"""Reads the story of a group from the topic `__group_story` of a running broker (docs/story.md)."""

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, NamedTuple

from coterie.base.codes import Code
from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.ids import TopicPartition
from coterie.client.net import messages
from coterie.client.net.cluster import Cluster
from coterie.story.order import in_story_order
from coterie.wire.api.apis import ApiKey
from coterie.wire.records.batches import records_of, scan

log = logging.getLogger("coterie.client")

STORY_TOPIC = "__group_story"
FETCH_BYTES = 4 << 20
WAIT_MS = 500
LOOK_EVERY_S = 5.0  # for partitions that the topic has got since, as for a broker that came later


class Bounds(NamedTuple):
    """The first offset of a partition of the story, and the one after its last."""

    first: int
    end: int


class NoStory(CoterieError):
    """The broker keeps no story."""

    def __init__(self, broker: str) -> None:
        super().__init__(
            f"{broker} keeps no story of its groups: it has no topic {STORY_TOPIC}. Coterie's broker makes "
            "it when the first group is moved, unless coterie.story.enable is false; Apache Kafka has none"
        )


class StoryReader:
    """Reads the records of one group, the oldest first, as the JSON values that the topic holds.

    Each coordinator writes to a partition that it leads, so a group whose coordinator is another by now has
    records in several.
    """

    def __init__(self, cluster: Cluster, group_id: str, parts: Mapping[TopicPartition, Bounds]) -> None:
        self._cluster = cluster
        self._key = group_id.encode()
        self._offsets = {place: bounds.first for place, bounds in parts.items()}
        self._ends = {place: bounds.end for place, bounds in parts.items()}
        self._order = deque(parts)
        self._looked_at_s = asyncio.get_running_loop().time()

    @classmethod
    async def open(cls, cluster: Cluster, group_id: str) -> "StoryReader":
        """Return a reader that stands at the beginning. Raises `NoStory` where there is none."""
        places = await places_of(cluster)
        if not places:
            raise NoStory(", ".join(map(str, cluster.bootstrap)))
        return cls(cluster, group_id, await bounds(cluster, places))

    async def until_now(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the documents that were there when the reader was opened."""
        if len(self._order) == 1:
            (place,) = self._order
            async for document in self._until_now(place):
                yield document
            return
        parts = [[one async for one in self._until_now(place)] for place in self._order]
        for document in in_story_order(parts):
            yield document

    async def _until_now(self, place: TopicPartition) -> AsyncIterator[dict[str, Any]]:
        while self._offsets[place] < self._ends[place]:
            for document in await self._more(place):
                yield document

    async def more(self) -> list[dict[str, Any]]:
        """Return the next documents; none if that takes more than a moment, or they are about other groups.

        What is there no more is passed over: retention took it, or the broker has begun another story.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s - self._looked_at_s >= LOOK_EVERY_S:
            self._looked_at_s = now_s
            await self._look_for_places()
        self._order.rotate(-1)
        return await self._more(self._order[0])

    async def _look_for_places(self) -> None:
        """Read from now on what the topic has got since, from its beginning."""
        new = [place for place in await places_of(self._cluster) if place not in self._offsets]
        for place, (first, end) in (await bounds(self._cluster, new)).items():
            self._offsets[place], self._ends[place] = first, end
            self._order.append(place)

    async def _more(self, place: TopicPartition) -> list[dict[str, Any]]:
        try:
            batches = await self._fetch(place)
        except RefusedBy as refusal:
            if refusal.code is not Code.OFFSET_OUT_OF_RANGE:
                raise
            log.warning("what was to be told next is gone; the story goes on from where it now begins")
            now = (await bounds(self._cluster, [place]))[place]
            self._offsets[place] = now.first
            self._ends[place] = min(self._ends[place], now.end)
            return []
        found = []
        for at, header in scan(batches):
            if not header.control:
                found += [
                    json.loads(record.value or b"{}")
                    for record in records_of(batches, at)
                    if record.key == self._key and record.offset >= self._offsets[place]
                ]
            self._offsets[place] = header.last_offset + 1
        return found

    async def _fetch(self, place: TopicPartition) -> bytes:
        async def ask() -> bytes:
            address = (await self._cluster.leaders([place]))[place]
            broker = await self._cluster.connection(address)
            answer = await broker.call(
                ApiKey.FETCH,
                lambda version: messages.fetch(
                    version,
                    {place: self._offsets[place]},
                    max_wait_ms=WAIT_MS,
                    max_bytes=FETCH_BYTES,
                    partition_max_bytes=FETCH_BYTES,
                    isolation=0,
                ),
                self._cluster.request_timeout_s,
            )
            code, batches = messages.read_fetch(answer)
            if code:
                raise RefusedBy(code, f"Fetch of {place}")
            return batches

        return await self._cluster.retrying("Fetch", ask, forget=lambda: self._cluster.forget([STORY_TOPIC]))


async def places_of(cluster: Cluster) -> list[TopicPartition]:
    """Return the partitions of the story, none where there is no such topic."""
    found = (await cluster.metadata([STORY_TOPIC])).topics[STORY_TOPIC]
    if found.code is Code.UNKNOWN_TOPIC_OR_PARTITION:
        return []
    return [TopicPartition(STORY_TOPIC, number) for number in sorted(found.leaders)]


async def bounds(cluster: Cluster, places: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
    """Return the bounds of each partition of the story."""
    first = await cluster.list_offsets(dict.fromkeys(places, messages.EARLIEST))
    end = await cluster.list_offsets(dict.fromkeys(first, messages.LATEST))
    return {place: Bounds(first[place].offset, end[place].offset) for place in first}
