"""A node with groups, driven by requests, and the records that it writes to `__group_story`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from coterie.base.ids import TopicPartition
from coterie.wire.api.entities import (
    build,
    entity,
)
from coterie.wire.payloads.consumer_protocol import Assignment, Subscription
from coterie.wire.records.batches import records_of, scan
from unit.broker.rig import Client, Rig

JOIN, SYNC, HEARTBEAT, LEAVE = 11, 14, 12, 13
JOIN_VERSION, SYNC_VERSION, LEAVE_VERSION = 9, 5, 5
GROUP = "readers"


def a_rig(directory: Path, **settings: object) -> Rig:
    """Return a node whose topic for groups has one partition."""
    return Rig(directory, offsets_topic_num_partitions=1, **settings)


def subscribed_to(*topics: str) -> bytes:
    return Subscription(topics).encode()


def given(*numbers: int, topic: str = "orders") -> bytes:
    return Assignment(tuple(TopicPartition(topic, number) for number in numbers)).encode()


class Reader:
    """A member of the group, by hand."""

    def __init__(
        self,
        rig: Rig,
        name: str = "app",
        *,
        metadata: bytes | None = None,
        instance_id: str | None = None,
        protocol: str = "range",
        protocol_type: str = "consumer",
        group: str = GROUP,
    ) -> None:
        self.client: Client = rig.client(name)
        self.group = group
        self.member_id = ""
        self.instance_id = instance_id
        self.metadata = subscribed_to("orders") if metadata is None else metadata
        self.protocol = protocol
        self.protocol_type = protocol_type
        self.generation = -1

    def join(self, *, reason: str = "") -> None:
        """Send a JoinGroup; a dynamic member that is told its id comes again with it."""
        self._send_join(reason)
        if not self.member_id and self.instance_id is None:
            self.member_id = self.answer().member_id
            self._send_join(reason)

    def _send_join(self, reason: str) -> None:
        part = build(
            entity("join_group", JOIN_VERSION, "JoinGroupRequestProtocol"),
            name=self.protocol,
            metadata=self.metadata,
        )
        self.client.send(
            JOIN,
            JOIN_VERSION,
            group_id=self.group,
            session_timeout=10_000,
            rebalance_timeout=60_000,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=self.protocol_type,
            protocols=(part,),
            reason=reason,
        )

    def answer(self) -> Any:
        """Return the one answer that has come."""
        (found,) = self.client.answers()
        return found

    def joined(self) -> Any:
        """Return the answer to the join, which must have come."""
        found = self.answer()
        self.member_id, self.generation = found.member_id, found.generation_id
        return found

    def sync(self, assignments: dict[str, bytes] | None = None) -> None:
        """Send a SyncGroup, the leader's with everybody's assignment."""
        kind = entity("sync_group", SYNC_VERSION, "SyncGroupRequestAssignment")
        self.client.send(
            SYNC,
            SYNC_VERSION,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            assignments=tuple(
                build(kind, member_id=member_id, assignment=data)
                for member_id, data in (assignments or {}).items()
            ),
        )

    def beat(self) -> int:
        """Send a heartbeat; return the code of its answer."""
        answer = self.client.ask(
            HEARTBEAT,
            4,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        return int(answer.error_code)

    def leave(self, *, reason: str | None = None) -> Any:
        """Leave by the member id."""
        return leave(self.client, member_id=self.member_id, reason=reason, group=self.group)


def leave(
    client: Client,
    *,
    member_id: str = "",
    instance_id: str | None = None,
    reason: str | None = None,
    group: str = GROUP,
) -> Any:
    """Ask that one member leaves."""
    identity = build(
        entity("leave_group", LEAVE_VERSION, "MemberIdentity"),
        member_id=member_id,
        group_instance_id=instance_id,
        reason=reason,
    )
    return client.ask(LEAVE, LEAVE_VERSION, group_id=group, members=(identity,))


def a_stable_group(rig: Rig, *readers: Reader) -> None:
    """Have the readers join together and get partition 0, 1, 2 and so on of orders, in their order."""
    for reader in readers:
        reader.join()
    rig.pass_ms(1)
    together(*readers)


def together(*readers: Reader) -> None:
    """Have readers whose joins are answered get partition 0, 1, 2 and so on of orders, in their order."""
    led = [(reader, reader.joined()) for reader in readers]
    leader = next(reader for reader, answer in led if answer.leader == answer.member_id)
    plan = {reader.member_id: given(place) for place, reader in enumerate(readers)}
    leader.sync(plan)
    assert leader.answer().assignment == plan[leader.member_id]
    for reader in readers:
        if reader is not leader:
            reader.sync()
            assert reader.answer().assignment == plan[reader.member_id]


read: WeakKeyDictionary[Rig, list[dict[str, Any]]] = WeakKeyDictionary()


def told(rig: Rig, kind: str | None = None, *, group: str | None = None) -> list[dict[str, Any]]:
    """Return the records of the story, of one kind or one group if it is named."""
    rig.settle()
    rig.node.coordinator.stories.topic.flush()
    log = rig.node.replica_manager.log_of("__group_story", 0)
    if log is None:
        return []
    known = read.setdefault(rig, [])
    if len(known) < log.end_offset:
        data = log.read(len(known), max_bytes=1 << 30)
        records = [record for at, _ in scan(data) for record in records_of(data, at)]
        for record in records[len(known) - records[0].offset :]:
            known.append(json.loads(record.value or b""))
            assert record.key == known[-1]["group"].encode()
    return [
        document
        for document in known
        if kind in (None, document["kind"]) and group in (None, document["group"])
    ]
