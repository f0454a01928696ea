"""Which topics a data directory has: our own record, Kafka's and the directories found, put side by side.

The directories are right about which life of a topic they hold. Of settings, what Kafka has changed since we
looked last counts, then our own record; what neither says is kept for ever. What fits nobody's record is set
aside, never deleted.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from coterie.base.topic_names import INTERNAL_TOPICS
from coterie.broker.topics.topic import KEPT_FOR_EVER, Topic

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.placement.model import Replicas
    from coterie.broker.topics.former_kafka import FormerKafka
    from coterie.broker.topics.kafka_metadata import KnownTopic
    from coterie.storage.directory import OnDisk

log = logging.getLogger("coterie.broker")


class Agreement:
    """What comes of it: the topics, the logs of topics that were deleted, and the logs that nobody knows."""

    def __init__(
        self,
        *,
        ours: Mapping[str, Topic],
        former: FormerKafka,
        found: Iterable[OnDisk],
        deleted: Mapping[UUID, str],
        settings: BrokerSettings,
        new_uuid: Callable[[], UUID],
    ) -> None:
        self._ours = ours
        self._former = former
        self._known: Mapping[str, KnownTopic] = {} if former.image is None else former.image.by_name
        self._settings = settings
        self._new_uuid = new_uuid
        self._deleted = deleted
        self._deleted_names = frozenset(deleted.values())
        self.dead = [one for one in found if one.topic_id in self._deleted]
        self._logs: dict[str, list[OnDisk]] = {}
        for one in sorted(found, key=lambda one: (one.topic, one.partition)):
            if one.topic_id not in self._deleted:
                self._logs.setdefault(one.topic, []).append(one)
        self.taken: list[str] = []
        self._kept: list[str] = []
        self.topics: dict[str, Topic] = {}
        for name in sorted({*ours, *self._known, *self._logs}):
            topic = self._settled(name)
            if topic is not None:
                self.topics[name] = self._grown(topic)
        self.aside = [one for logs in self._logs.values() for one in logs if not self._fits(one)]

    def log_findings(self) -> None:
        """Say in the log what was taken over, what is kept, and what Kafka will not know."""
        if self.taken:
            log.info("taken over as Apache Kafka's metadata log says: %s", ", ".join(self.taken))
        if self._kept:
            log.warning(
                "nobody wrote down how long these topics keep what is in them; it is kept for ever until "
                "their retention.ms, retention.bytes and cleanup.policy are set: %s",
                ", ".join(self._kept),
            )
        if self._known:
            strays = sorted(self.topics.keys() - self._known.keys())
            if strays:
                log.warning(
                    "Apache Kafka does not know these topics; if it opens this directory it renames their "
                    "partitions to *-stray and serves none of them: %s",
                    ", ".join(strays),
                )

    # -- one topic

    def _settled(self, name: str) -> Topic | None:
        """Return the topic of a name; None if there is none, or no longer."""
        mine, known = self._ours.get(name), self._known.get(name)
        logs = self._logs.get(name, [])
        ids = Counter(one.topic_id for one in logs if one.topic_id is not None)
        if known is not None and known.topic_id in ids:
            return self._of_kafka(known, mine)
        if mine is not None and mine.topic_id in ids:
            return self._of_ours(mine)
        if ids:
            return self._topic_without_record(name, ids.most_common(1)[0][0])
        if known is not None and self._is_news(known, mine):
            return self._of_kafka(known, mine)
        if mine is not None and (logs or known is not None or not self._is_gone(mine)):
            return self._of_ours(mine)
        if logs and name not in self._deleted_names:  # else they are what a loss of power took the id from
            return self._topic_without_record(name, self._new_uuid())
        return None

    def _is_news(self, known: KnownTopic, mine: Topic | None) -> bool:
        """Return whether Kafka's topic without a log here is to be; it is not if we have deleted it."""
        if mine is not None and mine.topic_id == known.topic_id:
            return True
        before = known.topic_id in self._former.seen or known.topic_id in self._deleted
        return not before and self._former.has_here(known)

    def _is_gone(self, mine: Topic) -> bool:
        """Return whether Kafka has deleted a topic of its own, logs and all."""
        return self._former.image is not None and mine.topic_id in self._former.seen

    def _of_kafka(self, known: KnownTopic, mine: Topic | None) -> Topic:
        """Return a topic that Kafka's log tells of, with what we have changed of it meanwhile."""
        former = self._former.settings_of(known)
        now = former.whole
        ours = mine if mine is not None and mine.topic_id == known.topic_id else None
        before = self._former.seen.get(known.topic_id)
        defaults = self._default_settings(known.name, now)
        if ours is None or before is None:
            configs = {**defaults, **now, **(ours.configs if ours is not None else {})}
        else:
            defaults_before = self._default_settings(known.name, before.whole)
            configs = {name: text for name, text in defaults.items() if name not in defaults_before}
            taken_away = before.whole.keys() - now.keys()
            configs |= {name: text for name, text in ours.configs.items() if name not in taken_away}
            configs |= former.changed_since(before)
        self.taken.append(known.name)
        if known.name not in INTERNAL_TOPICS and configs.get("retention.ms") != now.get("retention.ms"):
            self._kept.append(known.name)
        return Topic(
            name=known.name,
            topic_id=known.topic_id,
            replicas=self._here(max(known.partitions, ours.partitions if ours is not None else 0)),
            configs=configs,
        )

    def _default_settings(self, name: str, former: Mapping[str, str]) -> Mapping[str, str]:
        """Return settings in place of the Kafka broker's own properties, which are not in the directory."""
        if name in INTERNAL_TOPICS:
            return self._settings.internal_topic(name)[1]
        if "delete" not in former.get("cleanup.policy", "delete"):
            return {}
        return {name: text for name, text in KEPT_FOR_EVER.items() if name not in former}

    def _of_ours(self, mine: Topic) -> Topic:
        """Return a topic as we have it. If it is Kafka's, whose log cannot be read any more, it keeps all."""
        if self._former.unreadable and mine.topic_id in self._former.seen and not mine.internal:
            self._kept.append(mine.name)
            return replace(mine, configs={**mine.configs, **KEPT_FOR_EVER})
        return mine

    def _topic_without_record(self, name: str, topic_id: UUID) -> Topic:
        """Return a topic of which there are logs and nothing else."""
        partitions, configs = 1, dict(KEPT_FOR_EVER)
        if name in INTERNAL_TOPICS:
            partitions, configs = self._settings.internal_topic(name)
            # Groups hash to partitions: with another number nobody would find what lies there.
            there = {one.partition for one in self._logs[name]}
            partitions = max(there) + 1 if len(there) == max(there) + 1 else partitions
        else:
            self._kept.append(name)
        return Topic(name=name, topic_id=topic_id, replicas=self._here(partitions), configs=configs)

    def _here(self, partitions: int) -> tuple[Replicas, ...]:
        """Return the replicas of so many partitions: this broker alone."""
        return ((self._settings.node_id,),) * partitions

    # -- their logs

    def _grown(self, topic: Topic) -> Topic:
        """Return a topic with as many partitions as it has logs.

        What has no id, and lies behind those that are written down, may be left of a deleted topic of the
        name: a loss of power has taken the id from it.
        """
        ids = (topic.topic_id,) if topic.name in self._deleted_names else (None, topic.topic_id)
        there = [one.partition for one in self._logs.get(topic.name, ()) if one.topic_id in ids]
        return topic.resized(max(topic.partitions, max(there, default=0) + 1))

    def _fits(self, one: OnDisk) -> bool:
        topic = self.topics.get(one.topic)
        if topic is None or one.topic_id not in (None, topic.topic_id):
            return False
        return one.partition < topic.partitions
