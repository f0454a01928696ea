"""Writing a change: its rows, its lanes, the next version and the notification, in one transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from coterie.broker.cluster.changes import (
    Change,
    CreateTopics,
    LeaveCluster,
    NotChanged,
    RegisterBroker,
    TakeOver,
    UnregisterBroker,
    Why,
)
from coterie.broker.cluster.image import BrokerRow, BrokerState, Delta, PartitionRow, SettingRow, TopicRow
from coterie.storage.postgres.connecting import within_ms
from coterie.storage.postgres.serial import LOCK_TIMEOUT_MS, Connection

CHANNEL = "coterie"
DELETED_IDS = "SELECT EXISTS (SELECT FROM coterie.topics WHERE topic_id = ANY ($1::uuid[]) AND deleted)"
# The counts of heartbeats are a registration's. A takeover goes by one ($10), which changes under the lock of
# this row alone.
WRITE_BROKER = """
INSERT INTO coterie.brokers AS there
  (broker_id, broker_epoch, incarnation, state, listeners, rack, level, software, version)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (broker_id) DO UPDATE SET
  broker_epoch = excluded.broker_epoch, incarnation = excluded.incarnation, state = excluded.state,
  listeners = excluded.listeners, rack = excluded.rack, level = excluded.level, software = excluded.software,
  version = excluded.version,
  beats = CASE WHEN there.broker_epoch = excluded.broker_epoch THEN there.beats ELSE 0 END,
  seen = CASE WHEN there.broker_epoch = excluded.broker_epoch THEN there.seen ELSE 0 END
WHERE $10::bigint IS NULL OR there.beats = $10
RETURNING true
"""
SHUT_GATE = "DELETE FROM coterie.lanes WHERE broker_id = $1"
OPEN_GATE = """
INSERT INTO coterie.lanes (broker_id, lane, broker_epoch)
SELECT $1, lane, $2 FROM generate_series(0, $3 - 1) AS lane
"""
WRITE_TOPICS = """
INSERT INTO coterie.topics (topic_id, name, partitions, configs, created_ms, deleted, version)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::int[], $4::json[], $5::bigint[], $6::bool[], $7::bigint[])
ON CONFLICT (topic_id) DO UPDATE SET
  partitions = excluded.partitions, configs = excluded.configs, deleted = excluded.deleted,
  version = excluded.version
"""
# An array of arrays of several lengths is none of PostgreSQL's: replicas come as texts.
WRITE_PARTITIONS = """
INSERT INTO coterie.partitions
  (partition_id, topic_id, number, replicas, leader, leader_epoch, next_leader, version)
SELECT partition_id, topic_id, number, replicas::int[], leader, leader_epoch, next_leader, version
FROM unnest($1::int[], $2::uuid[], $3::int[], $4::text[], $5::int[], $6::int[], $7::int[], $8::bigint[])
  AS row (partition_id, topic_id, number, replicas, leader, leader_epoch, next_leader, version)
ON CONFLICT (partition_id) DO UPDATE SET
  replicas = excluded.replicas, leader = excluded.leader, leader_epoch = excluded.leader_epoch,
  next_leader = excluded.next_leader, version = excluded.version
"""
WRITE_SETTINGS = """
INSERT INTO coterie.settings (scope, name, value, version)
SELECT * FROM unnest($1::text[], $2::text[], $3::json[], $4::bigint[])
ON CONFLICT (scope, name) DO UPDATE SET value = excluded.value, version = excluded.version
"""
NEXT_VERSION = """
WITH next AS (
  UPDATE coterie.cluster
  SET version = $1, next_partition_id = greatest(next_partition_id, $2), level = $4
  RETURNING version)
SELECT pg_notify($3, version::text) FROM next
"""
# What makes a broker's leaving or being taken over, in one statement: on a busy broker each round trip takes
# long, and groups wait for this one. It goes by the version that its rows were made for ($1), by the table
# that had it ($10), in whose place another may be by now, and by nothing else that could have changed since:
# then none of it happens.
DEPART = f"""
WITH {within_ms(LOCK_TIMEOUT_MS)},
known AS MATERIALIZED (
  SELECT version FROM coterie.cluster, patience WHERE version = $1 AND cluster.tableoid = $10
  FOR UPDATE OF cluster),
gone AS (
  UPDATE coterie.brokers SET state = $4, version = known.version + 1 FROM known
  WHERE broker_id = $2 AND ($3::bigint IS NULL OR beats = $3) RETURNING brokers.version, broker_id),
shut AS (DELETE FROM coterie.lanes USING gone WHERE lanes.broker_id = gone.broker_id),
moved AS (
  UPDATE coterie.partitions SET
    leader = row.leader, leader_epoch = row.leader_epoch, next_leader = row.next_leader,
    version = gone.version
  FROM gone, unnest($5::int[], $6::int[], $7::int[], $8::int[]) AS row (id, leader, leader_epoch, next_leader)
  WHERE partition_id = row.id),
