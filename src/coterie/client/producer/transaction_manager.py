"""Carries out transactions on a running loop: asks coordinators, does what `transaction_state` says."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from coterie.base.codes import Code
from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.ids import GroupMetadata, OffsetAndMetadata, TopicPartition
from coterie.client.ending import begun, cut_short, shared
from coterie.client.errors import ClientTimeout, Disconnected
from coterie.client.member.backoff import Backoff
from coterie.client.net import messages
from coterie.client.net.addresses import Address
from coterie.client.net.connection import Connection, Maker
from coterie.client.net.jitter import jitter
from coterie.client.producer import messages as asks
from coterie.client.producer.batcher import NO_IDENTITY, Identity
from coterie.client.producer.delivery import settled
from coterie.client.producer.errors import OutcomeUnknown, ProducerClosed, TransactionAborted
from coterie.client.producer.sender import Sender
from coterie.client.producer.transaction_state import (
    State,
    Step,
    Transacting,
    Verdict,
    refusal,
    verdict,
)
from coterie.wire.api.apis import ApiKey

log = logging.getLogger("coterie.client")

PURPOSE = "transactions"
FEATURE, VERSION_2 = "transaction.version", 2
# The end of the last transaction takes a few milliseconds.
CONCURRENT_BACKOFF_MS = 20
# What a transaction ends with, or a producer begins with: it comes after everything else.
ENDS = frozenset({ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID})

Key = tuple[int, str]


class Transactions:
    """A producer's transactions."""

    def __init__(self, sender: Sender, transactional_id: str) -> None:
        self.sender, self.settings, self.cluster = sender, sender.settings, sender.cluster
        self.accumulator = sender.accumulator
        self.state = Transacting(transactional_id)
        self.accumulator.may_go = self._may_write
        self.accumulator.failed = self._batch_failed
        self._coordinators: dict[Key, Address] = {}
        self._asked: set[asyncio.Future[None]] = set()
        """Is done, each, when a coordinator has answered: the transaction's end comes after that."""
        self._offsets: set[asyncio.Task[None]] = set()
        self._own: Key = (messages.TRANSACTION, transactional_id)

    async def start(self) -> None:
        """Become the owner of the transactional id; whoever was it before is fenced."""
        link = await self._retrying(ApiKey.FIND_COORDINATOR, self._own, self._link_to_coordinator, no_code)
        self.state.version_2 = self.sender.version_2 = link.features.get(FEATURE, 0) >= VERSION_2
        self.accumulator.identity = await self._initialized(NO_IDENTITY)
        self.state.move(Step.INITIALIZED)

    async def _initialized(self, identity: Identity) -> Identity:
        """Return the producer's identity from now on. The coordinator ends what is open."""

        def make(version: int) -> Any:
            return asks.init_producer(
                version,
                transactional_id=self.state.transactional_id,
                transaction_timeout_ms=self.settings.transaction_timeout_ms,
                identity=identity,
            )

        answer = await self._ask(ApiKey.INIT_PRODUCER_ID, self._own, make, error_code)
        return asks.read_identity(answer)

    # -- a transaction

    def check_open(self) -> None:
        """Raise why nothing can be written now, if so."""
        self.state.check_open()

    async def begin(self) -> None:
        """Begin; what is left of the transaction before is ended first."""
        if self.state.state is State.COMMITTING:
            await self._end(commit=True)
        elif self.state.state is State.ABORTING:
            await self._end(commit=False)
        self.state.move(Step.BEGIN)

    async def commit(self) -> None:
        """Write what is left, and commit; abort instead if something was not written."""
        if self.state.state is State.OPEN:
            self.state.move(Step.COMMIT)
            await self._flushed()
        if self.state.to_abort:
            await self._abort_instead()
        try:
            await self._end(commit=True)
        except RefusedBy:
            if self.state.to_abort:
                await self._abort_instead()
            raise

    async def _flushed(self) -> None:
        self.accumulator.urgent += 1
        self.sender.wake()
        try:
            await self._settled()
        except asyncio.CancelledError:
            self.state.broken(TransactionAborted("the commit was cancelled before it was asked for"))
            await self.abort_after_failure()
            raise
        finally:
            self.accumulator.urgent -= 1

    async def _abort_instead(self) -> None:
        cause = self.state.cause
        await self.abort()
        raise TransactionAborted(f"the transaction was aborted: {cause}") from cause

    async def abort(self) -> None:
        """Drop what was not sent, wait for what was, and abort."""
        self.state.move(Step.ABORT)
        self.sender.abandon(TransactionAborted("the transaction was aborted before the record was written"))
        await self._end(commit=False)

    async def _settled(self) -> None:
        """Wait until nothing of the transaction is under way any more.

        What came to a broker after the end would count as the next transaction's.
        """
        while under_way := self._asked | self._offsets:  # of offsets that nothing has been asked for yet, too
            await asyncio.wait(under_way)
        for batch in list(self.accumulator.batches()):
            if batch.outcome is None:
                await settled(batch)

    async def abort_after_failure(self) -> None:
        """Abort as well as can be: what made it necessary is about to be raised.

        What could not be finished, the next transaction or the coordinator's timeout will.
        """
        if self.state.state not in (State.OPEN, State.BROKEN):
            return
        try:
            await self.abort()
        except CoterieError as error:
            if self.state.useless:
                self.sender.abandon(error)

    async def finish(self) -> None:
        """Abort what is open before the producer closes, and end what was being ended."""
        await self.abort_after_failure()
        state = self.state.state
        if state in (State.COMMITTING, State.ABORTING):
            try:
                await self._end(commit=state is State.COMMITTING)
            except CoterieError as error:
                log.warning("the end of a transaction is not known: %s", error)

    async def stop(self) -> None:
        """Ask nothing more: the producer is closed."""
        await cut_short(*self._offsets)

    async def _end(self, *, commit: bool) -> None:
        """Tell the coordinator of the end, and go on under the identity that it gives.

        Whoever is cancelled in here leaves it to the next transaction, which comes here first.
        """
        await self._settled()
        state, identity = self.state, self.accumulator.identity
        if state.begun and not state.anew:

            def make(version: int) -> Any:
                return asks.end_transaction(version, state.transactional_id, identity, commit=commit)

            most = None if state.version_2 else asks.MOST_BEFORE_V2[ApiKey.END_TXN]
            answer = await self._ask(ApiKey.END_TXN, self._own, make, error_code, most=most, anew=not commit)
            if answer is not None and state.version_2:
                identity = asks.read_identity(answer)
        if state.anew or (self.accumulator.has_gaps and not state.version_2):
            identity = await self._initialized(identity)
        self.accumulator.begin_anew(identity)
        state.move(Step.ENDED)

    # -- offsets

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: GroupMetadata
    ) -> None:
        """Commit a group's offsets within the transaction.

        Who is cancelled here does not cut the question off: the transaction ends when it has its answer.
        """
        self.state.check_open()
        if not offsets:
            return
        sending = begun(self._send_offsets(offsets, group), name="offsets of the transaction")
        self._offsets.add(sending)
        sending.add_done_callback(self._offsets.discard)
        await shared(sending, ProducerClosed("the producer was closed before the offsets were written"))

    async def _send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: GroupMetadata
    ) -> None:
        state, identity = self.state, self.accumulator.identity
        most = None
        if state.version_2:
            state.begun = True
        else:
            most = asks.MOST_BEFORE_V2[ApiKey.TXN_OFFSET_COMMIT]
            await self._add_group(group.group_id)
            state.check_open(before=True)  # or it has been aborted meanwhile

        def make(version: int) -> Any:
            return asks.transaction_offsets(version, state.transactional_id, identity, group, offsets)

        coordinator = (messages.GROUP, group.group_id)
        await self._ask(ApiKey.TXN_OFFSET_COMMIT, coordinator, make, asks.read_transaction_offsets, most=most)

    async def _add_group(self, group_id: str) -> None:
        state, identity = self.state, self.accumulator.identity
        if group_id in state.groups:
            return

        def make(version: int) -> Any:
            return asks.add_offsets(version, state.transactional_id, identity, group_id)

        await self._ask(ApiKey.ADD_OFFSETS_TO_TXN, self._own, make, error_code)
        state.groups.add(group_id)
        state.begun = True

    # -- partitions, where they have to be added

    def _may_write(self, place: TopicPartition) -> bool:
        may = self.state.may_write(place)
        if self.state.wanted:
            self.sender.start("partitions of the transaction", self._add_partitions)
        return may

    async def _add_partitions(self) -> None:
        state, identity = self.state, self.accumulator.identity
        while state.wanted and state.state in (State.OPEN, State.COMMITTING):
            places = set(state.wanted)

            def make(version: int, places: set[TopicPartition] = places) -> Any:
                return asks.add_partitions(version, state.transactional_id, identity, places)

            try:
                await self._ask(ApiKey.ADD_PARTITIONS_TO_TXN, self._own, make, asks.read_add_partitions)
            except RefusedBy:
                return  # the state knows, and who commits will hear of it
            state.added(places)
            self.sender.wake()

    def _batch_failed(self, error: CoterieError) -> None:
        self.state.batch_failed(error)
        self._stop_if_broken()

    def _stop_if_broken(self) -> None:
        """Send nothing more in a transaction that will be aborted, or at all by a producer of no more use."""
        if self.state.cause is not None and self.accumulator.abandoned is None:
            self.sender.abandon(self.state.cause)

    # -- asking

    async def _ask(
        self,
        api_key: int,
        whom: Key,
        make: Maker,
        read: Callable[[Any], Code],
        *,
        most: int | None = None,
        anew: bool = False,
    ) -> Any:
        """Return a coordinator's answer, or raise its refusal once the state knows.

        With `anew`, None if all that helps is to ask for the identity anew.
        """

        async def ask() -> Any:
            link = await self._link(whom)
            return await link.call(api_key, make, self.cluster.request_timeout_s, most=most)

        answered = self.sender.loop.create_future()
        if api_key not in ENDS:
            self._asked.add(answered)
        try:
            return await self._retrying(api_key, whom, ask, read)
        except asyncio.CancelledError:  # of whatever runs; what the coordinator has heard is not known
            if api_key not in ENDS:
                self.state.refused(
                    Verdict.ANEW, TransactionAborted("a question to its coordinator was cut off")
                )
                self._stop_if_broken()
            raise
        except ClientTimeout as error:
            if api_key == ApiKey.END_TXN:
                raise OutcomeUnknown(f"{error}; the next transaction asks on") from error
            if api_key != ApiKey.INIT_PRODUCER_ID:
                self.state.refused(Verdict.ANEW, error)
            self._stop_if_broken()
            raise
        except RefusedBy as error:
            self.state.refused(verdict(api_key, error.code), error)
            if anew and self.state.anew:
                return None
            self._stop_if_broken()
            raise
        finally:
            self._asked.discard(answered)
            answered.cancel()

    async def _retrying(
        self, api_key: int, whom: Key, ask: Callable[[], Awaitable[Any]], read: Callable[[Any], Code]
    ) -> Any:
        """Ask until there is an answer that counts; after max_block_ms raise ClientTimeout."""
        loop = self.sender.loop
        until = loop.time() + self.settings.max_block_ms / 1000
        backoff = self.cluster.backoff()
        soon = Backoff(CONCURRENT_BACKOFF_MS, CONCURRENT_BACKOFF_MS, jitter=jitter)
        while True:
            failure: CoterieError
            try:
                answer = await ask()
                code = read(answer)
            except RefusedBy as error:  # of the question where the coordinator is
                code, api, failure = error.code, ApiKey.FIND_COORDINATOR, error
            except (Disconnected, ClientTimeout) as error:
                code, api, failure = Code.NETWORK_EXCEPTION, api_key, error
            else:
                api, failure = api_key, refusal(api_key, code, self.state.transactional_id)
            how = verdict(api, code)
            if how is Verdict.DONE:
                return answer
            if how is Verdict.ELSEWHERE:
                self._coordinators.pop(whom, None)
            elif how is not Verdict.AGAIN:
                raise failure
            if api_key not in ENDS and self.state.state is State.ABORTING:
                raise ClientTimeout(f"{failure}; not tried again, as the transaction is aborted") from failure
            if loop.time() > until:
                raise ClientTimeout(f"{failure}; tried for {self.settings.max_block_ms} ms") from failure
            pauses = soon if code == Code.CONCURRENT_TRANSACTIONS else backoff
            await asyncio.sleep(pauses.next_ms() / 1000)

    async def _link_to_coordinator(self) -> Connection:
        return await self._link(self._own)

    async def _link(self, whom: Key) -> Connection:
        """Return the connection to a coordinator."""
        if whom not in self._coordinators:
            kind, key = whom
            self._coordinators[whom] = await self.cluster.coordinator(key, kind=kind)
        return await self.cluster.connection(self._coordinators[whom], purpose=PURPOSE)


def error_code(answer: Any) -> Code:
    """Return the code of an answer that has one."""
    return Code(answer.error_code)


def no_code(_: object) -> Code:
    """Return NONE: there is nothing to go wrong in what was asked for."""
    return Code.NONE
