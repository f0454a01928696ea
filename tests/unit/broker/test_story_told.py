"""The story as the broker writes it: which decisions are told, why, of whom, and in which form."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.base.codes import Code
from coterie.base.reasons import CAUSE, reasons
from coterie.story import topic as story_topic
from coterie.story.topic import ASSIGNMENT_READ_MAX, PAUSE_MS, ROUND_MS, WEIGHT_OF_A_ROUND, partitions_of
from coterie.wire.api.entities import (
    build,
    entity,
)
from coterie.wire.records.batches import Record, build_batch
from unit.broker.rig import Rig
from unit.broker.story_rig import GROUP, Reader, a_rig, a_stable_group, given, leave, together, told
from unit.story.story_schema import SCHEMA, problems

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A node; whatever it has told must be as the schema says."""
    rig = a_rig(tmp_path)
    yield rig
    for document in told(rig):
        assert problems(document) == []
    rig.close()


def whys(rig: Rig) -> list[str]:
    return [move["why"] for move in told(rig, "move")]


# -- rebalances


def test_a_finished_rebalance_says_why_who_what_moved_and_how_long_it_took(rig: Rig):
    first, second = Reader(rig, "one"), Reader(rig, "two")
    a_stable_group(rig, first)
    second.join()
    rig.pass_ms(700)
    first.join()
    rig.settle()
    rig.pass_ms(20)
    together(first, second)

    opening, rebalance = told(rig, "rebalance")

    assert (opening["state_before"], opening["state"], opening["joined"]) == (
        "Empty",
        "Stable",
        [first.member_id],
    )
    assert (rebalance["group"], rebalance["generation"], rebalance["why"]) == (GROUP, 2, ["member-joined"])
    assert (rebalance["barrier_ms"], rebalance["stopped_ms"]) == (700, 720)
    assert rebalance["formed_at"] == rebalance["at"] + 700
    assert (rebalance["joined"], rebalance["left"], rebalance["moved"]) == ([second.member_id], [], 1)
    assert rebalance["members"][second.member_id] == {
        "client_id": "two",
        "instance_id": None,
        "host": "/127.0.0.1",
        "partitions": {"orders": [1]},
        "partitions_known": True,
        "gained": {"orders": [1]},
        "lost": {},
        "topics": ["orders"],
    }


def test_a_group_that_lost_its_last_member_is_told_empty(rig: Rig):
    only = Reader(rig)
    a_stable_group(rig, only)

    only.leave()

    rebalance = told(rig, "rebalance")[-1]
    assert (rebalance["state"], rebalance["members"], rebalance["left"]) == ("Empty", {}, [only.member_id])
    assert rebalance["moved"] == 1


def test_a_generation_that_was_cut_short_is_told_and_what_moved_counts_once(rig: Rig):
    first, second, third = Reader(rig, "one"), Reader(rig, "two"), Reader(rig, "three")
    a_stable_group(rig, first)
    second.join()
    first.join()
    rig.settle()
    first.joined()
    second.joined()
    third.join()  # before the leader has assigned anything
    first.join()
    second.join()
    rig.settle()
    together(first, second, third)

    _, cut_short, last = told(rig, "rebalance")

    assert (cut_short["generation"], cut_short["settled"], cut_short["moved"]) == (2, False, 1)
    assert (last["generation"], last["settled"]) == (3, True)
    assert sorted(last["joined"]) == sorted([second.member_id, third.member_id])
    assert last["moved"] == 2


def test_the_story_goes_on_after_a_restart_with_what_everybody_had(tmp_path: Path):
    rig = a_rig(tmp_path)
    first, second = Reader(rig, "one"), Reader(rig, "two")
    a_stable_group(rig, first)
    rig.store.abandon()
    again = a_rig(tmp_path)

    first.client, second.client = again.client("one"), again.client("two")
    second.join()
    first.join()
    again.settle()
    together(first, second)

    rebalance = told(again, "rebalance")[-1]
    assert (rebalance["joined"], rebalance["moved"]) == ([second.member_id], 1)
    assert rebalance["state_before"] == "Stable"
    again.close()


# -- single moves


def test_joins_are_told_with_who_joined(rig: Rig):
    reader = Reader(rig, "app")

    reader.join()

    (move,) = told(rig, "move")
    assert (move["why"], move["decision"]) == ("member-joined", "promise-redeemed")
    assert [person["member_id"] for person in move["who"]] == [reader.member_id]
    assert (move["state_before"], move["state"], move["size"]) == ("Empty", "PreparingRebalance", 1)


