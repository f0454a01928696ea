"""Produce, Fetch, ListOffsets and DescribeProducers with transactions: the whole node, no sockets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig import Client, Line, Rig

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.net.connection import Connection
from coterie.broker.net.request_queue import RequestQueue, here_and_now
from coterie.broker.runtime.pieces import at_once
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
from coterie.wire.records.batches import Record, build_batch, build_marker, read_header, records_of, scan

PRODUCE, FETCH, LIST_OFFSETS, INIT, ADD_PARTITIONS, END, DESCRIBE = 0, 1, 2, 22, 24, 26, 61
COMMITTED = 1


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1)
    made.node.topic_manager.create_topic("t", partitions=2)
    yield made
    made.close()


def part(api: str, version: int, kind: str, /, **values: Any) -> Any:
    return build(entity(api, version, kind, "request"), **values)


class Writer:
    """A transactional producer that speaks one version of Produce."""

    def __init__(self, rig: Rig, *, version: int = 11, name: str = "tx") -> None:
        self.client = rig.client()
        self.rig, self.version, self.name = rig, version, name
        asked = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        answer = ask(self.client, INIT, 5, transactional_id=name, **asked)
        if answer.error_code == Code.CONCURRENT_TRANSACTIONS:  # the one before is being aborted
            answer = ask(self.client, INIT, 5, transactional_id=name, **asked)
        assert answer.error_code == Code.NONE
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences = {0: 0, 1: 0}

    def join(self, *partitions: int) -> Code:
        topic = part("add_partitions_to_txn", 3, "AddPartitionsToTxnTopic", name="t", partitions=partitions)
        answer = ask(
            self.client,
            ADD_PARTITIONS,
            3,
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=(topic,),
        )
        code: Code = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        return code

    def batch(self, value: str = "v", *, partition: int = 0, **how: Any) -> bytes:
        values = {
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "base_sequence": self.sequences[partition],
            "transactional": True,
        }
        return build_batch([Record(0, self.rig.now_ms, b"k", value.encode())], **(values | how))

    def write(self, value: str = "v", *, partition: int = 0, **how: Any) -> Any:
        """Produce a batch; return what its partition was answered."""
        batch = self.batch(value, partition=partition, **how)
        (told,) = produce(self.client, self.version, self.name, {partition: batch})
        if told.error_code == Code.NONE:
            self.sequences[partition] += 1
        return told

    def end(self, *, commit: bool) -> None:
        version = 5 if self.version >= 12 else 4
        answer = ask(
            self.client,
            END,
            version,
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        assert answer.error_code == Code.NONE
        if version >= 5:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences = {0: 0, 1: 0}


def ask(client: Client, api_key: int, version: int, **values: Any) -> Any:
    """Send a request and return its answer, which may take some housekeeping but no waiting of ours."""
    client.send(api_key, version, **values)
    for _ in range(20):
        answers = client.answers()
        if answers:
            return answers[0]
        client.rig.pass_ms(5)
    raise AssertionError("no answer")


def produce(
    client: Client, version: int, transactional_id: str | None, batches: dict[int, bytes], acks: int = -1
) -> tuple[Any, ...]:
    data = tuple(
        part("produce", version, "PartitionProduceData", index=index, records=batch)
        for index, batch in batches.items()
    )
    named = {"topic_id": client.rig.node.topics.get("t").topic_id} if version >= 13 else {"name": "t"}  # type: ignore[union-attr]
    topic = part("produce", version, "TopicProduceData", partition_data=data, **named)
    answer = ask(
        client,
        PRODUCE,
        version,
        transactional_id=transactional_id,
        acks=acks,
        timeout=1000,
        topic_data=(topic,),
    )
    told: tuple[Any, ...] = answer.responses[0].partition_responses
    return told


def fetch_request(offset: int, *, committed: bool, wait_ms: int = 0) -> dict[str, Any]:
    partition = part(
        "fetch",
        11,
        "FetchPartition",
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=offset,
        log_start_offset=-1,
        partition_max_bytes=100_000,
    )
    return {
        "replica_id": -1,
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 100_000,
        "isolation_level": COMMITTED if committed else 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": (part("fetch", 11, "FetchTopic", topic="t", partitions=(partition,)),),
        "forgotten_topics_data": (),
        "rack_id": "",
    }


def fetched(answer: Any) -> Any:
    return answer.responses[0].partitions[0]


def fetch(client: Client, offset: int = 0, *, committed: bool = True) -> Any:
    return fetched(client.ask(FETCH, 11, **fetch_request(offset, committed=committed)))


def latest(client: Client, timestamp: int = -1, *, committed: bool = True) -> tuple[int, int]:
    partition = part(
        "list_offsets",
        7,
        "ListOffsetsPartition",
        partition_index=0,
        current_leader_epoch=-1,
        timestamp=timestamp,
    )
    answer = client.ask(
        LIST_OFFSETS,
        7,
        replica_id=-1,
        isolation_level=COMMITTED if committed else 0,
        topics=(part("list_offsets", 7, "ListOffsetsTopic", name="t", partitions=(partition,)),),
    )
    found = answer.topics[0].partitions[0]
    return found.offset, found.timestamp


def described(client: Client, topic: str = "t", partition: int = 0) -> Any:
    asked = part("describe_producers", 0, "TopicRequest", name=topic, partition_indexes=(partition,))
    return client.ask(DESCRIBE, 0, topics=(asked,)).topics[0].partitions[0]


def append_marker(rig: Rig, writer: Writer, *, commit: bool) -> None:
    """End a transaction in partition 0 behind the coordinator's back."""
    marker = build_marker(
        commit=commit,
        producer_id=writer.producer_id,
        producer_epoch=writer.epoch,
        coordinator_epoch=0,
        timestamp=rig.now_ms,
    )
    rig.node.replica_manager.append("t", 0, marker, now_ms=rig.now_ms, origin="coordinator")


