"""OffsetCommit, OffsetFetch, OffsetDelete in every version, by real requests; and what ApiVersions says."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from coterie.base.codes import Code
from coterie.broker.api import served_apis
from coterie.wire.api.apis import APIS
from coterie.wire.api.entities import (
    build,
    response_type,
)
from coterie.wire.payloads.consumer_offsets import OffsetCommitKey, read_key, read_offset_value
from unit.broker.group_api_rig import (
    API_VERSIONS,
    COMMIT,
    FETCH,
    OFFSET_DELETE,
    ApiRig,
    ask_fetch,
    commit_topic,
    fetch_group,
    fetch_topic,
    named,
    part,
    reply_part,
    versions,
)
from unit.broker.rig import Client
from unit.wire.test_wire_apis import ADVERTISED

NONE, UNKNOWN_TOPIC, UNKNOWN_ID = Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID
row = pytest.mark.row
SERVED = served_apis(alone=True, replicas_are_moved=False)


@pytest.fixture(scope="module")
def rig() -> Iterator[ApiRig]:
    """One broker for all; each test uses groups of its own."""
    rig = ApiRig()
    yield rig
    rig.close()


# -- OffsetCommit

HASHED = (("test", 0), ("orders", 1), ("polygenelubricants", 0))  # two negative ones, one the least there is
Answered = list[tuple[str, list[tuple[int, Code]]]]


def commit(rig: ApiRig, version: int, group_id: str, *topics: tuple[Any, ...], **terms: Any) -> Any:
    """Ask to commit topics: a name and (partition, offset, metadata) each."""
    asked = tuple(commit_topic(rig, version, name, *offsets) for name, *offsets in topics)
    no_retention = timedelta(milliseconds=-1)
    defaults = {"generation_id_or_member_epoch": -1, "member_id": "", "retention_time": no_retention}
    return rig.client().ask(COMMIT, version, group_id=group_id, topics=asked, **defaults | terms)


def committed(rig: ApiRig, version: int, answered: Answered) -> Any:
    """Return the whole answer to an OffsetCommit."""

    def partition(index: int, code: Code) -> Any:
        kind = "OffsetCommitResponsePartition"
        return reply_part(COMMIT, version, kind, partition_index=index, error_code=code)

    topics = tuple(
        reply_part(
            COMMIT,
            version,
            "OffsetCommitResponseTopic",
            name=name,
            topic_id=rig.topic_id(name),
            partitions=tuple(partition(*one) for one in codes),
        )
        for name, codes in answered
    )
    return build(response_type(COMMIT, version), topics=topics)


@row("OC-7", "OC-12", "OF-6")
@pytest.mark.parametrize("version", versions(COMMIT))
def test_a_commit_is_stored_in_every_version(rig: ApiRig, version: int):
    """The leader's epoch from version 6 on, the topic's id whatever the version; null metadata is ""."""
    group = f"commit-{version}"

    answer = commit(rig, version, group, ("orders", (0, 5, "md"), (1, 6, None)), ("other", (0, 7, "")))

    assert answer == committed(rig, version, [("orders", [(0, NONE), (1, NONE)]), ("other", [(0, NONE)])])
    epoch = 3 if version >= 6 else -1
    assert fetched(rig, 9, group, ("orders", 0, 1)) == [
        ("orders", 0, 5, epoch, "md"),
        ("orders", 1, 6, epoch, ""),
    ]


def fetched(rig: ApiRig, version: int, group_id: str, *topics: Any) -> list[tuple[str, int, int, int, str]]:
    """Return what is told of a group's offsets, all of it without an error."""
    asked = tuple(fetch_topic(rig, version, *topic) for topic in topics)
    answer = ask_fetch(rig.client(), version, group_id, asked)
    assert answer.error_code == NONE
    assert {p.error_code for t in answer.topics for p in t.partitions} <= {NONE}
    return [
        (t.name, p.partition_index, p.committed_offset, p.committed_leader_epoch, p.metadata)
        for t in answer.topics
        for p in t.partitions
    ]


@row("OC-4", "P-2")
@pytest.mark.parametrize("version", range(2, 10))
def test_what_is_not_there_cannot_be_committed_and_the_rest_is(rig: ApiRig, version: int):
    """The answer has the errors first, as Kafka's."""
    answer = commit(
        rig,
        version,
        f"mixed-{version}",
        ("other", (0, 1, "")),
        ("orders", (0, 5, ""), (9, 6, ""), (-1, 1, "")),
        ("nowhere", (0, 1, ""), (4, 1, "")),
    )

    assert answer == committed(
        rig,
        version,
        [
            ("orders", [(9, UNKNOWN_TOPIC), (-1, UNKNOWN_TOPIC), (0, NONE)]),
            ("nowhere", [(0, UNKNOWN_TOPIC), (4, UNKNOWN_TOPIC)]),
            ("other", [(0, NONE)]),
        ],
    )


