"""The join phase: the initial delay, what ends a rebalance and what that does, vote, leader (2.2 to 2.6)."""

from __future__ import annotations

import pytest
from group_rig import (
    REBALANCE_MS,
    SESSION_MS,
    Rig,
    a_completing_group,
    a_preparing_group,
    a_stable_group,
    a_subscription,
    protocols,
    session_of,
)

from coterie.base.codes import Code
from coterie.coordinator.group.commands import Expire
from coterie.coordinator.group.facts import GroupEmptied, GroupStored
from coterie.coordinator.group.model import State
from coterie.wire.payloads.consumer_offsets import read_group_value

D = 3_000


def join_due(rig: Rig) -> int | None:
    return rig.deadlines.at(("join", "g"))


# -- the initial delay


@pytest.mark.row("ID-1", "ID-4", "2.7-4", "2.1-2", "2.1-3", "0.5-1")
def test_the_first_member_waits_for_others_exactly_the_delay():
    """Without newcomers it is exactly D."""
    rig = Rig()
    asked = rig.join(version=3)

    rig.run_to(D - 1)
    assert rig.answer(asked) is None
    rig.run_to(D)

    assert rig.whys[-1] == "initial-delay-over"
    assert rig.answer(asked).generation == 1
    assert rig.group.state is State.COMPLETING


@pytest.mark.row("ID-2", "ID-3", "9.5-2")
def test_a_newcomer_extends_the_delay():
    rig = Rig()
    first = rig.join("a", version=3)
    rig.run_to(2_000)
    second = rig.join("b", version=3)

    rig.run_to(D)
    assert rig.whys[-1] == "initial-delay-extended"
    assert rig.answer(first) is None
    rig.run_to(2 * D)

    assert rig.answer(first).generation == rig.answer(second).generation == 1
    assert len(rig.answer(first).members) == 2


@pytest.mark.row("ID-3", "ID-4", "9.5-3")
def test_the_delay_is_bounded_by_the_first_joiners_patience():
    """R = 5000, newcomers every second, answered at 5000."""
    rig = Rig()
    first = rig.join("a", version=3, rebalance_timeout_ms=5_000)
    for second in range(1, 5):
        rig.run_to(second * 1_000)
        rig.join(f"b{second}", version=3)

    rig.run_to(4_999)
    assert rig.answer(first) is None
    rig.run_to(5_000)

    assert rig.answer(first).generation == 1
    assert len(rig.answer(first).members) == 5


@pytest.mark.row("ID-1")
def test_a_delay_longer_than_the_patience_is_not_extended():
    """Remaining is 0."""
    rig = Rig()
    first = rig.join("a", version=3, rebalance_timeout_ms=1_000)
    rig.run_to(100)
    rig.join("b", version=3)

    rig.run_to(D)

    assert rig.whys[-1] == "initial-delay-over"
    assert rig.answer(first).generation == 1


@pytest.mark.row("ID-5")
def test_everybody_being_there_does_not_end_the_delay():
    rig = Rig()
    a_preparing_group(rig)

    assert rig.group.all_joined
    assert rig.group.initial
    assert rig.group.state is State.PREPARING


@pytest.mark.row("ID-6")
def test_a_session_that_runs_out_ends_the_delay_when_only_that_one_was_missing():
    """ID-6, for a promised id; with zero members below."""
    rig = Rig(initial_rebalance_delay_ms=60_000)
    promised = rig.answer(rig.join("late", session_timeout_ms=6_000)).member_id
    asked = rig.join("a", version=3)

    rig.run_to(6_000)

    assert rig.whys[-1] == "promise-expired"
    assert promised not in rig.group.pending
    assert rig.answer(asked).generation == 1
    assert join_due(rig) is None


@pytest.mark.row("ID-6", "EX-2")
def test_a_parked_newcomer_that_expires_in_the_delay_leaves_the_group_empty():
    """ID-6 with zero members; EX-2: after five minutes the parked join gets UNKNOWN_MEMBER_ID and no id."""
    rig = Rig(initial_rebalance_delay_ms=400_000)
    asked = rig.join("a", version=3, rebalance_timeout_ms=500_000)

    rig.run_to(300_000)

    assert rig.whys[-1] == "join-expired"
    assert (rig.answer(asked).code, rig.answer(asked).member_id) == (Code.UNKNOWN_MEMBER_ID, "")
    assert rig.group.state is State.EMPTY
    assert rig.group.generation == 1


