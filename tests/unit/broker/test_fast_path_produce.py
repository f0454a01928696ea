"""Produce: the fast path appends and answers what the handler does, byte by byte."""

from __future__ import annotations

from struct import Struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.fastpath import PRODUCE
from coterie.broker.fastpath.produce import BATCHES_MOST, FIRST, LAST, RECORDS_MOST
from coterie.broker.runtime.pieces import at_once
from coterie.storage.memory import Faults
from coterie.wire.api.codec import decode_response, encode_request
from coterie.wire.api.entities import build, entity, request_type, response_type
from coterie.wire.records.batches import Record, build_batch
from examples import drawn
from unit.broker.group_api_rig import ApiRig

NOW_MS = 1_700_000_000_000
COUNT_AT = 57
BATCHES = {
    "plain": {},
    "many records": {"count": 40},
    "too many records": {"count": RECORDS_MOST + 1},
    "of a producer": {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0},
    "of it, out of order": {"producer_id": 7, "producer_epoch": 0, "base_sequence": 5},
    "in a transaction": {"producer_id": 8, "producer_epoch": 0, "base_sequence": 0, "transactional": True},
    "compressed": {"codec": "lz4"},
    "too late": {"at": NOW_MS + 10 * 86_400_000},
    "large": {"value": bytes(2_000_000)},
}
WRONG = {
    "null": None,
    "empty": b"",
    "cut": b"\0" * 60,
    "two": None,
    "no checksum": None,
    "a count that lies": None,
}
PLAIN_TOPICS = ("orders", "other")


def a_batch(*, count: int = 1, value: bytes = b"v", at: int = NOW_MS, **how: Any) -> bytes:
    return build_batch([Record(place, at, b"k", value) for place in range(count)], **how)


def records_of(kind: str) -> bytes | None:
    """The bytes that are sent as a batch."""
    if kind in BATCHES:
        return a_batch(**BATCHES[kind])
    plain = bytearray(a_batch(count=2))
    if kind == "two":
        return bytes(plain * 2)
    if kind == "no checksum":
        plain[-1] ^= 1
        return bytes(plain)
    if kind == "a count that lies":
        Struct(">i").pack_into(plain, COUNT_AT, -1)
        return bytes(plain)
    return WRONG[kind]


def a_frame(
    rig: ApiRig, version: int, topics: list[tuple[str, list[tuple[int, str]]]], **terms: Any
) -> bytes:
    """A Produce of topics with (partition, kind of batch)."""
    data, asked = entity("produce", version, "PartitionProduceData"), []
    for name, partitions in topics:
        sent = tuple(build(data, index=index, records=records_of(kind)) for index, kind in partitions)
        named = {"name": name} if version < LAST else {"topic_id": rig.topic_id(name)}
        asked.append(build(entity("produce", version, "TopicProduceData"), **named, partition_data=sent))
    values = {"acks": 1, "timeout": 1_000, "topic_data": tuple(asked)} | terms
    return encode_request(5, "client", build(request_type(0, version), **values))


def answer_to(rig: ApiRig, frame: bytes) -> bytes:
    """What comes of a frame, with the ids of the rig's topics, which are chance, taken out."""
    client = rig.client()
    client.connection.data_received(frame)
    rig.settle()
    said = client.line.written + b"closed" * client.line.closed
    for name in (*PLAIN_TOPICS, OFFSETS_TOPIC):
        said = said.replace(rig.topic_id(name).bytes, name.encode().ljust(16))
    return said


def logs_of(rig: ApiRig) -> dict[TopicPartition, bytes]:
    logs = rig.store.logs
    return {name: logs[name].read(0, max_bytes=1 << 30) for name in logs if name.topic in PLAIN_TOPICS}


def by_handler(rig: ApiRig) -> ApiRig:
    rig.node.fast_path[PRODUCE] = None
    return rig


def without_handler(rig: ApiRig) -> ApiRig:
    for version in range(LAST + 1):
        rig.node.handlers[0, version] = lambda *_: pytest.fail("the handler was asked")
    return rig


kinds = st.sampled_from(["plain", *BATCHES, *WRONG])
partitions = st.lists(st.tuples(st.sampled_from([0, 1, 9]), kinds), max_size=3)
topics = st.lists(
    st.tuples(st.sampled_from(["orders", "other", "none", OFFSETS_TOPIC]), partitions), max_size=3
)
requests = st.lists(
    st.tuples(st.integers(FIRST - 1, LAST), topics, st.sampled_from([1, -1, 0, 2]), st.none() | st.just("t")),
    min_size=1,
    max_size=4,
)