@row("OC-2")
def test_a_topic_id_of_nothing_cannot_be_committed_to(rig: ApiRig):
    """From version 10 on; a partition that is not there has an error of its own."""
    answer = commit(rig, 10, "by-id", ("nowhere", (0, 1, "")), ("orders", (0, 5, ""), (9, 1, "")))

    assert answer == committed(
        rig, 10, [("nowhere", [(0, UNKNOWN_ID)]), ("orders", [(9, UNKNOWN_TOPIC), (0, NONE)])]
    )


@row("OC-5")
@pytest.mark.parametrize("version", versions(COMMIT))
def test_a_commit_of_nothing_that_is_there_is_not_asked_of_the_group(rig: ApiRig, version: int):
    """Nor is a member or a generation looked at, nor a group made."""
    stale = {"generation_id_or_member_epoch": 7, "member_id": "m"}
    code = UNKNOWN_ID if version >= 10 else UNKNOWN_TOPIC

    nothing = commit(rig, version, "untouched", **stale)
    unknown = commit(rig, version, "untouched", ("nowhere", (0, 1, "")), **stale)
    hollow = commit(rig, version, "untouched", ("orders",), **stale)

    assert nothing == committed(rig, version, [])
    assert unknown == committed(rig, version, [("nowhere", [(0, code)])])
    assert hollow == committed(rig, version, [])
    assert "untouched" not in rig.node.coordinator.host_of("untouched").shard.groups


@row("OC-8")
@pytest.mark.parametrize("version", versions(COMMIT))
def test_a_member_of_a_group_that_is_gone_is_told_so(rig: ApiRig, version: int):
    member = {"generation_id_or_member_epoch": 3, "member_id": "m"}

    answer = commit(rig, version, "gone", ("orders", (0, 5, ""), (1, 5, "")), **member)

    code = Code.GROUP_ID_NOT_FOUND if version >= 9 else Code.ILLEGAL_GENERATION
    assert answer == committed(rig, version, [("orders", [(0, code), (1, code)])])


@row("OC-6", "P-4", "OF-4")
@pytest.mark.parametrize("version", versions(COMMIT))
def test_the_nameless_group_keeps_offsets_like_any_other(rig: ApiRig, version: int):
    answer = commit(rig, version, "", ("orders", (0, version, "")))

    assert answer == committed(rig, version, [("orders", [(0, NONE)])])
    assert [found[2] for found in fetched(rig, 9, "", ("orders", 0))] == [version]


@row("OC-11", "0.5-5")
def test_offsets_with_too_much_metadata_are_refused_and_the_others_stored():
    rig = ApiRig(offset_metadata_max_bytes=3)

    answer = commit(rig, 9, "g", ("orders", (0, 5, "long"), (1, 6, "ok")))

    assert answer == committed(rig, 9, [("orders", [(0, Code.OFFSET_METADATA_TOO_LARGE), (1, NONE)])])
    assert [found[2] for found in fetched(rig, 9, "g", ("orders", 0, 1))] == [-1, 6]


@row("OC-12", "3.1-2")
@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_retention_of_its_own_is_stored_as_the_offsets_end(version: int):
    """In the only version of the record that has a place for it; that one has none for the epoch."""
    rig = ApiRig()

    commit(rig, version, "g", ("orders", (0, 5, "")), retention_time=timedelta(seconds=2))

    (value,) = records_of(rig, "g").values()
    assert value[:2] == b"\x00\x01"
    stored = read_offset_value(value)
    assert (stored.commit_timestamp, stored.expire_timestamp) == (rig.now_ms, rig.now_ms + 2_000)


@row("OC-12", "3.1-2")
@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("offsets", [1, 6_000], ids=["few", "many"])
def test_a_retention_as_long_as_a_number_can_be_keeps_an_offset_and_the_least_does_not(
    version: int, offsets: int
):
    """Whatever it is, Kafka 4.3.1 answers 0: asked on 2026-11-23 with 2^63-1, -2^63, 2^62 and -5."""
    rig = ApiRig(offsets_retention_minutes=1)
    for group, retention_ms in (("long", 2**63 - 1), ("short", -(2**63))):
        asked = ("orders", (0, 5, "")), *[("nope", (0, 5, ""))] * (offsets - 1)
        answer = commit(rig, version, group, *asked, retention_time=retention_ms)
        assert Code.NONE in [one.error_code for topic in answer.topics for one in topic.partitions]

    rig.pass_ms(1_200_000)

    kept = [ask_fetch(rig.client(), 5, group, None).topics for group in ("long", "short")]
    assert [len(topics) for topics in kept] == [1, 0]