@pytest.mark.row("ID-7", "LG-10")
def test_leaving_during_the_delay_never_ends_it():
    """The timer must run out, with nobody there too."""
    rig = Rig()
    asked = rig.join("a", version=3)
    rig.leave(rig.group.leader or "")
    assert rig.answer(asked).code is Code.UNKNOWN_MEMBER_ID
    assert rig.group.state is State.PREPARING

    rig.run_to(D)

    assert rig.group.state is State.EMPTY
    assert rig.group.generation == 1


@pytest.mark.row("ID-8")
def test_no_delay_still_completes_on_the_next_tick_only():
    rig = Rig(initial_rebalance_delay_ms=0)

    asked = rig.join(version=3)
    assert rig.answer(asked) is None
    rig.run_ms(0)

    assert rig.answer(asked).generation == 1


@pytest.mark.row("ID-9")
def test_a_rejoin_during_the_delay_is_no_newcomer():
    rig = Rig()
    rig.join("a", version=3)
    rig.run_to(1_000)

    rig.join("a", member_id=rig.group.leader)

    assert not rig.group.new_member_added
    rig.run_to(D)
    assert rig.group.state is State.COMPLETING


@pytest.mark.row("ID-1", "ID-4")
def test_a_group_that_empties_and_fills_again_starts_with_a_fresh_delay():
    """What the last chain of delays left behind does not extend this one."""
    rig = Rig()
    first = rig.join("a", version=3, rebalance_timeout_ms=1_000)
    rig.join("b", version=3)
    rig.run_to(D)
    rig.leave(*rig.group.members)
    assert rig.group.state is State.EMPTY
    start = rig.now_ms

    again = rig.join("c", version=3)
    rig.run_to(start + D)

    assert rig.answer(first).generation == 1
    assert rig.answer(again).generation == 3


# -- starting and ending a rebalance


@pytest.mark.row("RB-3")
def test_a_rebalance_of_one_member_completes_at_once():
    """Everybody has already joined."""
    rig = Rig()
    ids = a_stable_group(rig, "a")

    asked = rig.join("a", member_id=ids["a"])

    assert asked.why == "leader-rejoined"
    assert rig.answer(asked).generation == 2
    assert rig.group.state is State.COMPLETING


@pytest.mark.row("RB-3", "CG-5")
def test_a_rebalance_waits_for_the_longest_patience():
    """Taken when the timer is armed; a later joiner does not extend it."""
    rig = Rig()
    a_stable_group(rig, rebalance_timeout_ms=60_000)
    start = rig.now_ms

    rig.join("late", version=3, rebalance_timeout_ms=90_000)
    rig.join("later", version=3, rebalance_timeout_ms=500_000)

    assert join_due(rig) == start + 90_000


@pytest.mark.row("RB-4", "RB-9")
def test_the_last_to_join_ends_the_phase():
    rig = Rig()
    ids = a_stable_group(rig)
    late = rig.join("late", version=3)
    rig.join("a", member_id=ids["a"])
    assert rig.answer(late) is None

    last = rig.join("b", member_id=ids["b"])

    assert rig.answer(late).generation == rig.answer(last).generation == 2
    assert join_due(rig) is None


@pytest.mark.row("RB-1", "RB-2")
def test_entering_a_rebalance_from_completing_clears_what_the_generation_had():
    """Assignments, parked syncs, whose session starts anew, and the sync timer."""
    rig = Rig()
    ids = a_completing_group(rig)
    parked = rig.sync(ids["b"])
    rig.run_ms(10_000)

    rig.join("late", version=3)

    assert rig.answer(parked).code is Code.REBALANCE_IN_PROGRESS
    assert session_of(rig, ids["b"]) == rig.now_ms + SESSION_MS
    assert all(member.assignment == b"" for member in rig.group.members.values())
    assert rig.group.pending_sync == set()
    assert rig.deadlines.at(("sync", "g")) is None


