"""Produce: each partition's batch into its log, and where it landed.

A batch of a transaction is let in once the transaction's coordinator agrees: up to version 11 it is asked
whether the partition belongs to the transaction, from 12 on the partition joins it (KIP-890).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.base.ids import TopicPartition
from coterie.broker.api.data import CurrentLeaders, key_of, topic_named
from coterie.broker.net.context import SILENT, WAITS, Context, Hangup
from coterie.broker.refusal import Refusal
from coterie.broker.runtime.leadership import why_absent
from coterie.broker.runtime.pieces import ITEMS_AT_ONCE, Aside, Pieces, paced
from coterie.storage.log.contract import AppendRefused, TakesLong
from coterie.storage.log.producers import ONGOING
from coterie.storage.log.validate import Prepared, prepare
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)
from coterie.wire.records.batches import ATTRIBUTES_AT, CODEC_BITS, HEADER_SIZE, BatchHeader, read_header

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.runtime.clock import Clock
    from coterie.broker.runtime.leadership import Leadership
    from coterie.broker.runtime.replica_manager import ReplicaManager
    from coterie.broker.runtime.transactions import AsksCoordinators
    from coterie.broker.topics.catalog import TopicCatalog
    from coterie.broker.topics.topic import (
        Topic,
    )
    from coterie.storage.kind import Log
    from coterie.storage.log.contract import Appended
    from coterie.storage.log.producers import Verification

APPENDS_AT_ONCE, RECORDS_AT_ONCE = 8, 2_000
RECORDS_LIKE_AN_ITEM, UNPACKING = 100, 1_000
ABORTABLE_SINCE = 11  # the first version whose clients know TRANSACTION_ABORTABLE
JOINS_SINCE = 12
LOW_ATTRIBUTES_AT = ATTRIBUTES_AT + 1
ATTRIBUTES_AND_COUNT = Struct(">B34xI")  # up to the end of the header
TRANSACTIONAL_BIT = 0x10
# What is found before the log is looked at: such an answer does not say where the log starts.
UNREAD_BATCH = (Code.CORRUPT_MESSAGE, Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE)
ASK_AGAIN = (
    Code.NETWORK_EXCEPTION,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
)


class Parts(NamedTuple):
    """The parts of the broker that these handlers use."""

    settings: BrokerSettings
    topics: TopicCatalog
    leadership: Leadership
    led_log: Callable[[TopicPartition], Log | None]
    replica_manager: ReplicaManager
    clock: Clock
    load_transaction_partitions: Callable[[], AsksCoordinators]


class Begun(NamedTuple):
    """A request of which some batches are in their logs already."""

    request: Any
    appended: Mapping[TopicPartition, Appended]


def produce(parts: Parts, ctx: Context, request: Any) -> Any:
    """Append each partition's batch and say where it landed. The request may have `Begun`."""
    appended: Mapping[TopicPartition, Appended] = {}
    if isinstance(request, Begun):
        request, appended = request
    items, attributes = _glance(request)
    return paced(_produce(parts, ctx, request, attributes, appended, many=items > ITEMS_AT_ONCE), items)


def _glance(request: Any) -> tuple[int, int]:
    """Return a request's weight in items, no less than ITEMS_AT_ONCE if large, and its batches' attributes.

    Records that are walked over count as what takes as long. Of many things those behind are not looked at.
    """
    items, work, attributes = len(request.topic_data), 0, 0
    for asked in request.topic_data:
        items += len(asked.partition_data)
        if items > ITEMS_AT_ONCE:
            break
        for data in asked.partition_data:
            bits, more = _attributes_and_count(data.records)
            attributes |= bits
            work += more
    return items + work // RECORDS_LIKE_AN_ITEM, attributes


def _attributes_and_count(records: bytes | None) -> tuple[int, int]:
    """Return the attributes of a batch, and how many records its header says; to unpack them counts, too."""
    if records is None or len(records) < HEADER_SIZE:
        return records[LOW_ATTRIBUTES_AT] if records and len(records) > LOW_ATTRIBUTES_AT else 0, 0
    attributes, count = ATTRIBUTES_AND_COUNT.unpack_from(records, LOW_ATTRIBUTES_AT)
    return attributes, count + UNPACKING if attributes & CODEC_BITS else count


