"""Every await cancelled: what an application may do to a client in the middle of anything, drawn by a seed.

Each life does a client's operations and cuts them off at a counted resume, by cancellation or a time-out; its
listeners call the client back; it ends anywhere, twice, on a loop that ends, in a forked child. Afterwards:
nothing hangs, no task is left, no record is lost, nor twice where nothing moved, a closed member has left,
and transactions are all or nothing. `test_cancelled` lives a few; more by name, in `tests/`:

    python -m clients.cancelling --minutes 10 --first 1000
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import sys
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

import coterie.testing
from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.client import Admin, BlockingAdmin, BlockingConsumer, BlockingProducer, Consumer, Producer
from coterie.client import RebalanceListener as Listener
from coterie.client.admin.groups import NoSuchGroup
from coterie.client.blocking.face import BlockingFace
from coterie.client.errors import Closed, ListenerFailed, WrongUse
from coterie.client.member.runner import Membership
from coterie.client.producer.errors import ProducerClosed
from coterie.client.producer.transaction_manager import Transactions
from coterie.wire.api.apis import ApiKey
from no_task_left import watched

from . import cancelled_places
from .cutting import CUT, HANGS_S, RECORDS, STEPS, cut, fill, soon, values_in, waits
from .proxy import LAST_BEFORE_KIP_890, Proxy

__all__ = ["LIVES", "live"]

Seen = defaultdict[tuple[int, int], int]
"""How often each record was handed out, by partition and offset."""


# -- what listeners do


def shielded(work: Coroutine[Any, Any, Any]) -> Awaitable[Any]:
    """Wait for the work without cutting it off; how it ends after that is nobody's business."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return asyncio.shield(task)


WAYS: Sequence[Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]] = (
    lambda work: work,
    lambda work: asyncio.wait_for(work, 2 * HANGS_S),
    lambda work: asyncio.gather(work, asyncio.sleep(0)),
    shielded,
)
HARMLESS = ("commit", "committed", "lag", "topics", "position", "assignment", "subscription", "paused",
            "group_metadata", "enforce_rebalance", "subscribe", "end_offsets", "getmany")  # fmt: skip
ENDS = ("close", "unsubscribe")
WILD = ("seek_to_beginning", "seek_to_end", "pause", "resume", "raise", "cancelled", "start", "assign")


async def call(consumer: Consumer, name: str, topic: str) -> Any:
    """Call one public method of the consumer as it is meant."""
    first = next(iter(sorted(consumer.assignment())), TopicPartition(topic, 0))
    match name:
        case "raise":
            raise KeyError("of the application")
        case "cancelled":
            raise asyncio.CancelledError
        case "position":
            answer = consumer.position(first)
        case "end_offsets" | "assign":
            answer = getattr(consumer, name)([first])
        case "subscribe":
            answer = consumer.subscribe([topic])
        case "getmany":
            answer = consumer.getmany(timeout_ms=10)
        case _:
            answer = getattr(consumer, name)()
    return await answer if asyncio.iscoroutine(answer) else answer


class Restless(Listener):
    """Calls the consumer back, by chance, from each of its methods."""

    def __init__(self, rng: Random, consumer: Consumer, topic: str, names: Sequence[str]) -> None:
        self.rng, self.consumer, self.topic, self.names = rng, consumer, topic, names
        self.inside = self.assigned = 0
        self.heard: object = None  # the call of a method that runs
        self.waited: list[str] = []  # for what waits for the method: that can only end with a time-out
        self.seen: Seen = defaultdict(int)

    async def _hear(self, method: str) -> None:
        assert not self.inside, "a method is called while another runs"
        self.inside += 1
        self.heard = object()
        try:
            while self.rng.random() < 0.4:
                name = self.rng.choice(self.names)
                work = self._end(name, method, self.heard) if name in ENDS else self._call(name)
                with suppress(CoterieError):
                    came = await self.rng.choice(WAYS)(work)
                    self._count(came[0] if isinstance(came, list) and came else came)
        finally:
            self.inside -= 1
            self.heard = None

    def _call(self, name: str) -> Coroutine[Any, Any, Any]:
        return call(self.consumer, name, self.topic)

    async def _end(self, name: str, method: str, heard: object) -> None:
        """End the consumer: within the method that returns at once, as the end waits for the method."""
        work = self._call(name)
        if heard is not self.heard:
            await work
        elif waits(work):
            self.waited.append(f"{name}() in {method} waits for what waits for {method} to return")

    def check(self) -> None:
        """Fail if an end waited for itself."""
        assert not self.waited, self.waited[0]

    def _count(self, came: Any) -> None:
        """Count the records that a task of this listener's was handed."""
        for records in came.values() if isinstance(came, dict) else ():
            for record in records if isinstance(records, list) else ():
                self.seen[record.partition, record.offset] += 1

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.assigned += 1
        await self._hear("on_partitions_assigned")

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await self._hear("on_partitions_revoked")

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        await self._hear("on_partitions_lost")


