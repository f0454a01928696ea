"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, WriteTxnMarkers, and what shows them all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.base.codes import Code
from coterie.base.hashes import coordinator_partition
from coterie.base.ids import TopicPartition
from coterie.base.patterns import BadPattern, Pattern, read_pattern
from coterie.base.topic_names import INTERNAL_TOPICS, OFFSETS_TOPIC
from coterie.broker.api.groups import ask_each
from coterie.broker.interbroker.lives import meant_for_others
from coterie.broker.net.context import WAITS, Context, Hangup, milliseconds
from coterie.broker.refusal import STORAGE_ERRORS, storage_failed
from coterie.broker.repeats import Repeats
from coterie.broker.runtime.leadership import why_absent
from coterie.broker.runtime.markers import TransactionEnd
from coterie.broker.runtime.pieces import ITEMS_AT_ONCE, Aside, Pieces, Until, gathered, mapped, paced
from coterie.coordinator.txn import commands
from coterie.coordinator.txn.failures import NoProducerId
from coterie.coordinator.txn.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Producer, State, Transaction
from coterie.coordinator.txn.views import Filter, listed
from coterie.wire.api.entities import (
    build,
    entity,
    response_type,
)

if TYPE_CHECKING:
    from coterie.broker.interbroker.lives import SenderLives
    from coterie.broker.runtime.clock import Clock
    from coterie.broker.runtime.leadership import Leadership
    from coterie.broker.runtime.markers import MarkerWriter
    from coterie.broker.runtime.transactions import TransactionCoordinator
    from coterie.broker.topics.catalog import TopicCatalog, TopicChanges
    from coterie.broker.topics.producer_ids import ProducerIdManager
    from coterie.coordinator.txn.commands import DescribeAnswer
    from coterie.storage.kind import Log

log = logging.getLogger("coterie.broker")

INIT, ADD_PARTITIONS, ADD_OFFSETS, END, WRITE_MARKERS, DESCRIBE, LIST = 22, 24, 25, 26, 27, 65, 66

# The first version whose clients know PRODUCER_FENCED; the others are told INVALID_PRODUCER_EPOCH (KIP-588).
KNOWS_FENCED_SINCE = {INIT: 4, ADD_PARTITIONS: 2, ADD_OFFSETS: 2, END: 2}
BATCHED_SINCE = 4  # AddPartitionsToTxn for many transactions, as brokers send it to each other
BUMPS_EPOCH_SINCE = 5  # EndTxn
CHARACTERS_AT_ONCE = 4_096  # of ids that are matched between two looks at who else waits in the thread
# Topics that no transaction of a client may write to; brokers join the partitions of a group's offsets.
CLOSED_TO_CLIENTS = INTERNAL_TOPICS
CLOSED_TO_ALL = INTERNAL_TOPICS - {OFFSETS_TOPIC}
CLASSIC, NEW = 0, 2  # transaction.version, as a request's own version gives it away


class Parts(NamedTuple):
    """The parts of the broker that these handlers use."""

    topic_manager: TopicChanges
    topics: TopicCatalog
    producer_ids: ProducerIdManager
    leadership: Leadership
    led_log: Callable[[TopicPartition], Log | None]
    clock: Clock
    transactions: TransactionCoordinator
    marker_writer: MarkerWriter
    sender_lives: SenderLives


def code_for_version(ctx: Context, code: Code) -> Code:
    """Return the code as a client of this version knows it."""
    if code is Code.PRODUCER_FENCED and ctx.version < KNOWS_FENCED_SINCE[ctx.api_key]:
        return Code.INVALID_PRODUCER_EPOCH
    return code


# -- InitProducerId


def init_producer_id(parts: Parts, ctx: Context, request: Any) -> Any:
    """Hand out a producer id, or make the client the owner of its transactional id."""
    until = parts.producer_ids.until_some()
    if until is None:
        return _init(parts, ctx, request)
    return _init_when_some(parts, ctx, request, until)


def _init_when_some(parts: Parts, ctx: Context, request: Any, until: Until | None) -> Pieces[Any]:
    while until is not None and (yield until):  # others may have been faster
        until = parts.producer_ids.until_some()
    return _init(parts, ctx, request)


