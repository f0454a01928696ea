"""An Apache Kafka, as far as its data directory shows, that lives as a seed says, stops, and comes back.

The logs are written by our own store, the metadata log here. What Kafka does to epochs, and to directories
that its metadata does not know, is as Apache Kafka 4.3.1 was seen to do it (interop/takeover).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from coterie.base.ids import TopicPartition
from coterie.storage.cluster_log import CLUSTER_LOG
from coterie.storage.config import LogConfig
from coterie.storage.log.partition import PartitionLog
from coterie.storage.memory import MemoryDisk, MemoryStore
from coterie.wire.api.writers import writer_of
from coterie.wire.payloads import cluster_metadata as records
from coterie.wire.records.batches import Record, build_batch, build_marker, scan
from coterie.wire.varints import uvarint

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
NODE = 1
# Of settings that Kafka's topics have of their own; none of them lets go of anything within a thousand days.
SETTINGS = (
    {},
    {"retention.ms": "-1"},
    {"retention.ms": str(2000 * DAY_MS), "segment.ms": "1"},
    {"cleanup.policy": "compact", "min.compaction.lag.ms": str(2000 * DAY_MS)},
    {"cleanup.policy": "delete", "max.message.bytes": "2000000"},
    {"unheard.of": "1"},  # of a later Kafka
)
OF_BROKERS = {
    "retention.ms": ("log.retention.minutes", "-1"),
    "max.message.bytes": ("message.max.bytes", "3000000"),
}
CHANGES = (("retention.ms", "-1"), ("retention.ms", str(3000 * DAY_MS)), ("segment.bytes", "1048576"))
SMALL = LogConfig.of({"segment.bytes": 300, "retention.ms": -1, "cleanup.policy": "compact"})


def encoded(kind: int, schema: records.Declared, **fields: Any) -> bytes:
    """Return the value of a metadata record in the newest version."""
    cls = schema.at(schema.most)
    out = [uvarint(1), uvarint(kind), uvarint(schema.most)]
    writer_of(cls)(out, cls(**fields))
    return b"".join(out)


class Position(NamedTuple):
    """Where a consumer goes on, the epoch of the batch before, and the last that it was told of."""

    offset: int
    epoch: int
    told: int


@dataclass
class Lived:
    """A topic of Kafka's as its clients know it."""

    name: str
    topic_id: UUID
    configs: dict[str, str]
    epochs: list[int]
    values: list[list[bytes]]
    """What was written to each partition and is not of an aborted transaction."""
    positions: list[list[Position]] = field(default_factory=list)
    """Where consumers of each partition stand."""
    before: dict[str, str] = field(default_factory=dict)
    """Its settings when Kafka stopped last."""
    here: dict[str, str] = field(default_factory=dict)
    """Its settings when our broker stopped last."""


def position_at_end(log: PartitionLog, told: int) -> Position:
    """Return where a consumer stands that has read everything."""
    last = [header for _, header in scan(log.read(log.end_offset - 1, max_bytes=1))][-1]
    return Position(log.end_offset, last.leader_epoch, told)


