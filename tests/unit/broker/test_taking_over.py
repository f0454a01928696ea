"""A data directory whose topics nobody wrote down: what is kept, and in which epoch clients go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rig import Client, Rig

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.runtime.pieces import at_once
from coterie.broker.topics.registry import FILE_NAME
from coterie.storage.checkpoints import EPOCHS, write_epochs
from coterie.storage.epochs import Epochs
from coterie.wire.api.entities import (
    build,
    entity,
)
from coterie.wire.records.batches import Record, build_batch, scan

FETCH, LIST_OFFSETS, METADATA, END_OF_EPOCH = 1, 2, 3, 23
LATEST, EARLIEST = -1, -2
DAY_MS = 86_400_000


class Lives:
    """One data directory, and the node that has it open."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.rig = Rig(directory)

    def restart(self, *, forgotten: bool = False, epochs: Epochs | None = None, **settings: object) -> Rig:
        """Return the next node; meanwhile the topics are `forgotten` and the log of `t` led in `epochs`."""
        self.rig.close()
        if forgotten:
            (self.directory / FILE_NAME).unlink()
        if epochs is not None:
            (self.directory / "t-0" / EPOCHS).write_bytes(write_epochs(epochs))
        self.rig = Rig(self.directory, **settings)
        return self.rig


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    made = Lives(tmp_path)
    yield made
    made.rig.close()


def write(rig: Rig, topic: str, count: int = 3, *, days_old: int = 0) -> None:
    timestamp = rig.now_ms - days_old * DAY_MS
    for number in range(count):
        record = Record(0, key=b"k", value=b"%d" % number, timestamp=timestamp)
        rig.node.replica_manager.append(topic, 0, build_batch([record]), now_ms=rig.now_ms)


def spans(rig: Rig) -> dict[str, tuple[int, int, int]]:
    """Return start, end and the number of readable batches of each log."""
    found = {}
    for name, log in rig.store.logs.items():
        batches = [log.read(at, max_bytes=1) for at in range(log.start_offset, log.end_offset)]
        found[name.topic] = (log.start_offset, log.end_offset, len(set(batches)))
    return found


def let_a_month_pass(rig: Rig) -> None:
    """Have the housekeeping find everything a month older, a few times over."""
    rig.now_ms += 30 * DAY_MS
    for _ in range(3):
        rig.node.cleaner.tick(rig.now_ms)
        rig.now_ms += DAY_MS


# -- what is kept


@pytest.mark.parametrize("settings", [{}, {"log_cleanup_policy": "compact"}, {"log_retention_bytes": 1}])
def test_of_a_topic_whose_settings_nobody_knows_nothing_is_deleted(lives: Lives, settings: dict[str, object]):
    made = {"forever": {"retention.ms": "-1"}, "table": {"cleanup.policy": "compact"}, "plain": {}}
    for name, configs in made.items():
        lives.rig.node.topic_manager.create_topic(
            name, partitions=1, configs=configs | {"internal.segment.bytes": "100"}
        )
        write(lives.rig, name, days_old=10)

    rig = lives.restart(forgotten=True, **settings)
    let_a_month_pass(rig)

    assert spans(rig) == dict.fromkeys(made, (0, 3, 3))


def test_what_was_kept_for_want_of_settings_obeys_those_that_are_set_again(lives: Lives):
    lives.rig.node.topic_manager.create_topic("plain", partitions=1)
    write(lives.rig, "plain", days_old=10)
    rig = lives.restart(forgotten=True)

    at_once(rig.node.topic_manager.configure_topics({"plain": {}}))
    let_a_month_pass(rig)

    assert rig.store.logs[TopicPartition("plain", 0)].start_offset == 3


# -- the epoch that clients are told


