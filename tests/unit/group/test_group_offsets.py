"""Offsets: commit, fetch, delete, expire; groups that are deleted with them (1.7 to 1.11, 2.8, 3.3, 3.4)."""

from __future__ import annotations

from uuid import UUID

import pytest
from group_rig import (
    RANGE,
    SESSION_MS,
    Rig,
    a_completing_group,
    a_preparing_group,
    a_simple_group,
    a_stable_group,
    protocols,
    session_of,
)

from coterie.base.codes import Code
from coterie.coordinator.group.commands import CleanOffsets, OffsetToCommit, TopicsDeleted
from coterie.coordinator.group.facts import GroupDied, GroupRemoved, OffsetsCommitted, OffsetsRemoved
from coterie.coordinator.group.model import State
from coterie.wire.payloads.consumer_offsets import (
    GroupMetadataKey,
    OffsetCommitKey,
    read_key,
    read_offset_value,
)

DAY = 86_400_000
WEEK = 7 * DAY
LONG = 1_800_000
OK, UNKNOWN, FENCED = Code.NONE, Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID
STALE, MOVING, ELSEWHERE = Code.ILLEGAL_GENERATION, Code.REBALANCE_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE
ONE, OTHER = UUID(int=1), UUID(int=2)


def codes(rig: Rig, asked) -> tuple[Code, ...]:
    return rig.answer(asked).codes


# -- OffsetCommit


@pytest.mark.row("OC-7", "CG-7")
def test_a_commit_without_a_group_makes_a_simple_one():
    """No record tells of the group itself."""
    rig = Rig()

    asked = rig.commit()

    assert asked.why == "committed-alone"
    assert codes(rig, asked) == (OK,)
    assert rig.group.state is State.EMPTY
    assert rig.group.protocol_type is None
    assert [type(read_key(key)) for key, _ in rig.log] == [OffsetCommitKey]
    assert rig.committed() == 42


@pytest.mark.row("OC-8")
@pytest.mark.parametrize(("version", "code"), [(8, STALE), (9, Code.GROUP_ID_NOT_FOUND)])
def test_a_members_commit_to_a_group_that_is_gone_is_refused(version: int, code: Code):
    rig = Rig()

    asked = rig.commit("m", 0, version=version)

    assert asked.why == "no-such-group"
    assert codes(rig, asked) == (code,)
    assert rig.shard.groups == {}


def a_group_in(state: State, rig: Rig) -> dict[str, str]:
    """A group of dynamic a and static s in that state, by name."""
    if state is State.EMPTY:
        ids = a_stable_group(rig, "a", "s", static=("s",))
        rig.leave(*ids.values())
        return ids
    if state is State.COMPLETING:
        return a_completing_group(rig, "a", "s", static=("s",))
    ids = a_stable_group(rig, "a", "s", static=("s",))
    if state is State.PREPARING:
        rig.join("late", version=3)
    if state is State.DEAD:
        rig.shard.apply(GroupDied("g", 0))
    return ids


row = pytest.mark.row
STATES = (State.EMPTY, State.PREPARING, State.COMPLETING, State.STABLE, State.DEAD)
MATRIX = [  # who, generation (None: the current one), instance id, and the code in each of STATES
    pytest.param("a", None, None, (UNKNOWN, OK, MOVING, OK, ELSEWHERE), marks=row("1.7-5")),
    pytest.param("s", None, "i-s", (UNKNOWN, OK, MOVING, OK, ELSEWHERE), marks=row("1.7-5")),
    pytest.param("s", None, None, (UNKNOWN, OK, MOVING, OK, ELSEWHERE), marks=row("1.7-5")),
    pytest.param("a", 99, None, (UNKNOWN, STALE, STALE, STALE, ELSEWHERE), marks=row("1.7-6")),
    pytest.param("a", 0, None, (UNKNOWN, STALE, STALE, STALE, ELSEWHERE), marks=row("1.7-6")),
    pytest.param("x", None, None, (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, ELSEWHERE), marks=row("1.7-7")),
    pytest.param("a", None, "i-none", (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, ELSEWHERE), marks=row("1.7-8")),
    pytest.param("a", None, "i-s", (UNKNOWN, FENCED, FENCED, FENCED, ELSEWHERE), marks=row("1.7-8")),
    pytest.param("", -1, None, (OK, UNKNOWN, UNKNOWN, UNKNOWN, ELSEWHERE), marks=row("1.7-2")),
    pytest.param("a", -1, None, (OK, STALE, STALE, STALE, ELSEWHERE), marks=row("1.7-4")),
    pytest.param("x", -1, "i-s", (OK, FENCED, FENCED, FENCED, ELSEWHERE), marks=row("1.7-4")),
    pytest.param("x", -1, None, (OK, UNKNOWN, UNKNOWN, UNKNOWN, ELSEWHERE), marks=row("1.7-4")),
    pytest.param("", -1, "i-none", (OK, UNKNOWN, UNKNOWN, UNKNOWN, ELSEWHERE), marks=row("1.7-4")),
]