@pytest.mark.row("RB-3", "2.1-2")
def test_entering_a_rebalance_from_stable_keeps_the_assignments():
    """RB-1 speaks of CompletingRebalance only."""
    rig = Rig()
    ids = a_stable_group(rig)

    rig.join("late", version=3)

    assert rig.group.members[ids["b"]].assignment == b"for b"


@pytest.mark.row("RB-5", "9.5-5")
def test_dynamic_members_that_do_not_rejoin_in_time_are_dropped():
    """Silent but heartbeating."""
    rig = Rig()
    ids = a_stable_group(rig, "a", "b", "c")
    start = rig.now_ms
    changed = rig.join("b", member_id=ids["b"], protocols=protocols("range", metadata=a_subscription("x")))
    rig.join("a", member_id=ids["a"])
    for beat in range(1, 30):
        rig.run_to(start + beat * 10_000)
        assert rig.beat(ids["c"]) is Code.REBALANCE_IN_PROGRESS

    rig.run_to(start + REBALANCE_MS)

    assert rig.whys[-1] == "rebalance-timeout"
    assert rig.answer(changed).generation == 2
    assert set(rig.group.members) == {ids["a"], ids["b"]}
    assert session_of(rig, ids["c"]) is None


@pytest.mark.row("EX-1", "RB-4")
def test_a_silent_member_does_not_hold_up_a_rebalance_longer_than_its_session():
    """Its expiry ends the phase."""
    rig = Rig()
    ids = a_stable_group(rig)
    asked = rig.join("a", member_id=ids["a"])

    rig.run_ms(SESSION_MS)

    assert rig.whys[-1] == "session-expired"
    assert rig.answer(asked).generation == 2
    assert list(rig.group.members) == [ids["a"]]


@pytest.mark.row("RB-5", "RB-10", "ST-11")
def test_static_members_that_do_not_rejoin_stay_with_what_they_said():
    """And the leader hears of them."""
    rig = Rig()
    ids = a_stable_group(rig, "a", "s", static=("s",), session_timeout_ms=1_000_000)
    asked = rig.join("a", member_id=ids["a"], session_timeout_ms=1_000_000)

    rig.run_ms(REBALANCE_MS)

    assert rig.whys[-1] == "rebalance-timeout"
    assert [m[:2] for m in rig.answer(asked).members] == [(ids["a"], None), (ids["s"], "i-s")]
    assert rig.group.pending_sync == set(ids.values())
    assert session_of(rig, ids["s"]) == rig.now_ms + 1_000_000


@pytest.mark.row("RB-6", "2.7-5")
def test_a_promised_id_holds_the_phase_open_but_not_past_its_timer():
    """It stays promised."""
    rig = Rig()
    ids = a_stable_group(rig, "a", session_timeout_ms=1_000_000)
    promised = rig.answer(rig.join("late", session_timeout_ms=1_000_000)).member_id
    asked = rig.join("a", member_id=ids["a"])
    assert rig.answer(asked) is None

    rig.run_ms(REBALANCE_MS)

    assert rig.answer(asked).generation == 2
    assert promised in rig.group.pending


@pytest.mark.row("RB-4", "CG-3")
def test_a_promised_id_that_is_redeemed_ends_the_phase():
    rig = Rig()
    ids = a_stable_group(rig, "a")
    promised = rig.answer(rig.join("late")).member_id
    asked = rig.join("a", member_id=ids["a"])

    rig.join("late", member_id=promised)

    assert rig.answer(asked).generation == 2