# -- Produce


def test_up_to_version_11_a_partition_must_have_joined_the_transaction(rig: Rig):
    writer = Writer(rig)

    told = writer.write()
    assert (told.error_code, told.base_offset) == (Code.TRANSACTION_ABORTABLE, -1)

    writer.join(0)
    assert writer.write().base_offset == 0
    assert writer.write().base_offset == 1
    assert writer.write(partition=1).error_code == Code.TRANSACTION_ABORTABLE


def test_older_clients_are_told_of_a_transaction_that_is_not_there_in_a_code_that_they_know(rig: Rig):
    told = Writer(rig, version=10).write()

    assert told.error_code == Code.INVALID_TXN_STATE
    assert "not part of the transaction" in told.error_message


@pytest.mark.parametrize("version", [12, 13])
def test_from_version_12_a_partition_joins_by_being_written_to(rig: Rig, version: int):
    writer = Writer(rig, version=version)

    assert writer.write("one").base_offset == 0
    assert writer.write("two", partition=1).error_code == Code.NONE
    writer.end(commit=False)

    assert writer.write("three").base_offset == 2
    writer.end(commit=True)
    answer = fetch(rig.client())
    assert [one.first_offset for one in answer.aborted_transactions] == [0]
    assert answer.last_stable_offset == answer.high_watermark == 4


@pytest.mark.parametrize("version", [11, 12])
def test_a_batch_that_is_looked_through_aside_is_not_let_in_once_its_transaction_has_ended(
    rig: Rig, version: int
):
    writer = Writer(rig, version=version)
    writer.join(0)
    writer.write("first")
    batch = writer.batch("late")
    at_once(rig.node.topic_manager.configure_topics({"t": {"compression.type": "gzip"}}))
    asides: list[Any] = []
    line, queue = Line(), RequestQueue(rig.soon.append, aside=lambda *asked: asides.append(asked))
    connection = Connection(rig.node, queue)
    connection.connection_made(line)
    data = part("produce", version, "PartitionProduceData", index=0, records=batch)
    topic = part("produce", version, "TopicProduceData", name="t", partition_data=(data,))
    terms = {"transactional_id": "tx", "acks": -1, "timeout": 1_000, "topic_data": (topic,)}
    connection.data_received(encode_request(1, "test", build(request_type(PRODUCE, version), **terms)))
    rig.settle()

    writer.end(commit=True)
    here_and_now(*asides.pop())
    rig.settle()

    answer = decode_response(response_type(PRODUCE, version), line.written[4:])[1]
    [told] = answer.responses[0].partition_responses
    assert told.error_code in (Code.INVALID_TXN_STATE, Code.INVALID_PRODUCER_EPOCH)
    log = rig.store.logs[TopicPartition("t", 0)]
    assert log.last_stable_offset == log.end_offset == 2


