"""Records and loading (2.10, 3.2, 3.3)."""

from __future__ import annotations

from struct import pack

import pytest
from group_rig import (
    SESSION_MS,
    Rig,
    a_completing_group,
    a_preparing_group,
    a_stable_group,
    protocols,
    session_of,
)

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.coordinator.group.commands import OffsetToCommit
from coterie.coordinator.group.facts import GroupCreated, StoredOffset
from coterie.coordinator.group.model import State
from coterie.coordinator.group.records import part_of, stored
from coterie.coordinator.group.settings import GroupSettings
from coterie.coordinator.group.shard import Shard
from coterie.wire.payloads.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    group_metadata_record,
    member_record_part,
    offset_commit_record,
    read_group_value,
)


def a_shard(*records: tuple[bytes, bytes | None], now_ms: int = 0, **settings: int) -> Shard:
    shard = Shard(settings=GroupSettings(**settings), new_id=lambda: "uuid")
    shard.load(records, now_ms)
    return shard


def an_offset(offset: int | None, topic: str = "t", partition: int = 0, group_id: str = "g"):
    value = None if offset is None else OffsetCommitValue(offset)
    return offset_commit_record(OffsetCommitKey(group_id, topic, partition), value)


def a_group_record(*member_ids: str, **values: object) -> tuple[bytes, bytes | None]:
    members = tuple(MemberMetadata(m, "c", "/h", 10_000, b"", b"", None, 60_000) for m in member_ids)
    defaults = {
        "protocol_type": "consumer",
        "generation": 5,
        "protocol": "range" if members else None,
        "leader": member_ids[0] if members else None,
        "current_state_timestamp": 1_000,
        "members": members,
    }
    return group_metadata_record(GroupMetadataKey("g"), GroupMetadataValue(**(defaults | values)))


# -- what a restart finds


@pytest.mark.row("LO-5")
def test_a_stable_group_is_loaded_as_it_was():
    """The same generation goes on."""
    rig = Rig()
    ids = a_stable_group(rig, "a", "s", static=("s",))
    rig.commit(ids["a"], 1)

    again = rig.restarted()

    group = again.group
    assert (group.state, group.generation, group.protocol, group.leader) == (
        State.STABLE,
        1,
        "range",
        ids["a"],
    )
    assert group.static == {"i-s": ids["s"]}
    assert {m.member_id: m.assignment for m in group.members.values()} == {
        ids["a"]: b"for a",
        ids["s"]: b"for s",
    }
    assert again.committed() == 42
    assert again.beat(ids["a"], 1) is Code.NONE
    assert again.answer(again.sync(ids["s"], generation=1)).assignment == b"for s"


@pytest.mark.row("LO-4")
def test_sessions_start_anew_when_loading_ends():
    rig = Rig()
    ids = a_stable_group(rig)
    rig.run_ms(30_000)
    rig.beat(ids["a"])

    again = rig.restarted()

    assert {session_of(again, m) for m in ids.values()} == {again.now_ms + SESSION_MS}


@pytest.mark.row("LO-4")
def test_a_loaded_group_of_too_many_rebalances_at_once():
    rig = Rig()
    ids = a_stable_group(rig, "a", "b", "c")
    rig.settings = GroupSettings(max_size=2)

    again = rig.restarted()

    assert again.group.state is State.PREPARING
    assert again.beat(ids["a"], 1) is Code.REBALANCE_IN_PROGRESS


@pytest.mark.row("LO-3")
def test_a_loaded_member_knows_only_the_chosen_protocol():
    """Its first rejoin with its longer list is a change."""
    rig = Rig()
    both = protocols("range", "roundrobin")
    ids = a_stable_group(rig, protocols=both)
    assert rig.join("b", member_id=ids["b"], protocols=both).why == "join-repeated"

    again = rig.restarted()

    assert again.join("b", member_id=ids["b"], protocols=both).why == "metadata-changed"


@pytest.mark.row("LO-6", "RB-11")
def test_a_rebalance_in_progress_is_forgotten():
    """The last stored generation is active again; promises and newcomers are unknown."""
    rig = Rig()
    ids = a_stable_group(rig)
    promised = rig.answer(rig.join("p")).member_id
    late = rig.join("late", version=3)
    assert late.decision.waits

    again = rig.restarted()

    assert again.group.state is State.STABLE
    assert set(again.group.members) == set(ids.values())
    assert again.answer(again.join("p", member_id=promised)).code is Code.UNKNOWN_MEMBER_ID


