"""The shell around the transaction core: it carries decisions out over the log of `__transaction_state`.

What is alike for groups is in `shards.py`. Once a batch is there, the markers of its ends are written into
the partitions of their transactions, and when all are, the core is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import TRANSACTIONS_TOPIC
from coterie.broker.refusal import STORAGE_ERRORS
from coterie.broker.runtime.markers import TransactionEnd
from coterie.broker.runtime.pieces import ITEMS_AT_ONCE, Pieces, at_once
from coterie.broker.runtime.shards import HostedShard, PendingBatch, Tried
from coterie.broker.runtime.topic_shards import ShardsOfTopic
from coterie.coordinator.txn.commands import (
    AddPartitions,
    Command,
    Describe,
    Expire,
    MarkersWritten,
    VerifyPartitions,
)
from coterie.coordinator.txn.expiry import IDS, TIMEOUTS
from coterie.coordinator.txn.failures import NoProducerId, refusal, unfit
from coterie.coordinator.txn.model import BUMPS_EPOCH_SINCE, EPOCH_MAX, Producer
from coterie.coordinator.txn.records import recalled, strays
from coterie.coordinator.txn.settings import RETRY_MS
from coterie.coordinator.txn.shard import ENDING, Shard
from coterie.storage.log.contract import AppendRefused
from coterie.wire.records.batches import GrowingBatch, records_of, scan, weight_of

if TYPE_CHECKING:
    from coterie.broker.net.peers import Peers
    from coterie.broker.runtime.markers import WritesMarkers
    from coterie.broker.runtime.shards import Deliver
    from coterie.broker.runtime.topic_shards import CoordinatorParts
    from coterie.coordinator.machine import Decision, Markers, TimerKey
    from coterie.storage.kind import LogStore

log = logging.getLogger("coterie.broker")

# A marker that nobody needs any more is as good as written.
AS_GOOD_AS_WRITTEN = (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNSUPPORTED_FOR_MESSAGE_FORMAT)
# Somebody else goes on with the producer, or with the transactional id: we have nothing to say there.
OVERTAKEN = (Code.INVALID_PRODUCER_EPOCH, Code.TRANSACTION_COORDINATOR_FENCED)
LOOKS = (TIMEOUTS, IDS)
LOOKED_AT_ONCE = 500  # logs, producers that they know, transactional ids
STRAY = "%s: what producer %d has open in epoch %d is none that its coordinator will end; it is aborted"
NOT_WRITTEN_DOWN = "%s: what was recalled is not written down: %s"
LESS_THAN_LOGS = "%s: transactional id %s is %s by what is left; the logs know more, so it is %s in epoch %d"


@dataclass(slots=True, eq=False)
class TransactionBatch(PendingBatch[Command]):
    """What transactional ids wait for besides: the markers that end their transactions."""

    markers: list[Markers] = field(default_factory=list)


class TransactionHost(HostedShard[Command, TransactionBatch]):
    """One partition of `__transaction_state`, and the markers that wait for what is not yet appended."""

    batches = TransactionBatch
    shard: Shard

    def __init__(
        self, transactions: TransactionCoordinator, partition: int, *, status: str, epoch: int
    ) -> None:
        core = Shard(settings=transactions.settings, new_producer_id=transactions.new_producer_id)
        super().__init__(transactions, core, partition, status=status, epoch=epoch)
        self.transactions = transactions
        self._seeing_to: set[TimerKey] = set()
        self._unwritten: dict[str, None] = {}  # what was recalled and is not appended
        self._strays: dict[str, list[StrayAbort]] = {}  # by transactional id, until they are written

    # -- live

    def ask(self, command: Any, deliver: Deliver) -> None:
        """Have a command with a call answered: `deliver` is called once, at once or later."""
        code = unfit(command, self.shard.settings) or self.unavailable()
        if not code and command.transactional_id in self._strays and not isinstance(command, Describe):
            code = Code.CONCURRENT_TRANSACTIONS  # what is left open would join what its producer does next
        if code:
            deliver(refusal(command, code))
            return
        self.calls[command.call] = partial(tell, command, deliver)
        self.execute(command)

    def _try(self, command: Command, now_ms: int, *, failed: Code | None = None) -> Tried:
        wall_ms = now_ms + self._look_at_clocks(now_ms)
        if failed is None:
            return Tried(self.shard.perform(command, now_ms), wall_ms)
        return Tried(self.shard.append_failed(command, failed, now_ms), wall_ms)

    def _look_at_clocks(self, now_ms: int) -> int:
        """Tell the core how far the wall's clock is ahead, and return it."""
        self.shard.wall_ahead_ms = self.replica_manager.dated_ms(now_ms) - now_ms
        return self.shard.wall_ahead_ms

    def _carry_out(self, tried: Tried, command: Command) -> None:
        super()._carry_out(tried, command)
        self.pending.markers += tried.decision.markers

    def _set_timers(self, decision: Decision) -> None:
        for key, at_ms in decision.timers:
            assert at_ms is not None, "nothing takes one off"
            self.purgatory.arm(self.timer(key), at_ms, self._ring)

    def timer(self, key: Hashable) -> Hashable:
        """Return the name that a deadline of this shard has in the purgatory."""
        return (TRANSACTIONS_TOPIC, self.partition, key)

    def expire(self, key: Any, now_ms: int) -> None:
        *_, due = key
        if self.status != self.ACTIVE:
            if due not in LOOKS:  # which begin anew
                self.put_off(lambda: self.expire(key, self.clock.now_ms()))
            return
        decision = self.execute(Expire(key=due))
        if decision is not None and decision.overdue and due not in self._seeing_to:
            self._seeing_to.add(due)
            self.scheduler.work(self._see_to(due, decision.overdue))

    def _see_to(self, key: TimerKey, transactional_ids: tuple[str, ...]) -> Pieces[None]:
        """See to what a look has found, one after the other. The next look passes over what is left."""
        for transactional_id in transactional_ids:
            if self.status != self.ACTIVE:
                break
            self.execute(Expire(key=(*key, transactional_id)))
            yield
        self._seeing_to.discard(key)

    def _hand_out(self, batch: TransactionBatch) -> None:
        self._deliver(batch.replies)
        for command in batch.commands:
            if isinstance(command, Expire):
                self.tell_ended(command.key[-1])
        if batch.markers:
            count = sum(1 + len(each.partitions) for each in batch.markers)
            work = at_once if count <= ITEMS_AT_ONCE else self.scheduler.work
            work(self._end_all(batch.markers))

    def _end_all(self, markers: Collection[Markers]) -> Pieces[None]:
        """Write the markers of transactions; one may have very many."""
        for each in markers:
            yield from Ending(self, each).write()

    def tell_ended(self, transactional_id: str) -> None:
        """Try again what waits for the end of a transaction."""
        self.purgatory.changed(end_of(transactional_id))

    def is_ending(self, transactional_id: str) -> bool:
        """Return whether markers of a transaction, or of one before it, are still to be written."""
        txn = self.shard.transactions.get(transactional_id)
        return transactional_id in self._strays or (txn is not None and txn.state in ENDING)

    def stray_ended(self, stray: StrayAbort) -> None:
        """Let the owner of a transactional id go on once nothing is left open of what nobody knows."""
        left = self._strays[stray.transactional_id]
        left.remove(stray)
        if not left:
            del self._strays[stray.transactional_id]
            self.tell_ended(stray.transactional_id)

    # -- coming and going

    def _replay(self) -> Pieces[None]:
        self._look_at_clocks(self.clock.now_ms())
        return self._read_log(self._read)

    def _read(self, piece: bytes) -> Generator[None, None, int]:
        now_ms = self.clock.now_ms()
        for at, header in scan(piece):
            if not header.control:
                self.shard.load(((r.key or b"", r.value) for r in records_of(piece, at)), now_ms)
            offset = header.last_offset + 1
            yield
        return offset

    def _revive(self) -> Pieces[None]:
        """Put what the logs know of producers in the place of what a loss of power took here."""
        if self.shard.transactions and not self.transactions.store.was_closed:
            yield from self._recall()
        while self._unwritten and self.status == self.LOADING and self._write_recalled():
            yield

    def _recall(self) -> Iterator[None]:
        newest, opened = yield from self._known_to_logs()
        for place, txn in enumerate(tuple(self.shard.transactions.values())):
            if place % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                yield
            if txn.producer_id not in newest:
                continue
            known_to_logs = newest[txn.producer_id], opened.get(txn.producer_id, {})
            left = [
                StrayAbort(self, txn.transactional_id, name, txn.producer_id, known_to_logs[1][name])
                for name in strays(txn, *known_to_logs)
            ]
            if left:
                self._strays[txn.transactional_id] = left
            known = recalled(txn, *known_to_logs)
            if known is not txn:
                log.warning(LESS_THAN_LOGS, self, txn.transactional_id, txn.state, known.state, known.epoch)
                self.shard.recall(known)
                self._unwritten[txn.transactional_id] = None

    def _known_to_logs(self) -> Pieces[tuple[dict[int, int], dict[int, dict[TopicPartition, int]]]]:
        """Return the newest epoch of each producer, and where a transaction of it is open, in which epoch."""
        ids = {txn.producer_id for txn in self.shard.transactions.values()}
        newest: dict[int, int] = {}
        opened: dict[int, dict[TopicPartition, int]] = {}
        looked_at = 0
        for name, there in tuple(self.replica_manager.logs.items()):
            producers = there.producers.producers
            found = ids & producers.keys()
            for producer_id in found:
                epoch = producers[producer_id].epoch
                newest[producer_id] = max(epoch, newest.get(producer_id, epoch))
                if there.open_transaction(producer_id) >= 0:
                    opened.setdefault(producer_id, {})[name] = epoch
            looked_at += 1 + len(found)
            if looked_at >= LOOKED_AT_ONCE:
                looked_at = 0
                yield
        return newest, opened

    def _write_recalled(self) -> bool:
        """Append a batch of what was recalled, for a start that no longer asks the logs; return whether it is
        there.
        """
        now_ms = self.clock.now_ms()
        wall_ms = now_ms + self._look_at_clocks(now_ms)
        batch, held = GrowingBatch(), []
        for transactional_id in self._unwritten:
            record = self.shard.snapshot(transactional_id)
            if batch and batch.size + weight_of([record]) > self.batch_bytes:
                break
            batch.add(*record, wall_ms)
            held.append(transactional_id)
        try:
            appended = self._append_batch(batch.build())
        except AppendRefused as refused:
            log.error(NOT_WRITTEN_DOWN, self, refused)
            return False
        for transactional_id in held:
            del self._unwritten[transactional_id]

        def landed(refused: AppendRefused | None) -> None:
            if refused is not None:
                log.error(NOT_WRITTEN_DOWN, self, refused)
                self._unwritten |= dict.fromkeys(held)
                self._write_recalled_later()

        self.replica_manager.when_landed(self._watched, appended, landed)
        return True

    def _write_recalled_later(self) -> None:
        if self._unwritten:
            timer = self.timer(("recalled",))
            self.purgatory.arm(timer, self.clock.now_ms() + RETRY_MS, self._write_recalled_again)

    def _write_recalled_again(self, _: object, now_ms: int) -> None:
        if self.status == self.ACTIVE:
            self.flush()  # what is written is to be what lasts
            if not self.records.count:
                self._write_recalled()
            self._write_recalled_later()

    def in_doubt(self) -> bool:
        """Return whether a start that does not ask the logs would know less than they."""
        return self.status != self.AWAY and bool(self._unwritten or self._strays or not self.begun)

    def _holdings(self) -> str:
        return f"{len(self.shard.transactions)} transactional ids"

    def begin(self) -> None:
        """Answer from now on, and end what was about to end when the log was written."""
        self.transactions.seen(max(txn.producer_id, txn.next_id) for txn in self.shard.transactions.values())
        decision = self.shard.loaded(self.clock.now_ms())
        self._set_timers(decision)
        self.pending.markers += decision.markers
        self._write_recalled_later()
        for stray in [*chain.from_iterable(self._strays.values())]:  # before anybody goes on
            stray.write()
        super().begin()

    def go_on(self) -> None:
        """Decide again, after a halt; as after loading, the next looks are an interval away."""
        super().go_on()
        self._set_timers(self.shard.loaded(self.clock.now_ms()))
        self._write_recalled_later()


