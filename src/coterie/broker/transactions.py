"""The shell around the transaction core: it carries decisions out over the log of `__transaction_state`.

As in `coordinator.py`, what comes in while the event loop answers one round of requests goes out as one
batch, and replies wait for it. Once a batch is there, the markers of its ends are written into the partitions
of their transactions, and when all are, the core is told.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.base.hashes import coordinator_partition
from coterie.base.ids import TopicPartition
from coterie.broker.refusal import STORAGE_ERRORS
from coterie.broker.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from coterie.store.log import AppendRefused, StorageFailed
from coterie.txn.commands import AddPartitions, Expire, MarkersWritten, VerifyPartitions
from coterie.txn.failures import NoProducerId, refusal, unfit
from coterie.txn.model import Producer
from coterie.txn.settings import RETRY_MS
from coterie.txn.shard import ENDING, Shard
from coterie.wire.batches import build_marker, records_of, scan
from coterie.wire.growing import GrowingBatch

if TYPE_CHECKING:
    from coterie.broker.node import Node
    from coterie.store.files import FileLog
    from coterie.txn.commands import Command
    from coterie.txn.decision import Decision, Markers, Reply, WakeKey

__all__ = ["TransactionCoordinator", "TransactionHost", "write_marker"]

log = logging.getLogger("coterie.broker")

LOAD_READ_BYTES = 1 << 20
BATCH_OVERHEAD_BYTES = 1 << 10
SLICE_MS = 4  # of loading between requests; what is done at once takes about one more

# A marker that nobody needs any more is as good as written.
AS_GOOD_AS_WRITTEN = (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNSUPPORTED_FOR_MESSAGE_FORMAT)
# Somebody else goes on with the producer, or with the transactional id: we have nothing to say there.
OVERTAKEN = (Code.INVALID_PRODUCER_EPOCH, Code.TRANSACTION_COORDINATOR_FENCED)

Deliver = Callable[[Any], None]


class TransactionHost:
    """One partition of `__transaction_state`: its core, its log, and what is not yet appended."""

    LOADING, ACTIVE, FAILED, AWAY = "loading", "active", "failed", "away"

    def __init__(
        self, transactions: TransactionCoordinator, partition: int, *, status: str = LOADING, epoch: int = 0
    ) -> None:
        self.transactions = transactions
        self.node = transactions.node
        self.partition = partition
        self.epoch = epoch  # in which this node leads the partition; markers carry it
        self.shard = Shard(settings=transactions.settings, new_producer_id=transactions.new_producer_id)
        self.status = status
        self.calls: dict[int, tuple[Command, Deliver]] = {}
        self.records = GrowingBatch()
        self._commands: list[Command] = []
        self._replies: list[Reply] = []
        self._markers: list[Markers] = []
        self._mark = self.shard.mark()
        self._scheduled = False

    @property
    def log(self) -> FileLog:
        """The log behind this shard."""
        return self.node.store.logs[TopicPartition(TRANSACTIONS_TOPIC, self.partition)]

    # -- live

    def unavailable(self) -> Code:
        """Return why this shard answers nobody, NONE when it does."""
        if self.status == self.ACTIVE:
            return Code.NONE
        loading = self.status == self.LOADING
        return Code.COORDINATOR_LOAD_IN_PROGRESS if loading else Code.NOT_COORDINATOR

    def ask(self, command: Any, deliver: Deliver) -> None:
        """Have a command with a call answered: `deliver` is called once, at once or later."""
        code = unfit(command, self.shard.settings) or self.unavailable()
        if code:
            deliver(refusal(command, code))
            return
        self.calls[command.call] = command, deliver
        self.execute(command)

    def execute(self, command: Command) -> None:
        """Decide, apply, gather; replies and markers leave with the batch, or at once if there is none."""
        now_ms = self.node.now_ms()
        try:
            self._carry_out(self.shard.decide(command, now_ms), command, now_ms)
        except Exception:  # our own mistake: this shard is no longer to be trusted, the others are
            log.exception("%s-%d is taken out of service", TRANSACTIONS_TOPIC, self.partition)
            self.fence()
            return
        self._go_on()

    def _go_on(self) -> None:
        if not self.records:
            self._release()
        elif self.records.size > self.log.config.max_message_bytes - BATCH_OVERHEAD_BYTES:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            self.node.call_soon(self.flush)

    def _carry_out(self, decision: Decision, command: Command, now_ms: int) -> None:
        for fact in decision.facts:
            self.shard.apply(fact)
            for key, value in self.shard.records(fact):
                self.records.add(key, value, now_ms)
        self._commands.append(command)
        self._replies.extend(decision.replies)
        self._markers.extend(decision.markers)
        self._set_wakes(decision)

    def _set_wakes(self, decision: Decision) -> None:
        for wake in decision.wakes:
            self.node.purgatory.arm(self.timer(wake.key), wake.at_ms, self._ring(wake.key))

    def timer(self, key: Hashable) -> Hashable:
        """Return the name that a deadline of this shard has in the purgatory."""
        return (TRANSACTIONS_TOPIC, self.partition, key)

    def _ring(self, key: WakeKey) -> Callable[[int], None]:
        def ring(now_ms: int) -> None:
            if self.status == self.ACTIVE:
                self.execute(Expire(key=key))

        return ring

    def flush(self) -> None:
        """Append what has been gathered and let go what waits for it, or undo it and tell the failure."""
        self._scheduled = False
        if not self.records:
            return
        try:
            self._append()
        except AppendRefused as refused:
            self._undo(refused.code)
            return
        self._release()

    def _append(self) -> None:
        self.node.append(
            TRANSACTIONS_TOPIC,
            self.partition,
            self.records.build(),
            now_ms=self.node.now_ms(),
            leader_epoch=self.epoch,
            origin="coordinator",
        )

    def _release(self) -> None:
        self.shard.settle(self.shard.mark())
        markers = self._markers
        commands, replies = self._take_pending()
        for reply in replies:
            waiting = self.calls.pop(reply.call, None)
            if waiting is not None:
                waiting[1](reply.answer)
        for command in commands:
            if isinstance(command, MarkersWritten | Expire):
                self._tell_ended(command)
        for each in markers:
            Ending(self, each).write()

    def _tell_ended(self, command: MarkersWritten | Expire) -> None:
        """Try again what waits for the end of a transaction."""
        ended = command.key[-1] if isinstance(command, Expire) else command.transactional_id
        self.node.purgatory.changed(end_of(ended))

    def _take_pending(self) -> tuple[list[Command], list[Reply]]:
        commands, replies = self._commands, self._replies
        self._commands, self._replies, self._markers = [], [], []
        self.records = GrowingBatch()
        self._mark = self.shard.mark()
        return commands, replies

    def _undo(self, code: Code) -> None:
        """Undo the batch, newest fact first, and do what the core says of each of its commands."""
        log.error("%s-%d: append failed with %s", TRANSACTIONS_TOPIC, self.partition, code.name)
        self.shard.undo_to(self._mark)
        commands, _ = self._take_pending()
        now_ms = self.node.now_ms()
        for command in commands:
            self._carry_out(self.shard.append_failed(command, code, now_ms), command, now_ms)
        self._release()

    def fence(self) -> None:
        """Take this shard out of service: nothing more is appended, and whoever waits is sent elsewhere."""
        self.status = self.FAILED
        self._take_pending()
        waiting, self.calls = self.calls, {}
        for command, deliver in waiting.values():
            deliver(refusal(command, Code.NOT_COORDINATOR))

    def is_ending(self, transactional_id: str) -> bool:
        """Return whether markers of a transaction are still to be written."""
        txn = self.shard.transactions.get(transactional_id)
        return txn is not None and txn.state in ENDING

    # -- coming and going

    def load(self) -> Iterator[None]:
        """Replay the log a piece at a time; whoever asks meanwhile is told to come back."""
        try:
            yield from self._replay()
        except (Corrupt, StorageFailed):
            log.exception("%s-%d cannot be loaded", TRANSACTIONS_TOPIC, self.partition)
            self.status = self.FAILED
            return
        if self.status == self.LOADING:
            self.begin()

    def _replay(self) -> Iterator[None]:
        log_ = self.log
        offset = log_.start_offset
        while offset < log_.end_offset and self.status == self.LOADING:
            piece = log_.read(offset, max_bytes=LOAD_READ_BYTES)
            if not piece:
                break  # compaction has left nothing behind this
            for at, header in scan(piece):
                if not header.control:
                    self.shard.load((r.key or b"", r.value) for r in records_of(piece, at))
                offset = header.last_offset + 1
                yield

    def begin(self) -> None:
        """Answer from now on, and end what was about to end when the log was written."""
        self.status = self.ACTIVE
        self.transactions.seen(max(txn.producer_id, txn.next_id) for txn in self.shard.transactions.values())
        decision = self.shard.loaded(self.node.now_ms())
        self._set_wakes(decision)
        self._markers.extend(decision.markers)
        self._release()

    def unload(self) -> None:
        """Let go of the shard: whoever waits is sent elsewhere, and its transactions are another's."""
        self.fence()
        self.status = self.AWAY


