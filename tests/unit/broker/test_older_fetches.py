"""A fetch of records that are not in memory waits for the database, and holds up nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from coterie.base.codes import Code
from coterie.broker.runtime.leadership import Led
from coterie.broker.runtime.pieces import at_once
from coterie.storage.kind import OVERDUE_MS
from coterie.storage.remote.chunk import CHUNK_BYTES
from coterie.wire.records.batches import Record, build_batch, records_of, scan
from unit.broker import remote_node_rig
from unit.broker.test_hurried_fetches import FETCH, METADATA, OTHERS, WAIT_MS, Peer, fetch, fetch_before
from unit.broker.test_remote_node import ORDERS, RemoteRig, one_of_two, part

WIDE = 130
LIST_OFFSETS = 2


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteRig]:
    """A broker with three records, of which nothing is in memory; the database is read when it is told to."""
    monkeypatch.setattr(remote_node_rig, "TAIL_BYTES", 0)
    made = RemoteRig()
    for value in ("one", "two", "three"):
        made.produced(value)
    made.store.reader.rows_wait = True
    yield made
    made.close()


def answer(rig: RemoteRig) -> int:
    """Have the database answer; return the number of reads that it was asked for."""
    count = len(rig.store.reader.asked)
    rig.store.reader.answer()
    rig.settle()
    return count


def partition_of(answer: Any) -> Any:
    (topic,) = answer.responses
    (partition,) = topic.partitions
    return partition


def values(partition: Any) -> list[str]:
    assert partition.error_code == Code.NONE
    data = partition.records
    return [(one.value or b"").decode() for at, _ in scan(data) for one in records_of(data, at)]


def said(peer: Peer) -> list[list[str]]:
    """Return the records of each fetch that was answered."""
    return [values(partition_of(one)) for api_key, one in peer.answers() if api_key == FETCH]


def code_said(peer: Peer) -> Code:
    ((_, one),) = peer.answers()
    code: Code = partition_of(one).error_code
    return code


def fetch_one(topic: str, partition: int, max_bytes: int = 1 << 20) -> dict[str, Any]:
    """Return a fetch of one partition, of so much of it."""
    terms = {"partition": partition, "fetch_offset": 0, "partition_max_bytes": max_bytes}
    wanted = part(FETCH, 11, "FetchPartition", **terms)
    return {**fetch(), "topics": (part(FETCH, 11, "FetchTopic", topic=topic, partitions=(wanted,)),)}


def nothing_is_left(rig: RemoteRig) -> bool:
    """Return whether nobody waits for anything that is read."""
    recalls = [one for of_log in rig.store.recalls._recalls.values() for one in of_log.values()]
    return not any(one.readings for one in recalls) and not rig.store.recalls._queued


# -- on one connection


@pytest.mark.parametrize("together", [True, False], ids=["in-one-piece", "one-after-the-other"])
@pytest.mark.parametrize("other", OTHERS)
def test_a_request_of_another_kind_does_not_wait_for_the_database(rig: RemoteRig, other: int, together: bool):
    early = fetch_before(rig, other, together=together)

    assert values(partition_of(early)) == []
    assert partition_of(early).high_watermark == 3
    assert nothing_is_left(rig)


def test_who_was_hurried_finds_what_was_read_meanwhile_and_the_database_is_asked_once(rig: RemoteRig):
    peer = Peer(rig)
    for _ in range(5):
        peer.send(peer.frame(FETCH, fetch()), peer.frame(METADATA))
    assert said(peer) == [[]] * 5

    assert answer(rig) == 1
    peer.send(peer.frame(FETCH, fetch()))

    assert said(peer) == [["one", "two", "three"]]
    assert nothing_is_left(rig)


def test_a_fetch_that_has_just_joined_what_is_being_read_is_answered_when_that_comes(rig: RemoteRig):
    peer = Peer(rig)
    peer.send(peer.frame(FETCH, fetch()), peer.frame(METADATA), peer.frame(FETCH, fetch()))
    assert said(peer) == [[]]

    assert answer(rig) == 1

    assert said(peer) == [["one", "two", "three"]]


def test_fetches_behind_each_other_wait_and_are_answered_in_order(rig: RemoteRig):
    peer = Peer(rig)

    peer.send(*[peer.frame(FETCH, fetch(offset=offset)) for offset in (0, 1, 2)])
    assert peer.answers() == []
    while answer(rig):
        pass

    assert said(peer) == [["one", "two", "three"], ["two", "three"], ["three"]]


# -- how long it waits


def test_who_waits_for_no_more_records_waits_for_those_that_are_there(rig: RemoteRig):
    peer = Peer(rig)
    peer.send(peer.frame(FETCH, {**fetch(), "max_wait": 0}))
    rig.pass_ms(100)
    assert peer.answers() == []

    answer(rig)

    assert said(peer) == [["one", "two", "three"]]


def test_a_database_that_is_silent_is_an_error_and_no_hang(rig: RemoteRig):
    peer = Peer(rig)
    waiting = len(rig.node.purgatory)
    peer.send(peer.frame(FETCH, {**fetch(), "max_wait": 60_000}))

    rig.pass_ms(OVERDUE_MS - 1)
    assert peer.answers() == []
    rig.pass_ms(1)
    assert code_said(peer) == Code.KAFKA_STORAGE_ERROR
    assert len(rig.node.purgatory) == waiting
    assert nothing_is_left(rig)
    peer.send(peer.frame(FETCH, fetch()), peer.frame(METADATA))
    assert partition_of(peer.answers()[0][1]).error_code == Code.KAFKA_STORAGE_ERROR

    answer(rig)
    peer.send(peer.frame(FETCH, fetch()))
    assert said(peer) == [["one", "two", "three"]]


def test_a_database_that_is_away_is_an_error_at_once(rig: RemoteRig):
    rig.store.reader.rows_wait = False
    rig.store.engine.go_away()
    peer = Peer(rig)

    peer.send(peer.frame(FETCH, fetch()))

    assert code_said(peer) == Code.KAFKA_STORAGE_ERROR
    assert nothing_is_left(rig)
    rig.store.engine.come_back()
    peer.send(peer.frame(FETCH, fetch()))
    assert said(peer) == [["one", "two", "three"]]


def by_time(topic: str = "orders", partitions: int = 1) -> dict[str, Any]:
    """Return a question for the first record that is as young, of each partition."""
    cls = "ListOffsetsPartition"
    asked = [part(LIST_OFFSETS, 6, cls, partition_index=n, timestamp=1) for n in range(partitions)]
    return {"topics": (part(LIST_OFFSETS, 6, "ListOffsetsTopic", name=topic, partitions=tuple(asked)),)}


def offsets_said(peer: Peer) -> list[tuple[Code, int]]:
    """Return code and offset of each partition of the one answer that has come."""
    ((_, one),) = peer.answers()
    return [(of.error_code, of.offset) for of in one.topics[0].partitions]


def test_who_asks_for_offsets_by_time_waits_for_a_silent_database_no_longer_than_a_fetch(rig: RemoteRig):
    wide(rig, WIDE)
    peer = Peer(rig)
    peer.send(peer.frame(LIST_OFFSETS, by_time("wide", WIDE)))

    rig.pass_ms(OVERDUE_MS - 1)
    assert peer.answers() == []
    rig.pass_ms(1)

    assert offsets_said(peer) == [(Code.KAFKA_STORAGE_ERROR, -1)] * WIDE
    assert answer(rig) == 1
    peer.send(peer.frame(LIST_OFFSETS, by_time()))
    answer(rig)
    assert offsets_said(peer) == [(Code.NONE, 0)]


# -- how much is enough


def size_of(rig: RemoteRig) -> int:
    return rig.log().size_bytes


def test_who_wants_no_more_than_there_is_is_answered_when_it_was_read(rig: RemoteRig):
    peer = Peer(rig)
    peer.send(peer.frame(FETCH, fetch(min_bytes=size_of(rig))))

    answer(rig)

    assert said(peer) == [["one", "two", "three"]]


@pytest.mark.parametrize("offset", [0, 1])
def test_who_wants_more_than_there_is_from_where_they_read_waits_for_it(rig: RemoteRig, offset: int):
    peer = Peer(rig)
    there = size_of(rig) * (3 - offset) // 3 + 10  # the third has two letters more
    peer.send(peer.frame(FETCH, fetch(min_bytes=there + 1, offset=offset)))
    answer(rig)
    assert peer.answers() == []

    rig.store.reader.rows_wait = False
    rig.produced("four")

    assert said(peer) == [["one", "two", "three"][offset:]]  # what came went out of memory at once
    assert nothing_is_left(rig)


def test_who_wants_more_than_comes_is_answered_with_what_is_there_in_time(rig: RemoteRig):
    peer = Peer(rig)
    peer.send(peer.frame(FETCH, fetch(min_bytes=1 << 20)))
    rig.pass_ms(1_000)
    answer(rig)

    rig.pass_ms(WAIT_MS - 1_001)
    assert peer.answers() == []
    rig.pass_ms(1)

    assert said(peer) == [["one", "two", "three"]]


@pytest.mark.parametrize("max_bytes", [0, 1, -1])
def test_a_fetch_with_room_for_nothing_has_one_batch(rig: RemoteRig, max_bytes: int):
    peer = Peer(rig)
    of_all, of_one = {**fetch(), "max_bytes": max_bytes}, fetch_one("orders", 0, max_bytes)
    peer.send(peer.frame(FETCH, of_all), peer.frame(FETCH, of_one))

    answer(rig)
    answer(rig)

    assert said(peer) == [["one"], ["one"]]


@pytest.mark.parametrize("offset", [4, 1 << 40, -1])
def test_an_offset_that_is_not_there_is_an_error_at_once(rig: RemoteRig, offset: int):
    peer = Peer(rig)

    peer.send(peer.frame(FETCH, fetch(offset=offset)))

    assert code_said(peer) == Code.OFFSET_OUT_OF_RANGE
    assert rig.store.reader.asked == []


def test_a_start_that_moves_beyond_what_is_being_read_is_heard_of(rig: RemoteRig):
    peer = Peer(rig)
    peer.send(peer.frame(FETCH, fetch()))

    rig.log().delete_before(2, rig.now_ms)
    answer(rig)

    assert code_said(peer) == Code.OFFSET_OUT_OF_RANGE


# -- what happens meanwhile


def test_a_fetch_is_answered_when_its_topic_is_deleted_under_the_read(rig: RemoteRig):
    peer = Peer(rig)
    peer.send(peer.frame(FETCH, fetch()))

    at_once(rig.node.topic_manager.delete_topics(["orders"]))
    rig.settle()

    assert code_said(peer) == Code.UNKNOWN_TOPIC_OR_PARTITION
    answer(rig)
    assert peer.answers() == []
    assert nothing_is_left(rig)
    assert rig.store.recalls.bytes == 0


def test_a_fetch_is_sent_to_the_next_leader_when_the_partition_moves_under_the_read(rig: RemoteRig):
    leaders = one_of_two(rig)
    client = rig.client()
    terms = {"current_leader_epoch": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    wanted = part(FETCH, 16, "FetchPartition", partition=0, **terms)
    topic = part(FETCH, 16, "FetchTopic", topic_id=rig.topic_id("orders"), partitions=(wanted,))
    client.send(FETCH, 16, topics=(topic,), max_wait=5_000, min_bytes=1)
    assert client.answers() == []

    leaders.elect(ORDERS, Led(rig.settings.node_id + 1, 1))
    rig.store.drop(ORDERS)
    rig.node.purgatory.force_watching(ORDERS)
    rig.settle()

    (said,) = client.answers()
    partition = partition_of(said)
    assert partition.error_code == Code.NOT_LEADER_OR_FOLLOWER
    assert partition.current_leader.leader_id == rig.settings.node_id + 1
    assert [node.port for node in said.node_endpoints] == [2]
    answer(rig)
    assert client.answers() == []
    assert rig.store.recalls.bytes == 0


@pytest.mark.parametrize("partitions", [1, WIDE])
def test_who_hangs_up_while_the_database_is_read_leaves_nothing_behind(rig: RemoteRig, partitions: int):
    wide(rig, WIDE)
    peer = Peer(rig)
    waiting = len(rig.node.purgatory)
    peer.send(peer.frame(FETCH, fetch("wide", partitions)))
    assert len(rig.node.purgatory) == waiting + 1

    peer.connection.connection_lost(None)

    assert len(rig.node.purgatory) == waiting
    assert nothing_is_left(rig)
    answer(rig)
    assert peer.answers() == []


def test_who_hangs_up_while_there_is_no_room_has_nothing_read(rig: RemoteRig):
    rig.store.recalls.limit = 1
    others, peer = Peer(rig), Peer(rig)
    others.send(others.frame(FETCH, fetch()))
    peer.send(peer.frame(FETCH, fetch(offset=1)))

    peer.connection.connection_lost(None)

    assert answer(rig) == 1
    assert said(others) == [["one"]]


# -- many partitions


def wide(rig: RemoteRig, partitions: int) -> None:
    """Make a topic with a record in each of its partitions, none of which is in memory."""
    rig.store.reader.rows_wait = False
    rig.node.topic_manager.create_topic("wide", partitions=partitions)
    rig.settle()
    for number in range(partitions):
        batch = build_batch([Record(0, rig.now_ms, None, b"%d" % number)])
        rig.node.replica_manager.append("wide", number, batch, now_ms=rig.now_ms)
    rig.settle()
    rig.store.reader.rows_wait = True


def test_of_many_partitions_some_are_read_at_a_time_and_all_in_the_end(rig: RemoteRig):
    wide(rig, WIDE)
    peer = Peer(rig)
    offsets = [0] * WIDE
    found: list[int] = []

    for _ in range(3):
        wanted = fetch("wide", WIDE)
        asked = wanted["topics"][0].partitions
        parts = [
            part(
                FETCH,
                11,
                "FetchPartition",
                partition=one.partition,
                fetch_offset=offset,
                partition_max_bytes=1 << 20,
            )
            for one, offset in zip(asked, offsets, strict=True)
        ]
        wanted["topics"] = (part(FETCH, 11, "FetchTopic", topic="wide", partitions=tuple(parts)),)
        peer.send(peer.frame(FETCH, wanted))
        while answer(rig):
            pass
        rig.pass_ms(1)
        ((_, said),) = peer.answers()
        for partition in said.responses[0].partitions:
            if partition.records:
                assert values(partition) == [str(partition.partition_index)]
                offsets[partition.partition_index] = 1
                found.append(partition.partition_index)

    assert sorted(found) == [*range(WIDE)]
    assert nothing_is_left(rig)


def test_a_fetch_waits_for_older_records_though_others_are_at_hand_and_is_hurried_with_those(rig: RemoteRig):
    rig.store.cache.limit = 1 << 20
    rig.node.replica_manager.append(
        "orders", 1, build_batch([Record(0, rig.now_ms, None, b"new")]), now_ms=rig.now_ms
    )
    rig.settle()
    patient, hasty = Peer(rig), Peer(rig)
    patient.send(patient.frame(FETCH, fetch(partitions=2)))
    hasty.send(hasty.frame(FETCH, fetch(partitions=2)), hasty.frame(METADATA))

    early = hasty.answers()[0][1].responses[0].partitions
    assert [values(one) for one in early] == [[], ["new"]]
    assert patient.answers() == []
    answer(rig)
    ((_, late),) = patient.answers()
    assert [values(one) for one in late.responses[0].partitions] == [["one", "two", "three"], ["new"]]


# -- when memory is short


def test_consumers_who_read_all_at_once_have_no_more_in_memory_than_there_is_room_for(rig: RemoteRig):
    recalls, asked = rig.store.recalls, rig.store.reader.asked
    recalls.limit = 4 * CHUNK_BYTES
    wide(rig, 50)
    peers = [Peer(rig) for _ in range(50)]
    for number, peer in enumerate(peers):
        peer.send(peer.frame(FETCH, fetch_one("wide", number)))
    reads = 0
    while asked:
        assert len(asked) <= 3
        assert recalls.bytes <= recalls.limit
        asked.pop(0)()
        rig.settle()
        reads += 1

    assert reads == 50
    assert [said(peer) for peer in peers] == [[[str(number)]] for number in range(50)]
    assert nothing_is_left(rig)


def test_who_waits_for_more_with_what_others_want_the_room_of_is_answered_with_it(rig: RemoteRig):
    patient, other = Peer(rig), Peer(rig)
    patient.send(patient.frame(FETCH, fetch(min_bytes=1 << 20)))
    answer(rig)
    assert patient.answers() == []

    rig.store.recalls.limit = 1
    other.send(other.frame(FETCH, fetch(offset=1)))

    assert said(patient) == [["one", "two", "three"]]
    answer(rig)
    assert said(other) == [["two"]]  # as little as there is room for