# -- the lives


async def members_of(admin: Admin, group: str) -> Sequence[Any]:
    """Return who is in the group: nobody, where nobody has ever been."""
    try:
        return (await admin.describe_group(group)).members
    except NoSuchGroup:
        return ()


async def has_left(bootstrap: str, group: str) -> None:
    async with Admin(bootstrap) as admin:
        until = time.monotonic() + HANGS_S
        while await members_of(admin, group):
            assert time.monotonic() < until, f"a closed member is still in group {group}"


async def member_life(rng: Random, bootstrap: str, topic: str) -> None:
    """One member, and at times another: nothing is lost; nothing is twice where nothing moves."""
    mode = rng.choice(["calm", "moving", "ending", "wild"])
    await fill(bootstrap, topic, rng.choice([1, 3]))
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap, "group_id": topic, "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 50, "max_poll_records": 7, "fetch_max_wait_ms": 20,
        "auto_commit_interval_ms": rng.choice([1, 50, 60_000]), "retry_backoff_ms": 10,
        "partition_assignment_strategy": rng.choice(["range", "cooperative-sticky"]),
    }  # fmt: skip
    seen: Seen = defaultdict(int)
    consumer = Consumer(**settings)
    names = {"calm": HARMLESS[:8], "moving": HARMLESS, "ending": HARMLESS + ENDS * 3}
    listener = Restless(rng, consumer, topic, names.get(mode, HARMLESS + ENDS + WILD))
    listener.seen = seen
    if await cut(rng, consumer.start(), whole=0.8) is CUT:
        await consumer.close()
        return
    other = Consumer(topic, **settings) if mode == "moving" else None
    consumer.subscribe([topic], listener=listener)
    try:
        for _ in range(STEPS):
            if not await step(rng, consumer, topic, listener, seen, mode):
                break
            if other is not None and rng.random() < 0.1:
                other = await visit(other, seen, settings, topic)
    finally:
        while await cut(rng, consumer.close(), whole=0.5) is CUT:
            pass
        if other is not None:
            await other.close()
        listener.check()
    await has_left(bootstrap, topic)
    if mode == "calm" and listener.assigned == 1:
        assert max(seen.values(), default=1) == 1, f"twice: {[at for at in seen if seen[at] > 1]}"
    if mode != "wild":
        await rest_of(settings, topic, seen)
        missing = RECORDS - len(seen)
        assert not missing, f"{mode}: {missing} records are lost"


async def step(
    rng: Random,
    consumer: Consumer,
    topic: str,
    listener: Restless,
    seen: Seen,
    mode: str,
) -> bool:
    """Do one thing to the consumer; return whether there is more to do."""
    if consumer.subscription() is None and mode != "calm":
        with suppress(CoterieError):
            consumer.subscribe([topic], listener=listener)
    name = rng.choice(["getmany", "getmany", "getone", "anext", *HARMLESS[:8]])
    if mode != "calm" and rng.random() < 0.1:
        name = rng.choice(["enforce_rebalance", "unsubscribe", "stranger"])
    if name == "getmany":
        came = await cut(rng, consumer.getmany(timeout_ms=rng.choice([0, 5, 50])))
        records = [one for part in came.values() for one in part] if isinstance(came, dict) else []
    elif name == "getone":
        came = await cut(rng, consumer.getone(timeout_ms=rng.choice([0, 50])))
        records = [came] if came is not None and hasattr(came, "offset") else []
    elif name == "anext":
        came = await cut(rng, soon(consumer.__anext__()))
        records = [came] if hasattr(came, "offset") else []
    elif name == "stranger":
        await asyncio.sleep(rng.random() * 0.02)
        return True
    else:
        came, records = await cut(rng, call(consumer, name, topic)), []
    for record in records:
        seen[record.partition, record.offset] += 1
    return not isinstance(came, Closed)