def tell(command: Any, deliver: Deliver, answer: Any) -> None:
    """Deliver the answer to a command, or the refusal of it where there is only a code."""
    deliver(refusal(command, answer) if isinstance(answer, Code) else answer)


def end_of(transactional_id: str) -> Hashable:
    """Return the key under which the purgatory keeps what waits for the end of a transaction."""
    return ("the end of", transactional_id)


class Ending:
    """One transaction whose markers are on their way."""

    __slots__ = ("host", "left", "markers")

    def __init__(self, host: TransactionHost, markers: Markers) -> None:
        self.host, self.markers = host, markers
        self.left = set(markers.partitions)

    def write(self) -> Pieces[None]:
        """Write every marker; the last one to be there ends the transaction."""
        if not self.left:
            self._ended()
        for watched in self.markers.partitions:
            self._write_one(watched)
            yield

    def _write_one(self, watched: TopicPartition) -> None:
        if self.host.status != self.host.ACTIVE:
            self.host.put_off(partial(self._write_one, watched))
            return
        markers, (producer_id, epoch) = self.markers, self.markers.producer
        end = TransactionEnd(producer_id, epoch, self.host.epoch, markers.commit, markers.client_version)
        deliver = partial(self._written, watched)
        self.host.transactions.marker_writer.write(watched, end, deliver)

    def _written(self, watched: TopicPartition, code: Code) -> None:
        if self.host.status != self.host.ACTIVE:  # who loads it anew sees to the rest, by the same timers
            self.host.put_off(partial(self._written, watched, code))
            return
        if code in AS_GOOD_AS_WRITTEN:
            self.left.discard(watched)
            if not self.left:
                self._ended()
        elif code in OVERTAKEN:
            log.error("%s: no marker into %s: %s", self.markers.transactional_id, watched, code.name)
        else:
            timer = self.host.timer(("marker", self.markers.transactional_id, watched))
            at_ms = self.host.clock.now_ms() + RETRY_MS
            self.host.purgatory.arm(timer, at_ms, lambda *_: self._write_one(watched))

    def _ended(self) -> None:
        """Tell the core. What waits for the end need not wait until that lasts: it is appended behind it."""
        if self.host.status == self.host.ACTIVE:
            transactional_id = self.markers.transactional_id
            self.host.execute(MarkersWritten(transactional_id=transactional_id))
            self.host.tell_ended(transactional_id)
        else:
            self.host.put_off(self._ended)