@pytest.mark.row("RB-11")
def test_an_unsynced_first_generation_is_forgotten():
    """The log knows only the brand-new group."""
    rig = Rig()
    a_completing_group(rig)

    again = rig.restarted()

    assert (again.group.state, again.group.generation, again.group.protocol_type) == (State.EMPTY, 0, None)


@pytest.mark.row("LO-6", "LD-6")
def test_a_leader_that_is_gone_stays_on_record():
    """And the next generation finds another."""
    shard_rig = Rig()
    shard_rig.log = [a_group_record("m1", "m2", leader="gone")]
    rig = shard_rig.restarted()
    assert rig.group.leader == "gone"

    asked = [rig.join("c", member_id=m, protocols=protocols("range", metadata=b"new")) for m in ("m1", "m2")]

    assert rig.group.leader == "m1"
    assert [len(rig.answer(one).members) for one in asked] == [2, 0]


# -- values


@pytest.mark.row("LO-2")
def test_the_oldest_value_has_neither_patience_nor_time():
    """Version 0; the vector of 9.2."""
    key = bytes.fromhex("0002000167")
    value = bytes.fromhex(
        "00000008636f6e73756d657200000003000572616e676500026d310000000100026d31000163000a2f3132372e302e302e31"
        "0000afc80000000201020000000103"
    )

    group = a_shard((key, value)).groups["g"]

    assert (group.state, group.generation, group.since_ms) == (State.STABLE, 3, None)
    member = group.members["m1"]
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (45_000, 45_000)
    assert (member.assignment, member.protocols) == (b"\x03", (("range", b"\x01\x02"),))


def test_the_newest_value_is_read_though_never_written():
    """9.2: version 4."""
    value = bytes.fromhex(
        "000409636f6e73756d6572000000030672616e6765036d3100000000000003e802036d310002630b2f3132372e302e302e31"
        "000493e00000afc803010202030000"
    )

    group = a_shard((bytes.fromhex("0002000167"), value)).groups["g"]

    assert (group.since_ms, group.members["m1"].rebalance_timeout_ms) == (1_000, 300_000)


@pytest.mark.row("LO-2")
def test_a_group_without_members_is_loaded_empty():
    """Type "" is none."""
    shard = a_shard(a_group_record(protocol_type="", current_state_timestamp=-1))

    group = shard.groups["g"]
    assert (group.state, group.protocol_type, group.since_ms) == (State.EMPTY, None, None)


def test_a_members_record_matches_the_vector():
    """9.2: GroupMetadata version 3, byte for byte."""
    shard = Shard(settings=GroupSettings(initial_rebalance_delay_ms=0), new_id=lambda: "")
    value = bytes.fromhex(
        "00030008636f6e73756d657200000003000572616e676500026d3100000000000003e80000000100026d31ffff000163000a"
        "2f3132372e302e302e31000493e00000afc80000000201020000000103"
    )
    shard.load([(bytes.fromhex("0002000167"), value)], 0)
    from coterie.coordinator.group.facts import GroupStored

    assert shard.records(GroupStored("g")) == ((bytes.fromhex("0002000167"), value),)


def test_volatile_facts_have_no_records():
    assert a_shard().records(GroupCreated("g", 0)) == ()


@pytest.mark.row("RC-4")
def test_members_without_a_protocol_do_not_bring_the_shard_down():
    """No broker writes that; it would mean a group that nobody can join until it empties."""
    rig = Rig()
    rig.log = [a_group_record("m1", protocol=None)]

    again = rig.restarted()
    again.run_ms(10_000)

    assert again.group.state is State.EMPTY


# -- replay


@pytest.mark.row("OM-1")
def test_the_last_write_wins():
    shard = a_shard(an_offset(1), an_offset(2), an_offset(5, partition=1), an_offset(3))

    assert shard.offsets["g"]["t"][0].offset == 3
    assert shard.groups["g"].state is State.EMPTY


@pytest.mark.row("OM-4")
def test_a_tombstone_removes_an_offset():
    shard = a_shard(an_offset(1), an_offset(None), an_offset(None, partition=7))

    assert shard.offsets == {}


@pytest.mark.row("DE-5")
def test_a_groups_tombstone_removes_the_group_and_not_its_offsets():
    tombstone = group_metadata_record(GroupMetadataKey("g"), None)

    shard = a_shard(a_group_record("m1"), an_offset(1), tombstone)

    assert shard.groups == {}
    assert shard.offsets["g"]["t"][0].offset == 1


