"""The group member as a state machine, eager and cooperative. Pure: events in, requests out.

What the application does, and what it is called back for, goes through one **agenda**: steps of a rebalance
(or of leaving) that follow one another and may wait for an answer. The network goes on beside it: whoever is
in a generation heartbeats, whatever the agenda waits for.

    UNJOINED --agenda: commit, revoke or lose--> JOINING --> (ASSIGNING -->) SYNCING --> STABLE
                                                                      agenda: revoke, assign

A reader says `called` whenever it shows a sign of life, which `max.poll.interval.ms` counts from. While it
works on what it was handed it may `hold` the agenda: a rebalance waits until it says `release`, for the
rebalance timeout at most.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial

from coterie.assign.model import Assignor, Cluster, RebalanceProtocol
from coterie.assign.registry import new_assignor
from coterie.assign.vote import common_protocol
from coterie.base.codes import Code
from coterie.base.errors import Corrupt, CoterieError, RefusedBy
from coterie.base.ids import TopicPartition
from coterie.client.member.leader import Leadership, View, view_of
from coterie.client.member.pace import Backoff, steady
from coterie.client.member.reactions import (
    COMMIT,
    EXPLAINED,
    FIND,
    HEARTBEAT,
    JOIN,
    SYNC,
    Reaction,
    java_name,
)
from coterie.client.member.requests import (
    NOWHERE,
    Call,
    Commit,
    FindCoordinator,
    Generation,
    GroupMetadata,
    HangUp,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Look,
    Request,
    Sync,
    Synced,
    Wait,
)
from coterie.client.member.settings import MemberSettings
from coterie.wire.consumer import PROTOCOL_TYPE, Assignment, Subscription

__all__ = ["Member", "NoAssignment", "Phase", "made_assignors"]

Step = Callable[[int], Request | None]
# How soon a topic is looked for again that is not there yet.
MISSING_TOPIC_MS = 1_000


class Phase(Enum):
    """Where the member stands."""

    UNJOINED = "unjoined"
    """In no generation; gives up what it had, then joins."""
    JOINING = "joining"
    ASSIGNING = "assigning"
    """Leader; the topics of the group are asked for."""
    SYNCING = "syncing"
    STABLE = "stable"
    ASLEEP = "asleep"
    """Out of the group since nobody called for max.poll.interval.ms; the next call joins again."""
    STOPPED = "stopped"
    FAILED = "failed"


# In a generation: heartbeats are sent (HT-1).
JOINED = (Phase.STABLE, Phase.ASSIGNING, Phase.SYNCING)
OVER = (Phase.ASLEEP, Phase.STOPPED, Phase.FAILED)
REBALANCING = (Phase.JOINING, Phase.ASSIGNING, Phase.SYNCING)


class NoAssignment(CoterieError):
    """The leader of the group gave this member no assignment at all: the leader's assignor is at fault."""