def test_no_more_of_reasons_is_told_than_clients_give(rig: Rig):
    """TH-24: one leave may name any number of members, each with a reason of 32 KB."""
    reader = Reader(rig, "one")
    a_stable_group(rig, reader)
    identity = entity("leave_group", 5, "MemberIdentity")
    strangers = [
        build(identity, member_id=f"m-{number}", group_instance_id=None, reason=f"{number} " + "x" * 30_000)
        for number in range(1_000)
    ]
    itself = build(identity, member_id=reader.member_id, group_instance_id=None, reason="closed")

    reader.client.ask(13, 5, group_id=GROUP, members=(*strangers, itself))

    reasons = told(rig, "move")[-1]["reason"].split("; ")
    assert reasons == [f"{number} {'x' * 253}" for number in range(10)]


def test_a_member_that_leaves_is_told_with_its_reason(rig: Rig):
    first, second = Reader(rig, "one"), Reader(rig, "two")
    a_stable_group(rig, first)
    second.join()
    first.join()
    rig.settle()
    together(first, second)

    second.leave(reason="the consumer is being closed")

    move = told(rig, "move")[-1]
    assert (move["why"], move["reason"]) == ("member-left", "the consumer is being closed")
    assert move["who"][0]["client_id"] == "two"
    assert (move["state_before"], move["state"], move["size"]) == ("Stable", "PreparingRebalance", 1)


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("consumer poll timeout has expired.", "poll-interval-exceeded"),
        ("Maximum poll interval (300000ms) exceeded by 12ms", "poll-interval-exceeded"),
        ("member was removed by an admin: it is stuck", "evicted"),
        (None, "member-left"),
    ],
)
def test_what_a_leave_says_of_itself_tells_why(rig: Rig, reason: str | None, why: str):
    reader = Reader(rig)
    a_stable_group(rig, reader)

    reader.leave(reason=reason)

    assert whys(rig)[-1] == why


def test_a_static_member_taken_out_by_its_instance_id_is_evicted(rig: Rig):
    reader = Reader(rig, instance_id="i-1")
    a_stable_group(rig, reader)

    leave(rig.client(), instance_id="i-1", reason="maintenance")

    move = told(rig, "move")[-1]
    assert (move["why"], move["reason"]) == ("evicted", "maintenance")
    assert move["who"][0]["instance_id"] == "i-1"


def test_a_member_that_falls_silent_is_told_as_expired(rig: Rig):
    reader = Reader(rig)
    a_stable_group(rig, reader)

    rig.pass_ms(10_001)

    assert whys(rig)[-1] == "session-expired"


def test_a_member_that_does_not_come_back_in_time_is_told(rig: Rig):
    first, second = Reader(rig, "one"), Reader(rig, "two")
    a_stable_group(rig, first)
    second.join()
    for _ in range(7):
        rig.pass_ms(9_000)
        first.beat()

    assert whys(rig)[-1] == "rebalance-timed-out"
    assert told(rig, "move")[-1]["who"][0]["member_id"] == first.member_id


def test_a_static_member_that_comes_back_is_told_without_a_rebalance(rig: Rig):
    reader = Reader(rig, instance_id="i-1")
    a_stable_group(rig, reader)
    before = len(told(rig, "rebalance"))
    old_id = reader.member_id

    again = Reader(rig, instance_id="i-1")
    again.join()
    again.joined()

    move = told(rig, "move")[-1]
    assert (move["why"], move["state_before"], move["state"]) == (
        "static-member-replaced",
        "Stable",
        "Stable",
    )
    assert (move["who"][0]["member_id"], move["who"][0]["replaces"]) == (again.member_id, old_id)
    assert len(told(rig, "rebalance")) == before


def test_a_member_that_asks_for_a_rebalance_is_told_with_what_it_said(rig: Rig):
    reader = Reader(rig)
    a_stable_group(rig, reader)

    reader.join(reason="cached metadata has changed")

    move = told(rig, "move")[-1]
    assert (move["why"], move["reason"]) == ("topics-changed", "cached metadata has changed")
    assert move["who"][0]["member_id"] == reader.member_id


def test_a_deleted_group_is_told(rig: Rig):
    reader = Reader(rig)
    a_stable_group(rig, reader)
    reader.leave()

    rig.client().ask(42, 2, groups_names=(GROUP,))

    move = told(rig, "move")[-1]
    assert (move["why"], move["state_before"], move["state"], move["generation"]) == (
        "group-deleted",
        "Empty",
        None,
        -1,
    )