@pytest.mark.row("OC-9")
@pytest.mark.parametrize("at", range(len(STATES)), ids=lambda at: STATES[at].name)
@pytest.mark.parametrize(("who", "generation", "instance_id", "expected"), MATRIX)
def test_who_may_commit(at: int, who: str, generation: int | None, instance_id: str | None, expected):
    """The matrix of 1.7, without its transactional rows."""
    rig = Rig()
    ids = a_group_in(STATES[at], rig)
    current = rig.group.generation if generation is None else generation

    asked = rig.commit(ids.get(who, who), current, instance_id=instance_id)

    assert codes(rig, asked) == (expected[at],)
    assert any(isinstance(f, OffsetsCommitted) for f in asked.decision.facts) == (expected[at] is OK)


@pytest.mark.row("OC-9", "1.7-1")
def test_an_instance_of_no_member_may_commit_to_a_simple_group():
    """OC-9, testSimpleGroupOffsetCommitWithInstanceId"""
    rig = Rig()
    a_simple_group(rig)

    assert codes(rig, rig.commit("who", -1, instance_id="i")) == (OK,)


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ("x" * 4096, OK),
        pytest.param("x" * 4097, Code.OFFSET_METADATA_TOO_LARGE, marks=pytest.mark.row("OC-11", "0.5-5")),
        ("\U0001f600" * 2048, OK),
        pytest.param(
            "\U0001f600" * 2048 + "x", Code.OFFSET_METADATA_TOO_LARGE, marks=pytest.mark.row("OC-11")
        ),
        ("é" * 4096, OK),
    ],
)
def test_metadata_is_measured_in_utf_16(metadata: str, code: Code):
    """The other partitions are stored."""
    rig = Rig()
    offsets = (OffsetToCommit("t", 0, 1, -1, metadata), OffsetToCommit("t", 1, 2))

    asked = rig.commit(offsets=offsets)

    assert codes(rig, asked) == (code, OK)
    assert [one.offset for one in rig.fetch(("t", 0), ("t", 1)).partitions] == [1 if code is OK else -1, 2]


@pytest.mark.row("OC-11", "OC-7")
def test_a_commit_of_nothing_but_too_much_metadata_stores_nothing():
    """The simple group is there all the same, and goes with the next cleaning."""
    rig = Rig()

    asked = rig.commit(offsets=(OffsetToCommit("t", 0, 1, -1, "x" * 5000),))

    assert asked.why == "metadata-too-large"
    assert rig.log == []
    assert "g" in rig.shard.groups
    rig.clean()
    assert rig.shard.groups == {}


@pytest.mark.row("OC-12", "P-8", "3.2-2", "3.1-2")
def test_a_commit_is_stored_with_the_brokers_time():
    """Null metadata is stored as ""."""
    rig = Rig()
    rig.now_ms = 1_234

    rig.commit(offsets=(OffsetToCommit("t", 3, 7, 5, None, ONE),))

    key, value = rig.log[-1]
    assert read_key(key) == OffsetCommitKey("g", "t", 3)
    stored = read_offset_value(value or b"")
    assert (stored.offset, stored.leader_epoch, stored.metadata) == (7, 5, "")
    assert (stored.commit_timestamp, stored.expire_timestamp, stored.topic_id) == (1_234, -1, ONE)
    assert (value or b"")[:2] == b"\x00\x04"


