"""What administrators' clients ask of each broker apart: each answers for what it leads, together for all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import confluent_kafka
import pytest
from bench.store_cluster import StoreCluster
from confluent_kafka import ConsumerGroupTopicPartitions
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from clients.adapters.confluent import ConfluentAdmin
from coterie.base.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

PARTITIONS = 6
GROUPS = [f"listed-{number}" for number in range(9)]
PRODUCERS = [f"writer-{number}" for number in range(6)]


def commits(confluent: ConfluentAdmin, group: str) -> bool:
    """Return whether an offset could be committed in the name of a group."""
    wanted = ConsumerGroupTopicPartitions(group, [confluent_kafka.TopicPartition("listed", 0, 0)])
    [future] = confluent.inner.alter_consumer_group_offsets([wanted]).values()
    try:
        return all(one.error is None for one in future.result().topic_partitions)
    except confluent_kafka.KafkaException as error:
        if not error.args[0].retriable():
            raise
        return False


@pytest.fixture
def admin(cluster: StoreCluster) -> Iterator[KafkaAdminClient]:
    """kafka-python's AdminClient, and in the cluster groups and transactions that are open."""
    with ExitStack() as ending:
        confluent = ending.enter_context(ConfluentAdmin(cluster.bootstrap))
        confluent.create("listed", partitions=PARTITIONS)
        for group in GROUPS:
            cluster.until(f"{group} is there", partial(commits, confluent, group))
        for number, name in enumerate(PRODUCERS):
            producer = confluent_kafka.Producer(
                {"bootstrap.servers": cluster.bootstrap, "transactional.id": name, "log_level": 3}
            )
            producer.init_transactions(30)
            producer.begin_transaction()
            producer.produce("listed", b"open", partition=number)
            producer.flush(30)
            ending.callback(producer.abort_transaction, 30)
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        ending.callback(admin.close)
        yield admin


def transactional_ids(listed: dict[int, list[Any]]) -> set[str]:
    return {one.transactional_id for some in listed.values() for one in some}


def lists_its_own(cluster: StoreCluster, admin: KafkaAdminClient, broker_id: int) -> bool:
    """Return whether a broker lists the groups, the transactions and the logs that it leads; not while it may
    be about to lead others.
    """
    try:
        groups = {one["group_id"] for one in admin.list_groups(broker_ids=[broker_id])}
        transactions = transactional_ids(admin.list_transactions(broker_ids=[broker_id]))
    except KafkaError as error:
        if not error.retriable:
            raise
        return False
    [described] = admin.describe_log_dirs(brokers=[broker_id])
    [directory] = described["log_dirs"]
    logs = {
        one["partition_index"]
        for topic in directory["topics"]
        if topic["name"] == "listed"
        for one in topic["partitions"]
    }
    found = groups & {*GROUPS}, transactions & {*PRODUCERS}, logs
    return found == (
        {one for one in GROUPS if cluster.leader_of(OFFSETS_TOPIC, one) == broker_id},
        {one for one in PRODUCERS if cluster.leader_of(TRANSACTIONS_TOPIC, one) == broker_id},
        {at for at, leader in enumerate(cluster.leaders("listed")) if leader == broker_id},
    )


def test_each_broker_lists_what_it_leads_and_together_they_list_all(
    cluster: StoreCluster, admin: KafkaAdminClient
) -> None:
    for broker_id in cluster.brokers:
        cluster.until(f"{broker_id} lists its own", partial(lists_its_own, cluster, admin, broker_id))

    assert {one["group_id"] for one in admin.list_groups()} >= {*GROUPS}
    assert transactional_ids(admin.list_transactions()) >= {*PRODUCERS}
    places = [TopicPartition("listed", number) for number in range(PARTITIONS)]
    producers = admin.describe_producers(places)
    assert {place: len(one.active_producers) for place, one in producers.items()} == dict.fromkeys(places, 1)
    described = admin.describe_transactions(PRODUCERS)
    assert {name: {*one.topic_partitions} for name, one in described.items()} == {
        name: {place} for name, place in zip(PRODUCERS, places, strict=True)
    }
