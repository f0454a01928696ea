"""The rows of an image as PostgreSQL's tables have them: reading what is above a version."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from coterie.broker.cluster.image import (
    BrokerRow,
    BrokerState,
    Delta,
    Endpoint,
    Image,
    PartitionRow,
    SettingRow,
    TopicRow,
)
from coterie.storage.postgres.connecting import NoCluster, OtherTables
from coterie.storage.postgres.serial import Connection

# One statement, and so one snapshot and one round trip; a column each is an array. Arrays of several lengths
# make no array of PostgreSQL's: replicas come as texts.
ABOVE = """
SELECT cluster.version, cluster.level, cluster.next_partition_id,
  broker_ids, broker_epochs, incarnations, states, listeners, racks, levels, softwares, broker_versions,
  topics.ids, names, partition_counts, configs, created, deleted, topic_versions,
  partitions.ids, topic_ids, numbers, replicas, leaders, leader_epochs, next_leaders, partition_versions,
  scopes, setting_names, setting_values, setting_versions, cluster.tableoid
FROM coterie.cluster,
LATERAL (
  SELECT array_agg(broker_id) AS broker_ids, array_agg(broker_epoch) AS broker_epochs,
    array_agg(incarnation) AS incarnations, array_agg(state) AS states, array_agg(listeners) AS listeners,
    array_agg(rack) AS racks, array_agg(level) AS levels, array_agg(software) AS softwares,
    array_agg(version) AS broker_versions
  FROM coterie.brokers WHERE version > $1) AS brokers,
LATERAL (
  SELECT array_agg(topic_id) AS ids, array_agg(name) AS names,
    array_agg(topic.partitions) AS partition_counts,
    array_agg(configs) AS configs, array_agg(created_ms) AS created, array_agg(deleted) AS deleted,
    array_agg(version) AS topic_versions
  FROM coterie.topics AS topic WHERE version > $1) AS topics,
LATERAL (
  SELECT array_agg(partition_id) AS ids, array_agg(topic_id) AS topic_ids, array_agg(number) AS numbers,
    array_agg(partition.replicas::text) AS replicas, array_agg(leader) AS leaders,
    array_agg(leader_epoch) AS leader_epochs, array_agg(next_leader) AS next_leaders,
    array_agg(version) AS partition_versions
  FROM coterie.partitions AS partition WHERE version > $1) AS partitions,
LATERAL (
  SELECT array_agg(scope) AS scopes, array_agg(name) AS setting_names,
    array_agg(value) AS setting_values, array_agg(version) AS setting_versions
  FROM coterie.settings WHERE version > $1) AS settings
"""
BROKER, TOPIC, PARTITION, SETTING = slice(3, 12), slice(12, 19), slice(19, 27), slice(27, 31)


async def read_rows(connection: Connection, above: int, table: int | None = None) -> tuple[Delta, int]:
    """Return the rows above a version, and the id of the next new partition. Raises `NoCluster`, and
    `OtherTables` where that of the cluster is not the `table`, if one is given.
    """
    found = await connection.fetchrow(ABOVE, above)
    if found is None:
        raise NoCluster
    if table not in (None, found[-1]):
        raise OtherTables
    version, level, new_partition_id = found[:3]
    delta = Delta(
        above=above,
        version=version,
        level=level,
        brokers=[_broker(*row) for row in _rows(found[BROKER])],
        topics=[_topic(*row) for row in _rows(found[TOPIC])],
        partitions=_partitions(found[PARTITION]),
        settings=[_setting(*row) for row in _rows(found[SETTING])],
    )
    return delta, new_partition_id


async def read_image(connection: Connection, table: int | None = None) -> Image:
    """Return all of the metadata, as `read_rows` does."""
    delta, _ = await read_rows(connection, 0, table)
    return Image().after(delta)


def _rows(columns: Sequence[Sequence[Any] | None]) -> Iterable[tuple[Any, ...]]:
    """Return the rows whose columns these are; of no rows there are no columns."""
    return zip(*(column or () for column in columns), strict=True)


def _broker(
    broker_id: int, broker_epoch: int, incarnation: UUID, state: str, listeners: str, *rest: Any
) -> BrokerRow:
    endpoints = tuple(Endpoint(*one) for one in json.loads(listeners))
    return BrokerRow(broker_id, broker_epoch, incarnation, BrokerState(state), endpoints, *rest)


def _topic(topic_id: UUID, name: str, partitions: int, configs: str, *rest: Any) -> TopicRow:
    return TopicRow(topic_id, name, partitions, json.loads(configs), *rest)


def _partitions(columns: Sequence[Any]) -> list[PartitionRow]:
    """Return the rows of partitions, of which many have the same replicas."""
    replicas = columns[3] or ()
    known = {text: tuple(map(int, text[1:-1].split(","))) if text != "{}" else () for text in {*replicas}}
    return [PartitionRow._make((*row[:3], known[row[3]], *row[4:])) for row in _rows(columns)]


def _setting(scope: str, name: str, value: str | None, version: int) -> SettingRow:
    return SettingRow(scope, name, None if value is None else json.loads(value), version)
