"""Where an administrator's changes go while brokers do not reach their database, and what is said of them."""

from __future__ import annotations

import asyncio

import pytest
from small_broker import SmallBroker, SmallBrokers

from coterie.base.codes import Code
from coterie.base.errors import RefusedBy
from coterie.base.ids import TopicPartition
from coterie.client.admin.admin import Admin
from coterie.client.admin.messages import FeatureLevels, Resource
from coterie.client.errors import ClientTimeout, Disconnected
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import encode_response
from coterie.wire.api.entities import build, entity, response_type

OFFERED = {
    ApiKey.API_VERSIONS: (3, 3),
    ApiKey.METADATA: (12, 12),
    ApiKey.FIND_COORDINATOR: (4, 4),
    ApiKey.DELETE_GROUPS: (2, 2),
    ApiKey.DESCRIBE_CLUSTER: (0, 0),
    ApiKey.CREATE_TOPICS: (5, 5),
    ApiKey.DELETE_TOPICS: (6, 6),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (1, 1),
    ApiKey.ELECT_LEADERS: (2, 2),
    ApiKey.UPDATE_FEATURES: (2, 2),
}
T0 = TopicPartition("t", 0)


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
        numbers = range(1, len(controllers) + 1)
        self.brokers = [SmallBroker(self.answering(one), offered=offered) for one in numbers]

    def admin(self) -> Admin:
        """Return an administrator that knows broker 1, and gives up soon."""
        return Admin(str(self.brokers[0].address), default_api_timeout_ms=300, retry_backoff_ms=1)

    def answering(self, broker_id):
        def react(header, _):
            key, version = header.api_key, header.api_version
            answers = {
                ApiKey.METADATA: self.metadata,
                ApiKey.DESCRIBE_CLUSTER: self.cluster,
                ApiKey.CREATE_TOPICS: self.changed,
                ApiKey.DELETE_TOPICS: self.deleted,
                ApiKey.FIND_COORDINATOR: self.coordinator,
                ApiKey.DELETE_GROUPS: self.group_deleted,
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
        )
        return {"brokers": brokers, "topics": (topic,), "cluster_id": "c", "controller_id": 1}

    def cluster(self, broker_id, version):
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
        host, port = self.brokers[-1].address
        code = Code.COORDINATOR_NOT_AVAILABLE if broker_id in self.outdated else Code.NONE
        return {"coordinators": (build(kind, key="g", error_code=code, host=host, port=port),)}

    def group_deleted(self, broker_id, version):
        self.changes.append(broker_id)
        kind = entity("delete_groups", version, "DeletableGroupResult", "response")
        return {"results": (build(kind, group_id="g", error_code=self.code),)}

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


def scene(brokers: CutOffBrokers, change=lambda admin: admin.create_topic("t")) -> str:
    """What an administrator is told who changes something, by default creates a topic."""
    return str(error_of(brokers, change))


def error_of(brokers: CutOffBrokers, change=lambda admin: admin.create_topic("t")) -> ClientTimeout:
    """What an administrator's change ends with."""

    async def create() -> ClientTimeout:
        async with brokers, brokers.admin() as admin:
            with pytest.raises(ClientTimeout) as raised:
                await change(admin)
        return raised.value

    return asyncio.run(create())


def result_of(brokers: CutOffBrokers, change):
    """What an administrator gets who asks for something that is done."""

    async def ask():
        async with brokers, brokers.admin() as admin:
            return await change(admin)

    return asyncio.run(ask())


def test_a_broker_that_is_cut_off_alone_is_passed_over_for_one_that_knows_the_controller():
    brokers = CutOffBrokers(-1, 2)

    scene(brokers)

    assert {*brokers.changes} == {2}


ON_NAMES = {
    "create": lambda admin: admin.create_topic("t"),
    "delete": lambda admin: admin.delete_topic("t"),
    "delete a group": lambda admin: admin.delete_group("g"),
    "configure": lambda admin: admin.alter_configs(Resource.topic("t"), put={"retention.ms": 1}),
}


@pytest.mark.parametrize("change", ON_NAMES)
def test_what_is_asked_before_a_change_and_after_it_is_not_asked_of_a_broker_that_is_cut_off(change):
    """Found by a reviewer: the change was made, and then the broker asked that had not heard of the topic."""
    brokers = CutOffBrokers(-1, 2)
    brokers.code, brokers.leader, brokers.outdated = Code.NONE, 2, {1}

    result_of(brokers, ON_NAMES[change])

    assert brokers.changes == [2]


def test_a_topic_is_looked_up_at_a_broker_that_is_not_cut_off_and_so_are_all_of_them():
    brokers = CutOffBrokers(-1, 2)
    brokers.leader, brokers.outdated = 2, {1}

    (listed,) = result_of(brokers, lambda admin: admin.list_topics())
    described = result_of(brokers, lambda admin: admin.describe_topics(["t"]))

    assert (listed.name, [*described]) == ("t", ["t"])