def _produce(
    parts: Parts,
    ctx: Context,
    request: Any,
    attributes: int,
    appended: Mapping[TopicPartition, Appended],
    *,
    many: bool,
) -> Pieces[Any]:
    """Answer a request. `attributes` are those of its batches, but for those of `many` things."""
    for place, asked in enumerate(request.topic_data if many else ()):
        for within, data in enumerate(asked.partition_data):
            attributes |= _attributes_and_count(data.records)[0]
            if within % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
                yield
        if place % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
            yield
    if attributes & TRANSACTIONAL_BIT:
        return (yield from _produce_in_transaction(parts, ctx, request))
    if request.acks not in (-1, 0, 1):
        return (yield from _all_refused(ctx, request, Code.INVALID_REQUIRED_ACKS, "acks must be -1, 0 or 1"))
    return (yield from _append_all(parts, ctx, request, {}, {}, appended, many=many))


def _named_last(request: Any) -> Pieces[dict[Any, tuple[Any, dict[int, Any]]]]:
    """Return each topic with its partitions: one that is named again gets what is said last and is answered
    once, as in Kafka.
    """
    topics: dict[Any, tuple[Any, dict[int, Any]]] = {}
    for place, asked in enumerate(request.topic_data):
        named = topics.setdefault(key_of(asked), (asked, {}))[1]
        for data in asked.partition_data:
            named[data.index] = data
        if place % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
            yield
    return topics


def _append_all(
    parts: Parts,
    ctx: Context,
    request: Any,
    refused: Mapping[TopicPartition, Refusal],
    verified: Mapping[TopicPartition, Verification],
    appended: Mapping[TopicPartition, Appended] = {},
    *,
    many: bool = True,
) -> Pieces[Any]:
    """Append what is neither refused nor `appended` already; `verified` is what the logs ask of batches of
    transactions.
    """
    partition_type = entity("produce", ctx.version, "PartitionProduceResponse", "response")
    topic_type = entity("produce", ctx.version, "TopicProduceResponse", "response")
    failed, leaders = Code.NONE, CurrentLeaders(parts.leadership, "produce", ctx.version)
    landings = Landings(parts, ctx, leaders)
    topics = yield from _named_last(request)
    responses = []
    appends = work = 0  # since the last stop, whatever topics they are in
    for asked, wanted in topics.values():
        topic, missing = topic_named(parts.topics, asked)
        answers = []
        for data in wanted.values():
            refusal = seen = there = None
            if refused or verified or appended:
                name = TopicPartition("" if topic is None else topic.name, data.index)
                refusal, seen, there = refused.get(name), verified.get(name), appended.get(name)
            if there is not None:
                values = _taken(there)
            elif refusal is not None:
                values = _fields_of(refusal)
            elif topic is None:
                values = {"error_code": missing, "base_offset": -1}
            else:
                try:
                    values = _append(parts, topic, data, data.records or b"", seen, landings)
                except TakesLong:
                    values = yield from _append_aside(parts, topic, data, seen, landings)
                    topic, missing = topic_named(parts.topics, asked)  # it may be gone by now, or another
            failed = failed or values["error_code"]
            values = leaders.add(topic.name, data.index, values) if failed and topic else values
            answers.append(build(partition_type, index=data.index, **values))
            appends += 1
            work += _attributes_and_count(data.records)[1] if many else 0
            if appends == APPENDS_AT_ONCE or work > RECORDS_AT_ONCE:
                appends = work = 0
                yield
                topic, missing = topic_named(parts.topics, asked)  # as above
        responses.append(_like(topic_type, asked, partition_responses=tuple(answers)))
        if len(responses) % ITEMS_AT_ONCE == 0:
            yield
    if request.acks == 0:
        if failed:
            raise Hangup(f"produced with acks=0 and met {failed.name}")
        landings.close_if_refused()
        return SILENT
    return landings.answer(
        build(response_type(0, ctx.version), responses=tuple(responses), **leaders.where())
    )


