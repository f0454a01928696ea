"""Spark's driver, pretended: applications of one group over the production session and broker.

An application has a checkpoint (what Spark logs before and after a batch), a sink, and one life after
another: it is killed between any two steps or at any time, stopped, fails in a batch, pauses between
triggers, and is started again from its checkpoint. What must hold is looked at with everything that the
broker is asked.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.spark.source import planner
from coterie.spark.source.batch import groups_of
from coterie.spark.source.group.session import GroupSession
from coterie.spark.source.offsets import GroupDocument, write_plain
from coterie.spark.source.options import parse
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import decode_request, read_request_header
from coterie.wire.payloads.consumer_protocol import Assignment

from .virtual import HOST, PORT, Process, VirtualBroker, VirtualLoop, Watcher, run_virtually, running

GROUP = "g"
TROUBLED_S = 40.0
CALM_S = 900.0
"""How long it may take, once nobody dies any more, until all is read and committed."""


@contextmanager
def instead(of: object, name: str, other: Any) -> Iterator[None]:
    """Have something else in a name's place."""
    right = getattr(of, name)
    setattr(of, name, other)
    try:
        yield
    finally:
        setattr(of, name, right)


class Wrong(AssertionError):
    """Something happened that must not happen."""


class Killed(BaseException):
    """The application dies here."""


class BatchFailed(Exception):
    """A task failed as often as Spark lets it: the query ends."""


@dataclass
class Checkpoint:
    """What survives an application: the batches that were logged, and up to which they were finished."""

    offsets: dict[int, dict[str, Any]] = field(default_factory=dict)
    finished: int = -1

    @property
    def logged(self) -> int:
        """The number of the last batch that was logged, -1 if none was."""
        return max(self.offsets, default=-1)


@dataclass
class Sink:
    """Where rows go. One that goes by the batch's number keeps what the first finished run of it gave."""

    by_number: bool
    rows: list[tuple[TopicPartition, int]] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)

    def take(self, number: int, rows: list[tuple[TopicPartition, int]]) -> bool:
        """Take a batch, at once or not at all; return whether its rows are new to it."""
        if self.by_number and number in self.numbers:
            return False
        self.numbers.add(number)
        self.rows += rows
        return True


@dataclass(frozen=True)
class Habits:
    """How an application goes about, drawn from the seed."""

    pause_s: float
    batch_s: float
    slow_s: float
    slow_chance: float
    kill_chance: float
    fail_chance: float
    stop_chance: float
    down_s: float
    available_now: bool
    most: int | None


