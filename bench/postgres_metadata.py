"""`python -m bench.postgres_metadata`: changes of a large cluster's metadata, by three brokers.

A change's time is from its sending to the answer; a delta's from there until the other brokers, who hear a
notification, have read it and have the next image; of several the median and the longest. Then one broker is
taken over from.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from uuid import UUID, uuid4

import uvloop

from bench.brokers import data_directory
from bench.over_postgres import DURABLE
from bench.postgres import Server, ensure_installed
from coterie.broker.cluster.changes import Change, Changed, CreateTopics, NewTopic, RegisterBroker, TakeOver
from coterie.broker.cluster.engine import MetadataSession
from coterie.broker.cluster.image import Delta, Image
from coterie.broker.cluster.postgres.engine import PostgresEngine
from coterie.broker.cluster.statements import Answer, BrokerHeartbeat, ReadDelta, Statement
from coterie.storage.postgres.connecting import Connections, DatabaseAddress
from coterie.storage.postgres.schema import migrate

BROKERS = (1, 2, 3)
TOPICS_AT_ONCE = 500


class Follower:
    """A broker's sessions, and the image that it keeps up to date."""

    def __init__(self, engine: PostgresEngine) -> None:
        self.engine = engine
        self.image = Image()
        self.wanted = 0
        self.reached = asyncio.Event()
        self.sessions: list[MetadataSession] = []

    async def begin(self) -> None:
        """Open both sessions, register, and read all."""
        for notified in (self._notified, None):
            await self._open(notified)
        broker_id = self.engine.broker_id
        await self.change(RegisterBroker(broker_id, UUID(int=broker_id), 0))

    async def _open(self, notified: Callable[[int], None] | None) -> None:
        opened = asyncio.Event()

        def is_open(session: MetadataSession, history: str) -> None:
            self.sessions.append(session)
            opened.set()

        self.engine.connect(opened=is_open, ended=lambda: None, notified=notified)
        await opened.wait()

    async def ask(self, statement: Statement, *, session: int = 1) -> Answer:
        """Return the answer to a statement."""
        answered: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        self.sessions[session].send(statement, answered.set_result)
        answer = await answered
        assert answer is not None
        return answer

    async def change(self, change: Change) -> int:
        """Have a change made, and return its version."""
        answer = await self.ask(change)
        assert isinstance(answer, Changed), answer
        return answer.version

    def _notified(self, version: int) -> None:
        if version > self.wanted:
            self.wanted = version
            self.sessions[1].send(ReadDelta(self.image.version), self._read)

    def _read(self, answer: Answer | None) -> None:
        if isinstance(answer, Delta) and answer.above == self.image.version:
            self.image = self.image.after(answer)
            self.reached.set()

    async def reach(self, version: int) -> None:
        """Return once the image is at a version."""
        while self.image.version < version:
            self.reached.clear()
            await self.reached.wait()


def topics(count: int, first: int) -> CreateTopics:
    """Return new topics of one partition each, with replicas in turn."""
    placed = [(BROKERS[(first + one) % 3], BROKERS[(first + one + 1) % 3]) for one in range(count)]
    return CreateTopics(tuple(NewTopic(uuid4(), f"t{first + n}", (one,)) for n, one in enumerate(placed)))


async def play(address: DatabaseAddress, *, topic_count: int, changes: int) -> None:
    """Make the topics, change more, take over, and print what it took."""
    loop = asyncio.get_running_loop()
    followers = [Follower(PostgresEngine(Connections(address, loop), one, lanes=3)) for one in BROKERS]
    for follower in followers:
        await follower.begin()
    first, *others = followers
    begun = time.perf_counter()
    for at in range(0, topic_count, TOPICS_AT_ONCE):
        version = await first.change(topics(TOPICS_AT_ONCE, at))
    for follower in followers:
        await follower.reach(version)
    print(f"{topic_count:,} topics, {TOPICS_AT_ONCE} a change: {time.perf_counter() - begun:.2f} s in all")
    made, heard = [], []
    for number in range(changes):
        begun = time.perf_counter()
        version = await first.change(topics(1, topic_count + number))
        made.append(1_000 * (time.perf_counter() - begun))
        for follower in others:
            await follower.reach(version)
        heard.append(1_000 * (time.perf_counter() - begun))
    print(f"a topic is made: {line_of(made)}; the others have the next image: {line_of(heard)}")
    beats = []
    for _ in range(changes):
        begun = time.perf_counter()
        await first.ask(BrokerHeartbeat(1, first.image.brokers[1].broker_epoch, version), session=0)
        beats.append(1_000 * (time.perf_counter() - begun))
    print(f"a heartbeat: {line_of(beats)}")
    victim = first.image.brokers[3]
    led = sum(row.leader == 3 for row in first.image.all_partitions())
    begun = time.perf_counter()
    version = await first.change(TakeOver(3, victim.broker_epoch, 0))
    took = 1_000 * (time.perf_counter() - begun)
    await others[0].reach(version)
    print(f"{led:,} partitions are taken over: {took:.0f} ms; another has them after", end=" ")
    print(f"{1_000 * (time.perf_counter() - begun):.0f} ms")
    for follower in followers:
        for session in follower.sessions:
            session.close()


def line_of(times_ms: list[float]) -> str:
    """Return the median and the longest of some times."""
    return f"{statistics.median(times_ms):.1f} ms, at most {max(times_ms):.1f}"


def main() -> int:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m bench.postgres_metadata", description="Many topics.")
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--changes", type=int, default=50)
    asked = parser.parse_args()
    ensure_installed()
    place = data_directory()
    place.mkdir(parents=True, exist_ok=True)
    with Server(DURABLE, place=place) as server:
        address = DatabaseAddress(server.url(server.new_database()))
        uvloop.run(migrate(address))
        uvloop.run(play(address, topic_count=asked.topics, changes=asked.changes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
