"""The story of the group, in the words of the terminal and the summary."""

from __future__ import annotations

from typing import Any

import pytest
from job_runs import START_MS, A, B, a_rebalance, a_story_record
from pipeline.watch.story import Names, because, rebalance_of


def test_members_are_called_by_their_client_ids():
    rebalance = rebalance_of(a_story_record(), Names(), topic="flights")

    assert rebalance.members == {A: (0, 1), B: (2, 3)}
    assert rebalance.joined == (B,)


def test_a_member_that_has_gone_is_still_known_by_name():
    names = Names()
    record = a_story_record(
        generation=3,
        why=["session-expired"],
        members={"spark-a-1": {"client_id": A, "partitions": {"flights": [0, 1, 2, 3]}}},
        joined=[],
        left=["spark-b-1"],
    )

    rebalance_of(a_story_record(), names, topic="flights")
    rebalance = rebalance_of(record, names, topic="flights")

    assert rebalance.left == (B,)
    assert because(rebalance) == "spark-b fell silent"


def test_a_member_may_own_nothing_of_the_topic():
    record = a_story_record(members={"x-1": {"client_id": "x", "partitions": {"other": [1]}}}, joined=["x-1"])

    assert rebalance_of(record, Names(), topic="flights").members == {"x": ()}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"joined": [A]}, "spark-a joined"),
        ({"joined": [A, B]}, "spark-a and spark-b joined"),
        ({"left": [B], "why": ["member-left"]}, "spark-b left"),
        ({"left": [B], "joined": [A], "why": ["session-expired"]}, "spark-b fell silent, spark-a joined"),
        ({"left": [B], "why": ["rebalance-timed-out"]}, "spark-b did not come back in time"),
        ({"why": ["topics-changed"]}, "topics changed"),
    ],
)
def test_why_is_told_in_words(facts: dict[str, Any], words: str):
    assert because(a_rebalance(2, 12, 0.5, {}, **facts)) == words


def test_the_terminal_tells_the_time_without_work_that_the_summary_has():
    """From when members gave up what they had to the new generation, not to when the last one was told."""
    rebalance = rebalance_of(a_story_record(state_before="Stable"), Names(), topic="flights")

    assert rebalance.cost == "nobody worked for 400 ms, 2 partitions moved"


@pytest.mark.parametrize("before", [None, "Empty"])
def test_the_first_join_of_a_group_is_no_outage(before: str | None):
    rebalance = rebalance_of(a_story_record(state_before=before), Names(), topic="flights")

    assert (rebalance.stopped_ms, rebalance.moved) == (0, 0)
    assert rebalance.cost == "new group: nobody had worked before"


def test_the_summary_tells_what_the_story_tells():
    told = rebalance_of(a_story_record(), Names(), topic="flights").as_json(started_ms=START_MS)

    assert told == {
        "at": START_MS + 12_000,
        "seconds": 12.0,
        "generation": 2,
        "why": ["member-joined"],
        "because": "spark-b joined",
        "members": {A: [0, 1], B: [2, 3]},
        "joined": [B],
        "left": [],
        "stopped_ms": 500,
        "moved": 2,
    }
