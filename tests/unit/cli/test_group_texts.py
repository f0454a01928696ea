"""What `coterie groups` says to people, line by line."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.base.ids import TopicPartition
from coterie.cli.groups.texts import (
    GroupOffsets,
    Offsets,
    group_document,
    headline,
    member_lines,
    partition_lines,
    story_lines,
)
from coterie.cli.tables import spans, table
from coterie.client.admin.groups import DescribedGroup, DescribedMember
from coterie.story.cost import Cost

ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def a_group(*members: DescribedMember) -> DescribedGroup:
    return DescribedGroup("readers", "Stable", "consumer", "range", "127.0.0.1:9092", members)


def a_member(**changes: Any) -> DescribedMember:
    member = DescribedMember("app-1", None, "app", "/127.0.0.1", (ORDERS_0,), ("orders",))
    return member._replace(**changes)


def partitions(group: DescribedGroup, committed: Offsets, ends: Offsets) -> list[str]:
    return partition_lines(group_document(group, GroupOffsets(committed, ends)))


def a_move(**changes: Any) -> dict[str, Any]:
    person = {
        "member_id": "app-1",
        "client_id": "app",
        "instance_id": None,
        "host": "/10.0.0.1",
        "replaces": None,
    }
    document = {
        "kind": "move",
        "at": 0,
        "group": "readers",
        "why": "member-left",
        "who": [person],
        "reason": "",
        "state_before": "Stable",
        "state": "PreparingRebalance",
    }
    return document | changes


NASTY = "app\x1b[2J\n\u202egnp"


def test_names_do_nothing_to_a_terminal_wherever_they_are_told():
    """TH-31."""
    evil = a_member(member_id=NASTY, client_id=NASTY, host=NASTY, instance_id=NASTY)
    move = a_move(reason=NASTY, who=[dict.fromkeys(("member_id", "client_id", "instance_id", "host"), NASTY)])
    rebalance = a_rebalance(left=[NASTY])

    lines = [
        *member_lines(group_document(a_group(evil))),
        *partitions(a_group(evil), {ORDERS_0: 1}, {ORDERS_0: 2}),
    ]
    lines += [*story_lines(move), *story_lines(rebalance), *story_lines(a_move(kind=NASTY))]

    assert sum("app\\x1b[2J\\n\\u202egnp" in line for line in lines) == 5
    assert all(line.isprintable() for line in lines)


def a_rebalance(**changes: Any) -> dict[str, Any]:
    member = {
        "client_id": "app",
        "instance_id": None,
        "host": "/10.0.0.1",
        "partitions": {"orders": [0, 1, 2, 5]},
        "partitions_known": True,
        "gained": {"orders": [5]},
        "lost": {"orders": [7]},
        "topics": ["orders"],
    }
    document = {
        "kind": "rebalance",
        "at": 0,
        "generation": 7,
        "why": ["member-joined", "evicted"],
        "settled": True,
        "size": 1,
        "members": {"app-1": member},
        "joined": ["app-1"],
        "left": ["app-0"],
        "barrier_ms": 1_200,
        "stopped_ms": 1_250,
        "moved": 1,
    }
    return document | changes


def test_a_table_puts_words_to_the_left_and_numbers_to_the_right():
    lines = table(("TOPIC", "LAG"), [("a", 1), ("orders", 1_000), ("b", None)])

    assert lines == ["TOPIC    LAG", "a          1", "orders  1000", "b          -"]


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([0, 2, 3, 9], "0,2-3,9")]
)
def test_runs_of_partitions_are_written_as_spans(numbers: list[int], text: str):
    assert spans(numbers) == text


def test_a_group_is_told_in_a_line():
    assert (
        headline(group_document(a_group(a_member())))
        == "group readers: Stable, 1 member, range; coordinator 127.0.0.1:9092"
    )


def test_a_member_shows_what_it_owns_and_what_cannot_be_read():
    lines = member_lines(group_document(a_group(a_member(), a_member(member_id="app-2", partitions=None))))

    assert lines[1].split() == ["app-1", "app", "/127.0.0.1", "-", "orders", "0"]
    assert lines[2].endswith("unknown: cannot be read")


def test_a_partition_shows_what_is_committed_and_how_far_that_is_behind():
    lines = partitions(a_group(a_member()), {ORDERS_0: 4, ORDERS_1: 5}, {ORDERS_0: 10, ORDERS_1: 3})

    assert lines[1].split() == ["orders", "0", "4", "10", "6", "app", "/127.0.0.1", "app-1"]
    assert lines[2].split() == ["orders", "1", "5", "3", "0", "-", "-", "-"]


def test_a_group_as_json_names_the_owner_of_each_partition():
    document = group_document(a_group(a_member()), GroupOffsets({ORDERS_1: 4}, {ORDERS_0: 2, ORDERS_1: 9}))

    assert document["partitions"] == [
        {
            "topic": "orders",
            "partition": 0,
            "committed": None,
            "end": 2,
            "lag": None,
            "member_id": "app-1",
        },
        {"topic": "orders", "partition": 1, "committed": 4, "end": 9, "lag": 5, "member_id": None},
    ]


QUERY = "coterie-sink-1f0c9a52-0b7e-4f0e-8d43-6a1f9b1c2d3e"


@pytest.mark.parametrize("name", [QUERY, f"{QUERY}-12"])
def test_a_group_that_commits_numbers_of_batches_has_no_lag_and_says_why(name: str):
    group = a_group()._replace(group_id=name)

    lines = partitions(group, {ORDERS_0: 4}, {ORDERS_0: 10})
    document = group_document(group, GroupOffsets({ORDERS_0: 4}, {ORDERS_0: 10}))

    assert lines[1].split() == ["orders", "0", "4", "-", "-", "-", "-", "-"]
    assert lines[-1].startswith("A Spark query has committed the numbers of its batches here")
    assert [(one["committed"], one["end"], one["lag"]) for one in document["partitions"]] == [(4, None, None)]


@pytest.mark.parametrize("name", ["coterie-sink", "coterie-sink-orders", f"{QUERY}-x", f"my-{QUERY}"])
def test_a_group_of_a_similar_name_has_its_lag(name: str):
    lines = partitions(a_group()._replace(group_id=name), {ORDERS_0: 4}, {ORDERS_0: 10})

    assert lines[1].split() == ["orders", "0", "4", "10", "6", "-", "-", "-"]
    assert len(lines) == 2


def test_a_move_tells_why_whom_and_between_which_states():
    (line,) = story_lines(a_move(reason="closed"))

    assert line.endswith('member-left: app-1 at /10.0.0.1 "closed" (Stable → PreparingRebalance)')


def test_a_rebalance_tells_its_causes_its_cost_and_what_everybody_gained_and_lost():
    first, cost, *rest = (line.strip() for line in story_lines(a_rebalance(), Cost(4, 1_200, 1)))

    assert first.endswith("generation 7 with 1 member because member-joined, evicted")
    assert cost == (
        "4 partitions stood still, up to 1,200 ms (1,250 ms until all had their assignments), 1 moved"
    )
    assert rest == ["joined app: orders 0-2,5 (+orders 5 -orders 7)", "left app-0"]


@pytest.mark.parametrize(
    ("changes", "cost"),
    [
        ({"state_before": None, "generation": 1}, "new group: nobody had worked before (1,200 ms to join)"),
        (
            {"state_before": "Empty", "generation": 1},
            "new group: nobody had worked before (1,200 ms to join)",
        ),
        (
            {"state_before": "Empty", "generation": 3},
            "the group was empty: nobody worked in it (1,200 ms to join)",
        ),
        ({"size": 0, "members": {}, "joined": []}, "group ended: nobody is left"),
    ],
)
def test_that_a_group_begins_or_ends_does_not_read_as_an_outage(changes: dict[str, Any], cost: str):
    _, told, *_ = (line.strip() for line in story_lines(a_rebalance(**changes)))

    assert told == cost


def test_members_that_come_back_to_an_empty_group_read_as_what_stood_still_meanwhile():
    """As `coterie history` counts it."""
    empty = a_rebalance(state_before="Empty", generation=3)
    _, told, *_ = (line.strip() for line in story_lines(empty, Cost(4, 5_645, 1)))

    assert told == "the group was empty: 4 partitions stood still, up to 5,645 ms (1,200 ms to join), 1 moved"
    _, told, *_ = (line.strip() for line in story_lines(empty, Cost(4, 5_645, 1, empty_ms=5_600)))
    assert told.startswith("the group was empty for 5,600 ms: 4 partitions stood still, up to 5,645 ms (")


def test_what_only_a_history_knows_is_said_where_a_member_was_silent():
    told = " ".join(
        line.strip() for line in story_lines(a_rebalance(why=["session-expired"]), Cost(4, 1_200, 1))
    )

    assert (
        "up to 1,200 ms (1,250 ms until all had their assignments; how long a member had been silent before,"
        " coterie history counts), 1 moved"
    ) in told


@pytest.mark.parametrize(
    ("missing", "words"),
    [(1, "generation 6 is not in the story: "), (3, "generations 4 to 6 are not in the story: ")],
)
def test_generations_that_are_not_in_the_story_are_named_where_they_would_stand(missing: int, words: str):
    _, told, *_ = (line.strip() for line in story_lines(a_rebalance(), Cost(4, 1_200, 1, missing=missing)))

    assert told.startswith(words)


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (Cost(), "no partition stood still (1,250 ms until all had their assignments), 0 moved"),
        (None, "1,250 ms until all had their assignments, 1 partition moved"),
    ],
)
def test_a_rebalance_reads_so_in_which_nothing_stood_still_or_that_does_not_say(
    cost: Cost | None, words: str
):
    _, told, *_ = (line.strip() for line in story_lines(a_rebalance(moved=1), cost))

    assert told == words


def test_members_of_one_client_id_are_told_apart_by_a_short_member_id():
    member = a_rebalance()["members"]["app-1"] | {"gained": {}, "lost": {}}
    ids = [f"app-{part}1a2b-0000-4000-8000-{'0' * 12}" for part in ("8ce6", "9df7", "aaaa")]
    both = {ids[0]: member, ids[1]: member | {"partitions": {"orders": [7]}}}

    lines = story_lines(a_rebalance(members=both, joined=[ids[1]], left=[ids[2]]))

    assert [line.strip() for line in lines[2:]] == [
        "app-8ce6…: orders 0-2,5", "joined app-9df7…: orders 7", "left app-aaaa…"
    ]  # fmt: skip


def test_a_long_line_of_a_story_is_wrapped_between_words():
    many = {"orders": [*range(0, 200, 2)], "com.example.events": [1, 3]}
    member = a_rebalance()["members"]["app-1"] | {"partitions": many, "gained": many}
    lines = story_lines(a_rebalance(members={"app-1": member}))
    (first, *more) = story_lines(a_move(reason="so long, " * 20))

    assert max(map(len, [first, *more])) <= 160
    assert all(" 0,2,4,6," in line or len(line) <= 160 for line in lines), "a name is never broken"
    assert "".join("".join([first, *more]).split()).count("solong,") == 20


def test_what_could_not_be_read_is_said_to_be_unknown():
    member = a_rebalance()["members"]["app-1"]
    unread = member | {"partitions": {}, "partitions_known": False, "gained": {}, "lost": {}, "topics": None}

    lines = story_lines(a_rebalance(members={"app-1": unread}, joined=[]))

    assert lines[2].strip() == (
        "app: assignment unknown: cannot be read; subscription unknown: cannot be read"
    )


def test_a_kind_of_record_that_is_not_known_is_not_hidden():
    assert story_lines({"kind": "poem", "at": 0})[0].endswith("poem: a record of a newer broker")
