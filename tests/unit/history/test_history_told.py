"""A story beside a log: what it states wins, and what only the log has stays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from coterie.history.from_story import BY_COORDINATOR, COMPACTED, MISSING, history_of_story, overlaid
from coterie.history.ownership import STALL_LEAST_MS
from coterie.history.tables import Assignment, Generation, History
from unit.history.history_rig import Tale, stalls


def rebalance(
    number: int,
    at: int,
    formed_at: int,
    *,
    left: tuple[str, ...] = (),
    protocol: str = "range",
    abridged: bool = False,
    **has: list[int],
) -> dict[str, Any]:
    """What the story has of a rebalance; `a=[0]` is the client a, whose member is a/1."""
    seat = {"instance_id": None, "host": "/h"}
    members = {
        f"{name}/1": {"client_id": name, "partitions": {"t": mine}, **seat} for name, mine in has.items()
    }
    return {
        "kind": "rebalance", "group": "g", "generation": number, "at": at, "formed_at": formed_at,
        "why": ["session-expired" if left else "member-joined"], "protocol": protocol, "leader": "a/1",
        "members": {} if abridged else members, "size": len(members), "joined": [],
        "left": [] if abridged else [*left], "abridged": abridged,
    }  # fmt: skip


def ends(history: History, partition: int) -> list[int | None]:
    return [one.to_ms for one in history.ownership if one.partition == partition]


def test_idle_owners_gave_up_when_the_story_says_that_the_rebalance_began_not_at_their_last_commit():
    tale = Tale().formed(10_000, {"a/1": (0, 1)}).commit(10_500, 20_000, 0, 1)
    log = tale.formed(60_000, {"a/1": (0,), "b/1": (1,)}).told()
    story = [rebalance(1, 7_000, 10_000, a=[0, 1]), rebalance(2, 59_000, 60_000, a=[0], b=[1])]
    known = overlaid(log, story)

    assert ends(log, 1) == [20_000, None]
    assert ends(known, 0) == ends(known, 1) == [59_000, None]
    assert [*stalls(known, "no-owner", 1)] == [(59_000, 60_000)]


def test_a_dead_owner_stood_still_until_the_rebalance_began():
    tale = Tale().formed(10_000, {"a/1": (0,), "b/1": (1,)}).commit(10_500, 40_000, 0, 1)
    tale.commit(40_500, 59_000, 0).formed(51_500, {"a/1": (0, 1)}).commit(52_000, 60_000, 0, 1)
    story = [
        rebalance(1, 7_000, 10_000, a=[0], b=[1]),
        rebalance(2, 51_000, 51_500, left=("b/1",), a=[0, 1]),
    ]
    known = overlaid(tale.told(), story)

    assert [*stalls(known, "no-progress", 1)] == [(40_250, 51_000)]
    assert [*stalls(known, "no-owner", 1)] == [(51_000, 51_500)]
    assert STALL_LEAST_MS <= 51_000 - 40_000


def test_cooperative_members_keep_what_they_have_until_the_generation_is_formed_unless_they_are_gone():
    tale = Tale().formed(10_000, {"a/1": (0, 1), "b/1": (2,)}, owned={})
    tale.formed(60_000, {"a/1": (0,)}, owned={"a/1": (0, 1)}).formed(
        60_100, {"a/1": (0, 2)}, owned={"a/1": (0,)}
    )
    cooperative = "cooperative-sticky"
    story = [
        rebalance(1, 7_000, 10_000, protocol=cooperative, a=[0, 1], b=[2]),
        rebalance(2, 59_000, 60_000, protocol=cooperative, left=("b/1",), a=[0]),
        rebalance(3, 60_050, 60_100, protocol=cooperative, a=[0, 2]),
    ]
    known = overlaid(tale.told(), story)

    assert ends(known, 0) == [None]
    assert ends(known, 1) == [60_000]
    assert ends(known, 2) == [59_000, None]


def test_a_static_member_that_came_back_hands_on_without_a_rebalance_which_a_later_one_does_not_change():
    tale = Tale().formed(10_000, {"a@x/1": (0,)}).commit(10_500, 20_000, 0)
    tale.formed(22_000, {"a@x/2": (0,)}, again=True).commit(22_500, 59_000, 0)
    log = tale.formed(60_000, {"a@x/2": (0,), "b/1": ()}).told()
    story = [rebalance(1, 7_000, 10_000, a=[0]), rebalance(2, 59_500, 60_000, a=[0], b=[])]
    known = overlaid(log, story)

    assert len(known.ownership) == 3
    assert ends(known, 0) == [ends(log, 0)[0], 59_500, None]


def test_who_had_what_in_a_generation_that_was_never_stored_is_known_by_the_story():
    log = Tale().formed(10_000, {"a/1": (0, 1)}).told()
    story = [rebalance(1, 7_000, 10_000, a=[0, 1]), rebalance(2, 59_000, 60_000, a=[0], b=[1])]
    known = overlaid(log, story)

    assert [one.generation for one in known.generations] == [1, 2]
    assert {(one.generation, one.client_id, one.partitions) for one in known.assignments} == {
        (1, "a", (0, 1)), (2, "a", (0,)), (2, "b", (1,))
    }  # fmt: skip


def test_a_rebalance_told_without_its_members_takes_none_from_the_log():
    """Of more than a thousand members the story tells why and when, and the log who."""
    tale = Tale().formed(10_000, {"a/1": (0,), "b/1": (1,)}).commit(10_500, 20_000, 0, 1)
    log = tale.formed(60_000, {"a/1": (0,), "c/1": (1,)}).told()
    story = [
        rebalance(1, 7_000, 10_000, abridged=True, a=[0], b=[1]),
        rebalance(2, 59_000, 60_000, abridged=True, a=[0], c=[1]),
    ]
    known = overlaid(log, story)

    assert [one[6:9] for one in known.generations] == [one[6:9] for one in log.generations]
    assert [(one.causes, one.confidence) for one in known.generations] == [(("member-joined",), 1.0)] * 2
    assert known.assignments == log.assignments
    assert ends(known, 0) == [59_000, None]


def test_a_rebalance_told_without_its_members_takes_nothing_from_its_owners():
    story = [
        rebalance(1, 7_000, 10_000, a=[0], b=[1]),
        rebalance(2, 29_000, 30_000, abridged=True, a=[0], b=[1], c=[]),
        rebalance(3, 59_000, 60_000, a=[0], c=[1]),
    ]
    known = overlaid(History("g"), story)

    assert [(one.member_id, one.from_ms, one.to_ms) for one in known.ownership] == [
        ("a/1", 10_000, 59_000),
        ("a/1", 60_000, None),
        ("b/1", 10_000, 59_000),
        ("c/1", 60_000, None),
    ]
    assert known.generations[1].evidence == (
        "told by the coordinator: member-joined; who its 3 members are, it does not tell",
    )


def test_topics_that_are_not_told_are_not_said_to_be_the_same():
    story = [rebalance(number, number * 10_000, number * 10_000, abridged=True, a=[0]) for number in (1, 2)]
    story[1]["why"] = ["topics-changed"]

    assert overlaid(History("g"), story).generations[1].causes == ("topics-changed",)


def test_a_member_whose_partitions_are_not_told_is_not_said_to_have_none():
    """Assignments of more than 40 KiB are not read for the story: docs/story.md."""
    story = [rebalance(1, 7_000, 10_000, a=[0, 1], b=[2]), rebalance(2, 29_000, 30_000, a=[], b=[1, 2])]
    story[1]["members"]["a/1"] |= {"partitions": {}, "partitions_known": False}
    story[1]["why"] = ["topics-changed"]
    known = overlaid(History("g"), story)

    assert ends(known, 0) == [None]
    assert ends(known, 1) == [29_000, None]
    assert [one.member_id for one in known.assignments if one.generation == 2] == ["b/1"]
    assert known.generations[1].causes == ("topics-changed",)


def test_a_rebalance_by_a_clock_that_is_behind_is_the_logs_own_and_no_second_one():
    """In the log a static member has come back, and another time is moved than in the story."""
    tale = Tale().formed(10_000, {"a@x/1": (0, 1)}).formed(20_000, {"a@x/1": (0,), "b/1": (1,)})
    tale.formed(20_000, {"a@x/2": (0,), "b/1": (1,)}, again=True)
    log = tale.formed(17_000, {"a@x/2": (0, 1)}).told()
    story = [
        rebalance(1, 9_000, 10_000, a=[0, 1]),
        rebalance(2, 19_900, 20_000, a=[0], b=[1]),
        rebalance(3, 16_950, 17_000, left=("b/1",), a=[0, 1]),
    ]
    known = overlaid(log, story)

    assert [one[1:3] for one in known.generations] == [one[1:3] for one in log.generations]
    assert {one.confidence for one in known.generations} == {1.0}


def test_a_rebalance_that_the_story_does_not_have_is_inferred_and_says_so():
    tale = Tale().formed(10_000, {"a/1": (0, 1)}).commit(10_500, 20_000, 0, 1)
    tale.formed(20_500, {"a/1": (0,), "b/1": (1,)}).commit(21_000, 30_000, 0, 1)
    tale.formed(30_500, {"a/1": (0, 1)}).commit(31_000, 40_000, 0, 1)
    log = tale.formed(40_500, {"a/1": (0,), "c/1": (1,)}).told()
    second = rebalance(2, 20_400, 20_500, a=[0], b=[1])
    fourth = rebalance(4, 40_400, 40_500, a=[0], c=[1])

    first, *_, third, last = overlaid(log, [second, fourth]).generations

    assert third.evidence == (*log.generations[2].evidence, MISSING)
    assert last.evidence == (f"{BY_COORDINATOR}: member-joined",)
    assert first.evidence == log.generations[0].evidence, "from before the story begins"


@pytest.mark.parametrize(("protocol", "since_ms"), [("range", 20_500), ("cooperative-sticky", 40_500)])
def test_eager_members_gave_up_what_they_had_for_a_generation_that_was_cut_short_and_never_stored(
    protocol: str, since_ms: int
):
    """It was told as the time of an owner that read nothing."""
    tale = Tale().formed(10_000, {"a/1": (0, 1)}, owned={"a/1": (0, 1)})
    tale.generation = 2
    log = tale.formed(40_500, {"a/1": (0,)}, owned={"a/1": (0, 1)}).formed(50_500, {"a/1": (0, 1)}).told()
    story = [
        rebalance(1, 7_000, 10_000, protocol=protocol, a=[0, 1]),
        rebalance(2, 20_500, 21_000, protocol=protocol, a=[]) | {"state": "CompletingRebalance"},
        rebalance(3, 40_000, 40_500, protocol=protocol, a=[0]),
        rebalance(4, 50_000, 50_500, protocol=protocol, a=[0, 1]),
    ]
    known = overlaid(log, story)

    assert [*stalls(known, "no-owner", 1)] == [(since_ms, 50_500)]
    assert [*stalls(history_of_story("g", story), "no-owner", 1)] == [(since_ms, 50_500)]


def test_what_compaction_has_left_of_the_log_costs_what_the_story_says():
    tale = Tale().formed(10_000, {"a/1": (0,), "b/1": (1,)}).commit(10_500, 40_000, 0, 1)
    tale.commit(40_500, 59_000, 0).formed(51_500, {"a/1": (0, 1)}).commit(52_000, 60_000, 0, 1)
    story = [
        rebalance(1, 7_000, 10_000, a=[0], b=[1]),
        rebalance(2, 51_000, 51_500, left=("b/1",), a=[0, 1]),
        rebalance(3, 70_000, 70_300, left=("a/1",), c=[0, 1]),
    ]
    tale.formed(70_300, {"c/1": (0, 1)})
    whole = overlaid(tale.told(), story)
    tale.entries, tale.commits = tale.entries[-1:], []
    left = overlaid(tale.told(), story)

    assert left.moves == whole.moves
    assert left.ownership == whole.ownership
    assert [*stalls(left, "no-owner", 1)] == [(51_000, 51_500), (70_000, 70_300)]
    assert [COMPACTED in one.evidence for one in left.generations] == [False, True, True]
    assert not any(COMPACTED in one.evidence for one in whole.generations)


def test_what_compaction_has_left_of_a_group_is_not_taken_for_that_of_an_earlier_one_of_its_name():
    """Who owned in the second generation of the later group was told of as of the earlier one's second."""
    story = [
        rebalance(1, 9_000, 10_000, a=[0]),
        rebalance(2, 19_000, 20_000, a=[0], b=[1]),
        rebalance(1, 99_000, 100_000, c=[0, 1]),
        rebalance(2, 109_000, 110_000, c=[0], d=[1]),
    ]
    tale = Tale()
    tale.generation = 1
    left = overlaid(tale.formed(110_000, {"c/1": (0,), "d/1": (1,)}).told(), story)

    assert left.ownership == history_of_story("g", story).ownership


