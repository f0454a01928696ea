"""Partitions of a few records on brokers of a few lines, which stumble as a seed has them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from random import Random

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client.net.addresses import Address
from coterie.client.net.messages import by_topic
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
from unit.client.small_broker import brokers_beside

OFFERED = {ApiKey.METADATA: (0, 12), ApiKey.FETCH: (0, 12), ApiKey.LIST_OFFSETS: (0, 7)}
TOPIC = "t"
BATCH = 3  # records: a fetch gives one batch of each partition
PASSING = (Code.NOT_LEADER_OR_FOLLOWER, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.KAFKA_STORAGE_ERROR)


class SmallLeaders:
    """Two brokers; the partitions' logs reach from their starts to `end`. `stumble` says what fails."""

    def __init__(self, starts: list[int], end: int, *, stumble: Callable[[int], bool], seed: int = 0) -> None:
        self.starts, self.end, self.stumble = starts, end, stumble
        self.random = Random(seed)
        self.brokers: list[Address] = []

    @contextmanager
    def running(self):
        with brokers_beside() as start:
            self.brokers = [start(self.react, offered=OFFERED) for _ in range(2)]
            yield self

    def leader_of(self, at: TopicPartition) -> Address:
        return self.brokers[at.partition % 2]

    def react(self, header, request):
        """Answer, refuse for now, or hang up (None)."""
        key, version = header.api_key, header.api_version
        refused = self.stumble(key)
        if refused and self.random.random() < 0.5:
            return None
        answer = {
            ApiKey.METADATA: self.metadata,
            ApiKey.FETCH: self.fetch,
            ApiKey.LIST_OFFSETS: self.list_offsets,
        }[key]
        values = answer(version, request, self.random.choice(PASSING) if refused else Code.NONE)
        return encode_response(header.correlation_id, build(response_type(key, version), **values))

    def metadata(self, version, request, code):
        kind = entity("metadata", version, "MetadataResponsePartition", "response")
        parts = tuple(
            build(
                kind,
                error_code=code,
                partition_index=number,
                leader_id=-1 if code else number % 2,
                replica_nodes=(0, 1),
                isr_nodes=(0, 1),
                offline_replicas=(),
            )
            for number in range(len(self.starts))
        )
        topic = build(
            entity("metadata", version, "MetadataResponseTopic", "response"),
            error_code=0,
            name=TOPIC,
            is_internal=False,
            partitions=parts,
        )
        kind = entity("metadata", version, "MetadataResponseBroker", "response")
        brokers = tuple(
            build(kind, node_id=number, host=one.host, port=one.port)
            for number, one in enumerate(self.brokers)
        )
        return {"brokers": brokers, "topics": (topic,), "cluster_id": "c", "controller_id": 1}

    def fetch(self, version, request, code):
        kind = entity("fetch", version, "PartitionData", "response")
        topic = entity("fetch", version, "FetchableTopicResponse", "response")
        topics = []
        for asked in request.topics:
            parts = []
            for one in asked.partitions:
                start = self.starts[one.partition]
                refusal = code
                if not refusal and not start <= one.fetch_offset <= self.end:
                    refusal = Code.OFFSET_OUT_OF_RANGE
                parts.append(
                    build(
                        kind,
                        partition_index=one.partition,
                        error_code=refusal,
                        high_watermark=self.end,
                        last_stable_offset=self.end,
                        log_start_offset=start,
                        aborted_transactions=None,
                        preferred_read_replica=-1,
                        records=b"" if refusal else self.batch_at(one.fetch_offset),
                    )
                )
            topics.append(build(topic, topic=asked.topic, partitions=tuple(parts)))
        return {"session_id": 0, "error_code": 0, "responses": tuple(topics)}

    def batch_at(self, offset: int) -> bytes:
        """The batch that the offset lies in; it begins before it, perhaps."""
        first = offset - offset % BATCH
        last = min(first + BATCH, self.end)
        if first >= last:
            return b""
        body = pack_records([b"%d" % number for number in range(first, last)], [(0, 1_000)])
        head = head_for(
            body, count=last - first, base_timestamp=1_000, max_timestamp=1_000, base_offset=first
        )
        return head + body

    def list_offsets(self, version, request, code):
        kind = entity("list_offsets", version, "ListOffsetsPartitionResponse", "response")
        asked = [
            TopicPartition(topic.name, one.partition_index)
            for topic in request.topics
            for one in topic.partitions
        ]
        topics = tuple(
            build(
                entity("list_offsets", version, "ListOffsetsTopicResponse", "response"),
                name=topic,
                partitions=tuple(
                    build(
                        kind,
                        partition_index=one.partition,
                        error_code=code,
                        timestamp=-1,
                        offset=-1 if code else self.starts[one.partition],
                        leader_epoch=-1,
                    )
                    for one in group
                ),
            )
            for topic, group in by_topic(asked)
        )
        return {"topics": topics}
