"""Appends that fail (P-10, SG-12, ST-6), and the journal they rely on."""

from __future__ import annotations

import copy

import pytest
from group_rig import (
    SESSION_MS,
    Rig,
    a_completing_group,
    a_preparing_group,
    a_stable_group,
    session_of,
)

from coterie.base.codes import Code
from coterie.coordinator.group.commands import (
    CleanOffsets,
    DeleteGroup,
    DeleteOffsets,
    Describe,
    Expire,
    FetchOffsets,
)
from coterie.coordinator.group.facts import GroupDied, GroupLoaded, OffsetsLoaded, StoredOffset
from coterie.coordinator.group.failures import client_code
from coterie.coordinator.group.model import State
from coterie.wire.payloads.consumer_offsets import OffsetCommitValue, offset_value, partition_key

MAPPED = [
    (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.COORDINATOR_NOT_AVAILABLE),
    (Code.NOT_ENOUGH_REPLICAS, Code.COORDINATOR_NOT_AVAILABLE),
    (Code.REQUEST_TIMED_OUT, Code.COORDINATOR_NOT_AVAILABLE),
    (Code.NOT_LEADER_OR_FOLLOWER, Code.NOT_COORDINATOR),
    (Code.KAFKA_STORAGE_ERROR, Code.NOT_COORDINATOR),
    (Code.MESSAGE_TOO_LARGE, Code.UNKNOWN_SERVER_ERROR),
    (Code.RECORD_LIST_TOO_LARGE, Code.UNKNOWN_SERVER_ERROR),
    (Code.INVALID_FETCH_SIZE, Code.UNKNOWN_SERVER_ERROR),
    (Code.NETWORK_EXCEPTION, Code.COORDINATOR_LOAD_IN_PROGRESS),
    (Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_EPOCH),
]
REFUSED = Code.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize(("code", "mapped"), MAPPED)
def test_the_logs_errors_are_told_as_the_coordinators(code: Code, mapped: Code):
    """P-10"""
    assert client_code(code) is mapped


@pytest.mark.row("JG-11", "RT-8", "P-10")
@pytest.mark.parametrize(("code", "mapped"), MAPPED)
def test_a_new_group_that_cannot_be_stored_disappears(code: Code, mapped: Code):
    """And the join is answered, with no id."""
    rig = Rig()
    rig.hold()
    asked = rig.join("a", version=3)

    decisions = rig.fail(code)

    assert [d.why for d in decisions] == ["append-failed"]
    assert (rig.answer(asked).code, rig.answer(asked).member_id) == (mapped, "")
    assert rig.shard.groups == {}
    assert rig.waiting == set()
    assert rig.log == []


@pytest.mark.row("SG-12")
def test_a_failed_assignment_sends_everybody_back_to_join():
    """Assignments cleared, every parked sync told the error, then a rebalance."""
    rig = Rig()
    ids = a_completing_group(rig, "a", "b", "c")
    waiting = rig.sync(ids["b"])
    rig.run_ms(1_000)
    rig.hold()
    leader = rig.sync(ids["a"], {ids["b"]: b"B"})
    assert rig.group.state is State.STABLE

    rig.fail(Code.NOT_ENOUGH_REPLICAS)

    for asked in (leader, waiting):
        assert rig.answer(asked).code is Code.COORDINATOR_NOT_AVAILABLE
        assert rig.answer(asked).assignment == b""
    assert rig.group.state is State.PREPARING
    assert all(m.assignment == b"" for m in rig.group.members.values())
    assert session_of(rig, ids["b"]) == session_of(rig, ids["a"]) == rig.now_ms + SESSION_MS
    assert rig.deadlines.at(("sync", "g")) is None
    assert rig.deadlines.at(("join", "g")) is not None


