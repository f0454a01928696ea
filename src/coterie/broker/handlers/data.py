"""Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords: what reads logs.

Batches pass through unread: the log checks and stamps them, and a fetch answers with the bytes as they lie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.context import WAITS, Context, milliseconds
from coterie.store.log import OffsetOutOfRange, StorageFailed
from coterie.wire.codec import build, entity, response_type

if TYPE_CHECKING:
    from coterie.broker.node import Node
    from coterie.broker.topics import Topic
    from coterie.store.aborted import Aborted
    from coterie.store.files import FileLog

__all__ = ["HANDLERS"]

READ_COMMITTED = 1
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6


def leader_epoch_error(log: FileLog, sent: int) -> Code:
    """Return how a client's idea of a partition's leader epoch stands to the log's own (KIP-320)."""
    ours = log.latest_epoch
    if sent in (-1, ours):
        return Code.NONE
    return Code.UNKNOWN_LEADER_EPOCH if sent > ours else Code.FENCED_LEADER_EPOCH


def topic_named(node: Node, asked: Any) -> tuple[Topic | None, Code]:
    """Return the topic that a request names by name or by id, or the code that says there is none."""
    name = getattr(asked, "name", getattr(asked, "topic", None))  # "" is a name, which none has
    if name is not None:
        topic = node.topics.get(name)
        return topic, Code.NONE if topic is not None else Code.UNKNOWN_TOPIC_OR_PARTITION
    topic_id: UUID | None = getattr(asked, "topic_id", None)
    topic = None if topic_id is None else node.topics.by_id(topic_id)
    return topic, Code.NONE if topic is not None else Code.UNKNOWN_TOPIC_ID


# -- Fetch


class Wanted:
    """One partition that a fetch asks for."""

    __slots__ = ("code", "log", "max_bytes", "offset", "partition", "topic")

    def __init__(self, topic: str, asked: Any, log: FileLog | None, code: Code) -> None:
        self.topic = topic
        self.partition: int = asked.partition
        self.offset: int = asked.fetch_offset
        self.max_bytes: int = asked.partition_max_bytes
        self.log = log
        self.code = code


class WaitingFetch:
    """A fetch that waits until `min_bytes` have come, an error shows, or `max_wait` is over."""

    __slots__ = ("asked", "committed", "ctx", "missing", "node", "request", "wanted")

    def __init__(self, node: Node, ctx: Context, request: Any, wanted: list[list[Wanted]]) -> None:
        self.node, self.ctx, self.request, self.wanted = node, ctx, request, wanted
        self.committed = getattr(request, "isolation_level", 0) == READ_COMMITTED
        self.missing: int = min(request.min_bytes, _max_bytes(node, request))

    def ready(self) -> bool:
        if self.missing <= 0:
            return True
        there = 0
        for partitions in self.wanted:
            for one in partitions:
                end = _readable_end(one, committed=self.committed)
                if end is None:
                    return True
                if end > one.offset:
                    there += self._bytes_there(one, end)
        return there >= self.missing

    def _bytes_there(self, one: Wanted, end: int) -> int:
        """Return how much there is to answer with; nearly every client asks for one byte, and any will do."""
        if self.missing == 1:
            return 1
        assert one.log is not None
        wanted = min(one.max_bytes, self.missing)
        try:
            return len(one.log.read(one.offset, max_bytes=wanted, end_offset=end))
        except StorageFailed:  # the answer will say so, and should say it now
            return self.missing

    def finish(self, *, forced: bool) -> None:
        self.ctx.reply(_read_all(self.node, self.ctx, self.request, self.wanted, committed=self.committed))


def fetch(node: Node, ctx: Context, request: Any) -> Any:
    """Answer with the batches that are there, or wait for them as long as the client allows.

    Sessions: a client that asks for an incremental session is answered with session id 0, which tells it to
    go on with full requests (KIP-227); one that names a session we never gave gets
    FETCH_SESSION_ID_NOT_FOUND.
    """
    if getattr(request, "session_id", 0) != 0 and request.session_epoch > 0:
        return build(response_type(1, ctx.version), error_code=Code.FETCH_SESSION_ID_NOT_FOUND)
    wanted = [_wanted(node, asked) for asked in request.topics]
    operation = WaitingFetch(node, ctx, request, wanted)
    wait_ms = milliseconds(request.max_wait)
    if wait_ms <= 0 or not wanted:
        operation.finish(forced=True)
        return WAITS
    keys = [TopicPartition(one.topic, one.partition) for partitions in wanted for one in partitions]
    parked = node.purgatory.park(operation, keys=keys, deadline_ms=node.now_ms() + wait_ms)
    if parked is not None:
        ctx.gone = lambda: node.purgatory.withdraw(parked)
    return WAITS