def end_of(transactional_id: str) -> Hashable:
    """Return the key under which the purgatory keeps what waits for the end of a transaction."""
    return ("the end of", transactional_id)


class Ending:
    """One transaction whose markers are on their way."""

    __slots__ = ("host", "left", "markers")

    def __init__(self, host: TransactionHost, markers: Markers) -> None:
        self.host, self.markers = host, markers
        self.left = set(markers.partitions)

    def write(self) -> None:
        """Write every marker; the last one to be there ends the transaction."""
        if not self.left:
            self._ended()
        for watched in self.markers.partitions:
            self._write_one(watched)

    def _write_one(self, watched: TopicPartition) -> None:
        if self.host.status != self.host.ACTIVE:
            return
        producer_id, epoch = self.markers.producer
        self.host.node.write_marker(
            watched,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=self.host.epoch,
            commit=self.markers.commit,
            transaction_version=self.markers.client_version,
            deliver=lambda code: self._written(watched, code),
        )

    def _written(self, watched: TopicPartition, code: Code) -> None:
        if code in AS_GOOD_AS_WRITTEN:
            self.left.discard(watched)
            if not self.left:
                self._ended()
        elif code in OVERTAKEN:
            log.error("%s: no marker into %s: %s", self.markers.transactional_id, watched, code.name)
        else:
            node = self.host.node
            timer = self.host.timer(("marker", self.markers.transactional_id, watched))
            node.purgatory.arm(timer, node.now_ms() + RETRY_MS, lambda _: self._write_one(watched))

    def _ended(self) -> None:
        if self.host.status == self.host.ACTIVE:
            self.host.execute(MarkersWritten(transactional_id=self.markers.transactional_id))


