"""What a Spark task does: fetch its ranges, decode them, yield Arrow record batches. Runs on executors.

Nothing of the driver's reader arrives here: all that a task needs is in its input partition. Worker processes
serve many tasks, so connections are kept from one to the next.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from coterie.arrow.plan import (
    Plan,
    plan,
)
from coterie.arrow.records import (
    record_batches,
)
from coterie.base.codes import Code
from coterie.base.errors import RefusedBy
from coterie.base.ids import TopicPartition
from coterie.client.errors import RETRIABLE, ClientTimeout, Disconnected
from coterie.client.net import messages
from coterie.client.net.addresses import Address
from coterie.client.net.plain_socket import BlockingConnection
from coterie.client.settings import ClientSettings, Security
from coterie.spark.source.columns import NO_MEMBER, SourceMember, TaskRange, columns_to_decode, select_columns
from coterie.spark.source.near_replicas import NearReplicas
from coterie.spark.source.offsets import DataLoss, Range
from coterie.spark.source.options import SourceOptions
from coterie.spark.values.value_format import ValueFormat
from coterie.spark.worker_reuse import settle
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.fetched import Fetched, FetchedPartition, read_fetched

if TYPE_CHECKING:
    from coterie.spark.values.columns import ValueDecoder

BACKOFF_S = 0.1
REPLICA_BEHIND_S = 1
"""So long a follower may have nothing of what its leader has: it is a fetch behind, or cut off."""

log = logging.getLogger("coterie.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """How to fetch; the same for all tasks of a query."""

    client: ClientSettings
    columns: tuple[str, ...]
    values: ValueFormat | None = None
    source: SourceMember
    isolation: int
    rack: str
    fetch_max_bytes: int
    partition_max_bytes: int
    poll_timeout_ms: int
    fail_on_data_loss: bool

    @classmethod
    def of(cls, options: SourceOptions, source: SourceMember = NO_MEMBER) -> "FetchSettings":
        """Return the part of the options that tasks need, with the member that reads."""
        same = {one.name: getattr(options, one.name) for one in fields(cls) if one.name != "source"}
        return cls(**same, source=source)


class TaskPartition(InputPartition):
    """The ranges that one task reads, where their leaders were last seen, and how to fetch.

    `shared` are the partitions that other tasks of the batch read as well.
    """

    def __init__(
        self,
        ranges: Iterable[Range],
        leaders: Mapping[TopicPartition, Address],
        settings: FetchSettings,
        *,
        shared: Set[TopicPartition] = frozenset(),
    ) -> None:
        self.ranges = tuple(ranges)
        self.shared = frozenset(one.at for one in self.ranges) & shared
        self.leaders = {one.at: leaders[one.at] for one in self.ranges if one.at in leaders}
        self.settings = settings


class FetchedRange(NamedTuple):
    """What one fetch gave of one range."""

    one: Range
    planned: Plan


idle_connections: dict[tuple[Address, ClientSettings], BlockingConnection] = {}
"""Connections that no task is using just now, in this worker process."""


@cache
def security_of(client: ClientSettings) -> Security:
    """Return the settings of TLS and SASL; a worker process reads the certificates' files once."""
    return client.security()


def value_decoder(values: ValueFormat | None) -> "ValueDecoder | None":
    """Return the decoder of values, None if they are wanted as bytes."""
    if values is None:
        return None
    from coterie.spark.values.columns import decoder_of  # needs an extra that others do not have

    return decoder_of(values)