def records_of(rig: ApiRig, group_id: str) -> dict[Any, bytes]:
    """Return what the log has for a group: its last value by key."""
    from coterie.wire.records.batches import records_of as records
    from coterie.wire.records.batches import scan

    log = rig.node.coordinator.host_of(group_id).log
    piece = log.read(log.start_offset, max_bytes=1 << 20)
    found = {read_key(r.key or b""): r.value or b"" for at, _ in scan(piece) for r in records(piece, at)}
    return {key: value for key, value in found.items() if key.group == group_id}


@row("P-6", "OC-12", "3.1-2", "3.2-2")
def test_an_offset_is_stored_in_the_partition_of_its_group(rig: ApiRig):
    """By Java's hash of its name."""
    for group, partition in HASHED:
        commit(rig, 9, group, ("orders", (0, 5, "md")))

        assert rig.node.coordinator.host_of(group).partition == partition
        (key,) = records_of(rig, group)
        assert key == OffsetCommitKey(group, "orders", 0)


# -- OffsetFetch


def offsets_of(version: int, *partitions: tuple[int, int, int, str, Code]) -> tuple[Any, ...]:
    """Return partitions of an answer: (partition, offset, epoch, metadata, code) each."""
    kind = "OffsetFetchResponsePartitions" if version >= 8 else "OffsetFetchResponsePartition"
    names = ("partition_index", "committed_offset", "committed_leader_epoch", "metadata", "error_code")
    return tuple(reply_part(FETCH, version, kind, **dict(zip(names, p, strict=True))) for p in partitions)


def told(rig: ApiRig, version: int, group_id: str, topics: list[tuple[str, tuple[Any, ...]]]) -> Any:
    """Return the whole answer to a fetch of one group."""
    kind = "OffsetFetchResponseTopics" if version >= 8 else "OffsetFetchResponseTopic"
    parts = tuple(
        reply_part(FETCH, version, kind, partitions=partitions, **named(rig, version, name))
        for name, partitions in topics
    )
    if version < 8:
        return build(response_type(FETCH, version), topics=parts)
    group = reply_part(FETCH, version, "OffsetFetchResponseGroup", group_id=group_id, topics=parts)
    return build(response_type(FETCH, version), groups=(group,))


def fetch(client: Client, version: int, group_id: str, topics: tuple[Any, ...] | None, **terms: Any) -> Any:
    """Return the whole answer to a fetch of one group."""
    if version < 8:
        return client.ask(FETCH, version, group_id=group_id, topics=topics, **terms)
    return client.ask(FETCH, version, groups=(fetch_group(version, group_id, topics),), **terms)


@row("OF-6", "OF-8", "OF-11", "OM-5")
@pytest.mark.parametrize("version", versions(FETCH))
def test_offsets_are_fetched_in_every_version(rig: ApiRig, version: int):
    """The leader's epoch from version 5 on; what is not there is -1 and no error."""
    group = f"fetch-{version}"
    commit(rig, 9, group, ("orders", (1, 5, "md")))

    answer = fetch(
        rig.client(),
        version,
        group,
        (fetch_topic(rig, version, "orders", 1, 0, 7), fetch_topic(rig, version, "other", 0)),
    )

    nothing = (-1, -1, "", NONE)
    assert answer == told(
        rig,
        version,
        group,
        [
            ("orders", offsets_of(version, (1, 5, 3, "md", NONE), (0, *nothing), (7, *nothing))),
            ("other", offsets_of(version, (0, *nothing))),
        ],
    )


@row("OF-2", "OF-11")
@pytest.mark.parametrize("version", versions(FETCH)[1:])
def test_all_offsets_of_a_group_are_fetched(rig: ApiRig, version: int):
    group = f"all-{version}"
    commit(rig, 9, group, ("orders", (1, 5, "md"), (0, 4, "")))

    answer = fetch(rig.client(), version, group, None)

    both = offsets_of(version, (0, 4, 3, "", NONE), (1, 5, 3, "md", NONE))
    assert answer == told(rig, version, group, [("orders", both)])