@pytest.mark.row("CG-1", "RB-8", "DE-1", "2.1-1")
def test_the_generation_counts_every_end_of_a_join_phase():
    """The empty one too; RB-8: type kept, protocol and leader gone; DE-1."""
    rig = Rig()
    ids = a_stable_group(rig, "a")
    rig.now_ms += 500

    asked = rig.leave(ids["a"])

    assert asked.decision.facts[-2:] == (GroupEmptied("g", 2, rig.now_ms), GroupStored("g"))
    value = read_group_value(rig.log[-1][1] or b"")
    assert (value.protocol_type, value.generation, value.protocol, value.leader) == (
        "consumer",
        2,
        None,
        None,
    )
    assert (value.members, value.current_state_timestamp) == ((), rig.now_ms)
    again = rig.join("b", version=3, protocol_type="connect")
    rig.run_ms(D)
    assert rig.answer(again).generation == 3
    assert rig.group.protocol_type == "connect"


@pytest.mark.row("RB-9", "RB-11")
def test_the_end_of_the_join_phase_writes_nothing():
    rig = Rig()
    a_completing_group(rig)

    assert len(rig.log) == 1  # the brand-new group's


@pytest.mark.row("RB-9", "2.7-6", "2.1-3")
def test_the_end_of_the_join_phase_gives_everybody_a_session_and_a_time_to_sync():
    rig = Rig()
    ids = a_completing_group(rig, session_timeout_ms=20_000, rebalance_timeout_ms=70_000)

    assert {session_of(rig, member_id) for member_id in ids.values()} == {rig.now_ms + 20_000}
    assert not any(member.is_new for member in rig.group.members.values())
    assert rig.group.pending_sync == set(ids.values())
    assert rig.deadlines.at(("sync", "g")) == rig.group.sync_due_ms == rig.now_ms + 70_000


@pytest.mark.row("CG-2")
def test_the_type_is_set_by_the_first_member_of_an_empty_map_and_kept():
    """Also when that member leaves and nobody is left in the join phase."""
    rig = Rig()
    rig.join("a", version=3)
    rig.leave(rig.group.leader or "")

    asked = rig.join("b", version=3, protocol_type="connect")

    assert rig.answer(asked).code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert rig.group.protocol_type == "consumer"


@pytest.mark.row("EX-7")
def test_a_join_deadline_that_no_longer_stands_is_passed_over():
    rig = Rig()
    a_preparing_group(rig)

    early = rig.ask(Expire(key=("join", "g")))
    rig.run_ms(2 * D)
    late = rig.ask(Expire(key=("join", "g")))

    assert early.why == late.why == "deadline-passed-over"
    assert early.decision.facts == late.decision.facts == ()


# -- the vote


@pytest.mark.row("PV-1", "PV-2")
def test_the_members_vote_among_what_is_common_to_all():
    """Each for the first of its own list that everybody can."""
    rig = Rig()
    rig.join("a", version=3, protocols=protocols("own", "range", "roundrobin"))
    rig.join("b", version=3, protocols=protocols("roundrobin", "range"))
    rig.join("c", version=3, protocols=protocols("roundrobin", "range", "own"))

    rig.run_ms(2 * D)

    assert rig.group.candidates() == {"range", "roundrobin"}
    assert rig.group.protocol == "roundrobin"


@pytest.mark.row("PV-3")
def test_a_tie_falls_as_java_orders_the_names():
    chosen = set()
    for order in (("range", "roundrobin"), ("roundrobin", "range")):
        rig = Rig()
        for name, first in zip("ab", order, strict=True):
            second = order[1 - order.index(first)]
            rig.join(name, version=3, protocols=protocols(first, second))
        rig.run_ms(2 * D)
        chosen.add(rig.group.protocol)

    assert len(chosen) == 1


@pytest.mark.row("PV-1")
def test_a_static_member_that_stays_away_votes_with_its_old_list():
    rig = Rig()
    both = protocols("range", "roundrobin")
    ids = a_stable_group(rig, "a", "s", static=("s",), protocols=both, session_timeout_ms=1_000_000)

    rig.join("a", member_id=ids["a"], protocols=protocols("roundrobin"), session_timeout_ms=1_000_000)
    rig.run_ms(REBALANCE_MS)

    assert rig.group.protocol == "roundrobin"


