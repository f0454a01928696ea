"""The matrices of 1.3.1 and 1.6.1: what each kind of member is answered in each state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from group_rig import Rig, a_completing_group, a_stable_group, a_subscription, protocols

from coterie.base.codes import Code
from coterie.coordinator.group.commands import Leaver
from coterie.coordinator.group.facts import GroupDied
from coterie.coordinator.group.model import State

row = pytest.mark.row

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = (
    State.EMPTY,
    State.PREPARING,
    State.COMPLETING,
    State.STABLE,
    State.DEAD,
)
NONE, UNKNOWN, FENCED = Code.NONE, Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID
STALE, MOVING, ELSEWHERE = Code.ILLEGAL_GENERATION, Code.REBALANCE_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE
INCONSISTENT, REQUIRED, OURS = (
    Code.INCONSISTENT_GROUP_PROTOCOL,
    Code.MEMBER_ID_REQUIRED,
    Code.UNKNOWN_SERVER_ERROR,
)
PARKED = "parked"
CHANGED = protocols("range", metadata=a_subscription("more"))


def a_group_in(state: State) -> tuple[Rig, dict[str, str]]:
    """A group of leader a, follower b and static s in that state, and an id promised to p; ids by name.

    An Empty one has had them as members; only the promise is new.
    """
    rig = Rig()
    build = a_completing_group if state is COMPLETING else a_stable_group
    ids = build(rig, "a", "b", "s", static=("s",))
    if state is EMPTY:
        rig.leave(*ids.values())
    ids["p"] = rig.answer(rig.join("p")).member_id
    if state is PREPARING:
        rig.join("late", version=3)
    if state is DEAD:
        rig.shard.apply(GroupDied("g", rig.now_ms))
    assert rig.group.state is state
    return rig, ids


# -- JoinGroup (1.3.1): the terms of a join, and by state its why and the code of its answer

Cells = Mapping[State, tuple[str, Code | str]]
GONE = {DEAD: ("group-dead", ELSEWHERE)}


def everywhere(why: str, code: Code | str) -> Cells:
    """The same in every state but Dead."""
    return {EMPTY: (why, code), PREPARING: (why, code), COMPLETING: (why, code), STABLE: (why, code), **GONE}


def of_members(preparing: str, completing: tuple[str, Code | str], stable: tuple[str, Code | str]) -> Cells:
    """A member, whom an Empty group does not know, and who waits with the others in a rebalance."""
    return {
        EMPTY: ("unknown-member", UNKNOWN),
        PREPARING: (preparing, PARKED),
        COMPLETING: completing,
        STABLE: stable,
        **GONE,
    }


JOINS = [
    pytest.param(
        {"protocol_type": ""},
        everywhere("inconsistent-protocol", INCONSISTENT),
        marks=row("1.3.1-1"),
        id="no-type",
    ),
    pytest.param(
        {"protocols": ()},
        everywhere("inconsistent-protocol", INCONSISTENT),
        marks=row("1.3.1-1"),
        id="no-protocols",
    ),
    pytest.param(
        {"member_id": "b", "protocols": protocols("unheard-of")},
        {**everywhere("inconsistent-protocol", INCONSISTENT), EMPTY: ("unknown-member", UNKNOWN)},
        id="none-in-common",
    ),
    pytest.param(
        {"member_id": "p", "protocol_type": "connect"},
        {**everywhere("inconsistent-protocol", INCONSISTENT), EMPTY: ("promise-redeemed", PARKED)},
        id="other-type",
    ),
    pytest.param(
        {"version": 4}, everywhere("member-id-required", REQUIRED), marks=row("1.3.1-2"), id="new-dynamic"
    ),
    pytest.param(
        {"version": 9}, everywhere("member-id-required", REQUIRED), marks=row("1.3.1-2"), id="new-dynamic-v9"
    ),
    pytest.param(
        {"version": 3}, everywhere("member-joined", PARKED), marks=row("1.3.1-3"), id="new-dynamic-old"
    ),
    pytest.param(
        {"version": 0}, everywhere("member-joined", PARKED), marks=row("1.3.1-3"), id="new-dynamic-oldest"
    ),
    pytest.param(
        {"instance_id": "i-new"},
        everywhere("static-member-joined", PARKED),
        marks=row("1.3.1-4"),
        id="new-static",
    ),
    pytest.param(
        {"instance_id": "i-s"},
        {
            EMPTY: ("static-member-joined", PARKED),  # nobody is mapped there
            PREPARING: ("static-member-replaced", PARKED),
            COMPLETING: ("static-member-replaced", PARKED),
            STABLE: ("static-member-returned", NONE),
            **GONE,
        },
        id="static-again",
    ),
    pytest.param(
        {"member_id": "p"}, everywhere("promise-redeemed", PARKED), marks=row("1.3.1-6"), id="promised"
    ),
    pytest.param(
        {"member_id": "p", "instance_id": "i-p"},
        everywhere("promised-id-with-instance", OURS),
        marks=row("1.3.1-7"),
        id="promised-static",
    ),
    pytest.param(
        {"member_id": "a", "instance_id": "i-none"},
        everywhere("unknown-instance", UNKNOWN),
        marks=row("1.3.1-8"),
        id="unmapped-instance",
    ),
    pytest.param(
        {"member_id": "a", "instance_id": "i-s"},
        {**everywhere("fenced-instance", FENCED), EMPTY: ("unknown-instance", UNKNOWN)},
        id="another's-instance",
    ),
    pytest.param(
        {"member_id": "x"}, everywhere("unknown-member", UNKNOWN), marks=row("1.3.1-10"), id="unknown-id"
    ),
    pytest.param(
        {"member_id": "b"},
        of_members("member-rejoined", ("join-repeated", NONE), ("join-repeated", NONE)),
        marks=row("1.3.1-11"),
        id="follower",
    ),
    pytest.param(
        {"member_id": "b", "protocols": CHANGED},
        of_members("member-rejoined", ("metadata-changed", PARKED), ("metadata-changed", PARKED)),
        marks=row("1.3.1-12"),
        id="follower-changed",
    ),
    pytest.param(
        {"member_id": "a"},
        of_members("member-rejoined", ("leader-join-repeated", NONE), ("leader-rejoined", PARKED)),
        marks=row("1.3.1-13"),
        id="leader",
    ),
    pytest.param(
        {"member_id": "a", "protocols": CHANGED},
        of_members("member-rejoined", ("metadata-changed", PARKED), ("leader-rejoined", PARKED)),
        marks=row("1.3.1-14"),
        id="leader-changed",
    ),
]


def check_join(state: State, terms: Mapping[str, Any], cells: Cells) -> None:
    rig, ids = a_group_in(state)
    member_id = ids.get(terms.get("member_id", ""), terms.get("member_id", ""))

    asked = rig.join("c", **{**terms, "member_id": member_id})

    why, code = cells[state]
    assert asked.why == why
    assert asked.decision.waits == (code == PARKED)
    if code == PARKED:
        assert rig.group.state is PREPARING
        return
    answer = rig.answer(asked)
    assert answer.code == code
    if code in (UNKNOWN, FENCED, INCONSISTENT, ELSEWHERE):
        assert answer.member_id == member_id
    if code is not NONE:
        assert (answer.generation, answer.leader, answer.members) == (-1, "", ())
        assert (answer.protocol_type, answer.protocol_name) == (None, None)
        assert rig.group.state is state


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize(("terms", "cells"), JOINS)
def test_a_join_is_answered_by_who_asks_and_the_state(state: State, terms, cells):
    check_join(state, terms, cells)


@row("1.3.1-5")
@pytest.mark.parametrize("state", [PREPARING, COMPLETING, STABLE, DEAD])
def test_a_static_member_that_comes_again_takes_its_old_place(state: State):
    """In an Empty group no instance is mapped, so that nobody can come again there (ST-8)."""
    check_join(
        state,
        {"instance_id": "i-s"},
        {
            PREPARING: ("static-member-replaced", PARKED),
            COMPLETING: ("static-member-replaced", PARKED),
            STABLE: ("static-member-returned", NONE),
            **GONE,
        },
    )


@row("1.3.1-9")
@pytest.mark.parametrize("state", [PREPARING, COMPLETING, STABLE, DEAD])
def test_an_id_that_comes_with_anothers_instance_is_fenced(state: State):
    """In an Empty group no instance is mapped."""
    check_join(state, {"member_id": "a", "instance_id": "i-s"}, everywhere("fenced-instance", FENCED))


# -- SyncGroup, Heartbeat, LeaveGroup (1.6.1): by PreparingRebalance, CompletingRebalance, Stable

WORKING = (PREPARING, COMPLETING, STABLE)
SYNC, BEAT, LEAVE = "sync", "beat", "leave"
MEMBERS: Mapping[str, tuple[Any, Any, Any]] = {
    SYNC: (MOVING, PARKED, NONE),
    BEAT: (MOVING, NONE, NONE),
    LEAVE: (NONE, NONE, NONE),
}


def always(sync: Code, beat: Code, leave: Code) -> dict[str, tuple[Any, Any, Any]]:
    return {SYNC: (sync,) * 3, BEAT: (beat,) * 3, LEAVE: (leave,) * 3}


ASKED = [
    pytest.param("x", {}, always(UNKNOWN, UNKNOWN, UNKNOWN), marks=row("1.6.1-1"), id="unknown-id"),
    pytest.param("p", {}, always(UNKNOWN, UNKNOWN, NONE), marks=row("1.6.1-2"), id="promised"),
    pytest.param("b", {}, MEMBERS, marks=row("1.6.1-3"), id="follower"),
    pytest.param("a", {}, {**MEMBERS, SYNC: (MOVING, NONE, NONE)}, marks=row("1.6.1-5"), id="leader"),
    pytest.param("s", {"instance_id": "i-s"}, MEMBERS, marks=row("1.6.1-6"), id="static"),
    pytest.param(
        "old",
        {"instance_id": "i-s"},
        always(FENCED, FENCED, FENCED),
        marks=row("1.6.1-7"),
        id="replaced-static",
    ),
    pytest.param("old", {}, always(UNKNOWN, UNKNOWN, UNKNOWN), marks=row("1.6.1-8"), id="replaced"),
    pytest.param(
        "b", {"instance_id": "i-none"}, always(UNKNOWN, UNKNOWN, UNKNOWN), marks=row("1.6.1-9"), id="unmapped"
    ),
    pytest.param(
        "", {"instance_id": "i-s"}, always(FENCED, FENCED, NONE), marks=row("1.6.1-10"), id="instance-alone"
    ),
]


def a_group_with_a_past(state: State) -> tuple[Rig, dict[str, str]]:
    """As above, but s has come again: `old` is the id that it had."""
    rig = Rig()
    ids = a_stable_group(rig, "a", "b", "s", static=("s",))
    ids["old"] = ids["s"]
    ids["s"] = rig.answer(rig.join("s", instance_id="i-s")).member_id
    if state is COMPLETING:
        rig.join("a", member_id=ids["a"])
        rig.join("b", member_id=ids["b"])
        rig.join("s", member_id=ids["s"], instance_id="i-s")
    ids["p"] = rig.answer(rig.join("p")).member_id
    if state is PREPARING:
        rig.join("late", version=3)
    assert rig.group.state is state
    return rig, ids


def ask(rig: Rig, what: str, member_id: str, terms: Mapping[str, Any]) -> Any:
    """Ask one thing of the group; return the code, or PARKED."""
    if what == BEAT:
        return rig.beat(member_id, **terms)
    if what == LEAVE:
        asked = rig.leave(Leaver(member_id, terms.get("instance_id"), None))
        assert rig.answer(asked).members[0][:2] == (member_id, terms.get("instance_id"))
        return rig.answer(asked).members[0][2]
    asked = rig.sync(member_id, **terms)
    return PARKED if asked.decision.waits else rig.answer(asked).code


@pytest.mark.parametrize("state", WORKING)
@pytest.mark.parametrize("what", [SYNC, BEAT, LEAVE])
@pytest.mark.parametrize(("who", "terms", "cells"), ASKED)
def test_who_asks_is_answered_by_what_it_is_to_the_group(state: State, what: str, who: str, terms, cells):
    rig, ids = a_group_with_a_past(state)

    code = ask(rig, what, ids.get(who, who), terms)

    assert code == cells[what][WORKING.index(state)]
    if what == LEAVE and code is NONE:
        assert rig.group.state is PREPARING


@row("1.6.1-4", "1.6.1-3")
@pytest.mark.parametrize("state", WORKING)
@pytest.mark.parametrize("who", ["a", "b"])
@pytest.mark.parametrize("off_by", [-1, 1])
def test_another_generation_is_told_so_before_the_state_is_looked_at(state: State, who: str, off_by: int):
    """A LeaveGroup has no generation."""
    rig, ids = a_group_with_a_past(state)
    generation = rig.group.generation + off_by

    assert ask(rig, SYNC, ids[who], {"generation": generation}) is STALE
    assert ask(rig, BEAT, ids[who], {"generation": generation}) is STALE
    assert ask(rig, LEAVE, ids[who], {}) is NONE


@row("SG-4", "HB-5", "LG-7")
def test_an_empty_group_knows_nobody():
    rig, ids = a_group_in(EMPTY)

    for who in ("a", "s", "x"):
        assert ask(rig, SYNC, ids.get(who, who), {}) is UNKNOWN
        assert ask(rig, BEAT, ids.get(who, who), {}) is UNKNOWN
        assert ask(rig, LEAVE, ids.get(who, who), {}) is UNKNOWN
