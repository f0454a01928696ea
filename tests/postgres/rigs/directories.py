"""Data directories with a bit of everything, and whether one is another brought in and written out again."""

from __future__ import annotations

import random
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from coterie.base.ids import TopicPartition
from coterie.broker.cluster.changes import Changed, CreateTopics, NewTopic
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.processes.changes import Static
from coterie.broker.processes.layout import arranged
from coterie.broker.topics.registry import Topics
from coterie.broker.transfer.directory import DirectoryContents, opened_directory
from coterie.broker.transfer.rows import batches_of
from coterie.storage.files import FileStore
from coterie.storage.log.partition import PartitionLog
from unit.storage.store_rig import NOW, a_batch, a_marker, idempotent, keyed

TOPICS = {
    "orders": (2, {"retention.ms": "-1"}),
    "names": (
        1,
        {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "internal.segment.bytes": "900"},
    ),
    "__consumer_offsets": (3, {"cleanup.policy": "compact"}),
    "empty": (1, {}),
}
LARGE = 200_000


class Step(NamedTuple):
    """Something that is done to one of the logs."""

    what: str
    where: int
    size: int = 1


STEPS = ("append", "produce", "commit", "abort", "begin", "lead", "compact", "delete", "large")


class Writer:
    """A directory that steps are done to."""

    def __init__(self, path: Path, seed: int = 0) -> None:
        chance = random.Random(seed)
        settings = BrokerSettings.of({"log.dirs": str(path)})
        self.store = FileStore.open(path, now_ms=NOW, node_id=7, durable=False)
        self.topics = Topics.open(settings, self.store)
        for name, (partitions, configs) in TOPICS.items():
            topic = self.topics.new(
                name,
                replicas=((7,),) * partitions,
                configs=configs,
                topic_id=UUID(int=chance.getrandbits(128)),
            )
            self.topics.announce([topic])
            for number in range(partitions):
                self.store.create_log(name, number, topic.topic_id, settings.log_config(configs))
            self.topics.arrive(name)
        self.logs = [*self.store.logs.values()]
        self._sequences: dict[int, int] = {}
        self._open: set[int] = set()

    def do(self, step: Step) -> None:
        """Do a step. A log has one producer, and it has a transaction open at most."""
        at = step.where % len(self.logs)
        log = self.logs[at]
        match step.what:
            case "append":
                pairs = [(f"k{n % 3}", "v" * (n % 90)) for n in range(step.size)]
                log.append(keyed(*pairs), now_ms=NOW)
            case "large" if log.config.segment_bytes > LARGE:
                log.append(a_batch(*["x" * 50_000] * (1 + step.size % 2), key="k1"), now_ms=NOW)
            case "lead":
                log.lead(log.latest_epoch + step.size)
            case "delete" if not log.config.compacted:
                log.delete_before((log.start_offset + log.last_stable_offset + 1) // 2, NOW)
            case "compact" if log.config.compacted:
                log.compacting.run(NOW)
            case "produce" if at not in self._open:
                self._append_of_producer(at, log, step.size)
            case "begin":
                self._append_of_producer(at, log, step.size, transactional=True)
                self._open.add(at)
            case "commit" | "abort" if at in self._open:
                log.append(a_marker(commit=step.what == "commit", pid=at), now_ms=NOW, origin="coordinator")
                self._open.discard(at)
            case _:
                pass

    def _append_of_producer(self, at: int, log: PartitionLog, count: int, **how: Any) -> None:
        sequence = self._sequences.get(at, 0)
        log.append(idempotent(sequence, count=count, pid=at, key="k2", **how), now_ms=NOW)
        self._sequences[at] = sequence + count

    def close(self) -> None:
        self.topics.next_producer_id()
        self.store.close()


class WriterOfSeveral(Writer):
    """The directory of `--processes`: each broker has some of the partitions."""

    def __init__(self, path: Path, brokers: tuple[int, ...] = (7, 8, 9), seed: int = 0) -> None:
        chance = random.Random(seed)
        settings, by_turns = BrokerSettings.of({}), cycle(brokers)
        topics = [
            NewTopic(
                UUID(int=chance.getrandbits(128)),
                name,
                tuple((next(by_turns),) for _ in range(partitions)),
                configs,
            )
            for name, (partitions, configs) in TOPICS.items()
        ]
        with arranged(str(path), brokers) as metadata:
            assert isinstance(metadata.execute(Static(CreateTopics((*topics,)))), Changed)
            cluster_id = metadata.cluster_id
        self.stores = {
            one: FileStore.open(
                path / str(one), now_ms=NOW, cluster_id=cluster_id, node_id=one, durable=False
            )
            for one in brokers
        }
        self.logs = [
            self.stores[leader].create_log(
                topic.name, number, topic.topic_id, settings.log_config(topic.configs)
            )
            for topic in topics
            for number, (leader,) in enumerate(topic.replicas)
        ]
        self._sequences, self._open = {}, set()

    def close(self) -> None:
        for store in self.stores.values():
            store.close()


class LogFacts(NamedTuple):
    """All that a log is: its offsets, epochs, producers and aborted transactions, and its bytes."""

    start: int
    end: int
    stable: int
    epochs: list[tuple[int, int]]
    producers: dict[int, tuple[int, int]]
    aborted: list[tuple[int, ...]]
    data: bytes


class Facts(NamedTuple):
    """All that a directory is, but for the names of its files."""

    cluster_id: str
    topics: dict[str, tuple[UUID, int, dict[str, str]]]
    next_producer_id: int
    logs: dict[TopicPartition, LogFacts]


def facts_of(path: Path) -> Facts:
    """Return all that a directory is."""
    with opened_directory(str(path)) as contents:
        return _facts_of(contents)


def _facts_of(contents: DirectoryContents) -> Facts:
    return Facts(
        contents.cluster_id,
        {one.name: (one.topic_id, one.partitions, dict(one.configs)) for one in contents.topics},
        contents.next_producer_id,
        {name: _log_facts(log) for name, log in contents.logs.items()},
    )


def _log_facts(log: PartitionLog) -> LogFacts:
    return LogFacts(
        log.start_offset,
        log.end_offset,
        log.last_stable_offset,
        [*log.epochs],
        {one.producer_id: (one.epoch, one.last_sequence) for one in log.active_producers()},
        [tuple(span) for span in log.aborted_spans(log.start_offset, log.end_offset)],
        b"".join(batch for _, batch in batches_of(log)),
    )
