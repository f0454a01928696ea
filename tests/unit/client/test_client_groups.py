"""What an administrator is told of groups of other kinds, and of a change whose broker is gone at first."""

from __future__ import annotations

import asyncio
import socket

import pytest
from small_broker import SmallBroker

from coterie.base.codes import Code
from coterie.base.errors import CoterieError
from coterie.client.admin.admin import Admin
from coterie.client.admin.groups import NoSuchGroup, OtherKind
from coterie.client.net.addresses import Address
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import (
    encode_response,
)
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)

OFFERED = {
    ApiKey.METADATA: (0, 12),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.DESCRIBE_GROUPS: (0, 6),
    ApiKey.LIST_GROUPS: (0, 5),
}


class Coordinator:
    """Coordinates one group of a kind; as Apache Kafka 4 does, it describes none but classic ones."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.broker = SmallBroker(self.react, offered=OFFERED)

    def react(self, header, request):
        key, version = header.api_key, header.api_version
        answers = {
            ApiKey.METADATA: self.metadata,
            ApiKey.FIND_COORDINATOR: self.found,
            ApiKey.DESCRIBE_GROUPS: self.described,
            ApiKey.LIST_GROUPS: self.listed,
        }
        return encode_response(
            header.correlation_id, build(response_type(key, version), **answers[key](version))
        )

    def metadata(self, version):
        kind, address = (
            entity("metadata", version, "MetadataResponseBroker", "response"),
            self.broker.address,
        )
        one = build(kind, node_id=1, host=address.host, port=address.port, rack=None)
        return {"brokers": (one,), "topics": (), "cluster_id": "c", "controller_id": 1}

    def found(self, version):
        kind, address = entity("find_coordinator", version, "Coordinator", "response"), self.broker.address
        where = {"host": address.host, "port": address.port, "error_code": 0, "error_message": None}
        return {"coordinators": (build(kind, key="g", node_id=1, **where),)}

    def described(self, version):
        kind = entity("describe_groups", version, "DescribedGroup", "response")
        group = build(
            kind,
            error_code=Code.GROUP_ID_NOT_FOUND,
            error_message="Group g is not a classic group.",
            group_id="g",
            group_state="Dead",
            protocol_type="",
            protocol_data="",
            members=(),
        )
        return {"groups": (group,)}

    def listed(self, version):
        kind = entity("list_groups", version, "ListedGroup", "response")
        group = build(
            kind, group_id="g", protocol_type="consumer", group_state="Stable", group_type=self.kind
        )
        return {"error_code": 0, "groups": (group,) if self.kind else ()}


def describe(kind: str) -> NoSuchGroup:
    async def scenario():
        coordinator = Coordinator(kind)
        async with coordinator.broker, Admin(str(coordinator.broker.address)) as admin:
            with pytest.raises(NoSuchGroup) as refused:
                await admin.describe_group("g")
            return refused.value

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    ("kind", "tool"),
    [
        ("Consumer", "kafka-consumer-groups.sh (KIP-848)"),
        ("Share", "kafka-share-groups.sh (KIP-932)"),
        ("Streams", "kafka-streams-groups.sh (KIP-1071)"),
    ],
)
def test_a_group_of_another_kind_is_named_and_who_shows_it(kind: str, tool: str) -> None:
    refused = describe(kind)

    assert isinstance(refused, OtherKind)
    assert str(refused) == (
        f"group g is a {kind.lower()} group; members are shown of classic groups only, {tool} shows those"
    )


def test_a_group_that_nobody_lists_is_not_there() -> None:
    refused = describe("")

    assert not isinstance(refused, OtherKind)
    assert str(refused).startswith("there is no classic group g (Group g is not a classic group.)")


class Moving:
    """Has nothing that is to be changed; at first it names another broker, which is gone."""

    def __init__(self) -> None:
        changes = {ApiKey.LEAVE_GROUP: (4, 4), ApiKey.DELETE_GROUPS: (2, 2), ApiKey.CREATE_TOPICS: (5, 5)}
        offered = {**OFFERED, **changes, ApiKey.DESCRIBE_CLUSTER: (0, 0)}
        self.broker = SmallBroker(self.react, offered=offered)
        with socket.socket() as gone:
            gone.bind(("127.0.0.1", 0))
            self.gone = [Address("127.0.0.1", gone.getsockname()[1])]

    @property
    def named(self) -> dict[str, object]:
        """Where to ask: first the broker that is gone, then this one."""
        address = self.gone.pop() if self.gone else self.broker.address
        return {"host": address.host, "port": address.port}

    def react(self, header, request):
        key, version = header.api_key, header.api_version
        answers = {
            ApiKey.METADATA: self.metadata,
            ApiKey.FIND_COORDINATOR: lambda version: {"coordinators": (self.coordinator(version),)},
            ApiKey.DESCRIBE_CLUSTER: self.cluster,
            ApiKey.LEAVE_GROUP: lambda version: {
                "members": (
                    build(
                        entity("leave_group", version, "MemberResponse", "response"),
                        member_id="m",
                        group_instance_id=None,
                        error_code=Code.UNKNOWN_MEMBER_ID,
                    ),
                )
            },
            ApiKey.DELETE_GROUPS: lambda version: {
                "results": (
                    build(
                        entity("delete_groups", version, "DeletableGroupResult", "response"),
                        group_id="g",
                        error_code=Code.GROUP_ID_NOT_FOUND,
                    ),
                )
            },
            ApiKey.CREATE_TOPICS: lambda version: {
                "topics": (
                    build(
                        entity("create_topics", version, "CreatableTopicResult", "response"),
                        name="t",
                        error_code=Code.TOPIC_ALREADY_EXISTS,
                    ),
                )
            },
        }
        return encode_response(
            header.correlation_id, build(response_type(key, version), **answers[key](version))
        )

    def coordinator(self, version):
        kind = entity("find_coordinator", version, "Coordinator", "response")
        return build(kind, key="g", node_id=1, error_code=0, error_message=None, **self.named)

    def cluster(self, version):
        kind = entity("describe_cluster", version, "DescribeClusterBroker", "response")
        one = build(kind, broker_id=1, rack=None, **self.named)
        return {"error_code": 0, "cluster_id": "c", "controller_id": 1, "brokers": (one,)}

    def metadata(self, version):
        kind, address = entity("metadata", version, "MetadataResponseBroker", "response"), self.broker.address
        one = build(kind, node_id=1, host=address.host, port=address.port, rack=None)
        return {"brokers": (one,), "topics": (), "cluster_id": "c", "controller_id": 1}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda admin: admin.evict_member("g", member_id="m"), "group g has no member with member id m"),
        (lambda admin: admin.delete_group("g"), "there is no classic group g"),
        (lambda admin: admin.create_topic("t"), "TOPIC_ALREADY_EXISTS: topic t"),
    ],
    ids=["evict", "delete", "create"],
)
def test_a_try_without_a_connection_is_none_that_may_have_done_it(change, says: str) -> None:
    """What is refused afterwards was not done by an earlier try: none of them was sent."""

    async def scenario():
        moving = Moving()
        async with moving.broker, Admin(str(moving.broker.address), retry_backoff_ms=1) as admin:
            await change(admin)

    with pytest.raises(CoterieError, match=says):
        asyncio.run(scenario())