class StrayAbort:
    """The abort of what a producer has open in one partition, of which its coordinator does not know.

    It comes under the next epoch, which a partition refuses once the producer has gone on there.
    """

    __slots__ = ("_logged", "epoch", "host", "producer_id", "transactional_id", "watched")

    def __init__(
        self,
        host: TransactionHost,
        transactional_id: str,
        watched: TopicPartition,
        producer_id: int,
        epoch: int,
    ) -> None:
        self.host, self.transactional_id = host, transactional_id
        self.watched, self.producer_id, self.epoch = watched, producer_id, epoch
        self._logged = False

    def write(self) -> None:
        """Write the marker, now or later."""
        if self.host.status in self.host.HALTED:
            self.host.put_off(self.write)
            return
        there = self.host.replica_manager.log_of(*self.watched)
        known = None if there is None else there.producers.producers.get(self.producer_id)
        if known is None or known.open_since < 0 or known.epoch != self.epoch:
            self.host.stray_ended(self)
            return
        if not self._logged:  # once: a full disk refuses again and again
            self._logged = True
            log.warning(STRAY, self.watched, self.producer_id, self.epoch)
        end = TransactionEnd(
            self.producer_id,
            producer_epoch=min(self.epoch + 1, EPOCH_MAX),
            coordinator_epoch=max(known.coordinator_epoch, 0),
            commit=False,
            transaction_version=BUMPS_EPOCH_SINCE if self.epoch < EPOCH_MAX else 0,
        )
        self.host.transactions.marker_writer.write(self.watched, end, self._written)

    def _written(self, code: Code) -> None:
        if self.host.status in (self.host.FAILED, self.host.AWAY):  # as with an ending
            return
        if self.host.status in self.host.HALTED:
            self.host.put_off(partial(self._written, code))
            return
        if code in AS_GOOD_AS_WRITTEN or code in OVERTAKEN:
            self.host.stray_ended(self)
        else:
            timer = (TRANSACTIONS_TOPIC, "stray", self.watched, self.producer_id)
            at_ms = self.host.clock.now_ms() + RETRY_MS
            self.host.purgatory.arm(timer, at_ms, lambda *_: self.write())


