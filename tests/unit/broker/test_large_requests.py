"""What is named often is answered once, and what is asked for in bulk is answered in pieces.

Work is counted, never timed: how often a log is looked at, how often others have their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.api.data import Parts, delete_records
from coterie.broker.net.connection import Connection
from coterie.broker.net.request_queue import RequestQueue, here_and_now
from coterie.broker.runtime.pieces import ITEMS_AT_ONCE, at_once
from coterie.wire.api.codec import (
    decode_response,
    encode_request,
)
from coterie.wire.api.entities import (
    build,
    entity,
    request_type,
    response_type,
)
from coterie.wire.records.batches import Record, build_batch, head_for, records_of
from coterie.wire.records.compression import compress
from unit.broker.rig import Client, Line, Rig, a_context

PRODUCE, FETCH, LIST_OFFSETS, METADATA, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS = 0, 1, 2, 3, 19, 20, 21
MANY = 2_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    running = Rig(tmp_path)
    running.node.topic_manager.create_topic("t", partitions=3)
    yield running
    running.close()


def produce(client: Client, *, partition: int = 0, value: bytes = b"v") -> Any:
    batch = build_batch([Record(0, client.rig.now_ms, None, value)])
    data = build(entity("produce", 9, "PartitionProduceData"), index=partition, records=batch)
    topic = build(entity("produce", 9, "TopicProduceData"), name="t", partition_data=(data,))
    return client.ask(PRODUCE, 9, acks=-1, timeout=1_000, topic_data=(topic,))


def wanted(partition: int, offset: int = 0) -> Any:
    cls = entity("fetch", 11, "FetchPartition")
    return build(cls, partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)


def fetch_of(
    *topics: tuple[str, tuple[Any, ...]], min_bytes: int = 1, wait_ms: int = 60_000
) -> dict[str, Any]:
    cls = entity("fetch", 11, "FetchTopic")
    asked = tuple(build(cls, topic=name, partitions=partitions) for name, partitions in topics)
    return {"max_wait": wait_ms, "min_bytes": min_bytes, "max_bytes": 1 << 26, "topics": asked}


# -- named often, answered once


def test_a_fetch_that_names_a_partition_often_waits_for_it_once_and_looks_at_it_once_for_each_append(
    rig: Rig,
):
    looks = []
    log = rig.store.logs[TopicPartition("t", 0)]
    reader, writer = rig.client(), rig.client()
    reader.send(FETCH, 11, **fetch_of(("t", (wanted(0),) * MANY), min_bytes=1 << 25))
    size_between = log.size_between
    log.size_between = lambda *span: looks.append(span) or size_between(*span)  # type: ignore[method-assign]

    for _ in range(5):
        produce(writer)

    assert len(looks) == 5
    rig.pass_ms(60_000)
    [answer] = reader.answers()
    [topic] = answer.responses
    assert [one.partition_index for one in topic.partitions] == [0]


def test_an_append_looks_at_its_own_partition_of_a_fetch_that_waits_for_thousands(rig: Rig):
    rig.node.topic_manager.create_topic("wide", partitions=300)
    looks = []
    for name, log in rig.store.logs.items():
        if name.topic == "wide":
            log.size_between = lambda *span: looks.append(span) or 1  # type: ignore[method-assign]
    rig.client().send(
        FETCH, 11, **fetch_of(("wide", tuple(wanted(n) for n in range(300))), min_bytes=1 << 25)
    )

    batch = build_batch([Record(0, rig.now_ms, None, b"v")])
    for _ in range(3):
        rig.node.replica_manager.append("wide", 7, batch, now_ms=rig.now_ms)

    assert len(looks) == 3


def test_a_partition_that_is_fetched_again_in_one_request_is_meant_as_it_is_said_last(rig: Rig):
    client = rig.client()
    for _ in range(3):
        produce(client)

    answer = client.ask(FETCH, 11, **fetch_of(("t", (wanted(0, 0), wanted(1, 0), wanted(0, 2))), wait_ms=0))

    [topic] = answer.responses
    assert [one.partition_index for one in topic.partitions] == [0, 1]
    assert topic.partitions[0].records == rig.store.logs[TopicPartition("t", 0)].read(2, max_bytes=1 << 20)


def test_a_topic_that_is_asked_for_often_is_described_once(rig: Rig):
    cls = entity("metadata", 9, "MetadataRequestTopic")

    answer = rig.client().ask(METADATA, 9, topics=(build(cls, name="t"),) * MANY)

    assert [topic.name for topic in answer.topics] == ["t"]


def test_a_partition_that_list_offsets_names_twice_is_refused_and_the_others_are_told(rig: Rig):
    cls = entity("list_offsets", 6, "ListOffsetsPartition")
    latest = tuple(build(cls, partition_index=n, timestamp=-1) for n in (0, 1, 0))
    topic = build(entity("list_offsets", 6, "ListOffsetsTopic"), name="t", partitions=latest)

    answer = rig.client().ask(LIST_OFFSETS, 6, replica_id=-1, topics=(topic,))

    told = [(one.partition_index, one.error_code) for one in answer.topics[0].partitions]
    assert told == [(0, Code.INVALID_REQUEST), (1, Code.NONE)]


@pytest.mark.parametrize(
    ("timestamp", "since"), [(-1, 1), (-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 12), (-(2**63), 12)]
)
def test_a_time_that_means_nothing_yet_is_refused_and_not_taken_for_another(
    rig: Rig, timestamp: int, since: int
):
    """As Apache Kafka 4.3.1 does, version by version: -3 to -6 came with later ones."""
    for version in range(1, 12):
        cls = entity("list_offsets", version, "ListOffsetsPartition")
        partition = build(cls, partition_index=0, timestamp=timestamp)
        topic = build(entity("list_offsets", version, "ListOffsetsTopic"), name="t", partitions=(partition,))

        answer = rig.client().ask(LIST_OFFSETS, version, replica_id=-1, topics=(topic,))

        refused = answer.topics[0].partitions[0].error_code == Code.UNSUPPORTED_VERSION
        assert refused == (version < since)


def test_records_that_are_deleted_twice_in_one_request_are_deleted_as_it_is_said_last(rig: Rig):
    client = rig.client()
    for _ in range(3):
        produce(client)
    cls = entity("delete_records", 2, "DeleteRecordsPartition")
    partitions = tuple(build(cls, partition_index=0, offset=offset) for offset in (3, 1))
    topic = build(entity("delete_records", 2, "DeleteRecordsTopic"), name="t", partitions=partitions)

    answer = client.ask(DELETE_RECORDS, 2, topics=(topic,), timeout=1_000)

    assert [one.low_watermark for one in answer.topics[0].partitions] == [1]


def test_a_topic_without_a_name_is_one_that_is_not_there(rig: Rig):
    records = build_batch([Record(0, rig.now_ms, None, b"v")])

    fetched = rig.client().ask(FETCH, 11, **fetch_of(("", (wanted(0),))))
    written = rig.client().ask(PRODUCE, 9, **produced(records, topic=""))

    assert fetched.responses[0].partitions[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert written.responses[0].partition_responses[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


# -- aside


def produced(records: bytes, *, topic: str = "t", times: int = 1) -> Any:
    data = build(entity("produce", 9, "PartitionProduceData"), index=0, records=records)
    asked = build(entity("produce", 9, "TopicProduceData"), name=topic, partition_data=(data,) * times)
    return {"acks": -1, "timeout": 1_000, "topic_data": (asked,)}


def a_bomb(rig: Rig, count: int = 6_000) -> bytes:
    """A batch of more records than are walked over at once, which says that they are two hours ahead."""
    smallest = bytes((14, 0, 0, 0, 2, 97, 1, 0))
    body = compress("zstd", smallest * count)
    terms = {"base_timestamp": rig.now_ms, "max_timestamp": rig.now_ms + 7_200_000, "codec": "zstd"}
    return head_for(body, count=count, **terms) + body


def test_records_that_must_be_decoded_are_decoded_aside_and_others_are_answered_meanwhile(rig: Rig):
    asides: list[Any] = []
    rounds, line, other = Rounds(), Line(), Line()
    queue = RequestQueue(
        lambda act: rounds.soon.append(act), rounds.clock, lambda *asked: asides.append(asked)
    )
    connections = [Connection(rig.node, queue) for _ in range(2)]
    for connection, end in zip(connections, (line, other), strict=True):
        connection.connection_made(end)

    request = build(request_type(PRODUCE, 9), **produced(a_bomb(rig)))
    connections[0].data_received(encode_request(1, "test", request))
    rounds.until_done()
    [(work, arguments, finish, items)] = asides
    assert items == 6_000
    connections[1].data_received(encode_request(1, "test", build(request_type(18, 3))))
    rounds.until_done()
    assert (line.written, bool(other.written)) == (b"", True)
    done: Future[Any] = Future()
    done.set_result(work(*arguments))
    finish(done)
    rounds.until_done()

    assert line.written
    log = rig.store.logs[TopicPartition("t", 0)]
    assert log.end_offset == 6_000
    found = log.offset_of_max_timestamp()
    assert found is not None
    assert found.timestamp == rig.now_ms  # as its records say, whatever its header said


def answered_after(
    rig: Rig, meanwhile: Callable[[], object], api_key: int, version: int, **values: Any
) -> Any:
    """Return the answer to a request of which something is done aside, and something else `meanwhile`."""
    asides: list[Any] = []
    rounds, line = Rounds(), Line()
    queue = RequestQueue(
        lambda act: rounds.soon.append(act), rounds.clock, lambda *asked: asides.append(asked)
    )
    connection = Connection(rig.node, queue)
    connection.connection_made(line)
    connection.data_received(encode_request(1, "test", build(request_type(api_key, version), **values)))
    rounds.until_done()
    meanwhile()
    while asides:
        here_and_now(*asides.pop())
        rounds.until_done()
    return decode_response(response_type(api_key, version), line.written[4:])[1]


def made_anew(rig: Rig) -> Callable[[], None]:
    def again() -> None:
        at_once(rig.node.topic_manager.delete_topics(["t"]))
        rig.node.topic_manager.create_topic("t", partitions=3)

    return again


def test_a_batch_that_is_looked_through_aside_is_not_written_to_the_next_topic_of_the_name(rig: Rig):
    topic = rig.node.topics.get("t")
    assert topic is not None
    data = build(entity("produce", 13, "PartitionProduceData"), index=0, records=a_bomb(rig))
    cls = entity("produce", 13, "TopicProduceData")
    terms = {"topic_data": (build(cls, topic_id=topic.topic_id, partition_data=(data,)),)}

    answer = answered_after(rig, made_anew(rig), PRODUCE, 13, acks=-1, timeout=1_000, **terms)

    [told] = answer.responses[0].partition_responses
    assert told.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert rig.store.logs[TopicPartition("t", 0)].end_offset == 0


@pytest.mark.parametrize("stop", range(5))
def test_a_topic_made_anew_while_records_are_deleted_does_not_start_where_the_last_was_to(
    rig: Rig, stop: int
):
    """What is written down would be believed at the next start, and what the new one has be dropped."""
    for _ in range(3):
        produce(rig.client())
    cls = entity("delete_records", 2, "DeleteRecordsPartition")
    partitions = tuple(build(cls, partition_index=number, offset=3) for number in range(ITEMS_AT_ONCE + 1))
    topic = build(entity("delete_records", 2, "DeleteRecordsTopic"), name="t", partitions=partitions)
    context = a_context(DELETE_RECORDS, 2)
    work = delete_records(
        rig.node.parts(Parts), context, build(request_type(DELETE_RECORDS, 2), topics=(topic,))
    )
    for _ in range(stop):
        next(work)

    made_anew(rig)()
    at_once(work)

    assert not rig.node.store.checkpoints.starts.get(TopicPartition("t", 0), 0)


def test_a_topic_that_goes_while_its_batches_are_looked_through_is_not_there(rig: Rig):
    rig.client().ask(PRODUCE, 9, **produced(a_bomb(rig)))
    cls = entity("list_offsets", 6, "ListOffsetsPartition")
    asked = build(cls, partition_index=0, timestamp=rig.now_ms)
    topic = build(entity("list_offsets", 6, "ListOffsetsTopic"), name="t", partitions=(asked,))

    answer = answered_after(rig, made_anew(rig), LIST_OFFSETS, 6, replica_id=-1, topics=(topic,))

    [told] = answer.topics[0].partitions
    assert (told.error_code, told.offset) == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1)


def test_a_batch_that_is_too_much_is_refused_by_its_header(rig: Rig):
    answer = rig.client().ask(PRODUCE, 9, **produced(a_bomb(rig, 1_000_001)))

    [told] = answer.responses[0].partition_responses
    assert told.error_code == Code.RECORD_LIST_TOO_LARGE


def test_a_partition_that_is_produced_to_twice_in_one_request_gets_what_is_said_last(rig: Rig):
    batches = [build_batch([Record(0, rig.now_ms, None, value)]) for value in (b"first", b"last")]
    parts = tuple(build(entity("produce", 9, "PartitionProduceData"), index=0, records=b) for b in batches)
    topic = build(entity("produce", 9, "TopicProduceData"), name="t", partition_data=parts)

    answer = rig.client().ask(PRODUCE, 9, acks=-1, timeout=1_000, topic_data=(topic,))

    assert len(answer.responses[0].partition_responses) == 1
    log = rig.store.logs[TopicPartition("t", 0)]
    assert [record.value for record in records_of(log.read(0, max_bytes=1 << 20))] == [b"last"]


# -- in pieces


class Rounds:
    """An event loop whose rounds are turned by hand, on a clock that ticks with every look at it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.soon: list[Any] = []

    def clock(self) -> float:
        self.now_s += 0.001
        return self.now_s

    def until_done(self) -> int:
        """Return how many rounds it took until nothing was put off any more."""
        rounds = 0
        while self.soon:
            rounds += 1
            todo, self.soon = self.soon, []
            for act in todo:
                act()
        return rounds