def metadata_epoch(client: Client) -> int:
    topic = part("metadata", 9, "MetadataRequestTopic", name="t")
    operations = {
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    answer = client.ask(METADATA, 9, topics=(topic,), allow_auto_topic_creation=False, **operations)
    epoch: int = answer.topics[0].partitions[0].leader_epoch
    return epoch


def list_offset(client: Client, timestamp: int, epoch: int = -1) -> tuple[Code, int, int]:
    asked = {"partition_index": 0, "current_leader_epoch": epoch, "timestamp": timestamp}
    partition = part("list_offsets", 7, "ListOffsetsPartition", **asked)
    topic = part("list_offsets", 7, "ListOffsetsTopic", name="t", partitions=(partition,))
    answer = client.ask(LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=(topic,))
    found = answer.topics[0].partitions[0]
    return found.error_code, found.offset, found.leader_epoch


def end_of_epoch(client: Client, epoch: int, current: int = -1) -> tuple[Code, int, int]:
    partition = part(
        "offset_for_leader_epoch",
        4,
        "OffsetForLeaderPartition",
        partition=0,
        current_leader_epoch=current,
        leader_epoch=epoch,
    )
    topic = part("offset_for_leader_epoch", 4, "OffsetForLeaderTopic", topic="t", partitions=(partition,))
    found = client.ask(END_OF_EPOCH, 4, replica_id=-1, topics=(topic,)).topics[0].partitions[0]
    return found.error_code, found.leader_epoch, found.end_offset


def fetch(client: Client, epoch: int, version: int = 11) -> Any:
    partition = part(
        "fetch",
        version,
        "FetchPartition",
        partition=0,
        current_leader_epoch=epoch,
        fetch_offset=0,
        log_start_offset=-1,
        partition_max_bytes=100_000,
    )
    named = {"topic": "t"}
    if version >= 13:
        named = {"topic_id": client.rig.node.topics.get("t").topic_id}  # type: ignore[union-attr, dict-item]
    return client.ask(
        FETCH,
        version,
        replica_id=-1,
        max_wait=0,
        min_bytes=1,
        max_bytes=100_000,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=(part("fetch", version, "FetchTopic", partitions=(partition,), **named),),
        forgotten_topics_data=(),
        rack_id="",
    )


def part(api: str, version: int, kind: str, /, **values: Any) -> Any:
    return build(entity(api, version, kind, "request"), **values)


@pytest.fixture
def led(lives: Lives) -> Rig:
    """A node whose log of `t` was led in epoch 3 from offset 1 on, and in epoch 5 from its end at 3 on."""
    lives.rig.node.topic_manager.create_topic("t", partitions=1)
    write(lives.rig, "t")
    return lives.restart(epochs=[(0, 0), (3, 1), (5, 3)])


def test_clients_are_told_the_log_s_latest_epoch_and_batches_carry_it(led: Rig):
    write(led, "t", 1)

    client = led.client()

    assert metadata_epoch(client) == 5
    assert list_offset(client, LATEST) == (Code.NONE, 4, 5)
    log = led.store.logs[TopicPartition("t", 0)]
    assert [header.leader_epoch for _, header in scan(log.read(3, max_bytes=1000))] == [5]


def test_the_start_of_a_log_is_told_with_the_epoch_of_its_first_record(lives: Lives):
    lives.rig.node.topic_manager.create_topic("t", partitions=1)
    write(lives.rig, "t")

    rig = lives.restart(epochs=[(2, 0), (5, 3)])

    assert list_offset(rig.client(), EARLIEST) == (Code.NONE, 0, 2)


Asks: tuple[Callable[[Client, int], Code], ...] = (
    lambda client, epoch: list_offset(client, LATEST, epoch)[0],
    lambda client, epoch: end_of_epoch(client, 0, epoch)[0],
    lambda client, epoch: fetch(client, epoch).responses[0].partitions[0].error_code,
)


@pytest.mark.parametrize("ask", Asks)
def test_whoever_names_an_epoch_is_judged_by_the_log_s_latest(led: Rig, ask: Callable[[Client, int], Code]):
    client = led.client()

    assert ask(client, -1) == ask(client, 5) == Code.NONE
    assert ask(client, 0) == ask(client, 4) == ask(client, -2) == Code.FENCED_LEADER_EPOCH
    assert ask(client, 6) == Code.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("version", [15, 16, 17])
def test_who_comes_with_an_earlier_epoch_is_told_the_leader_and_its_epoch(led: Rig, version: int):
    """As Apache Kafka 4.3.1 does from version 16 on, and for no other error (KIP-951)."""
    led.node.advertise("127.0.0.1", 9092)
    fenced, ahead = (fetch(led.client(), epoch, version) for epoch in (0, 9))

    leader = fenced.responses[0].partitions[0].current_leader
    assert (leader.leader_id, leader.leader_epoch) == ((1, 5) if version >= 16 else (-1, -1))
    endpoints = [(one.node_id, one.host, one.port) for one in getattr(fenced, "node_endpoints", ())]
    assert endpoints == ([(1, "127.0.0.1", 9092)] if version >= 16 else [])
    assert ahead.responses[0].partitions[0].current_leader.leader_epoch == -1
    assert not getattr(ahead, "node_endpoints", ())


def test_an_epoch_ends_where_the_log_says_it_ended(led: Rig):
    client = led.client()

    assert end_of_epoch(client, 0) == (Code.NONE, 0, 1)
    assert end_of_epoch(client, 4) == (Code.NONE, 3, 3)
    assert end_of_epoch(client, 5) == (Code.NONE, 5, 3)


def test_an_epoch_in_which_nothing_was_written_is_remembered_all_the_same(lives: Lives, led: Rig):
    for forgotten in (False, True):
        assert metadata_epoch(lives.restart(forgotten=forgotten).client()) == 5


def test_without_a_list_of_epochs_the_batches_say_which_there_were(lives: Lives, led: Rig):
    write(led, "t", 1)

    lives.rig.close()
    (lives.directory / "t-0" / EPOCHS).unlink()
    lives.rig = Rig(lives.directory)

    client = lives.rig.client()
    assert metadata_epoch(client) == 5
    assert end_of_epoch(client, 4) == (Code.NONE, 0, 3)