def read_task(task: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the records of the task's ranges. Spark makes up a bare partition if there is nothing to read."""
    if isinstance(task, TaskPartition) and task.ranges:
        yield from Reader(task).batches()
        settle("reading")


def task_ranges(task: TaskPartition) -> dict[TopicPartition, TaskRange]:
    """Return the range that the task reads of each partition, as the column `source` names it."""
    context = TaskContext.get()
    attempt = -1 if context is None else context.taskAttemptId()
    return {
        one.at: TaskRange(one.first, one.until, one.at not in task.shared, attempt) for one in task.ranges
    }


class Reader:
    """Reads one task's ranges. A fetch is sent before the answer to the last is decoded.

    `left` moves on with the rows that are handed out, and with nothing else: whatever breaks, what was not
    handed out is asked for again.
    """

    def __init__(self, task: TaskPartition) -> None:
        self.settings = task.settings
        self.leaders = dict(task.leaders)
        self.near = NearReplicas(task.settings.client, task.settings.rack)
        self.nodes: dict[int, Address] = {}
        """Where each broker is, as far as that was asked."""
        self.brokers = list(dict.fromkeys((*task.settings.client.addresses, *task.leaders.values())))
        """Whom to ask for leaders, who did not answer the last time last."""
        self.left = {one.at: one for one in task.ranges}
        self.lost: set[TopicPartition] = set()
        """What the leader being read from says is out of its log's range."""
        self.pieces = task_ranges(task)
        self.values = value_decoder(task.settings.values)
        self.progress_at = time.monotonic()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all records. The time that Spark takes over them is none in which nothing came."""
        for batch in self.batches_of_all():
            handed_at = time.monotonic()
            yield batch
            self.progress_at += time.monotonic() - handed_at

    def batches_of_all(self) -> Iterator[pa.RecordBatch]:
        """Yield all records, broker by broker, until nothing is left."""
        while self.left:
            at = next(iter(self.left))
            address = self.near.of(at) or self.leader_of(at)
            try:
                yield from self.batches_of(address)
            except (Disconnected, ClientTimeout) as error:
                self.forget(address, error)

    def leader_of(self, at: TopicPartition) -> Address:
        """Return the address of the partition's leader."""
        while at not in self.leaders:
            self.ask_leaders()
        return self.leaders[at]

    def batches_of(self, address: Address) -> Iterator[pa.RecordBatch]:
        """Yield the records of what is left that this broker is to be asked for."""
        self.lost.clear()
        connection = self.take(address)
        try:
            self.send(connection, address, {})
            while connection.awaited:
                got = self.received(connection.receive(), address)
                # The broker works on the next fetch while this one is decoded.
                ahead = {at: one.planned.next_offset for at, one in got.items()}
                broke = self.try_send(connection, address, ahead)
                for one, planned in got.values():
                    yield from self.decoded(one, planned)
                    self.moved_to(one, planned.next_offset)
                if broke is not None:
                    raise broke
            if self.lost:
                self.skip_lost(connection, address)
        finally:
            self.give_back(connection)

    def decoded(self, one: Range, planned: Plan) -> Iterator[pa.RecordBatch]:
        """Yield the records of one fetch in the columns that the query wants."""
        settings = self.settings
        columns = columns_to_decode(settings.columns)
        decode = self.values if "value" in columns else None
        if decode is not None:  # a value that is none is told of by its place
            columns |= {"topic", "partition", "offset"}
        for batch in record_batches(
            planned,
            topic=one.topic,
            partition=one.partition,
            headers="headers" in settings.columns,
            columns=columns,
        ):
            if decode is not None:
                batch = decode.decoded(batch, wait_s=settings.poll_timeout_ms / 1000)
            yield select_columns(batch, settings.columns, settings.source, self.pieces[one.at])

    def take(self, address: Address) -> BlockingConnection:
        """Return a connection that nobody else uses."""
        client = self.settings.client
        held = idle_connections.pop((address, client), None)
        return held or BlockingConnection(
            address,
            client_id=client.client_id,
            timeout_s=client.request_timeout_ms / 1000,
            security=security_of(client),
        )

    def give_back(self, connection: BlockingConnection) -> None:
        """Keep the connection for the next task, unless an answer is still to come or it broke."""
        if connection.awaited or connection.broken:
            connection.close()
            return
        key = (connection.address, self.settings.client)
        replaced = idle_connections.pop(key, None)
        if replaced is not None:
            replaced.close()
        idle_connections[key] = connection

    def send(
        self, connection: BlockingConnection, address: Address, ahead: Mapping[TopicPartition, int]
    ) -> None:
        """Ask for what is left on this broker, if anything is, behind what is about to be handed out."""
        positions = {}
        for at, one in self.left.items():
            position = ahead.get(at, one.first)
            source = self.near.of(at) or self.leaders.get(at)
            if position < one.until and source == address and at not in self.lost:
                positions[at] = position
        if not positions:
            return
        settings = self.settings
        connection.renew()
        connection.send(
            ApiKey.FETCH,
            lambda version: messages.fetch(
                version,
                positions,
                max_wait_ms=500,
                max_bytes=settings.fetch_max_bytes,
                partition_max_bytes=settings.partition_max_bytes,
                isolation=settings.isolation,
                rack=self.near.rack,
            ),
            read_fetched,
        )

    def try_send(
        self, connection: BlockingConnection, address: Address, ahead: Mapping[TopicPartition, int]
    ) -> Exception | None:
        """Ask for what is left; return what went wrong."""
        try:
            self.send(connection, address, ahead)
        except (Disconnected, ClientTimeout) as error:
            return error
        return None

    def received(self, answer: Fetched, address: Address) -> dict[TopicPartition, FetchedRange]:
        """Return the batches of an answer that are to be decoded; drop the leaders that refuse for now."""
        if answer.error_code:
            raise RefusedBy(Code(answer.error_code), f"Fetch from {address}")
        got = {}
        known = len(self.leaders)
        for part in answer.partitions:
            one = self.left.get(TopicPartition(part.topic, part.partition))
            if one is not None and self.accepts(one, Code(part.error_code), address):
                self.go_near(one.at, part.preferred_replica)
                planned = self.planned(one, part)
                got[one.at] = FetchedRange(one, planned)
                if planned.next_offset > one.first:
                    self.progress_at = time.monotonic()
        self.check_progress(address)
        if self.is_near(address) and time.monotonic() - self.progress_at > REPLICA_BEHIND_S:
            self.near.give_up(address)
        if len(self.leaders) < known:
            time.sleep(BACKOFF_S)
        return got

    def is_near(self, address: Address) -> bool:
        """Return whether something of what is left is asked of this broker instead of its leader."""
        return any(self.near.of(at) == address for at in self.left)

    def go_near(self, at: TopicPartition, node_id: int) -> None:
        """Ask the replica from now on that the leader names, if it names one."""
        if node_id < 0:
            return
        if node_id not in self.nodes:
            self.ask_leaders()
        if node_id in self.nodes and self.nodes[node_id] != self.leaders.get(at):
            self.near.prefer(at, self.nodes[node_id])
        else:  # or it would be named again and again
            self.near.rack = ""

    def accepts(self, one: Range, code: Code, address: Address) -> bool:
        """Return whether there are records. What is out of range is noted; it is seen to after the rest. What
        a replica refuses its leader is asked for, which alone knows for sure.
        """
        if code and self.leaders.get(one.at) != address:
            self.near.give_up(address)
            return False
        if code is not Code.OFFSET_OUT_OF_RANGE:
            return self.agrees(one.at, code, f"Fetch of {one.at} at offset {one.first}")
        if self.settings.fail_on_data_loss:
            raise DataLoss(
                f"{one.at}: offset {one.first} is not there any more;"
                " with failOnDataLoss=false the query goes on without what was lost"
            )
        self.lost.add(one.at)
        return False

    def agrees(self, at: TopicPartition, code: Code, what: str) -> bool:
        """Return whether the leader does it; a refusal that passes drops the leader, another is raised."""
        if code in RETRIABLE:
            self.leaders.pop(at, None)
        elif code:
            raise RefusedBy(code, what)
        return code is Code.NONE

    def planned(self, one: Range, part: FetchedPartition) -> Plan:
        aborted = part.aborted if self.settings.isolation else None
        return plan(part.records, first=one.first, until=one.until, aborted=aborted)

    def moved_to(self, one: Range, position: int) -> None:
        """Note that the range has been read up to `position`."""
        if position >= one.until:
            del self.left[one.at]
        else:
            self.left[one.at] = one._replace(first=position)

    def check_progress(self, where: object, error: Exception | None = None) -> None:
        """Raise RefusedBy, because of the error, if nothing has come for kafkaConsumer.pollTimeoutMs."""
        if self.left and time.monotonic() - self.progress_at > self.settings.poll_timeout_ms / 1000:
            one = next(iter(self.left.values()))
            raise RefusedBy(
                Code.REQUEST_TIMED_OUT,
                f"no record of {one.at} from offset {one.first} on came from {where} within"
                f" kafkaConsumer.pollTimeoutMs ({self.settings.poll_timeout_ms} ms)",
            ) from error

    def skip_lost(self, connection: BlockingConnection, address: Address) -> None:
        """Go on at the start of the logs where the leader tells it; what else is left is fetched again."""
        stamps = dict.fromkeys(self.lost, messages.EARLIEST)
        connection.renew()
        answer = connection.call(
            ApiKey.LIST_OFFSETS, lambda version: messages.list_offsets(version, stamps, isolation=0)
        )
        for at, found in messages.read_list_offsets(answer).items():
            if at in self.lost and self.agrees(at, found.code, f"ListOffsets of {at}") and found.offset >= 0:
                one = self.left[at]
                start = found.offset if one.first < found.offset < one.until else one.until
                log.warning("%s: offsets %d to %d are not there any more", at, one.first, start - 1)
                self.lost.discard(at)
                self.moved_to(one, start)
                self.progress_at = time.monotonic()
        if self.lost:
            self.check_progress(address)
            time.sleep(BACKOFF_S)

    def forget(self, address: Address, error: Exception) -> None:
        """Look for the leaders anew after a connection broke; give up when it takes too long."""
        if time.monotonic() - self.progress_at > self.settings.poll_timeout_ms / 1000:
            raise error
        if self.is_near(address):
            self.near.give_up(address)
        for at in [at for at, leader in self.leaders.items() if leader == address]:
            del self.leaders[at]
        time.sleep(BACKOFF_S)

    def ask_leaders(self) -> None:
        """Ask any broker for the leaders of what is left."""
        topics = {at.topic for at in self.left}
        failure = None
        for address in tuple(self.brokers):
            try:
                self.learn(self.metadata_of(address, topics))
                break
            except (Disconnected, ClientTimeout) as error:
                failure = error
                self.brokers.remove(address)
                self.brokers.append(address)
        if not self.left.keys() <= self.leaders.keys():
            self.check_progress("any broker", failure)
            time.sleep(BACKOFF_S)

    def metadata_of(self, address: Address, topics: Set[str]) -> messages.Metadata:
        """Return a broker's metadata of these topics."""
        connection = self.take(address)
        try:
            connection.renew()
            answer = connection.call(ApiKey.METADATA, lambda version: messages.metadata(version, topics))
        finally:
            self.give_back(connection)
        return messages.read_metadata(answer)

    def learn(self, found: messages.Metadata) -> None:
        """Take over where the leaders are, and which brokers there are."""
        self.nodes.update(found.brokers)
        self.brokers += [one for one in found.brokers.values() if one not in self.brokers]
        for at in self.left:
            topic = found.topics.get(at.topic)
            leader = topic.leaders.get(at.partition, -1) if topic else -1
            if leader in found.brokers:
                self.leaders[at] = found.brokers[leader]
