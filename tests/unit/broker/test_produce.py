"""Produce: what is taken, whatever is set and whoever sends it, and what is not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from coterie.base.codes import Code
from coterie.wire.api.entities import (
    build,
    entity,
)
from coterie.wire.records.batches import Record, build_batch
from unit.broker.group_api_rig import ApiRig
from unit.broker.rig import Client

PRODUCE, VERSION = 0, 9


def produced(client: Client, topic: str, *, acks: int = -1) -> Code:
    """Return what a produce of one record to a topic's first partition is answered."""
    batch = build_batch([Record(0, client.rig.now_ms, b"k", b"v")])
    data = build(entity("produce", VERSION, "PartitionProduceData"), index=0, records=batch)
    asked = build(entity("produce", VERSION, "TopicProduceData"), name=topic, partition_data=(data,))
    answer = client.ask(PRODUCE, VERSION, acks=acks, timeout=1_000, topic_data=(asked,))
    return Code(answer.responses[0].partition_responses[0].error_code)


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize(
    ("of_broker", "of_topic"),
    [
        ({"min_insync_replicas": 2}, {}),
        ({}, {"min.insync.replicas": "2"}),
        ({}, {"min.insync.replicas": "2147483647"}),
    ],
)
def test_with_one_replica_a_record_is_taken_however_many_are_to_be_in_sync(
    acks: int, of_broker: Mapping[str, int], of_topic: dict[str, str]
):
    """Kafka wants no more of them than there are: 4.3.1 answers 0 (asked on 2026-11-23 with 2 and 5)."""
    rig = ApiRig(**of_broker)
    rig.node.topic_manager.create_topic("t", partitions=1, configs=of_topic)

    assert produced(rig.client(), "t", acks=acks) is Code.NONE


@pytest.mark.parametrize("client_id", ["anyone", "__admin_client"])
def test_nobody_produces_to_what_the_coordinator_keeps_whatever_it_calls_itself(client_id: str):
    """Other than in Kafka, which takes it from `__admin_client`: see decision 3."""
    rig = ApiRig()
    rig.committed("g", ("orders", 0, 1))

    assert produced(rig.client(client_id), "__consumer_offsets") is Code.INVALID_TOPIC_EXCEPTION
