"""Every setting that is a number, at the least and at the greatest that it takes: a broker lives on with it.

Records are written, segments roll, are compacted, flushed and deleted, members and transactions come and go,
days pass, and after a kill everything goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import pytest

from coterie.base.ids import TopicPartition
from coterie.base.settings import KINDS, Setting, bounds_of
from coterie.base.settings.topic import SYNONYMS, TOPIC
from coterie.broker.config.settings import KNOWN, WITH_EFFECT, BrokerSettings, SettingError
from coterie.storage.config import NO_EFFECT
from coterie.storage.log.contract import AppendRefused
from coterie.storage.log.partition import (
    PartitionLog,
)
from coterie.wire.records.batches import Record, build_batch
from unit.broker.group_api_rig import COMMIT, JOIN, ApiRig, commit_topic, join_terms
from unit.broker.rig import Client

INIT_PRODUCER, FETCH_VERSION = 22, 11
HOUR_MS = 3_600_000
ROUNDS = 8
# With these no client can say anything, or nothing can be written.
UNUSABLE = (("socket.request.max.bytes", "1"), ("message.max.bytes", "0"))
PARTITIONS = ("num.partitions", "offsets.topic.num.partitions", "transaction.state.log.num.partitions")


def edges(known: Setting) -> tuple[str, ...]:
    """Return the least and the greatest number that a setting takes."""
    if known.kind == "double":
        return "0", "1"
    least, most, _ = bounds_of(known.rule)
    bits = KINDS[known.kind].bits
    return least or str(-(1 << bits)), most or str((1 << bits) - 1)


def is_number(known: Setting) -> bool:
    return known.kind == "double" or KINDS[known.kind].bits > 0


def of_brokers() -> Iterator[tuple[str, str]]:
    of_logs = {synonym for synonyms in SYNONYMS.values() for synonym, _ in synonyms}
    for name in sorted(WITH_EFFECT | of_logs):
        if is_number(KNOWN[name]):
            for text in edges(KNOWN[name])[: 1 if name in PARTITIONS else 2]:
                if (name, text) not in UNUSABLE:
                    yield name, text


def of_topics() -> Iterator[tuple[str, str]]:
    for name in sorted(TOPIC.keys() - NO_EFFECT - {"internal.segment.bytes"}):
        if is_number(TOPIC[name]):
            for text in edges(TOPIC[name]):
                yield name, text


class Life:
    """A broker with some settings, its clients, and a topic of which much is to be done."""

    def __init__(self, of_broker: Mapping[str, str], of_topic: Mapping[str, str]) -> None:
        self.rig = ApiRig(**of_broker)
        small = {"cleanup.policy": "compact,delete", "internal.segment.bytes": "300"}
        self.rig.node.topic_manager.create_topic("t", partitions=1, configs=small | dict(of_topic))
        self.clients: list[Client] = []

    def go_on(self) -> None:
        """Have hours pass between records, members, commits and transactions."""
        for place in range(ROUNDS):
            self.rig.now_ms += 6 * HOUR_MS
            self.write(None if place % 3 == 2 else b"v" * 100)
            self.ask(JOIN, 5, **join_terms(5, group_id="g"))
            topic = commit_topic(self.rig, 8, "orders", (0, place, ""))
            self.ask(COMMIT, 8, group_id="g", generation_id_or_member_epoch=-1, topics=(topic,))
            self.ask(INIT_PRODUCER, 4, transactional_id=f"t{place}", transaction_timeout=60_000)
            self.rig.pass_ms(100)

    def write(self, value: bytes | None) -> None:
        """Write a record and a tombstone, or be refused for what was set."""
        records = [Record(0, self.rig.now_ms, b"k", value), Record(1, self.rig.now_ms, b"gone", None)]
        try:
            self.rig.node.replica_manager.append("t", 0, build_batch(records), now_ms=self.rig.now_ms)
        except AppendRefused:
            assert self.log.config.max_message_bytes == 0

    def ask(self, api_key: int, version: int, **fields: object) -> None:
        """Ask, and go on without waiting for the answer."""
        client = self.rig.client()
        client.send(api_key, version, **fields)
        assert not client.line.closed
        self.clients.append(client)

    @property
    def log(self) -> PartitionLog:
        return self.rig.store.logs[TopicPartition("t", 0)]

    def is_well(self) -> bool:
        """Return whether nothing was given up, and nothing of a compaction lies about."""
        names = self.rig.store.disk.files(self.log.directory)
        return not self.log.trouble and not [name for name in names if ".cleaned" in name]


def lived_through(of_broker: Mapping[str, str], of_topic: Mapping[str, str]) -> None:
    life = Life(of_broker, of_topic)
    life.go_on()
    assert life.is_well()
    end = life.log.end_offset
    life.rig = life.rig.started_again()
    assert life.log.end_offset == end
    life.go_on()
    assert life.is_well()


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR or one.exc_info]


@pytest.mark.parametrize(("name", "text"), list(of_topics()))
def test_a_topic_lives_with_each_setting_at_its_edge(name: str, text: str, caplog: pytest.LogCaptureFixture):
    lived_through({}, {name: text})

    assert complaints(caplog) == []


@pytest.mark.parametrize(("name", "text"), list(of_brokers()))
def test_a_broker_lives_with_each_setting_at_its_edge_or_says_at_its_start_what_is_wrong_with_it(
    name: str, text: str, caplog: pytest.LogCaptureFixture
):
    refusal = refused(name, text)
    if refusal:
        assert name in refusal
        return
    lived_through({name: text}, {})

    assert complaints(caplog) == []


def refused(name: str, text: str) -> str:
    """Return why a broker does not start with a setting, nothing if it does."""
    try:
        BrokerSettings.of({name: text})
    except SettingError as refusal:
        return str(refusal)
    return ""


def test_a_broker_keeps_records_for_ever_by_any_negative_time():
    """Kafka 4.3.1 starts with log.retention.ms=-7 (2026-11-23), and with no negative flush or roll time."""
    assert BrokerSettings.of({"log.retention.ms": "-7"}).log_base.retention_ms == -1