def _max_bytes(node: Node, request: Any) -> int:
    return min(getattr(request, "max_bytes", 2**31 - 1), node.settings.fetch_max_bytes)


def _wanted(node: Node, asked: Any) -> list[Wanted]:
    topic, missing = topic_named(node, asked)
    found = []
    for partition in asked.partitions:
        log = None if topic is None else node.log_of(topic.name, partition.partition)
        code = missing
        if topic is not None and log is None:
            code = Code.UNKNOWN_TOPIC_OR_PARTITION
        if log is not None:
            code = leader_epoch_error(log, getattr(partition, "current_leader_epoch", -1))
        found.append(Wanted("" if topic is None else topic.name, partition, log, code))
    return found


def _readable_end(one: Wanted, *, committed: bool) -> int | None:
    """Return where reading must stop, None when the partition answers with an error at once."""
    log = one.log
    if log is None or one.code or log.closed or not log.start_offset <= one.offset <= log.end_offset:
        return None
    return log.last_stable_offset if committed else log.high_watermark


def _read_all(node: Node, ctx: Context, request: Any, wanted: list[list[Wanted]], *, committed: bool) -> Any:
    left = min(_max_bytes(node, request), node.peers.room())
    partition_type = entity("fetch", ctx.version, "PartitionData", "response")
    topic_type = entity("fetch", ctx.version, "FetchableTopicResponse", "response")
    topics = []
    first = True
    for asked, partitions in zip(request.topics, wanted, strict=True):
        answers = []
        for one in partitions:
            values = _read_one(one, left, first=first, committed=committed, version=ctx.version)
            size = len(values["records"])
            left -= size
            first = first and not size
            answers.append(build(partition_type, partition_index=one.partition, **values))
        name = getattr(asked, "topic", "")
        topics.append(
            build(
                topic_type, topic=name, topic_id=getattr(asked, "topic_id", None), partitions=tuple(answers)
            )
        )
    return build(response_type(1, ctx.version), responses=tuple(topics))


def _aborted(spans: tuple[Aborted, ...], version: int) -> tuple[Any, ...]:
    """Return the transactions whose records a reader is to pass over."""
    if not spans:
        return ()
    cls = entity("fetch", version, "AbortedTransaction", "response")
    return tuple(build(cls, producer_id=one.producer_id, first_offset=one.first_offset) for one in spans)


def _read_one(one: Wanted, left: int, *, first: bool, committed: bool, version: int) -> dict[str, Any]:
    """Return the fields of one partition's answer. The first batch of a fetch is whole however large
    (KIP-74).
    """
    log = one.log
    code = one.code
    if log is not None and log.closed:
        code = Code.UNKNOWN_TOPIC_OR_PARTITION
    if log is None or code:
        return _unreadable(code)
    budget = min(one.max_bytes, max(left, 0))
    aborted: tuple[Any, ...] | None = () if committed else None
    try:
        if committed:
            records, spans = log.read_committed(one.offset, max_bytes=budget, at_least_one=first)
            aborted = _aborted(spans, version)
        else:
            records = log.read(one.offset, max_bytes=budget, at_least_one=first)
    except OffsetOutOfRange:
        return _unreadable(Code.OFFSET_OUT_OF_RANGE)
    except StorageFailed as failed:
        return _unreadable(failed.code)
    return {
        "error_code": Code.NONE,
        "high_watermark": log.high_watermark,
        "last_stable_offset": log.last_stable_offset,
        "log_start_offset": log.start_offset,
        "aborted_transactions": aborted,
        "preferred_read_replica": -1,
        "records": records,
    }


def _unreadable(code: Code) -> dict[str, Any]:
    return {
        "error_code": code,
        "high_watermark": -1,
        "last_stable_offset": -1,
        "log_start_offset": -1,
        "aborted_transactions": None,
        "preferred_read_replica": -1,
        "records": b"",
    }


# -- ListOffsets, OffsetForLeaderEpoch


