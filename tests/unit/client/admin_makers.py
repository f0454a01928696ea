"""A request of each kind that an administrator sends, by its API."""

from __future__ import annotations

from coterie.base.ids import TopicPartition
from coterie.client.admin import messages
from coterie.client.admin.messages import ActiveProducer, Operation, Resource
from coterie.wire.api.apis import ApiKey

A, B = TopicPartition("a", 1), TopicPartition("b", 0)
HANGING = ActiveProducer(7, 3, 12, 1_000, -1, 40)

ADMIN_MAKERS = {
    ApiKey.CREATE_TOPICS: lambda version: messages.create_topic(
        version, "a", partitions=None, replication_factor=None, layout=[(1, 2), (2, 1)],
        configs={"retention.ms": "5"}, validate_only=True, timeout_ms=900,
    ),
    ApiKey.DELETE_TOPICS: lambda version: messages.delete_topic(version, "a", timeout_ms=900),
    ApiKey.CREATE_PARTITIONS: lambda version: messages.create_partitions(
        version, "a", total=4, layout=[(1,)], validate_only=False, timeout_ms=900
    ),
    ApiKey.DESCRIBE_CONFIGS: lambda version: messages.describe_configs(version, Resource.topic("a")),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda version: messages.alter_configs(
        version,
        Resource.broker(1),
        [(Operation.SET, "log.retention.ms", "5"), (Operation.DELETE, "log.segment.bytes", None)],
        validate_only=True,
    ),
    ApiKey.DELETE_GROUPS: lambda version: messages.delete_group(version, "g"),
    ApiKey.OFFSET_DELETE: lambda version: messages.delete_offsets(version, "g", [B, A]),
    ApiKey.DESCRIBE_CLUSTER: lambda version: messages.describe_cluster(version, fenced=True),
    ApiKey.DESCRIBE_PRODUCERS: lambda version: messages.describe_producers(version, A),
    ApiKey.DESCRIBE_TRANSACTIONS: lambda version: messages.describe_transaction(version, "t"),
    ApiKey.LIST_TRANSACTIONS: lambda version: messages.list_transactions(
        version, states=["Ongoing"], producer_ids=[7]
    ),
    ApiKey.WRITE_TXN_MARKERS: lambda version: messages.write_abort_marker(version, A, HANGING),
    ApiKey.INIT_PRODUCER_ID: lambda version: messages.init_producer(version, "t", timeout_ms=900),
}  # fmt: skip
