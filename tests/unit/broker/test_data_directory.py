"""Starting on a data directory as it may be found: damaged, copied into, or written by another version."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from admin_rig import NOW_MS, Rig
from rig import Rig as FileRig

from coterie.base.ids import TopicPartition
from coterie.broker.runtime.pieces import at_once
from coterie.broker.topics.registry import FILE_NAME, UNTOUCHED_PRODUCER_IDS, Topics
from coterie.storage.config import LogConfig
from coterie.storage.memory import MemoryDisk, MemoryStore
from coterie.wire.records.batches import Record, build_batch

DAY_MS = 86_400_000
ORDERS = TopicPartition("orders", 0)
COMPACTED = {"cleanup.policy": "compact", "internal.segment.bytes": "200", "min.cleanable.dirty.ratio": "0"}


def a_batch(value: bytes = b"v", *, at: int = NOW_MS, **how: Any) -> bytes:
    return build_batch([Record(0, at, b"k", value)], **how)


def rewritten(rig: Rig, **fields: Any) -> Rig:
    """Return the broker after somebody wrote other things into its metadata file."""
    disk = rig.store.crash()
    document = json.loads(disk.load(f"data/{FILE_NAME}"))
    disk.save(f"data/{FILE_NAME}", json.dumps({**document, **fields}).encode())
    return Rig(disk)


# -- damage


def a_damaged_rig(position: int) -> Rig:
    """Return a broker whose closed, compacted segment has a wrong byte there, stopped cleanly before."""
    rig = Rig()
    rig.node.topic_manager.create_topic(
        "damaged", partitions=1, configs={**COMPACTED, "min.cleanable.dirty.ratio": "1"}
    )
    rig.node.topic_manager.create_topic("whole", partitions=1, configs=COMPACTED)
    for name in ("damaged", "whole"):
        for _ in range(6):
            rig.node.replica_manager.append(name, 0, a_batch(bytes(90)), now_ms=NOW_MS)
    rig.node.stop()
    file = rig.disk.open("data/damaged-0/00000000000000000000.log")
    file.write([bytes([file.read(1, position)[0] ^ 5])], position)
    return rig


@pytest.mark.parametrize("position", [0, 8, 11, 16, 17, 23, 61, 120])
def test_damage_in_a_closed_segment_costs_its_compaction_and_is_told_of_with_the_file(
    position: int, caplog: pytest.LogCaptureFixture
):
    """The magic of the first batch, and whatever else a byte may be of."""
    rig = a_damaged_rig(position)

    with caplog.at_level(logging.ERROR):
        rig.start(rig.disk)
        at_once(rig.node.topic_manager.configure_topics({"damaged": COMPACTED}))
        for _ in range(3):
            rig.node.cleaner.tick(NOW_MS)

    (told,) = [record.getMessage() for record in caplog.records]
    assert "data/damaged-0 is not compacted any more" in told
    assert "data/damaged-0/00000000000000000000.log" in told
    whole, damaged = (
        rig.node.replica_manager.log_of("whole", 0),
        rig.node.replica_manager.log_of("damaged", 0),
    )
    assert whole is not None
    assert damaged is not None
    assert whole.size_bytes < damaged.size_bytes
    assert rig.node.replica_manager.append("damaged", 0, a_batch(), now_ms=NOW_MS).base_offset == 6


def test_housekeeping_goes_on_after_a_round_that_failed(monkeypatch: pytest.MonkeyPatch):
    rig = Rig()

    def fails(now_ms: int) -> None:
        raise RuntimeError("whatever")

    monkeypatch.setattr(rig.node.cleaner, "tick", fails)
    before = rig.node.purgatory.at("housekeeping")
    assert before is not None
    with pytest.raises(RuntimeError):
        rig.node.purgatory.expire(before)

    after = rig.node.purgatory.at("housekeeping")
    assert after is not None
    assert after > before


# -- producers


def test_producers_are_kept_over_a_restart_as_long_as_the_setting_says(tmp_path: Path):
    settings = {"producer_id_expiration_ms": 7 * DAY_MS}
    rig = FileRig(tmp_path, **settings)
    rig.node.topic_manager.create_topic("t", partitions=1)
    sent = a_batch(at=rig.now_ms - 2 * DAY_MS, producer_id=5, producer_epoch=0, base_sequence=0)
    rig.node.replica_manager.append("t", 0, sent, now_ms=rig.now_ms)

    rig.close()
    rig = FileRig(tmp_path, **settings)

    again = rig.node.replica_manager.append("t", 0, sent, now_ms=rig.now_ms)
    assert (again.base_offset, again.duplicate) == (0, True)
    rig.close()


def test_no_id_that_a_client_made_up_keeps_others_from_getting_theirs():
    """TH-10: one batch with the greatest id there is ended InitProducerId for good."""
    rig = Rig()
    rig.node.topic_manager.create_topic("t", partitions=1)
    for producer_id in (2**63 - 1, 1 << 40, 12_345):
        batch = a_batch(producer_id=producer_id, producer_epoch=0, base_sequence=0)
        rig.node.replica_manager.append("t", 0, batch, now_ms=NOW_MS)
    rig.crash()
    assert rig.node.transactions is not None

    assert rig.topics.next_producer_id() == 0


@pytest.mark.parametrize("poison", [2**63 - 1, 2**63, 2**63 + 999, -1])
def test_a_stored_producer_id_that_leaves_none_to_give_out_is_told_of_and_passed_over(
    poison: int, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING):
        rig = rewritten(Rig(), next_producer_id=poison)

    assert str(poison) in caplog.text
    given = [rig.topics.next_producer_id() for _ in range(1001)]
    assert given == list(range(UNTOUCHED_PRODUCER_IDS, UNTOUCHED_PRODUCER_IDS + 1001))


def test_producer_ids_of_a_directory_taken_over_are_not_given_out_again():
    disk = MemoryDisk()
    store = MemoryStore.open(now_ms=NOW_MS, disk=disk)
    log = store.create_log("t", 0, Rig().node.new_uuid(), LogConfig.of({}))
    for producer_id in (41, 2**63 - 1):
        log.append(a_batch(producer_id=producer_id, producer_epoch=0, base_sequence=0), now_ms=NOW_MS)

    rig = Rig(store.crash())

    # Whoever had it may have it again, and goes on with 42.
    assert rig.topics.next_producer_id() == 1 << 40
    assert Topics.open(rig.settings, MemoryStore.open(now_ms=NOW_MS, disk=disk)).next_producer_id() > 42


# -- names and numbers


def topic(name: str, partitions: int) -> dict[str, Any]:
    return {"name": name, "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ", "partitions": partitions, "configs": {}}


@pytest.mark.parametrize("name", ["../escape", "a/b", "..", "", "ü", "__cluster_metadata"])
def test_a_stored_name_that_no_topic_may_have_makes_no_directory(name: str, caplog: pytest.LogCaptureFixture):
    rig = rewritten(
        Rig(), topics=[topic(name, 1), {**topic("sound", 1), "topic_id": "AAAAAAAAAAAAAAAAAAAAAg"}]
    )

    assert [one.name for one in rig.topics.all()] == ["sound"]
    assert rig.disk.directories("data") == ["sound-0"]
    assert f"topic {name!r} is passed over" in caplog.text


@pytest.mark.parametrize("partitions", [0, -5, 20_000_000])
def test_a_stored_number_of_partitions_that_cannot_be_is_not_believed(
    partitions: int, caplog: pytest.LogCaptureFixture
):
    before = Rig()
    before.node.topic_manager.create_topic("t", partitions=3)
    known = before.topics.get("t")
    assert known is not None
    (written,) = json.loads(before.disk.load(f"data/{FILE_NAME}"))["topics"]

    rig = rewritten(before, topics=[{**written, "partitions": partitions}])

    assert rig.topics.get("t") == known
    assert f"topic t cannot have {partitions} partitions" in caplog.text


def test_a_copy_of_a_partition_under_another_name_is_no_topic():
    rig = Rig()
    rig.node.topic_manager.create_topic("orders", partitions=1)
    rig.node.replica_manager.append("orders", 0, a_batch(), now_ms=NOW_MS)
    disk = rig.store.crash()
    disk.make_directory("data/backup-60")
    for name in disk.files("data/orders-0"):
        disk.save(f"data/backup-60/{name}", disk.load(f"data/orders-0/{name}"))
    log = "data/backup-60/00000000000000000000.log"
    there = disk.load(log)

    rig = Rig(disk)
    rig.node.cleaner.tick(NOW_MS + 30 * DAY_MS)

    assert [one.name for one in rig.topics.all()] == ["orders"]
    assert list(rig.store.logs) == [TopicPartition("orders", 0)]
    assert rig.disk.load(log) == there


def test_a_stranger_in_the_place_of_a_partition_costs_that_partition_and_no_start(
    caplog: pytest.LogCaptureFixture,
):
    rig = Rig()
    rig.node.topic_manager.create_topic("t", partitions=2)
    disk = rig.store.crash()
    disk.remove_tree("data/t-1")
    disk.make_directory("data/t-1")
    disk.save("data/t-1/precious", b"mine")

    rig = Rig(disk)

    assert list(rig.store.logs) == [TopicPartition("t", 0)]
    assert rig.disk.load("data/t-1/precious") == b"mine"
    assert "t-1 is not served" in caplog.text
    at_once(rig.node.topic_manager.configure_topics({"t": {"retention.ms": "5"}}))
    at_once(rig.node.topic_manager.delete_topics(["t"]))
    assert rig.disk.load("data/t-1/precious") == b"mine"


# -- gaps


def a_compacted_topic(rig: Rig, **how: int) -> dict[str, bytes]:
    """Make a topic whose first partition has gaps; return the files of that."""
    rig.node.topic_manager.create_topic("orders", configs=COMPACTED, **{"partitions": 1, **how})
    for place in range(9):
        rig.node.replica_manager.append("orders", 0, a_batch(b"%d" % place * 90), now_ms=NOW_MS)
    rig.store.logs[ORDERS].flush()
    rig.node.cleaner.tick(NOW_MS)
    found = {name: rig.disk.load(f"data/orders-0/{name}") for name in rig.disk.files("data/orders-0")}
    assert len(rig.store.logs[ORDERS].read(0, max_bytes=10_000)) < 9 * 90
    return {name: data for name, data in found.items() if not name.endswith(".deleted")}


def put_back(disk: MemoryDisk, files: dict[str, bytes]) -> None:
    """Have a directory be as it was."""
    for name in disk.files("data/orders-0"):
        disk.remove(f"data/orders-0/{name}")
    for name, data in files.items():
        disk.save(f"data/orders-0/{name}", data)


def made_anew(rig: Rig, partitions: int) -> None:
    """Have another topic of the name, which deletes, and whose log begins where the earlier one had ended."""
    at_once(rig.node.topic_manager.delete_topics(["orders"]))
    rig.node.topic_manager.create_topic("orders", partitions=partitions, configs={"cleanup.policy": "delete"})
    for partition in range(partitions):
        for _ in range(20):
            rig.node.replica_manager.append("orders", partition, a_batch(), now_ms=NOW_MS)
    rig.store.logs[ORDERS].delete_before(15, NOW_MS)
    rig.crash()  # nothing is left of the earlier one, which nobody remembers now


def test_the_log_of_an_earlier_topic_that_is_put_back_is_served_whole():
    """The later topic deletes, and has its start elsewhere: the log was cut at its first gap, or removed."""
    rig = Rig()
    files = a_compacted_topic(rig)
    there = rig.store.logs[ORDERS].read(0, max_bytes=10_000)
    made_anew(rig, 1)

    disk = rig.store.crash()
    put_back(disk, files)

    rig.start(disk)
    for _ in range(3):
        assert rig.store.logs[ORDERS].read(0, max_bytes=10_000) == there
        disk = rig.store.crash()
        disk.save("data/recovery-point-offset-checkpoint", b"0\n0\n")
        rig.start(disk)


def test_a_log_of_an_earlier_topic_is_set_aside_whole():
    rig = Rig()
    files = a_compacted_topic(rig)
    made_anew(rig, 2)

    disk = rig.store.crash()
    put_back(disk, files)
    rig.start(disk)

    (aside,) = [name for name in disk.directories("data") if name.endswith("-stray")]
    left = {name: disk.load(f"data/{aside}/{name}") for name in disk.files(f"data/{aside}")}
    assert {name: data for name, data in left.items() if name.endswith(".log")} == {
        name: data for name, data in files.items() if name.endswith(".log")
    }


def test_a_gap_is_no_damage_while_the_settings_of_a_topic_cannot_be_read():
    """Nobody knows whether it is compacted; an early version may not have written down that it was."""
    rig = Rig()
    a_compacted_topic(rig)
    there = rig.store.logs[ORDERS].read(0, max_bytes=10_000)
    rig.disk.save("data/cleaner-offset-checkpoint", b"0\n0\n")
    document = json.loads(rig.disk.load(f"data/{FILE_NAME}"))
    document["topics"][0]["configs"] |= {"retention.ms": "soon"}

    rig = rewritten(rig, topics=document["topics"])

    assert rig.store.logs[ORDERS].read(0, max_bytes=10_000) == there
