"""Brokers of a few lines, one of which leads the only partition: what a consumer sees when leaders change."""

from __future__ import annotations

import asyncio

from small_broker import SmallBroker, SmallBrokers

from coterie.base.codes import Code
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import (
    encode_response,
)
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)
from coterie.wire.records.batches import head_for
from coterie.wire.records.columns import pack_records

OFFERED = {
    ApiKey.METADATA: (0, 13),
    ApiKey.FETCH: (0, 12),
    ApiKey.LIST_OFFSETS: (0, 7),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.OFFSET_FETCH: (0, 9),
}
TOPIC, SESSION_ID = "t", 77


class Log:
    """A log whose records were taken under the epochs given, in one batch for each epoch."""

    def __init__(self, *epochs: int) -> None:
        self.epochs = epochs

    def read(self, offset: int) -> bytes:
        """The batches from the offset on."""
        found = b""
        while offset < len(self.epochs):
            count = self.epochs[offset:].count(self.epochs[offset])
            found += self.batch(offset, count)
            offset += count
        return found

    def batch(self, offset: int, count: int) -> bytes:
        body = pack_records([b"%d" % number for number in range(offset, offset + count)], [(0, 1_000)])
        head = head_for(
            body,
            count=count,
            base_timestamp=1_000,
            max_timestamp=1_000,
            base_offset=offset,
            leader_epoch=self.epochs[offset],
        )
        return head + body

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The last epoch up to this one, and where it ends; nothing if it is later than all."""
        if not self.epochs or epoch > self.epochs[-1]:
            return -1, -1
        there = [one for one in self.epochs if one <= epoch]
        return (there[-1], len(there)) if there else (epoch, 0)


class SmallCluster(SmallBrokers):
    """Brokers 1 and 2 and one partition. What the consumer asked is in `fetches`: (broker, request)."""

    def __init__(self, log: Log, *, committed: tuple[int, int, str] | None = None) -> None:
        self.log, self.leader, self.epoch = log, 1, 3
        self.committed = committed
        self.preferred = -1
        self.fetches = []
        self.epoch_questions = []
        self.refuse_epochs = []
        self.brokers = [SmallBroker(self.answering(one), offered=OFFERED) for one in (1, 2)]

    @property
    def bootstrap(self) -> str:
        return str(self.brokers[0].address)

    def elect(self, leader: int, log: Log, *, epoch: int) -> None:
        """Have another broker lead from now on, with this log."""
        self.leader, self.log, self.epoch = leader, log, epoch

    def answering(self, node_id):
        answers = {
            ApiKey.METADATA: lambda version, request: self.metadata(version),
            ApiKey.FETCH: lambda version, request: self.fetch(node_id, version, request),
            ApiKey.LIST_OFFSETS: self.list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: lambda version, request: self.epoch_ends(
                node_id, version, request
            ),
            ApiKey.FIND_COORDINATOR: lambda version, request: self.coordinator(version),
            ApiKey.OFFSET_FETCH: lambda version, request: self.offsets(version),
        }

        def react(header, request):
            key, version = header.api_key, header.api_version
            values = answers[key](version, request)
            return encode_response(header.correlation_id, build(response_type(key, version), **values))

        return react

    def metadata(self, version):
        part = build(
            entity("metadata", version, "MetadataResponsePartition", "response"),
            error_code=0,
            partition_index=0,
            leader_id=self.leader,
            leader_epoch=self.epoch,
            replica_nodes=(1, 2),
            isr_nodes=(1, 2),
            offline_replicas=(),
        )
        topic = build(
            entity("metadata", version, "MetadataResponseTopic", "response"),
            error_code=0,
            name=TOPIC,
            is_internal=False,
            partitions=(part,),
        )
        kind = entity("metadata", version, "MetadataResponseBroker", "response")
        brokers = tuple(
            build(kind, node_id=number, host=broker.address.host, port=broker.address.port, rack=f"r{number}")
            for number, broker in enumerate(self.brokers, start=1)
        )
        return {"brokers": brokers, "topics": (topic,), "cluster_id": "c", "controller_id": 1}

    def fetch(self, node_id, version, request):
        self.fetches.append((node_id, request))
        session = 0 if request.session_epoch == -1 else SESSION_ID + node_id
        if request.session_epoch == -1:
            return {"session_id": 0, "error_code": 0, "responses": ()}
        asked = [one for topic in request.topics for one in topic.partitions]
        topics = tuple(
            build(
                entity("fetch", version, "FetchableTopicResponse", "response"),
                topic=TOPIC,
                partitions=(self.part(node_id, version, one, request.rack_id),),
            )
            for one in asked
        )
        return {"session_id": session, "error_code": 0, "responses": topics}

    def part(self, node_id, version, asked, rack):
        code, records = Code.NONE, b""
        if node_id != self.leader and self.preferred != node_id:
            code = Code.NOT_LEADER_OR_FOLLOWER
        elif asked.current_leader_epoch != self.epoch:
            code = Code.FENCED_LEADER_EPOCH
        elif asked.fetch_offset > len(self.log.epochs):
            code = Code.OFFSET_OUT_OF_RANGE
        elif self.preferred in (-1, node_id) or not rack:
            records = self.log.read(asked.fetch_offset)
        return build(
            entity("fetch", version, "PartitionData", "response"),
            partition_index=0,
            error_code=code,
            high_watermark=len(self.log.epochs),
            last_stable_offset=len(self.log.epochs),
            log_start_offset=0,
            aborted_transactions=None,
            preferred_read_replica=self.preferred if node_id == self.leader else -1,
            records=records,
        )

    def list_offsets(self, version, request):
        (topic,) = request.topics
        (asked,) = topic.partitions
        part = build(
            entity("list_offsets", version, "ListOffsetsPartitionResponse", "response"),
            partition_index=0,
            error_code=0,
            timestamp=-1,
            offset=0 if asked.timestamp == -2 else len(self.log.epochs),
            leader_epoch=-1,
        )
        kind = entity("list_offsets", version, "ListOffsetsTopicResponse", "response")
        return {"topics": (build(kind, name=TOPIC, partitions=(part,)),)}

    def epoch_ends(self, node_id, version, request):
        (topic,) = request.topics
        (asked,) = topic.partitions
        self.epoch_questions.append((asked.leader_epoch, asked.current_leader_epoch))
        code = self.refuse_epochs.pop(0) if self.refuse_epochs else Code.NONE
        epoch, end = (-1, -1) if code else self.log.end_of(asked.leader_epoch)
        part = build(
            entity("offset_for_leader_epoch", version, "EpochEndOffset", "response"),
            error_code=code,
            partition=0,
            leader_epoch=epoch,
            end_offset=end,
        )
        kind = entity("offset_for_leader_epoch", version, "OffsetForLeaderTopicResult", "response")
        return {"topics": (build(kind, topic=TOPIC, partitions=(part,)),)}

    def coordinator(self, version):
        address = self.brokers[0].address
        found = build(
            entity("find_coordinator", version, "Coordinator", "response"),
            key="g",
            node_id=1,
            host=address.host,
            port=address.port,
            error_code=0,
            error_message=None,
        )
        return {"coordinators": (found,)}

    def offsets(self, version):
        offset, epoch, metadata = self.committed or (-1, -1, "")
        part = build(
            entity("offset_fetch", version, "OffsetFetchResponsePartitions", "response"),
            partition_index=0,
            committed_offset=offset,
            committed_leader_epoch=epoch,
            metadata=metadata,
            error_code=0,
        )
        topic = build(
            entity("offset_fetch", version, "OffsetFetchResponseTopics", "response"),
            name=TOPIC,
            partitions=(part,),
        )
        kind = entity("offset_fetch", version, "OffsetFetchResponseGroup", "response")
        return {"groups": (build(kind, group_id="g", topics=(topic,), error_code=0),)}


async def until(true) -> None:
    """Return once it is true."""
    for _ in range(10_000):
        if true():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never comes true")