@pytest.mark.row("LO-1")
@pytest.mark.parametrize("pieces", [1, 2, 3, 4])
def test_a_log_may_come_in_pieces_of_any_size(pieces: int):
    """A group that dies and comes back as a simple one."""
    records = [a_group_record("m1"), group_metadata_record(GroupMetadataKey("g"), None), an_offset(1)]
    shard = a_shard()

    for at in range(0, len(records), pieces):
        shard.load(records[at : at + pieces], 9)

    assert shard.groups["g"].members == {}
    assert shard.groups["g"].protocol_type is None


@pytest.mark.row("3.1-1", "3.2-1")
def test_legacy_offsets_are_read():
    """Type 0 has the same key."""
    key, value = an_offset(4)
    shard = a_shard((b"\x00\x00" + key[2:], value))

    assert shard.offsets["g"]["t"][0].offset == 4


@pytest.mark.row("LO-7")
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(3, marks=pytest.mark.row("3.1-4")),
        pytest.param(4, marks=pytest.mark.row("3.1-5")),
        pytest.param(5, marks=pytest.mark.row("3.1-6")),
        pytest.param(6, marks=pytest.mark.row("3.1-7")),
        pytest.param(7, marks=pytest.mark.row("3.1-8")),
        pytest.param(8, marks=pytest.mark.row("3.1-9")),
        *(pytest.param(kind, marks=pytest.mark.row("3.1-10")) for kind in range(10, 16)),
        pytest.param(16, marks=pytest.mark.row("3.1-11")),
        *(pytest.param(kind, marks=pytest.mark.row("3.1-12")) for kind in (17, 19, 20, 21, 22, 23)),
        *(9, 18, 24, 99, 32_767),
    ],
)
def test_unknown_types_are_passed_over_and_counted(kind: int):
    shard = a_shard((pack(">h", kind) + b"whatever", b"value"), an_offset(1), (pack(">h", kind), None))

    assert shard.skipped == {kind: 2}
    assert list(shard.groups) == ["g"]


@pytest.mark.row("JG-7", "LO-7", "DL-2", "OD-4")
@pytest.mark.parametrize("kind", [11, 17, 99])
def test_a_group_of_another_kind_is_left_alone(kind: int):
    """Share and streams groups: nobody joins them or ends them, and nothing of theirs expires."""
    rig = Rig()
    rig.shard.load([(pack(">hh", kind, 1) + b"g", b"value"), an_offset(7)], 0)

    joined = rig.join(version=3)

    assert joined.why == "group-of-another-kind"
    assert (rig.answer(joined).code, rig.answer(joined).member_id) == (Code.INCONSISTENT_GROUP_PROTOCOL, "")
    described = rig.describe()
    assert (described.code, described.state) == (Code.GROUP_ID_NOT_FOUND, "Dead")  # as a classic one
    assert rig.delete() is Code.NON_EMPTY_GROUP
    assert rig.delete_offsets(("t", 0)).codes == (Code.GROUP_SUBSCRIBED_TO_TOPIC,)
    rig.now_ms = 10**12
    assert rig.clean().why == "nothing-expired"
    assert rig.committed("t") == 7


def foreign_keys() -> list[bytes]:
    """The keys of a KIP-848 group: its epoch, a member, its assignments."""
    return [
        pack(">hh", kind, 1) + b"g" + (b"\0\1m" if kind in (5, 7, 8) else b"") for kind in (3, 5, 6, 7, 8)
    ]


@pytest.mark.row("JG-9")
def test_a_consumer_group_gives_way_to_a_classic_member_and_keeps_its_offsets():
    rig = Rig()
    rig.shard.load([*((key, b"value") for key in foreign_keys()), an_offset(7)], 0)

    joined = rig.join(version=3)

    assert "consumer-group-replaced" in joined.decision.steps
    # Apache Kafka 4.3.1 does not load a log in which the group goes before its assignments and members.
    ended = [int.from_bytes(key[:2], "big") for key, value in rig.log if value is None]
    assert ended == [8, 7, 6, 5, 3]
    assert rig.shard.foreign == {}
    assert rig.committed("t") == 7
    assert rig.describe().state != "Dead"


@pytest.mark.row("JG-4")
def test_a_consumer_group_stays_what_it_is_when_the_join_is_refused():
    rig = Rig()
    rig.shard.load([(key, b"value") for key in foreign_keys()], 0)

    joined = rig.join(version=3, session_timeout_ms=1)

    assert rig.answer(joined).code is Code.INVALID_SESSION_TIMEOUT
    assert rig.shard.foreign == {"g": set(foreign_keys())}


