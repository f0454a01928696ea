"""Faults that there were, put back one at a time in a broker that is watched: the generator has to find each.

See `/work/shared/trials.md`: A1, A3, A7, A8, A9, A15, A16, and TH-10, TH-13, TH-14 of the catalogue.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["PLANTS"]


def narrower_ranges() -> None:
    """A1: what the handler lets through cannot be made a log's config, and stands in the file already."""
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.topics.manager import TopicManager
    from coterie.storage.config import BadSetting

    made, stored = BrokerSettings.log_config, BrokerSettings.stored_log_config

    def narrow(configs: Mapping[str, str]) -> None:
        if int(configs.get("retention.bytes", "-1")) < -(2**63 - 1):
            raise BadSetting("retention.bytes must be greater")

    def stored_narrow(self: Any, configs: Mapping[str, str]) -> Any:
        narrow(configs)
        return stored(self, configs)

    def configure(self: Any, wanted: Mapping[str, Mapping[str, str]]) -> Any:
        from dataclasses import replace

        yield from ()
        self._topics.change([replace(self._topics.get(name), configs=dict(wanted[name])) for name in wanted])
        for configs in wanted.values():
            narrow(configs)
        return {}

    announce = TopicManager.create_topics

    def create(self: Any, wanted: Any) -> Any:
        for topic in wanted:
            if "retention.bytes" not in topic.configs:
                continue
            self._topics.announce([topic])
            self._topics.call_off([])
            self._topics._coming.pop(topic.name)  # it stays in the file until the next save
            narrow(topic.configs)
        return (yield from announce(self, wanted))

    del made
    patch(BrokerSettings, "stored_log_config", stored_narrow)
    patch(TopicManager, "configure_topics", configure)
    patch(TopicManager, "create_topics", create)


def reserved_topic() -> None:
    """A3: Metadata makes the topic of Kafka's controller, whose directory each start passes over."""
    from coterie.broker.api import metadata
    from coterie.storage.directory import Store

    def make_free(self: Any, name: Any) -> None:
        shutil.rmtree(self._directory(name), ignore_errors=True)

    metadata.RESERVED_TOPIC = ""  # type: ignore[misc]
    patch(Store, "_make_free", make_free)


def looked_at_for_each_mention() -> None:
    """A7, TH-13: a fetch is tried as often as it names a partition, and looks at it as often each time."""
    from coterie.broker.api.data import WaitingFetch

    begin, ready = WaitingFetch.__init__, WaitingFetch.ready
    mentions: dict[int, int] = {}

    def counted(self: Any, node: Any, ctx: Any, request: Any, wanted: Any) -> None:
        mentions[id(self)] = sum(len(asked.partitions) for asked in request.topics)
        begin(self, node, ctx, request, wanted)

    def each(self: Any, changed: Any = None) -> bool:
        for _ in range(mentions[id(self)] ** 2):
            ready(self, changed)
        return ready(self, changed)

    patch(WaitingFetch, "__init__", counted)
    patch(WaitingFetch, "ready", each)


def decoded_in_the_loop() -> None:
    """A8: records are decoded where everybody waits, however many they are."""
    from coterie.storage.log import partition, validate

    validate.RECORDS_MOST = 10**9
    patch(partition, "prepared_promptly", validate.prepared)


def a_save_for_each_topic() -> None:
    """A9: topics of one request are created one by one, with nobody heard between."""
    from coterie.broker.runtime.pieces import at_once
    from coterie.broker.topics.manager import TopicManager

    create = TopicManager.create_topics

    def one_by_one(self: Any, wanted: Any) -> Any:
        failed: dict[str, Any] = {}
        for topic in wanted:
            failed |= at_once(create(self, [topic]))
        return failed
        yield

    patch(TopicManager, "create_topics", one_by_one)


def a_full_disk_hangs_up() -> None:
    """A15: Metadata does not catch what the disk refuses."""
    from coterie.broker.api import metadata
    from coterie.storage.log.contract import StorageFailed

    create = metadata._create

    def uncaught(parts: Any, request: Any, named: Any) -> Any:
        refused = yield from create(parts, request, named)
        for name, code in refused.items():
            raise StorageFailed(f"cannot create topic {name}: {code}")
        return refused

    patch(metadata, "_create", uncaught)


def headers_are_believed() -> None:
    """A16: the greatest timestamp of a batch is what its header says."""
    from coterie.storage.log import partition, validate

    youngest = validate._youngest

    def believed(header: Any, records: Any, most: int) -> int:
        youngest(header, records, most)
        return int(header.max_timestamp)

    patch(validate, "_youngest", believed)
    patch(partition, "prepared_promptly", validate.prepared)


def producer_ids_are_learned() -> None:
    """TH-10: a producer id that any client invents is the least that is not given out."""
    from coterie.broker.api import produce
    from coterie.wire.records.batches import read_header

    append = produce._append

    def learn(parts: Any, topic: Any, data: Any, records: Any, verified: Any) -> Any:
        answer = append(parts, topic, data, records, verified)
        if not answer["error_code"]:
            header = read_header(records) if isinstance(records, bytes) else records.header
            topics = parts.topics
            topics._next_producer_id = max(topics._next_producer_id, header.producer_id + 1)
            topics._reserved_below = max(topics._reserved_below, topics._next_producer_id)
        return answer

    patch(produce, "_append", learn)


def negative_counts_make_room() -> None:
    """TH-14: a negative number of partitions is taken off what a request may create."""
    from coterie.broker.api import admin

    admin.max = lambda _, count: count  # type: ignore[attr-defined]


def patch(owner: Any, name: str, instead: Any) -> None:
    setattr(owner, name, instead)


PLANTS: dict[str, Callable[[], None]] = {
    "A1": narrower_ranges,
    "A3": reserved_topic,
    "A7": looked_at_for_each_mention,
    "A8": decoded_in_the_loop,
    "A9": a_save_for_each_topic,
    "A15": a_full_disk_hangs_up,
    "A16": headers_are_believed,
    "TH-10": producer_ids_are_learned,
    "TH-13": looked_at_for_each_mention,
    "TH-14": negative_counts_make_room,
}
