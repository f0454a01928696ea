"""The rows of an image as PostgreSQL's tables have them: reading what is above a version."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from coterie.broker.cluster.image import (
    BrokerRow,
    BrokerState,
    Delta,
    Endpoint,
    PartitionRow,
    SettingRow,
    TopicRow,
)
from coterie.storage.postgres.serial import Connection

BROKERS = """
SELECT broker_id, broker_epoch, incarnation, state, listeners, rack, level, software, version
FROM coterie.brokers WHERE version > $1
"""
TOPICS = """
SELECT topic_id, name, partitions, configs, created_ms, deleted, version
FROM coterie.topics WHERE version > $1
"""
PARTITIONS = """
SELECT partition_id, topic_id, number, replicas, leader, leader_epoch, next_leader, version
FROM coterie.partitions WHERE version > $1
"""
SETTINGS = "SELECT scope, name, value, version FROM coterie.settings WHERE version > $1"


async def read_rows(connection: Connection, above: int, *, version: int, level: int) -> Delta:
    """Return the rows above a version. Whoever calls sees to it that nothing changes meanwhile."""
    return Delta(
        above=above,
        version=version,
        level=level,
        brokers=[_broker(*row) for row in await connection.fetch(BROKERS, above)],
        topics=[_topic(*row) for row in await connection.fetch(TOPICS, above)],
        partitions=[_partition(*row) for row in await connection.fetch(PARTITIONS, above)],
        settings=[_setting(*row) for row in await connection.fetch(SETTINGS, above)],
    )


def _broker(
    broker_id: int, broker_epoch: int, incarnation: UUID, state: str, listeners: str, *rest: Any
) -> BrokerRow:
    endpoints = tuple(Endpoint(*one) for one in json.loads(listeners))
    return BrokerRow(broker_id, broker_epoch, incarnation, BrokerState(state), endpoints, *rest)


def _topic(topic_id: UUID, name: str, partitions: int, configs: str, *rest: Any) -> TopicRow:
    return TopicRow(topic_id, name, partitions, json.loads(configs), *rest)


def _partition(
    partition_id: int, topic_id: UUID, number: int, replicas: Sequence[int], *rest: Any
) -> PartitionRow:
    return PartitionRow(partition_id, topic_id, number, tuple(replicas), *rest)


def _setting(scope: str, name: str, value: str | None, version: int) -> SettingRow:
    return SettingRow(scope, name, None if value is None else json.loads(value), version)
