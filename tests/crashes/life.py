"""A broker that lives, is killed and lives again, by one seed; after each start it must owe nobody anything.

It is the whole broker but its sockets: topics, their file, logs, housekeeping and compaction. What happens is
drawn from a grammar of what clients, administrators and time do to it; where it is killed, too.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.node import Node
from coterie.broker.runtime.markers import TransactionEnd
from coterie.broker.runtime.pieces import at_once
from coterie.broker.topics.registry import Topics
from coterie.broker.topics.topic import Topic
from coterie.storage.directory import Store
from coterie.storage.log.contract import AppendRefused, StorageFailed
from coterie.storage.log.partition import PartitionLog
from coterie.wire.records.batches import Record, build_batch
from crashes.checks import check_partition, check_topics, demand, read_new, settle
from crashes.clients import CLIENT_STEPS, Clients
from crashes.disk import CrashDisk, Illness, Killed
from crashes.model import IDEMPOTENT_FROM, UNKNOWN_FROM, Batch, Partition, TopicOwed
from crashes.owed_clients import OwedToClients

__all__ = ["Life", "Outcome", "Owed", "run"]

NOW_MS = 1_700_000_000_000
NAMED = {
    "log.dirs": "data",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.min.cleanable.ratio": "0.1",
}
SETTINGS = BrokerSettings.of(NAMED)
FLUSHING = BrokerSettings.of(NAMED | {"log.flush.interval.messages": "1"})
NAMES = ("a", "b", "c")
WRITERS = (-1, -1, IDEMPOTENT_FROM + 1, IDEMPOTENT_FROM + 2, UNKNOWN_FROM, UNKNOWN_FROM + 1)
KEYS = (b"k0", b"k1", b"k2")
SMALL = {"internal.segment.bytes": "440", "index.interval.bytes": "90"}
INTERNAL = SMALL | {"cleanup.policy": "compact", "file.delete.delay.ms": "0"}
KINDS: tuple[dict[str, str], ...] = (
    {"retention.ms": "-1"},
    {"retention.ms": "-1", "flush.messages": "1"},
    {"retention.ms": "20000", "file.delete.delay.ms": "0", "flush.messages": "1"},
    {"retention.bytes": "700", "file.delete.delay.ms": "1000"},
    {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "delete.retention.ms": "50"},
    {
        "cleanup.policy": "compact,delete",
        "min.cleanable.dirty.ratio": "0.1",
        "flush.messages": "1",
        "retention.ms": "-1",
        "file.delete.delay.ms": "0",
    },
)
STRANGERS = {
    "data/__cluster_metadata-0": "00000000000000000000.log",
    "data/backup-60": "notes",
    "data/to-delete": "precious",
    "data/a-03": "00000000000000000000.log",
}
ILLNESSES = (("sync",), ("write",), ("rename",), ("save",), ("open",), ("truncate",), ("write", "truncate"))
COMPACTED = (KINDS[4], KINDS[4], KINDS[4], KINDS[5])
LIVES, STEPS = 5, 22
STARTS = 4
SAVES_MS = 61_000


@dataclass(slots=True)
class Owed:
    """What has been promised, and what may have come of what was not."""

    topics: dict[str, TopicOwed] = field(default_factory=dict)
    maybe_made: set[str] = field(default_factory=set)
    maybe_gone: set[str] = field(default_factory=set)
    maybe_changed: dict[str, list[tuple[dict[str, str], int]]] = field(default_factory=dict)
    busy: bool = False
    """Whether what was under way may move the starts of logs by itself, as retention does."""
    producer_ids: set[int] = field(default_factory=set)
    now_ms: int = NOW_MS
    bent: str = ""
    """What this seed has more of than others: compactions, or flushes that fail."""
    flushes: bool = False
    """Whether everything that is acknowledged survives a loss of power, by the broker's settings."""
    clients: OwedToClients = field(default_factory=OwedToClients)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a seed ended."""

    seed: int
    violation: str
    story: tuple[str, ...]
    kills: int
    effects: int

    @property
    def line(self) -> str:
        """What failed, and how to see it again."""
        return f"seed {self.seed}: {self.violation[:300]} | cd tests && python -m crashes --seed {self.seed}"


class Life:
    """One broker on a disk, from a start to its end. Each step is one thing that is done to it."""

    def __init__(self, disk: Any, random: Random, owed: Owed, tell: Callable[[str], None]) -> None:
        self.disk = disk
        self.random = random
        self.owed = owed
        self.tell = tell
        self.aside: list[Callable[[], None]] = []
        self.soon: list[Callable[[], None]] = []
        self.settled = False
        self.clients = Clients(self)

    # -- start and end

    def start(self) -> None:
        """Start on what the disk holds."""
        settings = FLUSHING if self.owed.flushes else SETTINGS
        self.store = Store(
            self.disk,
            "data",
            now_ms=self.owed.now_ms,
            new_uuid=self._new_uuid,
            configs=Topics.written_configs(settings, self.disk, "data"),
        )
        topics = Topics.open(settings, self.store, new_uuid=self._new_uuid)
        self.node = Node(
            settings=settings,
            topics=topics,
            store=self.store,
            clock=lambda: self.owed.now_ms,
            call_soon=self.soon.append,
            alarm=lambda at_ms: None,
            aside=self._put_aside,
            new_uuid=self._new_uuid,
        )
        self.node.start()
        for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
            if topics.get(name) is None:
                self.node.topic_manager.create_topic(name, partitions=1, configs=INTERNAL)
        self.run_soon()

    def run_soon(self) -> None:
        """Do what was put off until after the requests, and what that puts off."""
        while self.soon:
            self.soon.pop(0)()

    def run_due(self) -> None:
        """Do what time has brought."""
        self.run_soon()
        self.node.purgatory.expire(self.owed.now_ms)
        self.run_soon()

    def _new_uuid(self) -> UUID:
        return UUID(int=self.random.getrandbits(120))

    def _put_aside(
        self,
        work: Callable[..., Any],
        arguments: tuple[Any, ...],
        finish: Callable[[Any], None],
        *,
        computes: bool,
    ) -> None:
        """Keep work for later: first it is done, and later its end is told."""

        def do() -> None:
            try:
                result = work(*arguments)
            except OSError:
                result = None
            self.aside.append(lambda: finish(result))

        self.aside.append(do)

    def settle(self, *, power_lost: bool) -> None:
        """See what is left after a crash, and owe that; raise `Lost` if it is too little."""
        owed, node = self.owed, self.node
        for topic in node.topics.all():
            if topic.name not in owed.topics and topic.name in owed.maybe_made:  # perhaps not even whole
                self._owe_topic(topic)
        for name in sorted(owed.maybe_gone):
            if node.topics.get(name) is None and owed.topics.pop(name, None):
                self.clients.topic_gone(name, sure=False)
        for name, changes in owed.maybe_changed.items():
            topic, mine = node.topics.get(name), owed.topics.get(name)
            if topic is not None and mine is not None and (dict(topic.configs), topic.partitions) in changes:
                mine.configs = dict(topic.configs)
                mine.partitions += [Partition() for _ in range(topic.partitions - len(mine.partitions))]
        owed.maybe_made, owed.maybe_gone, owed.maybe_changed = set(), set(), {}
        check_topics(node, owed.topics)
        for name, topic in owed.topics.items():
            for place in range(len(topic.partitions)):
                where = TopicPartition(name, place)
                settle(where, topic, self.log(where), power_lost=power_lost, busy=owed.busy)
        self.clients.settle_after(power_lost=power_lost)
        owed.busy = False
        self.settled = True

    def _owe_topic(self, topic: Topic) -> None:
        self.clients.topic_made(topic.name)
        self.owed.topics[topic.name] = TopicOwed(
            topic.topic_id,
            dict(topic.configs),
            [Partition() for _ in range(topic.partitions)],
            broker_flushes=self.owed.flushes,
        )

    def check(self) -> None:
        """Raise `Lost` unless all that is owed is there."""
        check_topics(self.node, self.owed.topics)
        self.clients.check()
        for name, topic in self.owed.topics.items():
            for place in range(len(topic.partitions)):
                check_partition(where := TopicPartition(name, place), topic, self.log(where))
        for directory, name in STRANGERS.items():
            demand(
                self.disk.load(f"{directory}/{name}") == b"mine", f"{directory} is another's, and was touched"
            )

    def log(self, where: TopicPartition) -> PartitionLog:
        return self.store.logs[where]

    def stop(self, *, ill: tuple[str, ...] = ()) -> bool:
        """Stop as `serve` does; return whether the disk took it. What is done aside ends before."""
        while self.aside:
            self.aside.pop(0)()
        self.run_soon()
        self._look_at_starts()
        self.disk.illness = Illness(frozenset(ill), self.random.choice((1.0, 0.5)))
        self.owed.busy = False
        clean = True
        try:
            self.node.stop()
        except StorageFailed:
            clean = False
        finally:
            if self.random.random() < 0.5:
                self.disk.illness = Illness()  # it was ill for a moment only
            self.store.close()
        self.disk.illness = Illness()
        if clean:
            for topic in self.owed.topics.values():
                for partition in topic.partitions:
                    partition.certain = partition.end
            self.owed.clients.certain()
        return clean

    # -- steps

    def step(self) -> None:
        """Do one thing, drawn by the seed."""
        steps, weights = STEPS_OF[self.owed.bent]
        step = self.random.choices(steps, weights)[0]
        if step is not Life.create and not self.owed.topics:
            step = Life.create
        self.tell(step(self))
        self.run_soon()
        self.owed.busy = False

    def create(self) -> str:
        free = [name for name in NAMES if name not in self.owed.topics]
        if not free:
            return self.delete()
        name, count = self.random.choice(free), self.random.choice((1, 1, 2))
        kinds = COMPACTED if self.owed.bent in (COMPACTING, RECONFIGURING) else KINDS
        configs = SMALL | self.random.choice(kinds)
        self.owed.maybe_made.add(name)
        self.clients.topic_wanted(name)
        try:
            topic = self.node.topic_manager.create_topic(name, partitions=count, configs=configs)
        except (OSError, StorageFailed) as error:
            return f"create {name}: {error}"
        self.owed.maybe_made.discard(name)
        self._owe_topic(topic)
        return f"create {name} with {count} partitions, {configs}"

    def delete(self) -> str:
        name = self.random.choice(sorted(self.owed.topics))
        self.owed.maybe_gone.add(name)
        told = ""
        try:
            at_once(self.node.topic_manager.delete_topics([name]))
        except (OSError, StorageFailed) as error:
            told = f": {error}"
        if self.node.topics.get(name) is None:
            self.owed.maybe_gone.discard(name)
            del self.owed.topics[name]
            commits = self.log(TopicPartition(OFFSETS_TOPIC, 0))
            well = not self.disk.illness.operations and not commits.flushing.has_failed
            self.clients.topic_gone(name, sure=well)
        return f"delete {name}{told}"

    def grow(self) -> str:
        name = self.random.choice(sorted(self.owed.topics))
        topic = self.owed.topics[name]
        total = len(topic.partitions) + 1
        if total > 3:
            return "no growth"
        self.owed.maybe_changed.setdefault(name, []).append((topic.configs, total))
        try:
            self.node.topic_manager.add_partitions(name, total)
        except (OSError, StorageFailed) as error:
            return f"grow {name}: {error}"
        del self.owed.maybe_changed[name]
        topic.partitions.append(Partition())
        return f"grow {name} to {total}"

    def configure(self) -> str:
        """Give a topic the settings of another kind."""
        name = self.random.choice(sorted(self.owed.topics))
        topic = self.owed.topics[name]
        configs = SMALL | self.random.choice(KINDS)
        topic.was_compacted |= "compact" in topic.configs.get("cleanup.policy", "")
        self.owed.maybe_changed.setdefault(name, []).append((configs, len(topic.partitions)))
        try:
            at_once(self.node.topic_manager.configure_topics({name: configs}))
        except OSError as error:
            return f"configure {name}: {error}"
        del self.owed.maybe_changed[name]
        topic.configs = configs
        return f"configure {name} with {configs}"

    def somewhere(self) -> tuple[TopicPartition, TopicOwed, Partition]:
        name = self.random.choice(sorted(self.owed.topics))
        topic = self.owed.topics[name]
        place = self.random.randrange(len(topic.partitions))
        return TopicPartition(name, place), topic, topic.partitions[place]

    def append(self) -> str:
        """Write a batch: of nobody, of an idempotent producer, or in a transaction."""
        where, topic, owed = self.somewhere()
        producer = self.random.choice(WRITERS)
        epoch, last = owed.known.producers.get(producer, (0, -1)) if producer >= 0 else (-1, -2)
        records = self.records(topic, self.random.choice((1, 1, 2, 3)))
        batch = Batch(0, records, producer, epoch, last + 1)
        return self._write(where, topic, owed, batch, self._bytes_of(batch))

    def records(self, topic: TopicOwed, count: int) -> tuple[Record, ...]:
        """Return new records for a topic."""
        self.owed.now_ms += 1
        values = [self._value(topic) for _ in range(count)]
        return tuple(
            Record(place, self.owed.now_ms, self.random.choice(KEYS), value)
            for place, value in enumerate(values)
        )

    def _value(self, topic: TopicOwed) -> bytes | None:
        if topic.compacted and self.random.random() < 0.15:
            return None
        return b"%d" % self.random.getrandbits(30) + bytes(self.random.choice((0, 30, 90)))

    def _bytes_of(self, batch: Batch) -> bytes:
        return build_batch(
            list(batch.records),
            producer_id=batch.producer,
            producer_epoch=batch.epoch,
            base_sequence=batch.sequence,
            transactional=batch.transactional,
        )

    def _write(
        self, where: TopicPartition, topic: TopicOwed, owed: Partition, batch: Batch, data: bytes
    ) -> str:
        told = f"append {len(batch.records)} records of {batch.producer} to {where}"
        owed.maybe.append(batch)
        try:
            appended = self.node.replica_manager.append(*where, data, now_ms=self.owed.now_ms)
        except AppendRefused as refused:
            demand(refused.code == Code.KAFKA_STORAGE_ERROR, f"{told}: {refused}")
            return f"{told}: refused"
        demand(not appended.duplicate, f"{told}: taken for a repeat")
        self.owe(where, topic, owed, batch, appended.base_offset)
        return f"{told} at {appended.base_offset}"

    def owe(self, where: TopicPartition, topic: TopicOwed, owed: Partition, batch: Batch, base: int) -> None:
        """Owe a batch from now on that was acknowledged."""
        wanted = owed.end
        demand(base == wanted, f"{where}: written at {base}, not at {wanted}")
        owed.batches.append(batch.at(base))
        owed.maybe.clear()
        if topic.flushed:
            owed.certain = owed.end

    def repeat(self) -> str:
        """Send once more what an idempotent producer sent last: it is known."""
        where, _, owed = self.somewhere()
        sent = [one for one in owed.batches if one.producer >= 0 and not one.ends and one.base >= owed.start]
        if not sent:
            return "nothing to repeat"
        last = sent[-1]
        epoch, _ = owed.known.producers[last.producer]
        if epoch != last.epoch:
            return "nothing to repeat"
        again = self.node.replica_manager.append(*where, self._bytes_of(last.at(0)), now_ms=self.owed.now_ms)
        demand(again.duplicate and again.base_offset == last.base, f"{where}: {last} was written twice")
        return f"repeat to {where}"

    def end(self) -> str:
        """End a transaction."""
        where, topic, owed = self.somewhere()
        opened = sorted(one for one in owed.known.opened if one >= UNKNOWN_FROM)
        if not opened:
            return "no transaction to end"
        producer, commit = self.random.choice(opened), self.random.random() < 0.5
        epoch = owed.known.producers[producer][0] + self.random.choice((0, 1))
        batch = Batch(0, (), producer, epoch, ends="commit" if commit else "abort")
        codes: list[Code] = []
        self.owed.now_ms += 1
        owed.maybe.append(batch)
        self.node.marker_writer.write(where, TransactionEnd(producer, epoch, 0, commit), codes.append)
        told = f"{batch.ends} {producer} in {where}: {codes[0].name}"
        if codes == [Code.NONE]:
            self.owe(where, topic, owed, batch, self.log(where).end_offset - 1)
        return told

    def delete_records(self) -> str:
        where, _, owed = self.somewhere()
        log = self.log(where)
        if "delete" not in log.config.cleanup_policy:
            return "nothing may be deleted"
        offset = self.random.randint(log.start_offset, log.end_offset)
        owed.maybe_deleted = max(owed.maybe_deleted, offset)
        self.owed.busy = True
        try:
            self.store.checkpoints.save_starts({where: offset})
            start = log.delete_before(offset, self.owed.now_ms, save=False)
        except (OSError, StorageFailed) as error:
            return f"delete {where} before {offset}: {error}"
        demand(start >= offset, f"{where} starts at {start} after a deletion before {offset}")
        owed.start, owed.deleted = start, max(owed.deleted, offset)
        return f"delete {where} before {offset}"

    def pass_time(self) -> str:
        """Let time pass, and housekeeping come round."""
        self.owed.now_ms += self.random.choice((10, 1_000, 1_000, 30_000, SAVES_MS))
        self.owed.busy = True
        self.clients.grow_old()
        self.run_due()
        self.node.cleaner.tick(self.owed.now_ms)
        self._look_at_starts()
        self.read_markers()
        return f"housekeeping at {self.owed.now_ms - NOW_MS}"

    def go_on_aside(self) -> str:
        """Go on with something that is done beside: begin it, or tell its end."""
        if not self.aside:
            return self.pass_time()
        self.owed.busy = True
        self.aside.pop(self.random.randrange(len(self.aside)))()
        self._look_at_starts()
        return "something aside"

    def read_markers(self) -> None:
        """Owe the markers that the transaction coordinator has written."""
        for name, topic in self.owed.topics.items():
            for place, partition in enumerate(topic.partitions):
                log = self.log(TopicPartition(name, place))
                if log.end_offset > partition.end:
                    refused, partition.maybe = partition.maybe, []
                    read_new(partition, log)
                    partition.maybe = refused
                    if topic.flushed:
                        partition.certain = partition.end

    def _look_at_starts(self) -> None:
        for name, topic in self.owed.topics.items():
            for place, partition in enumerate(topic.partitions):
                partition.start = max(partition.start, self.log(TopicPartition(name, place)).start_offset)

    def reserve(self) -> str:
        try:
            producer_id = self.node.topics.next_producer_id()
        except OSError as error:
            return f"no producer id: {error}"
        demand(producer_id not in self.owed.producer_ids, f"producer id {producer_id} was given out twice")
        self.owed.producer_ids.add(producer_id)
        return f"producer id {producer_id}"

    def speak(self) -> str:
        """Have a group or a transactional producer do something."""
        steps, weights = zip(*CLIENT_STEPS, strict=True)
        return self.random.choices(steps, weights)[0](self.clients)

    def look(self) -> str:
        if self.disk.illness.operations:
            return "nobody looks while the disk is ill"
        self.check()
        return "look"

    def illness(self) -> tuple[str, ...]:
        """Return what a disk may refuse."""
        return ILL_BY.get(self.owed.bent) or self.random.choice(ILLNESSES)

    def fall_ill(self) -> str:
        """Have the disk refuse something from now on, or be well again."""
        was_ill = self.disk.illness.operations
        chosen = () if was_ill else self.illness()
        self.disk.illness = Illness(frozenset(chosen), self.random.choice((1.0, 0.4)))
        return f"the disk refuses {chosen}" if chosen else "the disk is well"


STEPS_WEIGHED: tuple[tuple[Callable[[Life], str], int], ...] = (
    (Life.speak, 30),
    (Life.append, 40),
    (Life.end, 12),
    (Life.pass_time, 10),
    (Life.go_on_aside, 12),
    (Life.delete_records, 6),
    (Life.delete, 6),
    (Life.create, 8),
    (Life.grow, 2),
    (Life.repeat, 4),
    (Life.reserve, 1),
    (Life.look, 3),
    (Life.fall_ill, 5),
)
COMPACTING, FLUSHING_BADLY, RECONFIGURING = "compactions", "flushes that fail", "settings that change"
# Those that were remembered before there were such seeds are none of them.
RECONFIGURING_EVERY, RECONFIGURING_FROM = 13, 3
BENT: dict[str, dict[Callable[[Life], str], float]] = {
    "": {},
    COMPACTING: {
        Life.go_on_aside: 4,
        Life.pass_time: 2,
        Life.end: 2,
        Life.speak: 0.3,
        Life.delete: 0.2,
        Life.delete_records: 0.3,
        Life.fall_ill: 0.3,
    },
    FLUSHING_BADLY: {Life.go_on_aside: 2, Life.fall_ill: 3, Life.speak: 0.3, Life.delete: 0.3},
}
STEPS_OF = {
    bent: ([step for step, _ in STEPS_WEIGHED], [w * more.get(step, 1) for step, w in STEPS_WEIGHED])
    for bent, more in BENT.items()
}
STEPS_OF[RECONFIGURING] = ([*STEPS_OF[COMPACTING][0], Life.configure], [*STEPS_OF[COMPACTING][1], 30])
ILL_BY = {FLUSHING_BADLY: ("sync",), RECONFIGURING: ("save",)}


def run(seed: int, *, lives: int = LIVES) -> Outcome:
    """Live through a seed; the outcome's violation is empty if every promise was kept."""
    lived = Lives(seed)
    violation = ""
    try:
        for number in range(lives):
            lived.live(last=number + 1 == lives)
    except Exception as failed:  # noqa: BLE001  the root of a seed: whatever comes up is what it shows
        violation = f"{type(failed).__name__}: {failed}"
        lived.story.append("".join(traceback.format_exception(failed)[-4:]))
    return Outcome(seed, violation, tuple(lived.story), lived.kills, lived.disk.countdown.effects)