def _like(cls: Any, asked: Any, **values: Any) -> Any:
    """Build an answer about a topic that is named as the request named it."""
    return build(cls, name=getattr(asked, "name", ""), topic_id=getattr(asked, "topic_id", None), **values)


def _append_aside(
    parts: Parts, topic: Topic, data: Any, verified: Verification | None, landings: Landings
) -> Pieces[dict[str, Any]]:
    """Append a batch after its records have been looked through aside."""
    log = parts.led_log(TopicPartition(topic.name, data.index))
    if log is None:
        return _absent(parts, topic, data)
    count = read_header(data.records).count  # `TakesLong` has said that there is a header
    batch = yield Aside(prepare, (data.records, log.config, parts.clock.wall_ms()), count)
    if log.closed:  # whatever has its name by now, it was not meant
        return _absent(parts, topic, data)
    if isinstance(batch, AppendRefused):
        return _refused_by(parts, topic, data, batch)
    return _append(parts, topic, data, batch, verified, landings)


def _append(
    parts: Parts,
    topic: Topic,
    data: Any,
    records: bytes | Prepared,
    verified: Verification | None,
    landings: Landings,
) -> dict[str, Any]:
    """Append, and return the fields of the answer. Raises `TakesLong`."""
    if parts.led_log(TopicPartition(topic.name, data.index)) is None:
        return _absent(parts, topic, data)
    if topic.internal:
        return {"error_code": Code.INVALID_TOPIC_EXCEPTION, "base_offset": -1}
    try:
        appended = parts.replica_manager.append(
            topic.name, data.index, records, now_ms=parts.clock.now_ms(), verified=verified, promptly=True
        )
    except AppendRefused as refused:
        return _refused_by(parts, topic, data, refused)
    if not appended.landed:
        landings.add(topic, data, appended)
    return _taken(appended)


def _taken(appended: Appended) -> dict[str, Any]:
    return {
        "error_code": Code.NONE,
        "base_offset": appended.base_offset,
        "log_append_time": None if appended.append_time_ms < 0 else appended.append_time_ms,
        "log_start_offset": appended.start_offset,
    }


def _absent(parts: Parts, topic: Topic, data: Any) -> dict[str, Any]:
    code = why_absent(parts.topics, parts.leadership, topic.name, data.index)
    return {"error_code": code, "base_offset": -1}


def _refused_by(parts: Parts, topic: Topic, data: Any, refused: AppendRefused) -> dict[str, Any]:
    log = parts.led_log(TopicPartition(topic.name, data.index))
    unread = log is None or refused.unread or refused.code in UNREAD_BATCH
    return {
        "error_code": refused.code,
        "base_offset": -1,
        "error_message": refused.message,
        "log_start_offset": -1 if unread or log is None else log.start_offset,
        "record_errors": _record_errors(refused.record_errors),
    }


def _record_errors(errors: Sequence[tuple[int, str]]) -> tuple[Any, ...]:
    if not errors:
        return ()
    cls = entity("produce", 8, "BatchIndexAndErrorMessage", "response")
    return tuple(build(cls, batch_index=index, batch_index_error_message=text) for index, text in errors)


def _fields_of(refusal: Refusal) -> dict[str, Any]:
    return {"error_code": refusal.code, "base_offset": -1, "error_message": refusal.message}


def _all_refused(ctx: Context, request: Any, code: Code, message: str | None = None) -> Pieces[Any]:
    if request.acks == 0:
        raise Hangup(f"produced with acks=0 and met {code.name}")
    partition_type = entity("produce", ctx.version, "PartitionProduceResponse", "response")
    topic_type = entity("produce", ctx.version, "TopicProduceResponse", "response")
    refusal = _fields_of(Refusal(code, message))
    topics = []
    for place, asked in enumerate(request.topic_data):
        answers = []
        for data in asked.partition_data:
            answers.append(build(partition_type, index=data.index, **refusal))
            if len(answers) % ITEMS_AT_ONCE == 0:
                yield
        topics.append(_like(topic_type, asked, partition_responses=tuple(answers)))
        if place % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
            yield
    return build(response_type(0, ctx.version), responses=tuple(topics))