@settings(max_examples=drawn(40), deadline=None)
@given(requests)
def test_whatever_is_sent_logs_and_answers_are_those_of_the_handler(
    sent: list[tuple[int, list[tuple[str, list[tuple[int, str]]]], int, str | None]],
):
    ours, theirs = ApiRig(), by_handler(ApiRig())
    for rig in (ours, theirs):
        rig.committed("g", ("orders", 0, 1))  # so that there is a topic of the broker's own

    for version, asked, acks, transaction in sent:
        said = []
        for rig in (ours, theirs):
            frame = a_frame(rig, version, asked, acks=acks, transactional_id=transaction)
            said.append(answer_to(rig, frame))
        assert said[0] == said[1]

    assert logs_of(ours) == logs_of(theirs)


@settings(max_examples=drawn(60), deadline=None)
@given(st.integers(FIRST, LAST), st.data())
def test_whatever_becomes_of_the_bytes_logs_and_answers_are_those_of_the_handler(
    version: int, data: st.DataObject
):
    ours, theirs = ApiRig(), by_handler(ApiRig())
    asked = [("orders", [(0, "plain"), (1, "plain")]), ("other", [(0, "plain")])]
    frames = [bytearray(a_frame(rig, version, asked)) for rig in (ours, theirs)]
    ids = [frames[0].find(ours.topic_id(name).bytes) for name in PLAIN_TOPICS]
    same = [at for at in range(4, len(frames[0])) if not any(0 <= at - begin < 16 for begin in ids)]
    place = data.draw(st.sampled_from(same))
    change = data.draw(st.sampled_from(["set", "cut", "more"]))
    value = data.draw(st.integers(0, 255))
    for frame in frames:
        if change == "set":
            frame[place] = value  # not of an id, which is another in each rig
        elif change == "cut":
            del frame[place:]
        else:
            frame.append(value)
        Struct(">i").pack_into(frame, 0, len(frame) - 4)

    assert answer_to(ours, bytes(frames[0])) == answer_to(theirs, bytes(frames[1]))
    assert logs_of(ours) == logs_of(theirs)


@pytest.mark.parametrize("version", range(FIRST, LAST + 1))
@pytest.mark.parametrize("acks", [1, -1])
def test_what_producers_mostly_send_is_answered_without_the_handler(version: int, acks: int):
    rig = without_handler(ApiRig())
    asked = [("orders", [(0, "plain"), (1, "of a producer")]), ("other", [(0, "many records")])]

    for _ in range(2):  # the topics are remembered by then, and one batch has come already
        said = answer_to(rig, a_frame(rig, version, asked, acks=acks))

    assert said
    assert [log.end_offset for name, log in rig.store.logs.items() if name.topic in PLAIN_TOPICS] == [
        2,
        1,
        80,
    ]


def test_a_topic_that_was_deleted_is_unknown_though_its_bytes_were_remembered():
    rig = ApiRig()
    frames = {version: a_frame(rig, version, [("other", [(0, "plain")])]) for version in (FIRST, LAST)}
    for frame in frames.values():
        answer_to(rig, frame)

    at_once(rig.node.topic_manager.delete_topics(["other"]))
    rig.settle()

    for version, code in ((FIRST, Code.UNKNOWN_TOPIC_OR_PARTITION), (LAST, Code.UNKNOWN_TOPIC_ID)):
        _, answer = decode_response(response_type(0, version), answer_to(rig, frames[version])[4:])
        assert answer.responses[0].partition_responses[0].error_code == code


def test_the_batches_before_one_that_the_disk_refuses_are_appended_once_and_answered_with_it():
    said = []
    for rig in (ApiRig(), by_handler(ApiRig())):
        rig.disk.faults = Faults(capacity=rig.disk._used() + len(records_of("plain")) + 1)
        asked = [("orders", [(0, "plain"), (1, "plain")]), ("other", [(0, "plain")])]
        said.append(answer_to(rig, a_frame(rig, FIRST, asked)))
        assert rig.store.logs[TopicPartition("orders", 0)].end_offset == 1

    _, answer = decode_response(response_type(0, FIRST), said[0][4:])
    codes = [one.error_code for topic in answer.responses for one in topic.partition_responses]
    assert codes == [Code.NONE, Code.KAFKA_STORAGE_ERROR, Code.KAFKA_STORAGE_ERROR]
    assert said[0] == said[1]


def test_a_request_of_many_batches_is_the_handlers():
    rig = ApiRig()
    rig.node.topic_manager.create_topic("wide", partitions=BATCHES_MOST + 1)
    asked = []
    rig.node.handlers[0, FIRST] = lambda ctx, request: asked.append(request)

    answer_to(rig, a_frame(rig, FIRST, [("wide", [(index, "plain") for index in range(BATCHES_MOST + 1)])]))

    assert len(asked) == 1
