"""ListGroups and DescribeGroups (1.11)."""

from __future__ import annotations

from struct import pack

import pytest
from group_rig import (
    Rig,
    a_completing_group,
    a_preparing_group,
    a_simple_group,
    a_stable_group,
    a_subscription,
)

from coterie.base.codes import Code
from coterie.coordinator.group.facts import GroupDied
from coterie.coordinator.group.views import folded, list_groups


@pytest.mark.row("DG-2")
def test_a_group_that_is_not_there_is_described_as_dead():
    """The shell shows the code from version 6 on."""
    rig = Rig()

    answer = rig.describe()

    assert rig.whys[-1] == "no-such-group"
    assert (answer.code, answer.state, answer.members) == (Code.GROUP_ID_NOT_FOUND, "Dead", ())
    assert (answer.protocol_type, answer.protocol) == ("", "")


@pytest.mark.row("DG-3")
def test_a_stable_group_is_described_with_what_its_members_say():
    rig = Rig()
    ids = a_stable_group(rig, "a", "s", static=("s",))

    answer = rig.describe()

    assert (answer.state, answer.protocol_type, answer.protocol) == ("Stable", "consumer", "range")
    a, s = answer.members
    assert (a.member_id, a.instance_id, a.client_id, a.client_host) == (ids["a"], None, "a", "/127.0.0.1")
    assert (a.metadata, a.assignment) == (a_subscription(), b"for a")
    assert (s.instance_id, s.assignment) == ("i-s", b"for s")


@pytest.mark.row("DG-4")
@pytest.mark.parametrize(
    ("build", "state"),
    [(a_preparing_group, "PreparingRebalance"), (a_completing_group, "CompletingRebalance")],
)
def test_other_groups_are_described_without(build, state: str):
    """No protocol, no metadata; the assignment is shown."""
    rig = Rig()
    build(rig)

    answer = rig.describe()

    assert (answer.code, answer.state, answer.protocol) == (Code.NONE, state, "")
    assert [(m.metadata, m.assignment) for m in answer.members] == [(b"", b"")] * 2


@pytest.mark.row("DG-4")
def test_a_rebalancing_group_still_shows_the_last_assignment():
    rig = Rig()
    a_stable_group(rig)
    rig.join("late", version=3)

    assert [m.assignment for m in rig.describe().members] == [b"for a", b"for b", b""]


@pytest.mark.row("DG-4", "DE-7")
def test_an_empty_and_a_dead_group_are_described_as_such():
    rig = Rig()
    a_simple_group(rig)
    assert (rig.describe().state, rig.describe().protocol_type) == ("Empty", "")

    rig.shard.apply(GroupDied("g", 0))

    assert (rig.describe().state, rig.describe().code) == ("Dead", Code.NONE)


@pytest.mark.row("LS-5")
def test_every_group_is_listed():
    rig = Rig()
    a_simple_group(rig)
    rig.join("a", group_id="h", version=3)

    listed = list_groups(rig.shard)

    assert [(g.group_id, g.protocol_type, g.state, g.group_type) for g in listed] == [
        ("g", "", "Empty", "classic"),
        ("h", "consumer", "PreparingRebalance", "classic"),
    ]


@pytest.mark.parametrize(
    ("kind", "group_type"),
    [(3, "consumer"), (16, "consumer"), (11, "share"), (23, "streams"), (99, "unknown")],
)
def test_a_group_of_another_kind_is_listed_as_what_it_is(kind: int, group_type: str):
    """It is no simple group, whatever it has committed: nobody should think that it may be deleted."""
    rig = Rig()
    rig.commit(group_id="simple")
    rig.commit(group_id="other")
    rig.shard.load([(pack(">hh", kind, 5) + name, b"value") for name in (b"other", b"alone")], 0)

    listed = {one.group_id: one[1:] for one in list_groups(rig.shard)}

    theirs = (group_type, "Unknown", group_type)
    assert listed == {"simple": ("", "Empty", "classic"), "other": theirs, "alone": theirs}
    by_type = {one.group_id for one in list_groups(rig.shard, types=[folded(f" {group_type.upper()}")])}
    assert (
        by_type == {"other", "alone"} == {one.group_id for one in list_groups(rig.shard, states=["unknown"])}
    )
    assert [one.group_id for one in list_groups(rig.shard, types=["classic"])] == ["simple"]


@pytest.mark.row("LS-2")
@pytest.mark.parametrize(
    ("states", "found"),
    [
        (("Empty",), ["g"]),
        ((" preparingrebalance ", "DEAD"), ["h"]),
        (("stable",), []),
        (("unheard-of",), []),
        (("unheard-of", "empty"), ["g"]),
    ],
)
def test_groups_are_listed_by_state(states: tuple[str, ...], found: list[str]):
    rig = Rig()
    a_simple_group(rig)
    rig.join("a", group_id="h", version=3)

    assert [g.group_id for g in list_groups(rig.shard, states=[*map(folded, states)])] == found


@pytest.mark.row("LS-3")
@pytest.mark.parametrize(
    ("types", "count"),
    [(("Classic",), 1), (("consumer",), 0), (("x", "classic"), 1), (("share",), 0)],
)
def test_groups_are_listed_by_type(types: tuple[str, ...], count: int):
    rig = Rig()
    a_simple_group(rig)

    assert len(list_groups(rig.shard, types=[*map(folded, types)])) == count
