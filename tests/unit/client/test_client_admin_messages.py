"""What an administrator's requests say, as a broker reads them."""

from __future__ import annotations

from typing import Any

import pytest
from admin_makers import ADMIN_MAKERS, ADMIN_RPCS

from coterie.base.codes import Code
from coterie.base.errors import Corrupt, RefusedBy
from coterie.client.admin import messages
from coterie.client.admin.messages import Resource
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import (
    decode_request,
    encode_request,
    read_request_header,
)
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)


def sent(key: int, version: int) -> Any:
    """Return a request as the broker reads it."""
    frame = encode_request(7, "me", ADMIN_MAKERS[key](version))[4:]
    return decode_request(read_request_header(frame), frame)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("Nothing was changed: a lock.", "topic t: Nothing was changed: a lock; the broker's log says more"),
        (None, "topic t; the broker cannot write to its disk, or to its database; look at its log"),
    ],
)
def test_where_a_broker_says_why_it_could_not_write_nothing_is_guessed(reason, said):
    """Found by a reviewer: behind a lock that somebody keeps stood that the broker could not write."""
    with pytest.raises(RefusedBy) as raised:
        messages.refused(Code.KAFKA_STORAGE_ERROR, reason, "topic t")

    assert str(raised.value) == f"KAFKA_STORAGE_ERROR: {said}"


def test_what_to_do_is_said_beside_what_a_broker_says_where_that_is_no_guess():
    with pytest.raises(RefusedBy) as raised:
        messages.refused(Code.TOPIC_ALREADY_EXISTS, "Topic 't' already exists.", "topic t")

    assert str(raised.value).endswith("already exists; choose another name, or delete the topic first")


def test_a_topic_placed_by_hand_leaves_the_numbers_to_its_layout():
    request = sent(ApiKey.CREATE_TOPICS, 7)
    (topic,) = request.topics

    assert (topic.num_partitions, topic.replication_factor) == (-1, -1)
    assert [(one.partition_index, one.broker_ids) for one in topic.assignments] == [(0, (1, 2)), (1, (2, 1))]
    assert [(one.name, one.value) for one in topic.configs] == [("retention.ms", "5")]
    assert (request.validate_only, request.timeout.total_seconds()) == (True, 0.9)


def test_a_topic_without_a_layout_has_the_numbers():
    request = messages.create_topic(
        "a", partitions=3, replication_factor=2, layout=None, configs={}, validate_only=False, timeout_ms=1
    ).make(7)
    (topic,) = request.topics

    assert (topic.num_partitions, topic.replication_factor, topic.assignments) == (3, 2, ())


def test_growth_without_a_layout_is_left_to_the_cluster():
    growth = messages.create_partitions("a", total=4, layout=None, validate_only=False, timeout_ms=1)
    request = growth.make(3)

    assert request.topics[0].assignments is None


def test_only_the_settings_that_change_are_sent():
    (resource,) = sent(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1).resources

    assert (resource.resource_type, resource.resource_name) == (4, "1")
    assert [(one.name, one.config_operation, one.value) for one in resource.configs] == [
        ("log.retention.ms", 0, "5"),
        ("log.segment.bytes", 1, None),
    ]


def test_all_settings_are_asked_for():
    (resource,) = sent(ApiKey.DESCRIBE_CONFIGS, 4).resources

    assert (resource.resource_type, resource.resource_name, resource.configuration_keys) == (2, "a", None)


def test_a_marker_of_a_coordinator_that_is_not_known_has_the_lowest_epoch():
    """As Kafka's tool does: what hangs from before any marker has coordinator epoch -1."""
    (marker,) = sent(ApiKey.WRITE_TXN_MARKERS, 1).markers

    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (7, 3, 0)
    assert marker.transaction_result is False
    assert [(topic.name, topic.partition_indexes) for topic in marker.topics] == [("a", (1,))]


def test_a_refusal_carries_the_brokers_code_and_words():
    result = entity("create_topics", 7, "CreatableTopicResult", "response")
    answer = build(
        response_type(ApiKey.CREATE_TOPICS, 7),
        topics=(build(result, name="a", error_code=39, error_message="No such broker."),),
    )

    with pytest.raises(
        RefusedBy, match="INVALID_REPLICA_ASSIGNMENT: topic a: No such broker; name"
    ) as refused:
        ADMIN_RPCS[ApiKey.CREATE_TOPICS].read(answer)
    assert refused.value.code is Code.INVALID_REPLICA_ASSIGNMENT


def test_a_refused_setting_of_a_topic_comes_with_the_nearest_that_there_is():
    result = entity("create_topics", 7, "CreatableTopicResult", "response")
    message = "Unknown topic config name: retension.ms"
    refused = build(result, name="a", error_code=40, error_message=message)

    with pytest.raises(RefusedBy, match=r"retension.ms \(did you mean retention.ms\?\); check"):
        ADMIN_RPCS[ApiKey.CREATE_TOPICS].read(
            build(response_type(ApiKey.CREATE_TOPICS, 7), topics=(refused,))
        )


@pytest.mark.parametrize("key", [ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS])
def test_an_answer_about_no_topic_is_corrupt(key: int):
    with pytest.raises(Corrupt, match="topics"):
        ADMIN_RPCS[key].read(build(response_type(key, 3)))


def test_a_state_that_transactions_do_not_have_is_named():
    answer = build(response_type(ApiKey.LIST_TRANSACTIONS, 1), unknown_state_filters=("Odd",))

    with pytest.raises(RefusedBy, match="transactions have no state Odd"):
        ADMIN_RPCS[ApiKey.LIST_TRANSACTIONS].read(answer)


def test_a_topic_that_cannot_be_described_has_a_code_instead():
    kind = entity("metadata", 12, "MetadataResponseTopic", "response")
    missing = build(kind, name="a", error_code=3, partitions=())

    topics, codes = messages.describe_topics(None).read(
        build(response_type(ApiKey.METADATA, 12), topics=(missing,))
    )

    assert (topics, codes) == ({}, {"a": Code.UNKNOWN_TOPIC_OR_PARTITION})


@pytest.mark.parametrize(
    ("resource", "words"),
    [
        (Resource.topic("a"), "topic a"),
        (Resource.broker(1), "broker 1"),
        (Resource.broker(), "broker"),
        (Resource.group("g"), "group g"),
    ],
)
def test_what_has_settings_is_named_in_words(resource: Resource, words: str):
    assert str(resource) == words