def rounds_of(rig: Rig, api_key: int, version: int, **values: Any) -> tuple[int, bytes]:
    """Return in how many rounds of the event loop a request is answered, and the answer."""
    rounds, line = Rounds(), Line()
    connection = Connection(rig.node, RequestQueue(lambda act: rounds.soon.append(act), rounds.clock))
    connection.connection_made(line)
    connection.data_received(encode_request(1, "test", build(request_type(api_key, version), **values)))
    taken = rounds.until_done()
    rig.settle()
    assert line.written
    return taken, line.written


def many_offsets(count: int) -> dict[str, Any]:
    cls = entity("list_offsets", 6, "ListOffsetsPartition")
    partitions = tuple(build(cls, partition_index=n, timestamp=-1) for n in range(count))
    topic = build(entity("list_offsets", 6, "ListOffsetsTopic"), name="t", partitions=partitions)
    return {"replica_id": -1, "topics": (topic,)}


def many_topics(count: int) -> dict[str, Any]:
    cls = entity("metadata", 9, "MetadataRequestTopic")
    topics = tuple(build(cls, name=f"x{n}") for n in range(count))
    return {"topics": topics, "allow_auto_topic_creation": False}


def many_groups(count: int) -> dict[str, Any]:
    return {"groups": tuple(f"g{n}" for n in range(count))}