next AS (UPDATE coterie.cluster SET version = gone.version FROM gone RETURNING cluster.version)
SELECT pg_notify($9, version::text) FROM next
"""


# The same for partitions that their leader gives away.
GIVE = f"""
WITH {within_ms(LOCK_TIMEOUT_MS)},
known AS MATERIALIZED (
  SELECT version FROM coterie.cluster, patience WHERE version = $1 AND cluster.tableoid = $7
  FOR UPDATE OF cluster),
moved AS (
  UPDATE coterie.partitions SET
    leader = row.leader, leader_epoch = row.leader_epoch, next_leader = row.next_leader,
    version = known.version + 1
  FROM known,
    unnest($2::int[], $3::int[], $4::int[], $5::int[]) AS row (id, leader, leader_epoch, next_leader)
  WHERE partition_id = row.id),
next AS (
  UPDATE coterie.cluster SET version = known.version + 1 FROM known RETURNING cluster.version)
SELECT pg_notify($6, version::text) FROM next
"""


async def prepare_moves(connection: Connection) -> None:
    """Have the server know the statements by which others lead, which then do nothing."""
    await connection.fetch(DEPART, -1, -1, None, BrokerState.FENCED.value, (), (), (), (), CHANNEL, 0)
    await connection.fetch(GIVE, -1, (), (), (), (), CHANNEL, 0)


async def depart(connection: Connection, change: TakeOver | LeaveCluster, delta: Delta, table: int) -> bool:
    """Have a broker be gone, if the metadata is at the version before the rows of the change, and the
    cluster's in this `table`, and return whether it is; else nothing is written.
    """
    (broker,) = delta.brokers
    beats = change.beats if isinstance(change, TakeOver) else None
    who = (broker.broker_id, beats, broker.state.value)
    return bool(await connection.fetch(DEPART, delta.above, *who, *_leaders(delta), CHANNEL, table))


async def give(connection: Connection, delta: Delta, table: int) -> bool:
    """Have partitions be led by others, as `depart` does."""
    return bool(await connection.fetch(GIVE, delta.above, *_leaders(delta), CHANNEL, table))


def _leaders(delta: Delta) -> list[tuple[Any, ...]]:
    rows = [(row.partition_id, row.leader, row.leader_epoch, row.next_leader) for row in delta.partitions]
    return _columns(rows) or [()] * 4


async def write(connection: Connection, change: Change, delta: Delta, *, lanes: int) -> NotChanged | None:
    """Write the rows of a change; or return why not, and then what was written has to be rolled back."""
    if isinstance(change, CreateTopics):
        ids = [new.topic_id for new in change.topics]
        if await connection.fetchval(DELETED_IDS, ids):
            return NotChanged(Why.ID_TAKEN)
    beats = change.beats if isinstance(change, TakeOver) else None
    for row in delta.brokers:
        if not await connection.fetchval(WRITE_BROKER, *_broker(row), beats):
            return NotChanged(Why.BEATS_ON)
    await _move_gate(connection, change, delta.version, lanes)
    if delta.topics:
        await connection.execute(WRITE_TOPICS, *_columns([_topic(row) for row in delta.topics]))
    if delta.partitions:
        await connection.execute(WRITE_PARTITIONS, *_columns([_partition(row) for row in delta.partitions]))
    if delta.settings:
        await connection.execute(WRITE_SETTINGS, *_columns([_setting(row) for row in delta.settings]))
    behind = max((row.partition_id for row in delta.partitions), default=0) + 1
    await connection.execute(NEXT_VERSION, delta.version, behind, CHANNEL, delta.level)
    return None


async def _move_gate(connection: Connection, change: Change, version: int, lanes: int) -> None:
    """Shut the gate of a broker whose epoch is over, and open that of its next one. What has passed is waited
    for.
    """
    if isinstance(change, RegisterBroker | TakeOver | LeaveCluster | UnregisterBroker):
        await connection.execute(SHUT_GATE, change.broker_id)
    if isinstance(change, RegisterBroker):
        await connection.execute(OPEN_GATE, change.broker_id, version, lanes)


def _broker(row: BrokerRow) -> tuple[Any, ...]:
    return (*row[:3], row.state.value, json.dumps(row.listeners), *row[5:])


def _topic(row: TopicRow) -> tuple[Any, ...]:
    return (*row[:3], json.dumps(dict(row.configs)), *row[4:])


def _partition(row: PartitionRow) -> tuple[Any, ...]:
    return (*row[:3], f"{{{','.join(map(str, row.replicas))}}}", *row[4:])


def _setting(row: SettingRow) -> tuple[Any, ...]:
    return (*row[:2], None if row.value is None else json.dumps(row.value), row.version)


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows as arrays, one a column."""
    return list(zip(*rows, strict=True))