def _init(parts: Parts, ctx: Context, request: Any) -> Any:
    def respond(code: Code, producer: Producer = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)) -> Any:  # noqa: B008
        return build(
            response_type(INIT, ctx.version),
            error_code=code_for_version(ctx, code),
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
        )

    believed = Producer(
        getattr(request, "producer_id", NO_PRODUCER_ID), getattr(request, "producer_epoch", NO_PRODUCER_ID)
    )
    if (believed.producer_id == NO_PRODUCER_ID) != (believed.epoch == NO_PRODUCER_ID):
        return respond(Code.INVALID_REQUEST)
    transactions = parts.transactions
    if request.transactional_id is None:
        try:
            return respond(Code.NONE, Producer(transactions.new_producer_id(), 0))
        except NoProducerId:
            return respond(Code.COORDINATOR_LOAD_IN_PROGRESS)
    command = commands.InitProducerId(
        transactional_id=request.transactional_id,
        call=transactions.new_call(),
        timeout_ms=milliseconds(request.transaction_timeout),
        expected=None if believed.epoch == NO_PRODUCER_ID else believed,
    )
    transactions.ask(command, lambda answer: ctx.reply(respond(answer.code, answer.producer)))
    return WAITS


# -- AddPartitionsToTxn, AddOffsetsToTxn


class Added:
    """Gathers what is answered for each transaction of a request; the last one sends it."""

    def __init__(self, ctx: Context, asked: Sequence[tuple[str, Sequence[Any]]]) -> None:
        self.ctx = ctx
        self.transactional_ids = [transactional_id for transactional_id, _ in asked]
        self.topics = [topics for _, topics in asked]
        self.results: dict[int, Iterable[tuple[str, Iterable[tuple[int, Code]]]]] = {}
        self.items = len(asked)
        if self.items <= ITEMS_AT_ONCE:
            self.items += sum(1 + len(topic.partitions) for topics in self.topics for topic in topics)

    def put(self, at: int, codes: Mapping[TopicPartition, Code]) -> None:
        """Answer a transaction partition by partition, each once."""
        topics: dict[str, list[tuple[int, Code]]] = {}
        for (topic, partition), code in codes.items():
            topics.setdefault(topic, []).append((partition, code))
        self._put(at, topics.items())

    def put_all(self, at: int, code: Code) -> None:
        """Answer everything in a transaction alike: as it was asked, what stands there twice twice."""
        self._put(at, ((topic.name, ((p, code) for p in topic.partitions)) for topic in self.topics[at]))

    def _put(self, at: int, topics: Iterable[tuple[str, Iterable[tuple[int, Code]]]]) -> None:
        self.results[at] = topics
        if len(self.results) == len(self.transactional_ids):
            self.ctx.reply(paced(self.response(), self.items))

    def _topics(self, at: int) -> Pieces[tuple[Any, ...]]:
        version = self.ctx.version
        topic_type = entity("add_partitions_to_txn", version, "AddPartitionsToTxnTopicResult", "response")
        cls = entity("add_partitions_to_txn", version, "AddPartitionsToTxnPartitionResult", "response")
        topics = []
        for name, results in self.results[at]:
            answered = []
            for place, (partition, code) in enumerate(results):
                shown_code = code_for_version(self.ctx, code)
                answered.append(build(cls, partition_index=partition, partition_error_code=shown_code))
                if place % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
                    yield
            topics.append(build(topic_type, name=name, results_by_partition=tuple(answered)))
            if len(topics) % ITEMS_AT_ONCE == 0:
                yield
        return tuple(topics)

    def response(self) -> Pieces[Any]:
        """Return the whole response, in the order of the request."""
        cls = response_type(ADD_PARTITIONS, self.ctx.version)
        if self.ctx.version < BATCHED_SINCE:
            return build(cls, results_by_topic_v3_and_below=(yield from self._topics(0)))
        item = entity("add_partitions_to_txn", self.ctx.version, "AddPartitionsToTxnResult", "response")
        transactions = []
        for at, name in enumerate(self.transactional_ids):
            topics = yield from self._topics(at)
            transactions.append(build(item, transactional_id=name, topic_results=topics))
            if at % ITEMS_AT_ONCE == 0:
                yield
        return build(cls, error_code=Code.NONE, results_by_transaction=tuple(transactions))


def add_partitions(parts: Parts, ctx: Context, request: Any) -> Any:
    """Join partitions to transactions, or verify them: one transaction a request before version 4."""
    if ctx.version >= BATCHED_SINCE:
        return _add_many(parts, ctx, request)
    added = Added(ctx, [(request.v3_and_below_transactional_id, request.v3_and_below_topics)])
    producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    topics = request.v3_and_below_topics
    return paced(_add(parts, added, 0, producer, topics, client_version=CLASSIC, verify=False), added.items)


