"""Runs one member of a group on the running loop: does what it wants done, hands back the answers.

Why the swarm and the simulator do not run theirs by it: docs/decisions/0019-three-that-run-a-member.md.
"""

import asyncio
import inspect
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from coterie.base.codes import Code
from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.client import member as m
from coterie.client.consumer.listener import RebalanceListener
from coterie.client.errors import ClientTimeout, Closed, Disconnected, ListenerFailed, Unsupported
from coterie.client.member.backoff import Backoff
from coterie.client.member.exchanges import LEAVE_TIMEOUT_MS, Exchange, exchange_of
from coterie.client.member.reactions import Reaction, to_commit
from coterie.client.net import messages
from coterie.client.net.addresses import Address
from coterie.client.net.cluster import Cluster
from coterie.client.net.connection import Maker
from coterie.client.net.jitter import jitter
from coterie.client.net.messages import TopicInfo
from coterie.security.sasl import AuthenticationFailed
from coterie.wire.api.apis import ApiKey

log = logging.getLogger("coterie.client")

Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]
# The longest sleep: the application may have gone meanwhile.
LONGEST_WAIT_S = 0.25
# A coordinator names a new member at once; those before 2.2 keep it waiting until the group is complete.
NAME_TIMEOUT_S = 1.0
# What does not pass by waiting for the topic.
NEVER_THERE = frozenset({Code.TOPIC_AUTHORIZATION_FAILED, Code.INVALID_TOPIC_EXCEPTION})
CLOSE_TIMEOUT_S = 30.0
NAMED = 10  # of the partitions of which it is told that they may not be committed
# How long tasks that were cancelled may take to end: the application's listener may be among them.
END_TIMEOUT_S = 5.0
# Heartbeats and commits go where the cluster's questions about offsets go. What a broker parks must not: it
# holds up what is sent after it, so each member's joins and syncs have a connection to themselves.
PROMPT = "offsets"


def offset_of(one: int | OffsetAndMetadata) -> int:
    """Return the offset to commit."""
    return one if isinstance(one, int) else one.offset


def always() -> bool:
    """Return True: the application is there."""
    return True


class Calling:
    """A call of the application's listener. It is found by all that the call does, in other tasks too."""

    def __init__(self, membership: "Membership") -> None:
        self.membership = membership
        self.over = False


CALLING: ContextVar[Calling | None] = ContextVar("a call of a rebalance listener", default=None)


def caller() -> "Membership | None":
    """Return the membership that waits for the listener's method which this is part of, None outside."""
    calling = CALLING.get()
    return None if calling is None or calling.over else calling.membership


