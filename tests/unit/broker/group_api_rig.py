"""A node over a disk in memory, and the requests of the group APIs in any version, by their fields."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

from swarm.late import Lane, LateStore

from coterie.base.ids import TopicPartition
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.node import Node
from coterie.storage.directory import Store
from coterie.storage.memory import MemoryDisk, MemoryStore
from coterie.wire.api.apis import APIS
from coterie.wire.api.entities import (
    build,
    entity,
)
from unit.broker.remote_node_rig import DatabaseAndDisk, NodeOfOne, StoreOfOne
from unit.broker.rig import Client, Rig

__all__ = [
    "ApiRig",
    "assignment",
    "commit_topic",
    "fetch_group",
    "fetch_topic",
    "join_terms",
    "leaver",
    "versions",
]

FIND, JOIN, BEAT, LEAVE, SYNC = 10, 11, 12, 13, 14
COMMIT, FETCH, DESCRIBE, LIST, DELETE, OFFSET_DELETE, API_VERSIONS = 8, 9, 15, 16, 42, 47, 18


class ApiRig(Rig):
    """The rig without files: `orders` has two partitions, `other` has one."""

    late = False
    """Whether appends land in rounds of their own, which `settle` waits for."""
    remote = False
    """Whether the logs lie in a database."""

    def __init__(self, disk: MemoryDisk | None = None, *, settled: bool = True, **settings: object) -> None:
        """Start on a disk; unless `settled`, what the start puts off is still to come: groups are loading."""
        named = {name.replace("_", "."): str(value) for name, value in settings.items()}
        defaults = {
            "log.dirs": "data",
            "offsets.topic.num.partitions": "2",
            "group.initial.rebalance.delay.ms": "0",
        }
        self.told = settings
        self.settings = BrokerSettings.of(defaults | named)
        self.now_ms = 1_700_000_000_000
        self.soon = []
        self.disk = disk or (DatabaseAndDisk() if self.remote else MemoryDisk())
        self.store = self.a_store()  # type: ignore[assignment]
        self.node = self.a_node()
        self.node.start()
        for name, partitions in (("orders", 2), ("other", 1)):
            if self.node.topics.get(name) is None:
                self.node.topic_manager.create_topic(name, partitions=partitions)
        if settled:
            self.settle()

    def a_store(self) -> MemoryStore | StoreOfOne:
        """Return a store on the disk, or in the database."""
        if isinstance(self.disk, DatabaseAndDisk):
            self.rounds = []
            return StoreOfOne(
                self.disk,
                now_ms=self.now_ms,
                clock=lambda: self.now_ms,
                soon=self.soon,
                rounds=self.rounds,
            )
        kind = LateStore if self.late else MemoryStore
        store = kind.open(now_ms=self.now_ms, disk=self.disk)
        if isinstance(store, LateStore):
            self.rounds = []
            self.lane = Lane(self.soon.append, self.rounds.append)
            store.use(self.lane)
        return store

    def node_type(self) -> type[Node]:
        return NodeOfOne if isinstance(self.store, StoreOfOne) else Node

    @property
    def files(self) -> Store:
        return self.store.files if isinstance(self.store, StoreOfOne) else self.store

    def when_writable(self) -> Callable[[TopicPartition, Callable[[], None]], object] | None:
        return self.store.ask if isinstance(self.store, StoreOfOne) else super().when_writable()

    def started_again(self, *, settled: bool = True) -> ApiRig:
        """Return a broker on what this one's disk holds after a kill."""
        self.settle()
        return ApiRig(self.store.crash(), settled=settled, **self.told)  # type: ignore[attr-defined]

    def topic_id(self, name: str) -> UUID:
        """Return a topic's id, an id of nothing for a topic that is not there."""
        topic = self.node.topics.get(name)
        return UUID(int=77) if topic is None else topic.topic_id

    def stable(self, group_id: str, *names: str, version: int = 5) -> dict[str, str]:
        """Bring members into a group by real requests; return their ids by name. The first one leads."""
        clients = {name: self.client(name) for name in names}
        for name, client in clients.items():
            client.send(
                JOIN, version, **join_terms(version, group_id=group_id, group_instance_id=f"i-{name}")
            )
        self.pass_ms(0)
        joined = {name: client.answers()[0] for name, client in clients.items()}
        leader = next(name for name, answer in joined.items() if answer.leader == answer.member_id)
        assert leader == names[0]
        given = tuple(
            assignment(version=0, member_id=a.member_id, assignment=f"for {n}".encode())
            for n, a in joined.items()
        )
        for name, answer in reversed(joined.items()):
            clients[name].send(
                SYNC,
                3,
                group_id=group_id,
                generation_id=answer.generation_id,
                member_id=answer.member_id,
                assignments=given if name == leader else (),
            )
        return {name: answer.member_id for name, answer in joined.items()}

    def committed(self, group_id: str, *offsets: tuple[str, int, int]) -> None:
        """Commit (topic, partition, offset) without membership."""
        topics = tuple(
            commit_topic(self, 9, topic, (partition, offset, "")) for topic, partition, offset in offsets
        )
        self.client().ask(COMMIT, 9, group_id=group_id, generation_id_or_member_epoch=-1, topics=topics)


