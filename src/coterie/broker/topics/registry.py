"""Which topics there are, their ids and settings, the cluster's id, and which producer ids are given out.

Every change is on disk before its method returns, and before a log is made or deleted: after `kill -9` the
logs are made to follow what stands here.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

from coterie.base.errors import Corrupt
from coterie.base.ids import PRODUCER_ID_BLOCK, TopicPartition, uuid_from_text, uuid_text
from coterie.base.topic_names import RESERVED_TOPIC, metric_name, name_problem
from coterie.broker.topics.agreement import Agreement
from coterie.broker.topics.catalog import TopicCatalog
from coterie.broker.topics.former_kafka import FormerKafka
from coterie.broker.topics.metadata_file import MetadataFile, UnreadableMetadata
from coterie.broker.topics.topic import Topic
from coterie.storage.directory import MOST_PARTITIONS, OfAnotherTopic
from coterie.storage.log.contract import StorageFailed

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.placement.model import Replicas
    from coterie.broker.topics.kafka_metadata import KafkaMetadata
    from coterie.storage.config import LogConfig
    from coterie.storage.directory import Configs, OnDisk, Store
    from coterie.storage.disk import Disk

log = logging.getLogger("coterie.broker")

FILE_NAME = "coterie.metadata.json"
LAST_PRODUCER_ID = 2**63 - 1
PRODUCER_IDS_OF_OTHERS = 1 << 40
"""A multiple of this many ids is left to the broker that had the directory before: it may have it again.
A thousand a second last for more than thirty years."""
UNTOUCHED_PRODUCER_IDS = 1 << 62
DELETED_REMEMBERED_MAX = 1000
UNREAD = (
    "topic %s has settings that cannot be read, so nothing of it is deleted or compacted until they are set "
    "anew or deleted (kafka-configs --alter): %s"
)


def new_id(draw: Callable[[], UUID] = uuid4) -> UUID:
    """Return an id for a topic or a cluster. As with Kafka's, its text never starts with a dash."""
    fresh = draw()
    while uuid_text(fresh).startswith("-"):
        fresh = draw()
    return fresh


