"""What `coterie history` prints: the whole first, the worst group first, and what each rebalance cost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coterie.base.errors import CoterieError
from coterie.cli.history.texts import text, texts
from coterie.history.tables import Generation, History, Move, Replacement, Stall

AT = 1_700_000_000_000


def a_group(name: str, *, stood_still_ms: int, dead_for_ms: int = 0) -> History:
    """A group of which a partition had no owner for a while, after its owner had been dead."""
    generations = tuple(
        Generation(name, number, AT + number * 60_000, "consumer", "range", "a", ("a", "b")[:number], (), (),
                   (cause,), 0.9, (f"because of {cause}",))
        for number, cause in ((1, "member-joined"), (2, "session-expired"))
    )  # fmt: skip
    formed = generations[1].formed_at
    gone = formed - stood_still_ms
    stalls = (Stall(name, "t", 0, "no-owner", gone, formed, 2, None),)
    if dead_for_ms:
        stalls = (Stall(name, "t", 0, "no-progress", gone - dead_for_ms, gone, 1, "a"), *stalls)
    moves = (Move(name, 2, formed, "t", 0, "a", "b", False),)
    return History(name, generations=generations, stalls=stalls, moves=moves)


def plain_lines(history: History) -> list[str]:
    return text(history, 20).replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()


def test_a_group_begins_with_what_it_cost_and_each_rebalance_says_what_it_cost():
    lines = plain_lines(a_group("g", stood_still_ms=2_000))

    assert lines == [
        "g: 2 rebalances, member-joined (1), session-expired (1); partitions stood still 2.0 s in all; "
        "1 move of a partition",
        "  2023-11-14T22:14:20.000Z  generation 1, 1 member: member-joined (90%)",
        "      because of member-joined",
        "  2023-11-14T22:15:20.000Z  generation 2, 2 members: session-expired (90%)",
        "      1 partition stood still, up to 2.0 s, 1 moved",
        "      because of session-expired",
    ]


def test_a_dead_members_partitions_stood_still_from_its_last_sign_of_life_on_which_no_story_knows():
    lines = plain_lines(a_group("g", stood_still_ms=2_000, dead_for_ms=10_000))

    assert lines[4] == "      1 partition stood still, up to 12.0 s (2.0 s of it without an owner), 1 moved"


def test_a_few_milliseconds_are_told_as_the_story_tells_them():
    assert plain_lines(a_group("g", stood_still_ms=50))[4] == (
        "      1 partition stood still, up to 50 ms, 1 moved"
    )


def test_a_static_members_return_without_a_rebalance_is_no_cost_of_the_one_before():
    group = a_group("g", stood_still_ms=2_000)
    back = group.generations[1].formed_at + 30_000
    returned = group._replace(
        replacements=(Replacement("g", 2, back, "i-1", "b", "c"),),
        stalls=(*group.stalls, Stall("g", "t", 1, "no-owner", back - 9_000, back, 2, None)),
        moves=(*group.moves, Move("g", 2, back, "t", 1, "b", "c", True)),
    )

    *lines, last = plain_lines(returned)

    assert lines[4] == "      1 partition stood still, up to 2.0 s, 1 moved"
    assert last == (
        "  2023-11-14T22:15:50.000Z  i-1 came back under a new member id, without a rebalance:"
        " 1 partition stood still, up to 9.0 s"
    )


def test_that_nobody_was_in_the_group_while_its_partitions_stood_still_is_said():
    history = a_group("g", stood_still_ms=50_000)
    first, last = history.generations
    left = first._replace(generation=2, formed_at=last.formed_at - 49_000, members=(), leader=None)
    back = last._replace(generation=3)
    stalls = (history.stalls[0]._replace(generation=3),)
    moves = (history.moves[0]._replace(generation=3),)
    empty = history._replace(generations=(first, left, back), stalls=stalls, moves=moves)

    summary, *lines = plain_lines(empty)

    assert "partitions stood still 50.0 s in all, 49.0 s of it while there were no members;" in summary
    assert lines[5] == (
        "      the group was empty for 49.0 s: 1 partition stood still, up to 50.0 s, 1 moved"
    )
    assert "for 100.0 s in all, added up over partitions, 98.0 s of it in groups without members." in next(
        texts([empty, empty], 20)
    )


def test_all_groups_are_summed_up_and_the_worst_comes_first():
    groups = [a_group("mild", stood_still_ms=1_000), a_group("bad", stood_still_ms=9_000)]

    whole, first, second = texts(groups, 20)

    assert whole == (
        "2 groups, 4 rebalances from 2023-11-14T22:14:20Z to 2023-11-14T22:15:20Z,"
        " member-joined (2), session-expired (2); partitions stood still for 10.0 s in all,"
        " added up over partitions. The worst come first.\n"
    )
    assert ("bad:" in first, "mild:" in second) == (True, True)


def test_what_was_read_before_an_error_is_told():
    def broken() -> Iterator[History]:
        yield a_group("g", stood_still_ms=1)
        raise CoterieError("the rest is damaged")

    told = texts(broken(), 20)

    assert "g:" in next(told)
    with pytest.raises(CoterieError, match="damaged"):
        next(told)