def test_the_coordinator_is_asked_once_for_a_transaction_and_partition(rig: Rig):
    writer = Writer(rig, version=12)
    writer.write()
    asked = []
    rig.node.transactions.partitions = lambda *all_of_it, **more: asked.append(all_of_it)  # type: ignore[method-assign]

    assert writer.write().base_offset == 1
    assert asked == []


def test_a_transactional_batch_without_a_transactional_id_is_unauthorized(rig: Rig):
    writer = Writer(rig)

    (told,) = produce(writer.client, 11, None, {0: writer.batch()})

    assert (told.error_code, told.error_message) == (Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, None)


def test_one_request_has_one_producer(rig: Rig):
    writer = Writer(rig, version=12)

    told = produce(
        writer.client, 12, "tx", {0: writer.batch(), 1: writer.batch(producer_id=writer.producer_id + 1)}
    )

    assert [one.error_code for one in told] == [Code.INVALID_PRODUCER_ID_MAPPING] * 2


def test_a_producer_that_the_coordinator_does_not_know_is_refused(rig: Rig):
    writer = Writer(rig, version=12)

    assert writer.write(producer_id=12345).error_code == Code.INVALID_PRODUCER_ID_MAPPING


def test_a_fenced_producer_is_told_of_its_epoch(rig: Rig):
    old = Writer(rig, version=12)
    old.write()
    new = Writer(rig, version=12)

    assert old.write().error_code == Code.INVALID_PRODUCER_EPOCH
    assert new.write().error_code == Code.NONE


def test_markers_of_clients_are_refused(rig: Rig):
    writer = Writer(rig)
    writer.join(0)
    marker = build_marker(
        commit=True,
        producer_id=writer.producer_id,
        producer_epoch=writer.epoch,
        coordinator_epoch=0,
        timestamp=rig.now_ms,
    )

    (told,) = produce(writer.client, 11, "tx", {0: marker})

    assert told.error_code == Code.INVALID_RECORD


def test_batches_in_and_outside_of_a_transaction_may_come_in_one_request(rig: Rig):
    writer = Writer(rig, version=12)
    plain = build_batch([Record(0, rig.now_ms, None, b"plain")])

    told = produce(writer.client, 12, "tx", {0: writer.batch(), 1: plain})

    assert [(one.error_code, one.base_offset) for one in told] == [(Code.NONE, 0), (Code.NONE, 0)]
    assert described(writer.client, partition=1).active_producers == ()


def test_the_partitions_of_a_request_are_answered_one_by_one(rig: Rig):
    writer = Writer(rig)
    writer.join(1)

    told = produce(writer.client, 11, "tx", {0: writer.batch(), 1: writer.batch()})

    assert [one.error_code for one in told] == [Code.TRANSACTION_ABORTABLE, Code.NONE]


def test_a_batch_that_repeats_one_of_a_transaction_that_has_ended_is_not_let_in(rig: Rig):
    writer = Writer(rig)
    writer.join(0)
    repeated = writer.batch()
    writer.write()
    writer.end(commit=True)

    (told,) = produce(writer.client, 11, "tx", {0: repeated})

    assert told.error_code == Code.TRANSACTION_ABORTABLE
    assert rig.node.replica_manager.log_of("t", 0).end_offset == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("damage", ["cut", "crc", "magic"])