@pytest.mark.row("OC-12")
def test_a_commit_with_a_retention_of_its_own_is_stored_with_its_end():
    """Version 1 of the value, which has a place for it."""
    rig = Rig()
    rig.now_ms = 1_000

    rig.commit(retention_ms=500, version=4)

    value = rig.log[-1][1] or b""
    assert value[:2] == b"\x00\x01"
    assert read_offset_value(value).expire_timestamp == 1_500


@pytest.mark.row("OC-13")
@pytest.mark.parametrize("build", [a_group_in])
def test_a_members_commit_is_a_sign_of_life(build):
    """In Stable and PreparingRebalance; in CompletingRebalance it is refused."""
    for state, moved in ((State.STABLE, True), (State.PREPARING, True), (State.COMPLETING, False)):
        rig = Rig()
        ids = build(state, rig)
        before = session_of(rig, ids["a"])
        rig.now_ms += 1_000

        rig.commit(ids["a"], 1)

        assert (session_of(rig, ids["a"]) == rig.now_ms + SESSION_MS) == moved
        assert moved or session_of(rig, ids["a"]) == before


def test_a_commit_may_name_a_partition_twice_and_the_last_counts():
    rig = Rig()

    asked = rig.commit(offsets=(OffsetToCommit("t", 0, 1), OffsetToCommit("t", 0, 2)))

    assert codes(rig, asked) == (OK, OK)
    assert rig.committed("t", 0) == 2


# -- OffsetFetch


@pytest.mark.row("OF-2")
def test_all_offsets_of_a_group():
    """By partition."""
    rig = Rig()
    rig.commit(
        offsets=(OffsetToCommit("b", 2, 5), OffsetToCommit("b", 0, 6, 3, "md"), OffsetToCommit("a", 1, 7))
    )

    answer = rig.fetch()

    assert answer.code is OK
    found = sorted((p.topic, p.partition, p.offset, p.leader_epoch, p.metadata) for p in answer.partitions)
    assert found == [("a", 1, 7, -1, ""), ("b", 0, 6, 3, "md"), ("b", 2, 5, -1, "")]


@pytest.mark.row("OF-5")
def test_a_group_that_is_not_there_has_no_offsets():
    """Which is no error; all of them are none; the same for a Dead one."""
    rig = Rig()

    def asks() -> None:
        answer = rig.fetch(("t", 0), ("t", 1))
        assert answer.code is OK
        assert [(p.offset, p.leader_epoch, p.metadata, p.code) for p in answer.partitions] == [
            (-1, -1, "", OK)
        ] * 2
        assert rig.fetch().partitions == ()

    asks()
    rig.commit()
    rig.shard.apply(GroupDied("g", 0))
    asks()


@pytest.mark.row("OF-6", "OM-5")
def test_a_partition_without_an_offset_is_no_error():
    rig = Rig()
    rig.commit()

    answer = rig.fetch(("flights", 0), ("flights", 1), ("absent", 0))

    assert [(p.offset, p.code) for p in answer.partitions] == [(42, OK), (-1, OK), (-1, OK)]


@pytest.mark.row("OF-6")
@pytest.mark.parametrize(
    ("stored", "asked", "offset"),
    [(ONE, ONE, 42), (ONE, OTHER, -1), (None, OTHER, 42), (ONE, None, 42), (ONE, UUID(int=0), 42)],
)
def test_an_offset_of_another_topic_of_that_name_is_not_told(stored, asked, offset):
    """If both ids are known and differ."""
    rig = Rig()
    rig.commit(offsets=(OffsetToCommit("flights", 0, 42, topic_id=stored),))

    ids = {} if asked is None else {"flights": asked}

    assert rig.fetch(("flights", 0), topic_ids=ids).partitions[0].offset == offset


@pytest.mark.row("OF-9")
def test_a_stable_read_answers_as_any_other_while_nothing_is_open():
    rig = Rig()
    rig.commit()

    assert rig.fetch(("flights", 0), require_stable=True).partitions[0].offset == 42


