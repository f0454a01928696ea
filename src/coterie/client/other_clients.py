"""What other clients of Kafka call what is called otherwise here: for the sentence that says so.

Names of kafka-python, aiokafka, confluent-kafka and Java, and what does the same here.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NoReturn

from coterie.client.errors import SettingsNotNamed

TRANSACTION = "async with producer.transaction(): ..."
PRODUCER_METHODS = {
    "abort_transaction": TRANSACTION,
    "begin_transaction": TRANSACTION,
    "bootstrap_connected": "start() returns when it is",
    "commit_transaction": TRANSACTION,
    "init_transactions": "transactional_id=..., and start() does it",
    "list_topics": "Admin.list_topics()",
    "poll": "leave it out, a thread or task sends and receives",
    "produce": "send(topic, value, key=...)",
    "purge": "close(timeout_ms=0)",
    "send_and_wait": "await (await producer.send(topic, value))",
    "send_offsets_to_transaction": "send_offsets(...)",
    "stop": "close()",
}
BLOCKING_PRODUCER_METHODS = {name: here.removeprefix("async ") for name, here in PRODUCER_METHODS.items()} | {
    "send_and_wait": "send(topic, value).result()"
}
DELIVERY_METHODS = {
    "add_callback": "result(), which waits",
    "add_errback": "result(), which raises what went wrong",
    "get": "result()",
    "is_done": "done()",
}
CONSUMER_METHODS = {
    "beginning_offset": "beginning_offsets(partitions)",
    "commit_async": "commit()",
    "commit_sync": "commit()",
    "consume": "getmany(max_records=...)",
    "consumer_group_metadata": "group_metadata()",
    "end_offset": "end_offsets(partitions)",
    "get_watermark_offsets": "beginning_offsets(partitions) and end_offsets(partitions)",
    "highwater": "end_offsets(partitions)",
    "incremental_assign": "assign(partitions), with all that are wanted",
    "last_stable_offset": "end_offsets(partitions) with isolation_level='read_committed'",
    "list_topics": "topics()",
    "partitions_for_topic": "partitions_for(topic)",
    "poll": "getmany(timeout_ms=...) or getone(timeout_ms=...)",
    "seek_to_committed": "committed(partitions), and seek",
    "stop": "close()",
    "store_offsets": "commit({partition: offset})",
}
ADMIN_METHODS = {
    "alter_consumer_group_offsets": "alter_group_offsets(group, offsets)",
    "create_topics": "create_topic(name, ...)",
    "delete_consumer_groups": "delete_group(group)",
    "delete_topics": "delete_topic(name)",
    "describe_consumer_groups": "describe_group(group)",
    "incremental_alter_configs": "alter_configs(resource, put=...)",
    "list_consumer_group_offsets": "list_group_offsets(group)",
    "list_consumer_groups": "list_groups()",
    "remove_members_from_consumer_group": "evict_member(group, ...)",
}
SETTINGS = {
    "api_version": "leave it out: brokers are asked what they speak",
    "consumer_timeout_ms": "give getone or getmany a timeout_ms",
    "enable_auto_offset_store": "set enable_auto_commit=False, and call commit()",
    "enable_partition_eof": "compare position(partition) with end_offsets(partitions)",
    "error_cb": "errors are raised by the call that meets them",
    "loop": "leave it out: the running loop is taken",
    "num_partitions": "a topic has so many as it is created with: Admin.create_topics",
    "on_delivery": "await what send returns",
    "rebalance_listener": "subscribe(topics, listener=...)",
    "stats_cb": "leave it out",
    "topic": 'topics come first: Consumer("orders", bootstrap_servers=...), or send("orders", ...)',
    "topics": 'topics come first: Consumer("orders", "payments", bootstrap_servers=...)',
}


def refuse_mapping(face: str, *given: object) -> None:
    """Raise SettingsNotNamed for a mapping of settings, which confluent-kafka's clients take."""
    if any(isinstance(one, Mapping) for one in given):
        raise SettingsNotNamed(
            f"settings are named arguments here, with underscores: {face}(bootstrap_servers=...)"
        )


class HintsAtMethods:
    """Says what other clients' methods are called here, where one of those is asked for."""

    __slots__ = ()
    _called_here: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # else every name would be one to mypy

        def __getattr__(self, name: str) -> NoReturn:
            said = f"{type(self).__name__!r} object has no attribute {name!r}"
            meant = self._called_here.get(name)
            raise AttributeError(f"{said}; here it is: {meant}" if meant else said, name=name, obj=self)
