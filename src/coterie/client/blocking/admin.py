"""The administrator for scripts that block: the asyncio one on a loop in a thread of its own.

with BlockingAdmin("localhost:9092") as admin:
    admin.create_topic("orders", partitions=6)
"""

from collections.abc import Sequence
from typing import Unpack

from coterie.client.admin.admin import Admin
from coterie.client.blocking.face import BlockingFace, waiting
from coterie.client.documented import lists_settings
from coterie.client.options import AdminOptions
from coterie.client.other_clients import ADMIN_METHODS
from coterie.client.settings import AdminSettings


class BlockingAdmin(BlockingFace[Admin]):
    """Admin's methods without `await`."""

    _called_here = ADMIN_METHODS

    @lists_settings(AdminSettings)
    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Unpack[AdminOptions]) -> None:
        """Make an administrator; it connects in `start` or `with`."""
        super().__init__(Admin(bootstrap_servers, **settings), name="administrator")

    describe_cluster = waiting(Admin.describe_cluster)
    unregister_broker = waiting(Admin.unregister_broker)
    describe_feature = waiting(Admin.describe_feature)
    update_feature = waiting(Admin.update_feature)

    alter_partition_reassignments = waiting(Admin.alter_partition_reassignments)
    list_partition_reassignments = waiting(Admin.list_partition_reassignments)
    elect_leaders = waiting(Admin.elect_leaders)

    list_topics = waiting(Admin.list_topics)
    describe_topics = waiting(Admin.describe_topics)
    create_topic = waiting(Admin.create_topic)
    delete_topic = waiting(Admin.delete_topic)
    create_partitions = waiting(Admin.create_partitions)
    partitions_named = waiting(Admin.partitions_named)

    describe_configs = waiting(Admin.describe_configs)
    alter_configs = waiting(Admin.alter_configs)

    list_groups = waiting(Admin.list_groups)
    describe_group = waiting(Admin.describe_group)
    delete_group = waiting(Admin.delete_group)
    evict_member = waiting(Admin.evict_member)

    list_offsets = waiting(Admin.list_offsets)
    list_group_offsets = waiting(Admin.list_group_offsets)
    list_group_ends = waiting(Admin.list_group_ends)
    alter_group_offsets = waiting(Admin.alter_group_offsets)
    delete_group_offsets = waiting(Admin.delete_group_offsets)
    plan_reset = waiting(Admin.plan_reset)
    reset_group_offsets = waiting(Admin.reset_group_offsets)

    list_transactions = waiting(Admin.list_transactions)
    describe_transaction = waiting(Admin.describe_transaction)
    describe_producers = waiting(Admin.describe_producers)
    abort_transaction = waiting(Admin.abort_transaction)
    fence_producer = waiting(Admin.fence_producer)
