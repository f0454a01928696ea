"""OffsetCommit of a group's member: from known bytes to its records, without an entity.

A member sends the same bytes again and again but for the offsets in them. What is asked of the group, what
goes to the log and what is answered hangs on these alone.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.base.codes import Code
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.api.data import topic_named
from coterie.broker.api.offsets import commit_command, committed
from coterie.broker.fastpath.templates import (
    CORRELATION_AT,
    AnswerTemplate,
    Template,
    answer_of,
    frame_with,
    holes_of,
    read_light,
)
from coterie.broker.net.context import WAITS, Answerless, Read
from coterie.broker.runtime.groups import ShardHost
from coterie.broker.runtime.pieces import at_once
from coterie.coordinator.group.facts import OffsetsCommitted, StoredOffset
from coterie.coordinator.group.offsets.committed import committing_member, too_long
from coterie.wire.api.codec import encode_response
from coterie.wire.payloads.consumer_offsets import (
    OffsetCommitValue,
    group_key,
    offset_value,
    partition_key,
)
from coterie.wire.records.batches import RECORD_OVERHEAD_BYTES
from coterie.wire.records.batches import sized as with_size

if TYPE_CHECKING:
    from uuid import UUID

    from coterie.broker.fastpath import FastPathParts
    from coterie.broker.net.connection import Connection
    from coterie.broker.topics.topic import Topic
    from coterie.coordinator.group.commands import CommitOffsets

LEARNT_BYTES_MOST = 16_384  # of a request: what says more is answered in pieces, which takes longer for few
INT64 = Struct(">q")


class Place(NamedTuple):
    """One partition of a request: what it says besides the offset."""

    topic: Topic
    partition: int
    leader_epoch: int
    metadata: str


class PlannedRecord(NamedTuple):
    """One partition's record, cut around the offset and the timestamp; `at` is where the request has the
    offset.
    """

    at: int
    topic: str
    partition: int
    leader_epoch: int
    metadata: str
    topic_id: UUID
    key: bytes
    before_offset: bytes
    between: bytes
    behind: bytes


class KnownCommit(Template):
    """All that a commit of these bytes needs but the offsets."""

    __slots__ = ("answer", "command", "records", "topics", "weight")

    def __init__(
        self,
        sized: bytes,
        host: ShardHost,
        *,
        command: CommitOffsets,
        topics: tuple[Topic, ...],
        records: tuple[PlannedRecord, ...],
        answer: AnswerTemplate,
    ) -> None:
        super().__init__(sized, host, [(record.at, record.at + INT64.size) for record in records])
        self.command = command
        self.topics = topics
        self.records = records
        self.weight = sum(RECORD_OVERHEAD_BYTES + len(r.key) + len(r.between) for r in records)
        self.answer = answer


class CommitPath:
    """Carries out members' commits; what the last one on a connection said is remembered there."""

    def __init__(self, parts: FastPathParts) -> None:
        self._parts = parts
        self._topics = parts.topics
        self._purgatory = parts.purgatory
        self._clock = parts.clock
        self._replica_manager = parts.replica_manager

    def take(self, connection: Connection, sized: bytes) -> Answerless | Read | None:
        """Commit what is asked, to be answered once it is appended; else the handler has to, and is given
        what has been read of the request already.
        """
        read, known = None, connection.commit
        if known is None or not known.fits(sized):
            read = read_light(sized) if len(sized) <= LEARNT_BYTES_MOST else None
            known = None if read is None else self._learn(sized, read)
            if known is None:
                return read
            connection.commit = known
        host, command = known.host, known.command
        for topic in known.topics:
            if self._topics.get(topic.name) is not topic:  # it has grown, or gone
                connection.commit = None
                return read
        if host.status != ShardHost.ACTIVE:
            connection.commit = None
            return read
        member = committing_member(host.shard.groups.get(command.group_id), command)
        if member is None or not host.has_room(known.weight):
            return read
        now_ms = self._clock.now_ms()
        if not self._purgatory.move(member.session_key, now_ms + member.session_timeout_ms):
            return read
        connection.answer_later()
        fact = self._fact(known, sized, self._replica_manager.dated_ms(now_ms))
        host.commit_gathered(fact, connection, sized, known.answer.to(sized))
        return WAITS

    def _fact(self, known: KnownCommit, sized: bytes, dated_ms: int) -> OffsetsCommitted:
        """Return the fact of a commit, its records gathered already."""
        stamp, add = INT64.pack(dated_ms), known.host.records.add_sized
        offsets = []
        for at, topic, partition, epoch, metadata, topic_id, key, first, between, last in known.records:
            raw = sized[at : at + 8]
            (offset,) = INT64.unpack(raw)
            offsets.append((topic, partition, StoredOffset(offset, epoch, metadata, dated_ms, -1, topic_id)))
            add(key, b"".join((first, raw, between, stamp, last)), dated_ms)
        return OffsetsCommitted(known.command.group_id, tuple(offsets))

    # -- learning

    def _learn(self, sized: bytes, read: Read) -> KnownCommit | None:
        """Return the KnownCommit of a request; None where only its handler can answer it."""
        header, request = read
        if request.generation_id_or_member_epoch < 0 or getattr(request, "retention_time", None) is not None:
            return None
        places = self._places(request)
        if not places or self._topics.get(OFFSETS_TOPIC) is None:
            return None
        other = frame_with(sized, read, with_other_offsets(request))
        if other is None:
            return None
        holes = holes_of(sized[CORRELATION_AT:], other[CORRELATION_AT:])
        if [end - start for start, end in holes] != [4, *[INT64.size] * len(places)]:
            return None
        group_id: str = request.group_id
        records = [
            planned_record(group_id, place, CORRELATION_AT + at)
            for place, (at, _) in zip(places, holes[1:], strict=True)
        ]
        host = self._parts.load_coordinator().host_of(group_id)
        if host is None:
            return None
        response = at_once(
            committed(header.api_key, header.api_version, request, {}, repeat(Code.NONE).__next__)
        )
        return KnownCommit(
            sized,
            host,
            command=commit_command(request, call=0, version=header.api_version, offsets=()),
            topics=tuple({place.topic.name: place.topic for place in places}.values()),
            records=tuple(records),
            answer=answer_of(encode_response(0, response)),
        )

    def _places(self, request: Any) -> list[Place] | None:
        """Return the partitions of a request, if all exist and nothing about them is refused."""
        limit = self._parts.settings.group_settings().offset_metadata_max_bytes
        places = []
        for asked in request.topics:
            topic, _ = topic_named(self._topics, asked)
            if topic is None or not asked.partitions:
                return None
            for one in asked.partitions:
                metadata = one.committed_metadata or ""
                if not 0 <= one.partition_index < topic.partitions or too_long(metadata, limit):
                    return None
                epoch = getattr(one, "committed_leader_epoch", -1)
                places.append(Place(topic, one.partition_index, epoch, metadata))
        return places


def with_other_offsets(request: Any) -> Any:
    """Return a request with offsets of which every byte is another."""
    return replace(
        request,
        topics=tuple(
            replace(
                topic,
                partitions=tuple(
                    replace(one, committed_offset=~one.committed_offset) for one in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def planned_record(group_id: str, place: Place, at: int) -> PlannedRecord:
    """Return a partition's record, cut where the offset and the timestamp go."""
    topic, partition, leader_epoch, metadata = place
    zero, other = (
        offset_value(OffsetCommitValue(filling, leader_epoch, metadata, filling, -1, topic.topic_id))
        for filling in (0, -1)
    )
    head = with_size(zero)[: -len(zero)]
    (offset_at, offset_end), (stamp_at, stamp_end) = holes_of(head + zero, head + other)
    whole = head + zero
    return PlannedRecord(
        at=at,
        topic=topic.name,
        partition=partition,
        leader_epoch=leader_epoch,
        metadata=metadata,
        topic_id=topic.topic_id,
        key=with_size(group_key(group_id) + partition_key(topic.name, partition)),
        before_offset=whole[:offset_at],
        between=whole[offset_end:stamp_at],
        behind=whole[stamp_end:],
    )