async def visit(other: Consumer, seen: Seen, settings: Any, topic: str) -> Consumer:
    """Have another member come and read for a moment, or go."""
    if other._cluster is None:
        await other.start()
        return other
    for records in (await other.getmany(timeout_ms=50)).values():
        for record in records:
            seen[record.partition, record.offset] += 1
    await other.close()
    return Consumer(topic, **settings)


async def rest_of(settings: dict[str, Any], topic: str, seen: Seen) -> None:
    """Read what the group has not done yet, as its next member."""
    async with Consumer(topic, **settings) as consumer:
        async with asyncio.timeout(HANGS_S):
            while not consumer.assignment():
                await consumer.getmany(timeout_ms=10, max_records=0)
        while max((await consumer.lag()).values()):
            for records in (await consumer.getmany(timeout_ms=50)).values():
                for record in records:
                    seen[record.partition, record.offset] += 1


async def pair_life(rng: Random, bootstrap: str, topic: str) -> None:
    """Two or three members of one process come and go while the others rebalance: nothing is lost."""
    await fill(bootstrap, topic, 3)
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap, "group_id": topic, "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 30, "max_poll_records": 3, "fetch_max_wait_ms": 20, "retry_backoff_ms": 10,
        "auto_commit_interval_ms": rng.choice([1, 50, 60_000]),
        "partition_assignment_strategy": rng.choice(["range", "cooperative-sticky"]),
    }  # fmt: skip
    static = rng.random() < 0.3
    seen: Seen = defaultdict(int)

    async def member(number: int, own: Random) -> None:
        named = {"group_instance_id": f"member-{number}"} if static else {}
        for _ in range(own.randint(1, 4)):
            consumer = Consumer(topic, **settings, **named)
            started = await cut(own, consumer.start(), whole=0.9) is not CUT
            for _ in range(own.randint(0, 12) if started else 0):
                await stroll(own, consumer, seen)
            while await cut(own, consumer.close(leave=True), whole=0.5) is CUT:
                pass

    await asyncio.gather(*(member(number, Random(rng.random())) for number in range(rng.choice([2, 3]))))
    await has_left(bootstrap, topic)
    await rest_of(settings, topic, seen)
    assert len(seen) == RECORDS, f"{RECORDS - len(seen)} records are lost"


async def stroll(rng: Random, consumer: Consumer, seen: Seen) -> None:
    """Read a little, and at times commit, have the group rebalance, or be late."""
    came = await cut(rng, consumer.getmany(timeout_ms=rng.choice([0, 5, 50])), whole=0.6)
    for part in came.values() if isinstance(came, dict) else ():
        for record in part:
            seen[record.partition, record.offset] += 1
    if rng.random() < 0.1:
        consumer.enforce_rebalance()
    if rng.random() < 0.1:
        await cut(rng, consumer.commit())
    if rng.random() < 0.1:
        await asyncio.sleep(rng.random() * 0.03)


