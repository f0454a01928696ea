"""Replicas are moved while somebody deletes some of the topics: the others are, and that is told."""

from __future__ import annotations

from uuid import UUID

import pytest
from small_broker import brokers_beside

from coterie.base.codes import Code
from coterie.base.errors import RefusedBy
from coterie.base.ids import TopicPartition
from coterie.cli import main
from coterie.client import BlockingAdmin
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import encode_response
from coterie.wire.api.entities import build, entity, response_type

OFFERED = {
    ApiKey.API_VERSIONS: (3, 3),
    ApiKey.METADATA: (12, 12),
    ApiKey.DESCRIBE_CLUSTER: (1, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.ELECT_LEADERS: (2, 2),
}


class DeletedMeanwhile:
    """Brokers 1 to 3 at one address, whose topic `gone` is deleted as the first reassignment comes: before it
    is carried out, or with `late` just behind it. With `made_anew` one of its name is made at once.
    """

    def __init__(self, *, late: bool = False, made_anew: bool = False) -> None:
        self.late, self.made_anew = late, made_anew
        self.replicas = {(topic, number): (3, 1) for topic in ("gone", "stays") for number in range(2)}
        self.ids = {"gone": UUID(int=1), "stays": UUID(int=2)}
        self.address = None

    def react(self, header, request):
        key, version = header.api_key, header.api_version
        answers = {
            ApiKey.METADATA: self.metadata,
            ApiKey.DESCRIBE_CLUSTER: self.described,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: self.on_their_way,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: self.reassigned,
        }
        fields = answers[key](version, request)
        return encode_response(header.correlation_id, build(response_type(key, version), **fields))

    def brokers(self, kind, number_field):
        host, port = self.address
        return tuple(build(kind, host=host, port=port, rack=None, **{number_field: one}) for one in (1, 2, 3))

    def metadata(self, version, _):
        kind = entity("metadata", version, "MetadataResponseTopic", "response")
        one = entity("metadata", version, "MetadataResponsePartition", "response")
        topics = [
            build(
                kind,
                error_code=Code.NONE,
                name=name,
                topic_id=topic_id,
                partitions=tuple(
                    build(
                        one, error_code=0, partition_index=number, leader_id=replicas[0],
                        replica_nodes=replicas, isr_nodes=replicas, offline_replicas=(),
                    )
                    for (topic, number), replicas in self.replicas.items()
                    if topic == name
                ),
            )
            for name, topic_id in self.ids.items()
        ]  # fmt: skip
        kind = entity("metadata", version, "MetadataResponseBroker", "response")
        brokers = self.brokers(kind, "node_id")
        return {"brokers": brokers, "topics": tuple(topics), "cluster_id": "c", "controller_id": 1}

    def described(self, version, _):
        kind = entity("describe_cluster", version, "DescribeClusterBroker", "response")
        brokers = self.brokers(kind, "broker_id")
        return {"error_code": 0, "cluster_id": "c", "controller_id": 1, "brokers": brokers}

    def on_their_way(self, version, _):
        return {"error_code": 0, "error_message": None, "topics": ()}

    def reassigned(self, version, request):
        topic_type = entity("alter_partition_reassignments", version, "ReassignableTopicResponse", "response")
        kind = entity("alter_partition_reassignments", version, "ReassignablePartitionResponse", "response")
        if not self.late:
            self.delete()
        topics = []
        for topic in request.topics:
            partitions = []
            for one in topic.partitions:
                place = topic.name, one.partition_index
                there = place in self.replicas
                if there:
                    self.replicas[place] = tuple(one.replicas)
                code = Code.NONE if there else Code.UNKNOWN_TOPIC_OR_PARTITION
                partitions.append(build(kind, partition_index=place[1], error_code=code, error_message=None))
            topics.append(build(topic_type, name=topic.name, partitions=tuple(partitions)))
        self.delete()
        if self.made_anew:
            self.ids["gone"] = UUID(int=3)
            self.replicas |= {("gone", number): (2, 1) for number in range(2)}
        return {"error_code": 0, "error_message": None, "responses": tuple(topics)}

    def delete(self):
        self.ids.pop("gone", None)
        self.replicas = {place: them for place, them in self.replicas.items() if place[0] != "gone"}


@pytest.fixture
def start():
    with brokers_beside() as starting:

        def started(deleted):
            deleted.address = starting(deleted.react, offered=OFFERED)
            return str(deleted.address)

        yield started


@pytest.mark.parametrize("late", [False, True])
def test_drain_leaves_out_topics_that_are_deleted_meanwhile_and_reports_on_the_others(
    start, late: bool, capsys: pytest.CaptureFixture[str]
):
    """Found by a reviewer: it asked for 15 s, told to create the topic, and of what had moved nothing."""
    brokers = DeletedMeanwhile(late=late)

    with pytest.raises(SystemExit) as ended:
        main(["cluster", "drain", "3", "-b", start(brokers)])

    said = capsys.readouterr()
    assert (ended.value.code, said.err) == (0, "")
    first, _, *rest = said.out.splitlines()  # the second is that broker 2 held none
    assert first == "to broker 2: stays 0-1"
    assert rest == ["deleted meanwhile: gone 0-1", "broker 3 holds no partitions"]


@pytest.mark.parametrize("made_anew", [False, True])
def test_balance_leaves_out_topics_that_are_deleted_meanwhile_and_does_not_wait_for_others_of_their_names(
    start, made_anew: bool, capsys: pytest.CaptureFixture[str]
):
    brokers = DeletedMeanwhile(late=made_anew, made_anew=made_anew)

    with pytest.raises(SystemExit) as ended:
        main(["cluster", "balance", "--replicas", "3", "--timeout", "0", "-b", start(brokers)])

    said = capsys.readouterr()
    assert (ended.value.code, said.err) == (0, "")
    assert "with more replicas than before: stays 0-1\n" in said.out
    assert said.out.endswith("2 partitions moved\ndeleted meanwhile: gone 0-1\n")


def test_whoever_moves_what_there_is_not_is_told_so_at_once_with_its_names_and_the_rest_is_moved(start):
    brokers = DeletedMeanwhile()
    wanted = {TopicPartition(topic, 0): [2, 1] for topic in ("gone", "stays")}

    with BlockingAdmin(start(brokers)) as admin, pytest.raises(RefusedBy) as raised:
        admin.alter_partition_reassignments(wanted)

    assert raised.value.code is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert "there is no gone-0; what there is was moved" in str(raised.value)
    assert brokers.replicas["stays", 0] == (2, 1)