@pytest.mark.row("CG-6", "1.3.1-1")
def test_a_member_alone_cannot_swap_its_only_protocol():
    """The check counts what it said before."""
    rig = Rig()
    ids = a_stable_group(rig, "a")

    asked = rig.join("a", member_id=ids["a"], protocols=protocols("sticky"))

    assert rig.answer(asked).code is Code.INCONSISTENT_GROUP_PROTOCOL


# -- who leads


@pytest.mark.row("LD-1")
def test_the_first_member_leads():
    rig = Rig()
    ids = a_completing_group(rig, "a", "b", "c")

    assert rig.group.leader == ids["a"]


@pytest.mark.row("LD-2")
def test_leadership_passes_on_at_once_when_the_leader_goes():
    """To the earliest, by our choice."""
    rig = Rig()
    ids = a_stable_group(rig, "a", "b", "c")

    rig.leave(ids["a"])

    assert rig.group.leader == ids["b"]
    rig.leave(ids["b"], ids["c"])
    assert rig.group.leader is None


@pytest.mark.row("LD-3")
def test_a_static_leader_that_stays_away_is_replaced_by_one_who_came():
    rig = Rig()
    ids = a_stable_group(rig, "s", "b", static=("s",), session_timeout_ms=1_000_000)
    assert rig.group.leader == ids["s"]
    changed = protocols("range", metadata=a_subscription("x"))
    asked = rig.join("b", member_id=ids["b"], protocols=changed, session_timeout_ms=1_000_000)

    rig.run_ms(REBALANCE_MS)

    assert rig.group.leader == ids["b"]
    assert len(rig.answer(asked).members) == 2
    assert ids["s"] in rig.group.members


@pytest.mark.row("LD-4")
def test_a_phase_that_nobody_joined_is_tried_again():
    """Static members only, all silent."""
    rig = Rig()
    ids = a_stable_group(rig, "s", "t", "d", static=("s", "t"), session_timeout_ms=1_800_000)
    rig.leave(ids["d"])
    start = rig.now_ms

    rig.run_to(start + REBALANCE_MS)

    assert rig.whys[-1] == "rebalance-timeout"
    assert rig.group.state is State.PREPARING
    assert rig.group.generation == 1
    assert join_due(rig) == start + 2 * REBALANCE_MS


# -- timelines of 9.5


@pytest.mark.row("9.5-1", "JG-11")
def test_the_first_timeline():
    """9.5: E79 at 0, joined at 1, answered at 3001 in generation 1, sync timer until 303001."""
    rig = Rig()
    promised = rig.answer(rig.join("a", version=5)).member_id
    rig.run_to(1)
    asked = rig.join("a", member_id=promised, version=5)
    assert len(rig.log) == 1
    assert rig.group.state is State.PREPARING

    rig.run_to(3_000)
    assert rig.answer(asked) is None
    rig.run_to(3_001)

    assert rig.answer(asked).generation == 1
    assert rig.deadlines.at(("sync", "g")) == 303_001


@pytest.mark.row("9.5-4", "2.7-3")
def test_the_fourth_timeline():
    """9.5: a member stops; 45 s after its last heartbeat it is removed, the others learn by theirs."""
    rig = Rig()
    ids = a_stable_group(rig)
    last_beat = rig.now_ms
    assert rig.beat(ids["b"]) is Code.NONE
    for beat in range(1, 15):
        rig.run_to(last_beat + beat * 3_000)
        assert rig.beat(ids["a"]) is Code.NONE

    rig.run_to(last_beat + SESSION_MS)

    assert rig.whys[-1] == "session-expired"
    assert ids["b"] not in rig.group.members
    assert rig.beat(ids["a"]) is Code.REBALANCE_IN_PROGRESS


@pytest.mark.row("JG-25")
@pytest.mark.parametrize("count", [1, 2, 10])
def test_every_member_of_a_generation_learns_the_same(count: int):
    rig = Rig()
    asked = a_preparing_group(rig, *(f"m{n}" for n in range(count)))

    rig.run_ms(2 * D)

    answers = [rig.answer(one) for one in asked]
    assert {(a.generation, a.leader, a.protocol_name) for a in answers} == {(1, rig.group.leader, "range")}
    assert [len(a.members) for a in answers] == [count] + [0] * (count - 1)
