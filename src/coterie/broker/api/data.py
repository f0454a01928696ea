"""Fetch, ListOffsets, OffsetForLeaderEpoch, DeleteRecords: what reads logs.

Batches pass through unread: the log checks and stamps them, and a fetch answers with the bytes as they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.net.context import WAITS, Context, milliseconds
from coterie.broker.refusal import storage_failed
from coterie.broker.runtime.fetching import OlderRecords, Wanted, found_by, leader_epoch_error
from coterie.broker.runtime.leadership import why_absent
from coterie.broker.runtime.pieces import ITEMS_AT_ONCE, Aside, Pieces, Until, gathered, mapped, paced
from coterie.storage.kind import OVERDUE_MS
from coterie.storage.log.contract import OffsetAt, OffsetOutOfRange, StorageFailed
from coterie.storage.log.searching import first_from, youngest_of
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)
from coterie.wire.records.batches import read_header

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.net.peers import Peers
    from coterie.broker.runtime.clock import Clock
    from coterie.broker.runtime.leadership import Leadership, NodeEndpoint
    from coterie.broker.runtime.purgatory import Purgatory
    from coterie.broker.topics.catalog import TopicCatalog
    from coterie.broker.topics.topic import (
        Topic,
    )
    from coterie.storage.kind import Log, LogStore
    from coterie.wire.records.visible import AbortedTransaction

READ_COMMITTED = 1
CURRENT_LEADER_SINCE = {"produce": 10, "fetch": 16}  # the first versions that name a partition's leader
WRONG_LEADER = (Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
# The first version of ListOffsets in which a time below 0 means what it does; all others mean nothing.
MEANT_SINCE = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING: 11,
}
NEVER = 1 << 15
NO_OFFSET: Mapping[str, Any] = {"timestamp": -1, "offset": -1, "leader_epoch": -1}


class Parts(NamedTuple):
    """The parts of the broker that these handlers use."""

    settings: BrokerSettings
    topics: TopicCatalog
    leadership: Leadership
    led_log: Callable[[TopicPartition], Log | None]
    store: LogStore
    purgatory: Purgatory
    peers: Peers
    clock: Clock


def topic_named(topics: TopicCatalog, asked: Any) -> tuple[Topic | None, Code]:
    """Return the topic that a request names by name or by id, or the code that says there is none."""
    name = getattr(asked, "name", getattr(asked, "topic", None))  # "" is a name, which none has
    if name is not None:
        topic = topics.get(name)
        return topic, Code.NONE if topic is not None else Code.UNKNOWN_TOPIC_OR_PARTITION
    topic_id: UUID | None = getattr(asked, "topic_id", None)
    topic = None if topic_id is None else topics.by_id(topic_id)
    return topic, Code.NONE if topic is not None else Code.UNKNOWN_TOPIC_ID


def key_of(asked: Any) -> Any:
    """Return the name, which may be empty, or the id by which a request names a topic."""
    name = getattr(asked, "name", getattr(asked, "topic", None))
    return getattr(asked, "topic_id", None) if name is None else name


class CurrentLeaders:
    """The leaders that an answer names to who came to the wrong one, or in an old epoch (KIP-951)."""

    def __init__(self, leadership: Leadership, api: str, version: int) -> None:
        self._leadership, self._api, self._version = leadership, api, version
        self._nodes: dict[int, NodeEndpoint] = {}

    def add(self, topic: str, partition: int, values: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a partition's answer, with its leader and epoch if the client lacks them.

        Where nobody leads none is named. Apache Kafka names -1, which tells a client nothing: librdkafka
        2.16.1 counts it, takes no partition for it, and reads memory that nobody has written for one.
        """
        if values["error_code"] not in WRONG_LEADER or self._version < CURRENT_LEADER_SINCE[self._api]:
            return values
        leader = self._leadership.leader_of(topic, partition)
        if leader is None:
            return values
        self._nodes[leader.node_id] = leader
        cls = entity(self._api, self._version, "LeaderIdAndEpoch", "response")
        epoch = self._leadership.leader_epoch(topic, partition)
        return {**values, "current_leader": build(cls, leader_id=leader.node_id, leader_epoch=epoch)}

    def where(self) -> dict[str, Any]:
        """Return the field with the addresses of those that were named."""
        if not self._nodes:
            return {}
        cls = entity(self._api, self._version, "NodeEndpoint", "response")
        return {"node_endpoints": tuple(build(cls, **one._asdict()) for one in self._nodes.values())}


# -- Fetch


# What a fetch asks for, by how it names it: a partition that it names again it means as it says last.
WantedByName = dict[tuple[Any, int], Wanted]