@pytest.mark.row("OF-8")
def test_a_fetch_asks_nobody_who_it_is():
    """In any state."""
    for state in (State.EMPTY, State.PREPARING, State.COMPLETING, State.STABLE):
        rig = Rig()
        a_group_in(state, rig)
        assert rig.fetch(("flights", 0)).code is OK


# -- OffsetDelete


@pytest.mark.row("OD-2")
def test_deleting_offsets_of_a_group_that_is_not_there():
    """Gone, and Dead."""
    rig = Rig()
    assert rig.delete_offsets(("t", 0)).code is Code.GROUP_ID_NOT_FOUND
    rig.commit()
    rig.shard.apply(GroupDied("g", 0))
    assert rig.delete_offsets(("t", 0)).code is Code.GROUP_ID_NOT_FOUND


@pytest.mark.row("OD-3")
@pytest.mark.parametrize("build", [a_preparing_group, a_completing_group, a_stable_group])
def test_offsets_of_members_that_are_no_consumers_are_not_deleted(build):
    rig = Rig()
    build(rig, protocol_type="connect")

    answer = rig.delete_offsets(("t", 0))

    assert rig.whys[-1] == "group-not-empty"
    assert (answer.code, answer.codes) == (Code.NON_EMPTY_GROUP, ())


@pytest.mark.row("OD-4", "OD-5")
def test_offsets_of_what_is_read_are_not_deleted():
    rig = Rig()
    rig.commit(offsets=(OffsetToCommit("flights", 0, 1), OffsetToCommit("done", 0, 2)))
    a_stable_group(rig)

    answer = rig.delete_offsets(("flights", 0), ("done", 0), ("done", 9))

    assert answer.code is OK
    assert answer.codes == (Code.GROUP_SUBSCRIBED_TO_TOPIC, OK, OK)
    assert (rig.committed("flights"), rig.committed("done")) == (1, -1)
    assert rig.log[-1][1] is None
    assert read_key(rig.log[-1][0]) == OffsetCommitKey("g", "done", 0)


@pytest.mark.row("OD-4", "CG-10")
def test_an_unparsable_subscription_reads_everything():
    rig = Rig()
    rig.commit()
    a_stable_group(rig, protocols=(("range", b"rubbish"),))

    assert rig.delete_offsets(("flights", 0)).codes == (Code.GROUP_SUBSCRIBED_TO_TOPIC,)


@pytest.mark.row("OD-4")
def test_before_the_first_generation_a_consumer_group_reads_everything():
    """Nobody can say yet."""
    rig = Rig()
    rig.commit()
    a_preparing_group(rig)

    assert rig.delete_offsets(("elsewhere", 0)).codes == (Code.GROUP_SUBSCRIBED_TO_TOPIC,)


@pytest.mark.row("OD-5")
def test_a_partition_that_is_named_twice_gets_two_tombstones():
    """As Apache Kafka 4.3.1 writes them: it looks for all offsets before it deletes one."""
    rig = Rig()
    rig.commit()

    answer = rig.delete_offsets(("flights", 0), ("flights", 0))

    assert answer.codes == (OK, OK)
    key = OffsetCommitKey("g", "flights", 0)
    assert [(read_key(raw), value) for raw, value in rig.log[-2:]] == [(key, None), (key, None)]


@pytest.mark.row("OD-6")
def test_offsets_of_an_empty_group_may_be_deleted_whatever_its_type():
    for protocol_type in ("consumer", "connect"):
        rig = Rig()
        ids = a_stable_group(rig, protocol_type=protocol_type)
        rig.leave(*ids.values())
        rig.commit()

        assert rig.delete_offsets(("flights", 0)).codes == (OK,)
        assert rig.committed() == -1


# -- DeleteGroups


