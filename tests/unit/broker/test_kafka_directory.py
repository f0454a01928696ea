"""A directory that Apache Kafka 4.3.1 has written (tests/data), opened by our broker: who goes on where."""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig import Rig

from coterie.base.ids import TopicPartition, uuid_from_text, uuid_text
from coterie.broker.runtime.pieces import at_once
from coterie.broker.topics.former_kafka import FILE_NAME as TAKEOVER_FILE
from coterie.broker.topics.registry import FILE_NAME
from coterie.broker.topics.topic import KEPT_FOR_EVER
from coterie.storage.cluster_log import CLUSTER_LOG
from coterie.wire.records.batches import scan

RECORDED = Path(__file__).parents[2] / "data" / "kafka_directory.zip"
DAY_MS = 86_400_000
IN_2027_MS = 1_800_000_000_000  # a year after the records were written
TOPICS = {
    "__consumer_offsets": ("YM4VxtsdRQaU9NENEnWYwQ", 4),
    "__transaction_state": ("0yVJk5iaRnGpHtHTgoi7wg", 3),
    "again": ("ktNV8TOKSU6LvFQMpbq4PA", 2),
    "both": ("tYo2duihSQKWjW9NVZCVgA", 1),
    "forever": ("WIYN81hdTlyWcRutEikIoQ", 1),
    "grown": ("0_xdJpQ1RZCpahKAyOktHA", 3),
    "plain": ("Z07Xac-xTvWnumKgg0Q_HA", 2),
    "short": ("ea9-feYVSae4d-92W-ANEw", 1),
    "table": ("Htxg2u_mQgGvjUKvS5L7iw", 1),
}
OFFSETS = {"again": 6, "both": 12, "forever": 15, "grown": 4, "plain": 17, "short": 12, "table": 12}
LAST_EPOCH = 5  # of every partition, by Kafka's metadata: of its stop, when nobody led them


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with zipfile.ZipFile(RECORDED) as recorded:
        recorded.extractall(tmp_path)
    return tmp_path


@pytest.fixture
def rig(directory: Path) -> Iterator[Rig]:
    made = Rig(directory)
    yield made
    made.close()


def kafka_s_log(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (directory / CLUSTER_LOG).iterdir()}


def let_a_year_pass(rig: Rig) -> None:
    rig.now_ms = IN_2027_MS
    for _ in range(3):
        rig.node.cleaner.tick(rig.now_ms)
        rig.now_ms += DAY_MS


def starts(rig: Rig) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for name, log in rig.store.logs.items():
        if name.topic in OFFSETS:
            found.setdefault(name.topic, set()).add(log.start_offset)
    return found


def test_topics_have_the_ids_and_partitions_that_kafka_gave_them(rig: Rig):
    assert {t.name: (uuid_text(t.topic_id), t.partitions) for t in rig.node.topics.all()} == TOPICS
    assert {n.topic: log.end_offset for n, log in rig.store.logs.items() if n.topic in OFFSETS} == OFFSETS


def test_settings_are_those_of_kafka_and_what_its_properties_may_have_said_is_kept_for_ever(rig: Rig):
    everybody = {"segment.bytes": "10485760"}  # Kafka was told log.segment.bytes while it ran
    configs = {topic.name: topic.configs for topic in rig.node.topics.all()}

    assert configs["plain"] == configs["grown"] == KEPT_FOR_EVER | everybody
    assert configs["forever"] == configs["again"] == KEPT_FOR_EVER | everybody
    assert configs["short"] == KEPT_FOR_EVER | everybody | {"retention.ms": "86400000"}
    compacted = {"min.cleanable.dirty.ratio": "1.0", **everybody}
    assert configs["table"] == {"cleanup.policy": "compact"} | compacted
    assert configs["both"] == KEPT_FOR_EVER | {"cleanup.policy": "compact,delete"} | compacted
    assert configs["__consumer_offsets"]["cleanup.policy"] == "compact"


def test_nothing_goes_but_what_was_to_be_kept_for_a_day(rig: Rig):
    let_a_year_pass(rig)

    assert starts(rig) == {key: {0} for key in OFFSETS} | {"short": {12}}


def test_partitions_are_led_in_the_last_epoch_that_kafka_told(rig: Rig):
    epochs = {log.latest_epoch for log in rig.store.logs.values()}
    plain = rig.store.logs[TopicPartition("plain", 0)]

    assert epochs == {LAST_EPOCH}
    assert plain.end_of_epoch(0) == (0, 12)
    assert plain.end_of_epoch(4) == (4, 17)
    assert [header.leader_epoch for _, header in scan(plain.read(14, max_bytes=1))] == [4]