@pytest.mark.row("SG-12")
def test_a_follower_of_the_failed_batch_is_answered_once():
    """Parked by the batch, unparked by its undoing, answered for itself."""
    rig = Rig()
    ids = a_completing_group(rig)
    rig.hold()
    follower = rig.sync(ids["b"])
    leader = rig.sync(ids["a"])

    rig.fail(REFUSED)

    assert rig.answer(follower).code is rig.answer(leader).code is Code.NOT_COORDINATOR
    assert rig.waiting == set()
    assert rig.group.state is State.PREPARING


@pytest.mark.row("ST-6")
def test_a_failed_return_of_a_static_member_is_as_if_it_had_not_been():
    """Old id, old values, its session again; the answer has the error, no id, and the generation."""
    rig = Rig()
    ids = a_stable_group(rig, "l", "s", static=("l", "s"))
    before = copy.deepcopy(rig.shard.groups)
    rig.hold()
    rig.now_ms += 500
    asked = rig.join("l", instance_id="i-l", session_timeout_ms=7_000, version=9)

    rig.fail(Code.NOT_ENOUGH_REPLICAS)

    assert rig.shard.groups == before
    assert session_of(rig, ids["l"]) == rig.now_ms + SESSION_MS
    answer = rig.answer(asked)
    assert (answer.code, answer.member_id) == (Code.COORDINATOR_NOT_AVAILABLE, "")
    assert (answer.generation, answer.protocol_name, answer.leader) == (1, "range", ids["l"])


@pytest.mark.row("RT-4")
def test_a_failed_commit_is_not_committed():
    """P-10, RT-4: every command of the batch fails with it, a heartbeat too."""
    rig = Rig()
    ids = a_stable_group(rig)
    rig.hold()
    commit = rig.commit(ids["a"], 1)
    other = rig.commit(group_id="h")
    call = rig.call()

    rig.ask(_heartbeat(rig, ids["a"], call))
    rig.fail(REFUSED)

    assert rig.answer(commit).codes == rig.answer(other).codes == (Code.NOT_COORDINATOR,)
    assert rig.answers[call].code is Code.NOT_COORDINATOR
    assert rig.committed() == -1
    assert list(rig.shard.groups) == ["g"]


def _heartbeat(rig: Rig, member_id: str, call: int):
    from group_rig import a_heartbeat

    return a_heartbeat(rig, member_id, 1, call=call)


@pytest.mark.row("LG-13")
def test_a_member_whose_leaving_could_not_be_stored_is_a_member_with_a_session():
    """LG-13, P-10: the undone decision had taken its deadline off."""
    rig = Rig()
    ids = a_stable_group(rig, "a")
    rig.hold()
    rig.now_ms += 100
    asked = rig.leave(ids["a"])
    assert session_of(rig, ids["a"]) is None

    rig.fail(REFUSED)

    assert rig.answer(asked).code is Code.NOT_COORDINATOR
    assert rig.answer(asked).members == ()
    assert rig.group.state is State.STABLE
    assert session_of(rig, ids["a"]) == rig.now_ms + SESSION_MS


def test_a_promise_that_came_back_has_its_time_again():
    rig = Rig()
    a_stable_group(rig, "a")
    promised = rig.answer(rig.join("p", session_timeout_ms=9_000)).member_id
    rig.hold()
    rig.leave(promised)
    rig.commit(group_id="h")

    rig.fail(REFUSED)

    assert promised in rig.group.pending
    assert session_of(rig, promised) == rig.now_ms + 9_000


def test_a_newcomer_of_a_failed_batch_that_was_promised_its_id_is_promised_again():
    rig = Rig()
    promised = rig.answer(rig.join("p", session_timeout_ms=9_000)).member_id
    rig.hold()
    rig.join("p", member_id=promised)
    rig.commit(group_id="h")

    rig.fail(REFUSED)

    assert rig.group.state is State.EMPTY
    assert rig.group.pending == {promised: 9_000}
    assert session_of(rig, promised) == rig.now_ms + 9_000
    assert rig.deadlines.at(("join", "g")) is None


