"""Kafka's error codes by Kafka's names, and what a user can do about them.

A refusal inside the core is a value that carries one of these.
"""

from collections.abc import Mapping
from enum import IntEnum, unique


@unique
class Code(IntEnum):
    """Every error code of Apache Kafka 4.3, and the one that 4.4 adds."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133
    GROUP_DELETION_FAILED = 134


ALLOW = "the broker's administrator must allow it with an ACL"

ADVICE_BESIDE_REASON: Mapping[Code, str] = {Code.KAFKA_STORAGE_ERROR: "the broker's log says more"}
"""What to do where a broker has said what is wrong, of which the advice without that would be a guess."""
ADVICE: Mapping[Code, str] = {
    Code.OFFSET_OUT_OF_RANGE: "seek to an offset that the log has, or set auto_offset_reset",
    Code.CORRUPT_MESSAGE: "the batch was damaged on its way or on disk; send it again, or seek past it",
    Code.UNKNOWN_TOPIC_OR_PARTITION: "create the topic, or check its name and the partition's number",
    Code.INVALID_FETCH_SIZE: "raise max_partition_fetch_bytes",
    Code.LEADER_NOT_AVAILABLE: (
        "the partition has no leader just now: its broker has died, or does not reach its database;"
        " it is tried again until the time is up"
    ),
    Code.NOT_LEADER_OR_FOLLOWER: (
        "the broker does not lead the partition just now: it has moved, or the broker does not reach its"
        " database; it is tried again until the time is up"
    ),
    Code.REQUEST_TIMED_OUT: (
        "the broker was too slow, or does not reach its database; whether it was done is not known: look what"
        " holds the broker up"
    ),
    Code.BROKER_NOT_AVAILABLE: "a broker is down; look at its log",
    Code.REPLICA_NOT_AVAILABLE: "a replica is not there yet; it is tried again until the time is up",
    Code.MESSAGE_TOO_LARGE: "send less at once, or raise the topic's max.message.bytes",
    Code.OFFSET_METADATA_TOO_LARGE: "note less beside the offset, or raise offset.metadata.max.bytes",
    Code.NETWORK_EXCEPTION: "the connection broke; it is tried again until the time is up",
    Code.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator reads its log; it is tried again",
    Code.COORDINATOR_NOT_AVAILABLE: (
        "there is no coordinator just now; are enough brokers up, and do they reach their database?"
    ),
    Code.NOT_COORDINATOR: (
        "the broker is not the coordinator just now: that has moved, or the broker does not reach its"
        " database; the coordinator is looked for anew"
    ),
    Code.INVALID_TOPIC_EXCEPTION: "a topic's name has 1 to 249 letters, digits, '.', '_' and '-'",
    Code.RECORD_LIST_TOO_LARGE: "send less at once, or raise the topic's segment.bytes",
    Code.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas wants; bring brokers back",
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "it was written, but not by enough replicas; bring brokers back",
    Code.INVALID_REQUIRED_ACKS: "acks is 0, 1 or all",
    Code.ILLEGAL_GENERATION: "the group has rebalanced meanwhile; go on with what is assigned now",
    Code.INCONSISTENT_GROUP_PROTOCOL: "no assignor is supported by all members; give them one in common",
    Code.INVALID_GROUP_ID: "set a group_id that is not empty",
    Code.UNKNOWN_MEMBER_ID: "the group has dropped this member; poll more often",
    Code.INVALID_SESSION_TIMEOUT: "choose session_timeout_ms within the broker's bounds",
    Code.REBALANCE_IN_PROGRESS: "the group is rebalancing; go on polling and commit what is still assigned",
    Code.INVALID_COMMIT_OFFSET_SIZE: "commit fewer partitions at once",
    Code.TOPIC_AUTHORIZATION_FAILED: f"this user may not use the topic; {ALLOW}",
    Code.GROUP_AUTHORIZATION_FAILED: f"this user may not use the group; {ALLOW}",
    Code.CLUSTER_AUTHORIZATION_FAILED: f"this user may not do this to the cluster; {ALLOW}",
    Code.INVALID_TIMESTAMP: "the record's timestamp is further off than the topic's settings allow",
    Code.UNSUPPORTED_SASL_MECHANISM: "set sasl_mechanism to one that the listener offers",
    Code.ILLEGAL_SASL_STATE: "the listener wants no SASL, or wants it first; set security_protocol",
    Code.UNSUPPORTED_VERSION: "the broker is too old for this call, or too new; use another version",
    Code.TOPIC_ALREADY_EXISTS: "choose another name, or delete the topic first",
    Code.INVALID_PARTITIONS: "a topic has at least one partition, and never fewer than before",
    Code.INVALID_REPLICATION_FACTOR: "ask for at least one replica and no more than there are brokers",
    Code.INVALID_REPLICA_ASSIGNMENT: "name brokers that exist, none of them twice for a partition",
    Code.INVALID_CONFIG: "check the setting's name and value",
    Code.NOT_CONTROLLER: (
        "it has moved, or the cluster's brokers do not reach their database: it is looked for anew"
    ),
    Code.POLICY_VIOLATION: "a policy of the cluster forbids it; ask its administrator",
    Code.OUT_OF_ORDER_SEQUENCE_NUMBER: "records before this one were lost; begin again with a new producer",
    Code.INVALID_PRODUCER_EPOCH: "another producer has the same transactional id; give each one its own",
    Code.INVALID_TXN_STATE: "begin a transaction first, or end the one under way",
    Code.INVALID_PRODUCER_ID_MAPPING: "another has used the transactional id since; make a new producer",
    Code.INVALID_TRANSACTION_TIMEOUT: "lower transaction_timeout_ms to what the broker allows",
    Code.CONCURRENT_TRANSACTIONS: "the transaction before is not ended yet; try again in a moment",
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: f"this user may not use the transactional id; {ALLOW}",
    Code.SECURITY_DISABLED: "the broker has no authorizer; set authorizer.class.name there",
    Code.KAFKA_STORAGE_ERROR: "the broker cannot write to its disk, or to its database; look at its log",
    Code.SASL_AUTHENTICATION_FAILED: "check user name and password",
    Code.UNKNOWN_PRODUCER_ID: "the broker has forgotten the producer; begin with a new one",
    Code.REASSIGNMENT_IN_PROGRESS: "wait until the partitions have moved",
    Code.NON_EMPTY_GROUP: "stop the group's members first",
    Code.GROUP_ID_NOT_FOUND: "check the group's name; a group without offsets and members is gone",
    Code.TOPIC_DELETION_DISABLED: "set delete.topic.enable on the brokers",
    Code.FENCED_LEADER_EPOCH: "the partition has a new leader; it is tried again until the time is up",
    Code.UNKNOWN_LEADER_EPOCH: "the broker has not heard of the new leader yet; it is tried again",
    Code.UNSUPPORTED_COMPRESSION_TYPE: "choose a compression that the broker knows",
    Code.OFFSET_NOT_AVAILABLE: "the new leader does not know its end yet; it is tried again",
    Code.GROUP_MAX_SIZE_REACHED: "the group is full; raise group.max.size, or stop others",
    Code.FENCED_INSTANCE_ID: "another member has the same group_instance_id; give each one its own",
    Code.GROUP_SUBSCRIBED_TO_TOPIC: "the group reads the topic; stop its members first",
    Code.INVALID_RECORD: "the broker refuses the record; does its topic want keys?",
    Code.UNSTABLE_OFFSET_COMMIT: "a transaction over these offsets is open; it is tried again until it ends",
    Code.THROTTLING_QUOTA_EXCEEDED: "slow down, or have the quota raised",
    Code.PRODUCER_FENCED: "another producer has the same transactional id; give each one its own",
    Code.DUPLICATE_RESOURCE: "name each thing once",
    Code.RESOURCE_NOT_FOUND: "check the name",
    Code.UNKNOWN_TOPIC_ID: "the topic was deleted, and perhaps made anew; it is looked for again",
    Code.TRANSACTIONAL_ID_NOT_FOUND: "check the id; one that is not used for a week is forgotten",
    Code.UNRELEASED_INSTANCE_ID: "another member still has this group_instance_id; stop it first",
    Code.TRANSACTION_ABORTABLE: "abort the transaction and begin it again",
    Code.REBOOTSTRAP_REQUIRED: "the cluster behind these addresses has changed; connect anew",
}
"""What a user can do: refusals end with these sentences, docs/errors.md lists them.

A code that is not here says by its name all that there is to say, or is dealt with by the clients themselves.
"""
