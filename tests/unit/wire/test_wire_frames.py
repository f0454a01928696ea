"""Headers and frames: what stands before a body, and where its bytes go."""

import subprocess
import sys
import uuid
from datetime import timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.wire.api.apis import APIS, ApiKey
from coterie.wire.api.codec import (
    RequestHeader,
    decode,
    decode_request,
    decode_response,
    encode,
    encode_request,
    encode_response,
    encode_response_parts,
    read_request_header,
)
from coterie.wire.api.entities import (
    build,
    entity,
    request_type,
    response_type,
)
from coterie.wire.api.writers import source_of

HEARTBEAT_V4 = request_type(ApiKey.HEARTBEAT, 4)


def a_heartbeat(version: int = 4):
    return build(request_type(ApiKey.HEARTBEAT, version), group_id="g", generation_id=7, member_id="m-1")


def a_fetch_response(records: bytes | None, *, version: int = 16):
    def nested(name: str) -> type:
        return entity("fetch", version, name, "response")

    partition = build(nested("PartitionData"), partition_index=3, high_watermark=9, records=records)
    topic = build(nested("FetchableTopicResponse"), topic_id=uuid.UUID(int=5), partitions=(partition,))
    return build(response_type(ApiKey.FETCH, version), responses=(topic,))


def test_a_request_frame_is_size_header_and_body():
    frame = encode_request(5, "me", a_heartbeat())

    assert frame.hex() == ("00000019000c0004000000050002" + b"me".hex() + "00026700000007046d2d310000")


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("client_id", [None, "", "me", "é" * 300])
def test_a_request_is_read_as_it_was_sent(version, client_id):
    request = a_heartbeat(version)
    frame = encode_request(-3, client_id, request)[4:]

    header = read_request_header(frame)

    assert header[:4] == (ApiKey.HEARTBEAT, version, -3, client_id)
    assert decode_request(header, frame) == request


def test_the_tagged_fields_of_a_header_are_stepped_over():
    frame = encode_request(1, None, a_heartbeat())[4:]
    with_tags = frame[:10] + b"\x02\x00\x03abc\x07\x00" + frame[11:]

    header = read_request_header(with_tags)

    assert header == RequestHeader(ApiKey.HEARTBEAT, 4, 1, None, 18)
    assert decode_request(header, with_tags) == a_heartbeat()


def test_the_header_of_an_unknown_api_or_version_can_be_read_so_that_it_can_be_refused():
    unknown_api = bytes.fromhex("03e7 0001 00000009 0002") + b"me"
    unknown_version = bytes.fromhex("0012 7fff 00000009 0002") + b"me" + b"\x00" + b"whatever"

    assert read_request_header(unknown_api) == RequestHeader(999, 1, 9, "me", 12)
    assert read_request_header(unknown_version) == RequestHeader(ApiKey.API_VERSIONS, 2**15 - 1, 9, "me", 13)
    for frame in (unknown_api, unknown_version):
        with pytest.raises(Corrupt):
            decode_request(read_request_header(frame), frame)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_is_advertised_from_zero_but_read_from_three(version):
    """KAFKA-18659."""
    assert APIS[ApiKey.PRODUCE].least == 0
    with pytest.raises(Corrupt):
        request_type(ApiKey.PRODUCE, version)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\x0c\0\4\0\0\0\1\0",
        b"\0\x0c\0\4\0\0\0\1\0\5me",
        b"\0\x0c\0\4\0\0\0\1\xff\xfe",
        b"\0\x0c\0\4\0\0\0\1\0\2\xff\xff\0",
        b"\0\x0c\0\4\0\0\0\1\0\2me",
        b"\0\x0c\0\4\0\0\0\1\xff\xff\1\0\xff\xff\xff\xff\x0f",
        b"\0\x0c\0\4\0\0\0\1\xff\xff\xff\xff\xff\xff\xff\x0f",
    ],
)
def test_a_header_that_is_cut_or_rubbish_is_corrupt(frame):
    with pytest.raises(Corrupt):
        read_request_header(frame)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_header_or_corrupt(frame):
    try:
        header = read_request_header(frame)
    except Corrupt:
        return
    assert header.body_at <= len(frame)