class Member:
    """The state machine. All times are milliseconds of one clock that never goes back."""

    def __init__(
        self,
        settings: MemberSettings,
        topics: Iterable[str] | re.Pattern[str],
        *,
        now_ms: int,
        auto_commit: bool = False,
        jitter: Callable[[], float] = steady,
    ) -> None:
        self.settings, self.auto_commit = settings, auto_commit
        self.assignors, self.protocol = made_assignors(settings)
        self.phase = Phase.UNJOINED
        self.generation = NOWHERE
        self.owned: frozenset[TopicPartition] = frozenset()
        self.coordinator_known = False
        self.failure: RefusedBy | None = None
        """What ended the membership, if something did."""
        self.rejoin_why: str | None = ""
        """Why the member wants to join; None while it does not (CV-6)."""
        self.held = False
        self.pattern: re.Pattern[str] | None = None
        self.topics: frozenset[str] = frozenset()
        self.subscribed = False
        self._joined_topics = self.topics
        self._complaint: BaseException | None = None
        self._out: dict[type[Request], Request] = {}
        self._owned_in = NOWHERE
        self._pending: frozenset[TopicPartition] = frozenset()
        # The agenda.
        self._agenda: deque[Step] = deque()
        self._awaited: Request | None = None
        self._agenda_at = now_ms
        self._interrupted = False
        self._prepare_by = now_ms
        self._rejoin_by = now_ms + settings.max_poll_interval_ms
        self._closing = False
        # The leader's.
        self._leadership: Leadership | None = None
        self._snapshot: dict[str, View | None] | None = None
        self._seen: dict[str, View] = {}
        self._fresh = False
        """Whether all topics were looked at since a rebalance was wanted; it counts with a pattern (CP-5)."""
        self._assignments: dict[str, bytes] = {}
        # Times.
        self._soonest: int | None = None
        self._hang_up = False
        self._called_at = self._heard_at = self._heartbeat_at = now_ms
        self._find_at = self._join_at = self._look_at = self._watch_at = now_ms
        self._commit_at = now_ms + settings.auto_commit_interval_ms
        pace = partial(Backoff, settings.retry_backoff_ms, settings.retry_backoff_max_ms, jitter=jitter)
        self._find_pace, self._beat_pace, self._look_pace = pace(), pace(), pace()
        self.subscribe(topics, now_ms)

    # The application's side

    @property
    def ready(self) -> bool:
        """Whether the member is at work and nothing is to be given up or handed out."""
        return self.at_work and not self._agenda and self._awaited is None and self.rejoin_why is None

    @property
    def at_work(self) -> bool:
        """Whether what is owned is what this generation gave, be it about to be given up."""
        return self.phase is Phase.STABLE and self._owned_in == self.generation

    @property
    def fetchable(self) -> frozenset[TopicPartition]:
        """What may be fetched and handed out now: what is owned and not about to be given up (CB-1)."""
        return self.owned - self._pending

    @property
    def metadata(self) -> GroupMetadata:
        """Return who commits here (CB-14)."""
        place = self.generation
        return GroupMetadata(self.settings.group_id, place.id, place.member_id, self.settings.instance_id)

    def called(self, now_ms: int) -> None:
        """Note a sign of life of the application; one that slept joins again (CP-3)."""
        self._called_at = now_ms
        self._interrupted = False
        if self.phase is Phase.ASLEEP:
            self.phase = Phase.UNJOINED
            self._rejoin_by = now_ms + self.settings.max_poll_interval_ms

    def complaint(self) -> BaseException | None:
        """Return what is to be raised to the application, once; the membership goes on."""
        complaint, self._complaint = self._complaint, None
        return complaint

    def hold(self) -> None:
        """Note that the application works on what it was handed."""
        self.held = True

    def release(self) -> None:
        """Note that the application is done with it: a rebalance that waited may go on."""
        self.held = False

    def subscribe(self, topics: Iterable[str] | re.Pattern[str], now_ms: int) -> None:
        """Change the subscription; the group learns it by a rejoin (CP-8)."""
        self.pattern = topics if isinstance(topics, re.Pattern) else None
        self.topics = self._matching() if isinstance(topics, re.Pattern) else frozenset(topics)
        self.subscribed = True
        self._fresh = False
        self._look_at = self._watch_at = now_ms

    def unsubscribe(self) -> None:
        """Give everything up and leave the group (4.9); a static member goes without a word."""
        self.subscribed = False
        self.topics, self.pattern = frozenset(), None
        self._agenda += (
            self._resign,
            partial(self._leave, None, "the consumer unsubscribed from all topics"),
        )

    def enforce_rebalance(self, reason: str | None, now_ms: int) -> None:
        """Have the group rebalance, for no other reason than this one (CV-6)."""
        self._want_rejoin(reason or "rebalance enforced by user", now_ms)

    def close(self, *, leave: bool | None, timeout_ms: int, now_ms: int) -> None:
        """End: commit, give everything up, leave; None: leave unless the member is static (CV-1, CV-2)."""
        assert not self._closing
        self._closing = True
        self._agenda_at = now_ms
        self._prepare_by = now_ms + timeout_ms
        self._agenda += (
            self._commit_before,
            self._resign,
            partial(self._leave, leave, "the consumer is being closed"),
            self._stop,
        )

    def commit_refusal(self) -> Code:
        """Return why nothing can be committed now: a rebalance is under way, or there is no membership.

        NONE if it can (CC-2). The codes are those that a coordinator would answer.
        """
        if self.phase is Phase.STABLE:
            return Code.NONE
        return Code.REBALANCE_IN_PROGRESS if self.phase in REBALANCING else Code.UNKNOWN_MEMBER_ID

    # What to do

    def next(self, now_ms: int) -> Request:
        """Return what is to be done now, or until when to wait. What is returned counts as under way."""
        self._soonest = None
        for look in LOOKS:
            request = look(self, now_ms)
            if request is not None:
                if not isinstance(request, HangUp):
                    self._out[type(request)] = request
                return request
        return Wait(self._soonest)

    def _due(self, at_ms: int, now_ms: int) -> bool:
        """Return whether the time has come; if not, remember it."""
        if now_ms >= at_ms:
            return True
        self._soonest = at_ms if self._soonest is None else min(self._soonest, at_ms)
        return False

    def _expire(self, now_ms: int) -> Request | None:
        """Doubt a coordinator that is silent, and leave when nobody calls (HT-2)."""
        settings = self.settings
        in_touch = self.phase in JOINED and self.coordinator_known
        if in_touch and self._due(self._heard_at + settings.session_timeout_ms, now_ms):
            self._lose_coordinator()
            in_touch = False
        idle = self.phase in (Phase.UNJOINED, Phase.JOINING) and not self._under_way
        watching = self.subscribed and not self._closing and (in_touch or idle)
        if watching and self._due(self._called_at + settings.max_poll_interval_ms, now_ms):
            leave = self._leave(None, "consumer poll timeout has expired.", now_ms)
            self.phase = Phase.ASLEEP
            return leave
        return None

    def _disconnect(self, now_ms: int) -> Request | None:
        if not self._hang_up:
            return None
        self._hang_up = False
        return HangUp()

    def _find(self, now_ms: int) -> Request | None:
        over = self.phase in OVER or not self.subscribed
        if self.coordinator_known or over or FindCoordinator in self._out:
            return None
        return FindCoordinator() if self._due(self._find_at, now_ms) else None

    def _beat(self, now_ms: int) -> Request | None:
        """Heartbeat, whatever the application does (HT-1, HT-3)."""
        if self.phase not in JOINED or not self.coordinator_known or Heartbeat in self._out:
            return None
        if not self._due(self._heartbeat_at, now_ms):
            return None
        self._heartbeat_at = now_ms + self.settings.heartbeat_interval_ms
        return Heartbeat(self.generation)

    def _step(self, now_ms: int) -> Request | None:
        """Go on with the agenda, or begin a rebalance."""
        asleep = self.phase is Phase.ASLEEP and not self._closing
        if self._awaited is not None or Commit in self._out or self._interrupted or asleep:
            return None
        while self._agenda or self._begin_rebalance(now_ms):
            if not self._due(self._agenda_at, now_ms) or self._waits_for_application(now_ms):
                return None
            request = self._agenda.popleft()(now_ms)
            if request is not None:
                self._awaited = request
                return request
        return None

    def _waits_for_application(self, now_ms: int) -> bool:
        """Return whether the agenda is held; not for longer than the coordinator waits for a rejoin."""
        if self.held and self.subscribed and not self._closing:
            self.held = not self._due(self._rejoin_by, now_ms)
            return self.held
        return False

    def _begin_rebalance(self, now_ms: int) -> bool:
        """Put on the agenda what comes before a join, if one is wanted (CP-8, CJ-1)."""
        self._notice_changes(now_ms)
        wanted = self.subscribed and not self._closing and self.rejoin_why is not None
        if not wanted or self.phase not in (Phase.UNJOINED, Phase.STABLE) or not self.coordinator_known:
            return False
        if self._under_way or (self.pattern is not None and not self._fresh):
            return False
        self._prepare_by = now_ms + self.settings.max_poll_interval_ms
        self._agenda += (self._commit_before, self._give_up)
        return True

    @property
    def _under_way(self) -> bool:
        """Whether a join or sync is out."""
        return Join in self._out or Sync in self._out

    def _notice_changes(self, now_ms: int) -> None:
        """Compare what was joined with, and what was assigned, with what there is now (CP-8, CP-10)."""
        if self.phase is not Phase.STABLE or self.rejoin_why is not None or not self.subscribed:
            return
        seen = self._snapshot
        if seen is not None and seen != {topic: self._seen.get(topic) for topic in seen}:
            self._want_rejoin("cached metadata has changed", now_ms)
        elif self.topics != self._joined_topics:
            self._want_rejoin("subscription has changed", now_ms)

    def _look_around(self, now_ms: int) -> Request | None:
        """Ask for topics: those to assign, those that a pattern may match, all that matter now and then."""
        if Look in self._out or not self.subscribed or not self._due(self._look_at, now_ms):
            return None
        everything = self.pattern is not None
        if self._leadership is not None and self.phase is Phase.ASSIGNING:
            return Look(None if everything else self._leadership.topics | self.topics)
        wanted = everything and not self._fresh and self.rejoin_why is not None
        if wanted and self.phase in (Phase.UNJOINED, Phase.STABLE):
            return Look(None)
        if self.phase in OVER or not self._due(self._watch_at, now_ms):
            return None
        return Look(None if everything else self.watched)

    @property
    def watched(self) -> frozenset[str]:
        """The topics whose partitions matter: ours, and for the leader everybody's (CA-2)."""
        return self.topics | frozenset(self._snapshot or ())

    def _commit_now_and_then(self, now_ms: int) -> Request | None:
        """Commit what is consumed, every auto.commit.interval.ms (CC-1)."""
        if not self.auto_commit or not self.fetchable or self._agenda or self._awaited or Commit in self._out:
            return None
        if self.phase is not Phase.STABLE or self.held or not self._due(self._commit_at, now_ms):
            return None
        self._commit_at = now_ms + self.settings.auto_commit_interval_ms
        return Commit(self.generation, self.fetchable)

    def _join(self, now_ms: int) -> Request | None:
        """Join, or sync, as the phase says."""
        if self._under_way or not self.coordinator_known or self._closing or not self.subscribed:
            return None
        if self.phase is Phase.SYNCING:
            return Sync(self.generation, self._assignments)
        idle = not self._agenda and self._awaited is None
        if self.phase is not Phase.JOINING or not idle or not self._due(self._join_at, now_ms):
            return None
        self._joined_topics = self.topics
        return Join(self.generation, self._protocols(), self.rejoin_why or "")

    def _protocols(self) -> tuple[tuple[str, bytes], ...]:
        """Return the subscription for each assignor (CA-7)."""
        place = self.generation
        return tuple(
            (
                name,
                Subscription(
                    topics=tuple(sorted(self.topics)),
                    user_data=one.user_data(topics=self.topics, owned=self.owned, generation=place.id),
                    owned=tuple(sorted(self.owned)),
                    generation=place.id,
                    rack=self.settings.rack,
                ).encode(),
            )
            for name, one in self.assignors.items()
        )

    # The steps of the agenda

    def _commit_before(self, now_ms: int) -> Request | None:
        """Commit what is consumed before it is given up; nothing more of it is handed out (CB-1)."""
        if self.phase is not Phase.STABLE or not self.generation.valid:
            return None
        if self.protocol is RebalanceProtocol.EAGER or self._closing:
            self._suspend(self.owned)
        return self._commit_of(self.owned)

    def _commit_of(self, partitions: frozenset[TopicPartition]) -> Request | None:
        wanted = self.auto_commit and partitions and self.generation.valid
        return Commit(self.generation, partitions) if wanted else None

    def _give_up(self, now_ms: int) -> Request | None:
        """Have the application give up what it must before the member joins (CB-2 to CB-4)."""
        if not self.generation.valid:
            then, partitions = (Call("lost", tuple(sorted(self.owned))) if self.owned else None), self.owned
        elif self.protocol is RebalanceProtocol.EAGER:
            then, partitions = Call("revoked", tuple(sorted(self.owned))), self.owned
        else:
            partitions = frozenset(one for one in self.owned if one.topic not in self.topics)
            then = Call("revoked", tuple(sorted(partitions))) if partitions else None
        self._suspend(partitions)
        self._agenda.extendleft((self._to_join, partial(self._drop, partitions)))
        return then

    def _to_join(self, now_ms: int) -> None:
        """Be ready to join; what was lost meanwhile is given up first (CB-5)."""
        if self.owned and not self.generation.valid:
            self._agenda.appendleft(self._give_up)
            return
        self._leadership = self._snapshot = None
        if self.phase in (Phase.UNJOINED, Phase.STABLE) and self.subscribed:
            self.phase = Phase.JOINING

    def _complete(self, place: Generation, given: frozenset[TopicPartition], now_ms: int) -> Request | None:
        """Begin to take what a generation gives, unless that was over before the application was ready."""
        if self.generation != place or self.phase is not Phase.STABLE:
            if self.phase is Phase.UNJOINED:
                self._reset(NOWHERE, "rebalance failed since the generation was reset meanwhile", now_ms)
            return None
        taking: list[Step] = [partial(self._take, given), partial(self._assigned, given - self.owned)]
        moved = self.owned - given
        if self.protocol is RebalanceProtocol.COOPERATIVE and moved:
            self._suspend(moved)
            taking[:0] = [
                lambda _: self._commit_of(moved),
                lambda _: Call("revoked", tuple(sorted(moved))),
                partial(self._gave_back, moved),
            ]
        self._agenda.extendleft(reversed(taking))
        return None

    def _gave_back(self, moved: frozenset[TopicPartition], now_ms: int) -> None:
        """Rejoin, so that the others may have what was given up (CB-9)."""
        self._drop(moved, now_ms)
        self._want_rejoin("need to revoke partitions and re-join", now_ms)

    def _take(self, given: frozenset[TopicPartition], now_ms: int) -> None:
        """Own what is given, and tell the assignor (CB-8)."""
        place = self.generation
        if place.valid and place.protocol in self.assignors:
            self._tell_assignor(self.assignors[place.protocol], given)
        self._commit_at = now_ms + self.settings.auto_commit_interval_ms
        self.owned, self._owned_in = given, place
        self._pending = frozenset() if place.valid else given

    def _tell_assignor(self, assignor: Assignor, given: frozenset[TopicPartition]) -> None:
        place = self.generation
        try:
            assignor.on_assignment(sorted(given), generation=place.id, member_id=place.member_id)
        except Exception as error:  # noqa: BLE001  # the application's code: it is told, and the rest goes on
            self._complain(error)

    def _assigned(self, added: frozenset[TopicPartition], now_ms: int) -> Request:
        return Call("assigned", tuple(sorted(added)))

    def _resign(self, now_ms: int) -> Request | None:
        """Have the application give up everything: the member leaves (CB-15)."""
        if not self.owned:
            return None
        lost = not self.generation.valid or self.phase in REBALANCING
        self._suspend(self.owned)
        self._agenda.appendleft(partial(self._drop, self.owned))
        return Call("lost" if lost else "revoked", tuple(sorted(self.owned)))

    def _leave(self, leave: bool | None, reason: str, now_ms: int) -> Leave | None:
        """Be in no group any more; return what tells the coordinator, if it should hear (CV-1, CV-3)."""
        member_id = self.generation.member_id
        in_group = self.coordinator_known and self.phase in JOINED + REBALANCING and member_id
        wanted = self.settings.instance_id is None if leave is None else leave
        self._hang_up = self._hang_up or self._under_way
        if self.phase not in (Phase.STOPPED, Phase.FAILED):
            self._reset(NOWHERE, "consumer pro-actively leaving the group", now_ms)
        return Leave(member_id, reason) if in_group and wanted else None

    def _stop(self, now_ms: int) -> None:
        self.phase = Phase.STOPPED

    def _suspend(self, partitions: frozenset[TopicPartition]) -> None:
        """Hand out nothing more of these."""
        self._pending |= partitions

    def _drop(self, partitions: frozenset[TopicPartition], now_ms: int) -> None:
        self.owned -= partitions
        self._pending &= self.owned

    # What happened

    def unanswered(self, request: Request, now_ms: int) -> None:
        """Take note that no answer will come: the connection broke, or time ran out."""
        backoff_ms = self.settings.retry_backoff_ms
        match request:
            case FindCoordinator():
                self._taken(request)
                self._find_at = now_ms + self._find_pace.next_ms()
            case Look():
                self._taken(request)
                self._look_at = now_ms + self._look_pace.next_ms()
            case Commit():
                self.committed(request, Code.NETWORK_EXCEPTION, now_ms)
            case Leave():
                self.left(request)
            case Heartbeat():
                self._taken(request)
                self._lose_coordinator()
                self._heartbeat_at = now_ms + self._beat_pace.next_ms()
            case Join() | Sync():
                self._taken(request)
                self._lose_coordinator()
                self._find_at = now_ms + backoff_ms
                self._join_again("rebalance failed due to DisconnectException", now_ms + backoff_ms)
            case _:
                raise AssertionError(f"{request} is always answered")

    def _taken(self, request: Request) -> None:
        """Note that a request is not under way any more."""
        assert self._out.pop(type(request)) is request

    def found(self, code: Code, now_ms: int) -> None:
        """Take the answer to FindCoordinator (CL-3, CL-4)."""
        del self._out[FindCoordinator]
        if code is Code.NONE:
            self.coordinator_known = True
            self._heard_at = now_ms
            self._find_pace.reset()
        elif FIND.get(code) is Reaction.AGAIN:
            self._find_at = now_ms + self._find_pace.next_ms()
        else:
            self._fail(code)

    def looked(self, request: Look, cluster: Cluster, now_ms: int) -> None:
        """Take what the cluster has of the topics that were asked for."""
        self._taken(request)
        self._look_pace.reset()
        asked = self._seen.keys() if request.topics is None else request.topics
        kept = {topic: view for topic, view in self._seen.items() if topic not in asked}
        self._seen = kept | view_of(cluster, racks=self.settings.rack is not None)
        if request.topics is None and self.pattern is not None:
            self._fresh = True
            self.topics = self._matching()
        self._watch_at = now_ms + self._watch_interval_ms
        leads = self._leadership
        if leads is not None and self.phase is Phase.ASSIGNING and self._covers(request, leads.topics):
            self._lead(leads, cluster, now_ms)

    @property
    def _watch_interval_ms(self) -> int:
        missing = self.topics - self._seen.keys()
        age_ms = self.settings.metadata_max_age_ms
        return min(age_ms, MISSING_TOPIC_MS) if missing else age_ms

    def _covers(self, request: Look, topics: frozenset[str]) -> bool:
        return request.topics is None or topics <= request.topics

    def _matching(self) -> frozenset[str]:
        """Return the topics there are that the pattern matches; it must match the whole name."""
        assert self.pattern is not None
        return frozenset(topic for topic in self._seen if self.pattern.fullmatch(topic))

    def _lead(self, leads: Leadership, cluster: Cluster, now_ms: int) -> None:
        """Assign, and watch from now on what was assigned from (CA-2)."""
        asked = leads.topics
        try:
            leads.assign(cluster)
        except Exception as error:  # noqa: BLE001  # an assignor may be the application's: it is told, and rejoins
            self._complain(error)
            self._join_again(f"rebalance failed due to {type(error).__name__}", now_ms, pause=True)
            return
        if leads.topics - asked - self._seen.keys():
            return  # an assignor added topics: they are looked at before their partitions are watched (CA-5)
        self._snapshot = {topic: self._seen.get(topic) for topic in leads.topics}
        self._assignments = dict(leads.encoded)
        self.phase = Phase.SYNCING

    def joined(self, request: Join, answer: Joined, now_ms: int) -> None:
        """Take the answer to JoinGroup (table in behaviours 4.4)."""
        self._taken(request)
        code = answer.code
        if self.phase is not Phase.JOINING or not self.subscribed:
            return  # it has left meanwhile (CJ-4)
        if code is Code.NONE and answer.protocol_type not in (None, PROTOCOL_TYPE):
            code = Code.INCONSISTENT_GROUP_PROTOCOL
        reaction = JOIN.get(code, Reaction.TELL)
        if code is Code.NONE:
            self._take_place(answer, now_ms)
        elif reaction is Reaction.NAMED:
            self.generation = Generation(member_id=answer.member_id)
            self.rejoin_why = f"need to re-join with the given member-id: {answer.member_id}"
        else:
            self._refused(reaction, code, request.generation, "JoinGroup", now_ms)

    def _take_place(self, answer: Joined, now_ms: int) -> None:
        """Be a member of a generation: heartbeats begin (CJ-4)."""
        if answer.protocol not in self.assignors:
            self._fail(Code.INCONSISTENT_GROUP_PROTOCOL)  # CA-1
            return
        self.generation = Generation(answer.generation, answer.member_id, answer.protocol)
        self._heard_at = now_ms
        self._heartbeat_at = now_ms + self.settings.heartbeat_interval_ms
        self._beat_pace.reset()
        self._assignments = {}
        self.phase = Phase.SYNCING
        if answer.leader == answer.member_id:
            self._leadership = Leadership(answer, self.assignors[answer.protocol], self.protocol)
            self._look_at = now_ms
            self.phase = Phase.ASSIGNING

    def synced(self, request: Sync, answer: Synced, now_ms: int) -> None:
        """Take the answer to SyncGroup (table in behaviours 4.4)."""
        self._taken(request)
        code = answer.code
        kinds = {answer.protocol_type or PROTOCOL_TYPE, PROTOCOL_TYPE}
        names = {answer.protocol or request.generation.protocol, request.generation.protocol}
        if code is Code.NONE and len(kinds | names) > 2:
            code = Code.INCONSISTENT_GROUP_PROTOCOL
        if code is Code.NONE and (self.phase is not Phase.SYNCING or request.generation != self.generation):
            return  # the generation was reset meanwhile: it joins again anyway (CJ-5)
        if code is Code.NONE:
            self._settle(answer.assignment, now_ms)
        else:
            self._refused(SYNC.get(code, Reaction.TELL), code, request.generation, "SyncGroup", now_ms)

    def _settle(self, assignment: bytes, now_ms: int) -> None:
        """Be stable, and have the application take what the member gets (CB-6, CB-7)."""
        self.phase = Phase.STABLE
        self.rejoin_why = None
        self._fresh = False
        self._rejoin_by = now_ms + self.settings.max_poll_interval_ms
        self._leadership = None
        if not assignment:
            self._complain(NoAssignment(f"the leader of group {self.settings.group_id} gave no assignment"))
        try:
            given = frozenset(Assignment.decode(assignment).partitions)
        except Corrupt as error:
            self._complain(error)
            given = frozenset()
        if not all(self._wants(one.topic) for one in given):
            self._want_rejoin("received assignment does not match the current subscription", now_ms)
            return
        if self.pattern is not None:
            self.topics |= {one.topic for one in given}
            self._joined_topics |= {one.topic for one in given}
        self._agenda.append(partial(self._complete, self.generation, given))

    def _wants(self, topic: str) -> bool:
        return topic in self.topics if self.pattern is None else bool(self.pattern.fullmatch(topic))

    def _refused(self, reaction: Reaction, code: Code, sent: Generation, api: str, now_ms: int) -> None:
        """Carry out what follows from the refusal of a join or sync (CJ-8)."""
        reason = f"rebalance failed due to {java_name(code)}"
        unchanged = sent == self.generation
        match reaction:
            case Reaction.FAIL:
                self._fail(code)
            case Reaction.NEW_MEMBER if unchanged:
                self._reset(NOWHERE, reason, now_ms)
            case Reaction.SAME_MEMBER if unchanged:
                self._reset(Generation(member_id=sent.member_id), reason, now_ms)
            case Reaction.AGAIN | Reaction.ELSEWHERE | Reaction.TELL:
                if reaction is Reaction.ELSEWHERE:
                    self._lose_coordinator()
                    self._find_at = now_ms + self.settings.retry_backoff_ms
                if reaction is Reaction.TELL:
                    self._complain(RefusedBy(code, f"{api} of group {self.settings.group_id}"))
                self._join_again(reason, now_ms, pause=True)
            case _:
                self._join_again(reason, now_ms)

    def _join_again(self, reason: str, at_ms: int, *, pause: bool = False) -> None:
        """Send another join; what had to be given up is given up already (CJ-8)."""
        if self.phase not in REBALANCING:
            return
        self.phase = Phase.JOINING
        self._leadership = None
        self.rejoin_why = reason
        self._join_at = at_ms + (self.settings.retry_backoff_ms if pause else 0)

    def heard(self, request: Heartbeat, code: Code, now_ms: int) -> None:
        """Take the answer to a heartbeat (table in behaviours 4.5, HT-4)."""
        self._taken(request)
        unchanged = request.generation == self.generation and self.phase in JOINED
        reaction = HEARTBEAT.get(code, Reaction.AGAIN)
        if code in (Code.NONE, Code.REBALANCE_IN_PROGRESS):
            self._heard_at = now_ms
            self._beat_pace.reset()
            if code and unchanged and self.phase is Phase.STABLE:
                self._want_rejoin("group is already rebalancing", now_ms)
        elif reaction is Reaction.AGAIN or reaction is Reaction.ELSEWHERE:
            if reaction is Reaction.ELSEWHERE:
                self._lose_coordinator()
            self._heartbeat_at = now_ms + self._beat_pace.next_ms()
        elif unchanged:
            self._lose_place(reaction, code, "HEARTBEAT", now_ms)

    def _lose_place(self, reaction: Reaction, code: Code, api: str, now_ms: int) -> None:
        """Be out of the generation, as a coordinator says."""
        reason = f"encountered {code.name} from {api} response"
        if reaction is Reaction.FAIL:
            self._fail(code)
        elif reaction is Reaction.SAME_MEMBER:
            self._reset(Generation(member_id=self.generation.member_id), reason, now_ms)
        else:
            self._reset(NOWHERE, reason, now_ms)

    def committed(self, request: Commit, code: Code, now_ms: int) -> None:
        """Take the answer to a commit that the member asked for itself (CB-1, CC-1)."""
        self._taken(request)
        self.commit_answered(request.generation, code, now_ms)
        again = COMMIT.get(code) in (Reaction.AGAIN, Reaction.ELSEWHERE)
        pause_ms = self.settings.retry_backoff_ms
        if self._awaited is not request:
            if again:
                self._commit_at = now_ms + pause_ms
            return
        self._awaited = None
        if again and now_ms + pause_ms < self._prepare_by:
            self._agenda.appendleft(lambda _: self._commit_of(request.partitions))
            self._agenda_at = now_ms + pause_ms

    def commit_answered(self, generation: Generation, code: Code, now_ms: int) -> Code:
        """Take the answer to a commit of `generation`; return what the committer is to be told (4.8).

        That of a generation before tells nothing of this one.
        """
        reaction = COMMIT.get(code, Reaction.TELL)
        unchanged = generation == self.generation and self.phase in JOINED
        if reaction is Reaction.REJOIN:
            if unchanged and self.phase is Phase.STABLE:
                self._want_rejoin("offset commit failed since group is already rebalancing", now_ms)
        elif reaction is Reaction.ELSEWHERE:
            self._lose_coordinator()
        elif reaction in (Reaction.SAME_MEMBER, Reaction.NEW_MEMBER, Reaction.FAIL):
            if not unchanged:
                late = generation != self.generation and self.phase is Phase.JOINING
                return Code.REBALANCE_IN_PROGRESS if late else Code.UNKNOWN_MEMBER_ID
            self._lose_place(reaction, code, "OFFSET_COMMIT", now_ms)
        return code

    def called_back(self, error: BaseException | None, now_ms: int) -> None:
        """Take note that the listener has returned, or what it raised (CB-5, CB-10).

        What is no Exception interrupts: it is raised at once, and the listener is called again when the
        application next calls (CB-13, CJ-7).
        """
        request = self._out.pop(Call)
        assert self._awaited is request
        self._awaited = None
        if error is not None:
            self._complain(error)
        if error is not None and not isinstance(error, Exception):
            self._agenda.appendleft(lambda _: request)
            self._interrupted = True

    def left(self, request: Leave) -> None:
        """Take note that the coordinator was told, or never will be."""
        self._taken(request)
        if self._awaited is request:
            self._awaited = None

    # Steps that several share

    def _want_rejoin(self, why: str, now_ms: int) -> None:
        """Have a rebalance begin, when the application is ready for it."""
        if self.rejoin_why is None:
            self._rejoin_by = now_ms + self.settings.max_poll_interval_ms
        self.rejoin_why = why

    def _reset(self, generation: Generation, why: str, now_ms: int) -> None:
        """Be in no generation; what is owned is lost, and nothing of it is handed out any more (4.1)."""
        self.generation = generation
        self.phase = Phase.UNJOINED
        self._leadership = self._snapshot = None
        self._suspend(self.owned)
        self._want_rejoin(why, now_ms)
        self._join_at = now_ms

    def _lose_coordinator(self) -> None:
        """Look for the coordinator anew; what is under way there will not be answered (CL-6)."""
        self._hang_up = self._hang_up or self.coordinator_known
        self.coordinator_known = False

    def _complain(self, error: BaseException) -> None:
        """Keep the first thing that the application has to hear of (CB-10)."""
        self._complaint = self._complaint or error

    def _fail(self, code: Code) -> None:
        self._hang_up = self._hang_up or self._under_way
        self._reset(NOWHERE, "", self._called_at)
        self.failure = RefusedBy(code, EXPLAINED.get(code, f"group {self.settings.group_id}"))
        self.phase = Phase.FAILED


def made_assignors(settings: MemberSettings) -> tuple[dict[str, Assignor], RebalanceProtocol]:
    """Return the assignors by name, and how their members give up partitions (CA-6), or raise ValueError."""
    made: Sequence[Assignor] = [
        new_assignor(one) if isinstance(one, str) else one for one in settings.assignors
    ]
    protocol = common_protocol(made)
    if protocol is None:
        names = ", ".join(one.name for one in made) or "none"
        raise ValueError(
            f"partition.assignment.strategy names {names}: they have no rebalance protocol in common;"
            " name assignors that are all eager, or all cooperative"
        )
    return {one.name: one for one in made}, protocol


# In this order (HT-2): nothing of the application's holds up the upper ones.
LOOKS: tuple[Callable[[Member, int], Request | None], ...] = (
    Member._expire,
    Member._disconnect,
    Member._find,
    Member._beat,
    Member._step,
    Member._look_around,
    Member._commit_now_and_then,
    Member._join,
)
