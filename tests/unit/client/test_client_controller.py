"""Where an administrator's changes go while brokers do not reach their database, and what is said of them."""

from __future__ import annotations

import asyncio

import pytest
from small_broker import SmallBroker

from coterie.base.codes import Code
from coterie.client.admin.admin import Admin
from coterie.client.errors import ClientTimeout
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import encode_response
from coterie.wire.api.entities import build, entity, response_type

OFFERED = {
    ApiKey.METADATA: (12, 12),
    ApiKey.DESCRIBE_CLUSTER: (0, 0),
    ApiKey.CREATE_TOPICS: (5, 5),
}


class CutOffBrokers:
    """Brokers 1 and 2; `controllers` has what each names as the controller. Changes come to `code`."""

    def __init__(self, *controllers: int) -> None:
        self.controllers = [*controllers]
        self.code = Code.REQUEST_TIMED_OUT
        self.changes: list[int] = []
        """Who was sent one, each time."""
        self.cut_off_by_changes = False
        self.brokers = [SmallBroker(self.answering(one), offered=OFFERED) for one in (1, 2)]

    async def __aenter__(self):
        for broker in self.brokers:
            await broker.__aenter__()
        return self

    async def __aexit__(self, *_):
        for broker in self.brokers:
            await broker.__aexit__()

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
            }
            fields = answers[key](broker_id, version)
            return encode_response(header.correlation_id, build(response_type(key, version), **fields))

        return react

    def metadata(self, _, version):
        """The answer of a broker that has not heard of the topic, whatever was changed."""
        kind = entity("metadata", version, "MetadataResponseTopic", "response")
        unknown = build(kind, error_code=Code.UNKNOWN_TOPIC_OR_PARTITION, name="t", partitions=())
        return {"brokers": (), "topics": (unknown,), "cluster_id": "c", "controller_id": 1}

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
            self.controllers = [-1, -1]
        kind = entity("create_topics", version, "CreatableTopicResult", "response")
        return {"topics": (build(kind, name="t", error_code=self.code, num_partitions=3),)}


def scene(brokers: CutOffBrokers) -> str:
    """What an administrator who creates a topic is told."""

    async def create() -> str:
        async with brokers, brokers.admin() as admin:
            with pytest.raises(ClientTimeout) as raised:
                await admin.create_topic("t")
        return str(raised.value)

    return asyncio.run(create())


def test_a_broker_that_is_cut_off_alone_is_passed_over_for_one_that_knows_the_controller():
    brokers = CutOffBrokers(-1, 2)

    scene(brokers)

    assert {*brokers.changes} == {2}


def test_where_no_broker_takes_changes_nothing_is_sent_and_that_is_said_with_what_to_do():
    brokers = CutOffBrokers(-1, -1)

    said = scene(brokers)

    assert not brokers.changes
    assert said.startswith("CreateTopics of t: for 0.3 s no broker has taken changes: ")
    assert "nothing was changed; check PostgreSQL" in said
    assert "timeout" not in said


def test_a_change_that_was_sent_before_the_brokers_were_cut_off_may_have_been_made_and_that_is_said():
    brokers = CutOffBrokers(1, 1)
    brokers.cut_off_by_changes = True

    said = scene(brokers)

    assert brokers.changes == [1]
    assert "this may have been done before" in said
    assert "nothing was changed" not in said


def test_of_a_topic_that_was_made_and_that_who_is_asked_does_not_know_it_is_said_that_it_is_there():
    brokers = CutOffBrokers(-1, 2)
    brokers.code = Code.NONE

    said = scene(brokers)

    assert brokers.changes == [2]
    assert said.startswith("topic t has 3 partitions now, but whoever was asked does not know who leads them")


def test_who_was_asked_for_the_cluster_is_known():
    async def ask() -> bool:
        async with CutOffBrokers(1, 1) as brokers, brokers.admin() as admin:
            return (await admin.describe_cluster()).said_by == brokers.brokers[0].address

    assert asyncio.run(ask())
