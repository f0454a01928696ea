"""Which APIs there are, and which versions of them Apache Kafka 4.3.1 advertises.

A broker advertises of this table what it serves, range for range; nothing here is guessed.
"""

from typing import NamedTuple


class Api(NamedTuple):
    """One kind of request: its number, its kio package, its Kafka name, its versions."""

    key: int
    name: str
    title: str
    least: int
    """The lowest version that is advertised."""
    most: int
    flexible_from: int | None
    """The first version with compact lengths and tagged fields, and with the header that has them."""
    lowest_real: int = 0
    """Kafka says it takes Produce from version 0, so that old librdkafka works (KAFKA-18659); it takes 3."""

    @property
    def served_from(self) -> int:
        """Return the lowest version that a request may really have."""
        return max(self.least, self.lowest_real)

    def serves(self, version: int) -> bool:
        """Return whether a request of this version can be read at all."""
        return self.served_from <= version <= self.most

    def is_flexible(self, version: int) -> bool:
        """Return whether this version, known or not, has tagged fields."""
        return self.flexible_from is not None and version >= self.flexible_from


class ApiKey:
    """The numbers of the APIs by name. Plain integers: they are compared on the hottest path."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


APIS: dict[int, Api] = {
    api.key: api
    for api in (
        Api(ApiKey.PRODUCE, "produce", "Produce", 0, 13, 9, lowest_real=3),
        Api(ApiKey.FETCH, "fetch", "Fetch", 4, 18, 12),
        Api(ApiKey.LIST_OFFSETS, "list_offsets", "ListOffsets", 1, 11, 6),
        Api(ApiKey.METADATA, "metadata", "Metadata", 0, 13, 9),
        Api(ApiKey.OFFSET_COMMIT, "offset_commit", "OffsetCommit", 2, 10, 8),
        Api(ApiKey.OFFSET_FETCH, "offset_fetch", "OffsetFetch", 1, 10, 6),
        Api(ApiKey.FIND_COORDINATOR, "find_coordinator", "FindCoordinator", 0, 6, 3),
        Api(ApiKey.JOIN_GROUP, "join_group", "JoinGroup", 0, 9, 6),
        Api(ApiKey.HEARTBEAT, "heartbeat", "Heartbeat", 0, 4, 4),
        Api(ApiKey.LEAVE_GROUP, "leave_group", "LeaveGroup", 0, 5, 4),
        Api(ApiKey.SYNC_GROUP, "sync_group", "SyncGroup", 0, 5, 4),
        Api(ApiKey.DESCRIBE_GROUPS, "describe_groups", "DescribeGroups", 0, 6, 5),
        Api(ApiKey.LIST_GROUPS, "list_groups", "ListGroups", 0, 5, 3),
        Api(ApiKey.SASL_HANDSHAKE, "sasl_handshake", "SaslHandshake", 0, 1, None),
        Api(ApiKey.API_VERSIONS, "api_versions", "ApiVersions", 0, 4, 3),
        Api(ApiKey.CREATE_TOPICS, "create_topics", "CreateTopics", 2, 7, 5),
        Api(ApiKey.DELETE_TOPICS, "delete_topics", "DeleteTopics", 1, 6, 4),
        Api(ApiKey.DELETE_RECORDS, "delete_records", "DeleteRecords", 0, 2, 2),
        Api(ApiKey.INIT_PRODUCER_ID, "init_producer_id", "InitProducerId", 0, 5, 2),
        Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, "offset_for_leader_epoch", "OffsetForLeaderEpoch", 2, 4, 4),
        Api(ApiKey.ADD_PARTITIONS_TO_TXN, "add_partitions_to_txn", "AddPartitionsToTxn", 0, 5, 3),
        Api(ApiKey.ADD_OFFSETS_TO_TXN, "add_offsets_to_txn", "AddOffsetsToTxn", 0, 4, 3),
        Api(ApiKey.END_TXN, "end_txn", "EndTxn", 0, 5, 3),
        Api(ApiKey.WRITE_TXN_MARKERS, "write_txn_markers", "WriteTxnMarkers", 1, 2, 1),
        Api(ApiKey.TXN_OFFSET_COMMIT, "txn_offset_commit", "TxnOffsetCommit", 0, 5, 3),
        Api(ApiKey.DESCRIBE_ACLS, "describe_acls", "DescribeAcls", 1, 3, 2),
        Api(ApiKey.CREATE_ACLS, "create_acls", "CreateAcls", 1, 3, 2),
        Api(ApiKey.DELETE_ACLS, "delete_acls", "DeleteAcls", 1, 3, 2),
        Api(ApiKey.DESCRIBE_CONFIGS, "describe_configs", "DescribeConfigs", 1, 4, 4),
        Api(ApiKey.ALTER_CONFIGS, "alter_configs", "AlterConfigs", 0, 2, 2),
        Api(ApiKey.ALTER_REPLICA_LOG_DIRS, "alter_replica_log_dirs", "AlterReplicaLogDirs", 1, 2, 2),
        Api(ApiKey.DESCRIBE_LOG_DIRS, "describe_log_dirs", "DescribeLogDirs", 1, 5, 2),
        Api(ApiKey.SASL_AUTHENTICATE, "sasl_authenticate", "SaslAuthenticate", 0, 2, 2),
        Api(ApiKey.CREATE_PARTITIONS, "create_partitions", "CreatePartitions", 0, 3, 2),
        Api(ApiKey.CREATE_DELEGATION_TOKEN, "create_delegation_token", "CreateDelegationToken", 1, 3, 2),
        Api(ApiKey.RENEW_DELEGATION_TOKEN, "renew_delegation_token", "RenewDelegationToken", 1, 2, 2),
        Api(ApiKey.EXPIRE_DELEGATION_TOKEN, "expire_delegation_token", "ExpireDelegationToken", 1, 2, 2),
        Api(
            ApiKey.DESCRIBE_DELEGATION_TOKEN, "describe_delegation_token", "DescribeDelegationToken", 1, 3, 2
        ),
        Api(ApiKey.DELETE_GROUPS, "delete_groups", "DeleteGroups", 0, 2, 2),
        Api(ApiKey.ELECT_LEADERS, "elect_leaders", "ElectLeaders", 0, 2, 2),
        Api(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, "incremental_alter_configs", "IncrementalAlterConfigs", 0, 1, 1
        ),
        Api(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            "alter_partition_reassignments",
            "AlterPartitionReassignments",
            0,
            1,
            0,
        ),
        Api(
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            "list_partition_reassignments",
            "ListPartitionReassignments",
            0,
            0,
            0,
        ),
        Api(ApiKey.OFFSET_DELETE, "offset_delete", "OffsetDelete", 0, 0, None),
        Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, "describe_client_quotas", "DescribeClientQuotas", 0, 1, 1),
        Api(ApiKey.ALTER_CLIENT_QUOTAS, "alter_client_quotas", "AlterClientQuotas", 0, 1, 1),
        Api(
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
            "describe_user_scram_credentials",
            "DescribeUserScramCredentials",
            0,
            0,
            0,
        ),
        Api(
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            "alter_user_scram_credentials",
            "AlterUserScramCredentials",
            0,
            0,
            0,
        ),
        Api(ApiKey.DESCRIBE_QUORUM, "describe_quorum", "DescribeQuorum", 0, 2, 0),
        Api(ApiKey.UPDATE_FEATURES, "update_features", "UpdateFeatures", 0, 2, 0),
        Api(ApiKey.DESCRIBE_CLUSTER, "describe_cluster", "DescribeCluster", 0, 2, 0),
        Api(ApiKey.DESCRIBE_PRODUCERS, "describe_producers", "DescribeProducers", 0, 0, 0),
        Api(ApiKey.UNREGISTER_BROKER, "unregister_broker", "UnregisterBroker", 0, 0, 0),
        Api(ApiKey.DESCRIBE_TRANSACTIONS, "describe_transactions", "DescribeTransactions", 0, 0, 0),
        Api(ApiKey.LIST_TRANSACTIONS, "list_transactions", "ListTransactions", 0, 2, 0),
        Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, "consumer_group_heartbeat", "ConsumerGroupHeartbeat", 0, 1, 0),
        Api(ApiKey.CONSUMER_GROUP_DESCRIBE, "consumer_group_describe", "ConsumerGroupDescribe", 0, 1, 0),
        Api(ApiKey.LIST_CONFIG_RESOURCES, "list_config_resources", "ListConfigResources", 0, 1, 0),
        Api(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS, "describe_topic_partitions", "DescribeTopicPartitions", 0, 0, 0
        ),
        Api(ApiKey.SHARE_GROUP_HEARTBEAT, "share_group_heartbeat", "ShareGroupHeartbeat", 1, 1, 0),
        Api(ApiKey.SHARE_GROUP_DESCRIBE, "share_group_describe", "ShareGroupDescribe", 1, 1, 0),
        Api(ApiKey.SHARE_FETCH, "share_fetch", "ShareFetch", 1, 2, 0),
        Api(ApiKey.SHARE_ACKNOWLEDGE, "share_acknowledge", "ShareAcknowledge", 1, 2, 0),
        Api(ApiKey.ADD_RAFT_VOTER, "add_raft_voter", "AddRaftVoter", 0, 1, 0),
        Api(ApiKey.REMOVE_RAFT_VOTER, "remove_raft_voter", "RemoveRaftVoter", 0, 0, 0),
        Api(
            ApiKey.INITIALIZE_SHARE_GROUP_STATE,
            "initialize_share_group_state",
            "InitializeShareGroupState",
            0,
            0,
            0,
        ),
        Api(ApiKey.READ_SHARE_GROUP_STATE, "read_share_group_state", "ReadShareGroupState", 0, 0, 0),
        Api(ApiKey.WRITE_SHARE_GROUP_STATE, "write_share_group_state", "WriteShareGroupState", 0, 1, 0),
        Api(ApiKey.DELETE_SHARE_GROUP_STATE, "delete_share_group_state", "DeleteShareGroupState", 0, 0, 0),
        Api(
            ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
            "read_share_group_state_summary",
            "ReadShareGroupStateSummary",
            0,
            1,
            0,
        ),
        Api(ApiKey.STREAMS_GROUP_HEARTBEAT, "streams_group_heartbeat", "StreamsGroupHeartbeat", 0, 0, 0),
        Api(ApiKey.STREAMS_GROUP_DESCRIBE, "streams_group_describe", "StreamsGroupDescribe", 0, 0, 0),
        Api(
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
            "describe_share_group_offsets",
            "DescribeShareGroupOffsets",
            0,
            1,
            0,
        ),
        Api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, "alter_share_group_offsets", "AlterShareGroupOffsets", 0, 0, 0),
        Api(
            ApiKey.DELETE_SHARE_GROUP_OFFSETS,
            "delete_share_group_offsets",
            "DeleteShareGroupOffsets",
            0,
            0,
            0,
        ),
    )
}