async def producer_life(rng: Random, bootstrap: str, topic: str) -> None:
    """What `send` returned for is there, once; what it was cut off at is not."""
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, partitions=2)
    batch = rng.choice([64, 16_384])
    producer = Producer(bootstrap, linger_ms=rng.choice([0, 5]), batch_size=batch, buffer_memory=4 * batch)
    if await cut(rng, producer.start(), whole=0.8) is CUT:
        await producer.close()
        return
    sent: dict[bytes, Any] = {}
    refused = set()
    for number in range(STEPS * 3):
        value = b"%d" % number
        keyed = {"key": value} if rng.random() < 0.5 else {}
        came = await cut(rng, producer.send(topic, value, **keyed))
        if came is CUT or isinstance(came, CoterieError):
            refused.add(value)
        else:
            sent[value] = came
        if rng.random() < 0.1:
            await cut(rng, producer.flush())
        if sent and rng.random() < 0.1:
            await cut(rng, outcome(rng.choice(list(sent.values()))))
    closes = [cut(rng, producer.close(), whole=0.6)] * 1
    if rng.random() < 0.3:
        closes.append(cut(rng, producer.close(), whole=1))
    whole = CUT not in await asyncio.gather(*closes)
    found = await values_in(bootstrap, topic)
    assert not refused & found.keys(), f"cut off, and there: {refused & found.keys()}"
    assert all(count == 1 for count in found.values()), "twice"
    written = {value for value, one in sent.items() if is_written(one)}
    assert written <= found.keys(), "acknowledged, and not there"
    assert not whole or written == sent.keys() == found.keys(), "sent, and not written"


async def outcome(delivery: Any) -> Any:
    return await delivery


def is_written(delivery: Any) -> bool:
    with suppress(CoterieError):
        return delivery.result().offset >= 0
    return False


class GivesUp(CoterieError):
    """What the application raises in a transaction that it does not want any more."""


