"""Directories that go from Apache Kafka to our broker and back, by seed, and what must hold in ours.

`python tests/unit/broker/takeovers.py FIRST LAST` lives the lives of more seeds than the tests do.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from random import Random
from typing import Any

from admin_rig import Rig, part
from kafka_life import CHANGES, DAY_MS, NODE, NOW_MS, OF_BROKERS, KafkaLife, Lived, position_at_end

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.runtime.pieces import at_once
from coterie.broker.topics.topic import KEPT_FOR_EVER
from coterie.storage.cluster_log import CLUSTER_LOG
from coterie.storage.memory import MemoryDisk
from coterie.wire.records.batches import Record, build_batch, records_of, scan

__all__ = ["takeover"]

FETCH, LIST_OFFSETS, METADATA, END_OF_EPOCH = 1, 2, 3, 23
# What a broker of ours may be started with; nothing of it may let go of what was Kafka's.
OURS = ({}, {"log_cleanup_policy": "compact"}, {"log_segment_bytes": 1 << 20}, {"num_partitions": 5})


def takeover(seed: int) -> None:
    """Live the lives of a seed. Raises AssertionError where something is lost or stands still."""
    random = Random(seed)
    life = KafkaLife(MemoryDisk(seed=seed), random)
    ours: dict[str, list[bytes]] = {}
    for _ in range(random.randint(1, 3)):
        life.live(random.randint(5, 25))
        rig = open_ours(life.stop(), random)
        check(rig, life, ours)
        go_on(rig, life, ours, random)
        remember(rig, life)
        disk = end(rig, random)
        if random.random() < 0.3:
            rig = open_ours(disk, random)
            check(rig, life, ours)
            disk = end(rig, random)
        go_back(life, disk)


def open_ours(disk: MemoryDisk, random: Random) -> Rig:
    """Return our broker on the directory, a while after it was opened."""
    before = kafka_s_log(disk)
    rig = Rig(disk, node_id=NODE, **random.choice(OURS))
    for days in (0, 30, 60):
        rig.node.cleaner.tick(NOW_MS + days * DAY_MS)
    assert kafka_s_log(disk) == before
    return rig


def end(rig: Rig, random: Random) -> MemoryDisk:
    """Stop our broker in order or not, and return the disk."""
    if random.random() < 0.5:
        rig.node.stop()
        return rig.disk
    return rig.store.crash()


def go_back(life: KafkaLife, disk: MemoryDisk) -> None:
    """Have Kafka open the directory: it never falls back behind an epoch of ours."""
    life.disk = disk
    life.start()
    for known in life.topics.values():
        for partition, epoch in enumerate(known.epochs):
            log = life.log(known.name, partition)
            assert log.latest_epoch == epoch, f"{log.name} was led in {log.latest_epoch} here, {epoch} there"
            assert committed_values(log) == known.values[partition], f"{log.name} is not whole on Kafka"


# -- what must hold in ours


def check(rig: Rig, life: KafkaLife, ours: dict[str, list[bytes]]) -> None:
    """Kafka's topics are here, whole, and their clients go on; so are those that were made here."""
    for known in life.topics.values():
        topic = rig.topics.get(known.name)
        assert topic is not None, f"{known.name} is not here"
        assert (topic.topic_id, topic.partitions) == (known.topic_id, len(known.epochs)), known.name
        check_settings(known, topic.configs)
        for partition in range(len(known.epochs)):
            check_partition(rig, known, partition)
    for name, values in ours.items():
        if name not in life.topics:
            assert rig.topics.get(name) is not None, f"{name}, made here, is gone"
            found = committed_values(rig.store.logs[TopicPartition(name, 0)])
            assert found == values, f"{name}, made here, has {len(found)} records and not {len(values)}"
    assert rig.topics.next_producer_id() >= life.next_producer_id + 10**9


def check_settings(known: Lived, now: Mapping[str, str]) -> None:
    """What Kafka has changed since counts, else what was left here; what Kafka took away may be kept."""
    for name in {*known.before, *known.configs, *known.here}:
        wanted = {known.here.get(name)}
        if name in OF_BROKERS:
            wanted.add(OF_BROKERS[name][1])  # what was set for all brokers meanwhile is a change, too
        if known.configs.get(name) != known.before.get(name):
            wanted = {known.configs.get(name)}
            if name not in known.configs:
                wanted.add(KEPT_FOR_EVER.get(name))
        assert now.get(name) in wanted, f"{known.name}: {name} is {now.get(name)}, and not of {wanted}"


def remember(rig: Rig, life: KafkaLife) -> None:
    """Note how the settings are left."""
    for known in life.topics.values():
        known.before = dict(known.configs)
        known.here = dict(rig.topics.get(known.name).configs)  # type: ignore[union-attr]