def test_what_was_taken_over_is_the_same_after_a_crash(rig: Rig, directory: Path):
    before = rig.node.topics.all()
    rig.store.abandon()

    again = Rig(directory)

    assert again.node.topics.all() == before
    assert {log.latest_epoch for log in again.store.logs.values()} == {LAST_EPOCH}
    again.close()


def test_kafka_s_own_log_is_never_written_to(directory: Path):
    before = kafka_s_log(directory)
    for _ in range(2):
        rig = Rig(directory)
        rig.node.topic_manager.create_topic("new", partitions=1) if rig.node.topics.get(
            "new"
        ) is None else None
        at_once(rig.node.topic_manager.delete_topics(["grown"])) if rig.node.topics.get(
            "grown"
        ) is not None else None
        let_a_year_pass(rig)
        rig.close()

    assert kafka_s_log(directory) == before


def test_producer_ids_come_from_where_kafka_never_will(rig: Rig):
    assert rig.node.topics.next_producer_id() == 1 << 40


def test_the_mark_of_a_clean_stop_has_the_epoch_that_kafka_s_controller_remembers(directory: Path):
    mark = (directory / ".kafka_cleanshutdown").read_bytes()

    Rig(directory).close()

    assert (directory / ".kafka_cleanshutdown").read_bytes() == mark
    assert b'"brokerEpoch":199' in mark


def test_after_a_crash_of_ours_the_mark_does_not_say_that_all_was_well(directory: Path):
    Rig(directory).store.abandon()
    Rig(directory).close()

    assert b'"brokerEpoch":-1' in (directory / ".kafka_cleanshutdown").read_bytes()


def test_kafka_s_groups_and_transactions_are_there(rig: Rig):
    rig.node.warm_up()
    rig.settle()

    committed = {host.partition: host.shard for host in rig.node.coordinator.active()}
    assert sorted(committed) == [2, 3]
    assert rig.store.logs[TopicPartition("forever", 0)].last_stable_offset == 12  # a transaction is open


@pytest.mark.parametrize("damage", ["log", "checkpoint"])
def test_a_metadata_log_that_is_damaged_is_passed_over_and_everything_is_kept(
    directory: Path, damage: str, caplog: pytest.LogCaptureFixture
):
    for path in (directory / CLUSTER_LOG).glob(f"*.{damage}"):
        path.chmod(0o600)
        data = bytearray(path.read_bytes())
        data[len(data) * 9 // 10] ^= 1
        path.write_bytes(data)

    with caplog.at_level(logging.WARNING):
        rig = Rig(directory)
    let_a_year_pass(rig)

    assert "cannot be read" in caplog.text
    assert starts(rig) == {key: {0} for key in OFFSETS}
    assert {t.name: (uuid_text(t.topic_id), t.partitions) for t in rig.node.topics.all()} == TOPICS
    assert rig.node.topics.get("short").configs == KEPT_FOR_EVER  # type: ignore[union-attr]
    rig.close()


def test_without_our_own_file_the_same_is_taken_over_again(directory: Path):
    rig = Rig(directory)
    at_once(rig.node.topic_manager.configure_topics({"plain": {"retention.ms": "5"}}))
    before = {topic.name: topic for topic in rig.node.topics.all()}
    rig.close()
    (directory / FILE_NAME).unlink()

    again = Rig(directory)

    after = {topic.name: topic for topic in again.node.topics.all()}
    assert after.pop("plain").configs["retention.ms"] == "-1"
    del before["plain"]
    assert after == before
    again.close()


def test_a_damaged_note_of_what_was_taken_over_costs_nothing(directory: Path):
    rig = Rig(directory)
    at_once(rig.node.topic_manager.configure_topics({"plain": {"retention.ms": "5"}}))
    before = rig.node.topics.all()
    rig.close()
    (directory / TAKEOVER_FILE).write_bytes(b'{"version": 1, "read": 7}')

    again = Rig(directory)

    assert [t.topic_id for t in again.node.topics.all()] == [t.topic_id for t in before]
    assert again.node.topics.get("plain").configs["retention.ms"] == "5"  # type: ignore[union-attr]
    again.close()


def test_a_topic_of_kafka_s_that_was_deleted_here_stays_deleted(directory: Path):
    rig = Rig(directory)
    at_once(rig.node.topic_manager.delete_topics(["plain"]))
    rig.close()
    (directory / TAKEOVER_FILE).unlink()

    again = Rig(directory)

    assert uuid_from_text(TOPICS["plain"][0]) not in {topic.topic_id for topic in again.node.topics.all()}
    again.close()
