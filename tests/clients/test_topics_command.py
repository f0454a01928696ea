"""`coterie topics` against a running broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from coterie.base.ids import TopicPartition
from coterie.client import BlockingConsumer

from .commands import Command, runner

NewTopic = Callable[..., str]


@pytest.fixture
def topics(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> Command:
    """A function that runs `coterie topics` with the words given."""
    return runner("topics", bootstrap, capsys)


@pytest.fixture
def name() -> str:
    return f"topic-{uuid.uuid4()}"


def layout(topics: Command, name: str) -> list[list[int]]:
    """Return the replicas of each partition of a topic."""
    (described,) = topics("describe", name, "--output", "json").json
    return [one["replicas"] for one in described["partitions"]]


def test_a_topic_lives(topics: Command, name: str) -> None:
    created = topics("create", name, "--partitions", "2", "--config", "retention.ms=600000")
    grown = topics("add-partitions", name, "--total", "3")
    described = topics("describe", name).said
    listed = topics("list", "--output", "json").json
    deleted = topics("delete", name)

    assert created.said == f"topic {name} is created with 2 partitions, replication factor 1\n"
    assert grown.said == f"topic {name} has 3 partitions now\n"
    assert "retention.ms=600000" in described
    assert described.splitlines()[-3].split() == ["0", "1", "1", "1"]
    assert [one["partitions"] for one in listed if one["topic"] == name] == [3]
    assert deleted.said == f"topic {name} is deleted\n"
    assert topics("describe", name).code == 1


def test_a_misspelt_setting_is_refused_with_the_one_that_was_meant(topics: Command, name: str) -> None:
    refused = topics("create", name, "--config", "retension.ms=600000")

    assert refused.code == 1
    assert "retension.ms (did you mean retention.ms?)" in refused.complained


def test_replicas_are_placed_by_hand(topics: Command, name: str) -> None:
    topics("create", name, "--replica-assignment", "1,1")
    topics("add-partitions", name, "--total", "3", "--replica-assignment", "1")

    assert layout(topics, name) == [[1], [1], [1]]


def test_replicas_are_placed_by_the_command_over_the_clusters_brokers(topics: Command, name: str) -> None:
    created = topics("create", name, "--partitions", "2", "--placement", "classic", "--output", "json")
    grown = topics("add-partitions", name, "--total", "4", "--placement", "striped", "--output", "json")

    assert created.json == {"topic": name, "created": True, "partitions": 2, "replication_factor": 1}
    assert grown.json == {"topic": name, "partitions": 4}
    assert layout(topics, name) == [[1]] * 4


def test_a_dry_run_asks_the_cluster_and_changes_nothing(
    topics: Command, name: str, new_topic: NewTopic
) -> None:
    there = new_topic(partitions=2)

    created = topics("create", name, "--partitions", "2", "--dry-run", "--output", "json")
    grown = topics("add-partitions", there, "--total", "3", "--dry-run", "--output", "json")

    assert created.json["replica_assignment"] == "1,1"
    assert [one["partition"] for one in grown.json["partitions"]] == [2]
    assert topics("describe", name).code == 1
    assert len(layout(topics, there)) == 2


def test_what_is_there_or_not_may_be_no_mistake(topics: Command, name: str, new_topic: NewTopic) -> None:
    there = new_topic()

    assert topics("create", there, "--if-not-exists").said == f"topic {there} is there already\n"
    assert topics("delete", name, "--if-exists").said == "there is nothing to delete\n"
    assert topics("delete", there, name).code == 1
    assert layout(topics, there) == [[1]]  # all or none


@pytest.mark.ours("Apache Kafka deletes its internal topics when somebody says so")
def test_what_was_deleted_before_a_topic_that_cannot_be_is_told(
    topics: Command, bootstrap: str, new_topic: NewTopic
) -> None:
    there = new_topic()
    with BlockingConsumer(bootstrap_servers=bootstrap, group_id=there) as consumer:
        consumer.assign([(there, 0)])
        consumer.commit({TopicPartition(there, 0): 0})  # now there is a topic that nobody may delete

    ended = topics("delete", there, "__consumer_offsets")

    assert (ended.code, ended.said) == (1, f"topic {there} is deleted\n")
    assert "__consumer_offsets" in ended.complained


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["create", "t", "--replication-factor", "3"], "only 1 broker"),
        (["create", "t", "--replica-assignment", "1,7"], "broker 7, but no such broker is registered"),
        (["create", "t", "--replica-assignment", "1;2"], "is no broker id"),
        (["create", "no good"], "no good"),
        (["describe", "nowhere"], "there is no topic nowhere"),
        (["add-partitions", "nowhere", "--total", "3"], "there is no topic nowhere"),
    ],
)
def test_a_refusal_is_one_sentence(topics: Command, words: list[str], sentence: str) -> None:
    ended = topics(*words)

    assert (ended.code, ended.said) == (1, "")
    assert sentence in ended.complained
    assert ended.complained.count("\n") == 1