def _add_many(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    added = Added(ctx, [(one.transactional_id, one.topics) for one in request.transactions])
    for at, one in enumerate(request.transactions):
        producer = Producer(one.producer_id, one.producer_epoch)
        yield from _add(parts, added, at, producer, one.topics, client_version=NEW, verify=one.verify_only)
        yield
    return WAITS if request.transactions else (yield from added.response())


def _add(
    parts: Parts,
    added: Added,
    at: int,
    producer: Producer,
    topics: Sequence[Any],
    *,
    client_version: int,
    verify: bool,
) -> Pieces[Any]:
    """Ask for one transaction. A partition that may not be written, or is not there, keeps the others out."""
    closed = CLOSED_TO_CLIENTS if client_version == CLASSIC else CLOSED_TO_ALL
    named: dict[TopicPartition, None] = {}
    for place, topic in enumerate(topics):
        named |= yield from mapped((TopicPartition(topic.name, one), None) for one in topic.partitions)
        if place % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
            yield
    wanted = tuple(named)
    codes = yield from mapped((one, _refusal_of(parts, one, closed)) for one in wanted)
    if any(codes.values()):
        left_out = Code.OPERATION_NOT_ATTEMPTED
        added.put(at, (yield from mapped((one, code or left_out) for one, code in codes.items())))
        return WAITS
    transactions = parts.transactions
    transactional_id = added.transactional_ids[at]
    if verify:
        asked = commands.VerifyPartitions(
            transactional_id=transactional_id,
            call=transactions.new_call(),
            producer=producer,
            partitions=wanted,
        )
        transactions.ask(asked, lambda answer: added.put(at, dict(zip(wanted, answer.codes, strict=True))))
        return WAITS
    if client_version == CLASSIC:
        deliver = partial(added.put_all, at)
        transactions.join(transactional_id, producer, wanted, client_version=CLASSIC, deliver=deliver)
        return WAITS
    command = commands.AddPartitions(  # of a broker, whose other questions would have to wait, too
        transactional_id=transactional_id,
        call=transactions.new_call(),
        producer=producer,
        partitions=wanted,
        client_version=client_version,
    )
    transactions.ask(command, lambda answer: added.put_all(at, answer.code))
    return WAITS


def _refusal_of(parts: Parts, wanted: TopicPartition, closed: Collection[str]) -> Code:
    """Return why no transaction may write to a partition: its topic is internal (AU-20), or not there."""
    if wanted.topic in closed:
        return Code.TOPIC_AUTHORIZATION_FAILED
    if parts.led_log(wanted) is not None:
        return Code.NONE
    code = why_absent(parts.topics, parts.leadership, *wanted)
    return Code.NONE if code is Code.NOT_LEADER_OR_FOLLOWER else code  # its leader is told by the coordinator


def add_offsets(parts: Parts, ctx: Context, request: Any) -> Any:
    """Join the partition that keeps a group's offsets to a transaction."""
    cls = response_type(ADD_OFFSETS, ctx.version)
    try:
        topic = parts.topic_manager.ensure_internal(OFFSETS_TOPIC)
    except STORAGE_ERRORS as error:
        storage_failed(f"create topic {OFFSETS_TOPIC}", error)
        topic = None
    if topic is None:
        return build(cls, error_code=Code.COORDINATOR_NOT_AVAILABLE)
    partition = coordinator_partition(request.group_id, partition_count=topic.partitions)
    parts.transactions.join(
        request.transactional_id,
        Producer(request.producer_id, request.producer_epoch),
        (TopicPartition(OFFSETS_TOPIC, partition),),
        client_version=CLASSIC,
        deliver=lambda code: ctx.reply(build(cls, error_code=code_for_version(ctx, code))),
    )
    return WAITS


# -- EndTxn, WriteTxnMarkers


def end_txn(parts: Parts, ctx: Context, request: Any) -> Any:
    """Commit or abort. From version 5 on the producer is told who it is from now on (KIP-890)."""
    cls = response_type(END, ctx.version)

    def respond(answer: Any) -> None:
        producer_id, epoch = answer.producer
        code = code_for_version(ctx, answer.code)
        ctx.reply(build(cls, error_code=code, producer_id=producer_id, producer_epoch=epoch))

    command = commands.EndTransaction(
        transactional_id=request.transactional_id,
        call=parts.transactions.new_call(),
        producer=Producer(request.producer_id, request.producer_epoch),
        commit=request.committed,
        client_version=NEW if ctx.version >= BUMPS_EPOCH_SINCE else CLASSIC,
    )
    parts.transactions.ask(command, respond)
    return WAITS


class Marked:
    """Gathers the codes of the markers that a WriteTxnMarkers asks for; the last one sends the response."""

    def __init__(self, ctx: Context, count: int) -> None:
        self.ctx = ctx
        self.left = count
        self.codes: dict[int, dict[TopicPartition, Code]] = {}

    def deliver(self, producer_id: int, watched: TopicPartition) -> Callable[[Code], None]:
        def put(code: Code) -> None:
            # The transaction coordinator of Apache Kafka knows no coordinator that is not ready.
            unready = (
                Code.COORDINATOR_NOT_AVAILABLE,
                Code.COORDINATOR_LOAD_IN_PROGRESS,
                Code.NOT_COORDINATOR,
            )
            status = Code.NOT_LEADER_OR_FOLLOWER if code in unready else code
            self.codes.setdefault(producer_id, {})[watched] = status
            self.left -= 1
            if not self.left:
                self.ctx.reply(paced(self.response(), sum(map(len, self.codes.values()))))

        return put

    def response(self) -> Pieces[Any]:
        version = self.ctx.version
        result = entity("write_txn_markers", version, "WritableTxnMarkerResult", "response")
        topic_type = entity("write_txn_markers", version, "WritableTxnMarkerTopicResult", "response")
        cls = entity("write_txn_markers", version, "WritableTxnMarkerPartitionResult", "response")
        markers = []
        for producer_id, codes in self.codes.items():
            topics: dict[str, list[Any]] = {}
            for place, ((topic, partition), code) in enumerate(codes.items()):
                topics.setdefault(topic, []).append(build(cls, partition_index=partition, error_code=code))
                if place % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
                    yield
            named = []
            for name, answered in topics.items():
                named.append(build(topic_type, name=name, partitions=tuple(answered)))
                if len(named) % ITEMS_AT_ONCE == 0:
                    yield
            markers.append(build(result, producer_id=producer_id, topics=tuple(named)))
            yield
        return build(response_type(WRITE_MARKERS, version), markers=tuple(markers))


def write_txn_markers(parts: Parts, ctx: Context, request: Any) -> Any:
    """Write the markers of another coordinator, or of an administrator who ends what hangs (KIP-664)."""
    return _write_markers(parts, ctx, request)


def _write_markers(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    wanted = []
    for marker in request.markers:
        named: dict[TopicPartition, None] = {}  # a few bytes that are sent again would be a marker each
        for topic in marker.topics:
            named |= yield from mapped(
                (TopicPartition(topic.name, index), None) for index in topic.partition_indexes
            )
            yield
        wanted += yield from gathered((marker, watched) for watched in named)
        yield
    marked = Marked(ctx, len(wanted))
    if not wanted:
        return (yield from marked.response())
    if meant_for_others(ctx.client_id, (watched for _, watched in wanted), parts.leadership):
        for marker, watched in wanted:
            marked.deliver(marker.producer_id, watched)(Code.NOT_LEADER_OR_FOLLOWER)
        return WAITS
    for marker, watched in wanted:
        _refuse_earlier_life(parts, ctx)
        end = TransactionEnd(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            marker.transaction_result,
            getattr(marker, "transaction_version", CLASSIC),
        )
        parts.marker_writer.write(watched, end, marked.deliver(marker.producer_id, watched))
        yield
    return WAITS


def _refuse_earlier_life(parts: Parts, ctx: Context) -> None:
    """Raise `Hangup` for a request of a broker that sends what it wants over a later connection by now."""
    if parts.sender_lives.is_over(ctx.client_id):
        raise Hangup("sent markers over a connection that it has given up")


# -- DescribeTransactions, ListTransactions


def describe_transactions(parts: Parts, ctx: Context, request: Any) -> Any:
    """Show each transactional id as often as it is asked for, as Kafka does, within bounds."""
    names = tuple(dict.fromkeys(request.transactional_ids))

    def ask_one(name: str, take: Callable[[Any], None]) -> None:
        command = commands.Describe(transactional_id=name, call=parts.transactions.new_call())
        parts.transactions.ask(command, take)

    def done(answers: list[Any]) -> None:
        by_name = dict(zip(names, answers, strict=True))
        ctx.reply(paced(_all_described(ctx, request, by_name), len(request.transactional_ids)))

    return paced(ask_each(names, ask_one, done), len(names))


def _all_described(ctx: Context, request: Any, answers: Mapping[str, DescribeAnswer]) -> Pieces[Any]:
    states = []
    described: dict[str, Any] = {}
    repeats = Repeats()
    for name in request.transactional_ids:
        if name not in described:
            described[name] = _described(ctx, name, answers[name])
            states.append(described[name])
        elif repeats.allow(len(answers[name].partitions)):
            states.append(described[name])
        yield
    return build(response_type(DESCRIBE, ctx.version), transaction_states=tuple(states))


def _described(ctx: Context, name: str, answer: DescribeAnswer) -> Any:
    state_type = entity("describe_transactions", ctx.version, "TransactionState", "response")
    topic_type = entity("describe_transactions", ctx.version, "TopicData", "response")
    topics: dict[str, list[int]] = {}
    for topic, partition in answer.partitions:
        topics.setdefault(topic, []).append(partition)
    return build(
        state_type,
        error_code=answer.code,
        transactional_id=name,
        transaction_state=answer.state,
        transaction_timeout=answer.timeout_ms,
        transaction_start_time=answer.started_ms,
        producer_id=answer.producer.producer_id,
        producer_epoch=answer.producer.epoch,
        topics=tuple(build(topic_type, topic=t, partitions=tuple(p)) for t, p in topics.items()),
    )


def list_transactions(parts: Parts, ctx: Context, request: Any) -> Any:
    """List the transactional ids that pass every filter; others ask while they are held against a pattern."""
    cls = response_type(LIST, ctx.version)
    incomplete = parts.transactions.incomplete()
    if incomplete:
        return build(cls, error_code=incomplete)
    text = getattr(request, "transactional_id_pattern", None)
    try:
        pattern = read_pattern(text) if text else None
    except BadPattern as bad:
        log.info("a pattern of transactional ids is refused: %s", bad)
        return build(cls, error_code=Code.INVALID_REGULAR_EXPRESSION)
    wanted = Filter(
        states=frozenset(request.state_filters),
        producer_ids=frozenset(request.producer_id_filters),
        longer_than_ms=getattr(request, "duration_filter", -1),
    )
    shards = (host.shard for host in parts.transactions.active())
    found = list(listed(shards, wanted, parts.clock.now_ms()))
    if pattern is None:
        return paced(_listed(ctx, request, found), len(found) + len(request.state_filters))
    return _listed_by_pattern(ctx, request, pattern, found)


def _listed_by_pattern(ctx: Context, request: Any, pattern: Pattern, found: list[Transaction]) -> Pieces[Any]:
    """Return the answer with the transactional ids that match."""
    named: list[Transaction] = []
    matching = _match(pattern, found, named)
    ctx.when_gone(matching.close)
    yield from matching
    return (yield from _listed(ctx, request, named))


def _match(pattern: Pattern, found: list[Transaction], named: list[Transaction]) -> Pieces[None]:
    """Put the transactional ids that match among the named ones; a thread matches them, few at a time."""
    by_id = {txn.transactional_id: txn for txn in found}
    for ids in batched(by_id):
        matching = yield Aside(pattern.matching, (ids,), len(ids))
        named += [by_id[one] for one in matching]


def batched(ids: Iterable[str]) -> Iterator[list[str]]:
    """Yield the ids in lists of `CHARACTERS_AT_ONCE` characters, or of one id that has more."""
    some: list[str] = []
    characters = 0
    for one in ids:
        if some and characters + len(one) > CHARACTERS_AT_ONCE:
            yield some
            some, characters = [], 0
        some.append(one)
        characters += len(one)
    if some:
        yield some


def _listed(ctx: Context, request: Any, found: list[Transaction]) -> Pieces[Any]:
    """Return the answer; states that there are not are named in it."""
    known = {state.value for state in State}
    item = entity("list_transactions", ctx.version, "TransactionState", "response")
    transactions = []
    for txn in found:
        state = txn.state.value
        terms = {"transactional_id": txn.transactional_id, "producer_id": txn.producer_id}
        transactions.append(build(item, transaction_state=state, **terms))
        if len(transactions) % ITEMS_AT_ONCE == 0:
            yield
    unknown = yield from gathered(None if name in known else name for name in request.state_filters)
    return build(
        response_type(LIST, ctx.version),
        error_code=Code.NONE,
        unknown_state_filters=tuple(unknown),
        transaction_states=tuple(transactions),
    )


HANDLERS = {
    INIT: init_producer_id,
    ADD_PARTITIONS: add_partitions,
    ADD_OFFSETS: add_offsets,
    END: end_txn,
    WRITE_MARKERS: write_txn_markers,
    DESCRIBE: describe_transactions,
    LIST: list_transactions,
}
