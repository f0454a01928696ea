"""Requests are what the codec reads back, in every version that we speak."""

from __future__ import annotations

import pytest
from admin_makers import ADMIN_MAKERS

from coterie.base.errors import CoterieError
from coterie.base.ids import GroupMetadata, TopicPartition
from coterie.client.net import messages
from coterie.client.net.addresses import Address, addresses_of
from coterie.client.producer import messages as asks
from coterie.client.producer.batcher import Identity
from coterie.wire.api.apis import APIS, ApiKey
from coterie.wire.api.codec import decode_request, encode_request, read_request_header

WHO = Identity(7, 1)
A, B = TopicPartition("a", 1), TopicPartition("b", 0)

MAKERS = {
    ApiKey.API_VERSIONS: lambda version: messages.api_versions(),
    ApiKey.SASL_HANDSHAKE: lambda version: messages.sasl_handshake(version, "PLAIN"),
    ApiKey.SASL_AUTHENTICATE: lambda version: messages.sasl_authenticate(version, b"message"),
    ApiKey.METADATA: lambda version: messages.metadata(version, ["b", "a"]),
    ApiKey.FIND_COORDINATOR: lambda version: messages.find_coordinator(version, "g"),
    ApiKey.LIST_OFFSETS: lambda version: messages.list_offsets(version, {B: -1, A: 77}, isolation=1),
    ApiKey.OFFSET_FETCH: lambda version: messages.offset_fetch(version, "g", [B, A]),
    ApiKey.OFFSET_COMMIT: lambda version: messages.offset_commit(
        version, "g", {A: 5, B: 6}, generation=3, member_id="m", instance_id="i"
    ),
    ApiKey.FETCH: lambda version: messages.fetch(
        version, {A: 5}, max_wait_ms=500, max_bytes=9, partition_max_bytes=8, isolation=1
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: lambda version: messages.end_of_epochs(version, {B: (3, 4), A: (3, 5)}),
    ApiKey.JOIN_GROUP: lambda version: messages.join_group(
        version, group_id="g", member_id="m", instance_id="i", session_timeout_ms=6000,
        rebalance_timeout_ms=9000, protocols=[("range", b"s")], reason="r" * 300,
    ),
    ApiKey.SYNC_GROUP: lambda version: messages.sync_group(
        version, group_id="g", generation=3, member_id="m", instance_id="i", protocol="range",
        assignments={"m": b"a"},
    ),
    ApiKey.HEARTBEAT: lambda version: messages.heartbeat(
        version, group_id="g", generation=3, member_id="m", instance_id="i"
    ),
    ApiKey.DESCRIBE_GROUPS: lambda version: messages.describe_group(version, "g"),
    ApiKey.LIST_GROUPS: messages.list_groups,
    ApiKey.LEAVE_GROUP: lambda version: messages.leave_group(
        version, group_id="g", member_id="m", reason="r"
    ),
    ApiKey.PRODUCE: lambda version: asks.produce(
        version, [(B, b"two"), (A, b"one")], transactional_id="tx", acks=-1, timeout_ms=30_000
    ),
    ApiKey.INIT_PRODUCER_ID: lambda version: asks.init_producer(
        version, transactional_id="tx", transaction_timeout_ms=60_000, identity=WHO
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: lambda version: asks.add_partitions(version, "tx", WHO, [B, A]),
    ApiKey.ADD_OFFSETS_TO_TXN: lambda version: asks.add_offsets(version, "tx", WHO, "g"),
    ApiKey.END_TXN: lambda version: asks.end_transaction(version, "tx", WHO, commit=True),
    ApiKey.TXN_OFFSET_COMMIT: lambda version: asks.transaction_offsets(
        version, "tx", WHO, GroupMetadata("g", 3, "m", "i"), {A: 5, B: 6}
    ),
    **ADMIN_MAKERS,
}  # fmt: skip

SPOKEN = [
    pytest.param(key, version, id=f"{APIS[key].name}-{version}")
    for key, (least, most) in messages.SPEAKS.items()
    for version in range(least, most + 1)
]


def sent(key, version):
    """A request as the broker reads it."""
    frame = encode_request(7, "me", MAKERS[key](version))[4:]
    header = read_request_header(frame)
    assert (header.api_key, header.api_version) == (key, version)
    return decode_request(header, frame)


@pytest.mark.parametrize(("key", "version"), SPOKEN)
def test_every_version_that_is_spoken_is_advertised_by_kafka_and_can_be_read(key, version):
    assert APIS[key].serves(version)
    sent(key, version)


def test_partitions_are_grouped_by_topic_and_sorted():
    request = sent(ApiKey.LIST_OFFSETS, 7)

    listed = [
        (topic.name, one.partition_index, one.timestamp)
        for topic in request.topics
        for one in topic.partitions
    ]
    assert listed == [("a", 1, 77), ("b", 0, -1)]
    assert (request.replica_id, request.isolation_level) == (-1, 1)


def test_a_commit_carries_the_member_s_place():
    request = sent(ApiKey.OFFSET_COMMIT, 9)

    assert (request.group_id, request.member_id, request.group_instance_id) == ("g", "m", "i")
    assert request.generation_id_or_member_epoch == 3
    (a, b) = request.topics
    assert (a.name, a.partitions[0].partition_index, a.partitions[0].committed_offset) == ("a", 1, 5)
    assert (b.name, b.partitions[0].committed_offset) == ("b", 6)


def test_offsets_are_fetched_only_when_they_are_stable():
    request = sent(ApiKey.OFFSET_FETCH, 9)

    assert request.require_stable
    assert [topic.name for topic in request.groups[0].topics] == ["a", "b"]


def test_a_join_names_its_timeouts_and_cuts_its_reason():
    """CJ-2, JG-27; EN-5: the type is "consumer", a protocol's name its assignor's."""
    request = sent(ApiKey.JOIN_GROUP, 9)

    assert request.session_timeout.total_seconds() == 6
    assert request.rebalance_timeout.total_seconds() == 9
    assert len(request.reason) == 255
    assert request.protocol_type == "consumer"
    assert [one.name for one in request.protocols] == ["range"]


def test_a_leave_carries_the_member_id_and_not_the_instance_id():
    """CV-5."""
    (member,) = sent(ApiKey.LEAVE_GROUP, 5).members

    assert (member.member_id, member.group_instance_id) == ("m", None)


def test_a_fetch_stays_outside_of_sessions():
    request = sent(ApiKey.FETCH, 12)

    assert (request.session_id, request.session_epoch) == (0, -1)
    assert (request.min_bytes, request.max_wait.total_seconds()) == (1, 0.5)


def test_batches_go_out_by_topic():
    request = sent(ApiKey.PRODUCE, 12)

    assert (request.transactional_id, request.acks) == ("tx", -1)
    assert [(topic.name, topic.partition_data[0].records) for topic in request.topic_data] == [
        ("a", b"one"),
        ("b", b"two"),
    ]


def test_offsets_in_a_transaction_carry_the_member_and_the_producer():
    request = sent(ApiKey.TXN_OFFSET_COMMIT, 5)

    assert (request.transactional_id, request.producer_id, request.producer_epoch) == ("tx", 7, 1)
    assert (request.group_id, request.generation_id, request.member_id) == ("g", 3, "m")
    assert (request.group_instance_id, request.topics[0].partitions[0].committed_offset) == ("i", 5)


def test_no_topics_are_created_by_asking_for_them():
    assert not sent(ApiKey.METADATA, 12).allow_auto_topic_creation


def test_addresses_are_read_as_people_write_them():
    assert addresses_of("a:1, PLAINTEXT://b:2,[::1]:3") == (
        Address("a", 1),
        Address("b", 2),
        Address("::1", 3),
    )
    assert str(Address("::1", 3)) == "[::1]:3"


@pytest.mark.parametrize("text", ["", " , ", "host", "host:", "host:0", "host:99999", "host:x"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(CoterieError, match=r"bootstrap\.servers"):
        addresses_of(text)