class Topics(TopicCatalog):
    """The registry. Lookups are by name or id; changes go through the methods and reach the disk."""

    learns_from_logs: Final = True

    def __init__(
        self, file: MetadataFile, *, node_id: int, cluster_id: str, new_uuid: Callable[[], UUID] = new_id
    ) -> None:
        self.cluster_id = cluster_id
        self._file = file
        self._new_uuid = new_uuid
        self._replicas: tuple[Replicas] = ((node_id,),)
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._by_metric_name: dict[str, str] = {}
        # About to be written down; written down, and found by nobody until their logs are there; and gone,
        # while their logs still are.
        self._claimed: dict[str, UUID] = {}
        self._coming: dict[str, Topic] = {}
        self._going: dict[str, UUID] = {}
        self._texts: dict[UUID, tuple[Topic, str]] = {}
        # Topics whose logs may still lie on disk: without them a crash amid a deletion would bring one back.
        # By their names, too: a loss of power may take the id from a log.
        self._deleted: dict[UUID, str] = {}
        # By partition of `__consumer_offsets`, the topics for which what groups have committed there is of
        # earlier ones of the name, and nobody could look: it was loading, or could not be loaded.
        self._outdated: dict[int, dict[UUID, str]] = {}
        self._next_producer_id = 0
        self._reserved_below = 0

    @classmethod
    def open(cls, settings: BrokerSettings, store: Store, *, new_uuid: Callable[[], UUID] = new_id) -> Topics:
        """Return the topics of a data directory, after they and the logs found there are made to agree."""
        file = MetadataFile(store.disk, store.path, FILE_NAME)
        topics = cls(file, node_id=settings.node_id, cluster_id=store.meta.cluster_id, new_uuid=new_uuid)
        written = file.load()
        if written is not None:
            topics._read(written)
        former = FormerKafka.open(store, forgotten=written is None)
        topics._agree(store, former, settings)
        topics._recall_strays(store)
        topics._clear_of_producer_ids(store, former, forgotten=written is None)
        if not topics._is_written(written):
            topics._save()
        if former.image is not None:
            topics._go_on_in_epochs(store, former.image)
        former.save()
        for topic in topics.all():
            config, unread = settings.stored_log_config(topic.configs)
            if unread:
                log.error(UNREAD, topic.name, "; ".join(unread))
            _configure_logs(topic, store, config)
        return topics

    @classmethod
    def written_configs(cls, settings: BrokerSettings, disk: Disk, directory: str) -> Configs:
        """Return a function from topic name to LogConfig, by the topic settings that a directory has stored.

        The file is read when the first log asks: by then the directory is ours. Logs of topics that nobody
        wrote down are not known about, nor those whose settings cannot be read, nor any after Apache Kafka
        has had them again: the answer is None.
        """

        @cache
        def written() -> dict[str, tuple[str, dict[str, str]]]:
            if FormerKafka.was_here(disk, directory):
                return {}
            document = MetadataFile(disk, directory, FILE_NAME).load()
            try:
                topics = [] if document is None else document["topics"]
                return {str(one["name"]): (str(one["topic_id"]), dict(one["configs"])) for one in topics}
            except (KeyError, TypeError, ValueError):
                return {}  # `open` is about to say what is wrong with it

        @cache
        def config_of(topic: str) -> LogConfig | None:
            known, unread = settings.stored_log_config(written()[topic][1])
            return None if unread else known

        def config(name: TopicPartition, there: UUID | None) -> LogConfig | None:
            if name.topic not in written():
                return None
            topic_id, _ = written()[name.topic]
            if there is not None and uuid_text(there) != topic_id:
                raise OfAnotherTopic(f"{name} is of {uuid_text(there)}, and {name.topic} is {topic_id}")
            return config_of(name.topic)

        return config

    # -- lookups

    def get(self, name: str) -> Topic | None:
        """Return the topic of this name."""
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        """Return the topic of this id."""
        return self._by_id.get(topic_id)

    def all(self) -> list[Topic]:
        """Return every topic, sorted by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def is_taken(self, name: str) -> bool:
        """Return whether there is a topic of this name, or will be, or has just been."""
        return any(name in names for names in (self._by_name, self._claimed, self._coming, self._going))

    def __len__(self) -> int:
        return len(self._by_name)

    def name_like(self, name: str) -> str | None:
        """Return the name that a topic has, or will have, which is this one but for dots and underscores."""
        return self._by_metric_name.get(metric_name(name))

    # -- changes

    def new_topic_id(self) -> UUID:
        """Return the id of a topic that is to be entered."""
        return self._new_uuid()

    def claim(self, topics: Iterable[Topic]) -> None:
        """Let nobody else have the names of topics, valid and free, until they are announced or given up."""
        for topic in topics:
            self._claimed[topic.name] = topic.topic_id
            self._by_metric_name[metric_name(topic.name)] = topic.name

    def give_up(self, topics: Iterable[Topic]) -> None:
        """Let others have the names that were claimed for topics which have not been announced."""
        for topic in topics:
            if self._claimed.get(topic.name) == topic.topic_id:  # not another's of the name by now
                del self._claimed[topic.name]
                del self._by_metric_name[metric_name(topic.name)]

    def announce(self, topics: Iterable[Topic], *, outdated_in: Iterable[int] = ()) -> None:
        """Write down topics whose names are claimed. Nobody finds one before it has arrived.

        What is committed for them in the partitions `outdated_in` of the groups' topic is of earlier ones.
        """
        coming = {topic.name: topic for topic in topics}
        self._coming |= coming
        for partition in outdated_in:
            outdated = self._outdated.setdefault(partition, {})
            outdated |= {topic.topic_id: topic.name for topic in coming.values()}
        try:
            self._save()
        except OSError:
            for name in coming:
                self._owe_no_more(self._coming.pop(name))
            raise
        for name in coming:
            self._claimed.pop(name, None)

    def arrive(self, name: str) -> Topic:
        """Have a topic that was announced be found, and return it: its logs are there."""
        topic = self._coming.pop(name)
        self._enter(topic)
        return topic

    def call_off(self, names: Iterable[str]) -> None:
        """Forget topics that were announced: their logs could not be made.

        If even this cannot be written down, it is at the next change; a crash until then makes them after
        all.
        """
        for name in names:
            topic = self._coming.pop(name)
            self._remember(topic)
            self._owe_no_more(topic)
            del self._by_metric_name[metric_name(name)]
        self._forget_oldest_deleted()
        with contextlib.suppress(OSError):
            self._save()

    def change(self, changed: Collection[Topic]) -> None:
        """Put topics in the place of those of the same names; if they cannot be written nothing changes."""
        before = [self._by_name[topic.name] for topic in changed]
        for topic in changed:
            self._enter(topic)
        try:
            self._save()
        except OSError:
            for topic in before:
                self._enter(topic)
            raise

    def put_back(self, before: Topic) -> None:
        """Have a topic be as it was, because what should follow its change failed; else as `call_off`."""
        self._enter(before)
        with contextlib.suppress(OSError):
            self._save()

    def delete(self, names: Collection[str]) -> list[Topic]:
        """Forget topics and return what they were. Their names are free when their logs have `gone`."""
        topics = [self._by_name[name] for name in names]
        outdated = {partition: dict(outdated_ids) for partition, outdated_ids in self._outdated.items()}
        for topic in topics:
            self._forget(topic)
            self._remember(topic)
            self._owe_no_more(topic)  # the next of the name has this written down anew
            self._going[topic.name] = topic.topic_id
        self._forget_oldest_deleted()
        try:
            self._save()
        except OSError:
            for topic in topics:
                del self._going[topic.name]
                self._deleted.pop(topic.topic_id, None)
                self._enter(topic)
            self._outdated = outdated
            raise
        return topics

    def gone(self, name: str) -> None:
        """Take note that nothing is left of a topic that was deleted."""
        self._going.pop(name, None)

    def _remember(self, topic: Topic) -> None:
        """Have the logs of a topic that is gone be known for what they are."""
        self._deleted[topic.topic_id] = topic.name

    def _forget_oldest_deleted(self) -> None:
        """Forget the oldest, of which nothing has been left for long."""
        surplus = len(self._deleted) - DELETED_REMEMBERED_MAX
        if surplus > 0:
            going = frozenset(self._going.values())
            for topic_id in [one for one in self._deleted if one not in going][:surplus]:
                del self._deleted[topic_id]

    def outdated_in(self, partition: int) -> dict[UUID, str]:
        """Return the topics, names by id, of which a partition of the groups' topic holds commits for
        earlier ones, if any.
        """
        return dict(self._outdated.get(partition, ()))

    def dropped_in(self, partition: int, topic_ids: Iterable[UUID]) -> None:
        """Write down that a partition holds no commits for earlier topics any more. Raises OSError."""
        before = self._outdated.get(partition, {})
        gone = frozenset(topic_ids)
        self._outdated[partition] = {one: name for one, name in before.items() if one not in gone}
        try:
            self._save()
        except OSError:
            self._outdated[partition] = before
            raise

    def _owe_no_more(self, topic: Topic) -> None:
        for outdated_ids in self._outdated.values():
            outdated_ids.pop(topic.topic_id, None)

    def next_producer_id(self) -> int:
        """Return a producer id that was never given out. Blocks are reserved on disk, as Kafka does."""
        if self._next_producer_id == self._reserved_below:
            self._reserve_producer_ids()
        given = self._next_producer_id
        self._next_producer_id += 1
        return given

    def until_some(self) -> None:
        """Return None: there is nothing to wait for before an id is asked for."""

    def producer_id_seen(self, producer_id: int) -> None:
        """Give out greater ones only: another broker gave this one out, whose files we go on with.

        One that no cluster can have come to is somebody's invention, and would leave none to give out.
        """
        if producer_id >= UNTOUCHED_PRODUCER_IDS:
            return
        self._next_producer_id = max(self._next_producer_id, producer_id + 1)
        self._reserved_below = max(self._reserved_below, self._next_producer_id)

    def _reserve_producer_ids(self) -> None:
        self._reserved_below += PRODUCER_ID_BLOCK
        try:
            self._save()
        except OSError:
            self._reserved_below -= PRODUCER_ID_BLOCK
            raise

    def _enter(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._by_metric_name[metric_name(topic.name)] = topic.name

    def _forget(self, topic: Topic) -> None:
        del self._by_name[topic.name]
        del self._by_id[topic.topic_id]
        if self._by_metric_name.get(metric_name(topic.name)) == topic.name:
            del self._by_metric_name[metric_name(topic.name)]

    # -- the file, and what else is on the disk

    def _save(self) -> None:
        document = self._document()
        topics = document.pop("topics")
        self._file.save(document, topics)

    def _document(self) -> dict[str, Any]:
        """Return the document to be stored, each topic as JSON text."""
        topics = [*self._by_name.values(), *self._coming.values()]
        self._texts = {topic.topic_id: (topic, self._text_of(topic)) for topic in topics}
        document = {
            "cluster_id": self.cluster_id,
            "next_producer_id": self._reserved_below,
            "topics": [text for _, text in self._texts.values()],
            "deleted": [uuid_text(topic_id) for topic_id in self._deleted],
            "deleted_names": [*self._deleted.values()],
        }
        outdated = {
            str(place): [*map(uuid_text, outdated_ids)]
            for place, outdated_ids in self._outdated.items()
            if outdated_ids
        }
        return {**document, "outdated_commits": outdated} if outdated else document

    def _text_of(self, topic: Topic) -> str:
        """Return a topic as JSON: as it was written the last time, unless it has changed."""
        written, text = self._texts.get(topic.topic_id, (None, ""))
        return text if written is topic else json.dumps(_as_json(topic))

    def _is_written(self, written: Mapping[str, Any] | None) -> bool:
        """Return whether a document says what is to be written down."""
        now = self._document()
        return written == {**now, "topics": [json.loads(text) for text in now["topics"]]}

    def _read(self, document: Mapping[str, Any]) -> None:
        try:
            self._next_producer_id = self._reserved_below = _giveable(int(document["next_producer_id"]))
            ids = [uuid_from_text(text) for text in document["deleted"]]
            names = [*document.get("deleted_names", ()), *repeat("", len(ids))]  # early versions wrote none
            self._deleted = {topic_id: str(name) for topic_id, name in zip(ids, names, strict=False)}
            for partition, outdated_ids in document.get("outdated_commits", {}).items():
                self._outdated[int(partition)] = dict.fromkeys(map(uuid_from_text, outdated_ids), "")
            for entry in document["topics"]:
                topic = self._from_json(entry)
                problem = (
                    "it is Apache Kafka's own" if topic.name == RESERVED_TOPIC else name_problem(topic.name)
                )
                if problem:
                    log.error("%s: topic %r is passed over: %s", self._file.path, topic.name, problem)
                else:
                    self._enter(topic)
        except (Corrupt, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UnreadableMetadata(f"{self._file.path} is damaged: {error!r}") from error

    def _without_copies(self, store: Store, former: FormerKafka) -> list[OnDisk]:
        """Return the logs found, without those that somebody copied under the name of another topic."""
        found = []
        owners = {} if former.image is None else former.image.by_id
        for one in store.partitions():
            owner = None
            if one.topic_id is not None:
                owner = self._by_id.get(one.topic_id) or owners.get(one.topic_id)
            if owner is None or owner.name == one.topic:
                found.append(one)
            else:
                log.warning("%s-%d is a copy of %s and is left alone", *one[:2], owner.name)
                store.release_log(one.topic, one.partition)
        return found

    def _is_ours(self, one: OnDisk) -> bool:
        """Return whether a log is, as far as it says, of the topic that is written down by its name."""
        topic = self._by_name.get(one.topic)
        return topic is not None and one.topic_id in (None, topic.topic_id)

    def _bury(self, logs: Sequence[OnDisk], store: Store) -> None:
        """Delete the logs of topics that are gone: long overdue, their files go at the next tick."""
        try:
            for one in logs:
                with contextlib.suppress(StorageFailed):  # tried again at the next start; out of sight it is
                    store.delete_log(one.topic, one.partition, now_ms=0)
            if logs:
                store.make_deletions_certain()
        except StorageFailed as error:
            log.warning("what is left of deleted topics may come back: %s", error)

    def _tie(self, found: Iterable[OnDisk], store: Store) -> None:
        """Give the logs that know no topic the id of theirs: a deletion goes by it."""
        for one in found:
            topic = self._by_name.get(one.topic)
            if one.topic_id is None and topic is not None:
                with contextlib.suppress(OSError):  # tried again at the next start
                    store.tie(one.topic, one.partition, topic.topic_id)

    def _agree(self, store: Store, former: FormerKafka, settings: BrokerSettings) -> None:
        """Have the registry and the logs found say the same, Kafka's record of its topics included."""
        found = self._without_copies(store, former)
        agreed = Agreement(
            ours=self._by_name,
            former=former,
            found=found,
            deleted=self._deleted,
            settings=settings,
            new_uuid=self._new_uuid,
        )
        agreed.log_findings()
        unknown = [one for one in found if one.topic in agreed.taken or not self._is_ours(one)]
        if unknown:
            store.expect_gaps(TopicPartition(one.topic, one.partition) for one in unknown)
        self._bury(agreed.dead, store)
        for stray in agreed.aside:
            where = store.make_stray(stray.topic, stray.partition)
            log.warning("%s-%d is of another life of its topic; now %s", stray.topic, stray.partition, where)
        for topic in self.all():
            self._forget(topic)
        for topic in agreed.topics.values():
            self._enter(topic)
        for partition, outdated_ids in self._outdated.items():
            self._outdated[partition] = {
                one: self._by_id[one].name for one in outdated_ids if one in self._by_id
            }
        left = {one.topic_id for one in agreed.dead}
        nameless = {one.topic for one in agreed.aside if one.topic_id is None}
        self._deleted = {
            topic_id: name for topic_id, name in self._deleted.items() if topic_id in left or name in nameless
        }
        self._tie(found, store)

    def _recall_strays(self, store: Store) -> None:
        """Put back what Apache Kafka has set aside because it did not know the topic."""
        for stray in store.strays():
            topic = self._by_id.get(stray.topic_id)
            if topic is None or TopicPartition(topic.name, stray.partition) in store.logs:
                continue
            if stray.partition < topic.partitions:
                store.recall(stray, topic.name)
                log.info("%s was set aside; it is %s-%d again", stray.directory, topic.name, stray.partition)

    def _go_on_in_epochs(self, store: Store, image: KafkaMetadata) -> None:
        """Lead Kafka's partitions in the epoch that clients have seen last, though nothing is of it.

        Never in a later one: Kafka, once it is back, goes on with the next, which must be news to everybody.
        """
        for known in image.by_id.values():
            for partition, epoch in known.epochs.items() if known.topic_id in self._by_id else ():
                log = store.logs.get(TopicPartition(known.name, partition))
                if log is not None:
                    log.lead(epoch)

    def _clear_of_producer_ids(self, store: Store, former: FormerKafka, *, forgotten: bool) -> None:
        """Give out none of the producer ids that others have given out, or will: far beyond any of theirs."""
        taken = former.image.next_producer_id if former.image is not None else 0
        if forgotten:
            ids = (one for log in store.logs.values() for one in log.producers.producers)
            taken = max([taken, *(one + 1 for one in ids if one < UNTOUCHED_PRODUCER_IDS)])
        if former.image is not None or (forgotten and store.logs):
            beyond = (taken // PRODUCER_IDS_OF_OTHERS + 1) * PRODUCER_IDS_OF_OTHERS
            self._next_producer_id = self._reserved_below = max(self._reserved_below, beyond)

    def _from_json(self, entry: Mapping[str, Any]) -> Topic:
        return Topic(
            name=str(entry["name"]),
            topic_id=uuid_from_text(entry["topic_id"]),
            replicas=self._replicas * self._plausible(int(entry["partitions"]), entry["name"]),
            configs={str(name): str(text) for name, text in entry["configs"].items()},
        )

    def _plausible(self, partitions: int, name: str) -> int:
        if 0 < partitions <= MOST_PARTITIONS:
            return partitions
        sentence = "%s: topic %s cannot have %d partitions; it has those that are found"
        log.error(sentence, self._file.path, name, partitions)
        return 1


def _giveable(producer_id: int) -> int:
    """Return the producer id to go on with: the one that is written down, if there are any left from there.

    Earlier versions believed what clients wrote, so that one batch could use up all ids.
    """
    if 0 <= producer_id <= LAST_PRODUCER_ID - PRODUCER_ID_BLOCK:
        return producer_id
    log.warning("no producer ids are left from %d on; going on with %d", producer_id, UNTOUCHED_PRODUCER_IDS)
    return UNTOUCHED_PRODUCER_IDS


def _as_json(topic: Topic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": uuid_text(topic.topic_id),
        "partitions": topic.partitions,
        "configs": dict(topic.configs),
    }


def _configure_logs(topic: Topic, store: Store, config: LogConfig) -> None:
    """Tell the logs that were found of a topic how to behave: the disk does not say."""
    for partition in range(topic.partitions):
        log = store.logs.get(TopicPartition(topic.name, partition))
        if log is not None:
            log.configure(config)