def many_keys(count: int) -> dict[str, Any]:
    return {"key_type": 0, "coordinator_keys": tuple(f"g{n}" for n in range(count))}


def many_empty_topics(count: int) -> dict[str, Any]:
    cls = entity("produce", 9, "TopicProduceData")
    return {"acks": 1, "timeout": 1_000, "topic_data": tuple(build(cls, name=f"x{n}") for n in range(count))}


def many_refused(count: int) -> dict[str, Any]:
    return {**many_empty_topics(count), "acks": 7}


def many_topics_from_nowhere(count: int) -> dict[str, Any]:
    cls = entity("describe_topic_partitions", 0, "TopicRequest")
    cursor = build(entity("describe_topic_partitions", 0, "Cursor"), topic_name="x1", partition_index=-1)
    return {"topics": tuple(build(cls, name=f"x{n}") for n in range(count)), "cursor": cursor}


BULK = {
    "DescribeTopicPartitions that is refused": (75, 0, many_topics_from_nowhere),
    "Produce": (PRODUCE, 9, many_empty_topics),
    "Produce that is refused": (PRODUCE, 9, many_refused),
    "ListOffsets": (LIST_OFFSETS, 6, many_offsets),
    "Metadata": (METADATA, 9, many_topics),
    "FindCoordinator": (10, 4, many_keys),
    "DescribeGroups": (15, 5, many_groups),
    "Fetch": (FETCH, 11, lambda n: fetch_of(("t", tuple(wanted(at) for at in range(n))), wait_ms=0)),
}