@row("OF-5")
@pytest.mark.parametrize("version", versions(FETCH))
def test_a_group_that_is_not_there_has_no_offsets(rig: ApiRig, version: int):
    asked = (fetch_topic(rig, version, "orders", 0),)

    some = fetch(rig.client(), version, "nowhere", asked)
    none = fetch(rig.client(), version, "nowhere", ())

    assert some == told(rig, version, "nowhere", [("orders", offsets_of(version, (0, -1, -1, "", NONE)))])
    assert none == told(rig, version, "nowhere", [])
    if version >= 2:
        assert fetch(rig.client(), version, "nowhere", None) == told(rig, version, "nowhere", [])


@row("OF-3")
def test_offsets_of_a_topic_id_of_nothing_are_an_error_each():
    """After those that are there, as in Kafka's answer."""
    rig = ApiRig()
    commit(rig, 10, "g", ("orders", (0, 5, "")))
    asked = (fetch_topic(rig, 10, "nowhere", 0, 3), fetch_topic(rig, 10, "orders", 0))

    answer = fetch(rig.client(), 10, "g", asked)

    unknown = offsets_of(10, (0, -1, -1, "", UNKNOWN_ID), (3, -1, -1, "", UNKNOWN_ID))
    there = offsets_of(10, (0, 5, 3, "", NONE))
    assert answer == told(rig, 10, "g", [("orders", there), ("nowhere", unknown)])


@row("OF-3", "OF-2")
def test_among_all_offsets_those_of_a_topic_without_an_id_are_left_out():
    """Nothing is deleted with a topic whose deletion this shard has not seen yet."""
    rig = ApiRig()
    commit(rig, 10, "g", ("orders", (0, 5, "")), ("other", (0, 6, "")))
    rig.node.topics.delete(["other"])

    by_id = fetch(rig.client(), 10, "g", None)
    by_name = fetch(rig.client(), 9, "g", None)

    assert by_id == told(rig, 10, "g", [("orders", offsets_of(10, (0, 5, 3, "", NONE)))])
    assert [t.name for t in by_name.groups[0].topics] == ["orders", "other"]


@row("OF-6", "OM-6")
def test_an_offset_of_an_older_topic_of_that_name_is_not_told_by_id():
    """By name it is: nobody said which topic is meant."""
    rig = ApiRig()
    commit(rig, 10, "g", ("orders", (0, 5, "")))
    rig.node.topics.delete(["orders"])
    rig.node.topics.gone("orders")
    rig.node.topics.announce([rig.node.topics.new("orders", replicas=[(1,)] * 2, topic_id=UUID(int=9))])
    rig.node.topics.arrive("orders")

    by_id = fetch(rig.client(), 10, "g", (fetch_topic(rig, 10, "orders", 0),))
    by_name = fetch(rig.client(), 9, "g", (fetch_topic(rig, 9, "orders", 0),))

    assert by_id.groups[0].topics[0].partitions == offsets_of(10, (0, -1, -1, "", NONE))
    assert by_name.groups[0].topics[0].partitions == offsets_of(9, (0, 5, 3, "", NONE))


@row("OF-9")
@pytest.mark.parametrize("version", range(7, 11))
def test_a_stable_fetch_answers_alike_while_no_transaction_is_open(rig: ApiRig, version: int):
    group = f"stable-{version}"
    commit(rig, 9, group, ("orders", (0, 5, "")))
    asked = (fetch_topic(rig, version, "orders", 0),)

    answer = fetch(rig.client(), version, group, asked, require_stable=True)

    assert answer == told(rig, version, group, [("orders", offsets_of(version, (0, 5, 3, "", NONE)))])


@row("OF-2", "OF-5", "OF-6")
@pytest.mark.parametrize("version", [8, 9, 10])
def test_many_groups_are_fetched_at_once(rig: ApiRig, version: int):
    """Each in its place, one that is asked for twice as well."""
    commit(rig, 9, f"many-{version}", ("orders", (0, 5, "")))
    names = (f"many-{version}", "nowhere", f"many-{version}")

    answer = rig.client().ask(
        FETCH, version, groups=tuple(fetch_group(version, name, None) for name in names)
    )

    parts = [told(rig, version, name, []).groups[0] for name in names]
    there = told(rig, version, names[0], [("orders", offsets_of(version, (0, 5, 3, "", NONE)))]).groups[0]
    assert answer == build(response_type(FETCH, version), groups=(there, parts[1], there))
    assert rig.client().ask(FETCH, version, groups=()) == build(response_type(FETCH, version), groups=())


# -- OffsetDelete


