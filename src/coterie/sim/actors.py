"""Readers: applications that are members of a group through the production client, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coterie.base.codes import Code
from coterie.base.ids import TopicPartition
from coterie.client import member as m
from coterie.client import messages
from coterie.client.errors import RETRIABLE
from coterie.client.member import Member, MemberSettings, Phase
from coterie.sim.client import Client, Done
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
        return tuple((name, self.rubbish) for name in self.assignors)


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
            retry_backoff_max_ms=options.session_ms // 10,
            metadata_max_age_ms=6 * options.poll_ms,
        )
        self.member = self._a_member(topics)
        self.coordinator: Broker | None = None
        self.leaving = False
        self.positions: dict[TopicPartition, int] = {}
        self._positions_of: m.Generation | None = None
        self._working = False
        self._wake_at: int | None = None
        self._stalled_until = 0
        self._poll()

    def _a_member(self, topics: tuple[str, ...]) -> Member:
        random = self.world.random
        terms: dict[str, Any] = {
            "now_ms": self.world.now_ms,
            "jitter": lambda: random.uniform(0.8, 1.2),
        }
        if not self.malformed:
            return Member(self.settings, topics, **terms)
        rude = Rude(self.settings, topics, **terms)
        rude.rubbish = random.choice(RUBBISH)
        return rude

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
        self.leaving = True
        self.member.close(leave=None, timeout_ms=2_000, now_ms=self.world.now_ms)
        self._run()
        self.world.later(2_000, self.kill)

    def _poll(self) -> None:
        """Show a sign of life, and work on what is owned."""
        if self.leaving:
            return
        if self.world.now_ms >= self._stalled_until:
            self.member.called(self.world.now_ms)
            self.member.complaint()
            if self.world.chance(0.3):
                self._work()
        self._run()
        self.later(self.options.poll_ms, self._poll)

    def _work(self) -> None:
        """Read a batch and commit it, if the member may: it knows first where it was left off."""
        member = self.member
        if not member.ready or self._working or self.coordinator is None or not member.owned:
            return
        if self._positions_of != member.generation:
            self._fetch_positions(member.generation)
            return
        self._working = True
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
        if self.member.generation != generation or not self.member.held:
            self._worked()  # the batch is lost: another reads it
            return
        offsets = {one: self.positions[one] + self.world.between(1, 5) for one in sorted(self.positions)}
        self._send_commit(generation, offsets, tries)

    def _worked(self) -> None:
        self._working = False
        self.member.release()
        self._run()

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
        if code is Code.NONE and self._positions_of == generation:
            self.positions = offsets
        elif code is not None:
            self.member.commit_answered(generation, code, self.world.now_ms)
        if code is None or code in RETRIABLE:
            self._positions_of = None  # not known: ask where the group stands
        self._worked()

    # -- the member, as client.membership runs it

    def _run(self) -> None:
        """Do all that the member wants done now; what it waits for comes later."""
        while self.running and self.member.phase not in (Phase.FAILED, Phase.STOPPED):
            request = self.member.next(self.world.now_ms)
            if isinstance(request, m.Wait):
                self._wait(request.until_ms)
                return
            CARRY_OUT[type(request)](self, request)

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

    def _ask(self, request: Any, done: Done, *, timeout_ms: int = 0, purpose: str = "group") -> None:
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

    def _told(self, wanted: m.Request, done: Done) -> Done:
        """Return what hands an answer to the member, or word that none will come; then it goes on."""

        def told(answer: Any) -> None:
            if answer is None:
                self.member.unanswered(wanted, self.world.now_ms)
            else:
                done(answer)
            self._run()

        return told

    def _break(self, wanted: m.HangUp) -> None:
        """Break the connections to the coordinator."""
        if self.coordinator is not None:
            for purpose in ("group", "offsets"):
                self.break_off(self.coordinator, purpose)

    def _find(self, wanted: m.FindCoordinator) -> None:
        def done(answer: Any) -> None:
            (found,) = answer.coordinators
            code = Code(found.error_code)
            if not code:
                self.coordinator = self.cluster.at(found.host)
            self.member.found(code, self.world.now_ms)

        request = messages.find_coordinator(self.version(ApiKey.FIND_COORDINATOR), self.group_id)
        self._ask_anyone(request, self._told(wanted, done))

    def _look(self, wanted: m.Look) -> None:
        def done(answer: Any) -> None:
            found = messages.read_metadata(answer).assignable(internal=wanted.topics is not None)
            self.member.looked(wanted, found, self.world.now_ms)

        request = messages.metadata(self.version(ApiKey.METADATA), wanted.topics)
        self._ask_anyone(request, self._told(wanted, done))

    def _ask_anyone(self, request: Any, done: Done) -> None:
        self.call(
            self._anyone(), request, timeout_ms=self.options.request_timeout_ms, done=done, purpose="data"
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
            self.member.joined(wanted, m.Joined.of(answer), self.world.now_ms)

        self._ask(request, self._told(wanted, done), timeout_ms=self._patience_ms)

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
            self.member.synced(wanted, m.Synced.of(answer), self.world.now_ms)

        self._ask(request, self._told(wanted, done), timeout_ms=self._patience_ms)

    def _heartbeat(self, wanted: m.Heartbeat) -> None:
        generation = wanted.generation
        request = messages.heartbeat(
            self.version(ApiKey.HEARTBEAT),
            group_id=self.group_id,
            generation=generation.id,
            member_id=generation.member_id,
            instance_id=self.settings.instance_id,
        )

        def done(answer: Any) -> None:
            self.member.heard(wanted, Code(answer.error_code), self.world.now_ms)

        timeout_ms = min(self.options.request_timeout_ms, self.settings.session_timeout_ms)
        self._ask(request, self._told(wanted, done), timeout_ms=timeout_ms, purpose="offsets")

    def _call_back(self, wanted: m.Call) -> None:
        """Be the listener: note what is owned now."""
        member = self.member
        if wanted.kind == "assigned" and member.generation.valid:
            place = member.generation
            self.world.tell(f"{self.name} owns {len(member.owned)} in {place.id}")
            owner = self.settings.instance_id or place.member_id
            self.cluster.checks.believes(owner, self.group_id, place, member.owned)
        member.called_back(None, self.world.now_ms)

    def _leave(self, wanted: m.Leave) -> None:
        request = messages.leave_group(
            self.version(ApiKey.LEAVE_GROUP),
            group_id=self.group_id,
            member_id=wanted.member_id,
            reason=wanted.reason,
        )

        def done(answer: Any) -> None:
            self.member.left(wanted)

        self._ask(request, self._told(wanted, done), timeout_ms=2_000, purpose="offsets")

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


CARRY_OUT: Mapping[type[m.Request], Callable[[Reader, Any], None]] = {
    m.HangUp: Reader._break,
    m.FindCoordinator: Reader._find,
    m.Look: Reader._look,
    m.Join: Reader._join,
    m.Sync: Reader._sync,
    m.Heartbeat: Reader._heartbeat,
    m.Call: Reader._call_back,
    m.Leave: Reader._leave,
}