class Membership:
    """A member of a group and the tasks that run it."""

    def __init__(
        self,
        cluster: Cluster,
        settings: m.MemberSettings,
        topics: Iterable[str] | re.Pattern[str],
        *,
        listener: RebalanceListener | None = None,
        progress: Callable[[], Mapping[TopicPartition, OffsetAndMetadata]] | None = None,
        applied: Callable[[frozenset[TopicPartition]], None] | None = None,
        alive: Callable[[], bool] = always,
        after: Collection[asyncio.Task[None]] = (),
    ) -> None:
        """`progress` returns the consumed positions; with it the member commits them by itself.

        `applied` is told what may be fetched and handed out, whenever that changes, or the generation that
        gave it. The member joins when the tasks are done that it comes `after`.
        """
        self.cluster, self.settings, self.alive = cluster, settings, alive
        self.listener = listener or RebalanceListener()
        self.clock = asyncio.get_running_loop()
        self.member = m.Member(
            settings, topics, now_ms=self.now_ms(), auto_commit=progress is not None, jitter=jitter
        )
        self.changed = asyncio.Event()
        """Set whenever the member's state may have moved."""
        self._progress, self._applied = progress, applied
        self._safe: dict[TopicPartition, int] = {}
        """Up to where each partition is known to be committed by this member."""
        self._last_applied: tuple[frozenset[TopicPartition], m.Generation] = (frozenset(), m.NO_GENERATION)
        self._woken = asyncio.Event()
        self._address: Address | None = None
        self._parked = f"joins of {id(self)}"
        self._failure: BaseException | None = None
        self._missing: set[str] = set()
        self._refusal: CoterieError | None = None
        """What is to be raised once: a topic that waiting will not bring."""
        self.trouble = ""
        """What the last answer that did not come failed by, until one comes."""
        self._uncommitted: Code = Code.NONE
        """Why what was consumed is not committed, as far as that was tried last."""
        self._closed = False
        self._abandoned = False
        self._after = after
        self._under_way: dict[asyncio.Task[None], m.Request] = {}
        self._task = asyncio.create_task(self._run(), name=f"member of {settings.group_id}")

    def now_ms(self) -> int:
        """Return the loop's time in milliseconds."""
        return int(self.clock.time() * 1000)

    # For the reader

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that are this member's."""
        return self.member.owned

    @property
    def generation(self) -> m.Generation:
        """The member's place in the group."""
        return self.member.generation

    @property
    def missing(self) -> frozenset[str]:
        """The topics that are subscribed to, and were not there when they were looked at last."""
        return frozenset(self._missing)

    def calls_in(self, task: "asyncio.Task[Any] | None") -> bool:
        """Whether this very task runs a method of the listener."""
        return task in self._under_way and caller() is self

    def handed_out(self) -> None:
        """Note that records are handed out now, or that there are none."""
        self.member.handed_out()

    def group_metadata(self) -> m.GroupMetadata:
        """Return the member's identity, for a producer that commits offsets in its transactions.

        It is that of the generation whose records were handed out last; in a method of the listener that of
        now, as what is given up there may be committed still.
        """
        return self.member.metadata(current=caller() is self)

    def called(self) -> None:
        """Note a sign of life of the application; raise what it has to hear of (CP-2, CP-3)."""
        failure = self._failure or self.member.failure
        if failure is not None:
            raise failure
        self.note_alive()
        self._raise_pending_error()
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise refusal

    def note_alive(self) -> None:
        """Note a sign of life of an application that is not there to hear of anything."""
        self.member.called(self.now_ms())
        self.wake()

    def _raise_pending_error(self) -> None:
        pending_error = self.member.pending_error()
        if isinstance(pending_error, Exception) and not isinstance(pending_error, CoterieError):
            group_id = self.settings.group_id
            raise ListenerFailed(
                f"group {group_id}: the rebalance listener or the assignor raised {pending_error!r};"
                " the member goes on"
            ) from pending_error
        if pending_error is not None:
            raise pending_error

    def hold(self) -> None:
        """Note that the application works on what it was handed: a rebalance waits for `release`."""
        self.member.hold()

    def release(self) -> None:
        """Note that the application is done with it."""
        self.member.release()
        self.wake()

    def subscribe(self, topics: Iterable[str] | re.Pattern[str]) -> None:
        """Change the subscription; the group is told at once."""
        self.member.subscribe(topics, self.now_ms())
        self.wake()

    def unsubscribe(self) -> None:
        """Give everything up and leave; `owned` is empty when that is done."""
        self.member.unsubscribe()
        self.wake()

    def enforce_rebalance(self, reason: str | None = None) -> None:
        """Have the group rebalance now; the brokers' log says why."""
        self.member.enforce_rebalance(reason, self.now_ms())
        self.wake()

    def part(self, done: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Note that this is how far the application has come: it reads nothing more for this member."""
        if self._progress is not None:
            self._progress = lambda: done
        self._applied = None

    def wake(self) -> None:
        """Let the member look again at what it wants."""
        self._woken.set()

    async def moved(self, timeout_s: float) -> None:
        """Wait until something may have changed, so long at most."""
        self.changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self.changed.wait()
        except TimeoutError:
            pass

    async def commit(self, offsets: Offsets, *, retry: bool = True) -> Code:
        """Commit as the member of this generation, and return NONE or why it was refused.

        REBALANCE_IN_PROGRESS: the partitions may be this member's again after the rebalance under way.
        UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION: they are not any more. Tries again while that may help, unless
        told not to, up to the time for a whole question to the cluster (CC-5); never in a later generation,
        before which others may have gone on. For no offsets nothing is sent (CC-4).
        """
        until = self.clock.time() + self.cluster.api_timeout_s
        backoff = Backoff(self.settings.retry_backoff_ms, self.settings.retry_backoff_max_ms, jitter=jitter)
        generation = self.member.generation
        while offsets:
            refusal = self.member.commit_refusal()
            if refusal or self.member.generation != generation:
                return refusal or Code.UNKNOWN_MEMBER_ID
            code = await self._send_commit(generation, offsets)
            answered = self.member.commit_answered(generation, code, self.now_ms())
            self.wake()
            if self.member.failure is not None:
                raise self.member.failure
            pause_s = backoff.next_ms() / 1000
            passes = to_commit(code) in (Reaction.AGAIN, Reaction.ELSEWHERE)
            if not passes or not retry or self.clock.time() + pause_s > until:
                return answered
            await asyncio.sleep(pause_s)
        return Code.NONE

    async def close(self, leave: bool | None = None, *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Commit, give everything up, and leave the group, all within that time.

        `leave` says whether to leave; None: unless the member is static (CV-2). If time runs out, or this is
        cancelled, the coordinator is told all the same.
        """
        if self._closed:
            return
        self._closed = True
        reached = {} if self._progress is None else self._progress()
        patience_s = END_TIMEOUT_S
        try:
            async with asyncio.timeout(timeout_s):
                await self._resign(leave, timeout_s)
        except TimeoutError:
            group_id, patience_s = self.settings.group_id, LEAVE_TIMEOUT_MS / 1000
            log.warning("group %s: closed before all was done%s", group_id, self._not_known_safe(reached))
        else:
            self._report_uncommitted(reached)
        finally:
            await self.cut(leave, patience_s=patience_s)
        self._raise_pending_error()

    def _report_uncommitted(self, reached: Offsets) -> None:
        if self._uncommitted:
            log.warning(
                "group %s: its last commit failed (%s): what was read since the one before is read again%s",
                self.settings.group_id,
                self._uncommitted.name,
                self._not_known_safe(reached),
            )

    def _not_known_safe(self, reached: Offsets) -> str:
        """Return the positions that are not known to be committed, as the end of a sentence."""
        missing = [
            f"{at} up to {offset_of(one)}"
            for at, one in reached.items()
            if self._safe.get(at) != offset_of(one)
        ]
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        return f"; not known to be committed: {', '.join(missing[:NAMED])}{more}" if missing else ""

    async def cut(self, leave: bool | None = None, *, patience_s: float = END_TIMEOUT_S) -> None:
        """End at once; if the member is in the group, the coordinator is told where that can be done soon."""
        try:
            await self._leave_soon(leave, patience_s)
        finally:
            await self.abandon()

    async def _named(self) -> None:
        """Wait a moment for the name that the coordinator is about to give to this member.

        It could not leave without: the group would wait, for a session, for one that never comes.
        """
        joins = [
            task
            for task, request in self._under_way.items()
            if isinstance(request, m.Join) and not request.member_id
        ]
        if joins:
            await asyncio.wait(joins, timeout=NAME_TIMEOUT_S)

    async def _resign(self, leave: bool | None, timeout_s: float) -> None:
        await self._named()
        self.member.close(leave=leave, timeout_ms=int(timeout_s * 1000), now_ms=self.now_ms())
        self.wake()
        await asyncio.wait([self._task])
        if self._task.cancelled():  # by somebody who cancels whatever runs; leaving is to be done yet
            self._failure = None
            self._task = asyncio.create_task(self._run(), name=self._task.get_name())
            await asyncio.wait([self._task])

    async def _leave_soon(self, leave: bool | None, patience_s: float) -> None:
        if not self.alive() or self.member.phase is m.Phase.STOPPED or self._address is None:
            return
        await self._named()
        request = self.member.leave_at_once(leave, self.now_ms())
        if request is None:
            leaving = [task for task, out in self._under_way.items() if isinstance(out, m.Leave)]
            if leaving:
                await asyncio.wait(leaving, timeout=patience_s)
            return
        try:
            await self._send_leave(request, patience_s)
        except CoterieError as error:
            log.info("group %s: %s", self.settings.group_id, error)

    async def abandon(self) -> None:
        """End without a word: the group notices when the session ends."""
        self._closed = self._abandoned = True
        tasks = [self._task, *self._under_way]
        for task in tasks:
            task.cancel()
        _, left = await asyncio.wait(tasks, timeout=END_TIMEOUT_S)
        for task in left:
            log.warning(
                "group %s: %s does not end, though cancelled", self.settings.group_id, task.get_name()
            )

    # The tasks

    async def _run(self) -> None:
        try:
            if self._after:
                await asyncio.wait(self._after)
            while self.alive():
                request = self.member.next(self.now_ms())
                self._apply()
                if self.member.phase is m.Phase.STOPPED:
                    return
                if isinstance(request, m.Disconnect):
                    self._disconnect()
                elif isinstance(request, m.Wait):
                    await self._wait(request)
                else:
                    self._start(request)
            log.warning("group %s: the application is gone, no more heartbeats", self.settings.group_id)
        except Exception as error:  # noqa: BLE001  # the task's root: the next call of the reader raises it
            self._failure = error
        except asyncio.CancelledError:
            if not self._abandoned:
                group_id = self.settings.group_id
                self._failure = Closed(f"the task of the member of group {group_id} was cancelled: close it")
            raise
        finally:
            self.changed.set()

    def _apply(self) -> None:
        applied = fetchable, _ = self.member.fetchable, self.member.owned_in
        if applied != self._last_applied:
            self._last_applied = applied
            if self._applied is not None:
                self._applied(fetchable)
            self.changed.set()

    async def _wait(self, wait: m.Wait) -> None:
        if self._failure is not None:
            raise self._failure
        left_s = LONGEST_WAIT_S if wait.until_ms is None else (wait.until_ms - self.now_ms()) / 1000
        try:
            async with asyncio.timeout(min(LONGEST_WAIT_S, max(0.001, left_s))):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    def _start(self, request: m.Request) -> None:
        """Have a request carried out beside the others."""
        task = asyncio.create_task(self._perform(request), name=f"{request!r:.40}")
        self._under_way[task] = request
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        request = self._under_way.pop(task)
        if task.cancelled():
            self._cut_short(request)
        elif task.exception() is not None:
            self._failure = task.exception()
        self.changed.set()
        self.wake()

    def _cut_short(self, request: m.Request) -> None:
        """Go on though a task was cancelled by somebody else, who cancels whatever runs."""
        if self._abandoned:
            return
        if isinstance(request, m.Call):
            what = f"group {self.settings.group_id}: on_partitions_{request.kind} was cancelled"
            self.member.called_back(ListenerFailed(f"{what}; the member goes on"), self.now_ms())
        else:
            self.member.unanswered(request, self.now_ms())

    def _disconnect(self) -> None:
        if self._address is not None:
            for purpose in (self._parked, PROMPT):
                self.cluster.drop(self._address, purpose=purpose)

    async def _perform(self, request: m.Request) -> None:
        """Carry out a request and hand the answer to the member."""
        try:
            await self._carry_out(request)
            self.trouble = ""
        except (Disconnected, ClientTimeout) as error:
            log.info("group %s: %s", self.settings.group_id, error)
            self.trouble = str(error)
            self.member.unanswered(request, self.now_ms())
        except AuthenticationFailed as error:  # it may be mended; the application is told
            self._refusal, self.trouble = error, str(error)
            self.member.unanswered(request, self.now_ms())

    async def _carry_out(self, request: m.Request) -> None:
        match request:
            case m.FindCoordinator():
                await self._find()
            case m.RefreshMetadata():
                await self._refresh_metadata(request)
            case m.Join() | m.Sync() | m.Heartbeat():
                await self._exchange(request)
            case m.Commit():
                await self._commit(request)
            case m.Call():
                await self._call_listener(request)
            case m.Leave():
                await self._leave(request)
            case m.DescribeGroup():
                await self._describe_group(request)

    async def _find(self) -> None:
        code = Code.NONE
        try:
            self._address = await self.cluster.coordinator(self.settings.group_id)
        except RefusedBy as error:
            code = error.code
        self.member.found(code, self.now_ms())

    async def _refresh_metadata(self, request: m.RefreshMetadata) -> None:
        found = await self.cluster.metadata(request.topics)
        everything = request.topics is None
        if not everything:
            self._report_missing(found.topics)
        self.member.metadata_received(request, found.assignable(internal=not everything), self.now_ms())

    def _report_missing(self, found: Mapping[str, TopicInfo]) -> None:
        """Say, once, which of the topics are not there; raise it where this client may not see one."""
        missing = {topic for topic in self.member.topics & found.keys() if not found[topic].leaders}
        for topic in sorted(missing - self._missing):
            refusal = RefusedBy(found[topic].code, f"topic {topic}")
            log.warning(
                "group %s: nothing is read of topic %s now: %s", self.settings.group_id, topic, refusal
            )
            if refusal.code in NEVER_THERE:
                self._refusal = refusal
        self._missing = missing

    async def _ask(self, api_key: int, make: Maker, timeout_s: float, purpose: str) -> Any:
        """Ask the coordinator, on connections that no data goes over (CL-2)."""
        if self._address is None:
            raise Disconnected("the coordinator is not known")
        connection = await self.cluster.connection(self._address, purpose=purpose)
        return await connection.call(api_key, make, timeout_s)

    def _exchange_of(self, request: m.Coordinated) -> Exchange:
        timeout_ms = int(self.cluster.request_timeout_s * 1000)
        return exchange_of(self.member, self.settings, request, timeout_ms=timeout_ms)

    async def _exchange(self, request: m.Coordinated) -> None:
        """Have the coordinator asked what the member wants, and tell the member what it answers."""
        exchange = self._exchange_of(request)
        purpose = self._parked if exchange.parked else PROMPT
        answer = await self._ask(exchange.api_key, exchange.make, exchange.timeout_ms / 1000, purpose)
        found = exchange.read(answer)
        if isinstance(request, m.Join):  # others are told of by their partitions, of which nothing is read
            self.cluster.note_answer(f"JoinGroup of {self.settings.group_id}", found.code)
        exchange.deliver(found, self.now_ms())

    async def _commit(self, request: m.Commit) -> None:
        """Commit what is consumed of the partitions that the member names."""
        assert self._progress is not None
        consumed = {one: at for one, at in self._progress().items() if one in request.partitions}
        code = await self._send_commit(request.generation, consumed) if consumed else Code.NONE
        if code:
            log.info("group %s: automatic commit: %s", self.settings.group_id, code.name)
        self._uncommitted = code
        self.member.committed(request, code, self.now_ms())

    async def _send_commit(self, generation: m.Generation, offsets: Offsets) -> Code:
        """Return the code of the coordinator's answer to a commit, NETWORK_EXCEPTION without one."""
        settings = self.settings
        try:
            answer = await self._ask(
                ApiKey.OFFSET_COMMIT,
                lambda version: messages.offset_commit(
                    version,
                    settings.group_id,
                    offsets,
                    generation=generation.id,
                    member_id=generation.member_id,
                    instance_id=settings.instance_id,
                ),
                self.cluster.request_timeout_s,
                PROMPT,
            )
        except (Disconnected, ClientTimeout) as error:
            log.info("group %s: commit: %s", settings.group_id, error)
            return Code.NETWORK_EXCEPTION
        code = messages.read_offset_commit(answer)
        if not code:
            self._safe.update((at, offset_of(one)) for at, one in offsets.items())
        return code

    async def _describe_group(self, request: m.DescribeGroup) -> None:
        try:
            await self._exchange(request)
        except Unsupported as error:  # what it gets serves it as well as Java's
            log.info("group %s: %s", self.settings.group_id, error)
            self.member.group_described(request, m.GroupDescription(Code.UNSUPPORTED_VERSION), self.now_ms())

    async def _call_listener(self, request: m.Call) -> None:
        """Call the application; whatever it raises is told to it, and the member goes on."""
        names = ", ".join(map(str, request.partitions)) or "nothing"
        place = self.member.generation
        log.info("group %s generation %d: %s %s", self.settings.group_id, place.id, request.kind, names)
        method = getattr(self.listener, f"on_partitions_{request.kind}")
        raised: BaseException | None = None
        calling = Calling(self)
        CALLING.set(calling)  # for this task and those that it makes
        try:
            answer = method(request.partitions)
            if inspect.isawaitable(answer):
                await answer
        except Exception as error:  # noqa: BLE001  # the application's own code
            raised = error
        finally:
            calling.over = True
        self.member.called_back(raised, self.now_ms())

    async def _leave(self, request: m.Leave) -> None:
        """Leave, once, whatever comes of it, and soon."""
        await self._send_leave(request, LEAVE_TIMEOUT_MS / 1000)
        self.member.left(request)

    async def _send_leave(self, request: m.Leave, timeout_s: float) -> None:
        exchange = self._exchange_of(request)
        try:
            async with asyncio.timeout(timeout_s):
                await self._ask(exchange.api_key, exchange.make, timeout_s, PROMPT)
        except TimeoutError:
            raise ClientTimeout(f"LeaveGroup: no answer within {timeout_s:g} s") from None
