"""A request of each kind that an administrator sends, by its API."""

from __future__ import annotations

from typing import Any

from coterie.base.ids import TopicPartition
from coterie.client.admin import messages
from coterie.client.admin.messages import ActiveProducer, Operation, Resource
from coterie.client.net.addresses import Address
from coterie.client.net.messages import Rpc
from coterie.wire.api.apis import ApiKey

A, B = TopicPartition("a", 1), TopicPartition("b", 0)
HANGING = ActiveProducer(7, 3, 12, 1_000, -1, 40)

ADMIN_RPCS: dict[int, Rpc[Any]] = {
    ApiKey.CREATE_TOPICS: messages.create_topic(
        "a", partitions=None, replication_factor=None, layout=[(1, 2), (2, 1)],
        configs={"retention.ms": "5"}, validate_only=True, timeout_ms=900,
    ),
    ApiKey.DELETE_TOPICS: messages.delete_topic("a", timeout_ms=900),
    ApiKey.CREATE_PARTITIONS: messages.create_partitions(
        "a", total=4, layout=[(1,)], validate_only=False, timeout_ms=900
    ),
    ApiKey.DESCRIBE_CONFIGS: messages.describe_configs(Resource.topic("a")),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: messages.alter_configs(
        Resource.broker(1),
        [(Operation.SET, "log.retention.ms", "5"), (Operation.DELETE, "log.segment.bytes", None)],
        validate_only=True,
    ),
    ApiKey.DELETE_GROUPS: messages.delete_group("g"),
    ApiKey.OFFSET_DELETE: messages.delete_offsets("g", [B, A]),
    ApiKey.DESCRIBE_CLUSTER: messages.describe_cluster(fenced=True),
    ApiKey.UPDATE_FEATURES: messages.update_feature("coterie.level", 2, timeout_ms=900),
    ApiKey.UNREGISTER_BROKER: messages.unregister_broker(3),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: messages.alter_reassignments({A: (1, 2), B: (3,)}, timeout_ms=900),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: messages.list_reassignments(timeout_ms=900),
    ApiKey.ELECT_LEADERS: messages.elect_leaders([A, B], timeout_ms=900),
    ApiKey.DESCRIBE_PRODUCERS: messages.describe_producers(A),
    ApiKey.DESCRIBE_TRANSACTIONS: messages.describe_transaction("t", Address("b", 1)),
    ApiKey.LIST_TRANSACTIONS: messages.list_transactions(
        states=["Ongoing"], producer_ids=[7]
    ),
    ApiKey.WRITE_TXN_MARKERS: messages.write_abort_marker(A, HANGING),
    ApiKey.INIT_PRODUCER_ID: messages.init_producer("t", timeout_ms=900),
}  # fmt: skip
ADMIN_MAKERS = {key: rpc.make for key, rpc in ADMIN_RPCS.items()}
