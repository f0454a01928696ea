"""Brokers' stores over one PostgreSQL, through wires that fail, while the server fails and leaders move.

The stores, lanes, sessions, readers and the engine are those that a broker uses. Each broker appends to all
that it leads, one batch of one value at a time and several in flight; what was acknowledged is noted. In the
end everything is read, and has to be there once, in order, where it was said to be.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from uuid import UUID

from bench.database_proxy import Proxy, Trouble
from bench.postgres import Server

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.cluster.changes import (
    Change,
    Changed,
    CreateTopics,
    NewTopic,
    NotChanged,
    RegisterBroker,
    TakeOver,
)
from coterie.broker.cluster.engine import MetadataSession
from coterie.broker.cluster.image import Image
from coterie.broker.cluster.postgres.engine import PostgresEngine
from coterie.broker.cluster.statements import Answer, ReadDelta, Statement
from coterie.storage.config import LogConfig
from coterie.storage.log.contract import AppendRefused
from coterie.storage.postgres.connecting import Connections, DatabaseAddress
from coterie.storage.postgres.lane_session import LaneSessions
from coterie.storage.postgres.reading import PostgresReader
from coterie.storage.remote.log import RemoteLog
from coterie.storage.remote.reading import LogWanted, StoredLog
from coterie.storage.remote.session import Broken
from coterie.storage.remote.store import LogToOpen, RemoteStore
from coterie.wire.records.batches import Record, build_batch, records_of, scan

TOPIC, TOPIC_ID = "orders", UUID(int=7)
BROKERS = (1, 2, 3)
LANES = 3
PARTITIONS = 9
IN_FLIGHT = 5
SETTLED_WITHIN_S = 60.0
MET_WITHIN_S = 120.0
NOW = 1_700_000_000_000
QUIET_PARTITIONS = 3
"""The last of them get a value now and then: a late append there meets no other row."""


class Metadata:
    """The engine, asked again until it answers; its sessions go straight to the server."""

    def __init__(self, address: DatabaseAddress) -> None:
        self._engine = PostgresEngine(Connections(address, asyncio.get_running_loop()), 0, lanes=LANES)
        self.session: MetadataSession | None = None
        self.history = ""
        self.image = Image()

    async def _connect(self) -> MetadataSession:
        while self.session is None:
            opened: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

            def is_open(
                session: MetadataSession, history: str, opened: asyncio.Future[bool] = opened
            ) -> None:
                self.session, self.history = session, history
                opened.set_result(True)

            def has_ended(opened: asyncio.Future[bool] = opened) -> None:
                self.session = None
                if not opened.done():
                    opened.set_result(False)

            self._engine.connect(opened=is_open, ended=has_ended)
            if not await opened:
                await asyncio.sleep(0.05)
        return self.session

    async def ask(self, statement: Statement) -> Answer | None:
        """Return the answer, None if there is none."""
        session = await self._connect()
        answered: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        session.send(statement, answered.set_result)
        return await answered

    async def read_on(self) -> Image:
        """Return the image as it is now."""
        while True:
            delta = await self.ask(ReadDelta(self.image.version))
            if delta is not None:
                self.image = self.image.after(delta)  # type: ignore[arg-type]  # ReadDelta is answered by one
                return self.image

    async def change(self, change: Change) -> Changed | NotChanged:
        """Return what became of a change; one without an answer may have been made."""
        while True:
            answer = await self.ask(change)
            if answer is not None:
                return answer  # type: ignore[return-value]  # a change is answered by these


class ChaosBroker:
    """One broker: its store, and what it appends."""

    def __init__(self, world: ChaosWorld, broker_id: int) -> None:
        self.world = world
        self.broker_id = broker_id
        self.epoch = 0
        self.incarnation = 0
        self.fenced_in = 0
        loop = asyncio.get_running_loop()
        connections = Connections(world.through_proxy, loop)
        self.reader = PostgresReader(connections)
        self.store = RemoteStore(
            LaneSessions(connections, broker_id),
            self.reader,
            clock=lambda: int(loop.time() * 1_000),
            call_soon=loop.call_soon,
            later=lambda delay_ms, do: loop.call_later(delay_ms / 1_000, do),
        )
        self.store.listener = self

    # -- what the store tells

    def fenced(self) -> None:
        self.world.seen["fenced"] += 1
        self.fenced_in = self.epoch

    def lost(self, names: frozenset[TopicPartition]) -> None:
        self.world.faults.append(f"broker {self.broker_id} hears of lost rows in {sorted(names)}")

    def conflicted(self, names: frozenset[TopicPartition]) -> None:
        self.world.faults.append(f"broker {self.broker_id} finds another's rows in {sorted(names)}")

    # -- its life

    async def register(self) -> None:
        """Begin a broker epoch, in place of the one there is."""
        metadata = self.world.metadata
        self.incarnation += 1
        while True:
            row = (await metadata.read_on()).brokers.get(self.broker_id)
            replaces = 0 if row is None else row.broker_epoch
            mine = UUID(int=1_000 * self.broker_id + self.incarnation)
            if row is not None and row.incarnation == mine:
                self.epoch = row.broker_epoch  # made, though nobody said so
                break
            answer = await metadata.change(RegisterBroker(self.broker_id, mine, replaces))
            if isinstance(answer, Changed):
                self.epoch = answer.version
                break
        self.store.begin(self.epoch, metadata.history)

    def look(self, image: Image) -> None:
        """Lead what the image says; the broker may be behind it."""
        row = image.brokers.get(self.broker_id)
        if row is None or row.broker_epoch != self.epoch:
            return
        led = [one for one in image.all_partitions() if one.leader == self.broker_id]
        names = {TopicPartition(TOPIC, one.number) for one in led}
        for name in [name for name in self.store.logs if name not in names]:
            self.store.drop(name)
        config = LogConfig.of({})
        wanted = [
            LogToOpen(TopicPartition(TOPIC, one.number), one.partition_id, one.leader_epoch, config)
            for one in led
        ]
        self.store.open(wanted, lambda name, log: self._keep_appending(log))

    def _keep_appending(self, log: RemoteLog) -> None:
        for _ in range(IN_FLIGHT if log.name.partition < PARTITIONS - QUIET_PARTITIONS else 1):
            self._append(log)

    def _append(self, log: RemoteLog) -> None:
        world = self.world
        if world.over or log.closed or self.store.logs.get(log.name) is not log:
            return
        value = world.next_value()
        batch = build_batch([Record(0, NOW, None, value)])
        try:
            appended = log.append(batch, now_ms=NOW, leader_epoch=log.latest_epoch)
        except AppendRefused as refused:
            world.seen[f"not taken: {refused.code.name}"] += 1
            return
        place = (log.name.partition, appended.base_offset)
        log.when_landed(appended.last_offset, partial(self._decided, log, value, place))

    def _decided(
        self, log: RemoteLog, value: bytes, place: tuple[int, int], refused: AppendRefused | None
    ) -> None:
        world = self.world
        if refused is None:
            world.acknowledged[value] = place
        else:
            world.seen[f"refused: {refused.code.name}"] += 1
            if refused.code is Code.KAFKA_STORAGE_ERROR:
                world.never.add(value)
        quiet = log.name.partition >= PARTITIONS - QUIET_PARTITIONS
        asyncio.get_running_loop().call_later(
            world.random.uniform(0.1, 0.4) if quiet else 0, self._append, log
        )


class ChaosWorld:
    """The server, the wire, the brokers, and what is to hold."""

    def __init__(self, server: Server, database: str, seed: int) -> None:
        self.server = server
        self.database = database
        self.random = random.Random(seed)
        self.direct = DatabaseAddress(server.url(database))
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.never: set[bytes] = set()
        self.faults: list[str] = []
        self.seen: Counter[str] = Counter()
        self.over = False
        self._values = 0

    def next_value(self) -> bytes:
        """Return a value that nobody has."""
        self._values += 1
        return b"%d" % self._values

    async def play(self, seconds: float, to_be_met: frozenset[str] = frozenset()) -> None:
        """Let brokers append for so long, and longer where something has not been met, while all happens."""
        self.proxy = Proxy(self.server.port)
        await self.proxy.start()
        self.through_proxy = DatabaseAddress(self.server.url(self.database, port=self.proxy.port))
        self.metadata = Metadata(self.direct)
        self.brokers = [ChaosBroker(self, number) for number in BROKERS]
        for broker in self.brokers:
            await broker.register()
        replicas = tuple((one, *BROKERS[: one - 1], *BROKERS[one:]) for one in BROKERS) * (PARTITIONS // 3)
        await self.metadata.change(CreateTopics((NewTopic(TOPIC_ID, TOPIC, replicas),)))
        image = await self.metadata.read_on()
        for broker in self.brokers:
            broker.look(image)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while (lasted := loop.time() - begun) < seconds or (
            lasted < MET_WITHIN_S and not self.seen.keys() >= to_be_met
        ):
            await asyncio.sleep(self.random.uniform(0.02, 0.3))
            trouble = self.random.choices([*self.troubles()], [*self.troubles().values()])[0]
            self.seen[trouble.__name__] += 1
            await trouble()
        await self._settle()

    def troubles(self) -> dict[Callable[[], Awaitable[None]], int]:
        """Return what may happen, and how often."""
        return {
            self.cut: 4,
            self.deliver_late: 8,
            self.swallow_answers: 6,
            self.end_backends: 3,
            self.take_over: 5,
            self.kill_server: 1,
            self.restart_server: 1,
        }

    # -- what happens

    async def cut(self) -> None:
        for link in [link for link in self.proxy.links if self.random.random() < 0.3]:
            link.cut()

    async def deliver_late(self) -> None:
        for link in [link for link in self.proxy.links if self.random.random() < 0.3]:
            link.late_s = self.random.choice((0.05, 0.3, 1.0, 2.5))
            link.trouble = Trouble.LATE

    async def swallow_answers(self) -> None:
        for link in [link for link in self.proxy.links if self.random.random() < 0.3]:
            link.trouble = Trouble.DEAF

    async def end_backends(self) -> None:
        await asyncio.to_thread(
            self.server.sql,
            "postgres",
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self.database}'",
        )

    async def kill_server(self) -> None:
        await self._restart(signal.SIGKILL)

    async def restart_server(self) -> None:
        await self._restart(self.random.choice((signal.SIGQUIT, signal.SIGINT)))

    async def _restart(self, number: int) -> None:
        await asyncio.to_thread(self.server.stop, number)
        await asyncio.sleep(self.random.choice((0, 0.3, 1.5)))
        await asyncio.to_thread(self.server.start)

    async def take_over(self) -> None:
        """Have others lead what one leads, who hears of it by its lanes, or later."""
        victim = self.random.choice(self.brokers)
        answer = await self.metadata.change(TakeOver(victim.broker_id, victim.epoch, 0))
        self.seen[f"taken over: {type(answer).__name__}"] += 1
        await self._look(besides=victim)
        await asyncio.sleep(self.random.choice((0, 0.1, 0.5, 1.5)))
        await victim.register()
        await self._look()

    async def _look(self, besides: ChaosBroker | None = None) -> None:
        image = await self.metadata.read_on()
        for broker in self.brokers:
            if broker is not besides:
                broker.look(image)

    # -- what holds

    async def _settle(self) -> None:
        """Let all be well until nothing is in flight, read everything, and check it."""
        self.over = True
        for link in self.proxy.links:
            link.trouble = None
        async with asyncio.timeout(SETTLED_WITHIN_S):
            for broker in self.brokers:
                drained = asyncio.Event()
                broker.store.drained(drained.set)
                await drained.wait()
            logs = await self._read_all()
        for broker in self.brokers:
            broker.store.close()
            broker.reader.close()
        if self.metadata.session is not None:
            self.metadata.session.close()
        await self.proxy.stop()
        self.check(logs)

    async def _read_all(self) -> list[StoredLog]:
        image = await self.metadata.read_on()
        wanted = [LogWanted(one.partition_id, 1_000_000) for one in image.all_partitions()]
        reader = PostgresReader(Connections(self.direct, asyncio.get_running_loop()))
        found: list[StoredLog] = []
        while len(found) < len(wanted):  # so much is read at once, and no more
            answered: asyncio.Future[list[StoredLog] | Broken] = asyncio.get_running_loop().create_future()
            rest = wanted[len(found) :]
            reader.read_logs(rest, answered.set_result, history=self.metadata.history)  # type: ignore[arg-type]
            logs = await answered
            if not isinstance(logs, Broken):
                found += logs
        reader.close()
        return found

    def check(self, logs: list[StoredLog]) -> None:
        """Insist that all that was acknowledged is there, once and where it was said to be; and nothing that
        was said never to be.
        """
        number_of = {row.partition_id: row.number for row in self.metadata.image.all_partitions()}
        places: dict[bytes, list[tuple[int, int]]] = {}
        for stored in logs:
            end = 0
            for chunk in stored.chunks:
                assert chunk.base_offset == end, f"a gap or an overlap at {chunk.identity}"
                end = chunk.last_offset + 1
                data = bytes(chunk.data)
                for at, _ in scan(data):
                    for record in records_of(data, at):
                        place = (number_of[stored.partition_id], record.offset)
                        places.setdefault(record.value or b"", []).append(place)
        assert not self.faults, self.faults
        doubled = {value: found for value, found in places.items() if len(found) > 1}
        assert not doubled, f"there twice: {doubled}"
        lost = {value: place for value, place in self.acknowledged.items() if places.get(value) != [place]}
        assert not lost, f"acknowledged and not there: {lost}"
        refused = self.never & places.keys()
        assert not refused, f"refused, and there: {refused}"