def test_a_generation_that_another_broker_goes_on_with_is_told_as_far_as_it_came(rig: Rig):
    """The story had a hole there, and what was under way was gone on with when the group came back."""
    leader, other = Reader(rig, "one"), Reader(rig, "two")
    for reader in (leader, other):
        reader.join()
    rig.pass_ms(1)
    for reader in (leader, other):
        reader.joined()
    leader.sync({leader.member_id: given(0), other.member_id: given(1)})
    assert leader.answer().assignment == given(0)
    coordinator = rig.node.coordinator
    epoch = coordinator.hosts[0].epoch

    coordinator.resigned(0, epoch + 1)
    rig.pass_ms(60_000)

    (rebalance,) = told(rig, "rebalance")
    assert (rebalance["generation"], rebalance["settled"]) == (1, False)
    assert rebalance["members"][other.member_id]["partitions"] == {"orders": [1]}
    assert {one["coordinator_epoch"] for one in told(rig)} == {epoch}
    coordinator.elected(0, epoch + 2)
    coordinator.opened(0)
    rig.settle()
    other.sync()
    assert other.answer().assignment == given(1)
    other.leave()
    leader.leave()
    last = told(rig, "rebalance")[-1]
    assert (last["generation"], last["coordinator_epoch"]) == (2, epoch + 2)
    assert last["at"] >= rebalance["at"] + 60_000


def test_heartbeats_and_repeated_requests_are_not_told(rig: Rig):
    reader = Reader(rig)
    a_stable_group(rig, reader)
    before = len(told(rig))

    assert reader.beat() == 0
    reader.sync()

    assert len(told(rig)) == before


# -- what does not last


def test_what_could_not_be_stored_is_not_told(tmp_path: Path):
    rig = a_rig(tmp_path, message_max_bytes=3_000)
    reader = Reader(rig)
    reader.join()
    rig.pass_ms(1)
    reader.joined()
    too_large = given(*range(1_000))

    reader.sync({reader.member_id: too_large})

    assert reader.answer().error_code != 0
    assert told(rig, "rebalance")[-1:] == [] or not told(rig, "rebalance")[-1]["settled"]
    assert "append-failed" in whys(rig)
    rig.close()


# -- where it is kept


def test_the_memory_holds_what_moved_the_group(rig: Rig):
    reader = Reader(rig)
    a_stable_group(rig, reader)

    moves = rig.node.coordinator.stories.memory.of(GROUP)

    assert [move.state for move in moves][-1] == "Stable"
    assert moves[-1].decision == "assignment-stored"
    assert "assignment-stored" in rig.node.coordinator.stories.recent_moves(GROUP)


def test_turned_off_it_goes_to_the_log_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    rig = a_rig(tmp_path, coterie_story_enable=False)
    caplog.set_level(logging.INFO, "coterie.story")

    a_stable_group(rig, Reader(rig))
    rig.pass_ms(PAUSE_MS)

    assert rig.node.topics.get("__group_story") is None
    assert f"group {GROUP}: generation 1 with 1 member, because member-joined" in caplog.text
    rig.close()


def test_the_log_says_of_a_group_that_ends_that_nobody_is_left(rig: Rig, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "coterie.story")
    reader = Reader(rig)
    a_stable_group(rig, reader)

    reader.leave()
    rig.pass_ms(PAUSE_MS)

    assert caplog.messages[-1] == f"group {GROUP}: generation 2 ended because member-left; nobody is left"


def test_nobody_but_the_broker_writes_the_story(rig: Rig):
    a_stable_group(rig, Reader(rig))
    before = len(told(rig))
    batch = build_batch([Record(0, rig.now_ms, GROUP.encode(), b'{"kind": "move"}')])
    data = build(entity("produce", 9, "PartitionProduceData"), index=0, records=batch)
    topic = build(entity("produce", 9, "TopicProduceData"), name="__group_story", partition_data=(data,))

    answer = rig.client().ask(0, 9, acks=-1, timeout=1_000, topic_data=(topic,))

    assert answer.responses[0].partition_responses[0].error_code == Code.INVALID_TOPIC_EXCEPTION
    assert len(told(rig)) == before


def test_a_record_that_would_be_too_large_leaves_its_lists_out(tmp_path: Path):
    rig = a_rig(tmp_path, message_max_bytes=3_000)
    reader = Reader(rig, metadata=given(*range(40)))
    reader.join()
    rig.pass_ms(1)
    reader.joined()
    reader.sync({reader.member_id: given(*range(400))})

    (rebalance,) = told(rig, "rebalance")

    assert rebalance["abridged"]
    assert (rebalance["size"], rebalance["members"], rebalance["moved"]) == (1, {}, 400)
    assert problems(rebalance) == []
    rig.close()


