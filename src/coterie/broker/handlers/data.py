"""Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, InitProducerId, DeleteRecords: what touches logs.

Batches pass through unread: the log checks and stamps them, and a fetch answers with the bytes as they lie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.context import SILENT, WAITS, Context, Hangup, milliseconds
from coterie.broker.topic_names import STORY_TOPIC
from coterie.store.log import AppendRefused, OffsetOutOfRange
from coterie.wire.codec import build, entity, response_type

if TYPE_CHECKING:
    from coterie.broker.node import Node
    from coterie.broker.topics import Topic
    from coterie.store.files import FileLog

__all__ = ["HANDLERS"]

READ_COMMITTED = 1
ATTRIBUTES_AT = 22  # the low byte of a batch's attributes
# What is found before the log is looked at: such an answer does not say where the log starts.
UNREAD_BATCH = (Code.CORRUPT_MESSAGE, Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE, Code.INVALID_RECORD)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6


def leader_epoch_error(sent: int) -> Code:
    """Return how a client's idea of the leader epoch stands to ours, which is 0 for as long as one broker
    leads.
    """
    if sent in (-1, 0):
        return Code.NONE
    return Code.UNKNOWN_LEADER_EPOCH if sent > 0 else Code.FENCED_LEADER_EPOCH


def topic_named(node: Node, asked: Any) -> tuple[Topic | None, Code]:
    """Return the topic that a request names by name or by id, or the code that says there is none."""
    name = getattr(asked, "name", None) or getattr(asked, "topic", None)
    if name is not None:
        topic = node.topics.get(name)
        return topic, Code.NONE if topic is not None else Code.UNKNOWN_TOPIC_OR_PARTITION
    topic_id: UUID | None = getattr(asked, "topic_id", None)
    topic = None if topic_id is None else node.topics.by_id(topic_id)
    return topic, Code.NONE if topic is not None else Code.UNKNOWN_TOPIC_ID


# -- Produce


def produce(node: Node, ctx: Context, request: Any) -> Any:
    """Append each partition's batch and say where it landed."""
    if request.acks not in (-1, 0, 1):
        return _all_refused(ctx, request, Code.INVALID_REQUIRED_ACKS, "acks must be -1, 0 or 1")
    now_ms = node.now_ms()
    partition_type = entity("produce", ctx.version, "PartitionProduceResponse", "response")
    topic_type = entity("produce", ctx.version, "TopicProduceResponse", "response")
    failed = Code.NONE
    topics = []
    for asked in request.topic_data:
        topic, missing = topic_named(node, asked)
        answers = []
        for data in asked.partition_data:
            values = _append(node, topic, missing, data, request.acks, now_ms)
            failed = failed or values["error_code"]
            answers.append(build(partition_type, index=data.index, **values))
        topics.append(_like(topic_type, asked, partition_responses=tuple(answers)))
    if request.acks == 0:
        if failed:
            raise Hangup(f"produced with acks=0 and met {failed.name}")
        return SILENT
    return build(response_type(0, ctx.version), responses=tuple(topics))


def _like(cls: Any, asked: Any, **values: Any) -> Any:
    """Build an answer about a topic that is named as the request named it."""
    return build(cls, name=getattr(asked, "name", ""), topic_id=getattr(asked, "topic_id", None), **values)


def _append(
    node: Node, topic: Topic | None, missing: Code, data: Any, acks: int, now_ms: int
) -> dict[str, Any]:
    if topic is None:
        return {"error_code": missing, "base_offset": -1}
    log = node.log_of(topic.name, data.index)
    if log is None:
        return {"error_code": Code.UNKNOWN_TOPIC_OR_PARTITION, "base_offset": -1}
    if topic.internal and topic.name != STORY_TOPIC:
        return {"error_code": Code.INVALID_TOPIC_EXCEPTION, "base_offset": -1}
    if is_transactional(data.records):
        return {"error_code": Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "base_offset": -1}
    if acks == -1 and node.settings.min_insync_replicas(topic.configs) > 1:
        return {"error_code": Code.NOT_ENOUGH_REPLICAS, "base_offset": -1}
    try:
        appended = node.append(topic.name, data.index, data.records or b"", now_ms=now_ms)
    except AppendRefused as refused:
        errors = tuple((index, message) for index, message in refused.record_errors)
        return {
            "error_code": refused.code,
            "base_offset": -1,
            "error_message": refused.message,
            "log_start_offset": -1 if refused.code in UNREAD_BATCH else log.start_offset,
            "record_errors": _record_errors(errors),
        }
    return {
        "error_code": Code.NONE,
        "base_offset": appended.base_offset,
        "log_append_time": None if appended.append_time_ms < 0 else appended.append_time_ms,
        "log_start_offset": appended.start_offset,
    }


def is_transactional(records: bytes | None) -> bool:
    """Return whether a batch belongs to a transaction; there are none yet, and Kafka sends strangers away."""
    return records is not None and len(records) > ATTRIBUTES_AT and bool(records[ATTRIBUTES_AT] & 0x10)


