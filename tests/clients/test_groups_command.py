"""`coterie groups` against a running broker with real members."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from coterie.base.ids import TopicPartition
from coterie.cli import cli
from coterie.client import Admin
from coterie.client.blocking.consumer import BlockingConsumer
from coterie.story.reader import STORY_TOPIC, Bounds, NoStory, StoryReader
from unit.story.story_schema import problems

from .adapters import CLIENTS, Membership, Message
from .asynchronous import run
from .brokers import broker
from .commands import Command, Ended, runner
from .running import Member, shared, wait_until
from .soon import soon

NewTopic = Callable[..., str]
CONFLUENT = CLIENTS[0]
PLACE = TopicPartition(STORY_TOPIC, 0)


@pytest.fixture
def groups(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> Command:
    """A function that runs `coterie groups` with the words given."""
    return runner("groups", bootstrap, capsys)


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
    members = groups("members", membership.group, "--output", "json").json

    assert [one["state"] for one in listed if one["group_id"] == membership.group] == ["Stable"]
    assert (described["state"], described["protocol"]) == ("Stable", "range")
    assert sorted(member["instance_id"] or "" for member in described["members"]) == ["", "i-2"]
    assert [one["partition"] for one in described["partitions"]] == [0, 1, 2, 3]
    assert all(one["member_id"] for one in described["partitions"])
    assert members["members"] == described["members"]
    assert groups("members", membership.group).said == in_words
    assert "Stable, 2 members, range" in in_words
    assert membership.topics[0] in in_words
    assert membership.group in groups("list").said


def test_all_groups_are_shown_at_a_glance_and_one_with_hosts_and_times(
    groups: Command, bootstrap: str, membership: Membership, two: list[Member]
) -> None:
    topic, behind = membership.topics[0], f"{membership.group}-behind"
    CONFLUENT.produce(bootstrap, [Message(topic=topic, partition=0, value=b"v") for _ in range(5)])
    with BlockingConsumer(bootstrap_servers=bootstrap, group_id=behind, enable_auto_commit=False) as consumer:
        consumer.assign([(topic, 0)])
        consumer.commit({TopicPartition(topic, 0): 2})

    shown = groups("--output", "json").json
    found = {one["group"]: one for one in shown}
    described = groups("describe", "--group", behind, "--last-commit", "--output", "json").json
    in_words = groups("describe", behind, "--last-commit").said

    at_work, idle = found[membership.group], found[behind]
    assert (at_work["state"], at_work["members"], at_work["partitions"]) == ("Stable", 2, 4)
    assert (idle["state"], idle["members"], idle["total_lag"]) == ("Empty", 0, 3)
    assert [one["total_lag"] or 0 for one in shown] == sorted(
        (one["total_lag"] or 0 for one in shown), reverse=True
    )
    assert groups("overview").said == groups().said
    assert any(behind in line and "Empty" in line for line in groups().said.splitlines())
    assert abs(described["partitions"][0]["committed_at_ms"] / 1000 - time.time()) < 600
    assert described["total_lag"] == 3
    assert "; total lag 3\n" in in_words
    assert re.search(r"  20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z  ", in_words)
    assert "/127.0.0.1" in groups("describe", membership.group).said
    assert "name the group once" in groups("describe", "a", "--group", "b").complained


def test_a_static_member_is_evicted_by_its_instance_id(
    groups: Command, membership: Membership, two: list[Member]
) -> None:
    ended = groups("evict", membership.group, "--instance", "i-2", "--reason", "maintenance")

    assert (ended.code, ended.said) == (
        0,
        f"the member with instance id i-2 is out of group {membership.group}; "
        "if its client is still running, it joins again by itself\n",
    )
    wait_until(lambda: two[0].assigned >= 3, of=two[:1])


def test_a_dynamic_member_is_evicted_by_its_id_and_may_come_back(
    groups: Command, membership: Membership, two: list[Member]
) -> None:
    ended = groups("evict", membership.group, "--member", dynamic_of(groups, membership), "--output", "json")

    assert ended.json["evicted"] is True
    wait_until(lambda: two[0].assigned >= 3 and shared(two, [2, 2]), of=two)


def dynamic_of(groups: Command, membership: Membership) -> str:
    """Return the member id of the one member that is not static."""
    described = groups("describe", membership.group, "--output", "json").json
    return next(member["member_id"] for member in described["members"] if not member["instance_id"])


BATCHES = "coterie-sink-1f0c9a52-0b7e-4f0e-8d43-6a1f9b1c2d3e-3"
NO_STORY = pytest.mark.ours("Apache Kafka keeps no story of its groups")


@NO_STORY
def test_the_story_says_who_was_evicted(groups: Command, membership: Membership, two: list[Member]) -> None:
    gone = dynamic_of(groups, membership)
    groups("evict", membership.group, "--member", gone)
    wait_until(lambda: two[0].assigned >= 3 and shared(two, [2, 2]), of=two)
    groups("evict", membership.group, "--instance", "i-2", "--reason", "maintenance")

    story_with(
        groups,
        membership.group,
        lambda one: one["why"] == "evicted" and one["who"][0]["member_id"] == gone,
    )
    story = story_with(groups, membership.group, lambda one: bool(instances_evicted(one)))
    (evicted,) = filter(instances_evicted, story)
    assert instances_evicted(evicted) == ["i-2"]
    assert evicted["reason"].endswith("maintenance")


def instances_evicted(record: dict[str, Any]) -> list[str]:
    """Return the instance ids of those whose eviction a record tells of."""
    if (record["kind"], record["why"]) != ("move", "evicted"):
        return []
    return [one["instance_id"] for one in record["who"] if one["instance_id"]]


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
    """Return the records of a story, each of which is as the schema says, without what they cost."""
    records = [json.loads(line) for line in ended.said.splitlines()]
    for record in records:
        record.pop("cost", None)
        assert problems(record) == []
    return records


@NO_STORY
def test_a_story_is_told_in_words_and_no_more_of_it_than_is_wanted(
    groups: Command, membership: Membership, two: list[Member]
) -> None:
    story_with(groups, membership.group, lambda one: is_rebalance(one) and one["generation"] == 2)
    whole = groups("story", membership.group).said
    last = groups("story", membership.group, "--last", "1").said

    assert whole.count("member-joined: ") == 2
    assert "generation 2 with 2 members because member-joined" in last
    assert "generation 1" not in last


@NO_STORY
def test_who_reads_a_story_from_where_it_is_there_no_more_is_told_it_from_where_it_begins(
    bootstrap: str, groups: Command, membership: Membership, two: list[Member]
) -> None:
    """Found by trying: `--follow` of a broker that had begun anew ended with OFFSET_OUT_OF_RANGE."""
    told = story_with(groups, membership.group, lambda one: is_rebalance(one) and one["generation"] == 2)

    async def read() -> list[dict[str, Any]]:
        async with Admin(bootstrap) as admin:
            reader = StoryReader(admin.cluster, membership.group, {PLACE: Bounds(1 << 40, 1 << 41)})
            return [one async for one in reader.until_now()]

    assert run(read())[: len(told)] == told


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


def test_the_nearest_name_is_hinted_at(
    bootstrap: str, groups: Command, capsys: pytest.CaptureFixture[str], filled: str
) -> None:
    topics, group = runner("topics", bootstrap, capsys), f"billing-{uuid.uuid4()}"
    groups("reset", group, "--topic", filled, "--to-latest", "--execute")

    for ended, near in (
        (groups("describe", group[:-1]), group),
        (groups("members", group[1:]), group),
        (groups("delete", group[1:]), group),
        (groups("reset", group, "--topic", f"{filled}x:0", "--to-latest"), filled),
        (topics("describe", f"{filled}x"), filled),
        (topics("offsets", f"{filled}x:0"), filled),
    ):
        assert ended.code == 1
        assert ended.complained.endswith(f"; did you mean {near}?\n")
    assert "did you mean" not in groups("describe", "quite-another").complained
    assert "did you mean" not in groups("reset", group, "--topic", f"{filled}:99", "--to-latest").complained


def test_the_shell_completes_names_of_groups_and_topics(
    bootstrap: str, groups: Command, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = f"audit-{uuid.uuid4()}"
    groups("reset", group, "--topic", filled, "--to-latest", "--execute")
    monkeypatch.setenv("COTERIE_BOOTSTRAP", bootstrap)

    def completed(words: list[str], begun: str) -> list[str]:
        return [
            one.value
            for one in ShellComplete(cli, {}, "coterie", "_COTERIE_COMPLETE").get_completions(words, begun)
        ]

    assert completed(["groups", "describe"], group[:-3]) == [group]
    assert completed(["groups", "reset", "--group"], group[:-3]) == [group]
    assert completed(["topics", "describe"], filled[:-3]) == [filled]
    assert completed(["topics", "delete", "--bootstrap", "127.0.0.1:1"], "") == []


@NO_STORY
def test_nothing_told_of_a_group_is_one_sentence(
    groups: Command, membership: Membership, two: list[Member]
) -> None:
    ended, misspelt = groups("story", "nobody-here"), groups("story", f"{membership.group}x")

    assert ended.code == 1
    assert ended.complained.startswith("coterie: there is no story of a group nobody-here")
    assert misspelt.complained.endswith(f"; did you mean {membership.group}?\n")


@NO_STORY
def test_a_group_that_is_there_and_of_which_nothing_is_told_is_said_to_be_there(
    groups: Command, two: list[Member], filled: str
) -> None:
    group = f"committed-{uuid.uuid4()}"
    groups("reset", group, "--topic", filled, "--to-latest", "--execute")

    ended = groups("story", group)

    assert ended.code == 1
    assert ended.complained.startswith(f"coterie: nothing is told of group {group} yet: ")


def test_to_evict_nobody_makes_no_sense(groups: Command) -> None:
    assert groups("evict", "g").code == 2
    assert groups("evict", "g", "--member", "x", "--instance", "y").code == 2


def test_a_broker_that_is_not_there_is_one_sentence(groups: Command) -> None:
    ended = groups("list", broker="127.0.0.1:1")

    assert ended.code == 1
    assert ended.complained.startswith("coterie: no connection to 127.0.0.1:1")


def test_a_broker_that_keeps_no_story_says_what_to_do(groups: Command) -> None:
    with broker({"coterie.story.enable": "false"}) as running:
        ended = groups("story", "g", broker=running.bootstrap)

    assert ended.code == 1
    assert "has no topic __group_story" in ended.complained
    assert "coterie.story.enable" in ended.complained


@NO_STORY
def test_a_story_whose_topic_has_several_partitions_is_read_whole() -> None:
    with broker({"coterie.story.num.partitions": 3}) as running:
        CONFLUENT.produce(running.bootstrap, [Message(topic="t", value=b"x", partition=0)])
        membership = Membership(topics=("t",))
        member = Member(CONFLUENT, running.bootstrap, membership)
        wait_until(lambda: bool(member.owns), of=[member])
        member.stop()

        async def read() -> list[dict[str, Any]]:
            async with Admin(running.bootstrap) as admin:
                try:
                    reader = await StoryReader.open(admin.cluster, membership.group)
                except NoStory:  # the broker makes the topic soon after the first rebalance
                    return []
                return [one async for one in reader.until_now()]

        soon(lambda: "member-left" in json.dumps(run(read())))
        told = run(read())

    assert [one["at"] for one in told] == sorted(one["at"] for one in told)
    assert len(told) > 1


# -- offsets


@pytest.fixture
def filled(bootstrap: str, new_topic: NewTopic) -> str:
    """A topic of two partitions with ten records each."""
    topic = new_topic(partitions=2)
    CONFLUENT.produce(bootstrap, [Message(topic=topic, value=b"x", partition=one) for one in (0, 1) * 10])
    return topic


def committed(groups: Command, group: str) -> list[tuple[int, int, int]]:
    """Return partition, offset and lag of what a group has committed."""
    described = groups("describe", group, "--output", "json").json["partitions"]
    return [(one["partition"], one["committed"], one["lag"]) for one in described]


def test_a_reset_is_shown_first_and_done_when_told_to(groups: Command, filled: str) -> None:
    group = f"group-{uuid.uuid4()}"

    shown = groups("reset", group, "--topic", filled, "--to-offset", "4")
    done = groups("reset", group, "--topic", f"{filled}:1", "--to-offset", "400", "--execute")

    assert shown.said.splitlines()[1].split() == [filled, "0", "-", "4"]
    assert "nothing is changed yet; add --execute" in shown.said
    assert f"there is no group {group} yet; --execute would create it" in shown.complained
    assert "400 is past the end" in done.said
    assert f"group {group} is reset" in done.said
    assert f"there was no group {group}; it is created" in done.complained
    misspelt = groups("reset", group[:-1], "--topic", filled, "--to-offset", "4")
    assert f"did you mean {group}?" in misspelt.complained
    assert groups("reset", group, "--topic", filled, "--to-offset", "4").complained == ""
    assert committed(groups, group) == [(1, 10, 0)]
    assert groups("list", "--state", "empty", "--output", "json").said.count(group) == 1
    assert group not in groups("list", "--state", "stable").said


FORMS = [
    (["--to-earliest"], 0),
    (["--to-latest"], 10),
    (["--to-current"], 5),
    (["--to-offset", "7"], 7),
    (["--shift-by", "-2"], 3),
    (["--to-datetime", "2020-01-01T00:00:00.000"], 0),
    (["--to-datetime", "1969-12-31T23:59:59.999"], 0),
    (["--by-duration", "PT1H"], 0),
]


def test_each_form_of_kafkas_tool_resets(groups: Command, filled: str) -> None:
    group = f"group-{uuid.uuid4()}"
    for form, offset in FORMS:
        groups("reset", group, "--topic", filled, "--to-offset", "5", "--execute")

        ended = groups("reset", group, "--all-topics", *form, "--execute", "--output", "json")

        assert [(one["before"], one["after"]) for one in ended.json["partitions"]] == [(5, offset)] * 2, form
        assert committed(groups, group) == [(0, offset, 10 - offset), (1, offset, 10 - offset)]


def test_what_was_exported_can_be_read_again(groups: Command, filled: str, tmp_path: Path) -> None:
    group, file = f"group-{uuid.uuid4()}", tmp_path / "offsets.csv"
    file.write_text(groups("reset", group, "--topic", filled, "--to-offset", "4", "--export").said)

    ended = groups("reset", group, "--from-file", str(file), "--execute")

    assert (ended.code, file.read_text()) == (0, f"{filled},0,4\n{filled},1,4\n")
    assert committed(groups, group) == [(0, 4, 6), (1, 4, 6)]


def test_offsets_and_then_the_group_are_deleted(groups: Command, filled: str) -> None:
    group = f"group-{uuid.uuid4()}"
    groups("reset", group, "--topic", filled, "--to-latest", "--execute")

    dropped = groups("delete-offsets", group, "--topic", f"{filled}:0")
    left = committed(groups, group)
    deleted = groups("delete", group, "--output", "json")

    assert dropped.said == f"group {group} has no offsets any more for {filled} 0\n"
    assert left == [(1, 10, 0)]
    assert deleted.json == {"deleted": [group]}
    assert groups("describe", group).code == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["reset", "g", "--topic", "t"], "say where to, in one way: --to-earliest, --to-latest"),
        (["reset", "g", "--topic", "t", "--to-latest", "--shift-by", "1"], "say where to, in one way"),
        (["reset", "g", "--to-latest"], "say whose offsets"),
        (["reset", "g", "--to-latest", "--all-topics", "--topic", "t"], "say whose offsets"),
    ],
)
def test_a_reset_says_where_to_and_whose(groups: Command, words: list[str], sentence: str) -> None:
    ended = groups(*words)

    assert ended.code == 2
    assert sentence in ended.complained


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["reset", "g", "--all-topics", "--to-latest"], "group g has committed nothing"),
        (["reset", "g", "--topic", "nowhere", "--to-latest"], "there is no topic nowhere"),
        (["reset", "g", "--from-file", "/nowhere"], "cannot read /nowhere: No such file"),
        (["reset", "g", "--topic", "t", "--by-duration", "soon"], "'soon' is no duration"),
        (["delete", "nowhere"], "there is no classic group nowhere"),
        (["reset", BATCHES, "--all-topics", "--to-latest"], "a Spark sink notes there what batches it has"),
    ],
)
def test_a_mistake_about_offsets_is_one_sentence(groups: Command, words: list[str], sentence: str) -> None:
    ended = groups(*words)

    assert (ended.code, ended.said) == (1, "")
    assert sentence in ended.complained
    assert ended.complained.count("\n") == 1


def test_a_group_with_members_is_not_reset_nor_deleted(
    groups: Command, membership: Membership, two: list[Member]
) -> None:
    for words in (
        ["reset", membership.group, "--topic", membership.topics[0], "--to-latest"],
        ["delete", membership.group],
        ["delete-offsets", membership.group, "--topic", membership.topics[0]],
    ):
        ended = groups(*words)

        assert ended.code == 1
        assert "stop" in ended.complained