def test_a_broker_that_is_silent_holds_up_no_answer_of_another_that_knows_the_controller():
    """Found by a reviewer: they were asked one after the other, each for as long as a request may take."""
    brokers = CutOffBrokers(-1, 3, 3)

    async def ask():
        async with brokers, brokers.admin() as admin, asyncio.timeout(5):  # a request may take 30 s
            brokers.brokers[1].may_answer.clear()
            found = await admin.describe_cluster()
            brokers.brokers[1].may_answer.set()
            return found

    found = asyncio.run(ask())

    assert (found.controller_id, found.said_by) == (3, brokers.brokers[2].address)
    assert found.cut_off == brokers.brokers[0].address


CHANGES = {
    "CreateTopics of t": lambda admin: admin.create_topic("t"),
    "ElectLeaders": lambda admin: admin.elect_leaders([T0]),
    "UpdateFeatures of coterie.level": lambda admin: admin.update_feature("coterie.level", 2),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_brokers_refuse_of_which_none_knows_a_controller_is_said_with_what_may_be_and_what_to_do(what):
    brokers = CutOffBrokers(-1, -1)

    said = scene(brokers, CHANGES[what])

    assert {*brokers.changes} == {1}
    assert said.startswith(f"{what}: for 0.3 s the cluster has written no changes (REQUEST_TIMED_OUT): ")
    assert "this may have been done, or be done yet: look once it is back; check PostgreSQL" in said
    assert "nothing was changed" not in said
    assert "timeout" not in said


def test_where_no_broker_takes_changes_nothing_was_changed_and_that_is_said():
    """Apache Kafka's without a controller."""
    brokers = CutOffBrokers(-1, -1)
    brokers.code = Code.NOT_CONTROLLER

    said = scene(brokers)

    assert "has written no changes (NOT_CONTROLLER): " in said
    assert "nothing was changed; check PostgreSQL" in said


def test_brokers_that_never_name_a_controller_are_sent_changes_all_the_same():
    """Found by a reviewer: there are services of Kafka's protocol whose brokers do not, and take changes."""
    brokers = CutOffBrokers(-1, -1)
    brokers.code = Code.NONE
    brokers.leader = 1

    result_of(brokers, lambda admin: admin.alter_configs(Resource.topic("t"), put={"retention.ms": 1}))
    levels = result_of(brokers, lambda admin: admin.describe_feature("coterie.level"))

    assert brokers.changes == [1]
    assert levels == FeatureLevels(0, 0)


def test_what_goes_wrong_with_a_change_for_another_reason_is_said_though_no_broker_names_a_controller():
    brokers = CutOffBrokers(-1, -1)
    brokers.code = Code.KAFKA_STORAGE_ERROR

    said = scene(brokers)

    assert said.startswith("CreateTopics of t: tried for 0.3 s, last KAFKA_STORAGE_ERROR: ")
    assert "PostgreSQL" not in said


def test_elections_that_are_late_are_told_of_by_partition_where_there_is_a_controller():
    brokers = CutOffBrokers(1, 1)

    assert result_of(brokers, CHANGES["ElectLeaders"]) == {T0: Code.REQUEST_TIMED_OUT}


def test_brokers_without_describe_cluster_have_their_topics_settings_changed_by_any_of_them():
    """Found by a reviewer: those of Kafka before 2.8 were said to know no DescribeCluster."""
    old = {key: versions for key, versions in OFFERED.items() if key is not ApiKey.DESCRIBE_CLUSTER}
    brokers = CutOffBrokers(1, 1, offered=old)
    brokers.code = Code.NONE
    brokers.leader = 1

    result_of(brokers, lambda admin: admin.alter_configs(Resource.topic("t"), put={"retention.ms": 1}))

    assert brokers.changes == [1]


def test_a_change_that_was_sent_before_the_brokers_were_cut_off_may_have_been_made_and_that_is_said():
    brokers = CutOffBrokers(1, 1)
    brokers.cut_off_by_changes = True

    said = scene(brokers)

    assert brokers.changes[0] == 1
    assert "this may have been done" in said
    assert "nothing was changed" not in said


def test_of_a_topic_that_was_made_and_that_who_is_asked_does_not_know_it_is_said_that_it_is_there():
    brokers = CutOffBrokers(-1, 2)
    brokers.code = Code.NONE

    error = error_of(brokers)

    assert brokers.changes == [2]
    assert str(error).startswith("topic t has 3 partitions now, but whoever was asked does not know")
    assert isinstance(error.last, RefusedBy)
    assert error.last.code is Code.LEADER_NOT_AVAILABLE


def test_of_a_topic_that_was_made_by_brokers_that_are_gone_then_it_is_said_that_they_are_gone():
    """Found by a reviewer: whatever went wrong was said to be that they did not know the leaders."""
    brokers = CutOffBrokers(1, 1)
    brokers.code = Code.NONE
    brokers.away_after_changes = True

    error = error_of(brokers)

    assert str(error).startswith("topic t has 3 partitions now, but Metadata of t: tried for 0.3 s, last ")
    assert isinstance(error.last, Disconnected)
    assert str(error).endswith(str(error.last))


@pytest.mark.parametrize("controllers", [(1, 1), (-1, -1)])
def test_who_was_asked_for_the_cluster_is_known(controllers):
    brokers = CutOffBrokers(*controllers)

    found = result_of(brokers, lambda admin: admin.describe_cluster())

    first = brokers.brokers[0].address
    assert (found.said_by, found.cut_off) == (first, None if controllers == (1, 1) else first)