@pytest.mark.row("DL-2", "DE-7")
def test_only_what_is_there_and_empty_can_be_deleted():
    rig = Rig()
    assert rig.delete() is Code.GROUP_ID_NOT_FOUND
    for build in (a_preparing_group, a_completing_group, a_stable_group):
        rig = Rig()
        build(rig)
        assert rig.delete() is Code.NON_EMPTY_GROUP
    rig.shard.apply(GroupDied("g", 0))
    assert rig.delete() is Code.GROUP_ID_NOT_FOUND


@pytest.mark.row("DL-2", "DE-4", "DE-5")
def test_a_deleted_group_leaves_tombstones():
    """Offsets first, then the group, also for one that never had a record; DE-5."""
    rig = Rig()
    rig.commit(offsets=(OffsetToCommit("t", 0, 1), OffsetToCommit("t", 1, 1)))
    written = len(rig.log)

    assert rig.delete() is OK

    tombstones = rig.log[written:]
    assert [read_key(key) for key, _ in tombstones] == [
        OffsetCommitKey("g", "t", 0),
        OffsetCommitKey("g", "t", 1),
        GroupMetadataKey("g"),
    ]
    assert all(value is None for _, value in tombstones)
    assert rig.shard.groups == rig.shard.offsets == {}
    assert rig.restarted().shard.groups == {}


@pytest.mark.row("DL-2")
def test_an_id_promised_by_a_group_that_was_deleted_is_forgotten():
    rig = Rig()
    promised = rig.answer(rig.join("p")).member_id

    assert rig.delete() is OK

    assert session_of(rig, promised) is None
    assert rig.join("p", member_id=promised).why == "no-such-group"


# -- expiry


@pytest.mark.row("XP-4", "XP-9", "DE-3", "0.5-6")
def test_offsets_of_a_simple_group_age_from_their_commit():
    """At the retention exactly; DE-3: the group goes with the last."""
    rig = Rig()
    rig.commit()
    rig.now_ms = DAY
    rig.commit(offsets=(OffsetToCommit("flights", 1, 1),))

    rig.now_ms = WEEK - 1
    assert rig.clean().why == "nothing-expired"
    rig.now_ms = WEEK
    rig.clean()
    assert [p.partition for p in rig.fetch().partitions] == [1]
    assert "g" in rig.shard.groups
    rig.now_ms = WEEK + DAY
    asked = rig.clean()

    assert asked.why == "offsets-expired"
    assert asked.decision.facts == (OffsetsRemoved("g", (("flights", 1),)), GroupRemoved("g"))
    assert rig.shard.groups == {}


@pytest.mark.row("XP-2", "XP-8")
def test_offsets_of_an_empty_group_age_from_its_emptying():
    """Also one that was committed later."""
    rig = Rig()
    ids = a_stable_group(rig)
    rig.commit(ids["a"], 1)
    rig.now_ms += DAY
    rig.leave(*ids.values())
    emptied = rig.now_ms
    rig.now_ms += 3 * DAY
    rig.commit(offsets=(OffsetToCommit("flights", 1, 1),))

    rig.now_ms = emptied + WEEK - 1
    rig.clean()
    assert len(rig.fetch().partitions) == 2
    rig.now_ms = emptied + WEEK
    rig.clean()

    assert rig.shard.groups == rig.shard.offsets == {}


@pytest.mark.row("XP-2")
def test_an_empty_group_of_an_old_record_ages_its_offsets_from_their_commit():
    """No time of emptying is known."""
    rig = Rig()
    ids = a_stable_group(rig)
    rig.leave(*ids.values())
    rig.now_ms = DAY
    rig.commit()
    rig.group.since_ms = None

    rig.now_ms = WEEK + DAY - 1
    rig.clean()
    assert rig.committed() == 42
    rig.now_ms = WEEK + DAY
    rig.clean()

    assert rig.shard.groups == {}


@pytest.mark.row("XP-3", "XP-7")
def test_a_stable_consumer_group_keeps_what_it_reads():
    rig = Rig()
    rig.commit(offsets=(OffsetToCommit("flights", 0, 1), OffsetToCommit("done", 0, 2)))
    a_stable_group(rig)

    rig.now_ms = 2 * WEEK
    rig.clean()

    assert (rig.committed("flights"), rig.committed("done")) == (1, -1)
    assert rig.group.state is State.STABLE


