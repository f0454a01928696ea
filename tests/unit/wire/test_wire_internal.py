"""Records of `__consumer_offsets`, against bytes of Kafka's classes (9.2) and a segment of a real broker."""

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.errors import Corrupt
from coterie.wire.payloads.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    UnknownKey,
    group_metadata_record,
    offset_commit_record,
    read_group_value,
    read_key,
    read_offset_value,
)
from coterie.wire.records.batches import records_of, scan

DATA = Path(__file__).resolve().parents[2] / "data"
KEY = OffsetCommitKey("g", "t", 2)
VALUE = OffsetCommitValue(offset=42, leader_epoch=7, metadata="md", commit_timestamp=1000)
TOPIC_ID = UUID("00000000-0000-0001-0000-000000000002")
MEMBER = MemberMetadata(
    member_id="m1",
    client_id="c",
    client_host="/127.0.0.1",
    rebalance_timeout=300_000,
    session_timeout=45_000,
    subscription=b"\1\2",
    assignment=b"\3",
)
GROUP = GroupMetadataValue("consumer", 3, "range", "m1", 1000, (MEMBER,))

OFFSET_VALUES = {
    0: ("0000000000000000002a00026d6400000000000003e8", VALUE._replace(leader_epoch=-1)),
    1: (
        "0001000000000000002a00026d6400000000000003e800000000000007d0",
        VALUE._replace(leader_epoch=-1, expire_timestamp=2000),
    ),
    3: ("0003000000000000002a0000000700026d6400000000000003e8", VALUE),
    4: ("0004000000000000002a00000007036d6400000000000003e800", VALUE),
    "4 with a topic id": (
        "0004000000000000002a00000007036d6400000000000003e801001000000000000000010000000000000002",
        VALUE._replace(topic_id=TOPIC_ID),
    ),
}
GROUP_VALUES = {
    0: (
        "00000008636f6e73756d657200000003000572616e676500026d310000000100026d31000163"
        "000a2f3132372e302e302e310000afc80000000201020000000103",
        GROUP._replace(current_state_timestamp=-1, members=(MEMBER._replace(rebalance_timeout=-1),)),
    ),
    3: (
        "00030008636f6e73756d657200000003000572616e676500026d3100000000000003e80000000100026d31ffff000163"
        "000a2f3132372e302e302e31000493e00000afc80000000201020000000103",
        GROUP,
    ),
    4: (
        "000409636f6e73756d6572000000030672616e6765036d3100000000000003e802036d3100"
        "02630b2f3132372e302e302e31000493e00000afc803010202030000",
        GROUP,
    ),
    "3, brand new": (
        "0003000000000000ffffffff00000000000003e800000000",
        GroupMetadataValue("", 0, current_state_timestamp=1000),
    ),
}


@pytest.mark.parametrize(
    ("encoded", "key"),
    [
        ("000100016700017400000002", KEY),
        ("000000016700017400000002", KEY),
        ("0002000167", GroupMetadataKey("g")),
        ("0003000167", UnknownKey(3, "g")),
        ("000500016700016d", UnknownKey(5, "g")),
        ("ffff", UnknownKey(-1)),
    ],
)
def test_a_key_says_what_its_record_is_about(encoded, key):
    assert read_key(bytes.fromhex(encoded)) == key


@pytest.mark.parametrize(("encoded", "value"), OFFSET_VALUES.values(), ids=OFFSET_VALUES)
def test_a_committed_offset_of_any_version_is_read(encoded, value):
    assert read_offset_value(bytes.fromhex(encoded)) == value


@pytest.mark.parametrize(("encoded", "value"), GROUP_VALUES.values(), ids=GROUP_VALUES)
def test_a_group_of_any_version_is_read(encoded, value):
    assert read_group_value(bytes.fromhex(encoded)) == value


@pytest.mark.parametrize("version", [1, 4, "4 with a topic id"])
def test_an_offset_is_written_as_version_4_or_with_an_expiry_as_version_1(version):
    """3.1."""
    encoded, value = OFFSET_VALUES[version]

    assert offset_commit_record(KEY, value) == (
        bytes.fromhex("000100016700017400000002"),
        bytes.fromhex(encoded),
    )


@pytest.mark.parametrize("version", [3, "3, brand new"])
def test_a_group_is_written_as_version_3(version):
    """VT-2."""
    encoded, value = GROUP_VALUES[version]

    assert group_metadata_record(GroupMetadataKey("g"), value) == (
        bytes.fromhex("0002000167"),
        bytes.fromhex(encoded),
    )


def test_no_value_is_a_tombstone():
    assert offset_commit_record(KEY, None)[1] is None
    assert group_metadata_record(GroupMetadataKey("g"), None) == (bytes.fromhex("0002000167"), None)


def test_the_zero_topic_id_is_not_written():
    assert offset_commit_record(KEY, VALUE._replace(topic_id=UUID(int=0))) == offset_commit_record(KEY, VALUE)


@pytest.mark.parametrize("read", [read_key, read_offset_value, read_group_value])
@pytest.mark.parametrize("encoded", ["", "00", "0000", "0001", "00017f", "00027fff"])
def test_what_is_cut_is_corrupt(read, encoded):
    with pytest.raises(Corrupt):
        read(bytes.fromhex(encoded))


@pytest.mark.parametrize("version", [5, -1, 2**15 - 1])
def test_a_version_from_the_future_is_corrupt(version):
    value = version.to_bytes(2, "big", signed=True) + bytes(60)

    for read in (read_offset_value, read_group_value):
        with pytest.raises(Corrupt, match="version"):
            read(value)


@settings(deadline=None)
@given(st.binary(max_size=120), st.integers(0, 4))
def test_any_bytes_are_read_or_corrupt(data, version):
    for read in (read_key, read_offset_value, read_group_value):
        try:
            read(version.to_bytes(2, "big") + data)
        except Corrupt:
            continue


@settings(deadline=None)
@given(
    offset=st.integers(0, 2**63 - 1),
    epoch=st.integers(-1, 2**31 - 1),
    metadata=st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    topic_id=st.none() | st.uuids(allow_nil=False),
)
def test_an_offset_survives_being_written(offset, epoch, metadata, topic_id):
    value = OffsetCommitValue(offset, epoch, metadata, 5, topic_id=topic_id)
    key, written = offset_commit_record(KEY, value)

    assert (read_key(key), read_offset_value(written)) == (KEY, value)


def test_what_a_real_broker_wrote_is_read_and_written_again_byte_for_byte():
    log = (DATA / "consumer_offsets_9.log").read_bytes()
    kinds = set()

    for at, _ in scan(log):
        for record in records_of(log, at):
            key = read_key(record.key)
            kinds.add(type(key))
            if isinstance(key, OffsetCommitKey):
                value = record.value and read_offset_value(record.value)
                assert offset_commit_record(key, value) == (record.key, record.value)
            else:
                value = record.value and read_group_value(record.value)
                assert group_metadata_record(key, value) == (record.key, record.value)

    assert kinds == {OffsetCommitKey, GroupMetadataKey}