def write_marker(
    node: Node,
    watched: TopicPartition,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    commit: bool,
    transaction_version: int,
    deliver: Callable[[Code], None],
) -> None:
    """End a producer's transaction in one partition; offsets of groups are ended by their coordinator."""
    who = {
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "coordinator_epoch": coordinator_epoch,
    }
    if node.log_of(*watched) is None:
        deliver(Code.UNKNOWN_TOPIC_OR_PARTITION)
        return
    if watched.topic == OFFSETS_TOPIC:
        node.coordinator.end_transaction(
            watched.partition,
            **who,
            commit=commit,
            transaction_version=transaction_version,
            deliver=deliver,
        )
        return
    now_ms = node.now_ms()
    marker = build_marker(**who, commit=commit, timestamp=now_ms)
    try:
        node.append(
            *watched, marker, now_ms=now_ms, origin="coordinator", transaction_version=transaction_version
        )
    except AppendRefused as refused:
        deliver(refused.code)
        return
    deliver(Code.NONE)


class Joining:
    """Partitions that join a transaction by being written to, as soon as the one before has ended."""

    def __init__(
        self,
        transactions: TransactionCoordinator,
        make: Callable[[], AddPartitions],
        deliver: Callable[[Code], None],
    ) -> None:
        self.transactions, self.make, self.deliver = transactions, make, deliver
        self.transactional_id = ""

    def join(self) -> None:
        """Ask; when the end of a transaction is under way wait for it a little, as Apache Kafka does."""
        command = self.make()
        self.transactional_id = command.transactional_id
        self.transactions.ask(command, self._answered)

    def _answered(self, answer: Any) -> None:
        if answer.code is not Code.CONCURRENT_TRANSACTIONS:
            self.deliver(answer.code)
            return
        node = self.transactions.node
        until_ms = node.now_ms() + node.settings.add_partitions_to_txn_retry_backoff_max_ms
        node.purgatory.park(self, keys=[end_of(self.transactional_id)], deadline_ms=until_ms)

    def ready(self) -> bool:
        return not self.transactions.host_of(self.transactional_id).is_ending(self.transactional_id)

    def finish(self, *, forced: bool) -> None:
        if forced:
            self.deliver(Code.CONCURRENT_TRANSACTIONS)
        else:
            self.transactions.ask(self.make(), lambda answer: self.deliver(answer.code))


