"""The logs of what one of several brokers leads, in a directory of its own: they follow the metadata."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from uuid import UUID

from coterie.base.ids import TopicPartition
from coterie.broker.cluster.image import Image
from coterie.storage.directory import OfAnotherTopic, OnDisk
from coterie.storage.log.contract import StorageFailed

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.runtime.clock import Clock
    from coterie.broker.runtime.pieces import Pieces, Scheduler
    from coterie.broker.runtime.purgatory import Purgatory
    from coterie.broker.topics.catalog import TopicCatalog
    from coterie.storage.config import LogConfig
    from coterie.storage.directory import Configs, Store
    from coterie.storage.log.partition import PartitionLog
    from coterie.storage.remote.store import LogToOpen

log = logging.getLogger("coterie.broker")

RETRY_MS = 10_000
Opened: TypeAlias = "Callable[[TopicPartition, PartitionLog], None]"


# -- at the start


def configs_of(settings: BrokerSettings, image: Image) -> Configs:
    """Return a function from topic name to LogConfig, by the settings that topics have in the metadata; None
    of topics that are not there, and of those whose settings cannot be read.
    """
    known: dict[UUID, LogConfig | None] = {}

    def config(name: TopicPartition, there: UUID | None) -> LogConfig | None:
        topic = image.topic(name.topic)
        if topic is None:
            return None
        if there not in (None, topic.topic_id):
            raise OfAnotherTopic(f"{name} is of topic {there}, and {name.topic} is {topic.topic_id}")
        if topic.topic_id not in known:
            read, unread = settings.stored_log_config(topic.configs)
            known[topic.topic_id] = None if unread else read
        return known[topic.topic_id]

    return config


class Found(NamedTuple):
    """The logs of a directory that are not served, and why; and those that do not say which topic they are
    of.
    """

    dead: list[OnDisk]
    """Of topics that were deleted."""
    unknown: list[OnDisk]
    """Of topics that nobody knows, or beyond their partitions."""
    elsewhere: list[OnDisk]
    """Led by another broker, which has the log, too."""
    untied: list[tuple[OnDisk, UUID]]
    """With the topic that they are of, by name."""


def sorted_out(found: Iterable[OnDisk], image: Image, deleted: Collection[UUID], broker_id: int) -> Found:
    """Return the logs that a broker has found, by what the metadata say of them."""
    result = Found([], [], [], [])
    for one in found:
        topic = image.topic(one.topic)
        row = topic and image.partition(topic.topic_id, one.partition)
        if one.topic_id in deleted:
            result.dead.append(one)
        elif row is None or one.topic_id not in (None, row.topic_id):
            result.unknown.append(one)
        elif row.leader != broker_id:
            result.elsewhere.append(one)
        elif one.topic_id is None:
            result.untied.append((one, row.topic_id))
    return result


def have_agree(store: Store, image: Image, deleted: Collection[UUID], broker_id: int) -> None:
    """Have a store hold the logs that a broker leads alone: others are deleted, set aside, or left alone.

    Which logs may have gaps the disk is to know now: another broker may have a topic's policy changed at any
    time. Raises OSError, `StorageFailed`.
    """
    store.checkpoints.expect_gaps()
    found = sorted_out(store.partitions(), image, deleted, broker_id)
    for one in found.dead:
        with suppress(StorageFailed):  # tried again at the next start
            store.delete_log(one.topic, one.partition, now_ms=0)
    if found.dead:
        store.make_deletions_certain()
    for one in found.unknown:
        where = store.make_stray(one.topic, one.partition)
        log.warning("%s-%d is of no topic of this cluster; now %s", one.topic, one.partition, where)
    for one in found.elsewhere:
        log.warning("%s-%d is led by another broker, and is left alone", one.topic, one.partition)
        store.release_log(one.topic, one.partition)
    for one, topic_id in found.untied:
        with suppress(OSError):  # tried again at the next start
            store.tie(one.topic, one.partition, topic_id)


# -- while it runs


class Wanted(NamedTuple):
    """A log to open, of which topic, and who hears that it is open."""

    log: LogToOpen
    topic_id: UUID
    opened: Opened


class FileLogs:
    """The logs in a directory, made when this broker comes to lead their partitions, and deleted with their
    topics (`LedLogs`). What is appended to them has landed at once.
    """

    def __init__(
        self,
        store: Store,
        *,
        topics: TopicCatalog,
        scheduler: Scheduler,
        purgatory: Purgatory,
        clock: Clock,
    ) -> None:
        self._store = store
        self._topics = topics
        self._scheduler = scheduler
        self._purgatory = purgatory
        self._clock = clock
        self._going: dict[TopicPartition, None] = {}  # logs that are still to be deleted
        self._missing: dict[TopicPartition, Wanted] = {}  # those that are still to be made

    def begin(self, broker_epoch: int, history: str) -> None:
        """Do nothing: the directory is this broker's alone, in any epoch."""

    def go_on(self, history: str) -> None:
        """Do nothing: there is one file of metadata."""

    def end(self) -> None:
        """Do nothing: nobody else leads what lies here."""

    def open(self, wanted: Iterable[LogToOpen], opened: Opened) -> None:
        """Lead partitions, each in its epoch; logs that are still to be made are made in pieces."""
        missing: list[TopicPartition] = []
        for one in wanted:
            topic = self._topics.get(one.name.topic)
            assert topic is not None, "it was just said to be led"
            here = Wanted(one, topic.topic_id, opened)
            if one.name in self._going:  # that of the last topic of the name
                self._delete(one.name)
            if one.name in self._store.logs:
                self._lead(here)
            else:
                self._missing[one.name] = here
                missing.append(one.name)
        if missing:
            self._scheduler.work(self._make(missing))

    def _make(self, missing: Iterable[TopicPartition]) -> Pieces[None]:
        for name in missing:
            wanted = self._missing.pop(name, None)  # with the settings that it has by now
            topic = self._topics.get(name.topic)
            if wanted is not None and topic is not None and topic.topic_id == wanted.topic_id:
                self._lead(wanted)
            yield

    def _lead(self, wanted: Wanted) -> None:
        (name, _, leader_epoch, config), topic_id, opened = wanted
        try:
            there = self._store.logs.get(name) or self._store.create_log(*name, topic_id, config)
            there.lead(leader_epoch)
        except (StorageFailed, OSError) as error:
            log.error("%s is not served: %s", name, error)
            self._missing[name] = wanted
            self._purgatory.arm(("open", name), self._clock.now_ms() + RETRY_MS, partial(self._again, name))
            return
        there.configure(config)
        opened(name, there)

    def _again(self, name: TopicPartition, _: object, now_ms: int) -> None:
        self._scheduler.work(self._make([name]))

    def drop(self, name: TopicPartition) -> None:
        """Delete a log, soon, one after another: leadership does not move while a broker runs, so its topic
        is gone. Where the process ends before, the next start deletes it.
        """
        if name not in self._store.logs:
            return
        if not self._going:  # not at once: the first piece of work may be done within the call
            self._scheduler.call_soon(lambda: self._scheduler.work(self._delete_all()))
        self._going[name] = None

    def _delete_all(self) -> Pieces[None]:
        while self._going:
            self._delete(next(iter(self._going)))
            yield
        try:
            self._store.make_deletions_certain()
        except StorageFailed as error:
            log.warning("what is left of deleted topics goes when the broker starts next: %s", error)

    def _delete(self, name: TopicPartition) -> None:
        del self._going[name]
        try:
            self._store.delete_log(*name, now_ms=self._clock.now_ms())
        except StorageFailed as error:
            log.warning("what is left of %s goes when the broker starts next: %s", name, error)

    def configure(self, name: TopicPartition, config: LogConfig) -> None:
        """Give a log other settings, or one that is still to be made."""
        there, missing = self._store.logs.get(name), self._missing.get(name)
        if there is not None:
            there.configure(config)
        elif missing is not None:
            self._missing[name] = missing._replace(log=missing.log._replace(config=config))

    def drained(self, done: Callable[[], None], names: Collection[TopicPartition] | None = None) -> None:
        """Call `done`: nothing is in flight."""
        done()

    def expect_repeats(self) -> None:
        """Do nothing: who leads over files is not suspended."""

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call `callback`: nothing is held."""
        callback()
