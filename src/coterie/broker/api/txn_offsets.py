"""TxnOffsetCommit (28): what a group has consumed, as part of a producer's transaction (KIP-447).

* v3: generation, member id, instance id
* v5: the partition of the group's offsets joins the transaction by this request (KIP-890)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.base.reasons import mark
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.api.groups import forget, host_for
from coterie.broker.api.offsets import (
    OFFSETS_AT_ONCE,
    Codes,
    committed,
    in_parts,
    mark_unknown,
    named_in,
    sorted_out,
    still_there,
)
from coterie.broker.net.context import WAITS, Context
from coterie.broker.runtime.pieces import Pieces, mapped, paced
from coterie.coordinator.group import commands
from coterie.coordinator.group.failures import client_code
from coterie.storage.log.contract import AppendRefused
from coterie.storage.log.producers import ONGOING
from coterie.wire.records.batches import MAGIC, TRANSACTIONAL_BIT, BatchHeader

if TYPE_CHECKING:
    from coterie.broker.config.settings import BrokerSettings
    from coterie.broker.runtime.clock import Clock
    from coterie.broker.runtime.groups import Coordinator, ShardHost
    from coterie.broker.runtime.pieces import Scheduler
    from coterie.broker.runtime.transactions import AsksCoordinators
    from coterie.broker.topics.catalog import TopicCatalog
    from coterie.storage.log.producers import Verification

JOINS_SINCE = 5
LOADING_KNOWN_SINCE = 2  # older clients crash on the error (TX-8)
ABORTABLE_KNOWN_SINCE = 4  # KIP-890
NO_SEQUENCE = -1


class Parts(NamedTuple):
    """The parts of the broker that these handlers use."""

    settings: BrokerSettings
    topics: TopicCatalog
    clock: Clock
    scheduler: Scheduler
    coordinator: Coordinator
    load_transaction_partitions: Callable[[], AsksCoordinators]


def txn_offset_commit(parts: Parts, ctx: Context, request: Any) -> Any:
    """Keep the offsets of the partitions that exist until the transaction ends; refuse the others (TX-1)."""
    return paced(_txn_offset_commit(parts, ctx, request), named_in(request))


def _txn_offset_commit(parts: Parts, ctx: Context, request: Any) -> Pieces[Any]:
    """Of very many offsets the last for each partition is kept; all are answered."""
    named, refused = yield from sorted_out(parts.topics, request.topics)
    offsets, last = named, dict[tuple[str, int], commands.OffsetToCommit]()
    if len(named) > OFFSETS_AT_ONCE:
        last = yield from mapped(((one.topic, one.partition), one) for one in named)
        offsets = tuple(last.values())
    mark_unknown(ctx, refused)

    def respond(answer: Any) -> None:
        codes: Iterable[Code] = [answer] * len(offsets) if isinstance(answer, Code) else answer.codes
        if offsets is not named:
            by_name = dict(zip(last, codes, strict=True))
            codes = (by_name[one.topic, one.partition] for one in named)
        shown_codes = (of_version(code, ctx.version) for code in codes)
        ctx.reply(
            paced(
                committed(ctx.api_key, ctx.version, request, refused, shown_codes.__next__), named_in(request)
            )
        )

    if not offsets:
        mark("nothing-left", ctx.api_key)
        respond(Code.NONE)  # TX-1: nothing is left to ask anybody about
        return WAITS
    host = host_for(parts.coordinator, ctx, request.group_id, respond)
    if host is not None:
        WaitingCommit(parts, ctx, request, host, offsets, respond).ask()
    return WAITS


def of_version(code: Code, version: int) -> Code:
    """Return an error that a client of the version knows (TX-8)."""
    if code is Code.COORDINATOR_LOAD_IN_PROGRESS and version < LOADING_KNOWN_SINCE:
        mark("loading-told-as-not-available", 28)
        return Code.COORDINATOR_NOT_AVAILABLE
    if code is Code.TRANSACTION_ABORTABLE and version < ABORTABLE_KNOWN_SINCE:
        return Code.INVALID_TXN_STATE
    return code


class WaitingCommit:
    """A commit in a transaction, until the transaction's coordinator has said that it may be (TX-3)."""

    def __init__(
        self,
        parts: Parts,
        ctx: Context,
        request: Any,
        host: ShardHost,
        offsets: tuple[commands.OffsetToCommit, ...],
        respond: Callable[[Any], None],
    ) -> None:
        self.parts, self.ctx, self.request = parts, ctx, request
        self.host, self.offsets, self.respond = host, offsets, respond
        self.joins = ctx.version >= JOINS_SINCE

    def ask(self) -> None:
        """Ask, unless the transaction has reached the partition before; then commit."""
        request, partition = self.request, TopicPartition(OFFSETS_TOPIC, self.host.partition)
        try:
            verification = self._verification()
        except AppendRefused as refused:
            self.respond(client_code(refused.code))
            return
        if verification is None or not (self.joins or self._verifies()):
            self.commit(ONGOING if verification is None else verification)
            return

        def answered(codes: Mapping[TopicPartition, Code]) -> None:
            code = codes[partition]
            if code:
                mark("transaction-does-not-cover-offsets", 28)
                self.respond(client_code(code))
            else:
                self.commit(verification)

        mark("partition-joins-transaction" if self.joins else "transaction-verified", 28)
        self.parts.load_transaction_partitions().partitions(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            [partition],
            add=self.joins,
            deliver=answered,
        )

    def _verification(self) -> Verification | None:
        """Return the append's verification (KIP-890), None if the transaction is open there already."""
        now_ms, request = self.parts.clock.now_ms(), self.request
        header = BatchHeader(
            base_offset=0,
            length=0,
            leader_epoch=0,
            magic=MAGIC,
            crc=0,
            attributes=TRANSACTIONAL_BIT,
            last_offset_delta=0,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            base_sequence=NO_SEQUENCE,
            count=len(self.offsets),
        )
        return self.host.log.verification(header, joins=self.joins, now_ms=now_ms)

    def _verifies(self) -> bool:
        return self.parts.settings.text_of("transaction.partition.verification.enable") != "false"

    def commit(self, verified: Verification) -> None:
        """Have the group decide; about very many offsets in parts, between which others are heard.

        The transaction may end between two parts, or before the only one is written: the log refuses what
        would come after its end, which would hang.
        """
        commit = partial(self._commit_part, verified=verified)
        if len(self.offsets) <= OFFSETS_AT_ONCE:
            commit(self.offsets, self.respond)
        else:
            self.parts.scheduler.work(
                in_parts(self.offsets, commit, lambda codes: self.respond(Codes(codes)))
            )

    def _commit_part(
        self,
        named: Sequence[commands.OffsetToCommit],
        respond: Callable[[Any], None],
        *,
        verified: Verification,
    ) -> None:
        """Have the group decide, if its shard is still the one that was asked for."""
        request, host = self.request, self.host
        unavailable = host.unavailable()
        if unavailable:
            respond(unavailable)
            return
        offsets, respond = still_there(self.parts.topics, self.ctx, named, respond)
        if not offsets:
            respond(Code.NONE)
            return
        call = host.new_call(respond)
        self.ctx.when_gone(lambda: forget(host, call))
        command = commands.TxnCommitOffsets(
            group_id=request.group_id,
            call=call,
            member_id=getattr(request, "member_id", ""),
            instance_id=getattr(request, "group_instance_id", None),
            generation=getattr(request, "generation_id", -1),
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            offsets=offsets,
        )
        host.execute_in_transaction(command, verified)


HANDLERS = {28: txn_offset_commit}
