"""Commits: the fast path does and answers what the handler does, byte by byte."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.fastpath import OFFSET_COMMIT
from coterie.broker.fastpath import commits as fast_commits
from coterie.broker.fastpath.templates import holes_of
from coterie.broker.net.context import WAITS
from coterie.broker.runtime.pieces import at_once
from coterie.storage.log.contract import AppendRefused
from coterie.wire.api.codec import (
    encode_request,
)
from coterie.wire.api.entities import (
    build,
    request_type,
)
from coterie.wire.payloads.consumer_offsets import OffsetCommitKey, read_key, read_offset_value
from coterie.wire.records.batches import records_of, scan
from examples import drawn
from unit.broker.group_api_rig import COMMIT, ApiRig, part
from unit.broker.rig import Client

GROUP = "g"
TOPICS = ("orders", "other", "none")


def a_rig(**settings: object) -> tuple[ApiRig, str]:
    """A stable group of one static member, and its id."""
    rig = ApiRig(**settings)
    return rig, rig.stable(GROUP, "a")["a"]


def a_frame(rig: ApiRig, version: int, *topics: tuple[str, list[tuple[int, int, str | None]]], **terms: Any):
    """An OffsetCommit: topics of (partition, offset, metadata)."""
    parts = tuple(
        part(
            COMMIT,
            version,
            "OffsetCommitRequestTopic",
            name=name,
            topic_id=rig.topic_id(name),
            partitions=tuple(
                part(
                    COMMIT,
                    version,
                    "OffsetCommitRequestPartition",
                    partition_index=partition,
                    committed_offset=offset,
                    committed_leader_epoch=3,
                    committed_metadata=metadata,
                )
                for partition, offset, metadata in offsets
            ),
        )
        for name, offsets in topics
    )
    member = {"generation_id_or_member_epoch": 1, "group_instance_id": None}
    request = build(request_type(COMMIT, version), group_id=GROUP, topics=parts, **(member | terms))
    return encode_request(11, "test", request)


def give(client: Client, frame: bytes, *, fast: bool = True) -> bytes:
    """Hand a frame to a connection, and return what it writes."""
    if fast:
        client.connection.answer(frame)
    else:
        client.connection._answer_by_handler(frame)
    client.rig.settle()
    written, client.line.written = client.line.written, b""
    return written


def records(rig: ApiRig) -> list[Any]:
    partition = rig.node.coordinator.host_of(GROUP).partition
    data = rig.store.logs[TopicPartition(OFFSETS_TOPIC, partition)].read(0, max_bytes=1 << 22)
    return [
        (record.key, record.value, record.timestamp)
        for at, _ in scan(data)
        for record in records_of(data, at)
    ]


def taken(rig: ApiRig) -> list[bool]:
    """Return a list that grows with whether each commit took the fast path."""
    seen: list[bool] = []
    really_take = rig.node.fast_path[OFFSET_COMMIT]
    assert really_take is not None

    def take(connection: Any, sized: bytes) -> Any:
        outcome = really_take(connection, sized)
        seen.append(outcome is WAITS)
        return outcome

    rig.node.fast_path[OFFSET_COMMIT] = take
    return seen


offsets = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 2**62), st.sampled_from(["", None, "md", "x" * 200, "é" * 4_096])
    ),
    min_size=1,
    max_size=3,
)
commits = st.fixed_dictionaries(
    {
        "version": st.integers(6, 10),
        "topics": st.lists(st.tuples(st.sampled_from(["orders", "other", "none"]), offsets), max_size=3),
        "who": st.sampled_from(["a", "a", "a", "nobody", ""]),
        "generation": st.sampled_from([1, 1, 1, 0, -1]),
        "instance": st.sampled_from([None, None, "i-a", "i-none"]),
    }
)


@settings(max_examples=drawn(60), deadline=None)
@given(script=st.lists(commits, min_size=1, max_size=4), repeats=st.integers(1, 2))
def test_the_fast_path_does_and_answers_the_same(script, repeats):
    fast, member = a_rig()
    slow, same = a_rig()
    rigs = (fast, slow)
    ids = {fast: member, slow: same}
    clients = {rig: rig.client() for rig in rigs}
    topic_ids = {name: fast.topic_id(name) for name in TOPICS}
    assert fast.now_ms == slow.now_ms

    for commit in script * repeats:
        answers = []
        for rig in rigs:
            rig.now_ms += 100
            frame = a_frame(
                rig,
                commit["version"],
                *commit["topics"],
                member_id={"a": ids[rig]}.get(commit["who"], commit["who"]),
                generation_id_or_member_epoch=commit["generation"],
                group_instance_id=commit["instance"],
            )
            answer = give(clients[rig], frame, fast=rig is fast)
            for name, topic_id in topic_ids.items():
                answer = answer.replace(rig.topic_id(name).bytes, topic_id.bytes)
            answers.append(answer)
        assert answers[0] == answers[1]

    assert left(fast, member) == left(slow, same)


def left(rig: ApiRig, member_id: str) -> tuple[Any, ...]:
    """Return what commits have left: in the group, in the log, and of the member's session."""
    names = {rig.topic_id(name): name for name in TOPICS}
    host = rig.node.coordinator.host_of(GROUP)
    stored = {
        (topic, partition): one._replace(topic_id=names[one.topic_id])
        for topic, row in host.shard.offsets.get(GROUP, {}).items()
        for partition, one in row.items()
    }
    written = [
        (key, read_offset_value(value)._replace(topic_id=names[read_offset_value(value).topic_id]), at)
        for key, value, at in records(rig)
        if isinstance(read_key(key), OffsetCommitKey)
    ]
    return stored, written, rig.node.purgatory.at(("session", GROUP, member_id))


