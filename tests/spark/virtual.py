"""A broker and clients in one process and in virtual time: nothing sleeps, no socket is opened.

The event loop jumps to its next timer. Connections are pairs of transports between the production client's
protocol and the production server's, with delays, and breaks that chance makes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar
from uuid import UUID

from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.net.connection import Connection
from coterie.broker.node import Node
from coterie.broker.shell.loop import Alarm
from coterie.broker.topics.registry import Topics
from coterie.coordinator.group.model import Group
from coterie.storage.memory import MemoryStore
from coterie.wire.records.batches import Record, build_batch

HOST, PORT = "broker", 9092
START_MS = 1_700_000_000_000
DELAY_S = 0.001
LEAST_S = 1e-6
"""Each round of the loop takes some time, or whoever waits for the next instant waits for ever."""

T = TypeVar("T")


class Stuck(AssertionError):
    """Nothing is left to happen, and somebody still waits."""


class Process:
    """One process of a client: when it is killed, its connections break and nothing of it goes out."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.pipes: set[Pipe] = set()

    def kill(self) -> None:
        """End without a word."""
        self.dead = True
        for pipe in tuple(self.pipes):
            pipe.broken()


NOBODY = Process("nobody")
running: ContextVar[Process] = ContextVar("running", default=NOBODY)
"""Whose task this is; tasks inherit it from who starts them."""


class Clock:
    """The loop's selector: instead of waiting, time goes on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def select(self, timeout: float | None) -> list[Any]:
        """Let time pass; nothing ever comes from outside."""
        if timeout is None:
            raise Stuck("nothing is to happen any more")
        self.now += max(timeout, LEAST_S)
        return []

    def close(self) -> None:
        """Nothing is held."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time passes as soon as nothing is to be done."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = Clock()
        self.connect: Callable[[Process, asyncio.BufferedProtocol], asyncio.Transport] | None = None

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._selector.now

    def _process_events(self, events: list[Any]) -> None:
        assert not events

    def _write_to_self(self) -> None:
        """Nobody calls from another thread."""

    async def create_connection(self, factory: Any, host: Any, port: Any, **_: Any) -> Any:
        """Connect to the one broker there is."""
        assert (host, port) == (HOST, PORT), (host, port)
        assert self.connect is not None
        await asyncio.sleep(DELAY_S)
        process = running.get()
        if process.dead:
            raise ConnectionRefusedError("a dead process connects nowhere")
        protocol = factory()
        return self.connect(process, protocol), protocol


class End(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, pipe: Pipe, *, clients: bool) -> None:
        super().__init__({"peername": ("client", 1), "sockname": (HOST, PORT), "socket": None})
        self.pipe, self.clients = pipe, clients

    def write(self, data: Any) -> None:
        """Put bytes on their way."""
        self.pipe.send(bytes(data), to_broker=self.clients)

    def writelines(self, parts: Any) -> None:
        """The same."""
        self.write(b"".join(parts))

    def close(self) -> None:
        """Hang up."""
        self.pipe.broken()

    abort = close

    def is_closing(self) -> bool:
        """Return whether the connection is over."""
        return self.pipe.over

    def pause_reading(self) -> None:
        """Nothing is so large here."""

    def resume_reading(self) -> None:
        """The same."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits to be sent."""

    def get_write_buffer_size(self) -> int:
        """Return 0."""
        return 0