class Application:
    """One query, and all its lives."""

    def __init__(self, scene: Scene, name: str, options: dict[str, str], habits: Habits, sink: Sink) -> None:
        self.scene, self.name, self.habits, self.sink = scene, name, habits, sink
        self.options = parse(options, streaming=True)
        self.chance = random.Random(scene.chance.getrandbits(32))
        self.checkpoint = Checkpoint()
        self.process = Process(name)
        self.session: GroupSession | None = None
        # What is heard of ends goes by chance of its own: without it the seed's course is what it was.
        self.ears = random.Random(f"{scene.seed} {name}")
        self.deaf_chance = self.ears.choice((0.0, 0.3, 1.0)) if scene.hears else 1.0
        self.said: set[asyncio.Task[None]] = set()
        self.lives = 0

    # -- lives

    async def be(self) -> None:
        """Live again and again; once the scene is calm, die no more."""
        while not self.scene.over:
            self.lives += 1
            self.process = Process(f"{self.name}.{self.lives}")
            token = running.set(self.process)
            life = asyncio.create_task(self.live(), name=self.process.name)
            running.reset(token)
            await self._until_it_ends(life)
            if not self.scene.calm:
                await asyncio.sleep(self.chance.random() * self.habits.down_s)

    async def _until_it_ends(self, life: asyncio.Task[None]) -> None:
        """Kill it at some time, unless it ends before."""
        mean_s = 20.0
        while not life.done():
            left_s = self.chance.expovariate(1 / mean_s)
            await asyncio.wait([life], timeout=left_s)
            if not life.done() and not self.scene.calm and self.chance.random() < self.habits.kill_chance * 5:
                self.scene.tell(f"{self.process.name} is killed at some time")
                self.process.kill()
                life.cancel()
            if self.scene.over:
                life.cancel()
        with suppress(asyncio.CancelledError, Killed):
            await life
        await self.bury()

    async def bury(self) -> None:
        """Take away what a process that ended leaves in this one."""
        self.process.kill()
        session, self.session = self.session, None
        for task in self.said:
            task.cancel()
        await asyncio.gather(*self.said, return_exceptions=True)
        if session is not None:
            if session._membership is not None:
                await session._membership.abandon()
            await session.cluster.close()

    async def step(self) -> None:
        """Between any two steps an application may die."""
        await asyncio.sleep(self.chance.random() * 0.01)
        if not self.scene.calm and self.chance.random() < self.habits.kill_chance:
            self.process.kill()
            raise Killed

    async def live(self) -> None:
        """One life, from the checkpoint on."""
        process = self.process
        self.session = session = GroupSession(self.options, alive=lambda: not process.dead)
        self.scene.tell(f"{process.name} starts")
        try:
            await self.step()
            if self.habits.available_now and not self.scene.calm:
                await session.prepare()
                await self.step()
            if self.checkpoint.logged > self.checkpoint.finished:
                await self.run(self.checkpoint.logged)
            while await self.trigger():
                pass
        except BatchFailed:
            self.scene.tell(f"{process.name} fails")
        else:
            self.scene.tell(f"{process.name} stops")
        with suppress(TimeoutError):
            await session.close()

    async def trigger(self) -> bool:
        """One trigger: plan a batch, log it, run it. Return whether there is to be another."""
        session, checkpoint = self.session, self.checkpoint
        assert session is not None
        await self.step()
        start = checkpoint.offsets.get(checkpoint.finished) or GroupDocument(group=GROUP).to_json()
        planned = await session.plan(GroupDocument.of(start, group=GROUP), self.habits.most)
        await self.step()
        if planned is None:
            if session.targets is not None:
                return False
            await asyncio.sleep(
                self.chance.random()
            )  # Spark would ask again at once: it only costs time here
        else:
            number = checkpoint.finished + 1
            checkpoint.offsets[number] = planned.to_json()
            self.scene.tell(f"{self.process.name} logs {number}: {ranges_of(planned.ranges)}")
            await self.step()
            await self.run(number)
        if not self.scene.calm and self.chance.random() < self.habits.stop_chance:
            return False
        if self.habits.pause_s and session.targets is None:
            # A calm scene hurries: how long the pauses are is not what is looked at then.
            await asyncio.sleep(self.chance.random() * (0.2 if self.scene.calm else self.habits.pause_s))
        return not self.scene.over

    async def run(self, number: int) -> None:
        """Run a batch that is logged: have its tasks planned, let them read, note that it is done."""
        session = self.session
        assert session is not None
        start, end = self.checkpoint.offsets.get(number - 1, {}), self.checkpoint.offsets[number]
        document = GroupDocument.of_batch(start, end, group=GROUP)
        pieces = [piece for group in groups_of(document.ranges, self.options) for piece in group]
        left = await session.left_to_read(document, pieces)
        await session.leaders({piece.at for piece in pieces})
        read = [one for one in left if one is not None]
        self.scene.tell(f"{self.process.name} runs {number}: {ranges_of(read)}")
        await self.step()
        await self.work()
        rows = [(one.at, offset) for one in read for offset in range(one.first, one.until)]
        if self.sink.take(number, rows):
            self.scene.delivered(rows)
        await self.step()
        self.checkpoint.finished = number
        self.scene.tell(f"{self.process.name} has done {number}")
        self.say_ended(document.plan)

    def say_ended(self, plan: int) -> None:
        """Have the session hear that a batch has ended: mostly at once, or late, again, or not at all; and
        of batches that are long over, or of somebody else's.
        """
        if self.ears.random() < self.deaf_chance:
            return
        for _ in range(self.ears.choice((1, 1, 2))):
            self.say_later(plan, self.ears.choice((0.0, 0.01, 0.3, 5.0)))
        if self.ears.random() < 0.3:
            self.say_later(plan + self.ears.choice((-1, -3, 1_000)), self.ears.random() * 5)

    def say_later(self, plan: int, delay_s: float) -> None:
        """Have the session hear of a plan after a while, if it lives then."""
        session, process = self.session, self.process
        assert session is not None

        async def say() -> None:
            await asyncio.sleep(delay_s)
            if not process.dead and self.session is session:
                with suppress(CoterieError):  # who is asked for the next batch raises it again
                    await session.batch_ended(plan)

        self.said.add(task := asyncio.create_task(say()))
        task.add_done_callback(self.said.discard)

    async def work(self) -> None:
        """Let the time of a batch pass, maybe more than the group has patience for."""
        habits = self.habits
        if not self.scene.calm and self.chance.random() < habits.slow_chance:
            await asyncio.sleep(habits.slow_s * (0.5 + self.chance.random()))
        else:
            await asyncio.sleep(habits.batch_s * self.chance.random())
        if not self.scene.calm and self.chance.random() < habits.fail_chance:
            raise BatchFailed