def delete(rig: ApiRig, group_id: str, *topics: tuple[str, tuple[int, ...]]) -> Any:
    asked = tuple(
        part(
            OFFSET_DELETE,
            0,
            "OffsetDeleteRequestTopic",
            name=name,
            partitions=tuple(
                part(OFFSET_DELETE, 0, "OffsetDeleteRequestPartition", partition_index=p) for p in partitions
            ),
        )
        for name, partitions in topics
    )
    return rig.client().ask(OFFSET_DELETE, 0, group_id=group_id, topics=asked)


def deleted(*answered: tuple[str, tuple[tuple[int, Code], ...]], code: Code = NONE) -> Any:
    topics = tuple(
        reply_part(
            OFFSET_DELETE,
            0,
            "OffsetDeleteResponseTopic",
            name=name,
            partitions=tuple(
                reply_part(OFFSET_DELETE, 0, "OffsetDeleteResponsePartition", partition_index=p, error_code=c)
                for p, c in codes
            ),
        )
        for name, codes in answered
    )
    return build(response_type(OFFSET_DELETE, 0), error_code=code, topics=topics)


@row("OD-1", "OD-5", "OM-4")
def test_offsets_are_deleted_and_what_is_not_there_is_an_error_each(rig: ApiRig):
    """The errors first, as in Kafka's answer."""
    commit(rig, 9, "del", ("orders", (0, 5, ""), (1, 6, "")), ("other", (0, 7, "")))

    answer = delete(rig, "del", ("other", (0,)), ("orders", (0, 9)), ("nowhere", (0,)))

    assert answer == deleted(
        ("orders", ((9, UNKNOWN_TOPIC), (0, NONE))),
        ("nowhere", ((0, UNKNOWN_TOPIC),)),
        ("other", ((0, NONE),)),
    )
    assert [found[:3] for found in fetched(rig, 9, "del", ("orders", 0, 1), ("other", 0))] == [
        ("orders", 0, -1),
        ("orders", 1, 6),
        ("other", 0, -1),
    ]


@row("OD-2", "P-4")
def test_offsets_of_no_group_cannot_be_deleted(rig: ApiRig):
    """The error is at the top, and nothing else is told."""
    asked = (("orders", (0,)), ("nowhere", (0,)))

    assert delete(rig, "", *asked) == deleted(code=Code.INVALID_GROUP_ID)
    assert delete(rig, "nobody's", *asked) == deleted(code=Code.GROUP_ID_NOT_FOUND)


@row("OD-4")
def test_offsets_that_members_may_need_are_kept():
    rig = ApiRig()
    rig.stable("g", "a")

    assert delete(rig, "g", ("orders", (0,))) == deleted(("orders", ((0, Code.GROUP_SUBSCRIBED_TO_TOPIC),)))


# -- ApiVersions


@row("0.4-1", "0.4-2", "0.4-3", "0.4-4", "0.4-5", "0.4-6", "0.4-7", "0.4-8", "0.4-9", "0.4-12", "0.4-13")
@pytest.mark.parametrize("version", versions(API_VERSIONS))
def test_what_is_served_is_advertised_with_kafkas_ranges(rig: ApiRig, version: int):
    """Range for range, Produce's from 0 on, which is not true and makes old clients compress."""
    kafka = {
        int(key): (int(least), int(most)) for key, least, most in (r.split() for r in ADVERTISED.split(";"))
    }

    answer = rig.client().ask(API_VERSIONS, version, client_software_name="x", client_software_version="1")

    said = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert answer.error_code == NONE
    assert said == {key: kafka[key] for key in SERVED}
    assert said[0] == (0, 13)


@row("P-1")
def test_a_version_of_apiversions_that_is_not_known_is_answered_in_the_first(rig: ApiRig):
    client = rig.client()
    client.asked.append((API_VERSIONS, 0))

    client.connection.data_received(bytes.fromhex("0000001000120063000000010004746573740000"))

    (answer,) = client.answers()
    assert answer.error_code == Code.UNSUPPORTED_VERSION
    assert [(one.api_key, one.min_version, one.max_version) for one in answer.api_keys] == [(18, 0, 4)]


@row("P-1")
@pytest.mark.parametrize(
    ("api_key", "version"), [(11, 10), (12, 5), (8, 1), (8, 11), (9, 0), (0, 2), (68, 0), (999, 0)]
)
def test_a_version_that_is_not_served_ends_the_connection(rig: ApiRig, api_key: int, version: int):
    """Of APIs that are not served, every version."""
    if api_key in SERVED:
        assert not APIS[api_key].serves(version)
    client = rig.client()
    head = api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\1" + b"\0\4test"

    client.connection.data_received((len(head) + 1).to_bytes(4, "big") + head + b"\0")

    assert client.line.closed
    assert client.answers() == []