class Landings:
    """The batches of a request that are appended and have not landed: it is answered when all of them have.

    With acks=1, too: there is one replica, and what has not landed may still be refused.
    """

    __slots__ = ("_answer", "_closes", "_ctx", "_leaders", "_left", "_parts", "_refused")

    def __init__(self, parts: Parts, ctx: Context, leaders: CurrentLeaders) -> None:
        self._parts, self._ctx, self._leaders = parts, ctx, leaders
        self._left = 0
        self._refused: dict[tuple[Any, int], dict[str, Any]] | None = None
        self._answer: Any = None
        self._closes = False

    def add(self, topic: Topic, data: Any, appended: Appended) -> None:
        """Wait for one more."""
        self._left += 1
        watched = TopicPartition(topic.name, data.index)
        self._parts.replica_manager.when_landed(watched, appended, partial(self._landed, topic, data))

    def answer(self, response: Any) -> Any:
        """Return the response, or WAITS until it may be sent."""
        if not self._left:
            return self._corrected(response)
        self._answer = response
        self._ctx.placed = True
        return WAITS

    def close_if_refused(self) -> None:
        """Have the connection of a request that is not answered closed at the first refusal. Raises `Hangup`
        where there has been one.
        """
        if self._refused is not None:
            raise Hangup("produced with acks=0, and the log has not kept it")
        self._closes = True

    def _landed(self, topic: Topic, data: Any, refused: AppendRefused | None) -> None:
        self._left -= 1
        if self._closes:
            if refused is not None:
                self._ctx.reply(_hang_up(refused.code))
            return
        if refused is not None:
            values = self._leaders.add(topic.name, data.index, _refused_by(self._parts, topic, data, refused))
            named = {(name, data.index): values for name in (topic.name, topic.topic_id)}
            self._refused = (self._refused or {}) | named
        if not self._left and self._answer is not None:
            self._ctx.reply(self._corrected(self._answer))

    def _corrected(self, response: Any) -> Any:
        """Return the response, with the refusal of what the log has not kept after all."""
        refused = self._refused
        if refused is None:
            return response
        topics = [
            replace(
                topic,
                partition_responses=tuple(
                    build(type(one), index=one.index, **refused[key_of(topic), one.index])
                    if (key_of(topic), one.index) in refused
                    else one
                    for one in topic.partition_responses
                ),
            )
            for topic in response.responses
        ]
        return replace(response, responses=tuple(topics), **self._leaders.where())


def _hang_up(code: Code) -> Pieces[Any]:
    yield from ()
    raise Hangup(f"produced with acks=0 and met {code.name}")


# -- in transactions


def _is_transactional(records: bytes | None) -> bool:
    """Return whether a batch says that it belongs to a transaction."""
    return bool(_attributes_and_count(records)[0] & TRANSACTIONAL_BIT)