class WaitingFetch:
    """A fetch that waits until `min_bytes` have come, an error shows, or `max_wait` is over; before, until
    what it wants has been read that is not in memory.
    """

    __slots__ = ("committed", "ctx", "missing", "most", "older", "parts", "there", "wanted")

    def __init__(self, parts: Parts, ctx: Context, request: Any, wanted: WantedByName) -> None:
        self.parts, self.ctx, self.wanted = parts, ctx, wanted
        self.committed = getattr(request, "isolation_level", 0) == READ_COMMITTED
        self.most = _max_bytes(parts, request)
        self.missing: int = min(request.min_bytes, self.most)
        self.there = 0
        self.older: OlderRecords | None = None

    @property
    def recalls(self) -> bool:
        """Whether something is being read that is not in memory."""
        return self.older is not None and self.older.missing

    def recall(self, old: Sequence[Wanted], *, until_ms: int) -> None:
        """Have read what is not in memory. What wants many partitions waits for nothing else then."""
        if len(self.wanted) > ITEMS_AT_ONCE:
            until_ms = 0
        self.older = OlderRecords(self.parts.purgatory, until_ms=until_ms)
        self.older.ask(old, min(self.most, self.parts.peers.room))
        self.ctx.when_gone(self.older.release)

    def ready(self, changed: Any = None) -> bool:
        """Return whether there is enough. Only what has changed is looked at; all of it at first."""
        if self.older is not None and self.older.missing:
            end = None if changed is None else self.wanted[changed].readable_end(committed=self.committed)
            return changed is not None and end is None  # an error shows
        if self.missing <= 0:
            return True
        if changed is not None:
            return self.suffices(self.wanted[changed])
        if len(self.wanted) > ITEMS_AT_ONCE:
            return False  # it will be looked at in pieces
        for one in self.wanted.values():  # noqa: SIM110  `any` takes a microsecond longer
            if self.suffices(one):
                return True
        return False

    def suffices(self, one: Wanted) -> bool:
        """Return whether there is enough, with what is there of this partition now."""
        end = one.readable_end(committed=self.committed)
        if end is None:
            return True
        there = self._bytes_there(one, end) if end > one.offset else 0
        self.there += there - one.there
        one.there = there
        return self.there >= self.missing

    def _bytes_there(self, one: Wanted, end: int) -> int:
        """Return the number of bytes that a partition can answer with, or 1 for any number.

        Nearly every client is content with one byte.
        """
        if self.missing == 1 and (one.old is None or one.has_come()):
            return 1
        try:
            return one.size_up_to(end)
        except StorageFailed:  # the answer will say so, and should say it now
            return self.missing

    def finish(self, *, forced: bool) -> None:
        count = len(self.wanted)
        # Of a few, which are read at once, nobody else can take the room meanwhile.
        read = _read_within if count <= ITEMS_AT_ONCE else _read_in_pieces
        most = min(self.most, self.parts.peers.room)
        pieces = read(most, self.parts, self.ctx, self.wanted, committed=self.committed)
        if self.older is not None:
            pieces = self.older.released_after(pieces)
        self.ctx.reply(paced(pieces, count))


def fetch(parts: Parts, ctx: Context, request: Any) -> Any:
    """Answer with the batches that are there, or wait for them as long as the client allows.

    Sessions: a client that asks for an incremental session is answered with session id 0, which tells it to
    go on with full requests (KIP-227). Only the epochs 0 and -1 are of full requests; any other goes on in a
    session, which we never gave, whatever its id: FETCH_SESSION_ID_NOT_FOUND.
    """
    if not -1 <= getattr(request, "session_epoch", -1) <= 0:
        return build(response_type(1, ctx.version), error_code=Code.FETCH_SESSION_ID_NOT_FOUND)
    named = len(request.topics)
    for asked in request.topics:
        named += len(asked.partitions)
    return paced(_fetch(parts, ctx, request), named)