def versions(api_key: int) -> range:
    """Return every version that is served of an API."""
    return range(APIS[api_key].served_from, APIS[api_key].most + 1)


def part(api_key: int, version: int, kind: str, /, **fields: Any) -> Any:
    """Return a part of a request."""
    return build(entity(APIS[api_key].name, version, kind), **fields)


def reply_part(api_key: int, version: int, kind: str, /, **fields: Any) -> Any:
    """Return a part of a response."""
    return build(entity(APIS[api_key].name, version, kind, "response"), **fields)


def join_terms(version: int, **terms: Any) -> dict[str, Any]:
    """Return the fields of a JoinGroup of a consumer that knows range."""
    protocol = part(JOIN, version, "JoinGroupRequestProtocol", name="range", metadata=b"m")
    defaults: dict[str, Any] = {
        "session_timeout": timedelta(seconds=10),
        "rebalance_timeout": timedelta(seconds=60),
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": (protocol,),
        "reason": "because",
    }
    return defaults | terms


def assignment(*, version: int, member_id: str, assignment: bytes) -> Any:
    return part(SYNC, version, "SyncGroupRequestAssignment", member_id=member_id, assignment=assignment)


def leaver(version: int, member_id: str, instance_id: str | None = None) -> Any:
    """Return one who leaves; before version 3 requests have no such part, and leave the field out."""
    named = {"member_id": member_id, "group_instance_id": instance_id, "reason": "bye"}
    return part(LEAVE, max(version, 3), "MemberIdentity", **named)


def commit_topic(rig: ApiRig, version: int, topic: str, *offsets: tuple[int, int, str | None]) -> Any:
    """Return a topic of an OffsetCommit: (partition, offset, metadata) each."""
    partitions = tuple(
        part(
            COMMIT,
            version,
            "OffsetCommitRequestPartition",
            partition_index=partition,
            committed_offset=offset,
            committed_leader_epoch=3,
            committed_metadata=metadata,
        )
        for partition, offset, metadata in offsets
    )
    named = {"name": topic, "topic_id": rig.topic_id(topic)}
    return part(COMMIT, version, "OffsetCommitRequestTopic", partitions=partitions, **named)


def fetch_topic(rig: ApiRig, version: int, topic: str, *partitions: int) -> Any:
    kind = "OffsetFetchRequestTopics" if version >= 8 else "OffsetFetchRequestTopic"
    return part(FETCH, version, kind, partition_indexes=partitions, **named(rig, version, topic))


def named(rig: ApiRig, version: int, topic: str) -> dict[str, Any]:
    """Return how an OffsetFetch of that version names a topic."""
    return {"topic_id": rig.topic_id(topic)} if version >= 10 else {"name": topic}


def fetch_group(version: int, group_id: str, topics: tuple[Any, ...] | None) -> Any:
    """Return a group of an OffsetFetch from version 8 on; a member's epoch there is from version 9 on."""
    epoch = {"member_epoch": -1} if version >= 9 else {}
    return part(FETCH, version, "OffsetFetchRequestGroup", group_id=group_id, topics=topics, **epoch)


def ask_fetch(
    client: Client, version: int, group_id: str, topics: tuple[Any, ...] | None, **terms: Any
) -> Any:
    """Ask for one group's offsets, in whatever form the version has, and return that group's part."""
    if version < 8:
        return client.ask(FETCH, version, group_id=group_id, topics=topics, **terms)
    return client.ask(FETCH, version, groups=(fetch_group(version, group_id, topics),), **terms).groups[0]