@pytest.mark.parametrize("what", BULK)
def test_the_more_is_asked_for_the_more_often_others_have_their_turn(rig: Rig, what: str):
    api_key, version, asked = BULK[what]
    rounds_of(rig, api_key, version, **asked(2))

    few, _ = rounds_of(rig, api_key, version, **asked(2))
    many, answer = rounds_of(rig, api_key, version, **asked(MANY))

    assert few <= 2
    assert many > MANY / 64 / 4  # 64 things are a tick of the clock, and a slice has three
    assert len(answer) > MANY


def test_fetches_that_are_answered_in_pieces_share_the_room_that_there_is(rig: Rig):
    rig.node.topic_manager.create_topic("wide", partitions=100)
    batch = build_batch([Record(0, rig.now_ms, None, bytes(10_000))])
    for partition in range(100):
        rig.node.replica_manager.append("wide", partition, batch, now_ms=rig.now_ms)
    rig.node.peers.unsent_bytes_max = 1 << 20
    rounds, lines = Rounds(), [Line() for _ in range(20)]
    queue = RequestQueue(lambda act: rounds.soon.append(act), rounds.clock)
    whole = fetch_of(("wide", tuple(wanted(at) for at in range(100))), wait_ms=0)

    for line in lines:
        connection = Connection(rig.node, queue)
        connection.connection_made(line)
        connection.data_received(encode_request(1, "test", build(request_type(FETCH, 11), **whole)))
    rounds.until_done()

    sizes = [len(line.written) for line in lines]
    assert min(sizes) > len(batch)  # at least a batch for each
    assert sum(sizes) < (1 << 20) + 20 * 2 * len(batch)
    assert rig.node.peers.room == (1 << 20) // 4