def check_partition(rig: Rig, known: Lived, partition: int) -> None:
    """Everything written is there, and a Java consumer that resumes from any position reads on."""
    log = rig.store.logs[TopicPartition(known.name, partition)]
    assert committed_values(log) == known.values[partition], f"{log.name}: something went"
    told = told_epoch(rig, known.name, partition)
    assert told == log.latest_epoch
    for offset, epoch, told_before in known.positions[partition]:
        # Java's Metadata passes over leaders of older epochs than it has seen, and waits.
        assert told >= told_before, f"{log.name}: who was told {told_before} waits for ever, now it is {told}"
        code, ending_epoch, ends_at = end_of_epoch(rig, known.name, partition, epoch, current=told)
        assert (code, ending_epoch) == (Code.NONE, epoch)
        assert ends_at >= offset, f"{log.name}: taken for truncated at {ends_at}, a consumer was at {offset}"
        code = fetch_code(rig, known.name, partition, offset, current=told)
        assert code == Code.NONE, f"{log.name}: fetching at {offset} in epoch {told} is answered {code.name}"


def committed_values(log: Any) -> list[bytes]:
    """Return the values of a log that a read_committed consumer sees, oldest first."""
    if log.start_offset == log.end_offset:
        return []
    found = []
    at = log.start_offset
    while at < log.last_stable_offset:
        data, aborted = log.read_committed(at, max_bytes=1 << 20)
        for place, header in scan(data):
            at = header.last_offset + 1
            skipped = any(header.producer_id == one.producer_id for one in aborted)
            if not header.control and not (header.transactional and skipped):
                found += [record.value for record in records_of(data, place) if record.value is not None]
    return found


# -- what is done here


def go_on(rig: Rig, life: KafkaLife, ours: dict[str, list[bytes]], random: Random) -> None:
    """Write to Kafka's topics and to one of ours, change settings, delete."""
    for known in life.topics.values():
        for partition in range(len(known.epochs)):
            told = told_epoch(rig, known.name, partition)
            if random.random() < 0.5:
                values = write(rig, known.name, partition, random)
                known.values[partition] += values
                position = position_at_end(rig.store.logs[TopicPartition(known.name, partition)], told)
                assert position.epoch == told, "what is written carries the epoch that is told"
                known.positions[partition].append(position)
        if random.random() < 0.3 and "unheard.of" not in known.configs:
            key, text = random.choice(CHANGES)
            topic = rig.topics.get(known.name)
            assert topic is not None
            at_once(rig.node.topic_manager.configure_topics({known.name: {**topic.configs, key: text}}))
    name = random.choice("mn")
    if rig.topics.get(name) is None:
        rig.node.topic_manager.create_topic(name, partitions=1, configs=dict(KEPT_FOR_EVER))
        ours[name] = []
    ours[name] += write(rig, name, 0, random)
    if life.topics and random.random() < 0.2:
        delete(rig, life, random.choice(list(life.topics.values())))


def delete(rig: Rig, life: KafkaLife, gone: Lived) -> None:
    """Delete a topic of Kafka's, which Kafka makes anew and empty when it comes back."""
    at_once(rig.node.topic_manager.delete_topics([gone.name]))
    rig.crash()
    assert rig.topics.get(gone.name) is None
    del life.topics[gone.name]
    life.missing.append(gone)
    gone.before, gone.here = {}, {}
    for partition in range(len(gone.epochs)):
        gone.values[partition], gone.positions[partition] = [], []


def write(rig: Rig, topic: str, partition: int, random: Random) -> list[bytes]:
    values = [b"o%d" % random.getrandbits(40) for _ in range(random.randint(1, 3))]
    for value in values:
        age_ms = random.choice((0, 400)) * DAY_MS
        rig.node.replica_manager.append(
            topic, partition, build_batch([Record(0, NOW_MS - age_ms, b"k", value)]), now_ms=NOW_MS
        )
    return values


# -- asking


def told_epoch(rig: Rig, topic: str, partition: int) -> int:
    answer = rig.ask(
        METADATA,
        9,
        topics=(part(METADATA, 9, "MetadataRequestTopic", name=topic),),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    epoch: int = answer.topics[0].partitions[partition].leader_epoch
    return epoch


def end_of_epoch(rig: Rig, topic: str, partition: int, epoch: int, *, current: int) -> tuple[Code, int, int]:
    named = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
    asked = part(END_OF_EPOCH, 4, "OffsetForLeaderPartition", **named)
    topics = (part(END_OF_EPOCH, 4, "OffsetForLeaderTopic", topic=topic, partitions=(asked,)),)
    found = rig.ask(END_OF_EPOCH, 4, replica_id=-1, topics=topics).topics[0].partitions[0]
    return found.error_code, found.leader_epoch, found.end_offset


def fetch_code(rig: Rig, topic: str, partition: int, offset: int, *, current: int) -> Code:
    """Return the code with which ListOffsets answers: it looks at the epoch as a fetch does."""
    asked = part(
        LIST_OFFSETS,
        7,
        "ListOffsetsPartition",
        partition_index=partition,
        current_leader_epoch=current,
        timestamp=-1,
    )
    topics = (part(LIST_OFFSETS, 7, "ListOffsetsTopic", name=topic, partitions=(asked,)),)
    found = rig.ask(LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics).topics[0].partitions[0]
    assert found.offset >= offset or found.error_code
    code: Code = found.error_code
    return code


def kafka_s_log(disk: MemoryDisk) -> dict[str, bytes]:
    where = f"data/{CLUSTER_LOG}"
    return {name: disk.load(f"{where}/{name}") for name in disk.files(where)}


if __name__ == "__main__":
    logging.disable()
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            takeover(number)
        except Exception:
            print(f"seed {number}", file=sys.stderr)
            raise