def test_a_damaged_batch_of_a_transaction_is_refused_like_any_other(rig: Rig, damage: str):
    writer = Writer(rig, version=12)
    batch = bytearray(writer.batch())
    if damage == "cut":
        del batch[50:]
    else:
        batch[-1 if damage == "crc" else 16] ^= 0x55

    (told,) = produce(writer.client, 12, "tx", {0: bytes(batch)})

    plain = (Code.CORRUPT_MESSAGE, Code.INVALID_RECORD)
    assert told.error_code in plain
    assert writer.write().error_code == Code.NONE


# -- Fetch, ListOffsets


def test_a_committed_read_ends_at_the_stable_offset_and_lists_what_was_aborted(rig: Rig):
    writer = Writer(rig)
    writer.join(0)
    writer.write("void")
    writer.end(commit=False)
    writer.join(0)
    writer.write("open")

    committed, plain = fetch(rig.client()), fetch(rig.client(), committed=False)

    assert (committed.high_watermark, committed.last_stable_offset) == (3, 2)
    assert [(one.producer_id, one.first_offset) for one in committed.aborted_transactions] == [
        (writer.producer_id, 0)
    ]
    assert [header.base_offset for _, header in scan(committed.records)] == [0, 1]
    assert plain.aborted_transactions is None
    assert [header.base_offset for _, header in scan(plain.records)] == [0, 1, 2]


def test_nothing_to_read_is_an_empty_list_and_an_error_has_none(rig: Rig):
    writer = Writer(rig)
    writer.join(0)
    writer.write("open")

    between, beyond = fetch(rig.client(), 0), fetch(rig.client(), 9)

    assert (between.error_code, between.records, between.aborted_transactions) == (Code.NONE, b"", ())
    assert (beyond.error_code, beyond.aborted_transactions) == (Code.OFFSET_OUT_OF_RANGE, None)


def test_a_waiting_committed_read_is_woken_by_the_marker(rig: Rig):
    writer = Writer(rig)
    writer.join(0)
    reader = rig.client()
    reader.send(FETCH, 11, **fetch_request(0, committed=True, wait_ms=5000))

    writer.write("value")
    assert reader.answers() == []
    append_marker(rig, writer, commit=True)

    (answer,) = reader.answers()
    data = fetched(answer).records
    assert [record.value for record in records_of(data)] == [b"value"]
    assert read_header(data, scan(data)[1][0]).control


def test_a_committed_list_of_offsets_ends_at_the_stable_offset(rig: Rig):
    client = rig.client()
    plain = build_batch([Record(0, rig.now_ms - 1000, None, b"plain")])
    rig.node.replica_manager.append("t", 0, plain, now_ms=rig.now_ms)
    writer = Writer(rig)
    writer.join(0)
    writer.write("open")

    assert latest(client) == (1, -1)
    assert latest(client, committed=False) == (2, -1)
    assert latest(client, rig.now_ms - 500) == (-1, -1)
    assert latest(client, rig.now_ms - 500, committed=False) == (1, rig.now_ms)
    assert latest(client, -3) == (-1, -1), "the youngest record is not stable"
    assert latest(client, rig.now_ms - 1000) == (0, rig.now_ms - 1000)
    writer.end(commit=True)
    assert latest(client)[0] == 3


# -- DescribeProducers


def test_producers_are_described_with_their_open_transactions(rig: Rig):
    writer = Writer(rig)
    writer.join(0)
    writer.write()
    writer.write()

    answer = described(rig.client())

    (one,) = answer.active_producers
    assert answer.error_code == Code.NONE
    assert (one.producer_id, one.producer_epoch, one.last_sequence) == (writer.producer_id, writer.epoch, 1)
    assert (one.last_timestamp, one.coordinator_epoch, one.current_txn_start_offset) == (rig.now_ms, -1, 0)

    writer.end(commit=True)
    (one,) = described(rig.client()).active_producers
    assert (one.coordinator_epoch, one.current_txn_start_offset) == (0, -1)


def test_an_unknown_topic_says_so_in_words_an_unknown_partition_does_not(rig: Rig):
    unknown, beyond = described(rig.client(), "nowhere"), described(rig.client(), partition=7)

    assert unknown.error_code == beyond.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert "topic-partition" in unknown.error_message
    assert beyond.error_message is None