class Joining:
    """Partitions that join a transaction as soon as the one before has ended."""

    def __init__(
        self,
        transactions: TransactionCoordinator,
        make: Callable[[], AddPartitions],
        deliver: Callable[[Code], None],
    ) -> None:
        self.transactions, self.make, self.deliver = transactions, make, deliver
        self.transactional_id = ""

    def join(self) -> None:
        """Ask; when the end of a transaction is under way wait for it a little."""
        command = self.make()
        self.transactional_id = command.transactional_id
        self.transactions.ask(command, self._answered)

    def _answered(self, answer: Any) -> None:
        if answer.code is not Code.CONCURRENT_TRANSACTIONS:
            self.deliver(answer.code)
            return
        parts = self.transactions.parts
        until_ms = parts.clock.now_ms() + parts.settings.add_partitions_to_txn_retry_backoff_max_ms
        parts.purgatory.park(self, keys=[end_of(self.transactional_id)], deadline_ms=until_ms)

    def ready(self, changed: Any = None) -> bool:
        host = self.transactions.host_of(self.transactional_id)
        return host is None or not host.is_ending(self.transactional_id)

    def finish(self, *, forced: bool) -> None:
        if forced:
            self.deliver(Code.CONCURRENT_TRANSACTIONS)
        else:
            self.transactions.ask(self.make(), lambda answer: self.deliver(answer.code))


