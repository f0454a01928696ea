"""The plain commit's short way: a member's OffsetCommit, from its bytes to its records without an entity.

A member sends the same bytes again and again but for the offsets in them. Where they are is found out once;
what is asked of the group, what goes to the log and what is answered hangs on them alone. Whatever is not
plain goes the general way; `tests/unit/broker/test_quick_commits.py` holds the two ways against each other.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.runtime.groups import ShardHost
from coterie.coordinator.group.facts import OffsetsCommitted, StoredOffset
from coterie.coordinator.group.offsets.committed import too_long
from coterie.wire.api.codec import (
    encode_response,
    read_request_header,
)
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)
from coterie.wire.payloads.consumer_offsets import (
    OffsetCommitValue,
    group_key,
    offset_value,
    partition_key,
)
from coterie.wire.records.growing import RECORD_OVERHEAD_BYTES
from coterie.wire.records.growing import sized as with_size
from coterie.wire.varints import read_uvarint

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.broker.node import Node
    from coterie.broker.topics.topic import (
        Topic,
    )

OFFSET_COMMIT = 8
LEAST, MOST = 8, 10  # the flexible versions; topics have ids instead of names from 10 on
IDS_SINCE = 10
LEARNT_BYTES_MOST = 16_384  # of a request: what says more is answered in pieces, which takes longer for few
INT32, INT64 = Struct(">i"), Struct(">q")
# Of a value of version 4: where its offset and, counted from behind its metadata, its timestamp are.
OFFSET_AT, EPOCH_AT = 2, 10


class Asker(Protocol):
    """Who sent a request and waits for its answer."""

    commit: Template | None  # of its last plain commit

    @property
    def host(self) -> str:
        """From where it came, as a group's members are shown."""
        ...

    def owed(self, gone: Callable[[], None] | None = None) -> None:
        """Take note that the answer comes later; `gone` is called when the client hangs up before it."""
        ...

    def paid(self, frame: bytes) -> None:
        """Send the answer."""
        ...

    def answer_at_length(self, sized: bytes) -> None:
        """Have the commit answered the general way after all."""
        ...


class Place(NamedTuple):
    """One partition of a request: where its offset is, and what the rest says."""

    at: int
    topic: str | UUID
    partition: int
    leader_epoch: int
    metadata: str


class Layout(NamedTuple):
    """What a request says besides its offsets."""

    version: int
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    places: tuple[Place, ...]


class Written(NamedTuple):
    """One partition ready to be written: the parts of its record around the offset and the timestamp."""

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


class Template(NamedTuple):
    """All that a plain commit of these bytes needs."""

    size: int
    constant: tuple[tuple[int, int, bytes], ...]  # from, to, and what is there
    layout: Layout
    host: ShardHost
    topics: tuple[Topic, ...]
    written: tuple[Written, ...]
    weight: int
    answer_head: bytes
    answer_tail: bytes


class QuickCommits:
    """Answers plain commits; what a connection commits is remembered there."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def take(self, asker: Asker, sized: bytes) -> bool:
        """Commit what is asked, to be answered once it is appended; False where the general way has to."""
        template = asker.commit
        if template is None or template.size != len(sized) or not fits(template.constant, sized):
            template = self._learn(asker, sized)
            if template is None:
                return False
        for topic in template.topics:
            if self._node.topics.get(topic.name) is not topic:
                asker.commit = None
                return False
        host, layout = template.host, template.layout
        if host.status != ShardHost.ACTIVE:
            asker.commit = None
            return False
        member = host.shard.committer(
            layout.group_id, layout.member_id, layout.instance_id, layout.generation
        )
        if member is None or not host.has_room(template.weight):
            return False
        now_ms = self._node.now_ms()
        deadline_ms = now_ms + member.session_timeout_ms
        if not self._node.purgatory.move(member.session_key, deadline_ms):
            return False
        answer = b"".join((template.answer_head, sized[8:12], template.answer_tail))
        asker.owed()
        fact = self._fact(template, sized, self._node.dated_ms(now_ms))
        host.commit_quickly(fact, asker, sized, answer)
        return True

    def _fact(self, template: Template, sized: bytes, dated_ms: int) -> OffsetsCommitted:
        """Return what happened, its records gathered already."""
        stamp, add = INT64.pack(dated_ms), template.host.records.add_sized
        offsets = []
        for at, topic, partition, epoch, metadata, topic_id, key, first, between, last in template.written:
            raw = sized[at : at + 8]
            (offset,) = INT64.unpack(raw)
            offsets.append((topic, partition, StoredOffset(offset, epoch, metadata, dated_ms, -1, topic_id)))
            add(key, b"".join((first, raw, between, stamp, last)), dated_ms)
        return OffsetsCommitted(template.layout.group_id, tuple(offsets))

    # -- learning

    def _learn(self, asker: Asker, sized: bytes) -> Template | None:
        """Find out what is constant in a request, and remember it for whoever sent it."""
        layout = layout_of(sized) if len(sized) <= LEARNT_BYTES_MOST else None
        if layout is None or layout.generation < 0 or not layout.places:
            return None
        if self._node.topics.get(OFFSETS_TOPIC) is None:
            return None
        limit = self._node.settings.group_settings().offset_metadata_max_bytes
        topics = [self._topic(place) for place in layout.places]
        for topic, place in zip(topics, layout.places, strict=True):
            if topic is None or place.partition >= topic.partitions or too_long(place.metadata, limit):
                return None
        template = self._template(layout, [topic for topic in topics if topic is not None], sized)
        asker.commit = template
        return template

    def _topic(self, place: Place) -> Topic | None:
        topics = self._node.topics
        return topics.get(place.topic) if isinstance(place.topic, str) else topics.by_id(place.topic)

    def _template(self, layout: Layout, topics: list[Topic], sized: bytes) -> Template:
        written = tuple(
            written_of(layout.group_id, place, topic)
            for place, topic in zip(layout.places, topics, strict=True)
        )
        answer = answer_to(layout, topics)
        return Template(
            size=len(sized),
            constant=tuple(constant_parts(layout, sized)),
            layout=layout,
            host=self._node.coordinator.host_of(layout.group_id),
            topics=tuple({topic.name: topic for topic in topics}.values()),
            written=written,
            weight=sum(RECORD_OVERHEAD_BYTES + len(w.key) + len(w.between) for w in written),
            answer_head=answer[:4],
            answer_tail=answer[8:],
        )


def fits(constant: tuple[tuple[int, int, bytes], ...], sized: bytes) -> bool:
    """Return whether a request has in these places what it had before."""
    for start, end, part in constant:  # noqa: SIM110 - a generator takes twice as long
        if sized[start:end] != part:
            return False
    return True


def constant_parts(layout: Layout, sized: bytes) -> list[tuple[int, int, bytes]]:
    """Return the parts of a request that are neither its correlation id nor an offset."""
    edges = [4, 8, 12]
    for place in layout.places:
        edges += place.at, place.at + 8
    edges.append(len(sized))
    return [(start, end, sized[start:end]) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def written_of(group_id: str, place: Place, topic: Topic) -> Written:
    """Return a partition's record, cut where the offset and the timestamp go."""
    value = OffsetCommitValue(0, place.leader_epoch, place.metadata, 0, -1, topic.topic_id)
    encoded = offset_value(value)
    stamp_at = stamp_at_of(place.metadata)
    size = with_size(encoded)[: -len(encoded)]
    return Written(
        at=place.at,
        topic=topic.name,
        partition=place.partition,
        leader_epoch=place.leader_epoch,
        metadata=place.metadata,
        topic_id=topic.topic_id,
        key=with_size(group_key(group_id) + partition_key(topic.name, place.partition)),
        before_offset=size + encoded[:OFFSET_AT],
        between=encoded[EPOCH_AT:stamp_at],
        behind=encoded[stamp_at + INT64.size :],
    )