class TransactionCoordinator:
    """Every shard of this node, and the way from a transactional id to its shard."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.settings = node.settings.transaction_settings()
        self.partition_count = node.settings.transaction_state_log_num_partitions
        self.hosts: dict[int, TransactionHost] = {}
        self._calls = 0
        self._to_load: deque[TransactionHost] = deque()
        self._loading: Iterator[None] | None = None
        self._start()

    def _start(self) -> None:
        """Load what `__transaction_state` holds, in slices between which requests are answered."""
        for log_ in self.node.store.logs.values():
            self.seen(one.producer_id for one in log_.active_producers())
        topic = self.node.topics.get(TRANSACTIONS_TOPIC)
        if topic is not None:
            self.partition_count = topic.partitions
            for partition in range(topic.partitions):
                if self._is_written(partition) and self._leads(partition):
                    self._load(partition, epoch=self._log(partition).latest_epoch)

    def _log(self, partition: int) -> FileLog:
        return self.node.store.logs[TopicPartition(TRANSACTIONS_TOPIC, partition)]

    def _is_written(self, partition: int) -> bool:
        log_ = self._log(partition)
        return log_.end_offset > log_.start_offset

    def _leads(self, partition: int) -> bool:
        return self.node.leadership.leads(TRANSACTIONS_TOPIC, partition)

    # -- leadership and loading

    def elected(self, partition: int, leader_epoch: int) -> None:
        """Load a partition that this node has come to lead; an epoch that is no news is ignored."""
        before = self.hosts.get(partition)
        if before is None or before.epoch < leader_epoch:
            if before is not None:
                before.unload()
            self._load(partition, epoch=leader_epoch)

    def resigned(self, partition: int, leader_epoch: int | None = None) -> None:
        """Let go of a partition that another node leads by now, from that epoch on if given."""
        host = self.hosts.get(partition)
        if host is not None and (leader_epoch is None or host.epoch < leader_epoch):
            del self.hosts[partition]
            host.unload()

    def _load(self, partition: int, *, epoch: int) -> TransactionHost:
        host = self.hosts[partition] = TransactionHost(self, partition, epoch=epoch)
        self._to_load.append(host)
        if self._loading is None:
            self._loading = self._load_all()
            self.node.call_soon(self._load_slice)
        return host

    def _load_all(self) -> Iterator[None]:
        while self._to_load:
            yield from self._to_load.popleft().load()

    def _load_slice(self) -> None:
        """Load for at most 5 ms, then let the event loop answer requests."""
        assert self._loading is not None
        until = self.node.now_ms() + SLICE_MS
        for _ in self._loading:
            if self.node.now_ms() >= until:
                self.node.call_soon(self._load_slice)
                return
        self._loading = None

    def loading(self) -> bool:
        """Return whether some shard is still being loaded: a list of all would have gaps."""
        return self._loading is not None

    # -- the way in

    def host_of(self, transactional_id: str) -> TransactionHost:
        """Return the shard that a transactional id hashes to, if only to be sent elsewhere."""
        self.node.ensure_internal(TRANSACTIONS_TOPIC)
        partition = coordinator_partition(transactional_id, partition_count=self.partition_count)
        host = self.hosts.get(partition)
        if host is not None:
            return host
        if not self._leads(partition):
            return TransactionHost(self, partition, status=TransactionHost.AWAY)
        epoch = self._log(partition).latest_epoch
        if self._is_written(partition):
            return self._load(partition, epoch=epoch)
        host = self.hosts[partition] = TransactionHost(self, partition, epoch=epoch)
        host.begin()  # there is nothing to load
        return host

    def new_call(self) -> int:
        """Return a number for a command that wants an answer."""
        self._calls += 1
        return self._calls

    def seen(self, producer_ids: Iterable[int]) -> None:
        """Never give these out: another broker may have, whose files this one goes on with."""
        self.node.topics.producer_id_seen(max(producer_ids, default=-1))

    def new_producer_id(self) -> int:
        """Return a producer id that was never given out. Raises `NoProducerId`."""
        if self.loading():
            raise NoProducerId
        try:
            return self.node.topics.next_producer_id()
        except OSError as error:
            log.error("no producer ids can be reserved: %s", error)
            raise NoProducerId from error

    def ask(self, command: Any, deliver: Deliver) -> None:
        """Have a command with a call answered by its shard: `deliver` is called once, at once or later."""
        try:
            host = self.host_of(command.transactional_id)
        except STORAGE_ERRORS as error:
            log.error("%s cannot be created: %s", TRANSACTIONS_TOPIC, error)
            deliver(refusal(command, Code.COORDINATOR_NOT_AVAILABLE))
        else:
            host.ask(command, deliver)

    def partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        wanted: Sequence[TopicPartition],
        *,
        add: bool,
        deliver: Callable[[Mapping[TopicPartition, Code]], None],
    ) -> None:
        """Join partitions to a producer's transaction, or ask whether they are in it (KIP-890).

        `deliver` may be called before this returns. A fenced producer is told INVALID_PRODUCER_EPOCH, which
        is what whoever writes expects.
        """
        wanted = tuple(wanted)
        producer = Producer(producer_id, producer_epoch)
        if not add:
            verify = VerifyPartitions(
                transactional_id=transactional_id,
                call=self.new_call(),
                producer=producer,
                partitions=wanted,
            )
            self.ask(verify, lambda answer: deliver(_of_writer(wanted, answer.codes)))
            return

        def make() -> AddPartitions:
            return AddPartitions(
                transactional_id=transactional_id,
                call=self.new_call(),
                producer=producer,
                partitions=wanted,
                client_version=2,
            )

        Joining(self, make, lambda code: deliver(_of_writer(wanted, (code,) * len(wanted)))).join()

    def flush_all(self) -> None:
        """Append whatever is decided and not yet appended."""
        for host in tuple(self.hosts.values()):
            host.flush()

    def shards(self) -> Iterator[Shard]:
        """Yield the shards that answer."""
        yield from (host.shard for host in self.hosts.values() if host.status == TransactionHost.ACTIVE)


def _of_writer(wanted: Sequence[TopicPartition], codes: Sequence[Code]) -> Mapping[TopicPartition, Code]:
    fenced = Code.PRODUCER_FENCED
    told = (Code.INVALID_PRODUCER_EPOCH if code is fenced else code for code in codes)
    return dict(zip(wanted, told, strict=True))