async def transactions_life(rng: Random, bootstrap: str, topic: str) -> None:
    """Each transaction is there whole or not at all: one whose block ended well is, one given up is not.

    At times the broker's answers to what is written are late, and it looks like one before KIP-890.
    """
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, partitions=2)
    ended: set[int] = set()
    given_up: set[int] = set()
    async with Proxy(hidden=True, most=rng.choice([None, LAST_BEFORE_KIP_890])) as proxy:
        proxy.target, late = int(bootstrap.rpartition(":")[2]), rng.choice([0, 0.8])
        proxy.keep_back = lambda api_key: api_key == ApiKey.PRODUCE and rng.random() < late
        producer = Producer(f"127.0.0.1:{proxy.port}", transactional_id=topic, retry_backoff_ms=10)
        if await cut(rng, producer.start(), whole=0.8) is CUT:
            await producer.close()
            return
        for number in range(STEPS // 2):
            came = await cut(rng, transaction(rng, producer, topic, number))
            if came == "ended":
                ended.add(number)
            elif isinstance(came, GivesUp):
                given_up.add(number)
            else:
                assert came is CUT, f"transaction {number}: {came!r}"
        while await cut(rng, producer.close(), whole=0.6) is CUT:
            pass
    async with Producer(bootstrap, transactional_id=topic):
        pass  # whatever a cut close left open is over now
    found = await values_in(bootstrap, topic, isolation_level="read_committed")
    parts = Counter(int(value.partition(b"-")[0]) for value in found)
    assert set(found.values()) <= {1}, "twice"
    assert set(parts.values()) <= {3}, f"parts of transactions: {parts}"
    assert ended <= parts.keys(), f"ended well, and not there: {ended - parts.keys()}"
    assert not given_up & parts.keys(), f"given up, and there: {given_up & parts.keys()}"


async def transaction(rng: Random, producer: Producer, topic: str, number: int) -> str:
    """Write three records in a transaction, or give up when they are sent."""
    async with producer.transaction():
        for part in range(3):
            await producer.send(topic, b"%d-%d" % (number, part), partition=part % 2)
            if rng.random() < 0.2:
                await producer.flush()
        if rng.random() < 0.3:
            await asyncio.sleep(0.002)
            raise GivesUp
    return "ended"


async def admin_life(rng: Random, bootstrap: str, topic: str) -> None:
    """Whatever was cut off, the next question is answered."""
    admin = Admin(bootstrap)
    while await cut(rng, admin.start(), whole=0.6) is CUT:
        admin = Admin(bootstrap)
    asks: Sequence[Callable[[], Coroutine[Any, Any, Any]]] = (
        admin.describe_cluster, admin.list_topics, admin.list_groups, admin.list_transactions,
        lambda: admin.create_topic(topic, partitions=2), lambda: admin.delete_topic(topic),
        lambda: admin.describe_group(topic), lambda: admin.list_offsets([(topic, 0), (topic, 1)]),
        lambda: admin.describe_topics([topic]), lambda: admin.list_group_offsets(topic),
    )  # fmt: skip
    for _ in range(STEPS):
        await cut(rng, rng.choice(asks)(), whole=0.2)
    assert (await admin.describe_cluster()).brokers
    await asyncio.gather(cut(rng, admin.close()), cut(rng, admin.close()))
    await admin.close()


def loop_that_ends(rng: Random, bootstrap: str, topic: str) -> None:
    """A loop ends in the middle: it does end, and the clients say on another one that they cannot go on."""
    clients: list[Any] = []

    async def begin() -> None:
        await fill(bootstrap, topic, 2)
        consumer = Consumer(bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest")
        clients.extend([consumer, Producer(bootstrap, linger_ms=5)])
        await asyncio.gather(*(one.start() for one in clients))
        listener = Restless(rng, consumer, topic, HARMLESS + ENDS)
        consumer.subscribe([topic], listener=listener)
        await cut(rng, soon(consumer.__anext__()))
        await cut(rng, clients[1].send(topic, b"v"))
        listener.check()
        if rng.random() < 0.5:
            clients.append(asyncio.ensure_future(consumer.close()))

    async def go_on() -> None:
        consumer, producer = clients[:2]
        for work in (
            consumer.getmany(timeout_ms=50),
            consumer.commit(),
            producer.send(topic, b"late"),
            producer.flush(),
        ):
            task = asyncio.ensure_future(work)
            done, _ = await asyncio.wait([task], timeout=HANGS_S)
            assert done, f"{work} hangs on another loop"
            assert isinstance(task.exception(), WrongUse | ProducerClosed | ListenerFailed), task

    with leaving_open():
        for work in (asyncio.wait_for(begin(), 4 * HANGS_S), go_on()):
            with asyncio.Runner() as runner:  # asyncio.run of the tests minds what is left open
                runner.run(work)
        clients.clear()


@contextmanager
def leaving_open() -> Iterator[None]:
    """Nobody closes what is used in here: the application's mistake, of which Python tells by itself."""
    told, logs = sys.unraisablehook, logging.getLogger("asyncio")
    sys.unraisablehook = lambda _: None
    logs.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
            gc.collect()
    finally:
        sys.unraisablehook = told
        logs.disabled = False


def script_life(rng: Random, bootstrap: str, topic: str) -> None:
    """A script's block is left in some way, and forked in its middle: all is written, nobody hangs."""
    left_by = rng.choice([None, ValueError(), SystemExit(3), KeyboardInterrupt()])
    sent = rng.randrange(1, 20)
    with BlockingAdmin(bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    faces: list[Any] = [
        BlockingProducer(bootstrap, linger_ms=rng.choice([0, 60_000]), delivery_timeout_ms=120_000),
        BlockingConsumer(bootstrap_servers=bootstrap, group_id=topic),
        BlockingAdmin(bootstrap),
    ]
    try:
        with faces[0] as producer, faces[1] as consumer, faces[2]:
            consumer.subscribe([topic])
            for _ in range(sent):
                producer.send(topic, b"v")
            if rng.random() < 0.6:
                forked(rng, faces, topic)
            consumer.getmany(timeout_ms=rng.choice([0, 20]))
            if left_by is not None:
                raise left_by
    except (ValueError, SystemExit, KeyboardInterrupt):
        pass
    with BlockingAdmin(bootstrap) as admin:
        end = admin.list_offsets([(topic, 0)])[TopicPartition(topic, 0)].offset
        assert end == sent, f"{sent} sent, {end} written, left by {left_by!r}"
    asyncio.run(has_left(bootstrap, topic))


def forked(rng: Random, faces: list[Any], topic: str) -> None:
    """Fork; the child uses what the parent has made, and must come to an end."""
    producer, consumer, admin = faces
    calls = [lambda: producer.send(topic, b"c"), producer.flush, consumer.commit, consumer.getmany,
             consumer.assignment, admin.list_topics, producer.close, consumer.close, admin.close]  # fmt: skip
    rng.shuffle(calls)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        status = 0
        for one in calls:
            try:
                one()
            except CoterieError:
                continue
            except BaseException:  # noqa: BLE001  # the child's root: its parent hears of it
                status = 1
        os._exit(status)
    until = time.monotonic() + HANGS_S
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > until:
            os.kill(child, 9)
            os.waitpid(child, 0)
            raise AssertionError("a forked child hangs")
        time.sleep(0.002)
    assert ended[1] == 0, f"a forked child ended with {ended[1]}"


def on_a_loop(
    life: Callable[[Random, str, str], Coroutine[Any, Any, None]],
) -> Callable[[Random, str, str], None]:
    def run(rng: Random, bootstrap: str, topic: str) -> None:
        with asyncio.Runner() as runner:
            runner.run(watched(life(rng, bootstrap, topic), within_s=6 * HANGS_S))

    return run


LIVES: dict[str, Callable[[Random, str, str], None]] = {
    "member": on_a_loop(member_life),
    "pair": on_a_loop(pair_life),
    "producer": on_a_loop(producer_life),
    "transactions": on_a_loop(transactions_life),
    "seek": on_a_loop(cancelled_places.seek_life),
    "copy": on_a_loop(cancelled_places.copy_life),
    "admin": on_a_loop(admin_life),
    "loop": loop_that_ends,
    "script": script_life,
}


def live(life: str, seed: int, bootstrap: str) -> None:
    """Live one life; fail with what is wrong."""
    LIVES[life](Random(f"{life} {seed}"), bootstrap, f"{life}-{seed}-{os.getpid()}-{time.monotonic_ns()}")


# Faults that were mended, to be put back one at a time: each must be found.
PLANTS: dict[str, Callable[[], None]] = {
    # close() in a listener's method waits for the member, which waits for the method (A12)
    "listener": lambda: setattr(Consumer, "_caller", None),
    # sys.exit() and Ctrl-C count as cancellation: what was sent is dropped
    "exit": lambda: setattr(BlockingProducer, "__exit__", drop),
    # a forked child waits for a thread that its parent has
    "fork": lambda: setattr(BlockingFace, "_refusal", lambda self, thread: None),
    # a producer closes without having sent what is left
    "hurry": lambda: setattr(Producer, "_end", in_a_hurry),
    # a transaction ends while what was written in it is on its way
    "abort": lambda: setattr(Transactions, "_settled", nothing),
    # a leave is under way when its close is cut short
    "leave": lambda: setattr(Membership, "_leave_soon", nothing),
}


def drop(self: BlockingProducer, kind: type[BaseException] | None, *_: object) -> None:
    at_once = kind is not None and not issubclass(kind, Exception)
    self.close(timeout_ms=0 if at_once else None)


async def in_a_hurry(self: Producer, sender: Any, cluster: Any, timeout_ms: float | None) -> None:
    await sender.stop()
    await cluster.close()


async def nothing(*_: object) -> None:
    """Tell nobody, wait for nobody."""


def main(words: Iterable[str] | None = None) -> int:
    """Live seeds until the time is over; print each that fails, and how to see it again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--lives", nargs="*", choices=LIVES, default=list(LIVES))
    parser.add_argument("--seeds", type=int, default=sys.maxsize, help="so many of each at most")
    parser.add_argument("--plant", choices=PLANTS, help="put a fault back that was mended")
    args = parser.parse_args(None if words is None else list(words))
    if args.plant:
        PLANTS[args.plant]()
    until, failed, lived = time.monotonic() + 60 * args.minutes, 0, 0
    with coterie.testing.broker() as kafka:
        for seed in range(args.first, args.first + args.seeds):
            for life in args.lives:
                if time.monotonic() > until:
                    print(f"{lived} lives, up to seed {seed}: {failed} failed")
                    return int(failed > 0)
                lived += 1
                try:
                    live(life, seed, kafka.bootstrap)
                except Exception as error:  # noqa: BLE001  # the root: it is told, and the next is tried
                    failed += 1
                    again = f"--lives {life} --first {seed} --seeds 1"
                    print(f"{again}: {type(error).__name__}: {error}", flush=True)
                    if args.seeds == 1:
                        traceback.print_exc()
    print(f"{lived} lives: {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