# -- large


def test_a_request_of_many_megabytes_is_answered_and_so_is_what_comes_behind_it(rig: Rig):
    """It is gathered without being copied whole: that took the loop's time for 70 ms where it was 50 MB."""
    cls = entity("produce", 9, "PartitionProduceData")
    value = bytes(5 << 20)
    parts = tuple(build(cls, index=n % 2, records=value) for n in range(3))
    small = build_batch([Record(0, rig.now_ms, None, b"last")])
    topic = build(
        entity("produce", 9, "TopicProduceData"),
        name="t",
        partition_data=(*parts, build(cls, index=2, records=small)),
    )
    large = encode_request(1, "test", build(request_type(PRODUCE, 9), acks=1, timeout=1, topic_data=(topic,)))
    behind = encode_request(2, "test", build(request_type(18, 0)))
    line = Line()
    connection = Connection(rig.node)
    connection.connection_made(line)

    stream = behind + large + behind + large + behind
    for at in range(0, len(stream), 99_991):
        connection.data_received(stream[at : at + 99_991])

    answers = []
    while line.written:
        size = 4 + int.from_bytes(line.written[:4])
        answers.append(line.written[4:size])
        line.written = line.written[size:]
    assert [int.from_bytes(answer[:4]) for answer in answers] == [2, 1, 2, 1, 2]
    [told] = decode_response(response_type(PRODUCE, 9), answers[1])[1].responses
    codes = {one.index: one.error_code for one in told.partition_responses}
    assert codes == {0: Code.CORRUPT_MESSAGE, 1: Code.CORRUPT_MESSAGE, 2: Code.NONE}
    assert rig.node.peers.begun_bytes == 0


# -- words and numbers


