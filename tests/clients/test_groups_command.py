"""`coterie groups` against a running broker with real members."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import coterie.testing
from coterie.cli import main
from unit.observe.story_schema import problems

from .adapters import CLIENTS, Membership
from .running import Member, shared, wait_until

NewTopic = Callable[..., str]
CONFLUENT = CLIENTS[0]
Command = Callable[..., "Ended"]


class Ended:
    """How a command ended, and what it said."""

    def __init__(self, code: object, said: str, complained: str) -> None:
        self.code, self.said, self.complained = code, said, complained

    @property
    def json(self) -> Any:
        """What it said, as one JSON value."""
        return json.loads(self.said)


@pytest.fixture
def groups(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> Command:
    """A function that runs `coterie groups` with the words given."""

    def run(*words: str, broker: str = bootstrap) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main(["groups", *words, "--bootstrap", broker])
        return Ended(ended.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def membership(new_topic: NewTopic) -> Membership:
    return Membership(topics=(new_topic(partitions=4),), group=f"group-{uuid.uuid4()}")


@pytest.fixture
def two(bootstrap: str, membership: Membership) -> Iterator[list[Member]]:
    """Two members at work, the second of them static."""
    static = Membership(topics=membership.topics, group=membership.group, instance="i-2")
    members = [Member(CONFLUENT, bootstrap, membership)]
    try:
        wait_until(lambda: shared(members, [4]), of=members)
        members.append(Member(CONFLUENT, bootstrap, static))
        wait_until(lambda: shared(members, [2, 2]), of=members)
        yield members
    finally:
        for member in members:
            member.stop()


def test_a_group_is_listed_and_described(groups: Command, membership: Membership, two: list[Member]) -> None:
    listed = groups("list", "--output", "json").json
    described = groups("describe", membership.group, "--output", "json").json
    in_words = groups("describe", membership.group, "--members").said

    assert [one["state"] for one in listed if one["group_id"] == membership.group] == ["Stable"]
    assert (described["state"], described["protocol"]) == ("Stable", "range")
    assert sorted(member["instance_id"] or "" for member in described["members"]) == ["", "i-2"]
    assert [one["partition"] for one in described["partitions"]] == [0, 1, 2, 3]
    assert all(one["member_id"] for one in described["partitions"])
    assert "Stable, 2 members, range" in in_words
    assert membership.topics[0] in in_words
    assert membership.group in groups("list").said


def test_a_static_member_is_evicted_by_its_instance_id_and_the_story_says_so(
    groups: Command, membership: Membership, two: list[Member]
) -> None:
    ended = groups("evict", membership.group, "--instance", "i-2", "--reason", "maintenance")
    wait_until(lambda: two[0].assigned >= 3, of=two[:1])

    assert (ended.code, ended.said) == (
        0,
        f"the member with instance id i-2 is out of group {membership.group}\n",
    )
    story = story_with(groups, membership.group, lambda one: "evicted" in one["why"] and is_rebalance(one))
    evicted = next(record for record in story if record["kind"] == "move" and record["why"] == "evicted")
    assert evicted["who"][0]["instance_id"] == "i-2"
    assert evicted["reason"].endswith("maintenance")


def test_a_dynamic_member_is_evicted_by_its_id_and_may_come_back(
    groups: Command, membership: Membership, two: list[Member]
) -> None:
    described = groups("describe", membership.group, "--output", "json").json
    gone = next(member["member_id"] for member in described["members"] if not member["instance_id"])

    ended = groups("evict", membership.group, "--member", gone, "--output", "json")

    assert ended.json["evicted"] is True
    story_with(
        groups,
        membership.group,
        lambda one: one["why"] == "evicted" and one["who"][0]["member_id"] == gone,
    )
    wait_until(lambda: two[0].assigned >= 3 and shared(two, [2, 2]), of=two)


def is_rebalance(record: dict[str, Any]) -> bool:
    return bool(record["kind"] == "rebalance")


def story_with(groups: Command, group: str, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Return the story once it has the record that is wanted: it is told half a second late."""
    story: list[dict[str, Any]] = []

    def told() -> bool:
        story[:] = stories(groups("story", group, "--output", "json"))
        return any(map(wanted, story))

    wait_until(told)
    return story


def stories(ended: Ended) -> list[dict[str, Any]]:
    """Return the records of a story, each of which is as the schema says."""
    records = [json.loads(line) for line in ended.said.splitlines()]
    for record in records:
        assert problems(record) == []
    return records


def test_a_story_is_told_in_words_and_no_more_of_it_than_is_wanted(
    groups: Command, membership: Membership, two: list[Member]
) -> None:
    story_with(groups, membership.group, lambda one: is_rebalance(one) and one["generation"] == 2)
    whole = groups("story", membership.group).said
    last = groups("story", membership.group, "--last", "1").said

    assert whole.count("member-joined: ") == 2
    assert "generation 2 with 2 members because member-joined" in last
    assert "generation 1" not in last


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["describe", "nowhere"], "there is no classic group nowhere"),
        (["evict", "nowhere", "--member", "x"], "group nowhere has no member with member id x"),
        (["evict", "nowhere", "--instance", "x"], "group nowhere has no member with instance id x"),
    ],
)
def test_what_is_not_there_is_one_sentence(groups: Command, words: list[str], sentence: str) -> None:
    ended = groups(*words)

    assert (ended.code, ended.said) == (1, "")
    assert ended.complained.startswith(f"coterie: {sentence}")
    assert ended.complained.count("\n") == 1


def test_nothing_told_of_a_group_is_one_sentence(
    groups: Command, membership: Membership, two: list[Member]
) -> None:
    ended = groups("story", "nobody-here")

    assert ended.code == 1
    assert ended.complained.startswith("coterie: nothing is told of a group nobody-here")


def test_to_evict_nobody_makes_no_sense(groups: Command) -> None:
    assert groups("evict", "g").code == 2
    assert groups("evict", "g", "--member", "x", "--instance", "y").code == 2


def test_a_broker_that_is_not_there_is_one_sentence(groups: Command) -> None:
    ended = groups("list", broker="127.0.0.1:1")

    assert ended.code == 1
    assert ended.complained.startswith("coterie: no connection to 127.0.0.1:1")


def test_a_broker_that_keeps_no_story_says_what_to_do(groups: Command) -> None:
    with coterie.testing.broker({"coterie.story.enable": "false"}) as broker:
        ended = groups("story", "g", broker=broker.bootstrap)

    assert ended.code == 1
    assert "has no topic __group_story" in ended.complained
    assert "coterie.story.enable" in ended.complained