def list_offsets(node: Node, ctx: Context, request: Any) -> Any:
    """Answer with the offset of a time, of the end or of the start of each partition."""
    partition_type = entity("list_offsets", ctx.version, "ListOffsetsPartitionResponse", "response")
    topic_type = entity("list_offsets", ctx.version, "ListOffsetsTopicResponse", "response")
    committed = getattr(request, "isolation_level", 0) == READ_COMMITTED
    topics = []
    for asked in request.topics:
        answers = []
        for one in asked.partitions:
            log = node.log_of(asked.name, one.partition_index)
            code = Code.UNKNOWN_TOPIC_OR_PARTITION
            if log is not None:
                code = leader_epoch_error(log, getattr(one, "current_leader_epoch", -1))
            values: dict[str, Any] = {"timestamp": -1, "offset": -1, "leader_epoch": -1}
            if log is not None and not code:
                try:
                    values = _offset_at(log, one.timestamp, committed=committed)
                except StorageFailed as failed:
                    code = failed.code
            answers.append(
                build(partition_type, partition_index=one.partition_index, error_code=code, **values)
            )
        topics.append(build(topic_type, name=asked.name, partitions=tuple(answers)))
    return build(response_type(2, ctx.version), topics=tuple(topics))


def _offset_at(log: FileLog, timestamp: int, *, committed: bool) -> dict[str, Any]:
    nowhere = {"timestamp": -1, "offset": -1, "leader_epoch": -1}
    match timestamp:
        case -1:
            end = log.last_stable_offset if committed else log.high_watermark
            return {"timestamp": -1, "offset": end, "leader_epoch": log.latest_epoch}
        case -2 | -4:
            return {"timestamp": -1, "offset": log.start_offset, "leader_epoch": log.earliest_epoch}
        case -3:
            found = log.offset_of_max_timestamp()
        case _ if timestamp < 0:  # tiered storage: there is none
            return nowhere
        case _:
            found = log.offset_for_timestamp(timestamp)
    if found is None or (committed and found.offset >= log.last_stable_offset):
        return nowhere
    return {"timestamp": found.timestamp, "offset": found.offset, "leader_epoch": found.leader_epoch}


def offset_for_leader_epoch(node: Node, ctx: Context, request: Any) -> Any:
    """Answer with the offset at which the epoch that a client knows ends (KIP-101, KIP-320)."""
    partition_type = entity("offset_for_leader_epoch", ctx.version, "EpochEndOffset", "response")
    topic_type = entity("offset_for_leader_epoch", ctx.version, "OffsetForLeaderTopicResult", "response")
    topics = []
    for asked in request.topics:
        answers = []
        for one in asked.partitions:
            log = node.log_of(asked.topic, one.partition)
            code = Code.UNKNOWN_TOPIC_OR_PARTITION
            if log is not None:
                code = leader_epoch_error(log, one.current_leader_epoch)
            epoch, end = (-1, -1)
            if log is not None and not code:
                epoch, end = log.end_of_epoch(one.leader_epoch)
            values = {"partition": one.partition, "leader_epoch": epoch, "end_offset": end}
            answers.append(build(partition_type, error_code=code, **values))
        topics.append(build(topic_type, topic=asked.topic, partitions=tuple(answers)))
    return build(response_type(23, ctx.version), topics=tuple(topics))


# -- DeleteRecords


def delete_records(node: Node, ctx: Context, request: Any) -> Any:
    """Move the start of each partition up to the offset that is asked for (-1: to its end)."""
    partition_type = entity("delete_records", ctx.version, "DeleteRecordsPartitionResult", "response")
    topic_type = entity("delete_records", ctx.version, "DeleteRecordsTopicResult", "response")
    now_ms = node.now_ms()
    topics = []
    for asked in request.topics:
        answers = []
        for one in asked.partitions:
            code, low = _delete_before(node, asked.name, one, now_ms)
            answers.append(
                build(partition_type, partition_index=one.partition_index, low_watermark=low, error_code=code)
            )
        topics.append(build(topic_type, name=asked.name, partitions=tuple(answers)))
    return build(response_type(21, ctx.version), topics=tuple(topics))


def _delete_before(node: Node, topic_name: str, one: Any, now_ms: int) -> tuple[Code, int]:
    topic = node.topics.get(topic_name)
    log = node.log_of(topic_name, one.partition_index)
    if topic is None or log is None:
        return Code.UNKNOWN_TOPIC_OR_PARTITION, -1
    if topic.internal:
        return Code.INVALID_TOPIC_EXCEPTION, -1
    if "delete" not in log.config.cleanup_policy:
        return Code.POLICY_VIOLATION, -1
    offset = log.high_watermark if one.offset == -1 else one.offset
    if not 0 <= offset <= log.high_watermark:
        return Code.OFFSET_OUT_OF_RANGE, -1
    try:
        return Code.NONE, log.delete_before(offset, now_ms)
    except StorageFailed as failed:
        return failed.code, -1


HANDLERS = {
    1: fetch,
    2: list_offsets,
    21: delete_records,
    23: offset_for_leader_epoch,
}