def test_bytes_after_a_request_are_ignored_as_kafka_ignores_them():
    frame = encode_request(1, "me", a_heartbeat())[4:] + b"more"

    assert decode_request(read_request_header(frame), frame) == a_heartbeat()


def test_a_response_frame_of_fixed_size():
    response = build(response_type(ApiKey.HEARTBEAT, 4), error_code=Code.REBALANCE_IN_PROGRESS)

    assert encode_response(9, response).hex() == "0000000c000000090000000000001b00"


def test_an_api_versions_response_never_has_a_tagged_header():
    """Any client must be able to read it, whatever it knows of tagged fields."""
    response = build(response_type(ApiKey.API_VERSIONS, 4))

    frame = encode_response(1, response)

    assert frame.hex() == "0000000c000000010000010000000000"
    assert decode_response(type(response), frame[4:]) == (1, response)


@pytest.mark.parametrize("version", range(5))
def test_a_response_is_read_as_it_was_sent(version):
    response = build(response_type(ApiKey.HEARTBEAT, version), throttle_time=timedelta(0))

    assert decode_response(type(response), encode_response(77, response)[4:]) == (77, response)


@pytest.mark.parametrize("frame", [b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\1\1\0", b"\0\0\0\1\0\0\0"])
def test_a_response_that_is_cut_is_corrupt(frame):
    with pytest.raises(Corrupt):
        decode_response(response_type(ApiKey.HEARTBEAT, 4), frame)


@pytest.mark.parametrize("size", [0, 10, 4095, 4096, 100_000])
def test_the_parts_of_a_response_are_its_frame(size):
    response = a_fetch_response(bytes(size))

    assert b"".join(encode_response_parts(3, response)) == encode_response(3, response)


def test_large_records_are_passed_on_and_not_copied():
    records = bytes(1_000_000)

    parts = encode_response_parts(3, a_fetch_response(records))

    assert [len(part) for part in parts if part is not records] == [len(parts[0]), len(parts[2])]
    assert parts[1] is records


def test_records_may_be_a_view_of_something_larger():
    view = memoryview(b"before" + b"r" * 5000)[6:]

    parts = encode_response_parts(3, a_fetch_response(view))

    assert parts[1] is view
    assert b"".join(parts) == encode_response(3, a_fetch_response(bytes(view)))


def test_anything_with_the_attributes_can_be_written():
    cls = response_type(ApiKey.HEARTBEAT, 4)
    light = SimpleNamespace(throttle_time=7, error_code=Code.UNKNOWN_MEMBER_ID)

    frame = encode_response(1, light, cls)

    read = decode_response(cls, frame[4:])[1]
    assert (read.throttle_time, int(read.error_code)) == (timedelta(milliseconds=7), 25)


def test_times_may_be_given_as_milliseconds():
    cls = response_type(ApiKey.PRODUCE, 9)
    partition = entity("produce", 9, "PartitionProduceResponse", "response")
    topic = entity("produce", 9, "TopicProduceResponse", "response")

    def response(appended_at):
        held = build(partition, log_append_time=appended_at)
        return build(cls, responses=[build(topic, name="t", partition_responses=[held])])

    assert encode(response(None)) == encode(response(-1))
    assert (
        decode(cls, encode(response(1500))).responses[0].partition_responses[0].log_append_time.year == 1970
    )


def test_build_fills_in_the_schemas_defaults_and_kafkas_zeroes():
    request = build(request_type(ApiKey.JOIN_GROUP, 9), group_id="g")

    assert (request.group_id, request.member_id, request.group_instance_id) == ("g", "", None)
    assert (request.session_timeout, request.protocols) == (timedelta(0), ())
    assert request.rebalance_timeout == timedelta(milliseconds=-1)
    assert request == decode(type(request), encode(request))


def test_build_leaves_out_what_this_version_does_not_have():
    """One call serves all versions: throttle_time came with version 1, the instance id with 3."""
    oldest = build(response_type(ApiKey.HEARTBEAT, 0), throttle_time=5, error_code=Code.NONE)
    request = build(request_type(ApiKey.HEARTBEAT, 0), group_id="g", group_instance_id="i")

    assert encode(oldest) == b"\0\0"
    assert not hasattr(request, "group_instance_id")


def test_build_notices_a_name_that_no_version_has():
    with pytest.raises(AssertionError, match="throttel"):
        build(response_type(ApiKey.HEARTBEAT, 0), throttel_time=5)


def test_a_built_entity_is_one_of_kios():
    response = build(response_type(ApiKey.HEARTBEAT, 4), throttle_time=timedelta(0))

    assert decode(type(response), encode(response)) == response
    assert hash(response) == hash(decode(type(response), encode(response)))


def test_a_null_array_where_none_may_be_is_corrupt():
    """Kafka: `non-nullable field topics was serialized as null`."""
    with pytest.raises(Corrupt):
        decode(request_type(ApiKey.METADATA, 0), b"\xff\xff\xff\xff")
    assert decode(request_type(ApiKey.METADATA, 1), b"\xff\xff\xff\xff").topics is None


def test_an_array_cannot_claim_more_items_than_there_are_bytes():
    """kio would ask for 32 GiB here and abort the process when it does not get them."""
    for cls, data in (
        (request_type(ApiKey.METADATA, 4), b"\x7f\xff\xff\xff\0"),
        (request_type(ApiKey.METADATA, 9), b"\xff\xff\xff\xff\x07\0\0\0\0"),
        (request_type(ApiKey.METADATA, 9), b"\xff\xff\xff\xff\x0f" + bytes(100)),
        (request_type(ApiKey.SYNC_GROUP, 0), b"\0\0\0\0\0\0\0\0\x7f\xff\xff\xff"),
    ):
        with pytest.raises(Corrupt):
            decode(cls, data)


def test_an_array_in_a_tagged_field_cannot_either():
    cls = response_type(ApiKey.FETCH, 16)
    written = encode(build(cls))
    assert written.endswith(b"\0")

    with pytest.raises(Corrupt):
        decode(cls, written[:-1] + b"\1\0\5\xff\xff\xff\xff\7")


def test_unknown_tags_are_cut_out_wherever_they_are():
    cls = response_type(ApiKey.FETCH, 16)
    response = a_fetch_response(b"records")
    written = encode(response)
    # The sections of partition, topic and response, in that order, all empty.
    assert written.endswith(b"records\0\0\0")
    unknown = b"\1\x64\3abc"

    assert decode(cls, written[:-3] + unknown * 3) == response
    assert decode(cls, written[:-3] + b"\0" + unknown + b"\0") == response


def test_the_time_minus_one_of_a_field_that_cannot_be_null_is_read_as_zero():
    """Kafka answers DescribeTransactions so where no transaction is under way; kio refuses it."""
    cls = response_type(ApiKey.DESCRIBE_TRANSACTIONS, 0)
    state = entity("describe_transactions", 0, "TransactionState", "response")
    empty, begun = (
        build(state, transactional_id="t", transaction_state="Empty", transaction_start_time=start, topics=())
        for start in (-1, 1_000)
    )

    found = decode(cls, encode(build(cls, transaction_states=(empty, begun)))).transaction_states

    assert [one.transaction_start_time.timestamp() for one in found] == [0, 1]
    assert [one.transactional_id for one in found] == ["t", "t"]
    with pytest.raises(Corrupt):
        decode(cls, encode(build(cls, transaction_states=(empty, begun)))[:-9])


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize(
    ("sent", "read"),
    [(2**63 - 1, 9_223_372_036_854_775), (-(2**63), -9_223_372_036_854_775), (-1, -1), (10**15, 10**15)],
)
def test_a_span_of_64_bits_is_read_however_long_as_the_longest_that_there_is(
    version: int, sent: int, read: int
):
    """Kafka takes any: kio has none beyond 64 bits of microseconds."""
    request = build(request_type(ApiKey.OFFSET_COMMIT, version), retention_time=sent, topics=())

    found = decode(request_type(ApiKey.OFFSET_COMMIT, version), encode(request))

    assert found.retention_time == timedelta(milliseconds=read)
    assert found.topics == ()


def test_a_moment_after_the_year_9999_is_read_as_its_end():
    cls = response_type(ApiKey.DESCRIBE_TRANSACTIONS, 0)
    state = entity("describe_transactions", 0, "TransactionState", "response")
    states = tuple(
        build(state, transactional_id="t", transaction_start_time=at, topics=())
        for at in (2**63 - 1, -(2**63))
    )

    found = decode(cls, encode(build(cls, transaction_states=states))).transaction_states

    assert [one.transaction_start_time.year for one in found] == [9999, 1970]


def test_an_unknown_tag_within_a_known_one_is_cut_out():
    cls = response_type(ApiKey.FETCH, 16)
    leader = entity("fetch", 16, "LeaderIdAndEpoch", "response")
    written = encode(a_fetch_response(None))
    known = encode(build(leader, leader_id=4, leader_epoch=2))
    newer = known[:-1] + b"\1\x64\3abc"
    section = b"\2\1" + bytes((len(newer),)) + newer + b"\x65\0"
    assert written.endswith(b"\0\0\0")

    found = decode(cls, written[:-3] + section + b"\0\0").responses[0].partitions[0]

    assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (4, 2)


def test_a_known_tag_of_the_wrong_size_is_corrupt():
    cls = response_type(ApiKey.FETCH, 16)
    written = encode(a_fetch_response(None))

    for size in (b"\x05", b"\x0e", b"\x7f"):
        section = b"\1\1" + size + bytes(9)
        with pytest.raises(Corrupt):
            decode(cls, written[:-3] + section + b"\0\0" + bytes(5))


def test_the_zero_uuid_of_a_tagged_field_is_its_default():
    cls = request_type(ApiKey.FETCH, 17)
    topic, partition = entity("fetch", 17, "FetchTopic"), entity("fetch", 17, "FetchPartition")

    def request(directory):
        held = build(partition, replica_directory_id=directory)
        return build(cls, topics=[build(topic, partitions=[held])])

    assert encode(request(uuid.UUID(int=0))) == encode(request(None))
    assert len(encode(request(uuid.UUID(int=1)))) == len(encode(request(None))) + 18


def test_a_writer_is_straight_line_source_that_can_be_read():
    source = source_of(response_type(ApiKey.HEARTBEAT, 4))

    assert "e.throttle_time" in source
    assert source.count("put(") == 1


def test_the_codec_does_not_import_all_of_kio_nor_hypothesis():
    script = (
        "import sys; from coterie.wire.api.codec import request_type, decode;"
        "decode(request_type(12, 0), bytes.fromhex('0000000000010000'));"
        "assert 'kio.index' not in sys.modules and 'hypothesis' not in sys.modules;"
        "assert not [name for name in sys.modules if name.startswith('kio.schema.') and 'join_group' in name]"
    )

    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize(("length", "fits"), [(32_767, True), (32_768, False), (70_000, False)])
@pytest.mark.parametrize("field", ["group_id", "member_id", "name", "committed_metadata"])
def test_a_text_is_no_longer_than_a_record_can_hold(version, length, fits, field):
    """Compact lengths could say more; Kafka refuses it, wherever in the request it stands."""
    said = {"group_id": "g", "member_id": "m", "name": "t", "committed_metadata": ""} | {field: "x" * length}
    partition = build(
        entity("offset_commit", version, "OffsetCommitRequestPartition"),
        partition_index=0,
        committed_offset=1,
        committed_metadata=said["committed_metadata"],
    )
    topic = build(
        entity("offset_commit", version, "OffsetCommitRequestTopic"),
        name=said["name"],
        partitions=(partition,),
    )
    request = build(
        request_type(ApiKey.OFFSET_COMMIT, version),
        group_id=said["group_id"],
        generation_id_or_member_epoch=1,
        member_id=said["member_id"],
        topics=(topic,),
    )
    frame = encode_request(1, "me", request)[4:]
    header = read_request_header(frame)

    if fits:
        assert decode_request(header, frame) == request
    else:
        with pytest.raises(Corrupt, match=f"text of {length} bytes"):
            decode_request(header, frame)
