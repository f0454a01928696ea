"""Members whose subscription or assignment cannot be read: they are carried along, and nobody else notices.

On Apache Kafka 4.3.1 such a subscription stalls the whole group: the timer of its join barrier dies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.wire.api.entities import (
    build,
    entity,
)
from coterie.wire.payloads.consumer_protocol import read_topics_v0
from unit.broker.rig import Rig
from unit.broker.rubbish import ASSIGNMENTS, SUBSCRIPTIONS, rubbish
from unit.broker.story_rig import Reader, a_rig, subscribed_to, told
from unit.broker.story_rig import given as assigned
from unit.story.story_schema import problems

COMMIT, FETCH, DESCRIBE, CREATE, DELETE_OFFSETS = 8, 9, 15, 19, 47
RETENTION_MS = 60_000

names = (f"group-{number}" for number in itertools.count())


def a_node(directory: Path) -> Rig:
    """Return a node on which offsets last a minute, with a topic orders."""
    rig = a_rig(directory, offsets_retention_minutes=1, offsets_retention_check_interval_ms=10_000)
    topic = build(
        entity("create_topics", 5, "CreatableTopic"), name="orders", num_partitions=4, replication_factor=1
    )
    rig.client().ask(CREATE, 5, topics=(topic,), timeout=1_000)
    return rig


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    running = a_node(tmp_path_factory.mktemp("malformed"))
    yield running
    for document in told(running):
        assert problems(document) == []
    running.close()


class Pair:
    """A good member that wants payments, and leads, and an odd one beside it."""

    def __init__(self, rig: Rig, metadata: bytes, *, protocol_type: str = "consumer") -> None:
        self.rig = rig
        self.group = next(names)
        self.good = Reader(
            rig, "good", group=self.group, metadata=subscribed_to("payments"), protocol_type=protocol_type
        )
        self.odd = Reader(rig, "odd", group=self.group, metadata=metadata, protocol_type=protocol_type)
        self.roll: dict[str, bytes] = {}

    def join(self) -> None:
        """Have both join; nothing but the end of the initial delay is waited for."""
        self.good.join()
        self.odd.join()
        self.rig.pass_ms(1)
        answer = self.good.joined()
        assert answer.error_code == self.odd.joined().error_code == Code.NONE
        assert answer.leader == self.good.member_id
        self.roll = {member.member_id: member.metadata for member in answer.members}

    def sync(self, for_the_odd: bytes) -> tuple[bytes, bytes]:
        """Have the leader assign; return what both are told."""
        self.odd.sync()
        self.good.sync({self.good.member_id: assigned(0), self.odd.member_id: for_the_odd})
        return self.good.answer().assignment, self.odd.answer().assignment

    def described(self) -> dict[str, tuple[bytes, bytes]]:
        """Return the members' metadata and assignments as DescribeGroups shows them."""
        (group,) = self.rig.client().ask(DESCRIBE, 5, groups=(self.group,)).groups
        return {one.client_id: (one.member_metadata, one.member_assignment) for one in group.members}

    def live_for_ms(self, span_ms: int) -> None:
        """Let time pass in which both send their heartbeats."""
        for _ in range(span_ms // 9_000):
            self.rig.pass_ms(9_000)
            assert self.good.beat() == self.odd.beat() == Code.NONE

    def end(self) -> None:
        self.good.leave()
        self.odd.leave()


def commit(pair: Pair, offset: int) -> Code:
    partition = build(
        entity("offset_commit", 8, "OffsetCommitRequestPartition"), partition_index=0, committed_offset=offset
    )
    topic = build(
        entity("offset_commit", 8, "OffsetCommitRequestTopic"), name="orders", partitions=(partition,)
    )
    answer = pair.good.client.ask(
        COMMIT,
        8,
        group_id=pair.group,
        generation_id_or_member_epoch=pair.good.generation,
        member_id=pair.good.member_id,
        topics=(topic,),
    )
    return Code(answer.topics[0].partitions[0].error_code)


def committed(pair: Pair) -> int:
    topic = build(entity("offset_fetch", 7, "OffsetFetchRequestTopic"), name="orders", partition_indexes=(0,))
    answer: Any = pair.good.client.ask(FETCH, 7, group_id=pair.group, topics=(topic,))
    return int(answer.topics[0].partitions[0].committed_offset)


def deletion_of_an_offset(pair: Pair) -> Code:
    partition = build(entity("offset_delete", 0, "OffsetDeleteRequestPartition"), partition_index=0)
    topic = build(
        entity("offset_delete", 0, "OffsetDeleteRequestTopic"), name="orders", partitions=(partition,)
    )
    answer = pair.good.client.ask(DELETE_OFFSETS, 0, group_id=pair.group, topics=(topic,))
    return Code(answer.topics[0].partitions[0].error_code)


def is_readable(metadata: bytes) -> bool:
    try:
        read_topics_v0(metadata)
    except Corrupt:
        return False
    return True


def rebalance_of(rig: Rig, group: str) -> dict[str, Any]:
    return told(rig, "rebalance", group=group)[-1]


# -- subscriptions


def check_that_nobody_notices(rig: Rig, metadata: bytes) -> None:
    pair = Pair(rig, metadata)

    pair.join()
    told_to_both = pair.sync(assigned(1))

    assert pair.roll[pair.odd.member_id] == metadata
    assert told_to_both == (assigned(0), assigned(1))
    assert pair.good.beat() == pair.odd.beat() == Code.NONE
    assert pair.described()["odd"] == (metadata, assigned(1))
    told_of = rebalance_of(rig, pair.group)["members"][pair.odd.member_id]
    assert (told_of["topics"] is not None) == is_readable(metadata)
    assert told_of["partitions"] == {"orders": [1]}
    pair.end()


@pytest.mark.parametrize("metadata", SUBSCRIPTIONS.values(), ids=SUBSCRIPTIONS.keys())
def test_a_malformed_subscription_is_passed_on_unaltered_and_nobody_notices(rig: Rig, metadata: bytes):
    check_that_nobody_notices(rig, metadata)


@given(metadata=rubbish())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_whatever_bytes_a_member_sends_nobody_notices(rig: Rig, metadata: bytes):
    check_that_nobody_notices(rig, metadata)


def test_a_member_that_turns_malformed_later_is_carried_along(rig: Rig):
    pair = Pair(rig, subscribed_to("orders"))
    pair.join()
    pair.sync(assigned(1))

    pair.odd.metadata = SUBSCRIPTIONS["nothing but ones"]
    pair.odd.join()
    assert pair.good.beat() == Code.REBALANCE_IN_PROGRESS
    pair.good.join()
    pair.good.joined()
    pair.odd.joined()

    assert pair.sync(assigned(2)) == (assigned(0), assigned(2))
    pair.end()


def test_malformed_members_alone_make_a_group_too(rig: Rig):
    pair = Pair(rig, SUBSCRIPTIONS["two thousand million topics"])
    pair.good.metadata = b""

    pair.join()

    assert pair.sync(b"") == (assigned(0), b"")
    pair.end()


@pytest.mark.parametrize("protocol_type", ["connect", "sr", "an-own-one"])
def test_other_protocols_put_there_what_they_like(rig: Rig, protocol_type: str):
    pair = Pair(rig, b'{"url": "http://127.0.0.1"}', protocol_type=protocol_type)

    pair.join()

    assert pair.sync(b"\x00\x01") == (assigned(0), b"\x00\x01")
    members = rebalance_of(rig, pair.group)["members"]
    assert members[pair.odd.member_id]["topics"] is None
    assert members[pair.odd.member_id]["partitions_known"] is False
    pair.end()


# -- what the group has committed (CG-10, XP-5, OD-4)

UNREADABLE = {name: bytes_ for name, bytes_ in SUBSCRIPTIONS.items() if not is_readable(bytes_)}


@pytest.mark.parametrize("name", sorted(UNREADABLE)[::6])
def test_while_a_subscription_cannot_be_read_no_offset_of_the_group_expires_or_is_deleted(
    rig: Rig, name: str
):
    pair = Pair(rig, UNREADABLE[name])
    pair.join()
    pair.sync(b"")
    assert commit(pair, 42) == Code.NONE

    pair.live_for_ms(2 * RETENTION_MS)

    assert committed(pair) == 42
    assert deletion_of_an_offset(pair) == Code.GROUP_SUBSCRIBED_TO_TOPIC
    pair.end()


def test_while_all_can_be_read_an_offset_that_nobody_wants_expires(rig: Rig):
    """The counterpart: it is the rubbish that protects the offset above."""
    pair = Pair(rig, subscribed_to("payments"))
    pair.join()
    pair.sync(b"")
    assert commit(pair, 42) == Code.NONE
    assert deletion_of_an_offset(pair) == Code.NONE
    assert commit(pair, 43) == Code.NONE

    pair.live_for_ms(2 * RETENTION_MS)

    assert committed(pair) == -1
    pair.end()


def test_rubbish_and_its_protection_survive_a_restart(tmp_path: Path):
    rig = a_node(tmp_path)
    odd = SUBSCRIPTIONS["a topic that is no UTF-8"]
    pair = Pair(rig, odd)
    pair.join()
    pair.sync(ASSIGNMENTS["words"])
    commit(pair, 42)
    rig.store.abandon()

    pair.rig = again = a_node(tmp_path)
    for reader in (pair.good, pair.odd):
        reader.client = again.client(reader.client.client_id)
    pair.live_for_ms(2 * RETENTION_MS)

    assert committed(pair) == 42
    assert pair.described()["odd"] == (odd, ASSIGNMENTS["words"])
    pair.odd.leave()
    pair.good.join()
    pair.good.joined()
    pair.good.sync({pair.good.member_id: assigned(0)})
    assert rebalance_of(again, pair.group)["left"] == [pair.odd.member_id]
    again.close()


# -- assignments


def check_that_it_is_passed_on(rig: Rig, assignment: bytes) -> None:
    pair = Pair(rig, subscribed_to("orders"))
    pair.join()

    assert pair.sync(assignment) == (assigned(0), assignment)

    assert pair.good.beat() == pair.odd.beat() == Code.NONE
    assert pair.described()["odd"][1] == assignment
    told_of = rebalance_of(rig, pair.group)["members"][pair.odd.member_id]
    assert told_of["partitions_known"] or told_of["partitions"] == {}
    pair.odd.leave()  # the next rebalance compares with what could not be read
    pair.good.join()
    pair.good.joined()
    pair.good.sync({pair.good.member_id: assigned(0)})
    assert pair.good.answer().assignment == assigned(0)
    assert rebalance_of(rig, pair.group)["left"] == [pair.odd.member_id]
    pair.good.leave()


@pytest.mark.parametrize("assignment", ASSIGNMENTS.values(), ids=ASSIGNMENTS.keys())
def test_a_malformed_assignment_is_passed_on_unaltered(rig: Rig, assignment: bytes):
    check_that_it_is_passed_on(rig, assignment)


@given(assignment=st.one_of(st.binary(max_size=100), rubbish()))
@example(assignment=b"\x00\x00" + b"\x7f\xff\xff\xff")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_whatever_bytes_a_leader_assigns_they_are_passed_on(rig: Rig, assignment: bytes):
    check_that_it_is_passed_on(rig, assignment)


def test_an_assignment_that_cannot_be_read_is_told_as_unknown(rig: Rig):
    pair = Pair(rig, subscribed_to("orders"))
    pair.join()
    pair.sync(ASSIGNMENTS["nothing but ones"])

    told_of = rebalance_of(rig, pair.group)["members"]

    assert told_of[pair.odd.member_id]["partitions_known"] is False
    assert told_of[pair.good.member_id]["partitions_known"] is True
    pair.end()