def _produce_in_transaction(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    if request.transactional_id is None:
        return (yield from _all_refused(ctx, request, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    if request.acks not in (-1, 0, 1):
        return (yield from _all_refused(ctx, request, Code.INVALID_REQUIRED_ACKS, "acks must be -1, 0 or 1"))
    batches = yield from _batches(parts, request)
    producers = {(header.producer_id, header.producer_epoch) for header in batches.values()}
    if len(producers) > 1:
        message = "the batches of a transaction come from one producer, these from several"
        return (yield from _all_refused(ctx, request, Code.INVALID_PRODUCER_ID_MAPPING, message))
    if not producers:
        return (yield from _append_all(parts, ctx, request, {}, {}))
    yield from WaitingProduce(parts, ctx, request, batches).ask()
    return WAITS


def _batches(parts: Parts, request: Any) -> Pieces[dict[TopicPartition, BatchHeader]]:
    """Return the header of each batch whose partition is to be part of its transaction."""
    batches: dict[TopicPartition, BatchHeader] = {}
    for place, asked in enumerate(request.topic_data):
        if place % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1 or len(asked.partition_data) > ITEMS_AT_ONCE:
            yield
        topic, _ = topic_named(parts.topics, asked)
        if topic is None:
            continue
        for data in asked.partition_data:
            there = parts.led_log(TopicPartition(topic.name, data.index)) is not None
            if there and _is_transactional(data.records) and len(data.records) >= HEADER_SIZE:
                try:
                    header = read_header(data.records)
                except Corrupt:  # the log will say so
                    continue
                if header.producer_id >= 0:
                    batches[TopicPartition(topic.name, data.index)] = header
    return batches


class WaitingProduce:
    """A request to produce in a transaction, until its coordinator has said which partitions may be written.

    The coordinator is asked about partitions alone that the transaction has not reached yet.
    """

    def __init__(
        self, parts: Parts, ctx: Context, request: Any, batches: Mapping[TopicPartition, BatchHeader]
    ) -> None:
        self.parts, self.ctx, self.request, self.batches = parts, ctx, request, batches
        self.joins = ctx.version >= JOINS_SINCE
        self.refused: dict[TopicPartition, Refusal] = {}
        self.verified: dict[TopicPartition, Verification] = {}
        self.shown: Mapping[TopicPartition, Verification] = self.verified

    def ask(self) -> Pieces[None]:
        """Ask the coordinator where that is needed, and append what it allows."""
        for place, (name, header) in enumerate(self.batches.items()):
            self._keep_verification(name, header)
            if place % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
                yield
        asks = self.joins or self._verifies()
        if asks:
            self.shown = {**dict.fromkeys(self.batches, ONGOING), **self.verified}
        if not (asks and self.verified):
            self.append()
            return
        header = next(iter(self.batches.values()))
        self.parts.load_transaction_partitions().partitions(
            self.request.transactional_id,
            header.producer_id,
            header.producer_epoch,
            list(self.verified),
            add=self.joins,
            deliver=self.transaction_checked,
        )

    def _keep_verification(self, name: TopicPartition, header: BatchHeader) -> None:
        log = self.parts.led_log(name)
        if log is None:
            return
        try:
            verification = log.verification(header, joins=self.joins, now_ms=self.parts.clock.now_ms())
        except AppendRefused as refused:
            self.refused[name] = Refusal(refused.code, None)
        else:
            if verification is not None:
                self.verified[name] = verification

    def _verifies(self) -> bool:
        return self.parts.settings.text_of("transaction.partition.verification.enable") != "false"

    def transaction_checked(self, codes: Mapping[TopicPartition, Code]) -> None:
        """Take the coordinator's answer."""
        for name, code in codes.items():
            if code:
                self.refused[name] = _meaning(code, version=self.ctx.version)
        self.append()

    def append(self) -> None:
        """Append what may be written, and answer, if that has landed."""
        response = paced(self._append(), _glance(self.request)[0])
        if response is not WAITS:
            self.ctx.reply(response)

    def _append(self) -> Pieces[Any]:
        try:
            return (yield from _append_all(self.parts, self.ctx, self.request, self.refused, self.shown))
        except Hangup:  # nobody waits for an answer, and nobody produces in a transaction that way
            return SILENT


def _meaning(code: Code, *, version: int) -> Refusal:
    """Return why a client is refused: it does not know all codes that coordinators use among themselves."""
    if code == Code.PRODUCER_FENCED:
        return Refusal(Code.INVALID_PRODUCER_EPOCH, None)
    if code == Code.TRANSACTION_ABORTABLE and version < ABORTABLE_SINCE:
        code = Code.INVALID_TXN_STATE
    if code == Code.INVALID_TXN_STATE:
        return Refusal(code, "the partition is not part of the transaction")
    if code in ASK_AGAIN or (code == Code.CONCURRENT_TRANSACTIONS and version < JOINS_SINCE):
        return Refusal(
            Code.NOT_ENOUGH_REPLICAS, f"the transaction's coordinator answered {code.name}; try again"
        )
    return Refusal(code, None)


HANDLERS = {0: produce}
