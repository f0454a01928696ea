"""The diary of one member: what it lets pass, and what it finds wrong."""

from __future__ import annotations

import pytest
from swarm.checks.diary import Diary
from swarm.world import Violation

from coterie.assign.model import RebalanceProtocol
from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client import member as m
from coterie.wire.payloads.consumer_protocol import Assignment, Subscription

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
PLACE = m.Generation(4, "m-1", "range")
TOPICS = frozenset({"t"})
EAGER, COOPERATIVE = RebalanceProtocol.EAGER, RebalanceProtocol.COOPERATIVE


def a_diary(protocol: RebalanceProtocol = COOPERATIVE, *given: TopicPartition, **terms: bool) -> Diary:
    """Return the diary of a member of generation 4 whose application was told of what it got."""
    diary = Diary("r", protocol, **{"static": False, "readable": True, **terms})
    join = m.Join(m.NO_GENERATION, ((protocol.name, Subscription(topics=("t",)).encode()),), "")
    diary.asks(join)
    diary.joined(join, m.Joined(Code.NONE, 4, "m-1", leader="m-1"))
    sync_and_take(diary, *given)
    return diary


def synced(diary: Diary, *given: TopicPartition) -> Diary:
    sync = m.Sync(m.Generation(*diary.place, "range"), {})
    diary.asks(sync)
    diary.synced(sync, m.Synced(Code.NONE, Assignment(partitions=given).encode()))
    return diary


def sync_and_take(diary: Diary, *given: TopicPartition) -> None:
    synced(diary, *given)
    called(diary, "assigned", *sorted(set(given) - diary.held))


def called(diary: Diary, kind: str, *partitions: TopicPartition) -> None:
    diary.calls(m.Call(kind, partitions), TOPICS)  # type: ignore[arg-type]
    diary.returned()


def a_join(member_id: str = "m-1", *owned: TopicPartition, generation: int = 4) -> m.Join:
    said = Subscription(topics=("t",), owned=owned, generation=generation).encode()
    return m.Join(m.Generation(4, member_id, "range"), (("range", said),), "")


def test_an_eager_member_gives_up_everything_and_then_joins():
    # CB-3, CA-7
    diary = a_diary(EAGER, T0, T1)

    called(diary, "revoked", T0, T1)
    diary.asks(a_join())

    assert diary.held == frozenset()


def test_a_cooperative_member_keeps_what_it_has_and_says_so():
    diary = a_diary(COOPERATIVE, T0, T1)

    diary.asks(a_join("m-1", T0, T1))

    assert diary.held == {T0, T1}


def test_what_goes_is_revoked_before_what_comes_is_assigned():
    # CB-9
    diary = synced(a_diary(COOPERATIVE, T0, T1), T1, T2)

    called(diary, "revoked", T0)
    called(diary, "assigned", T2)

    assert diary.held == {T1, T2}
    assert diary.pending() == ""


def test_what_is_lost_may_be_called_lost_and_nothing_else():
    # CB-2
    diary = a_diary(COOPERATIVE, T0)
    diary.refused(Code.UNKNOWN_MEMBER_ID, PLACE)

    with pytest.raises(Violation, match="which it has lost"):
        called(diary, "revoked", T0)
    called(diary, "lost", T0)

    assert diary.place == (-1, "")


@pytest.mark.parametrize(
    ("kind", "partitions", "what"),
    [
        ("assigned", (T1,), "which nobody gave"),
        ("lost", (T0, T1), "without a reason"),
        ("revoked", (), "not one of"),
        ("revoked", (T0,), "not one of"),
        ("revoked", (T1, T0), "unsorted"),
    ],
)
def test_calls_out_of_the_order_are_found(kind: str, partitions: tuple[TopicPartition, ...], what: str):
    diary = a_diary(COOPERATIVE, T0, T1)

    with pytest.raises(Violation, match=what) as found:
        called(diary, kind, *partitions)

    assert found.value.rule == "callbacks in order"


def test_assigning_what_is_held_already_is_found():
    diary = synced(a_diary(COOPERATIVE, T0), T0, T1)

    with pytest.raises(Violation, match="calls for assigned t-0, t-1 of t-0, t-1"):
        called(diary, "assigned", T0, T1)


def test_assigning_before_revoking_is_found():
    diary = synced(a_diary(COOPERATIVE, T0), T1)

    with pytest.raises(Violation, match="assigned before revoked t-0"):
        called(diary, "assigned", T1)


def test_an_eager_member_that_keeps_something_is_found():
    with pytest.raises(Violation, match="not asked to give everything up"):
        a_diary(EAGER, T0).asks(a_join("m-1", T0))


@pytest.mark.parametrize(
    ("join", "what"),
    [
        (a_join("m-2", T0), "joins as m-2"),
        (a_join("", T0), "joins as nobody"),
        (a_join("m-1"), "says that it owns nothing"),
        (a_join("m-1", T0, generation=3), "in generation 3"),
    ],
)
def test_a_join_that_says_something_else_than_is_so_is_found(join: m.Join, what: str):
    with pytest.raises(Violation, match=what):
        a_diary(COOPERATIVE, T0).asks(join)


def test_a_member_that_joins_with_what_it_has_lost_is_found():
    diary = a_diary(COOPERATIVE, T0)
    diary.refused(Code.ILLEGAL_GENERATION, PLACE)

    with pytest.raises(Violation, match="does not know that it has lost everything"):
        diary.asks(a_join("m-1", T0, generation=-1))


def test_a_refusal_of_a_generation_before_says_nothing_of_this_one():
    diary = a_diary(COOPERATIVE, T0)

    assert not diary.refused(Code.FENCED_INSTANCE_ID, m.Generation(3, "m-1", "range"))

    assert not diary.fenced
    assert diary.refused(Code.FENCED_INSTANCE_ID, PLACE)


def test_work_is_only_on_what_the_application_knows_of_and_nobody_takes_away():
    diary = synced(a_diary(COOPERATIVE, T0, T1), T1, T2)
    diary.works_on(frozenset({T0, T1}))

    with pytest.raises(Violation, match="works on t-2"):
        diary.works_on(frozenset({T2}))
    diary.calls(m.Call("revoked", (T0,)), TOPICS)
    diary.works_on(frozenset({T1}))
    with pytest.raises(Violation, match="works on t-0"):
        diary.works_on(frozenset({T0}))


def test_a_member_that_closes_gives_everything_back_and_says_goodbye():
    # CB-15, CV-1
    diary = a_diary(EAGER, T0)
    diary.closing = True

    with pytest.raises(Violation, match="was not told to give everything back"):
        diary.stopped(tells=True)
    called(diary, "revoked", T0)
    with pytest.raises(Violation, match="without leaving the group"):
        diary.stopped(tells=True)
    diary.asks(m.Leave("m-1", "closed"))
    diary.stopped(tells=True)


def test_a_static_member_that_leaves_is_found():
    # CV-2
    with pytest.raises(Violation, match="leaves as m-1"):
        a_diary(EAGER, T0, static=True).asks(m.Leave("m-1", "closed"))


def test_what_was_given_and_not_told_is_pending():
    assert synced(a_diary(COOPERATIVE), T0).pending() == "r was given t-0 and has not told its application"