@pytest.mark.parametrize("version", [8, 9, 10])
def test_a_members_commits_take_the_fast_path(version: int):
    rig, member = a_rig()
    seen = taken(rig)
    client = rig.client()

    for offset in (5, 6):
        frame = a_frame(rig, version, ("orders", [(0, offset, ""), (1, offset, "md")]), member_id=member)
        assert give(client, frame)

    assert seen == [True, True]
    assert [
        one.offset for one in rig.node.coordinator.host_of(GROUP).shard.offsets[GROUP]["orders"].values()
    ] == [6, 6]


def test_a_partition_that_grows_a_topic_or_goes_is_noticed():
    rig, member = a_rig()
    seen, client = taken(rig), rig.client()
    frame = a_frame(rig, 9, ("orders", [(0, 5, "")]), member_id=member)
    give(client, frame)

    at_once(rig.node.topic_manager.delete_topics(["orders"]))
    refused = give(client, frame)

    assert seen == [True, False]
    assert refused.endswith(Code.UNKNOWN_TOPIC_OR_PARTITION.to_bytes(2, "big") + bytes(3))


def test_a_commit_waits_for_its_append():
    rig, member = a_rig()
    client = rig.client()
    client.connection.data_received(a_frame(rig, 9, ("orders", [(0, 5, "")]), member_id=member))
    assert client.line.written == b""
    client.connection.data_received(a_frame(rig, 9, ("orders", [(0, 6, "")]), member_id=member))

    rig.settle()

    assert len(client.line.written) % 2 == 0
    assert client.line.written


def test_a_commit_that_cannot_be_appended_is_refused_by_the_handler(
    monkeypatch: pytest.MonkeyPatch,
):
    rig, member = a_rig()
    client = rig.client()
    give(client, a_frame(rig, 9, ("orders", [(0, 5, "")]), member_id=member))

    def refuse(*args: Any, **terms: Any) -> None:
        raise AppendRefused(Code.KAFKA_STORAGE_ERROR, "full")

    with monkeypatch.context() as patched:
        patched.setattr(rig.node.replica_manager, "append", refuse)
        refused = give(client, a_frame(rig, 9, ("orders", [(0, 6, "")]), member_id=member))

    assert refused.endswith(Code.NOT_COORDINATOR.to_bytes(2, "big") + bytes(3))
    shard = rig.node.coordinator.host_of(GROUP).shard
    assert shard.offsets[GROUP]["orders"][0].offset == 5
    assert give(client, a_frame(rig, 9, ("orders", [(0, 7, "")]), member_id=member))
    assert shard.offsets[GROUP]["orders"][0].offset == 7


def test_a_shard_out_of_service_answers_who_has_committed():
    rig, member = a_rig()
    client = rig.client()
    client.connection.data_received(a_frame(rig, 9, ("orders", [(0, 5, "")]), member_id=member))

    rig.node.coordinator.host_of(GROUP).fence()

    assert client.line.written.endswith(Code.NOT_COORDINATOR.to_bytes(2, "big") + bytes(3))


@given(st.binary(max_size=120), st.binary(max_size=120))
def test_texts_are_alike_outside_of_their_holes_and_differ_in_each_byte_within(one: bytes, other: bytes):
    size = min(len(one), len(other))
    one, other = one[:size], other[:size]

    within = {at for start, end in holes_of(one, other) for at in range(start, end)}

    assert within == {at for at in range(size) if one[at] != other[at]}


def test_a_commit_of_very_many_offsets_is_read_in_pieces_and_not_at_once(monkeypatch: pytest.MonkeyPatch):
    """Found by the requests that are drawn: to learn one of 20,000 took 60 ms."""
    rig, member_id = a_rig()
    read: list[int] = []
    monkeypatch.setattr(fast_commits, "read_light", lambda sized: read.append(len(sized)))
    client = rig.client()

    for count in (3, 2_000):
        give(client, a_frame(rig, 9, ("orders", [(0, n, "") for n in range(count)]), member_id=member_id))

    assert len(read) == 1