class AsksCoordinators(Protocol):
    """Who asks the coordinator of a transaction about partitions that are to be written."""

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

        `deliver` is called once, maybe before this returns.
        """
        ...


class TransactionCoordinator(ShardsOfTopic[TransactionHost]):
    """Every shard of this node, and the way from a transactional id to its shard."""

    topic = TRANSACTIONS_TOPIC

    def __init__(
        self, parts: CoordinatorParts, *, store: LogStore, peers: Peers, marker_writer: WritesMarkers
    ) -> None:
        super().__init__(parts, partition_count=parts.settings.transaction_state_log_num_partitions)
        self.settings = parts.settings.transaction_settings()
        self.store = store
        self.marker_writer = marker_writer
        self._peers = peers
        self._load_what_is_led()

    def _new_host(self, partition: int, *, status: str, epoch: int) -> TransactionHost:
        return TransactionHost(self, partition, status=status, epoch=epoch)

    def in_doubt(self) -> bool:
        """Return whether a start that does not ask the logs would know less than they."""
        return self.loading() or any(host.in_doubt() for host in self.hosts.values())

    # -- the way in

    def new_call(self) -> int:
        """Return a number for a command that wants an answer."""
        return next(self.numbers)

    def seen(self, producer_ids: Iterable[int]) -> None:
        """Never give these out: another broker may have, whose files this one goes on with."""
        self.parts.producer_ids.producer_id_seen(max(producer_ids, default=-1))

    def new_producer_id(self) -> int:
        """Return a producer id that was never given out. Raises `NoProducerId`."""
        if self.parts.producer_ids.learns_from_logs and self.loading():
            raise NoProducerId
        try:
            given = self.parts.producer_ids.next_producer_id()
        except OSError as error:
            self._peers.seldom.warn("no producer ids can be reserved: %s", error)
            raise NoProducerId from error
        if given is None:
            raise NoProducerId
        return given

    def ask(self, command: Any, deliver: Deliver) -> None:
        """Have a command with a call answered by its shard: `deliver` is called once, at once or later."""
        try:
            host = self.host_of(command.transactional_id)
        except STORAGE_ERRORS as error:
            log.error("%s cannot be created: %s", TRANSACTIONS_TOPIC, error)
            deliver(refusal(command, Code.COORDINATOR_NOT_AVAILABLE))
        else:
            if host is None:
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

        self.join(
            transactional_id,
            producer,
            wanted,
            client_version=BUMPS_EPOCH_SINCE,
            deliver=lambda code: deliver(_of_writer(wanted, (code,) * len(wanted))),
        )

    def join(
        self,
        transactional_id: str,
        producer: Producer,
        wanted: tuple[TopicPartition, ...],
        *,
        client_version: int,
        deliver: Callable[[Code], None],
    ) -> None:
        """Have partitions join a producer's transaction; `deliver` is called once, at once or later.

        While the end of the one before is under way that is waited for a while: who is told
        CONCURRENT_TRANSACTIONS pauses for longer than most ends take.
        """

        def make() -> AddPartitions:
            return AddPartitions(
                transactional_id=transactional_id,
                call=self.new_call(),
                producer=producer,
                partitions=wanted,
                client_version=client_version,
            )

        Joining(self, make, deliver).join()


def _of_writer(wanted: Sequence[TopicPartition], codes: Sequence[Code]) -> Mapping[TopicPartition, Code]:
    fenced = Code.PRODUCER_FENCED
    given = (Code.INVALID_PRODUCER_EPOCH if code is fenced else code for code in codes)
    return dict(zip(wanted, given, strict=True))
