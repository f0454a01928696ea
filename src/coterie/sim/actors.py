"""Readers: applications that are members of a group through the production client, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client import member as m
from coterie.client import messages
from coterie.client.errors import RETRIABLE
from coterie.client.member import Member, MemberSettings, Phase
from coterie.sim.client import Client
from coterie.sim.cluster import Broker, Cluster
from coterie.wire.apis import ApiKey

__all__ = ["RUBBISH", "Reader"]

RUBBISH = (
    b"",
    b"\x00",
    b"\x00\x01\xff",
    b"\x00\x00\x7f\xff\xff\xff",
    b"\x00\x00\x00\x00\x00\x01\x00\xff",
    b"\xff" * 9,
)


class Rude(Member):
    """A member whose subscription nobody can read."""

    rubbish = RUBBISH[0]

    def _protocols(self) -> tuple[tuple[str, bytes], ...]:
        return tuple((name, self.rubbish) for name in self.settings.assignors)


class Reader(Client):
    """An application that reads its share of some topics and commits how far it came.

    It runs the production member the way `client.membership` does, in virtual time.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        *,
        group_id: str,
        topics: tuple[str, ...],
        instance_id: str | None = None,
        malformed: bool = False,
    ) -> None:
        super().__init__(cluster, name)
        options = cluster.options
        self.group_id = group_id
        self.malformed = malformed
        self.settings = MemberSettings(
            group_id=group_id,
            instance_id=instance_id,
            session_timeout_ms=options.session_ms,
            heartbeat_interval_ms=options.heartbeat_ms,
            max_poll_interval_ms=options.rebalance_ms,
            assignors=options.assignors,
            retry_backoff_ms=options.session_ms // 40,
        )
        self.member: Member = (Rude if malformed else Member)(self.settings, topics, now_ms=self.world.now_ms)
        if isinstance(self.member, Rude):
            self.member.rubbish = self.world.random.choice(RUBBISH)
        self.coordinator: Broker | None = None
        self.leaving = False
        self.positions: dict[TopicPartition, int] = {}
        self._positions_of: m.Generation | None = None
        self._asking = False
        self._wake_at: int | None = None
        self._stalled_until = 0
        self._poll()

    # -- the application

    def stall(self, span_ms: int) -> None:
        """Do not poll for so long: the application is busy with something else."""
        self._stalled_until = self.world.now_ms + span_ms

    def wake_up(self) -> None:
        """Go on, and poll again."""
        self._stalled_until = 0
        super().wake_up()

    def leave(self) -> None:
        """Close: leave the group politely, and be gone a little later."""
        request = self.member.stop()
        self.leaving = True
        if isinstance(request, m.Leave):
            self._send_leave(request)
        self.world.later(2_000, self.kill)

    def _poll(self) -> None:
        """Show a sign of life, look at the cluster now and then, and work on what is owned."""
        if self.leaving:
            return
        if self.world.now_ms >= self._stalled_until:
            self.member.called(self.world.now_ms)
            if self.world.chance(0.3):
                self._work()
            if self.world.chance(0.15):
                self._look_at_cluster()
        self._run()
        self.later(self.options.poll_ms, self._poll)

    def _look_at_cluster(self) -> None:
        def done(answer: Any) -> None:
            if answer is not None:
                counts = messages.read_metadata(answer).partition_counts()
                self.member.cluster_changed(counts, self.world.now_ms)
                self._run()

        version = self.version(ApiKey.METADATA)
        request = messages.metadata(version, self.member.watched)
        self.call(
            self._anyone(), request, timeout_ms=self.options.request_timeout_ms, done=done, purpose="data"
        )

    def _work(self) -> None:
        """Read a batch and commit it, if the member may: it knows first where it was left off."""
        member = self.member
        if not member.ready or member.busy or self.coordinator is None or not member.owned:
            return
        if self._positions_of != member.generation:
            self._fetch_positions(member.generation)
            return
        member.hold()
        self.later(self.world.between(0, self.options.poll_ms), self._commit, member.generation)

    def _fetch_positions(self, generation: m.Generation) -> None:
        owned = self.member.owned

        def done(answer: Any) -> None:
            if answer is None or self.member.generation != generation:
                return
            code, found = messages.read_offset_fetch(answer)
            if code:
                self.member.coordinator_known = self.member.coordinator_known and code in (
                    Code.COORDINATOR_LOAD_IN_PROGRESS,
                    Code.UNSTABLE_OFFSET_COMMIT,
                )
                return
            self.positions = {one: found.get(one) or 0 for one in owned}
            self._positions_of = generation

        request = messages.offset_fetch(self.version(ApiKey.OFFSET_FETCH), self.group_id, sorted(owned))
        self._ask(request, done, purpose="offsets")

    def _commit(self, generation: m.Generation, tries: int = 3) -> None:
        """Commit what was read; again if it is not known whether it was carried out."""
        member = self.member
        if member.generation != generation or not member.busy:
            return  # the batch is lost: another reads it
        offsets = {one: self.positions[one] + self.world.between(1, 5) for one in sorted(self.positions)}
        self._send_commit(generation, offsets, tries)

    def _send_commit(self, generation: m.Generation, offsets: dict[TopicPartition, int], tries: int) -> None:
        def done(answer: Any) -> None:
            code = None if answer is None else messages.read_offset_commit(answer)
            if (code is None or code in RETRIABLE) and tries and not self.leaving:
                self.later(self.settings.retry_backoff_ms, self._send_commit, generation, offsets, tries - 1)
                return
            self._committed(generation, offsets, code)

        request = messages.offset_commit(
            self.version(ApiKey.OFFSET_COMMIT),
            self.group_id,
            offsets,
            generation=generation.id,
            member_id=generation.member_id,
            instance_id=self.settings.instance_id,
        )
        self._ask(request, done, purpose="offsets")

    def _committed(
        self, generation: m.Generation, offsets: dict[TopicPartition, int], code: Code | None
    ) -> None:
        member = self.member
        if code is Code.NONE and self._positions_of == generation:
            self.positions = offsets
        elif code is not None:
            member.refused_commit(generation, code, self.world.now_ms)
        if member.generation == generation:
            member.release()
        if code is None or code in RETRIABLE:
            self._positions_of = None  # not known: ask where the group stands
        self._run()

    # -- the member, as client.membership runs it

    def _run(self) -> None:
        """Ask the member what it wants, until it waits or an answer is awaited."""
        if self._asking or self.leaving or not self.running:
            return
        if self.member.phase is Phase.FAILED:
            return
        request = self.member.next(self.world.now_ms)
        match request:
            case m.Wait(until_ms=until_ms):
                self._wait(until_ms)
            case m.FindCoordinator():
                self._find()
            case m.Join():
                self._join(request)
            case m.Count(topics=topics):
                self._count(topics)
            case m.Sync():
                self._sync(request)
            case m.Heartbeat(generation=generation):
                self._heartbeat(generation)
            case m.Leave():
                self._send_leave(request)
                self._run()

    def _wait(self, until_ms: int | None) -> None:
        if until_ms is None or (self._wake_at is not None and self.world.now_ms < self._wake_at <= until_ms):
            return
        self._wake_at = until_ms
        self.later(until_ms - self.world.now_ms, self._woken, until_ms)

    def _woken(self, at_ms: int) -> None:
        if self._wake_at == at_ms:
            self._wake_at = None
        self._run()

    def _anyone(self) -> Broker:
        return self.world.random.choice(list(self.cluster.brokers.values()))

    def _ask(self, request: Any, done: Any, *, timeout_ms: int = 0, purpose: str = "group") -> None:
        """Ask the coordinator that is known."""
        broker = self.coordinator
        assert broker is not None
        self.call(
            broker,
            request,
            timeout_ms=timeout_ms or self.options.request_timeout_ms,
            done=done,
            purpose=purpose,
        )

    def _ask_for_member(self, request: Any, done: Any, *, timeout_ms: int = 0) -> None:
        """Ask for the member: no other of its requests is sent until the answer is there, or never comes."""
        self._ask(request, self._asked(self._unless_lost(done)), timeout_ms=timeout_ms)

    def _asked(self, done: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return who takes the member's next answer, None if it never comes: the member goes on after it."""
        self._asking = True

        def told(answer: Any) -> None:
            self._asking = False
            if not self.leaving:
                done(answer)
                self._run()

        return told

    def _unless_lost(self, done: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return who takes an answer, and has the member know if none came."""

        def told(answer: Any) -> None:
            if answer is None:
                self.member.lost_connection(self.world.now_ms)
            else:
                done(answer)

        return told

    def _ask_anyone(self, request: Any, done: Callable[[Any], None]) -> None:
        """Ask for the member any broker that there is."""
        self.call(
            self._anyone(),
            request,
            timeout_ms=self.options.request_timeout_ms,
            done=self._asked(done),
            purpose="data",
        )

    def _find(self) -> None:
        def done(answer: Any) -> None:
            code = Code.NETWORK_EXCEPTION
            if answer is not None:
                (found,) = answer.coordinators
                code = Code(found.error_code)
                if not code:
                    self.coordinator = self.cluster.at(found.host)
            self.member.found(code, self.world.now_ms)

        self._ask_anyone(
            messages.find_coordinator(self.version(ApiKey.FIND_COORDINATOR), self.group_id), done
        )

    @property
    def _patience_ms(self) -> int:
        return max(self.options.request_timeout_ms, self.options.rebalance_ms + 5_000)

    def _join(self, wanted: m.Join) -> None:
        request = messages.join_group(
            self.version(ApiKey.JOIN_GROUP),
            group_id=self.group_id,
            member_id=wanted.member_id,
            instance_id=self.settings.instance_id,
            session_timeout_ms=self.settings.session_timeout_ms,
            rebalance_timeout_ms=self.settings.max_poll_interval_ms,
            protocols=wanted.protocols,
            reason=wanted.reason,
        )

        def done(answer: Any) -> None:
            self.member.joined(messages.read_join(answer), self.world.now_ms)

        self._ask_for_member(request, done, timeout_ms=self._patience_ms)

    def _count(self, topics: frozenset[str]) -> None:
        def done(answer: Any) -> None:
            self.member.counted(messages.read_metadata(answer).partition_counts())

        request = messages.metadata(self.version(ApiKey.METADATA), topics)
        self._ask_anyone(request, self._unless_lost(done))

    def _sync(self, wanted: m.Sync) -> None:
        generation = wanted.generation
        request = messages.sync_group(
            self.version(ApiKey.SYNC_GROUP),
            group_id=self.group_id,
            generation=generation.id,
            member_id=generation.member_id,
            instance_id=self.settings.instance_id,
            protocol=generation.protocol,
            assignments=wanted.assignments,
        )

        def done(answer: Any) -> None:
            self.member.synced(Code(answer.error_code), answer.assignment, self.world.now_ms)
            if self.member.phase is Phase.STABLE:
                self.world.tell(f"{self.name} owns {len(self.member.owned)} in {generation.id}")
                owner = self.settings.instance_id or generation.member_id
                self.cluster.checks.believes(owner, self.group_id, generation, self.member.owned)

        self._ask_for_member(request, done, timeout_ms=self._patience_ms)

    def _heartbeat(self, generation: m.Generation) -> None:
        request = messages.heartbeat(
            self.version(ApiKey.HEARTBEAT),
            group_id=self.group_id,
            generation=generation.id,
            member_id=generation.member_id,
            instance_id=self.settings.instance_id,
        )

        def done(answer: Any) -> None:
            self.member.heard(generation, Code(answer.error_code), self.world.now_ms)

        timeout_ms = min(self.options.request_timeout_ms, self.settings.session_timeout_ms)
        self._ask_for_member(request, done, timeout_ms=timeout_ms)

    def _send_leave(self, wanted: m.Leave) -> None:
        if self.coordinator is None:
            return
        request = messages.leave_group(
            self.version(ApiKey.LEAVE_GROUP),
            group_id=self.group_id,
            member_id=wanted.member_id,
            reason=wanted.reason,
        )
        self.call(self.coordinator, request, timeout_ms=2_000, done=lambda answer: None, purpose="offsets")

    # -- how it stands

    def pending(self) -> str:
        """Return why this reader is not at work, "" if it is."""
        member = self.member
        if member.phase is Phase.FAILED:
            return f"{self.name} has failed: {member.failure}"
        if not member.ready:
            wants = f", wants to rejoin: {member.rejoin_why}" if member.rejoin_why else ""
            return f"{self.name} is {member.phase.value} in {member.generation}{wants}"
        return ""
