"""The consumers' payloads, against bytes that Kafka's own classes wrote (9.2)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.wire.payloads.consumer_protocol import (
    Assignment,
    PreviousAssignment,
    Subscription,
    read_topics_v0,
)

T1_0 = TopicPartition("t1", 0)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
PARTITIONS = st.builds(TopicPartition, TEXTS, st.integers(-(2**31), 2**31 - 1))


@pytest.mark.parametrize(
    ("version", "encoded"),
    [
        (0, "00000000000100027431 00000001 01"),
        (1, "000100000001000274310000000101 00000001000274310000000100000000"),
        (2, "000200000001000274310000000101 00000001000274310000000100000000 00000007"),
        (3, "0003000000010002743100000001010000000100027431000000010000000000000007000172"),
    ],
)
def test_a_subscription_of_each_version_is_kafkas(version, encoded):
    """EN-1. A version drops what it has no place for."""
    subscription = Subscription(("t1",), b"\1", (T1_0,), 7, "r")
    read = Subscription(
        ("t1",),
        b"\1",
        (T1_0,) if version >= 1 else (),
        7 if version >= 2 else -1,
        "r" if version >= 3 else None,
    )

    assert subscription.encode(version) == bytes.fromhex(encoded)
    assert Subscription.decode(bytes.fromhex(encoded)) == read


def test_a_subscription_is_written_sorted():
    """EN-3."""
    subscription = Subscription(("t2", "t1"), None, (TopicPartition("t1", 1), T1_0), 5, "r")

    assert subscription.encode().hex() == (
        "0003000000020002743100027432ffffffff000000010002743100000002000000000000000100000005000172"
    )


def test_a_subscription_that_owns_nothing():
    encoded = "00030000000100027431ffffffff00000000ffffffffffff"

    assert Subscription(("t1",)).encode().hex() == encoded
    assert Subscription.decode(bytes.fromhex(encoded)) == Subscription(("t1",))


@pytest.mark.parametrize(
    ("assignment", "encoded"),
    [
        (
            Assignment((T1_0, TopicPartition("t1", 2), TopicPartition("t2", 1))),
            "00030000000200027431000000020000000000000002000274320000000100000001ffffffff",
        ),
        (Assignment(), "000300000000ffffffff"),
    ],
)
def test_an_assignment_is_kafkas(assignment, encoded):
    """EN-2."""
    assert assignment.encode().hex() == encoded
    assert Assignment.decode(bytes.fromhex(encoded)) == assignment


def test_an_assignment_is_grouped_by_topic_as_they_first_come():
    """EN-3."""
    mixed = Assignment((TopicPartition("b", 1), TopicPartition("a", 0), TopicPartition("b", 0)))

    assert Assignment.decode(mixed.encode()).partitions == (
        TopicPartition("b", 1),
        TopicPartition("b", 0),
        TopicPartition("a", 0),
    )


def test_no_bytes_are_an_assignment_of_nothing():
    assert Assignment.decode(b"") == Assignment()


def test_a_newer_version_is_read_as_ours_and_what_follows_is_ignored():
    """EN-4."""
    newer = b"\0\x09" + Subscription(("t1",), rack="r").encode()[2:] + b"more"

    assert Subscription.decode(newer) == Subscription(("t1",), rack="r")


def test_an_empty_rack_is_none():
    """EN-4."""
    assert Subscription.decode(Subscription(("t1",), rack="").encode()).rack is None


def test_a_negative_version_is_corrupt_but_not_to_a_broker():
    """EN-4, CG-10: the broker reads the topics as version 0 whatever the version is."""
    negative = b"\xff\xff" + Subscription(("t1",)).encode()[2:]

    with pytest.raises(Corrupt):
        Subscription.decode(negative)
    assert read_topics_v0(negative) == ("t1",)


def test_a_broker_reads_topics_and_no_further():
    """CG-10."""
    whole = Subscription(("t1", "t2"), b"data", (T1_0,), 4, "rack").encode()
    cut_after_the_user_data = whole[: 2 + 4 + 4 + 4 + 4 + 4]

    assert read_topics_v0(whole) == read_topics_v0(cut_after_the_user_data) == ("t1", "t2")
    with pytest.raises(Corrupt):
        read_topics_v0(cut_after_the_user_data[:-1])


@pytest.mark.parametrize(
    "rubbish",
    [
        "",
        "00",
        "0000",
        "00007fffffff",
        "0000ffffffff",
        "000000000001ffff00000000",
        "0000000000017fff",
        "000000000001fffe",
        "0000000000010001ff00000000",
        "00000000000000000001",
        "000000000000fffffffe",
        "000100000000ffffffff7fffffff",
        "000200000000ffffffff000000000000",
    ],
)
def test_rubbish_is_corrupt(rubbish):
    with pytest.raises(Corrupt):
        Subscription.decode(bytes.fromhex(rubbish))


@settings(deadline=None)
@given(
    topics=st.lists(TEXTS, max_size=4),
    user_data=st.none() | st.binary(max_size=9),
    owned=st.sets(PARTITIONS, max_size=6),
    generation=st.integers(-1, 2**31 - 1),
    rack=st.none() | TEXTS.filter(bool),
)
def test_a_subscription_survives_the_wire_and_is_corrupt_when_cut(topics, user_data, owned, generation, rack):
    subscription = Subscription(tuple(sorted(topics)), user_data, tuple(sorted(owned)), generation, rack)
    encoded = subscription.encode()

    assert Subscription.decode(encoded) == subscription
    for length in range(len(encoded)):
        with pytest.raises(Corrupt):
            Subscription.decode(encoded[:length])


def test_the_previous_assignment_of_a_sticky_member_is_kafkas():
    """SK-1: version 0 is version 1 without the generation."""
    had = (TopicPartition("t", 1), TopicPartition("t", 0), TopicPartition("u", 3))
    version_0 = "000000020001740000000200000001000000000001750000000100000003"

    for generation, encoded in ((9, version_0 + "00000009"), (None, version_0)):
        previous = PreviousAssignment(had, generation)
        assert previous.encode() == bytes.fromhex(encoded)
        assert PreviousAssignment.decode(bytes.fromhex(encoded)) == previous
    assert PreviousAssignment.decode(bytes.fromhex(version_0 + "0000")).generation is None
    for length in range(len(version_0) // 2):
        with pytest.raises(Corrupt):
            PreviousAssignment.decode(bytes.fromhex(version_0)[:length])


@pytest.mark.parametrize(
    "rubbish", ["00000001ffff00000000", "000000010001ff00000000", "00000001000174ffffffff"]
)
def test_a_previous_assignment_that_makes_no_sense_is_corrupt(rubbish):
    with pytest.raises(Corrupt):
        PreviousAssignment.decode(bytes.fromhex(rubbish))


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_a_payload_or_corrupt(data):
    for read in (Subscription.decode, Assignment.decode, PreviousAssignment.decode, read_topics_v0):
        try:
            read(data)
        except Corrupt:
            continue
