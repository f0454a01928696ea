"""The questions: of every version of an API, what is plain, what is refused, and what makes no sense."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

from coterie.wire.api.apis import APIS
from coterie.wire.api.entities import (
    build,
    entity,
    request_type,
)

__all__ = ["ASKED", "TOPICS", "questions"]

TOPICS = {"probe": 3, "probe2": 2}
ABSENT = "nope"
SPAN = datetime.timedelta(seconds=1)
Questions = Iterator[dict[str, Any]]


def part(api: str, version: int, kind: str, /, **values: Any) -> Any:
    return build(entity(api, version, kind), **values)


def questions(key: int) -> Iterator[Any]:
    """Yield the requests about one API, of every version that is served."""
    api = APIS[key]
    for version in range(api.served_from, api.most + 1):
        for values in ASKED[key](version):
            yield build(request_type(key, version), **values)


def sasl_handshake(version: int) -> Questions:
    yield from ({"mechanism": name} for name in ("PLAIN", "SCRAM-SHA-256", ""))


def sasl_authenticate(version: int) -> Questions:
    yield {"auth_bytes": b"\0user\0password"}


def metadata(version: int) -> Questions:
    for wanted in (True, False):
        yield {"topics": (), "include_cluster_authorized_operations": wanted}


def api_versions(version: int) -> Questions:
    names = ("apache-kafka-java", "", "a b", "a", "-a", "a.", "a\n", "A9-.z", "é")
    for name in names:
        yield {"client_software_name": name, "client_software_version": "1"}
    for number in ("", "1 ", "1+x"):
        yield {"client_software_name": "a", "client_software_version": number}


# -- ACLs


def describe_acls(version: int) -> Questions:
    for resource, pattern, operation, permission in (
        (1, 1, 1, 1), (2, 3, 1, 1), (9, 9, 9, 9), (0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0),
    ):  # fmt: skip
        yield {
            "resource_type_filter": resource,
            "resource_name_filter": None,
            "pattern_type_filter": pattern,
            "principal_filter": None,
            "host_filter": None,
            "operation": operation,
            "permission_type": permission,
        }


def create_acls(version: int) -> Questions:
    def creation(resource: int = 2, pattern: int = 3, operation: int = 3, permission: int = 3) -> Any:
        return part(
            "create_acls", version, "AclCreation", resource_type=resource, resource_name="t",
            resource_pattern_type=pattern, principal="User:x", host="*", operation=operation,
            permission_type=permission,
        )  # fmt: skip

    yield {"creations": ()}
    yield {"creations": (creation(), creation())}
    for unknown in ({"resource": 0}, {"pattern": 0}, {"operation": 0}, {"permission": 0}):
        yield {"creations": (creation(), creation(**unknown))}


def delete_acls(version: int) -> Questions:
    filters = tuple(
        part("delete_acls", version, "DeleteAclsFilter", **values) for values in describe_acls(version)
    )
    yield {"filters": ()}
    yield {"filters": filters[:2]}
    yield from ({"filters": (filters[0], other)} for other in filters[2:])


# -- tokens and users


def create_delegation_token(version: int) -> Questions:
    yield {"renewers": (), "max_lifetime": SPAN}
    if version >= 3:
        owner = {"owner_principal_type": "User", "owner_principal_name": "bob"}
        yield {"renewers": (), "max_lifetime": SPAN, **owner}


def renew_delegation_token(version: int) -> Questions:
    yield {"hmac": b"h", "renew_period": SPAN}


def expire_delegation_token(version: int) -> Questions:
    yield {"hmac": b"h", "expiry_time_period": SPAN}


def describe_delegation_token(version: int) -> Questions:
    yield from ({"owners": owners} for owners in (None, ()))


def describe_user_scram_credentials(version: int) -> Questions:
    for names in (None, (), ("bob",), ("bob", "bob"), ("a", "b"), ("",)):
        users = None if names is None else tuple(
            part("describe_user_scram_credentials", version, "UserName", name=name) for name in names
        )  # fmt: skip
        yield {"users": users}


def alter_user_scram_credentials(version: int) -> Questions:
    api = "alter_user_scram_credentials"

    def deletions(*whom: tuple[str, int]) -> Any:
        kind = "ScramCredentialDeletion"
        return tuple(part(api, version, kind, name=name, mechanism=how) for name, how in whom)

    yield {"deletions": (), "upsertions": ()}
    for whom in ((("bob", 1), ("al", 2)), (("bob", 0), ("", 1)), (("bob", 1), ("bob", 1))):
        yield {"deletions": deletions(*whom), "upsertions": ()}
    for name, mechanism, iterations in (
        ("bob", 1, 4095),
        ("bob", 1, 99_999),
        ("bob", 7, 4096),
        ("", 1, 4096),
    ):
        upsertion = part(
            api, version, "ScramCredentialUpsertion", name=name, mechanism=mechanism, iterations=iterations,
            salt=b"s", salted_password=b"p",
        )  # fmt: skip
        yield {"deletions": (), "upsertions": (upsertion,)}


# -- quotas


def describe_client_quotas(version: int) -> Questions:
    for filters in (
        (), (("user", 2, None),), (("user", 0, "bob"),), (("user", 1, None), ("client-id", 0, "c")),
        (("ip", 0, "1.2.3.4"),), (("ip", 0, "nonsense"),), (("nonsense", 0, "x"),),
        (("user", 0, "a"), ("user", 0, "b")), (("ip", 0, "1.2.3.4"), ("user", 2, None)), (("user", 7, "x"),),
        (("user", 0, None),), (("user", 1, "x"),), (("user", 2, "x"),), (("", 0, "x"),),
    ):  # fmt: skip
        components = tuple(
            part(
                "describe_client_quotas", version, "ComponentData",
                entity_type=kind, match_type=how, match=match,
            )
            for kind, how, match in filters
        )  # fmt: skip
        yield {"components": components, "strict": len(components) % 2 == 1}


def alter_client_quotas(version: int) -> Questions:
    api = "alter_client_quotas"
    yield {"entries": (), "validate_only": False}
    for whose, what in (
        ((("user", "bob"),), ("producer_byte_rate", 0.0, True)),
        ((("user", "bob"), ("client-id", None)), ("request_percentage", 0.0, True)),
        ((("user", "bob"),), None),
        ((("nonsense", "x"),), ("producer_byte_rate", 1e6, False)),
        ((("user", "bob"),), ("nonsense", 1.0, False)),
        ((("user", "bob"),), ("connection_creation_rate", 1.0, False)),
        ((("ip", "1.2.3.4"),), ("producer_byte_rate", 1.0, False)),
        ((("ip", "1.2.3.4"), ("user", "bob")), ("producer_byte_rate", 1.0, False)),
        ((("user", "bob"),), ("producer_byte_rate", -1.0, False)),
        ((), ("producer_byte_rate", 1e6, False)),
    ):
        entities = tuple(
            part(api, version, "EntityData", entity_type=kind, entity_name=name) for kind, name in whose
        )
        ops: tuple[Any, ...] = ()
        if what is not None:
            key, value, remove = what
            ops = (part(api, version, "OpData", key=key, value=value, remove=remove),)
        entry = part(api, version, "EntryData", entity=entities, ops=ops)
        yield {"entries": (entry,), "validate_only": True}


# -- where replicas lie


def elect_leaders(version: int) -> Questions:
    def partitions(*named: tuple[str, tuple[int, ...]]) -> Any:
        return tuple(
            part("elect_leaders", version, "TopicPartitions", topic=topic, partitions=numbers)
            for topic, numbers in named
        )

    asked = (None, (), partitions(("probe", (0, 1, 9, -1)), (ABSENT, (0,))), partitions(("probe", (0, 0))))
    for kind in (0, 1, 2, -1) if version >= 1 else (0,):
        for topics in asked:
            values = {"election_type": kind} if version >= 1 else {}
            yield {"topic_partitions": topics, "timeout": SPAN, **values}


def alter_partition_reassignments(version: int) -> Questions:
    api = "alter_partition_reassignments"

    def topic(name: str, numbers: tuple[int, ...], replicas: tuple[int, ...] | None) -> Any:
        kind = "ReassignablePartition"
        partitions = tuple(
            part(api, version, kind, partition_index=number, replicas=replicas) for number in numbers
        )
        return part(api, version, "ReassignableTopic", name=name, partitions=partitions)

    node = 1
    more: tuple[dict[str, bool], ...] = ({},)
    if version >= 1:
        more = ({}, {"allow_replication_factor_change": False})
    for extra in more:
        yield {"topics": (), "timeout": SPAN, **extra}
        for replicas in (None, (node,), (99,), (node, 99), (), (node, node), (-5,)):
            topics = (topic("probe", (0, 9, -1), replicas), topic(ABSENT, (0,), replicas))
            yield {"topics": topics, "timeout": SPAN, **extra}
        yield {"topics": (topic("probe", (0, 0), (node,)),), "timeout": SPAN, **extra}


def list_partition_reassignments(version: int) -> Questions:
    named = part(
        "list_partition_reassignments", version, "ListPartitionReassignmentsTopics", name="probe",
        partition_indexes=(0, 9),
    )  # fmt: skip
    yield from ({"topics": topics, "timeout": SPAN} for topics in (None, (), (named,)))


def alter_replica_log_dirs(version: int) -> Questions:
    api = "alter_replica_log_dirs"
    topics = tuple(
        part(api, version, "AlterReplicaLogDirTopic", name=name, partitions=numbers)
        for name, numbers in (("probe", (0, 9)), (ABSENT, (0,)))
    )
    yield {"dirs": ()}
    for path in ("/nowhere", "relative"):
        yield {"dirs": (part(api, version, "AlterReplicaLogDir", path=path, topics=topics),)}


def describe_quorum(version: int) -> Questions:
    def topic(name: str, *numbers: int) -> Any:
        partitions = tuple(
            part("describe_quorum", version, "PartitionData", partition_index=number) for number in numbers
        )
        return part("describe_quorum", version, "TopicData", topic_name=name, partitions=partitions)

    metadata_log = "__cluster_metadata"
    for topics in (
        (), (topic(metadata_log, 0),), (topic(metadata_log, 1),), (topic(metadata_log, 0, 0),),
        (topic("probe", 0),), (topic(metadata_log, 0), topic("probe", 0)),
    ):  # fmt: skip
        yield {"topics": topics}


# -- listings


def list_config_resources(version: int) -> Questions:
    if version == 0:
        yield {}
        return
    for kinds in ((), (2,), (4,), (2, 4), (8,), (16,), (32,), (64,), (0,), (4, 4, 2), (-1,), (2, 64)):
        yield {"resource_types": kinds}


def describe_topic_partitions(version: int) -> Questions:
    api = "describe_topic_partitions"
    for names, limit, where in (
        (("probe",), 2_000, None), (("probe", ABSENT), 2_000, None), ((), 2_000, None),
        (("probe", "probe2"), 2, None), (("probe", "probe2"), 2, ("probe", 1)), (("probe",), 0, None),
        (("probe",), -1, None), (("probe", "probe2"), 3, None), (("probe", "probe2"), 5, ("probe", 2)),
        (("probe2",), 5, ("zzz", 0)), (("probe",), 5, ("probe", -1)), (("probe",), 5, ("probe", 99)),
        (("probe",), 5, ("", 0)), (("a/b",), 5, None), (("probe", "probe"), 5, None),
        (("zz", ABSENT, "aa"), 2, None), (("probe", ABSENT, "probe2"), 2, (ABSENT, 0)),
        ((), 2, ("probe2", 1)), ((), 2, ("zzz", 7)), ((), 2, ("a", 7)),
    ):  # fmt: skip
        cursor = None
        if where is not None:
            cursor = part(api, version, "Cursor", topic_name=where[0], partition_index=where[1])
        topics = tuple(part(api, version, "TopicRequest", name=name) for name in names)
        yield {"topics": topics, "response_partition_limit": limit, "cursor": cursor}


ASKED: dict[int, Callable[[int], Questions]] = {
    3: metadata,
    17: sasl_handshake,
    18: api_versions,
    29: describe_acls,
    30: create_acls,
    31: delete_acls,
    34: alter_replica_log_dirs,
    36: sasl_authenticate,
    38: create_delegation_token,
    39: renew_delegation_token,
    40: expire_delegation_token,
    41: describe_delegation_token,
    43: elect_leaders,
    45: alter_partition_reassignments,
    46: list_partition_reassignments,
    48: describe_client_quotas,
    49: alter_client_quotas,
    50: describe_user_scram_credentials,
    51: alter_user_scram_credentials,
    55: describe_quorum,
    74: list_config_resources,
    75: describe_topic_partitions,
}