class Pipe:
    """A connection: bytes come in order, after a delay, until it breaks."""

    def __init__(self, broker: VirtualBroker, process: Process, client: asyncio.BufferedProtocol) -> None:
        self.broker, self.process, self.client = broker, process, client
        self.server = Connection(broker.node)
        self.over = False
        self._arrives = {True: 0.0, False: 0.0}
        process.pipes.add(self)

    def begin(self) -> asyncio.Transport:
        """Tell both ends that they are connected; return the client's."""
        mine = End(self, clients=True)
        self.client.connection_made(mine)
        self.server.connection_made(End(self, clients=False))
        return mine

    def send(self, data: bytes, *, to_broker: bool) -> None:
        """Have bytes arrive at the other end."""
        if self.over:
            return
        loop = self.broker.loop
        at = max(self._arrives[to_broker], loop.time() + self.broker.delay_s())
        self._arrives[to_broker] = at
        loop.call_at(at, self._arrive, data, to_broker)

    def _arrive(self, data: bytes, to_broker: bool) -> None:
        if self.over:
            return
        if self.broker.breaks():
            if to_broker and self.broker.chance.random() < 0.5:
                self._to_broker(data)  # it is carried out, and nobody learns of it
            self.broken()
        elif to_broker:
            self._to_broker(data)
        else:
            self._to_client(data)

    def _to_broker(self, data: bytes) -> None:
        self.broker.asked(self.process, data)
        self.server.data_received(data)
        self.broker.looked()

    def _to_client(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self.over:
            room = self.client.get_buffer(len(view))
            size = min(len(room), len(view))
            room[:size] = view[:size]
            self.client.buffer_updated(size)
            view = view[size:]

    def broken(self) -> None:
        """End the connection; both ends hear of it soon."""
        if not self.over:
            self.over = True
            self.process.pipes.discard(self)
            self.broker.loop.call_soon(self.server.connection_lost, None)
            self.broker.loop.call_soon(self.client.connection_lost, None)


def aside_now(
    work: Callable[..., Any], arguments: tuple[Any, ...], finish: Callable[[Any], None], *, computes: bool
) -> None:
    """Do what takes time at once."""
    finish(work(*arguments))


class VirtualBroker:
    """A production node in memory, on a virtual loop. Who wants to see what it is asked sets `watcher`."""

    def __init__(self, loop: VirtualLoop, *, seed: int, **settings: str) -> None:
        self.loop, self.chance = loop, random.Random(seed)
        self.break_chance = 0.0
        self.slow_s = DELAY_S
        self.watcher: Watcher | None = None
        self._soon: list[Callable[[], None]] = []
        alarm = Alarm(loop, self.now_ms)
        given = {"listeners": f"PLAINTEXT://{HOST}:{PORT}", "log.dirs": "data", "node.id": "1"}
        made = BrokerSettings.of(given | {"offsets.topic.num.partitions": "1"} | settings)
        store = MemoryStore.open(now_ms=self.now_ms(), cluster_id="virtual", node_id=1)
        self.node = Node(
            settings=made,
            topics=Topics.open(made, store, new_uuid=self.new_uuid),
            store=store,
            clock=self.now_ms,
            call_soon=loop.call_soon,
            alarm=alarm.set,
            aside=aside_now,
            new_uuid=self.new_uuid,
        )
        alarm.expire = self.node.purgatory.expire
        self.node.start()
        self.node.topic_manager.ensure_internal(OFFSETS_TOPIC)
        loop.connect = lambda process, client: Pipe(self, process, client).begin()

    def now_ms(self) -> int:
        """Return the broker's clock."""
        return START_MS + int(self.loop.time() * 1000)

    def new_uuid(self) -> UUID:
        """Return an id that the seed makes."""
        return UUID(int=self.chance.getrandbits(128), version=4)

    def delay_s(self) -> float:
        """Return how long the next bytes take."""
        return DELAY_S + self.chance.random() * (self.slow_s - DELAY_S)

    def breaks(self) -> bool:
        """Return whether a connection breaks now."""
        return self.break_chance > 0 and self.chance.random() < self.break_chance

    def asked(self, process: Process, data: bytes) -> None:
        """Tell the watcher what a client asks."""
        if self.watcher is not None:
            self.watcher.asked(process, data)

    def looked(self) -> None:
        """Have the watcher look at what came of it, now and when the answers of this round are out."""
        if self.watcher is not None:
            self.watcher.look()
            self.loop.call_soon(self.watcher.look)

    # -- topics, and what groups have committed

    def write(self, topic: str, partition: int, count: int = 1) -> int:
        """Append records; return where the partition ends now."""
        rows = [Record(number, self.now_ms(), None, b"v") for number in range(count)]
        at = self.node.replica_manager.append(topic, partition, build_batch(rows), now_ms=self.now_ms())
        return at.base_offset + count

    def end(self, topic: str, partition: int) -> int:
        """Return where a partition ends."""
        log = self.node.replica_manager.log_of(topic, partition)
        assert log is not None
        return log.end_offset

    def group(self, group_id: str) -> Group | None:
        """Return the group as its coordinator has it."""
        return self.node.coordinator.hosts[0].shard.groups.get(group_id)

    def committed(self, group_id: str) -> dict[tuple[str, int], int]:
        """Return the group's committed offsets."""
        table = self.node.coordinator.hosts[0].shard.offsets.get(group_id) or {}
        return {
            (topic, number): one.offset for topic, numbers in table.items() for number, one in numbers.items()
        }


class Watcher:
    """Who looks on."""

    def asked(self, process: Process, data: bytes) -> None:
        """See what a client asks, before it is answered."""

    def look(self) -> None:
        """See what the broker has come to."""


def run_virtually(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]], *, seed: int = 0) -> T:
    """Return what the coroutine returns, run on a loop of its own; chance goes by the seed."""
    random.seed(seed)  # the clients' pauses differ by it
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        return runner.run(main(loop))