def ranges_of(ranges: Any) -> str:
    """Return ranges in few words."""
    return " ".join(f"{one.topic}-{one.partition}[{one.first},{one.until})" for one in ranges) or "nothing"


class Scene(Watcher):
    """A topic, the applications that share it, and what must hold."""

    def __init__(self, loop: VirtualLoop, seed: int, *, hears: bool) -> None:
        self.loop, self.seed, self.chance = loop, seed, random.Random(seed)
        self.hears = hears
        """Whether applications may hear that a batch has ended before they are asked for the next."""
        self.broker = VirtualBroker(
            loop,
            seed=self.chance.getrandbits(32),
            **{"group.min.session.timeout.ms": "1000", "group.initial.rebalance.delay.ms": "0"},
        )
        self.broker.watcher = self
        self.calm = self.over = False
        self.told: list[str] = []
        self.sunk: dict[TopicPartition, set[int]] = defaultdict(set)
        self.floor: dict[TopicPartition, int] = {}
        """From where on records are owed."""
        self.committed: dict[TopicPartition, int] = {}
        self.proved: dict[TopicPartition, int] = {}
        self.adopted: dict[TopicPartition, set[int]] = defaultdict(set)
        """Where a checkpoint without a group stands: who has it commits that of others' partitions, too."""
        self.applications: list[Application] = []
        self.repeated = 0
        self.wrong: Wrong | None = None

    def tell(self, text: str) -> None:
        """Note what happens, for whoever looks at a seed that failed."""
        self.told.append(f"{self.loop.time() - 1000:9.3f} {text}")

    def fail(self, what: str) -> None:
        """Note the first thing that went wrong."""
        if self.wrong is None:
            self.tell(f"WRONG: {what}")
            self.wrong = Wrong(f"seed {self.seed}: {what}")

    # -- what is looked at

    def delivered(self, rows: list[tuple[TopicPartition, int]]) -> None:
        """Take note that a finished batch has put rows into a sink."""
        for at, offset in rows:
            self.repeated += offset in self.sunk[at]
            self.sunk[at].add(offset)

    def asked(self, process: Process, data: bytes) -> None:
        """See that a member commits nothing that is another's (the coordinator would take it)."""
        frame = data[4:]
        header = read_request_header(frame)
        if header.api_key != ApiKey.OFFSET_COMMIT:
            return
        request = decode_request(header, frame)
        group = self.broker.group(request.group_id)
        if group is None or request.generation_id_or_member_epoch != group.generation:
            return  # refused
        asked = {
            TopicPartition(topic.name, one.partition_index): one.committed_offset
            for topic in request.topics
            for one in topic.partitions
        }
        self.tell(f"{process.name} commits " + " ".join(f"{at}={offset}" for at, offset in asked.items()))
        for member_id, member in group.members.items():
            if member_id != request.member_id and member.assignment:
                others = asked.keys() & set(Assignment.decode(member.assignment).partitions)
                others = {at for at in others if asked[at] not in self.adopted[at]}
                if others and group.state.name == "STABLE":
                    self.fail(f"{process.name} commits {sorted(others)}, which belongs to {member_id}")

    def look(self) -> None:
        """See that no offset goes back, and none goes past what no finished batch has read."""
        for (topic, number), offset in self.broker.committed(GROUP).items():
            at = TopicPartition(topic, number)
            before = self.committed.get(at)
            if before == offset:
                continue
            self.committed[at] = offset
            # Whoever gets a partition in the moment in which a checkpoint is taken along has found no offset
            # of the group's, and commits where it begins: that repeats records, and loses none.
            if before is not None and offset < before and before not in self.adopted[at]:
                self.fail(f"{at} goes back from {before} to {offset}")
            first = self.proved.setdefault(at, self.floor.get(at, offset))
            unread = [one for one in range(first, offset) if one not in self.sunk[at]]
            if unread:
                self.fail(
                    f"{at} is committed up to {offset}, and nobody has read {unread[0]} to {unread[-1]}"
                )
            self.proved[at] = max(first, offset)

    # -- the course of things

    async def play(self, troubled_s: float) -> None:
        """Live through it, and then see that all is read and committed."""
        lives = [asyncio.create_task(one.be(), name=one.name) for one in self.applications]
        writer = asyncio.create_task(self.write(troubled_s))
        try:
            await self._troubles(troubled_s)
            self.calm = True
            self.broker.break_chance = 0.0
            self.tell("calm")
            await writer
            until = self.loop.time() + CALM_S
            while not self.wrong and not self.settled():
                if self.loop.time() > until:
                    self.fail(f"not all is read and committed: {self.behind()}")
                await asyncio.sleep(1)
        finally:
            self.over = True
            writer.cancel()
            await asyncio.gather(*lives, writer, return_exceptions=True)
        for life in lives:
            error = None if life.cancelled() else life.exception()
            if error is not None and self.wrong is None:
                raise error
        if self.wrong is not None:
            raise self.wrong

    async def _troubles(self, troubled_s: float) -> None:
        """Have the network break now and then."""
        until = self.loop.time() + troubled_s
        while self.loop.time() < until and not self.wrong:
            self.broker.break_chance = 0.02 if self.chance.random() < 0.2 else 0.0
            await asyncio.sleep(self.chance.random() * 10)

    async def write(self, troubled_s: float) -> None:
        """Write records now and then, until it is calm."""
        until = self.loop.time() + troubled_s
        while self.loop.time() < until:
            at = self.chance.choice(sorted(self.floor))
            self.broker.write(at.topic, at.partition, self.chance.randint(1, 6))
            await asyncio.sleep(self.chance.expovariate(1 / 2.5))

    def behind(self) -> dict[TopicPartition, tuple[int | None, int]]:
        """Return where the group stands behind the ends."""
        ends = {at: self.broker.end(at.topic, at.partition) for at in self.floor}
        held = {at: self.committed.get(at) for at in ends}
        return {at: (held[at], end) for at, end in ends.items() if held[at] != end}

    def settled(self) -> bool:
        """Return whether all is read and committed."""
        return not self.behind()