def test_a_large_rebalance_is_told_without_its_members(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(story_topic, "MEMBERS_MAX", 1)
    readers = [Reader(rig), Reader(rig)]

    a_stable_group(rig, *readers)

    (rebalance,) = told(rig, "rebalance")
    assert rebalance["abridged"]
    assert [rebalance[name] for name in ("size", "members", "joined", "moved")] == [2, {}, [], 2]


def test_what_is_left_to_tell_is_told_when_the_broker_stops(tmp_path: Path):
    rig = a_rig(tmp_path)
    a_stable_group(rig, Reader(rig))
    assert story_bytes(rig) == 0

    rig.node.coordinator.flush_all()

    assert story_bytes(rig) > 0
    assert whys(rig) == ["member-joined"]
    rig.close()


def test_a_story_is_told_a_little_later_and_many_in_rounds(tmp_path: Path):
    rig = a_rig(tmp_path)
    group = [Reader(rig) for _ in range(WEIGHT_OF_A_ROUND + 50)]
    for reader in group:
        reader.join()
    rig.pass_ms(PAUSE_MS - 1)
    assert story_bytes(rig) == 0

    rig.pass_ms(1)
    first = story_bytes(rig)
    rig.pass_ms(ROUND_MS - 1)
    assert story_bytes(rig) == first > 0
    rig.pass_ms(1)

    assert story_bytes(rig) > first
    assert whys(rig) == ["member-joined"] * len(group)
    rig.close()


def given_much(rig: Rig, reader: Reader, assignment: bytes) -> None:
    """Have a member that is alone in its group given this in a generation of its own."""
    reader.join()
    rig.pass_ms(1)
    reader.joined()
    reader.sync({reader.member_id: assignment})
    reader.client.answers()


def most_read_in_a_round(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> int:
    """Have the story told; return of how many bytes assignments were read in one round at most."""
    read: list[int] = [0]

    def reading(assignment: bytes) -> object:
        read[-1] += len(assignment)
        return partitions_of(assignment)

    monkeypatch.setattr(story_topic, "partitions_of", reading)
    for _ in range(100):
        rig.pass_ms(ROUND_MS)
        read.append(0)
    return max(read)


def test_of_many_partitions_a_round_reads_no_more_than_nobody_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rig = a_rig(tmp_path)
    readers = [Reader(rig, group=f"group {number}") for number in range(8)]
    for reader in readers:
        given_much(rig, reader, given(*range(9_000)))

    most = most_read_in_a_round(rig, monkeypatch)

    rebalances = [one for one in told(rig, "rebalance") if one["group"].startswith("group ")]
    assert [one["moved"] for one in rebalances] == [9_000] * len(readers)
    assert most <= ASSIGNMENT_READ_MAX
    rig.close()


def test_an_assignment_that_nobody_can_read_without_being_noticed_is_told_as_unknown(rig: Rig):
    reader = Reader(rig)
    given_much(rig, reader, given(*range(20_000)))

    (rebalance,) = told(rig, "rebalance")

    assert rebalance["members"][reader.member_id]["partitions_known"] is False
    assert (rebalance["moved"], rebalance["size"]) == (0, 1)


def test_what_waits_to_be_told_keeps_no_more_bytes_than_it_may(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(story_topic, "QUEUE_BYTES_MAX", 50_000)
    readers = [Reader(rig, group=f"group {number}") for number in range(8)]
    for reader in readers:
        given_much(rig, reader, given(*range(5_000)))

    assert len(told(rig, "rebalance")) == 2


def test_the_story_goes_on_after_one_that_could_not_be_told(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    given_much(rig, Reader(rig), given(1))
    with monkeypatch.context() as broken:
        broken.setattr(story_topic, "log_rebalance", None)
        with pytest.raises(TypeError):
            rig.pass_ms(PAUSE_MS)

    given_much(rig, Reader(rig, group="others"), given(1))
    rig.pass_ms(PAUSE_MS)

    assert [one["group"] for one in told(rig, "rebalance")] == ["others"]


def story_bytes(rig: Rig) -> int:
    """Return how much of the story is in the log, without having it told."""
    log = rig.node.replica_manager.log_of("__group_story", 0)
    return 0 if log is None else log.size_bytes


# -- the schema


def test_the_schema_names_every_cause():
    assert set(SCHEMA["$defs"]["cause"]["enum"]) == reasons(CAUSE).keys()


def test_the_schema_refuses_what_is_no_story():
    assert problems({"kind": "move"})
    assert problems({"kind": "weather"})
    assert problems([])
