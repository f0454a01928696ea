"""Lives of consumers that know their places: by hand, with jumps, and in the transactions of a producer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

from coterie.base.ids import TopicPartition
from coterie.client import Admin, Consumer, Producer

from .cutting import CUT, HANGS_S, RECORDS, STEPS, cut, fill, soon, values_in

__all__ = ["copy_life", "seek_life"]

MOVES = ("seek", "seek", "beginning", "end", "pause", "resume", "position")
READS = ("getmany", "getmany", "getone", "anext")


class Reader:
    """A consumer of partitions given by hand, and which offset of each may come next."""

    def __init__(self, rng: Random, consumer: Consumer, places: list[TopicPartition]) -> None:
        self.rng, self.consumer, self.places = rng, consumer, places
        self.last = RECORDS // len(places)
        self.next: dict[TopicPartition, set[int]] = {place: {0} for place in places}
        self.paused: set[TopicPartition] = set()

    def handed(self, records: Iterable[Any]) -> None:
        """Note what came: nothing is left out and nothing comes twice, whatever was cut off before."""
        for record in records:
            place = TopicPartition(record.topic, record.partition)
            expected = self.next[place]
            assert record.offset in expected, f"{place}: offset {record.offset} instead of {expected}"
            assert place not in self.paused, f"{place} is paused, and {record.offset} came"
            self.next[place] = {record.offset + 1}

    async def move(self) -> None:
        """Jump, pause, resume, or ask where one is."""
        place = self.rng.choice(self.places)
        match self.rng.choice(MOVES):
            case "seek":
                offset = self.rng.randrange(self.last + 1)
                self.consumer.seek(place, offset)
                self.next[place] = {offset}
            case "beginning":
                self._jumped(place, 0, await cut(self.rng, self.consumer.seek_to_beginning([place])))
            case "end":
                self._jumped(place, self.last, await cut(self.rng, self.consumer.seek_to_end([place])))
            case "pause":
                self.consumer.pause([place])
                self.paused.add(place)
            case "resume":
                self.consumer.resume([place])
                self.paused.discard(place)
            case "position":
                came = await cut(self.rng, self.consumer.position(place))
                if came is not CUT:
                    assert came in self.next[place], f"{place}: at {came} instead of {self.next[place]}"
                    self.next[place] = {came}

    def _jumped(self, place: TopicPartition, to: int, came: object) -> None:
        self.next[place] = {to} | (self.next[place] if came is CUT else set())

    async def read(self) -> None:
        """Ask for records, in one way or another."""
        match self.rng.choice(READS):
            case "getmany":
                came = await cut(self.rng, self.consumer.getmany(timeout_ms=self.rng.choice([0, 5, 50])))
                self.handed(one for part in came.values() for one in part) if came is not CUT else None
            case "getone":
                came = await cut(self.rng, self.consumer.getone(timeout_ms=self.rng.choice([0, 50])))
                self.handed([came] if came is not CUT and came is not None else [])
            case "anext":
                came = await cut(self.rng, soon(self.consumer.__anext__()))
                self.handed([came] if came is not CUT else [])

    async def finish(self) -> None:
        """Read what is left, from somewhere on."""
        self.consumer.resume()
        self.paused.clear()
        for place in self.places:
            if self.rng.random() < 0.5:
                self.consumer.seek(place, 0)
                self.next[place] = {0}
        async with asyncio.timeout(HANGS_S):
            for place in self.places:
                while await self.consumer.position(place) < self.last:
                    came = await self.consumer.getmany(timeout_ms=50)
                    self.handed(one for part in came.values() for one in part)


async def seek_life(rng: Random, bootstrap: str, topic: str) -> None:
    """Partitions by hand: each record comes at its place, wherever one jumps and whatever was cut off."""
    places = [TopicPartition(topic, number) for number in range(rng.choice([1, 3]))]
    await fill(bootstrap, topic, len(places))
    consumer = Consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_poll_records=7, fetch_max_wait_ms=20
    )
    try:
        if await cut(rng, consumer.start(), whole=0.8) is CUT:
            return
        consumer.assign(places)
        reader = Reader(rng, consumer, places)
        for _ in range(2 * STEPS):
            await (reader.move() if rng.random() < 0.4 else reader.read())
        await reader.finish()
    finally:
        while await cut(rng, consumer.close(), whole=0.5) is CUT:
            pass


async def copy_life(rng: Random, bootstrap: str, topic: str) -> None:
    """A topic is copied, offsets and all, in transactions that are cut off: each record is there once."""
    source = f"{topic}-source"
    await fill(bootstrap, source, rng.choice([1, 3]))
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, partitions=2)
    consumer = Consumer(
        source, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest",
        enable_auto_commit=False, heartbeat_interval_ms=50, max_poll_records=7, fetch_max_wait_ms=20,
    )  # fmt: skip
    producer = Producer(bootstrap, transactional_id=topic, retry_backoff_ms=10)

    async def some() -> str:
        records = await consumer.getmany(timeout_ms=20)
        async with producer.transaction():
            for record in (one for part in records.values() for one in part):
                await producer.send(topic, record.value)
            done = {place: part[-1].offset + 1 for place, part in records.items()}
            if done:
                await producer.send_offsets(done, consumer.group_metadata())
        return "copied"

    async def back() -> None:
        """Go on where the last transaction has ended, however it has."""
        async with producer.transaction():
            pass  # an end that was cut off is seen to now
        for place, offset in (await consumer.committed()).items():
            consumer.seek(place, offset or 0)

    async with consumer, producer:
        for _ in range(STEPS):
            if await cut(rng, some()) != "copied":
                await back()
        async with asyncio.timeout(2 * HANGS_S):
            while not consumer.assignment() or max((await consumer.lag()).values()):
                await some()
    found = await values_in(bootstrap, topic, isolation_level="read_committed")
    assert found == Counter(b"%d" % number for number in range(RECORDS)), "not each once"