class Lives:
    """The lives of one seed, one after the other on one disk."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = CrashDisk(seed)
        flushes = self.random.random() < 0.3
        bent = self.random.choice(("", "", COMPACTING, FLUSHING_BADLY))
        if seed % RECONFIGURING_EVERY == RECONFIGURING_FROM:
            bent = RECONFIGURING
        self.owed = Owed(flushes=flushes and bent != COMPACTING, bent=bent)
        self.story: list[str] = []
        self.kills = 0
        self._power_lost = False
        for directory, name in STRANGERS.items():
            self.disk.make_directory(directory)
            self.disk.save(f"{directory}/{name}", b"mine", sync=True)
        self.disk.sync_directory("data")

    def live(self, *, last: bool) -> None:
        """Live one life, from its start, which may take several, to its end."""
        life = self._start(last=last)
        self.story.append("-- started")
        try:
            life.settle(power_lost=self._power_lost)
            life.check()
            self._live(life)
        except Killed:
            self.story.append("-- killed")
        self._end(life, 0.4)

    def _live(self, life: Life) -> None:
        for _ in range(self.random.randint(3, STEPS)):
            life.step()
        if self.random.random() < 0.5:
            ill = life.illness() if self.random.random() < 0.5 else ()
            clean = life.stop(ill=ill)
            self.story.append(f"-- stopped, ill: {ill}, clean: {clean}")

    def _start(self, *, last: bool) -> Life:
        for attempt in range(STARTS):
            self.disk.kill_after(-1 if last or attempt + 1 == STARTS else self._effects())
            life = Life(self.disk, self.random, self.owed, self.story.append)
            try:
                life.start()
            except Killed:
                self.story.append("-- killed at the start")
                self._end(life, 0.5)
            else:
                return life
        raise AssertionError("the last start cannot be killed")

    def _end(self, life: Life, chance: float) -> None:
        self.kills += 1
        cut = self.random.random() < chance
        self._power_lost = cut or (self._power_lost and not life.settled)
        if cut:
            self.story.append("-- power lost")
        self.disk.revive(power_lost=cut)

    def _effects(self) -> int:
        """Return how many effects a life gets to see: few and many alike."""
        return int(3 * 1.9 ** self.random.uniform(0, 8))