def _fetch(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    wanted: WantedByName = {}
    unknown, aged, looked = False, False, 0
    for asked in request.topics:
        topic, missing = topic_named(parts.topics, asked)
        for partition in asked.partitions:
            one = _wanted(parts, asked, topic, missing, partition)
            wanted[one.topic or key_of(asked), one.partition] = one
            unknown = unknown or one.log is None
            aged = aged or not one.is_at_hand()
            looked += 1
            if looked % ITEMS_AT_ONCE == 0:
                yield
        looked += 1
        if looked % ITEMS_AT_ONCE == 0:
            yield
    operation = WaitingFetch(parts, ctx, request, wanted)
    wait_ms = milliseconds(request.max_wait) if wanted and not unknown else 0
    if aged:
        old = yield from gathered(None if one.is_at_hand() else one for one in wanted.values())
        operation.recall(old, until_ms=parts.clock.now_ms() + wait_ms)
    if operation.recalls:
        operation.missing = operation.missing if wait_ms > 0 else 0
        wait_ms = OVERDUE_MS
    if wait_ms <= 0:
        operation.finish(forced=True)
        return WAITS
    parked = parts.purgatory.park(operation, keys=wanted, deadline_ms=parts.clock.now_ms() + wait_ms)
    if parked is None:
        return WAITS
    ctx.waits_in(parts.purgatory, parked)
    if operation.older is not None:
        operation.older.wait_in(parked)
    if len(wanted) > ITEMS_AT_ONCE and not operation.recalls:
        for place, (key, one) in enumerate(wanted.items()):
            if not parts.leadership.alone:
                one.look_again(parts)
            parts.purgatory.look_again(parked, key)
            if parked.done:
                break
            if place % ITEMS_AT_ONCE == 0:
                yield
    return WAITS


def _max_bytes(parts: Parts, request: Any) -> int:
    return min(getattr(request, "max_bytes", 2**31 - 1), parts.settings.fetch_max_bytes)


def _wanted(parts: Parts, asked: Any, topic: Topic | None, missing: Code, partition: Any) -> Wanted:
    one = Wanted(asked, "" if topic is None else topic.name, partition, missing)
    if topic is not None:
        one.look_up(parts)
    return one


def _read_in_pieces(
    most: int, parts: Parts, ctx: Context, wanted: WantedByName, *, committed: bool
) -> Pieces[Any]:
    """Answer as `_read_within` does, and hold the room for it meanwhile."""
    with parts.peers.taken(most):
        return (yield from _read_within(most, parts, ctx, wanted, committed=committed))


def _read_within(
    left: int, parts: Parts, ctx: Context, wanted: WantedByName, *, committed: bool
) -> Pieces[Any]:
    """Answer partition by partition, with `left` bytes of records or, if the first batch is larger, that one.

    Neighbours of one topic stand together, as Kafka has them.
    """
    partition_type = entity("fetch", ctx.version, "PartitionData", "response")
    topic_type = entity("fetch", ctx.version, "FetchableTopicResponse", "response")
    topics: list[tuple[Any, list[Any]]] = []
    first, before, leaders = True, None, CurrentLeaders(parts.leadership, "fetch", ctx.version)
    for place, ((name, _), one) in enumerate(wanted.items()):
        if not parts.leadership.alone:
            one.look_again(parts)
        values = _read_one(one, left, first=first, committed=committed, version=ctx.version)
        if one.code:
            values = leaders.add(one.topic, one.partition, values)
        size = len(values["records"])
        left -= size
        first = first and not size
        if not topics or name != before:
            topics.append((one.asked, []))
            before = name
        topics[-1][1].append(build(partition_type, partition_index=one.partition, **values))
        if (size and len(wanted) > ITEMS_AT_ONCE) or place % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
            yield
    responses = []
    for asked, answers in topics:
        named = {"topic": getattr(asked, "topic", ""), "topic_id": getattr(asked, "topic_id", None)}
        responses.append(build(topic_type, **named, partitions=tuple(answers)))
        if len(responses) % ITEMS_AT_ONCE == 0:
            yield
    return build(response_type(1, ctx.version), responses=tuple(responses), **leaders.where())


def _aborted(spans: tuple[AbortedTransaction, ...], version: int) -> tuple[Any, ...]:
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
    source = one.readable(log)
    try:
        if source is None and one.is_overdue(log):
            return _unreadable(Code.KAFKA_STORAGE_ERROR)
        if source is None:
            records = b""
        elif committed:
            records, spans = source.read_committed(one.offset, max_bytes=budget, at_least_one=first)
            aborted = _aborted(spans, version)
        else:
            records = source.read(one.offset, max_bytes=budget, at_least_one=first)
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


def list_offsets(parts: Parts, ctx: Context, request: Any) -> Any:
    """Answer with the offset of a time, of the end or of the start of each partition."""
    return _list_offsets(parts, ctx, request)


def _list_offsets(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    """Each partition is answered once; one that is named again is refused, as Kafka refuses it."""
    partition_type = entity("list_offsets", ctx.version, "ListOffsetsPartitionResponse", "response")
    topic_type = entity("list_offsets", ctx.version, "ListOffsetsTopicResponse", "response")
    committed = getattr(request, "isolation_level", 0) == READ_COMMITTED
    wanted: dict[str, dict[int, Any]] = {}
    for asked in request.topics:
        partitions = wanted.setdefault(asked.name, {})
        for place, one in enumerate(asked.partitions):
            partitions[one.partition_index] = None if one.partition_index in partitions else one
            if place % ITEMS_AT_ONCE == 0:
                yield
        yield
    topics: dict[str, list[Any]] = {}
    for name, partitions in wanted.items():
        answers = topics[name] = []
        for index, one in partitions.items():
            values: Mapping[str, Any] = {**NO_OFFSET, "error_code": Code.INVALID_REQUEST}
            if one is not None and one.timestamp < 0 and ctx.version < MEANT_SINCE.get(one.timestamp, NEVER):
                values = {**NO_OFFSET, "error_code": Code.UNSUPPORTED_VERSION}
            elif one is not None:
                values = yield from _offset_of(parts, name, one, committed=committed)
            answers.append(build(partition_type, partition_index=index, **values))
            if len(answers) % ITEMS_AT_ONCE == 0:
                yield
        yield
    responses = yield from gathered(
        build(topic_type, name=name, partitions=tuple(of)) for name, of in topics.items()
    )
    return build(response_type(2, ctx.version), topics=tuple(responses))


def _offset_of(parts: Parts, topic: str, one: Any, *, committed: bool) -> Pieces[Mapping[str, Any]]:
    name = TopicPartition(topic, one.partition_index)
    log = parts.led_log(name)
    if log is None:
        return {**NO_OFFSET, "error_code": why_absent(parts.topics, parts.leadership, *name)}
    code = leader_epoch_error(log, getattr(one, "current_leader_epoch", -1))
    if code:
        return {**NO_OFFSET, "error_code": code}
    try:
        values = yield from _offset_at(log, one.timestamp, committed=committed)
    except StorageFailed as failed:
        return {**NO_OFFSET, "error_code": failed.code}
    # Its topic may have been deleted, or led elsewhere, while a batch was looked through.
    if log.closed or not (parts.leadership.alone or parts.leadership.leads(*name)):
        return {**NO_OFFSET, "error_code": why_absent(parts.topics, parts.leadership, *name)}
    return {**values, "error_code": Code.NONE}


def _offset_at(log: Log, timestamp: int, *, committed: bool) -> Pieces[Mapping[str, Any]]:
    match timestamp:
        case -1:
            end = log.last_stable_offset if committed else log.high_watermark
            return {"timestamp": -1, "offset": end, "leader_epoch": log.latest_epoch}
        case -2 | -4:
            return {"timestamp": -1, "offset": log.start_offset, "leader_epoch": log.earliest_epoch}
        case -3:
            found = yield from _youngest(log)
        case -5 | -6:  # tiered storage: there is none
            return NO_OFFSET
        case _:
            found = yield from _first_from(log, timestamp)
    if found is None or (committed and found.offset >= log.last_stable_offset):
        return NO_OFFSET
    return {"timestamp": found.timestamp, "offset": found.offset, "leader_epoch": found.leader_epoch}


def _youngest(log: Log) -> Pieces[OffsetAt | None]:
    batch = yield from found_by(log.find_youngest_soon)
    if batch is None:
        return None
    found: OffsetAt | None = yield Aside(youngest_of, (batch, log.start_offset), read_header(batch).count)
    return found


def _first_from(log: Log, timestamp: int) -> Pieces[OffsetAt | None]:
    """Look through batches that claim to hold a record as young: a few bytes can be long to decode."""
    offset = log.start_offset
    while not log.closed:
        batch = yield from found_by(partial(log.find_soon, timestamp, offset))
        if batch is None:
            return None
        header = read_header(batch)
        found: OffsetAt | None = yield Aside(first_from, (batch, timestamp, offset), header.count)
        if found is not None:
            return found
        offset = header.last_offset + 1
    return None


def offset_for_leader_epoch(parts: Parts, ctx: Context, request: Any) -> Any:
    """Answer with the offset at which the epoch that a client knows ends (KIP-101, KIP-320)."""
    return _offset_for_leader_epoch(parts, ctx, request)


def _offset_for_leader_epoch(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    partition_type = entity("offset_for_leader_epoch", ctx.version, "EpochEndOffset", "response")
    topic_type = entity("offset_for_leader_epoch", ctx.version, "OffsetForLeaderTopicResult", "response")
    topics = []
    for asked in request.topics:
        answers = []
        for one in asked.partitions:
            name = TopicPartition(asked.topic, one.partition)
            log = parts.led_log(name)
            epoch, end = (-1, -1)
            if log is None:
                code = why_absent(parts.topics, parts.leadership, *name)
            elif not (code := leader_epoch_error(log, one.current_leader_epoch)):
                epoch, end = log.end_of_epoch(one.leader_epoch)
            values = {"partition": one.partition, "leader_epoch": epoch, "end_offset": end}
            answers.append(build(partition_type, error_code=code, **values))
            if len(answers) % ITEMS_AT_ONCE == 0:
                yield
        topics.append(build(topic_type, topic=asked.topic, partitions=tuple(answers)))
        if len(topics) % ITEMS_AT_ONCE == 0:
            yield
    return build(response_type(23, ctx.version), topics=tuple(topics))


# -- DeleteRecords


def delete_records(parts: Parts, ctx: Context, request: Any) -> Any:
    """Move the start of each partition up to the offset that is asked for (-1: to its end)."""
    return _delete_records(parts, ctx, request)


def _delete_records(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    """A partition that is named again is answered once, for the offset that is given last, as Kafka does."""
    partition_type = entity("delete_records", ctx.version, "DeleteRecordsPartitionResult", "response")
    topic_type = entity("delete_records", ctx.version, "DeleteRecordsTopicResult", "response")
    wanted: dict[str, dict[int, Any]] = {}
    for asked in request.topics:
        named = yield from mapped((one.partition_index, one) for one in asked.partitions)
        wanted.setdefault(asked.name, {}).update(named)
        yield
    found = yield from mapped(
        ((name, index), _to_delete(parts, name, one))
        for name, partitions in wanted.items()
        for index, one in partitions.items()
    )
    # Not of one that was deleted meanwhile: the next of its name would start there.
    ahead = {
        one.log.name: one.offset
        for one in found.values()
        if one.log and parts.led_log(one.log.name) is one.log
    }
    saved = yield Until(partial(parts.store.save_starts, ahead))
    refused = _not_saved(ahead, saved)
    topics = []
    for name, partitions in wanted.items():
        answers = []
        for index in partitions:
            one = found[name, index]
            why = Code.NONE if one.log is None else refused.get(one.log.name, Code.NONE)
            code, low = _delete_before(parts, one, why, parts.clock.now_ms())
            answers.append(build(partition_type, partition_index=index, low_watermark=low, error_code=code))
            yield
        topics.append(build(topic_type, name=name, partitions=tuple(answers)))
        yield
    return build(response_type(21, ctx.version), topics=tuple(topics))


def _not_saved(
    names: Iterable[TopicPartition], saved: OSError | StorageFailed | Set[TopicPartition]
) -> Mapping[TopicPartition, Code]:
    """Return, of the partitions whose start is not written down, why."""
    if isinstance(saved, Set):
        return dict.fromkeys(saved, Code.NOT_LEADER_OR_FOLLOWER)
    return dict.fromkeys(names, storage_failed("write down where the logs start", saved).code)


class _Deletion(NamedTuple):
    """Which log is to start at an offset; without a log, why none is."""

    log: Log | None
    offset: int
    code: Code


def _to_delete(parts: Parts, topic_name: str, one: Any) -> _Deletion:
    topic = parts.topics.get(topic_name)
    name = TopicPartition(topic_name, one.partition_index)
    log = parts.led_log(name)
    if topic is None or log is None:
        return _Deletion(None, -1, why_absent(parts.topics, parts.leadership, *name))
    if topic.internal:
        return _Deletion(None, -1, Code.INVALID_TOPIC_EXCEPTION)
    if "delete" not in log.config.cleanup_policy:
        return _Deletion(None, -1, Code.POLICY_VIOLATION)
    offset = log.high_watermark if one.offset == -1 else one.offset
    if not 0 <= offset <= log.high_watermark:
        return _Deletion(None, -1, Code.OFFSET_OUT_OF_RANGE)
    return _Deletion(log, offset, Code.NONE)


def _delete_before(parts: Parts, deletion: _Deletion, refused: Code, now_ms: int) -> tuple[Code, int]:
    """Move a start that is written down, unless that was `refused`; return the code and where it is."""
    log, offset, code = deletion
    if log is None or refused != Code.NONE:
        return code if log is None else refused, -1
    if parts.led_log(log.name) is not log:  # deleted meanwhile, or led elsewhere
        return why_absent(parts.topics, parts.leadership, *log.name), -1
    try:
        return Code.NONE, log.delete_before(offset, now_ms, save=False)
    except StorageFailed as failed:
        return failed.code, -1


HANDLERS = {
    1: fetch,
    2: list_offsets,
    21: delete_records,
    23: offset_for_leader_epoch,
}