def test_members_whose_sessions_have_ended_by_the_story_are_no_deploy():
    """Nobody deployed anything: they were cut off, and came back."""
    tale = Tale().formed(10_000, {"a/1": (0,), "b/1": (1,)}).commit(10_500, 20_000, 0, 1)
    tale.formed(20_100, {"b/1": (0, 1)}).formed(21_000, {"a/2": (0,), "b/1": (1,)}).commit(
        21_500, 30_000, 0, 1
    )
    tale.formed(30_100, {"a/2": (0, 1)}).formed(31_000, {"a/2": (0,), "b/2": (1,)})
    log = tale.told()
    story = [
        rebalance(1, 9_000, 10_000, a=[0], b=[1]),
        rebalance(2, 20_050, 20_100, left=("a/1",), b=[0, 1]),
        rebalance(3, 20_500, 21_000, a=[0], b=[1]),
        rebalance(4, 30_050, 30_100, left=("b/1",), a=[0, 1]),
        rebalance(5, 30_500, 31_000, a=[0], b=[1]),
    ]
    assert [one.kind for one in log.waves] == ["deploy"]
    assert not overlaid(log, story).waves


def test_members_that_share_a_client_id_and_leave_in_turn_are_a_deploy_with_a_story_and_without():
    """All went by one name: no two of them had left, by the log alone."""
    tale = Tale()
    turns: list[dict[str, tuple[int, ...]]] = [
        {"a/1": (0,), "b/1": (1,), "c/1": (2,)},
        {"b/1": (0, 1), "c/1": (2,)},
        {"a/2": (0,), "b/1": (1,), "c/1": (2,)},
        {"a/2": (0, 1), "c/1": (2,)},
        {"a/2": (0,), "b/2": (1,), "c/1": (2,)},
    ]
    for number, members in enumerate(turns, start=1):
        tale.formed(10_000 * number, members, client="app")
    log = tale.told()
    story = [told_of(one, log.assignments) for one in log.generations]

    assert [(one.kind, one.members) for one in log.waves] == [("deploy", 2)]
    assert overlaid(log, story).waves == log.waves


def told_of(generation: Generation, assignments: Iterable[Assignment]) -> dict[str, Any]:
    """What the story has of a generation, and of who was assigned what in it."""
    members = {
        one.member_id: {
            "client_id": one.client_id, "instance_id": None, "host": "/h",
            "partitions": {"t": list(one.partitions)},
        }
        for one in assignments if one.generation == generation.generation
    }  # fmt: skip
    came_and_went = {"joined": list(generation.joined), "left": list(generation.left)}
    why = {"why": ["member-left" if generation.left else "member-joined"]}
    at_ms = generation.formed_at
    return rebalance(generation.generation, at_ms - 100, at_ms) | {"members": members} | came_and_went | why
