"""Brokers of a few lines, some of which are cut off from what they go by, as from their database."""

from __future__ import annotations

from small_broker import SmallBroker, SmallBrokers

from coterie.base.codes import Code
from coterie.client.admin.admin import Admin
from coterie.client.net.cluster import Cluster
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import encode_response
from coterie.wire.api.entities import build, entity, response_type

OFFERED = {
    ApiKey.API_VERSIONS: (3, 3),
    ApiKey.METADATA: (12, 12),
    ApiKey.FIND_COORDINATOR: (4, 4),
    ApiKey.DELETE_GROUPS: (2, 2),
    ApiKey.LIST_GROUPS: (4, 4),
    ApiKey.INIT_PRODUCER_ID: (4, 4),
    ApiKey.DESCRIBE_CLUSTER: (0, 0),
    ApiKey.CREATE_TOPICS: (5, 5),
    ApiKey.DELETE_TOPICS: (6, 6),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (1, 1),
    ApiKey.ELECT_LEADERS: (2, 2),
    ApiKey.UPDATE_FEATURES: (2, 2),
}


class CutOffBrokers(SmallBrokers):
    """Brokers 1, 2 and so on; `controllers` has what each names as the controller. Changes come to `code`."""

    def __init__(self, *controllers: int, offered=OFFERED) -> None:
        self.controllers = [*controllers]
        self.code = Code.REQUEST_TIMED_OUT
        self.changes: list[int] = []
        """Who was sent one, each time."""
        self.cut_off_by_changes = self.away_after_changes = False
        self.leader: int | None = None
        """Who leads the partition of the topic that they know; None where they know of none."""
        self.outdated: set[int] = set()
        """Those that know neither the topic nor a group's coordinator, whatever the others do."""
        self.claims = False
        """Whether these say that they coordinate the group themselves."""
        numbers = range(1, len(controllers) + 1)
        self.brokers = [SmallBroker(self.answering(one), offered=offered) for one in numbers]

    def admin(self) -> Admin:
        """Return an administrator that knows broker 1, and gives up soon."""
        return Admin(str(self.brokers[0].address), default_api_timeout_ms=300, retry_backoff_ms=1)

    def cluster(self) -> Cluster:
        """Return a client's view of them that knows all, the first of which it asks first."""
        return Cluster([one.address for one in self.brokers], api_timeout_ms=5_000, retry_backoff_ms=1)

    def answering(self, broker_id):
        def react(header, _):
            key, version = header.api_key, header.api_version
            answers = {
                ApiKey.METADATA: self.metadata,
                ApiKey.DESCRIBE_CLUSTER: self.described,
                ApiKey.CREATE_TOPICS: self.changed,
                ApiKey.DELETE_TOPICS: self.deleted,
                ApiKey.FIND_COORDINATOR: self.coordinator,
                ApiKey.DELETE_GROUPS: self.group_deleted,
                ApiKey.LIST_GROUPS: self.groups_listed,
                ApiKey.INIT_PRODUCER_ID: self.identified,
                ApiKey.INCREMENTAL_ALTER_CONFIGS: self.configured,
                ApiKey.ELECT_LEADERS: self.elected,
                ApiKey.UPDATE_FEATURES: self.updated,
            }
            if self.away_after_changes and self.changes:
                return None
            fields = answers[key](broker_id, version)
            return encode_response(header.correlation_id, build(response_type(key, version), **fields))

        return react

    def metadata(self, broker_id, version):
        """The answer of a broker that has heard of the topic or not, whatever was changed."""
        kind = entity("metadata", version, "MetadataResponseTopic", "response")
        one = entity("metadata", version, "MetadataResponsePartition", "response")
        topic = build(kind, error_code=Code.UNKNOWN_TOPIC_OR_PARTITION, name="t", partitions=())
        if self.leader is not None and broker_id not in self.outdated:
            partitions = (
                build(one, error_code=0, partition_index=at, leader_id=self.leader) for at in range(3)
            )
            topic = build(kind, error_code=Code.NONE, name="t", partitions=tuple(partitions))
        kind = entity("metadata", version, "MetadataResponseBroker", "response")
        brokers = tuple(
            build(kind, node_id=number, host=one.address.host, port=one.address.port, rack=None)
            for number, one in enumerate(self.brokers, start=1)
            if number == broker_id or number not in self.outdated
        )
        return {"brokers": brokers, "topics": (topic,), "cluster_id": "c", "controller_id": 1}

    def described(self, broker_id, version):
        kind = entity("describe_cluster", version, "DescribeClusterBroker", "response")
        brokers = tuple(
            build(kind, broker_id=number, host=one.address.host, port=one.address.port, rack=None)
            for number, one in enumerate(self.brokers, start=1)
        )
        named = self.controllers[broker_id - 1]
        return {"error_code": 0, "cluster_id": "c", "controller_id": named, "brokers": brokers}

    def changed(self, broker_id, version):
        self.changes.append(broker_id)
        if self.cut_off_by_changes:
            self.controllers = [-1] * len(self.brokers)
        kind = entity("create_topics", version, "CreatableTopicResult", "response")
        return {"topics": (build(kind, name="t", error_code=self.code, num_partitions=3),)}

    def deleted(self, broker_id, version):
        self.changes.append(broker_id)
        kind = entity("delete_topics", version, "DeletableTopicResult", "response")
        return {"responses": (build(kind, name="t", error_code=self.code),)}

    def coordinator(self, broker_id, version):
        """The answer that the last broker coordinates the group."""
        kind = entity("find_coordinator", version, "Coordinator", "response")
        outdated = broker_id in self.outdated
        host, port = self.brokers[broker_id - 1 if outdated else -1].address
        code = Code.COORDINATOR_NOT_AVAILABLE if outdated and not self.claims else Code.NONE
        return {"coordinators": (build(kind, key="g", error_code=code, host=host, port=port),)}

    def identified(self, broker_id, _):
        """The answer with the broker's number as the producer's."""
        code = Code.COORDINATOR_NOT_AVAILABLE if broker_id in self.outdated else Code.NONE
        return {"error_code": code, "producer_id": broker_id, "producer_epoch": 0}

    def group_deleted(self, broker_id, version):
        self.changes.append(broker_id)
        kind = entity("delete_groups", version, "DeletableGroupResult", "response")
        return {"results": (build(kind, group_id="g", error_code=self.code),)}

    def groups_listed(self, broker_id, version):
        """The answer of the last broker that it coordinates the group, of others that they have none."""
        kind = entity("list_groups", version, "ListedGroup", "response")
        code = Code.COORDINATOR_NOT_AVAILABLE if broker_id in self.outdated else Code.NONE
        group = build(kind, group_id="g", protocol_type="consumer", group_state="Stable")
        return {"error_code": code, "groups": (group,) if broker_id == len(self.brokers) else ()}

    def configured(self, broker_id, version):
        self.changes.append(broker_id)
        kind = entity("incremental_alter_configs", version, "AlterConfigsResourceResponse", "response")
        return {"responses": (build(kind, error_code=self.code, resource_type=2, resource_name="t"),)}

    def elected(self, broker_id, version):
        """The answer that has a code for each partition, and none of its own."""
        self.changes.append(broker_id)
        kind = entity("elect_leaders", version, "ReplicaElectionResult", "response")
        one = entity("elect_leaders", version, "PartitionResult", "response")
        result = build(one, partition_id=0, error_code=self.code, error_message=None)
        return {
            "error_code": 0,
            "replica_election_results": (build(kind, topic="t", partition_result=(result,)),),
        }

    def updated(self, broker_id, _):
        self.changes.append(broker_id)
        return {"error_code": self.code, "error_message": None, "results": ()}