def test_who_had_waited_before_the_batch_waits_on():
    """A join phase that ended in the failed batch has not ended."""
    rig = Rig()
    ids = a_stable_group(rig)
    waiting = rig.join("a", member_id=ids["a"])
    due_ms = rig.deadlines.at(("join", "g"))
    rig.hold()
    last = rig.join("b", member_id=ids["b"])
    rig.commit(group_id="h")
    assert rig.group.state is State.COMPLETING

    rig.fail(REFUSED)

    assert rig.answer(last).code is Code.NOT_COORDINATOR
    assert rig.answer(waiting) is None
    assert rig.group.state is State.PREPARING
    assert rig.deadlines.at(("join", "g")) == due_ms
    again = rig.join("b", member_id=ids["b"])
    assert rig.answer(waiting).generation == rig.answer(again).generation == 2


@pytest.mark.row("EX-8")
def test_a_deadline_whose_consequence_could_not_be_stored_comes_again():
    """EX-8 is Kafka's way; here nothing was changed either, so it has to."""
    rig = Rig()
    ids = a_stable_group(rig, "a")
    rig.hold()
    rig.run_ms(SESSION_MS)
    assert rig.group.state is State.EMPTY

    rig.fail(REFUSED)
    assert ids["a"] in rig.group.members
    rig.run_ms(500)

    assert rig.group.state is State.EMPTY
    assert rig.whys[-1] == "session-expired"


@pytest.mark.row("OF-11", "OF-10")
def test_reads_in_a_failed_batch_tell_what_is_committed():
    """P-9, OF-11: reads never wait; a stable read is told 16 where others are told 15 (OF-10)."""
    rig = Rig()
    rig.commit()
    rig.hold()
    rig.commit(offsets=())
    fetch, stable, describe = rig.call(), rig.call(), rig.call()
    topics = (("flights", (0,)),)
    rig.ask(FetchOffsets(group_id="g", call=fetch, topics=topics))
    rig.ask(FetchOffsets(group_id="g", call=stable, topics=topics, require_stable=True))
    rig.ask(Describe(group_id="g", call=describe))

    rig.fail(Code.NOT_ENOUGH_REPLICAS)

    assert rig.answers[fetch].partitions[0].offset == 42
    assert rig.answers[stable].code is Code.NOT_COORDINATOR
    assert rig.answers[describe].state == "Empty"


def test_a_deletion_that_fails_deletes_nothing():
    """P-10"""
    rig = Rig()
    rig.commit()
    before = copy.deepcopy((rig.shard.groups, rig.shard.offsets))
    rig.hold()
    offsets, group = rig.call(), rig.call()
    rig.ask(DeleteOffsets(group_id="g", call=offsets, partitions=(("flights", 0),)))
    rig.ask(DeleteGroup(group_id="g", call=group))
    rig.ask(CleanOffsets())

    rig.fail(REFUSED)

    assert rig.answers[offsets].code is rig.answers[group].code is Code.NOT_COORDINATOR
    assert (rig.shard.groups, rig.shard.offsets) == before


@pytest.mark.parametrize("version", [3, 4])
def test_what_is_undone_leaves_no_deadline_behind(version: int):
    """P-10: neither a member's nor a promised id's, nor the join phase's that waited for it."""
    rig = Rig()
    rig.hold()
    rig.join("a", version=version)
    assert len(rig.deadlines) > 0

    rig.fail(REFUSED)

    assert len(rig.deadlines) == 0


def test_what_is_settled_cannot_be_undone():
    rig = Rig()
    a_preparing_group(rig)
    mark = rig.shard.journal.mark()
    rig.shard.journal.settle(mark)

    with pytest.raises(AssertionError):
        rig.shard.undo_to(mark - 1)


def test_marks_stay_good_while_what_came_before_them_settles():
    rig = Rig()
    rig.join("a", version=3)
    early = rig.shard.journal.mark()
    before = copy.deepcopy(rig.shard.groups)
    rig.shard.perform(_join(rig), 0)
    assert rig.shard.groups != before

    rig.shard.journal.settle(early)
    rig.shard.undo_to(early)

    assert rig.shard.groups == before


