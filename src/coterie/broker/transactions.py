"""The shell around the transaction core: it carries decisions out over the log of `__transaction_state`.

What is alike for groups is in `shards.py`. Once a batch is there, the markers of its ends are written into
the partitions of their transactions, and when all are, the core is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.broker.refusal import STORAGE_ERRORS
from coterie.broker.shards import HostedShard, ShardsOfTopic
from coterie.broker.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from coterie.store.log import AppendRefused
from coterie.txn.commands import AddPartitions, Command, Expire, MarkersWritten, VerifyPartitions
from coterie.txn.decision import Reply
from coterie.txn.failures import NoProducerId, refusal, unfit
from coterie.txn.model import Producer
from coterie.txn.settings import RETRY_MS
from coterie.txn.shard import ENDING, Shard
from coterie.wire.batches import build_marker, records_of, scan

if TYPE_CHECKING:
    from coterie.broker.node import Node
    from coterie.broker.shards import Deliver
    from coterie.txn.decision import Decision, Markers, WakeKey

__all__ = ["TransactionCoordinator", "TransactionHost", "write_marker"]

log = logging.getLogger("coterie.broker")

# A marker that nobody needs any more is as good as written.
AS_GOOD_AS_WRITTEN = (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNSUPPORTED_FOR_MESSAGE_FORMAT)
# Somebody else goes on with the producer, or with the transactional id: we have nothing to say there.
OVERTAKEN = (Code.INVALID_PRODUCER_EPOCH, Code.TRANSACTION_COORDINATOR_FENCED)


class TransactionHost(HostedShard[Command, Reply]):
    """One partition of `__transaction_state`, and the markers that wait for what is not yet appended."""

    shard: Shard

    def __init__(
        self, transactions: TransactionCoordinator, partition: int, *, status: str, epoch: int
    ) -> None:
        core = Shard(settings=transactions.settings, new_producer_id=transactions.new_producer_id)
        super().__init__(transactions, core, partition, status=status, epoch=epoch)
        self.transactions = transactions
        self._markers: list[Markers] = []

    # -- live

    def ask(self, command: Any, deliver: Deliver) -> None:
        """Have a command with a call answered: `deliver` is called once, at once or later."""
        code = unfit(command, self.shard.settings) or self.unavailable()
        if code:
            deliver(refusal(command, code))
            return
        self.calls[command.call] = partial(tell, command, deliver)
        self.execute(command)

    def _perform(self, command: Command, now_ms: int) -> None:
        self._commands.append(command)
        ahead_ms = self._look_at_clocks(now_ms)
        self._carry_out(self.shard.decide(command, now_ms), now_ms + ahead_ms)

    def _after_failure(self, command: Command, code: Code, now_ms: int) -> None:
        ahead_ms = self._look_at_clocks(now_ms)
        self._carry_out(self.shard.append_failed(command, code, now_ms), now_ms + ahead_ms)

    def _look_at_clocks(self, now_ms: int) -> int:
        """Tell the core how far the wall's clock is ahead, and return it."""
        self.shard.wall_ahead_ms = self.node.dated_ms(now_ms) - now_ms
        return self.shard.wall_ahead_ms

    def _carry_out(self, decision: Decision, wall_ms: int) -> None:
        for fact in decision.facts:
            self.shard.apply(fact)
            for key, value in self.shard.records(fact):
                self.records.add(key, value, wall_ms)
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

    def _release(self) -> None:
        commands, replies = self._take_settled()
        markers, self._markers = self._markers, []
        self._deliver(replies)
        for command in commands:
            if isinstance(command, MarkersWritten | Expire):
                self._tell_ended(command)
        for each in markers:
            Ending(self, each).write()

    def _tell_ended(self, command: MarkersWritten | Expire) -> None:
        """Try again what waits for the end of a transaction."""
        ended = command.key[-1] if isinstance(command, Expire) else command.transactional_id
        self.node.purgatory.changed(end_of(ended))

    def _undo(self, code: Code) -> None:
        self._markers = []
        super()._undo(code)

    def is_ending(self, transactional_id: str) -> bool:
        """Return whether markers of a transaction are still to be written."""
        txn = self.shard.transactions.get(transactional_id)
        return txn is not None and txn.state in ENDING

    # -- coming and going

    def _replay(self) -> Iterator[None]:
        self._look_at_clocks(self.node.now_ms())
        return self._read_log(self._read)

    def _read(self, piece: bytes) -> Generator[None, None, int]:
        now_ms = self.node.now_ms()
        for at, header in scan(piece):
            if not header.control:
                self.shard.load(((r.key or b"", r.value) for r in records_of(piece, at)), now_ms)
            offset = header.last_offset + 1
            yield
        return offset

    def _holdings(self) -> str:
        return f"{len(self.shard.transactions)} transactional ids"

    def begin(self) -> None:
        """Answer from now on, and end what was about to end when the log was written."""
        self.transactions.seen(max(txn.producer_id, txn.next_id) for txn in self.shard.transactions.values())
        decision = self.shard.loaded(self.node.now_ms())
        self._set_wakes(decision)
        self._markers.extend(decision.markers)
        super().begin()


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
    marker = build_marker(**who, commit=commit, timestamp=node.wall_ms())
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

    def ready(self, changed: Any = None) -> bool:
        return not self.transactions.host_of(self.transactional_id).is_ending(self.transactional_id)

    def finish(self, *, forced: bool) -> None:
        if forced:
            self.deliver(Code.CONCURRENT_TRANSACTIONS)
        else:
            self.transactions.ask(self.make(), lambda answer: self.deliver(answer.code))


class TransactionCoordinator(ShardsOfTopic[TransactionHost]):
    """Every shard of this node, and the way from a transactional id to its shard."""

    topic = TRANSACTIONS_TOPIC

    def __init__(self, node: Node) -> None:
        super().__init__(node, partition_count=node.settings.transaction_state_log_num_partitions)
        self.settings = node.settings.transaction_settings()
        self._calls = 0
        self._load_what_is_led()

    def _new_host(self, partition: int, *, status: str, epoch: int) -> TransactionHost:
        return TransactionHost(self, partition, status=status, epoch=epoch)

    # -- the way in

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


def _of_writer(wanted: Sequence[TopicPartition], codes: Sequence[Code]) -> Mapping[TopicPartition, Code]:
    fenced = Code.PRODUCER_FENCED
    told = (Code.INVALID_PRODUCER_EPOCH if code is fenced else code for code in codes)
    return dict(zip(wanted, told, strict=True))