def stamp_at_of(metadata: str) -> int:
    """Return where the timestamp is in a value of version 4."""
    length = len(metadata.encode()) + 1
    return EPOCH_AT + INT32.size + (1 if length < 128 else 2 if length < 1 << 14 else 3) + length - 1


def answer_to(layout: Layout, topics: list[Topic]) -> bytes:
    """Return the whole answer to a request that is granted, for the correlation id 0."""
    topic_type = entity("offset_commit", layout.version, "OffsetCommitResponseTopic", "response")
    partition_type = entity("offset_commit", layout.version, "OffsetCommitResponsePartition", "response")
    by_topic: list[tuple[Topic, list[int]]] = []
    for topic, place in zip(topics, layout.places, strict=True):
        if not by_topic or by_topic[-1][0] is not topic:
            by_topic.append((topic, []))
        by_topic[-1][1].append(place.partition)
    answered = tuple(
        build(
            topic_type,
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=tuple(
                build(partition_type, partition_index=p, error_code=Code.NONE) for p in partitions
            ),
        )
        for topic, partitions in by_topic
    )
    return encode_response(0, build(response_type(OFFSET_COMMIT, layout.version), topics=answered))


# -- reading a request


def layout_of(sized: bytes) -> Layout | None:
    """Return what a request of a flexible version says, None for another or one with tagged fields."""
    try:
        header = read_request_header(sized[4:])
        if not LEAST <= header.api_version <= MOST:
            return None
        return Reader(sized, 4 + header.body_at).layout(header.api_version)
    except (Corrupt, IndexError, UnicodeDecodeError):
        return None  # the general way finds the words


class Reader:
    """Reads a request from front to back."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def layout(self, version: int) -> Layout | None:
        """Return what the request says; None if it names a topic twice, or without partitions."""
        group_id, generation = self.text() or "", self.int32()
        member_id, instance_id = self.text() or "", self.text()
        by_topic: dict[str | UUID, list[Place]] = {}
        for _ in range(self.count()):
            topic = self.uuid() if version >= IDS_SINCE else self.text() or ""
            if topic in by_topic:
                return None
            by_topic[topic] = [self.place(topic) for _ in range(self.count())]
            self.no_tags()
        self.no_tags()
        if self.at != len(self.data) or not all(by_topic.values()):
            return None
        places = tuple(place for row in by_topic.values() for place in row)
        return Layout(version, group_id, generation, member_id, instance_id, places)

    def place(self, topic: str | UUID) -> Place:
        partition, at = self.int32(), self.at
        self.at += INT64.size
        epoch, metadata = self.int32(), self.text()
        self.no_tags()
        if partition < 0:
            raise Corrupt("partition", at=at, expected="one that exists")
        return Place(at, topic, partition, epoch, metadata or "")

    def int32(self) -> int:
        self.at += INT32.size
        return int.from_bytes(self.data[self.at - INT32.size : self.at], "big", signed=True)

    def uuid(self) -> UUID:
        self.at += 16
        return UUID(bytes=bytes(self.data[self.at - 16 : self.at].rjust(16)))

    def count(self) -> int:
        length, self.at = read_uvarint(self.data, self.at)
        if length > len(self.data):
            raise Corrupt("array", at=self.at, expected="as many as fit")
        return length - 1

    def text(self) -> str | None:
        length, start = read_uvarint(self.data, self.at)
        self.at = start + max(length - 1, 0)
        return self.data[start : self.at].decode() if length else None

    def no_tags(self) -> None:
        if self.data[self.at]:
            raise Corrupt("tagged fields", at=self.at, expected="none")
        self.at += 1