@pytest.mark.row("XP-5")
@pytest.mark.parametrize(
    ("build", "terms"),
    [
        (a_preparing_group, {}),
        (a_completing_group, {}),
        (a_stable_group, {"protocol_type": "connect"}),
        (a_stable_group, {"protocols": (("range", b"rubbish"),)}),
    ],
)
def test_elsewhere_nothing_ages(build, terms):
    rig = Rig()
    rig.commit(offsets=(OffsetToCommit("done", 0, 2),))
    build(rig, **terms)

    rig.now_ms = 2 * WEEK
    rig.clean()

    assert rig.committed("done") == 2


@pytest.mark.row("XP-1", "XP-7")
def test_an_offset_with_an_end_of_its_own_ends_then():
    """Whatever the retention; XP-7 still holds."""
    rig = Rig()
    rig.commit(retention_ms=500, version=4)
    rig.now_ms = 499
    rig.clean()
    assert rig.committed() == 42
    rig.now_ms = 500
    rig.clean()
    assert rig.shard.groups == {}

    rig.commit(retention_ms=500, version=4)
    a_stable_group(rig)
    rig.now_ms += WEEK
    rig.clean()
    assert rig.committed() == 42


@pytest.mark.row("DE-2")
def test_an_empty_group_without_offsets_goes_at_once():
    """A promised id does not protect it."""
    rig = Rig()
    promised = rig.answer(rig.join("p")).member_id

    asked = rig.clean()

    assert asked.decision.facts == (GroupRemoved("g"),)
    assert rig.shard.groups == {}
    assert session_of(rig, promised) is None


@pytest.mark.row("DE-2")
def test_a_group_with_members_stays():
    for build in (a_preparing_group, a_completing_group, a_stable_group):
        rig = Rig()
        build(rig)
        assert rig.clean().why == "nothing-expired"


@pytest.mark.row("XP-10")
def test_cleaning_may_be_done_a_slice_at_a_time():
    rig = Rig()
    for group_id in ("g", "h"):
        rig.commit(group_id=group_id)
    rig.now_ms = WEEK

    rig.ask(CleanOffsets(group_ids=("h", "not there")))

    assert list(rig.shard.groups) == ["g"]


# -- topics


@pytest.mark.row("OM-7")
def test_offsets_go_with_their_topic():
    """Of every group."""
    rig = Rig()
    for group_id in ("g", "h"):
        rig.commit(
            group_id=group_id,
            offsets=(OffsetToCommit("t", 0, 1), OffsetToCommit("t", 1, 1), OffsetToCommit("u", 0, 1)),
        )

    asked = rig.ask(TopicsDeleted(topics=("t", "never")))

    assert asked.why == "topics-deleted"
    for group_id in ("g", "h"):
        assert [p.topic for p in rig.fetch(group_id=group_id).partitions] == ["u"]


@pytest.mark.row("OM-6")
def test_offsets_of_a_later_topic_of_the_name_stay():
    """Deleted only if the stored id is unknown or the same."""
    rig = Rig()
    rig.commit(
        offsets=(
            OffsetToCommit("t", 0, 1, topic_id=ONE),
            OffsetToCommit("t", 1, 1, topic_id=OTHER),
            OffsetToCommit("t", 2, 1),
        )
    )

    rig.ask(TopicsDeleted(topics=("t",), topic_ids={"t": ONE}))

    assert [p.partition for p in rig.fetch().partitions] == [1]


@pytest.mark.row("CG-10")
def test_topics_of_a_group_are_those_of_all_members():
    """Under the chosen protocol, read as version 0; none without members."""
    from group_rig import a_subscription

    rig = Rig()
    rig.join("a", version=3, protocols=(*RANGE, *protocols("sticky", metadata=b"unread")))
    rig.join("b", version=3, protocols=protocols("range", metadata=a_subscription("more")))
    rig.run_ms(6_000)
    assert rig.group.topics() == {"flights", "more"}

    rig.leave(*rig.group.members)

    assert rig.group.state is State.EMPTY
    assert rig.group.topics() == set()