class KafkaLife:
    """One broker, its controller and its clients."""

    def __init__(self, disk: MemoryDisk, random: Random) -> None:
        self.disk, self.random = disk, random
        self.topics: dict[str, Lived] = {}
        self.missing: list[Lived] = []  # deleted by whoever had the directory meanwhile
        self.brokers: dict[str, str] = {}
        self.next_producer_id = 0
        self.made = 0
        self._pending: list[bytes] = []
        self._offset = 0  # of the metadata log
        self._segment = 0
        disk.make_directory("data")
        self.store = MemoryStore.open(
            now_ms=NOW_MS, disk=disk, configs=lambda *_: SMALL, cluster_id="c", node_id=NODE
        )
        disk.make_directory(f"data/{CLUSTER_LOG}")
        self._set_brokers()
        self._flush()

    # -- lives

    def start(self) -> None:
        """Lead everything in the next epoch; set aside what the metadata does not know."""
        self.store = MemoryStore.open(now_ms=NOW_MS, disk=self.disk, configs=lambda *_: SMALL)
        self.topics |= {one.name: one for one in self.missing}
        self.missing.clear()
        for topic, partition, topic_id in self.store.partitions():
            known = self.topics.get(topic)
            if known is None or known.topic_id != topic_id or partition >= len(known.epochs):
                self.store.make_stray(topic, partition)
        for known in self.topics.values():
            self._next_epochs(known, leader=NODE)
            for partition, epoch in enumerate(known.epochs):
                log = self.store.logs.get(TopicPartition(known.name, partition))
                if log is None:
                    log = self.store.create_log(known.name, partition, known.topic_id, SMALL)
                log.lead(epoch)
        self._flush()

    def live(self, steps: int) -> None:
        """Do so many things."""
        acts = (self._create, self._write, self._write, self._consume, self._set, self._transaction)
        rare = (self._grow, self._delete, self._set_brokers, self._restart)
        for _ in range(steps):
            act = self.random.choice(rare if self.random.random() < 0.2 else acts)
            if act in (self._create, self._set_brokers, self._restart) or self.topics:
                act()
            if self.random.random() < 0.3:
                self._flush()

    def stop(self) -> MemoryDisk:
        """Stop in order, leaving no leader, or by a crash; return the disk."""
        if self.random.random() < 0.5:
            for known in self.topics.values():
                self._next_epochs(known, leader=-1)
                self._tell(known)
            self._flush()
            self.store.close()
            return self.disk
        self._flush()
        return self.store.crash()

    def log(self, topic: str, partition: int) -> PartitionLog:
        return self.store.logs[TopicPartition(topic, partition)]

    # -- what happens

    def _restart(self) -> None:
        self.stop()
        self.start()

    def _create(self) -> None:
        name = self.random.choice("abcdef")
        if name in self.topics:
            return
        self.made += 1
        made = Lived(name, UUID(int=self.random.getrandbits(120)), {}, [], [])
        self.topics[name] = made
        self._say(2, records.TOPIC, name=name, topic_id=made.topic_id)
        for key, text in self.random.choice(SETTINGS).items():
            self._configure(made, key, text)
        for _ in range(self.random.randint(1, 3)):
            self._add_partition(made)

    def _add_partition(self, topic: Lived) -> None:
        number = len(topic.epochs)
        topic.epochs.append(0)
        topic.values.append([])
        topic.positions.append([])
        self._pending.append(self._partition_record(topic, number))
        self.store.create_log(topic.name, number, topic.topic_id, SMALL)

    def _grow(self) -> None:
        self._add_partition(self._any())

    def _delete(self) -> None:
        gone = self.topics.pop(self._any().name)
        self._say(9, records.REMOVE_TOPIC, topic_id=gone.topic_id)
        for partition in range(len(gone.epochs)):
            self.store.delete_log(gone.name, partition, now_ms=NOW_MS)

    def _set(self) -> None:
        topic, (key, text) = self._any(), self.random.choice(CHANGES)
        self._configure(topic, key, text if self.random.random() < 0.7 else None)

    def _configure(self, topic: Lived, key: str, text: str | None) -> None:
        topic.configs.pop(key, None)
        if text is not None:
            topic.configs[key] = text
        self._say(4, records.CONFIG, resource_type=2, resource_name=topic.name, name=key, value=text)

    def _set_brokers(self) -> None:
        key, text = self.random.choice(list(OF_BROKERS.values()))
        self.brokers[key] = text
        self._say(4, records.CONFIG, resource_type=4, resource_name="", name=key, value=text)

    def _write(self) -> None:
        topic = self._any()
        partition = self.random.randrange(len(topic.epochs))
        log = self.log(topic.name, partition)
        age_ms = self.random.choice((0, 1, 10, 400)) * DAY_MS
        if self.random.random() < 0.1:
            log._state.end_offset += 3  # as if there had been records that a compaction took out
        for _ in range(self.random.randint(1, 4)):
            value = b"%d" % self.random.getrandbits(40)
            record = Record(0, NOW_MS - age_ms, self.random.choice((b"k", b"l")), value)
            log.append(build_batch([record]), now_ms=NOW_MS, leader_epoch=topic.epochs[partition])
            topic.values[partition].append(value)

    def _transaction(self) -> None:
        """One batch, with a marker behind it that commits or aborts it."""
        topic = self._any()
        partition = self.random.randrange(len(topic.epochs))
        log, epoch, commit = (
            self.log(topic.name, partition),
            topic.epochs[partition],
            self.random.random() < 0.5,
        )
        if self.next_producer_id % 1000 == 0:
            self._say(
                15,
                records.PRODUCER_IDS,
                broker_id=1,
                broker_epoch=1,
                next_producer_id=self.next_producer_id + 1000,
            )
        producer_id, self.next_producer_id = self.next_producer_id, self.next_producer_id + 1
        value = b"t%d" % self.random.getrandbits(40)
        named = {"producer_id": producer_id, "producer_epoch": 0}
        batch = build_batch([Record(0, NOW_MS, b"k", value)], base_sequence=0, transactional=True, **named)
        log.append(batch, now_ms=NOW_MS, leader_epoch=epoch, origin="coordinator")
        marker = build_marker(commit=commit, coordinator_epoch=0, timestamp=NOW_MS, **named)
        log.append(marker, now_ms=NOW_MS, leader_epoch=epoch, origin="coordinator")
        if commit:
            topic.values[partition].append(value)

    def _consume(self) -> None:
        """Have a consumer read some partition to its end, and stand there."""
        topic = self._any()
        partition = self.random.randrange(len(topic.epochs))
        log = self.log(topic.name, partition)
        if log.end_offset:
            topic.positions[partition].append(position_at_end(log, topic.epochs[partition]))

    def _tell(self, topic: Lived) -> None:
        """Have half of the consumers see the latest epoch, by a Metadata that names no leader."""
        for places, epoch in zip(topic.positions, topic.epochs, strict=True):
            places[::2] = [place._replace(told=epoch) for place in places[::2]]

    # -- the metadata log

    def _next_epochs(self, topic: Lived, *, leader: int) -> None:
        for partition in range(len(topic.epochs)):
            topic.epochs[partition] += 1
            self._say(
                5, records.PARTITION_CHANGE, partition_id=partition, topic_id=topic.topic_id, leader=leader
            )

    def _say(self, kind: int, schema: records.Declared, **fields: Any) -> None:
        self._pending.append(encoded(kind, schema, **fields))

    def _flush(self) -> None:
        """Write what is pending, whole or as a transaction, among things that are not about topics."""
        said, self._pending = self._pending, []
        if not said:
            return
        chance = self.random.random()
        if chance < 0.2:
            said = [uvarint(1) + uvarint(23) + b"\0\0", *said, uvarint(1) + uvarint(24) + b"\0\0"]
        elif chance < 0.3:  # what was begun and given up never was
            lie = encoded(
                4, records.CONFIG, resource_type=2, resource_name="a", name="retention.ms", value="1"
            )
            said += [uvarint(1) + uvarint(23) + b"\0\0", lie, uvarint(1) + uvarint(25) + b"\0\0"]
        said.insert(0, uvarint(1) + uvarint(20) + b"\0\0")  # NoOpRecord
        if self.random.random() < 0.2:
            self._segment = self._offset
        self._append(f"data/{CLUSTER_LOG}/{self._segment:020d}.log", said, self._offset)
        self._offset += len(said)
        if self.random.random() < 0.2:
            self._snapshot()

    def _append(self, path: str, values: list[bytes], offset: int) -> None:
        batch = build_batch(
            [Record(offset + at, NOW_MS, None, one) for at, one in enumerate(values)], base_offset=offset
        )
        file = self.disk.open(path, create=True)
        file.write([batch], file.size())
        file.close()

    def _snapshot(self) -> None:
        """Write down how things stand, and now and then drop the log up to there."""
        values = [
            encoded(15, records.PRODUCER_IDS, broker_id=1, broker_epoch=1, next_producer_id=self._taken_ids())
        ]
        for key, text in self.brokers.items():
            values.append(encoded(4, records.CONFIG, resource_type=4, resource_name="", name=key, value=text))
        for topic in self.topics.values():
            values.append(encoded(2, records.TOPIC, name=topic.name, topic_id=topic.topic_id))
            values += [self._partition_record(topic, number) for number in range(len(topic.epochs))]
            for key, text in topic.configs.items():
                named = {"resource_type": 2, "resource_name": topic.name, "name": key}
                values.append(encoded(4, records.CONFIG, value=text, **named))
        self._append(f"data/{CLUSTER_LOG}/{self._offset:020d}-0000000001.checkpoint", values, 0)
        if self.random.random() < 0.5:
            for name in list(self.disk.files(f"data/{CLUSTER_LOG}")):
                if name.endswith(".log"):
                    self.disk.remove(f"data/{CLUSTER_LOG}/{name}")
            self._segment = self._offset

    def _taken_ids(self) -> int:
        return -(-self.next_producer_id // 1000) * 1000

    def _partition_record(self, topic: Lived, number: int) -> bytes:
        alone = dict.fromkeys(("replicas", "isr"), (NODE,)) | dict.fromkeys(
            ("removing_replicas", "adding_replicas"), ()
        )
        return encoded(
            3,
            records.PARTITION,
            partition_id=number,
            topic_id=topic.topic_id,
            leader=NODE,
            leader_epoch=topic.epochs[number],
            partition_epoch=0,
            directories=(UUID(int=7),),
            **alone,
        )

    def _any(self) -> Lived:
        return self.random.choice(list(self.topics.values()))
