"""In which order OffsetCommit, OffsetDelete and OffsetFetch answer: as a live Apache Kafka 4.3.1 does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from admin_rig import part
from rig import Client, Rig

OFFSET_COMMIT, OFFSET_FETCH, CREATE_TOPICS, OFFSET_DELETE = 8, 9, 19, 47
UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID = 3, 100


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Client]:
    broker = Rig(tmp_path)
    topic = part(CREATE_TOPICS, 7, "CreatableTopic", name="t", num_partitions=2, replication_factor=1)
    client = broker.client()
    client.ask(CREATE_TOPICS, 7, topics=(topic,))
    yield client
    broker.close()


def commit(rig: Client, *topics: tuple[str, tuple[int, ...]], version: int = 9) -> list[Any]:
    asked = tuple(
        part(
            OFFSET_COMMIT,
            version,
            "OffsetCommitRequestTopic",
            name=name,
            partitions=tuple(
                part(OFFSET_COMMIT, version, "OffsetCommitRequestPartition", partition_index=index)
                for index in indexes
            ),
        )
        for name, indexes in topics
    )
    response = rig.ask(OFFSET_COMMIT, version, group_id="g", topics=asked)
    return codes_of(response)


def codes_of(response: Any) -> list[Any]:
    return [(t.name, [(p.partition_index, p.error_code) for p in t.partitions]) for t in response.topics]


def test_a_commit_answers_what_does_not_exist_first_and_each_topic_once(rig):
    answered = commit(rig, ("t", (0, 9)), ("absent", (0,)), ("t", (1,)))

    assert answered == [("t", [(9, UNKNOWN_TOPIC), (0, 0), (1, 0)]), ("absent", [(0, UNKNOWN_TOPIC)])]


def test_a_commit_of_what_exists_is_answered_as_it_was_asked(rig):
    assert commit(rig, ("t", (1, 0)), ("t", (1,))) == [("t", [(1, 0), (0, 0)]), ("t", [(1, 0)])]


def test_a_topic_without_partitions_is_answered_only_if_nobody_knows_it(rig):
    assert commit(rig, ("t", ()), ("absent", ()), ("t", (0,))) == [("absent", []), ("t", [(0, 0)])]


def test_an_empty_name_is_a_name_that_no_topic_has(rig):
    assert commit(rig, ("", (0,))) == [("", [(0, UNKNOWN_TOPIC)])]


def test_a_deletion_answers_in_the_same_order(rig):
    commit(rig, ("t", (0, 1)))
    asked = tuple(
        part(
            OFFSET_DELETE,
            0,
            "OffsetDeleteRequestTopic",
            name=name,
            partitions=tuple(
                part(OFFSET_DELETE, 0, "OffsetDeleteRequestPartition", partition_index=index)
                for index in indexes
            ),
        )
        for name, indexes in (("t", (0, 9)), ("absent", (0,)), ("t", (1,)))
    )

    response = rig.ask(OFFSET_DELETE, 0, group_id="g", topics=asked)

    assert codes_of(response) == [
        ("t", [(9, UNKNOWN_TOPIC), (0, 0), (1, 0)]),
        ("absent", [(0, UNKNOWN_TOPIC)]),
    ]


def test_a_fetch_by_ids_answers_the_topics_that_it_knows_first(rig):
    commit(rig, ("t", (0,)))
    known = rig.rig.node.topics.get("t").topic_id
    asked = tuple(
        part(OFFSET_FETCH, 10, "OffsetFetchRequestTopics", topic_id=topic_id, partition_indexes=(0,))
        for topic_id in (UUID(int=99), known)
    )
    group = part(OFFSET_FETCH, 10, "OffsetFetchRequestGroup", group_id="g", topics=asked)

    (answered,) = rig.ask(OFFSET_FETCH, 10, groups=(group,)).groups

    found = [(t.topic_id, t.partitions[0].error_code) for t in answered.topics]
    assert found == [(known, 0), (UUID(int=99), UNKNOWN_TOPIC_ID)]