def _join(rig: Rig):
    from group_rig import a_join

    return a_join(rig, "b", version=3)


def test_what_is_loaded_is_not_rolled_back_with_what_was_decided_before():
    rig = Rig()
    mark = rig.shard.journal.mark()
    rig.shard.perform(_join(rig), 0)
    decided = rig.shard.journal.mark()

    rig.shard.load_fact(GroupLoaded("new", None, 0, None, None, 5, ()))

    assert rig.shard.journal.mark() == decided
    rig.shard.undo_to(mark)
    assert list(rig.shard.groups) == ["new"]


def a_value(stored: StoredOffset) -> bytes:
    return offset_value(OffsetCommitValue._make(stored))


def test_offsets_are_loaded_over_what_is_known():
    rig = Rig()
    rig.commit(group_id="h")
    stored = StoredOffset(1, -1, "", 0)

    rig.shard.load_fact(
        OffsetsLoaded("g", {partition_key("t", 0): a_value(stored), partition_key("t", 1): None})
    )
    rig.shard.load_fact(
        OffsetsLoaded("h", {partition_key("flights", 0): None, partition_key("flights", 5): None})
    )

    assert rig.shard.offsets == {"g": {"t": {0: stored}}}


def test_a_group_put_in_the_place_of_another_is_rolled_back_like_anything_else():
    """One door, one journal: groups in the log are facts too."""
    rig = Rig()
    a_stable_group(rig)
    rig.commit(group_id="h")
    before = copy.deepcopy((rig.shard.groups, rig.shard.offsets))
    mark = rig.shard.journal.mark()
    loaded = [
        GroupLoaded("g", "connect", 9, None, None, None, ()),
        GroupLoaded("new", None, 0, None, None, 5, ()),
        GroupDied("h", 7),
    ]

    for fact in loaded:
        rig.shard.apply(fact)
    assert rig.group.generation == 9
    rig.shard.undo_to(mark)

    assert (rig.shard.groups, rig.shard.offsets) == before


def test_unloading_can_be_undone_too():
    rig = Rig()
    ids = a_completing_group(rig)
    rig.sync(ids["b"])
    before = copy.deepcopy(rig.shard.groups)
    mark = rig.shard.journal.mark()

    rig.shard.unload()
    rig.shard.undo_to(mark)

    assert rig.shard.groups == before


@pytest.mark.row("RB-8", "EX-3")
def test_phases_whose_end_could_not_be_stored_end_a_little_later():
    """RB-8, EX-3, P-10: the group turns Empty when the log takes it."""
    joining, syncing = Rig(), Rig()
    joining.join("a", version=3)
    joining.leave(joining.group.leader or "")
    a_completing_group(syncing, "a", session_timeout_ms=1_800_000)
    for rig, span_ms in ((joining, 3_000), (syncing, 300_000)):
        state, start_ms = rig.group.state, rig.now_ms
        rig.hold()
        rig.run_to(start_ms + span_ms)
        assert rig.group.state is State.EMPTY

        rig.fail(REFUSED)
        assert rig.group.state is state
        rig.run_ms(500)

        assert rig.group.state is State.EMPTY
        assert rig.now_ms == start_ms + span_ms + 500


def test_a_deadline_of_a_group_that_is_gone_is_not_tried_again():
    rig = Rig()
    rig.hold()
    rig.ask(Expire(key=("join", "g")))
    rig.commit(group_id="h")

    rig.fail(REFUSED)

    assert len(rig.deadlines) == 0


@pytest.mark.row("SG-7", "P-10")
def test_a_sync_of_a_failed_batch_that_was_refused_moves_nothing():
    """Only the leader of the generation brings a rebalance."""
    rig = Rig()
    ids = a_completing_group(rig)
    rig.hold()
    stale = rig.sync(ids["a"], generation=7)
    rig.commit(group_id="h")

    rig.fail(REFUSED)

    assert rig.answer(stale).code is Code.NOT_COORDINATOR
    assert rig.group.state is State.COMPLETING
