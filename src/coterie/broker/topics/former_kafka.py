"""The Apache Kafka that had a data directory before us, and may have it again: what it left there.

Its metadata log is read whenever it has grown. What it said of topics the last time is kept in a file of
ours, so that only what Kafka has changed since is taken over the next time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from coterie.base.errors import Corrupt
from coterie.base.ids import uuid_from_text, uuid_text
from coterie.broker.config.topic_settings import synonym_text
from coterie.broker.topics.metadata_file import MetadataFile, UnreadableMetadata
from coterie.storage.cluster_log import CLUSTER_LOG, cluster_files, cluster_values
from coterie.storage.config import EFFECTIVE

if TYPE_CHECKING:
    from coterie.broker.topics.kafka_metadata import KafkaMetadata, KnownTopic
    from coterie.storage.directory import Store
    from coterie.storage.disk import Disk

log = logging.getLogger("coterie.broker")

FILE_NAME = "coterie.takeover.json"


class FormerSettings(NamedTuple):
    """The settings of a topic: its own, and with those that brokers were given while they ran."""

    own: Mapping[str, str]
    whole: Mapping[str, str]

    def changed_since(self, before: FormerSettings) -> dict[str, str]:
        """Return the settings that were set or changed since `before`."""
        return {
            name: text
            for name, text in self.whole.items()
            if before.whole.get(name) != text or before.own.get(name) != self.own.get(name)
        }


class FormerKafka:
    """What is known of it. `image` is None unless its metadata log is new to us and can be read."""

    def __init__(self, file: MetadataFile, node_id: int, files: Mapping[str, int]) -> None:
        self.image: KafkaMetadata | None = None
        self.unreadable = False
        self.seen: dict[UUID, FormerSettings] = {}
        """By topic id the settings of each topic that Kafka knew when its log was read last."""
        self._file = file
        self._node_id = node_id
        self._files = dict(files)
        self._read_files: dict[str, int] = {}

    @classmethod
    def open(cls, store: Store, *, forgotten: bool) -> FormerKafka:
        """Return the FormerKafka of a directory; its metadata log is read again if ours was `forgotten`."""
        former = cls._found(store.disk, store.path, store.meta.node_id)
        if former._files and (forgotten or former._files != former._read_files):
            former._read_log(store)
        return former

    @classmethod
    def was_here(cls, disk: Disk, directory: str) -> bool:
        """Return whether it has had a directory since we looked last: what we know of its logs is of then."""
        former = cls._found(disk, directory, node_id=0)
        return former._files != former._read_files

    @classmethod
    def _found(cls, disk: Disk, directory: str, node_id: int) -> FormerKafka:
        file = MetadataFile(disk, directory, FILE_NAME)
        former = cls(file, node_id, cluster_files(disk, directory))
        if former._files:
            former._load_seen()
        return former

    def has_here(self, topic: KnownTopic) -> bool:
        """Return whether some partition of a topic is to lie on this node."""
        return any(self._node_id in replicas for replicas in topic.replicas.values())

    def settings_of(self, topic: KnownTopic) -> FormerSettings:
        """Return the settings of a topic: its own, and those in force with the broker's."""
        assert self.image is not None
        own = self.image.topic_configs(topic.name)
        brokers = self.image.broker_configs(self._node_id)
        found = {}
        for name in EFFECTIVE if brokers else ():
            text = synonym_text(name, brokers.get)
            if text is not None:
                found[name] = text
        return FormerSettings(own, {**found, **own})

    def save(self) -> None:
        """Note that everything was taken over that the log says now."""
        if self._files == self._read_files:
            return
        if self.image is not None:
            self.seen = {topic.topic_id: self.settings_of(topic) for topic in self.image.by_id.values()}
        topics = [
            {"topic_id": uuid_text(one), "own": dict(former.own), "whole": dict(former.whole)}
            for one, former in self.seen.items()
        ]
        self._file.save({"read": self._files, "topics": topics})
        self._read_files = self._files

    def _load_seen(self) -> None:
        try:
            document: Any = self._file.load() or {"read": {}, "topics": []}
            self.seen = {
                uuid_from_text(one["topic_id"]): FormerSettings(dict(one["own"]), dict(one["whole"]))
                for one in document["topics"]
            }
            self._read_files = {str(name): int(size) for name, size in document["read"].items()}
        except (UnreadableMetadata, Corrupt, KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("%s is passed over, Kafka's log is read anew: %r", self._file.path, error)
            self.seen, self._read_files = {}, {}

    def _read_log(self, store: Store) -> None:
        from coterie.broker.topics.kafka_metadata import image_of  # few directories have ever been Kafka's

        try:
            self.image = image_of(cluster_values(store.disk, store.path, self._files))
        except (Corrupt, OSError) as error:
            self.unreadable = True
            log.error("Apache Kafka's metadata in %s/%s cannot be read: %s", store.path, CLUSTER_LOG, error)