@pytest.mark.parametrize(
    "record",
    [
        (b"", b"value"),
        (b"\x00", b"value"),
        (b"\x00\x01\x00\x05g", b"value"),
        (b"\x00\x02\x00\x01g", b"\x00\x05"),
        (b"\x00\x02\x00\x01g", b""),
        (b"\x00\x02\x00\x01g", b"\x00\x03\x00"),
        (an_offset(1)[0], b"\x00\x05"),
        (an_offset(1)[0], b"\x00\x03\x00"),
        a_group_record("m1", "m1"),
    ],
)
def test_what_cannot_be_read_fails_the_load(record):
    with pytest.raises(Corrupt):
        a_shard(record)


@pytest.mark.row("OM-1", "OC-12")
def test_everything_of_an_offset_lasts():
    rig = Rig()
    rig.now_ms = 77
    rig.commit(offsets=(OffsetToCommit("t", 0, 1, 2, "md"),), retention_ms=10, version=3)

    # the only version with a place for an expiry has none for the epoch
    assert rig.restarted().shard.offsets["g"]["t"][0] == StoredOffset(1, -1, "md", 77, 87)


def test_groups_and_offsets_do_not_mix():
    rig = Rig()
    for number in range(20):
        rig.commit(group_id=f"g{number}", offsets=(OffsetToCommit("t", 0, number),))

    again = rig.restarted()

    assert [again.committed("t", group_id=f"g{n}") for n in range(20)] == list(range(20))
    assert again.shard.offsets == rig.shard.offsets


# -- coming and going


@pytest.mark.row("DE-6", "2.1-5")
def test_unloading_answers_everybody_who_waits():
    """NOT_COORDINATOR, with their member ids."""
    preparing, completing = Rig(), Rig()
    a, b = a_preparing_group(preparing)
    ids = a_completing_group(completing)
    sync = completing.sync(ids["b"])

    gone = preparing.shard.unload()
    also_gone = completing.shard.unload()

    assert gone.why == "unloaded"
    assert {r.call: r.answer.code for r in gone.replies} == {
        a.call: Code.NOT_COORDINATOR,
        b.call: Code.NOT_COORDINATOR,
    }
    assert {r.answer.member_id for r in gone.replies} == set(preparing.group.members)
    assert [(r.call, r.answer.code) for r in also_gone.replies] == [(sync.call, Code.NOT_COORDINATOR)]
    assert completing.group.state is State.DEAD
    assert not any(m.join_call or m.sync_call for m in completing.group.members.values())


@pytest.mark.parametrize("name", ["c" * 32_767, "é" * 16_383])
def test_a_client_with_a_very_long_name_gets_an_id_that_a_record_can_hold(name: str):
    rig = Rig()

    ids = a_stable_group(rig, name)

    (member_id,) = ids.values()
    assert len(member_id.encode()) <= 32_767
    assert set(rig.restarted().group.members) == {member_id}


# -- a static member's bytes are kept


def test_a_group_of_static_members_is_written_as_any_other():
    rig = Rig()
    a_stable_group(rig, "l", "s", "d", static=("l", "s"))

    _, written = rig.log[-1]

    assert written is not None
    assert group_metadata_record(GroupMetadataKey("g"), read_group_value(written)) == rig.log[-1]
    assert {m.member_id: m.written is not None for m in rig.group.in_order()} == {
        m.member_id: m.instance_id is not None for m in rig.group.in_order()
    }


def test_what_changed_of_a_static_member_is_written_anew():
    """The kept bytes are for what they were made of."""
    rig = Rig()
    ids = a_stable_group(rig, "l", "s", static=("l", "s"))
    follower = rig.group.members[ids["s"]]
    before = part_of(follower, "range")

    assert part_of(follower, "range") is before
    for field, value in {
        "assignment": b"other",
        "session_timeout_ms": 7_000,
        "rebalance_timeout_ms": 8_000,
        "protocols": (("range", b"mine"), ("roundrobin", b"other")),
    }.items():
        setattr(follower, field, value)
        assert part_of(follower, "range") == member_record_part(stored(follower, "range")) != before
    assert part_of(follower, "roundrobin") == member_record_part(stored(follower, "roundrobin"))


def test_a_static_member_that_comes_back_is_written_under_its_new_id():
    rig = Rig()
    a_stable_group(rig, "l", "s", static=("l", "s"))

    back = rig.answer(rig.join("s", instance_id="i-s", version=9)).member_id

    _, written = rig.log[-1]
    assert written is not None
    assert back in {member.member_id for member in read_group_value(written).members}