def _record_errors(errors: tuple[tuple[int, str], ...]) -> tuple[Any, ...]:
    if not errors:
        return ()
    cls = entity("produce", 8, "BatchIndexAndErrorMessage", "response")
    return tuple(build(cls, batch_index=index, batch_index_error_message=text) for index, text in errors)


def _all_refused(ctx: Context, request: Any, code: Code, message: str) -> Any:
    if request.acks == 0:
        raise Hangup(f"produced with acks=0 and met {code.name}")
    partition_type = entity("produce", ctx.version, "PartitionProduceResponse", "response")
    topic_type = entity("produce", ctx.version, "TopicProduceResponse", "response")
    topics = tuple(
        _like(
            topic_type,
            asked,
            partition_responses=tuple(
                build(
                    partition_type, index=data.index, error_code=code, base_offset=-1, error_message=message
                )
                for data in asked.partition_data
            ),
        )
        for asked in request.topic_data
    )
    return build(response_type(0, ctx.version), responses=topics)


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
        return len(one.log.read(one.offset, max_bytes=min(one.max_bytes, self.missing), end_offset=end))

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
            code = leader_epoch_error(getattr(partition, "current_leader_epoch", -1))
        found.append(Wanted("" if topic is None else topic.name, partition, log, code))
    return found


def _readable_end(one: Wanted, *, committed: bool) -> int | None:
    """Return where reading must stop, None when the partition answers with an error at once."""
    log = one.log
    if log is None or one.code or log.closed or not log.start_offset <= one.offset <= log.end_offset:
        return None
    return log.last_stable_offset if committed else log.high_watermark


def _read_all(node: Node, ctx: Context, request: Any, wanted: list[list[Wanted]], *, committed: bool) -> Any:
    left = _max_bytes(node, request)
    partition_type = entity("fetch", ctx.version, "PartitionData", "response")
    topic_type = entity("fetch", ctx.version, "FetchableTopicResponse", "response")
    topics = []
    first = True
    for asked, partitions in zip(request.topics, wanted, strict=True):
        answers = []
        for one in partitions:
            values = _read_one(one, left, first=first, committed=committed)
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


def _read_one(one: Wanted, left: int, *, first: bool, committed: bool) -> dict[str, Any]:
    """Return the fields of one partition's answer. The first batch of a fetch is whole however large
    (KIP-74).
    """
    log = one.log
    code = one.code
    if log is not None and log.closed:
        code = Code.UNKNOWN_TOPIC_OR_PARTITION
    if log is None or code:
        return _unreadable(code)
    end = log.last_stable_offset if committed else log.high_watermark
    budget = min(one.max_bytes, max(left, 0))
    records = b""
    try:
        if budget > 0 or first:
            records = log.read(one.offset, max_bytes=budget, at_least_one=first, end_offset=end)
    except OffsetOutOfRange:
        return _unreadable(Code.OFFSET_OUT_OF_RANGE)
    return {
        "error_code": Code.NONE,
        "high_watermark": log.high_watermark,
        "last_stable_offset": log.last_stable_offset,
        "log_start_offset": log.start_offset,
        "aborted_transactions": () if committed else None,
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
            code = Code.UNKNOWN_TOPIC_OR_PARTITION if log is None else Code.NONE
            code = code or leader_epoch_error(getattr(one, "current_leader_epoch", -1))
            values: dict[str, Any] = {"timestamp": -1, "offset": -1, "leader_epoch": -1}
            if log is not None and not code:
                values = _offset_at(log, one.timestamp, committed=committed)
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
            return {"timestamp": -1, "offset": end, "leader_epoch": 0}
        case -2 | -4:
            return {"timestamp": -1, "offset": log.start_offset, "leader_epoch": 0}
        case -3:
            found = log.offset_of_max_timestamp()
        case _ if timestamp < 0:  # tiered storage: there is none
            return nowhere
        case _:
            found = log.offset_for_timestamp(timestamp)
    if found is None:
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
            code = Code.UNKNOWN_TOPIC_OR_PARTITION if log is None else Code.NONE
            code = code or leader_epoch_error(one.current_leader_epoch)
            epoch, end = (-1, -1)
            if log is not None and not code:
                epoch, end = log.end_of_epoch(one.leader_epoch)
            values = {"partition": one.partition, "leader_epoch": epoch, "end_offset": end}
            answers.append(build(partition_type, error_code=code, **values))
        topics.append(build(topic_type, topic=asked.topic, partitions=tuple(answers)))
    return build(response_type(23, ctx.version), topics=tuple(topics))


# -- InitProducerId, DeleteRecords


def init_producer_id(node: Node, ctx: Context, request: Any) -> Any:
    """Hand out a producer id for an idempotent producer. Transactional ids are not served yet:
    INVALID_REQUEST.
    """
    cls = response_type(22, ctx.version)
    if request.transactional_id is not None:
        return build(cls, error_code=Code.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)
    return build(cls, error_code=Code.NONE, producer_id=node.topics.next_producer_id(), producer_epoch=0)


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
    return Code.NONE, log.delete_before(offset, now_ms)


HANDLERS = {
    0: produce,
    1: fetch,
    2: list_offsets,
    21: delete_records,
    22: init_producer_id,
    23: offset_for_leader_epoch,
}
