"""Runs one member of a group on the running loop: sends what it wants sent, hands back the answers."""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from coterie.assign.registry import ASSIGNORS
from coterie.base.codes import Code
from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.client import member as m
from coterie.client import messages
from coterie.client.addresses import Address
from coterie.client.cluster import Cluster
from coterie.client.connection import Maker
from coterie.client.errors import ClientTimeout, Disconnected, WrongUse
from coterie.client.listener import RebalanceListener
from coterie.wire.apis import ApiKey

__all__ = ["Membership", "always"]

log = logging.getLogger("coterie.client")

# The longest sleep: the application may have gone meanwhile.
LONGEST_WAIT_S = 0.25
LEAVE_TIMEOUT_S = 2.0


def always() -> bool:
    """Return True: the application is there."""
    return True


class Membership:
    """A member of a group and the task that runs it."""

    def __init__(
        self,
        cluster: Cluster,
        settings: m.MemberSettings,
        topics: Iterable[str] | re.Pattern[str],
        *,
        alive: Callable[[], bool] = always,
        listener: RebalanceListener | None = None,
        progress: Callable[[], Mapping[TopicPartition, OffsetAndMetadata]] | None = None,
        applied: Callable[[frozenset[TopicPartition]], None] | None = None,
    ) -> None:
        if isinstance(topics, re.Pattern):
            raise WrongUse("patterns come with the next member")
        settings = replace(settings, assignors=tuple(one for one in settings.assignors if one in ASSIGNORS))
        self.cluster, self.settings, self.alive = cluster, settings, alive
        self.clock = asyncio.get_running_loop()
        self._tells = (listener, progress, applied)
        self._told: frozenset[TopicPartition] = frozenset()
        self.member = m.Member(settings, topics, now_ms=self.now_ms())
        self.changed = asyncio.Event()
        """Set whenever the member's state may have moved."""
        self._nudged = asyncio.Event()
        self._address: Address | None = None
        self._failure: BaseException | None = None
        self._task = asyncio.create_task(self._run(), name=f"member of {settings.group_id}")

    def now_ms(self) -> int:
        """Return the loop's time in milliseconds."""
        return int(self.clock.time() * 1000)

    # For the reader

    def called(self) -> None:
        """Note a sign of life of the application; raise what ended the membership, if something did."""
        if self._failure is not None:
            raise self._failure
        if self.member.failure is not None:
            raise self.member.failure
        self.member.called(self.now_ms())
        self.nudge()

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What is ours now."""
        return self.member.owned

    def subscribe(self, topics: Iterable[str] | re.Pattern[str]) -> None:
        """Change the subscription."""
        assert not isinstance(topics, re.Pattern)
        self.member.subscribe(topics, self.now_ms())
        self.nudge()

    def enforce_rebalance(self, reason: str) -> None:
        """Join again."""
        self.member._want_rejoin(reason, now_ms=self.now_ms())
        self.nudge()

    def group_metadata(self) -> m.Generation:
        """Return the place in the group."""
        return self.member.generation

    async def _tell(self) -> None:
        """Tell of what changed hands."""
        listener, progress, applied = self._tells
        owned, told = self.member.owned, self._told
        if owned == told:
            return
        if told - owned and progress is not None:
            await self.commit({at: one for at, one in progress().items() if at in told})
        self._told = owned
        if applied is not None:
            applied(owned)
        if listener is None:
            return
        for told_of, method in ((told - owned, "revoked"), (owned - told, "assigned")):
            done = getattr(listener, f"on_partitions_{method}")(sorted(told_of))
            if done is not None:
                await done

    def release(self) -> None:
        """Note that no batch is under way."""
        self.member.release()
        self.nudge()

    def nudge(self) -> None:
        """Let the member look again at what it wants."""
        self._nudged.set()

    async def moved(self, timeout_s: float) -> None:
        """Wait until something may have changed, so long at most."""
        self.changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self.changed.wait()
        except TimeoutError:
            pass

    async def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]) -> Code:
        """Commit as the member of this generation; tell the member what a refusal means for it."""
        generation = self.member.generation
        code = await self.cluster.commit(
            self.settings.group_id,
            {at: one if isinstance(one, int) else one.offset for at, one in offsets.items()},
            generation=generation.id,
            member_id=generation.member_id,
            instance_id=self.settings.instance_id,
        )
        if code:
            self.member.refused_commit(generation, code, self.now_ms())
            self.nudge()
        return code

    async def close(self, leave: bool | None = None) -> None:
        """Stop, and leave the group unless the member is static."""
        if self._tells[1] is not None and self._told:
            await self.commit(self._tells[1]())
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        request = self.member.stop()
        if isinstance(request, m.Leave) and self.alive():
            await self._leave(request)

    # The task

    async def _run(self) -> None:
        try:
            while self.alive():
                request = self.member.next(self.now_ms())
                if isinstance(request, m.Wait):
                    await self._wait(request)
                else:
                    await self._perform(request)
                    await self._tell()
                    self.changed.set()
            log.warning("group %s: the application is gone, no more heartbeats", self.settings.group_id)
        except Exception as error:  # noqa: BLE001  # the task's root: the next call of the reader raises it
            self._failure = error
        finally:
            self.changed.set()

    async def _wait(self, wait: m.Wait) -> None:
        left_s = LONGEST_WAIT_S if wait.until_ms is None else (wait.until_ms - self.now_ms()) / 1000
        try:
            async with asyncio.timeout(min(LONGEST_WAIT_S, max(0.001, left_s))):
                await self._nudged.wait()
        except TimeoutError:
            pass
        self._nudged.clear()

    async def _perform(self, request: m.Request) -> None:
        """Send the request and hand the answer to the member."""
        try:
            match request:
                case m.FindCoordinator():
                    await self._find()
                case m.Join():
                    await self._join(request)
                case m.Count(topics=topics):
                    self.member.counted((await self.cluster.metadata(topics)).partition_counts())
                case m.Sync():
                    await self._sync(request)
                case m.Heartbeat(generation=generation):
                    await self._heartbeat(generation)
                case m.Leave():
                    await self._leave(request)
        except (Disconnected, ClientTimeout) as error:
            log.info("group %s: %s", self.settings.group_id, error)
            self._hang_up()
            self.member.lost_connection(self.now_ms())

    async def _find(self) -> None:
        code = Code.NONE
        try:
            self._address = await self.cluster.coordinator(self.settings.group_id)
        except RefusedBy as error:
            code = error.code
        self.member.found(code, self.now_ms())

    def _hang_up(self) -> None:
        if self._address is not None:
            self.cluster.drop(self._address, purpose="group")

    async def _call(self, api_key: int, make: Maker, timeout_s: float) -> Any:
        """Ask the coordinator, on the connection that has nothing but the member's requests."""
        assert self._address is not None
        connection = await self.cluster.connection(self._address, purpose="group")
        return await connection.call(api_key, make, timeout_s)

    async def _join(self, request: m.Join) -> None:
        settings = self.settings
        answer = await self._call(
            ApiKey.JOIN_GROUP,
            lambda version: messages.join_group(
                version,
                group_id=settings.group_id,
                member_id=request.member_id,
                instance_id=settings.instance_id,
                session_timeout_ms=settings.session_timeout_ms,
                rebalance_timeout_ms=settings.max_poll_interval_ms,
                protocols=request.protocols,
                reason=request.reason,
            ),
            max(self.cluster.request_timeout_s, settings.max_poll_interval_ms / 1000 + 5),
        )
        self.member.joined(joined(answer), self.now_ms())

    async def _sync(self, request: m.Sync) -> None:
        settings, generation = self.settings, request.generation
        answer = await self._call(
            ApiKey.SYNC_GROUP,
            lambda version: messages.sync_group(
                version,
                group_id=settings.group_id,
                generation=generation.id,
                member_id=generation.member_id,
                instance_id=settings.instance_id,
                protocol=generation.protocol,
                assignments=request.assignments,
            ),
            max(self.cluster.request_timeout_s, settings.max_poll_interval_ms / 1000 + 5),
        )
        self.member.synced(Code(answer.error_code), answer.assignment, self.now_ms())
        if self.member.phase is m.Phase.STABLE:
            owned = ", ".join(map(str, sorted(self.member.owned))) or "nothing"
            log.info("group %s generation %d: owns %s", settings.group_id, generation.id, owned)

    async def _heartbeat(self, generation: m.Generation) -> None:
        settings = self.settings
        answer = await self._call(
            ApiKey.HEARTBEAT,
            lambda version: messages.heartbeat(
                version,
                group_id=settings.group_id,
                generation=generation.id,
                member_id=generation.member_id,
                instance_id=settings.instance_id,
            ),
            min(self.cluster.request_timeout_s, settings.session_timeout_ms / 1000),
        )
        self.member.heard(generation, Code(answer.error_code), self.now_ms())

    async def _leave(self, request: m.Leave) -> None:
        """Leave politely; over the offsets' connection, since a parked join would hold up the member's."""
        if self._address is None:
            return
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                connection = await self.cluster.connection(self._address, purpose="offsets")
                await connection.call(
                    ApiKey.LEAVE_GROUP,
                    lambda version: messages.leave_group(
                        version,
                        group_id=self.settings.group_id,
                        member_id=request.member_id,
                        reason=request.reason,
                    ),
                    LEAVE_TIMEOUT_S,
                )
        except (CoterieError, TimeoutError) as error:
            log.info("group %s: leaving: %s", self.settings.group_id, error)


def joined(answer: Any) -> m.Joined:
    """Return what a JoinGroup answer says."""
    return m.Joined(
        code=Code(answer.error_code),
        generation=answer.generation_id,
        member_id=answer.member_id,
        protocol=answer.protocol_name or "",
        leader=answer.leader,
        members=tuple((one.member_id, one.group_instance_id, one.metadata) for one in answer.members),
        skip_assignment=getattr(answer, "skip_assignment", False),
    )