def an_alteration(*configs: tuple[str, str | None], resource_type: int = 2, name: str = "t") -> Any:
    cls = entity("alter_configs", 1, "AlterableConfig")
    return build(
        entity("alter_configs", 1, "AlterConfigsResource"),
        resource_type=resource_type,
        resource_name=name,
        configs=tuple(build(cls, name=name, value=value) for name, value in configs),
    )


@pytest.mark.parametrize(
    "asked",
    [
        an_alteration(*((f"a.setting.of.nobody.{n}", None) for n in range(MANY))),
        an_alteration(("x" * 32_767, "1")),
        an_alteration(("retention.ms", "x" * 32_767)),
        an_alteration(*((f"a.setting.of.nobody.{n}", "") for n in range(MANY)), resource_type=4, name="1"),
    ],
    ids=["nulls", "long name", "long value", "broker"],
)
def test_a_refusal_that_repeats_what_was_asked_fits_into_an_answer(rig: Rig, asked: Any):
    [answer] = rig.client().ask(33, 1, resources=(asked,), validate_only=False).responses

    assert answer.error_code in (Code.INVALID_CONFIG, Code.INVALID_REQUEST)
    assert 7_000 < len(answer.error_message) < 9_000


@pytest.mark.parametrize("number", ["7" * 5_000, "-" + "7" * 5_000, "0" * 5_000 + "7"])
def test_a_number_of_thousands_of_digits_is_a_number(rig: Rig, number: str):
    """Python's `int` refuses more than 4,300 of them, whatever they come to."""
    describe = entity("describe_configs", 4, "DescribeConfigsResource")
    broker = build(describe, resource_type=4, resource_name=number)

    [setting] = rig.client().ask(33, 1, resources=(an_alteration(("retention.ms", number)),)).responses
    [told] = rig.client().ask(32, 4, resources=(broker,)).results

    assert setting.error_code == (Code.NONE if number.endswith("07") else Code.INVALID_CONFIG)
    assert told.error_code == Code.INVALID_REQUEST


# -- many topics