STRATEGIES = ("range", "cooperative-sticky", "sticky", "roundrobin", "cooperative-sticky,range")


def scene_of(loop: VirtualLoop, seed: int, *, hears: bool = True, adopts: bool = False) -> Scene:
    """Return the scene of a seed; `adopts` gives the first application a checkpoint without a group."""
    scene = Scene(loop, seed, hears=hears)
    chance = scene.chance
    partitions = chance.randint(1, 5)
    scene.broker.node.topic_manager.create_topic("t", partitions=partitions)
    for number in range(partitions):
        at = TopicPartition("t", number)
        scene.floor[at] = 0
        scene.broker.write("t", number, chance.randint(1, 40))
    strategy = chance.choice(STRATEGIES)
    statics = chance.choice((0.0, 0.0, 0.5, 1.0))
    session_ms = chance.choice((2_000, 4_000, 8_000))
    poll_ms = chance.choice((6_000, 15_000, 60_000))
    scene.broker.slow_s = chance.choice((0.001, 0.005, 0.2))
    for index in range(chance.choice((1, 2, 2, 3, 3))):
        name = "abc"[index]
        options = {
            "kafka.bootstrap.servers": f"{HOST}:{PORT}",
            "subscribe": "t",
            "group.id": GROUP,
            "startingOffsets": "earliest",
            "partition.assignment.strategy": strategy,
            "kafka.session.timeout.ms": str(session_ms),
            "kafka.heartbeat.interval.ms": str(session_ms // 4),
            "kafka.max.poll.interval.ms": str(poll_ms),
            "kafka.request.timeout.ms": "5000",
        }
        if chance.random() < statics:
            options["group.instance.id"] = name
        if chance.random() < 0.4:
            options[chance.choice(("minPartitions", "maxRecordsPerPartition"))] = str(chance.randint(2, 9))
        habits = habits_of(chance, poll_ms)
        scene.applications.append(Application(scene, name, options, habits, Sink(chance.random() < 0.5)))
    if adopts:
        adopt(scene, random.Random(f"{seed} adopts"))
    return scene


def adopt(scene: Scene, chance: random.Random) -> None:
    """Have the first application go on from what it was without a group: a batch that is done, and maybe one
    that was only logged.
    """
    checkpoint = scene.applications[0].checkpoint
    done, logged = {}, {}
    for at in scene.floor:
        done[at] = chance.randint(0, scene.broker.end(at.topic, at.partition))
        logged[at] = chance.randint(done[at], scene.broker.end(at.topic, at.partition))
        scene.sunk[at].update(range(done[at]))
        scene.adopted[at] = {done[at]}
    checkpoint.offsets[0], checkpoint.finished = write_plain(done), 0
    if chance.random() < 0.6:
        checkpoint.offsets[1] = write_plain(logged)


def habits_of(chance: random.Random, poll_ms: int) -> Habits:
    """Return how one application goes about."""
    return Habits(
        pause_s=chance.choice((0.0, 0.0, 2.0, 20.0)),
        batch_s=chance.choice((0.05, 0.5, 3.0)),
        slow_s=poll_ms / 1000 * 1.2,
        slow_chance=chance.choice((0.0, 0.0, 0.1, 0.3)),
        kill_chance=chance.choice((0.01, 0.05, 0.1, 0.15)),
        fail_chance=chance.choice((0.0, 0.05)),
        stop_chance=chance.choice((0.0, 0.05, 0.2)),
        down_s=chance.choice((0.5, 3.0, 12.0)),
        available_now=chance.random() < 0.15,
        most=chance.choice((None, 5, 15, 40)),
    )


def play(seed: int, *, troubled_s: float = TROUBLED_S, hears: bool = True, adopts: bool = False) -> Scene:
    """Live through a seed; raises what is wrong with it."""
    scenes: list[Scene] = []

    async def main(loop: VirtualLoop) -> Scene:
        scenes.append(scene_of(loop, seed, hears=hears, adopts=adopts))
        await scenes[0].play(troubled_s)
        return scenes[0]

    try:
        # The session looks for records less often: most of the time here goes into looking where none are.
        with instead(planner, "POLL_S", 0.05), instead(planner, "POLL_MOST_S", 0.2):
            return run_virtually(main, seed=seed)
    except BaseException as error:
        if scenes:
            error.scene = scenes[0]  # type: ignore[attr-defined]
        raise


def main() -> int:
    """Live through many seeds; print those that fail, and how one of them went with `--tell`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--tell", action="store_true", help="print what happened in each seed that fails")
    parser.add_argument("--adopting", action="store_true", help="begin with a checkpoint without a group")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    failed = lives = repeated = 0
    for seed in range(given.first, given.first + given.seeds):
        try:
            scene = play(seed, adopts=given.adopting)
        except Exception as error:  # noqa: BLE001  # the next seed is looked at all the same
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
            if given.tell and hasattr(error, "scene"):
                print("\n".join(error.scene.told))
            continue
        lives += sum(one.lives for one in scene.applications)
        repeated += scene.repeated
    print(f"{given.seeds} seeds, {lives} lives, {repeated} records read again, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
