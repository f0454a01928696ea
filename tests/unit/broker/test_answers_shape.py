"""Shapes of answers that a live Apache Kafka 4.3.1 showed: what stands twice, is left out or is wordless."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from admin_rig import part
from rig import Client, Rig

FIND_COORDINATOR, CREATE_TOPICS, INIT_PRODUCER_ID, ADD_PARTITIONS, DESCRIBE_PRODUCERS = 10, 19, 22, 24, 61
INVALID_TOPIC, UNKNOWN_TOPIC, NOT_ATTEMPTED = 17, 3, 55
GROUP, TRANSACTION, SHARE = 0, 1, 2


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    broker = Rig(tmp_path)
    topic = part(CREATE_TOPICS, 7, "CreatableTopic", name="t", num_partitions=2, replication_factor=1)
    asking = broker.client()
    asking.ask(CREATE_TOPICS, 7, topics=(topic,))
    yield asking
    broker.close()


def added(client: Client, *topics: tuple[str, tuple[int, ...]], verify: bool = False) -> list[Any]:
    """Return what AddPartitionsToTxn answers for one transaction: topics with (partition, code)."""
    begun = client.ask(INIT_PRODUCER_ID, 4, transactional_id="x", transaction_timeout=60_000)
    transaction = part(
        ADD_PARTITIONS,
        5,
        "AddPartitionsToTxnTransaction",
        transactional_id="x",
        producer_id=begun.producer_id,
        producer_epoch=begun.producer_epoch,
        verify_only=verify,
        topics=tuple(
            part(ADD_PARTITIONS, 5, "AddPartitionsToTxnTopic", name=name, partitions=partitions)
            for name, partitions in topics
        ),
    )
    (result,) = client.ask(ADD_PARTITIONS, 5, transactions=(transaction,)).results_by_transaction
    return [
        (topic.name, [(one.partition_index, one.partition_error_code) for one in topic.results_by_partition])
        for topic in result.topic_results
    ]


def test_partitions_that_join_are_answered_as_they_were_asked(client):
    assert added(client, ("t", (0, 0)), ("t", ())) == [("t", [(0, 0), (0, 0)]), ("t", [])]


def test_partitions_that_are_verified_are_answered_once(client):
    abortable = 120

    assert added(client, ("t", (1, 1)), ("t", ()), verify=True) == [("t", [(1, abortable)])]


def test_partitions_beside_one_that_does_not_exist_are_answered_once(client):
    assert added(client, ("t", (0, 0, 9)), ("t", ())) == [("t", [(0, NOT_ATTEMPTED), (9, UNKNOWN_TOPIC)])]


@pytest.mark.parametrize("name", ["", ".", "a b", "x" * 250])
def test_a_name_that_no_topic_can_have_is_told_apart_from_one_that_none_has(client, name):
    topics = tuple(
        part(DESCRIBE_PRODUCERS, 0, "TopicRequest", name=one, partition_indexes=(0,)) for one in (name, "no")
    )

    answered = client.ask(DESCRIBE_PRODUCERS, 0, topics=topics).topics

    assert [topic.partitions[0].error_code for topic in answered] == [INVALID_TOPIC, UNKNOWN_TOPIC]


@pytest.mark.parametrize(("kind", "worded"), [(SHARE, False), (7, True)])
def test_a_share_key_that_is_none_is_refused_without_a_word(client, kind, worded):
    (answered,) = client.ask(FIND_COORDINATOR, 6, key_type=kind, coordinator_keys=("g",)).coordinators

    assert answered.error_code == 42
    assert bool(answered.error_message) is worded