@pytest.fixture
def saves(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of all that is saved from here on, in their order."""
    disk, paths = rig.store.disk, list[str]()
    save = disk.save

    def noted(path: str, data: bytes, *, sync: bool = False) -> None:
        paths.append(path)
        save(path, data, sync=sync)

    monkeypatch.setattr(disk, "save", noted)
    return paths


def metadata_saves(saves: list[str]) -> int:
    return sum(path.endswith("coterie.metadata.json") for path in saves)


def asked_for(names: list[str]) -> tuple[Any, ...]:
    return tuple(build(entity("metadata", 9, "MetadataRequestTopic"), name=name) for name in names)


def test_topics_that_are_created_or_deleted_together_cost_one_save_of_their_metadata(
    rig: Rig, saves: list[str]
):
    client, names = rig.client(), [f"n{number}" for number in range(100)]
    cls = entity("create_topics", 7, "CreatableTopic", "request")
    wanted_topics = tuple(
        build(cls, name=f"c{n}", num_partitions=1, replication_factor=1) for n in range(100)
    )

    client.ask(METADATA, 9, topics=asked_for(names), allow_auto_topic_creation=True)
    by_metadata = metadata_saves(saves)
    client.ask(CREATE_TOPICS, 7, topics=wanted_topics, validate_only=False, timeout=1_000)
    by_creation = metadata_saves(saves)
    client.ask(DELETE_TOPICS, 5, topic_names=tuple(names), timeout=1_000)
    by_deletion = metadata_saves(saves)

    assert (by_metadata, by_creation, by_deletion) == (1, 2, 3)
    assert {topic.name for topic in rig.node.topics.all()} >= {f"c{n}" for n in range(100)}
    assert not rig.node.topics.is_taken("n0")


def test_nobody_has_kafka_s_own_topic_made_by_asking_for_it(rig: Rig):
    answer = rig.client().ask(
        METADATA, 9, topics=asked_for(["__cluster_metadata", "new"]), allow_auto_topic_creation=True
    )

    assert [topic.error_code for topic in answer.topics] == [Code.UNKNOWN_TOPIC_OR_PARTITION, Code.NONE]
    assert "__cluster_metadata" not in {name.topic for name in rig.store.logs}


def test_who_asks_for_more_new_topics_than_a_request_may_make_gets_none(rig: Rig, saves: list[str]):
    names = [f"n{number}" for number in range(10_001)]

    answer = rig.client().ask(METADATA, 9, topics=asked_for(names), allow_auto_topic_creation=True)

    assert {topic.error_code for topic in answer.topics} == {Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert metadata_saves(saves) == 0


def test_what_is_named_again_is_described_again_while_that_is_little(rig: Rig):
    resource = build(
        entity("describe_configs", 4, "DescribeConfigsResource"), resource_type=2, resource_name="t"
    )

    twice = rig.client().ask(32, 4, resources=(resource, resource))
    without_end = rig.client().ask(32, 4, resources=(resource,) * MANY)

    assert len(twice.results) == 2
    assert twice.results[0] == twice.results[1]
    assert 2 < len(without_end.results) < MANY


@pytest.mark.parametrize("topics", [1, 40])
@pytest.mark.parametrize(("codec", "count"), [("none", 1_500), ("none", 3_000), ("gzip", 300)])
def test_many_batches_of_many_records_are_walked_over_with_others_heard_between(
    rig: Rig, codec: str, count: int, topics: int
):
    """Counted: what lies between two stops is a few thousand records, or a few batches that are unpacked."""
    batch = build_batch([Record(n, rig.now_ms, b"k", b"v") for n in range(count)], codec=codec)
    topic_type, cls = (entity("produce", 9, name) for name in ("TopicProduceData", "PartitionProduceData"))
    data = [build(cls, index=index, records=batch) for index in range(40 // topics)]
    for number in range(topics):
        rig.node.topic_manager.create_topic(f"wide-{number}", partitions=len(data))
    logs = [log for where, log in rig.store.logs.items() if where.topic.startswith("wide-")]
    asked = [build(topic_type, name=f"wide-{n}", partition_data=tuple(data)) for n in range(topics)]
    request = build(request_type(PRODUCE, 9), acks=-1, timeout=1_000, topic_data=tuple(asked))
    context = a_context(PRODUCE, 9)

    written = [0]
    handler = rig.node.handlers[PRODUCE, 9]
    for stop in handler(context, request):
        assert stop is None
        written.append(sum(bool(log.end_offset) for log in logs))

    assert written[-1] >= 37
    assert max(later - sooner for sooner, later in pairwise(written)) <= 3


def stops_of(rig: Rig, api: int, version: int, **terms: Any) -> int:
    """Return how often others have their turn before the answer to a request is whole."""
    waiting: list[Any] = []
    context = a_context(api, version, send=lambda _, answer: waiting.append(answer))
    handler = rig.node.handlers[api, version]
    assert handler is not None
    waiting.append(handler(context, build(request_type(api, version), **terms)))
    stops = 0
    while waiting:
        answer = waiting.pop()
        if isinstance(answer, Iterator):
            try:
                while True:
                    assert next(answer) is None
                    stops += 1
            except StopIteration as done:
                waiting.append(done.value)
        rig.settle()
    return stops


@pytest.mark.parametrize(
    ("api", "version", "terms"),
    [(METADATA, 12, {"topics": None}), (35, 4, {"topics": None}), (9, 7, {"group_id": "g", "topics": None})],
    ids=["Metadata", "DescribeLogDirs", "OffsetFetch"],
)
def test_all_that_there_is_is_told_in_pieces(rig: Rig, api: int, version: int, terms: dict[str, Any]):
    wanted = [rig.node.topics.new(f"topic-{number}", replicas=[(1,)]) for number in range(1_000)]
    at_once(rig.node.topic_manager.create_topics(wanted))
    cls = entity("offset_commit", 9, "OffsetCommitRequestTopic")
    parts = (build(entity("offset_commit", 9, "OffsetCommitRequestPartition"), partition_index=0),)
    topics = tuple(build(cls, name=topic.name, partitions=parts) for topic in wanted)
    no_member = {"generation_id_or_member_epoch": -1, "member_id": ""}
    rig.client().ask(8, 9, group_id="g", topics=topics, **no_member)

    assert stops_of(rig, api, version, **terms) >= 1_000 // ITEMS_AT_ONCE
