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
from collections.abc import Callable, Iterable
from functools import partial

from coterie.assign.model import Cluster
from coterie.base.codes import Code
from coterie.base.errors import Corrupt, CoterieError, RefusedBy
from coterie.base.ids import TopicPartition
from coterie.client.member.backoff import spaced, steady
from coterie.client.member.callbacks import Steps
from coterie.client.member.leader import Leadership, view_of
from coterie.client.member.reactions import (
    FIND,
    HEARTBEAT,
    JOIN,
    SYNC,
    Reaction,
    java_name,
)
from coterie.client.member.requests import (
    NO_GENERATION,
    Commit,
    DescribeGroup,
    Disconnect,
    FindCoordinator,
    Generation,
    GroupDescription,
    Heartbeat,
    Join,
    Joined,
    Leave,
    RefreshMetadata,
    Request,
    Sync,
    Synced,
    Wait,
)
from coterie.client.member.settings import MemberSettings
from coterie.client.member.state import JOINED, OVER, REBALANCING, Phase
from coterie.wire.payloads.consumer_protocol import PROTOCOL_TYPE, Assignment, Subscription

# How soon a topic is looked for again that is not there yet.
MISSING_TOPIC_MS = 1_000


class NoAssignment(CoterieError):
    """The leader of the group gave this member no assignment at all: the leader's assignor is at fault."""


class Member(Steps):
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
        super().__init__(settings, now_ms=now_ms, auto_commit=auto_commit, jitter=jitter)
        self.subscribe(topics, now_ms)

    # The application's side

    def called(self, now_ms: int) -> None:
        """Note a sign of life of the application; one that slept joins again (CP-3)."""
        self._called_at = now_ms
        self._interrupted = False
        if self.phase is Phase.ASLEEP:
            self.phase = Phase.UNJOINED
            self._rejoin_by = now_ms + self.settings.max_poll_interval_ms

    def pending_error(self) -> BaseException | None:
        """Return the error to raise to the application, once; the membership goes on."""
        pending_error, self._pending_error = self._pending_error, None
        return pending_error

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
        self._metadata_at = self._watch_at = now_ms

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
        """End: commit, give up, leave (CV-4); None: leave unless the member is static (CV-1, CV-2)."""
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

    def leave_at_once(self, leave: bool | None, now_ms: int) -> Leave | None:
        """Return the request that says that the member is gone, whatever it still waits for."""
        self._closing = True
        return self._leave(leave, "the consumer is being closed", now_ms)

    def commit_refusal(self) -> Code:
        """Return why nothing can be committed now: a rebalance is under way, or there is no membership.

        NONE if it can (CC-2). The codes are those that a coordinator would answer.
        """
        if self.phase is Phase.STABLE:
            return Code.NONE
        return Code.REBALANCE_IN_PROGRESS if self.phase in REBALANCING else Code.UNKNOWN_MEMBER_ID

    # What to do

    def next(self, now_ms: int) -> Request:
        """Return the request to carry out now, which counts as under way then, or a Wait (CP-11)."""
        self._soonest = None
        for look in LOOKS:
            request = look(self, now_ms)
            if request is not None:
                if not isinstance(request, Disconnect):
                    self._out[type(request)] = request
                return request
        return Wait(self._soonest)

    def _expire(self, now_ms: int) -> Request | None:
        """Doubt a coordinator that is silent, and leave when nobody calls (HT-2)."""
        settings = self.settings
        in_touch = self.phase in JOINED and self.coordinator_known
        if in_touch and self._due(self._answered_at + settings.session_timeout_ms, now_ms):
            self._lose_coordinator()
            in_touch = False
        if self._closing or not self.subscribed:
            return None
        watching = in_touch or (self.phase in (Phase.UNJOINED, Phase.JOINING) and not self._under_way)
        if watching and self._due(self._called_at + settings.max_poll_interval_ms, now_ms):
            leave = self._leave(None, "consumer poll timeout has expired.", now_ms)
            self.phase = Phase.ASLEEP
            return leave
        return None

    def _disconnect(self, now_ms: int) -> Request | None:
        if not self._disconnect_wanted:
            return None
        self._disconnect_wanted = False
        return Disconnect()

    def _find(self, now_ms: int) -> Request | None:
        """Look for the coordinator while it is not known; nothing else comes first (CP-4, CL-1)."""
        if self.coordinator_known or FindCoordinator in self._out:
            return None
        if self.phase in OVER or not self.subscribed:
            return None
        return FindCoordinator() if self._due(self._find_at, now_ms) else None

    def _beat(self, now_ms: int) -> Request | None:
        """Heartbeat, whatever the application does (HT-1, HT-3)."""
        if self.phase not in JOINED or not self.coordinator_known or Heartbeat in self._out:
            return None
        if not self._due(self._heartbeat_at, now_ms):
            return None
        self._heartbeat_at = now_ms + spaced(self.settings.heartbeat_interval_ms)
        return Heartbeat(self.generation)

    def _refresh_metadata(self, now_ms: int) -> Request | None:
        """Ask for topics: those to assign, those that a pattern may match, all that matter now and then."""
        if RefreshMetadata in self._out or not self.subscribed or not self._due(self._metadata_at, now_ms):
            return None
        everything = self.pattern is not None
        if self._leadership is not None and self.phase is Phase.ASSIGNING:
            return RefreshMetadata(None if everything else self._leadership.topics | self.topics)
        wanted = everything and not self._fresh and self.rejoin_why is not None
        if wanted and self.phase in (Phase.UNJOINED, Phase.STABLE):
            return RefreshMetadata(None)
        if self.phase in OVER or not self._due(self._watch_at, now_ms):
            return None
        return RefreshMetadata(None if everything else self.watched)

    @property
    def watched(self) -> frozenset[str]:
        """The topics whose partitions matter: ours, and for the leader everybody's (CA-2)."""
        return self.topics | frozenset(self._snapshot or ())

    def _commit_now_and_then(self, now_ms: int) -> Request | None:
        """Commit what is consumed, every auto.commit.interval.ms (CC-1, CP-7)."""
        if not self.auto_commit or not self.fetchable or self._agenda or self._awaited or Commit in self._out:
            return None
        if self.phase is not Phase.STABLE or self.held or not self._due(self._commit_at, now_ms):
            return None
        self._commit_at = now_ms + spaced(self.settings.auto_commit_interval_ms)
        return Commit(self.generation, self.fetchable)

    def _describe_group(self, now_ms: int) -> Request | None:
        """Ask once who has what, where a static member may have come back to what its last self was given.

        In a cooperative group that self may have been asked to give something up and to join again. If it
        ended before it did, nobody else would ever know: Kafka's coordinator and clients look no further.
        """
        if not self._returned or self.phase is not Phase.STABLE or DescribeGroup in self._out:
            return None
        looked = RefreshMetadata not in self._out and now_ms < self._watch_at
        if not looked or self._closing or not self.coordinator_known:
            return None
        return DescribeGroup(self.generation) if self._due(self._describe_at, now_ms) else None

    def _join(self, now_ms: int) -> Request | None:
        """Join, or sync, as the phase says (CJ-2)."""
        if self.phase not in (Phase.SYNCING, Phase.JOINING) or self._under_way:
            return None
        if not self.coordinator_known or self._closing or not self.subscribed:
            return None
        if self.phase is Phase.SYNCING:
            return Sync(self.generation, self._assignments)
        idle = not self._agenda and self._awaited is None
        if not idle or not self._due(self._join_at, now_ms):
            return None
        self._joined_topics = self.topics
        return Join(self.generation, self._protocols(), self.rejoin_why or "")

    def _protocols(self) -> tuple[tuple[str, bytes], ...]:
        """Return the subscription for each assignor (CA-7)."""
        place, topics, owned = self.generation.id, tuple(sorted(self.topics)), tuple(sorted(self.owned))
        return tuple(
            (
                name,
                Subscription(
                    topics=topics,
                    user_data=assignor.user_data(topics=topics, owned=owned, generation=place),
                    owned=owned,
                    generation=place,
                    rack=self.settings.rack,
                ).encode(),
            )
            for name, assignor in self.assignors.items()
        )

    # What happened

    def unanswered(self, request: Request, now_ms: int) -> None:
        """Take note that no answer will come: the connection broke, or time ran out (CL-5, 4.4-13)."""
        backoff_ms = self.settings.retry_backoff_ms
        match request:
            case FindCoordinator():
                self._taken(request)
                self._find_at = now_ms + self._find_backoff.next_ms()
            case RefreshMetadata():
                self._taken(request)
                self._metadata_at = now_ms + self._metadata_backoff.next_ms()
            case Commit():
                self.committed(request, Code.NETWORK_EXCEPTION, now_ms)
            case Leave():
                self.left(request)
            case DescribeGroup():
                self._taken(request)
                self._describe_at = now_ms + backoff_ms
            case Heartbeat():
                self._taken(request)
                self._lose_coordinator()
                self._heartbeat_at = now_ms + self._heartbeat_backoff.next_ms()
            case Join() | Sync():
                self._taken(request)
                self._lose_coordinator()
                self._find_at = now_ms + backoff_ms
                self._join_again("rebalance failed due to DisconnectException", now_ms + backoff_ms)
            case _:
                raise AssertionError(f"{request} is always answered")

    def found(self, code: Code, now_ms: int) -> None:
        """Take the answer to FindCoordinator (CL-3 to CL-5)."""
        del self._out[FindCoordinator]
        if code is Code.NONE:
            self.coordinator_known = True
            self._answered_at = now_ms
            self._find_backoff.reset()
        elif FIND.get(code) is Reaction.AGAIN:
            self._find_at = now_ms + self._find_backoff.next_ms()
        else:
            self._fail(code)

    def metadata_received(self, request: RefreshMetadata, cluster: Cluster, now_ms: int) -> None:
        """Take what the cluster has of the topics that were asked for; a pattern is matched anew (CP-1)."""
        self._taken(request)
        self._metadata_backoff.reset()
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
    def missing(self) -> frozenset[str]:
        """The topics that it wants and has not found: it looks for them again soon."""
        return self.topics - self._seen.keys()

    @property
    def next_heartbeat_ms(self) -> int:
        """When its next heartbeat is due, unless it hangs up or gives up before."""
        return self._heartbeat_at

    @property
    def _watch_interval_ms(self) -> int:
        age_ms = spaced(self.settings.metadata_max_age_ms)
        return min(age_ms, MISSING_TOPIC_MS) if self.missing else age_ms

    def _covers(self, request: RefreshMetadata, topics: frozenset[str]) -> bool:
        return request.topics is None or topics <= request.topics

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
        self._returned = self._returned and leads.skip
        self._snapshot = {topic: self._seen.get(topic) for topic in leads.topics}
        self._assignments = dict(leads.encoded)
        self.phase = Phase.SYNCING

    def joined(self, request: Join, answer: Joined, now_ms: int) -> None:
        """Take the answer to JoinGroup (4.4-6, 4.4-14, CJ-8; what else is refused, see `_refused`)."""
        self._taken(request)
        code = answer.code
        if self.phase is not Phase.JOINING or not self.subscribed:
            return  # it has left meanwhile (CJ-4)
        if code is Code.NONE and answer.protocol_type not in (None, PROTOCOL_TYPE):
            code = Code.INCONSISTENT_GROUP_PROTOCOL
        reaction = JOIN.get(code, Reaction.TELL)
        if code is Code.NONE:
            self._returned |= self.settings.instance_id is not None and not request.member_id
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
        self._answered_at = now_ms
        self._heartbeat_at = now_ms + spaced(self.settings.heartbeat_interval_ms)
        self._heartbeat_backoff.reset()
        self._assignments = {}
        self.phase = Phase.SYNCING
        if answer.leader == answer.member_id:
            self._leadership = Leadership(answer, self.assignors[answer.protocol], self.protocol)
            self._metadata_at = now_ms
            self.phase = Phase.ASSIGNING

    def synced(self, request: Sync, answer: Synced, now_ms: int) -> None:
        """Take the answer to SyncGroup (CJ-5, 4.4-14; what else is refused, see `_refused`)."""
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
        self._suspend(self.owned - given)  # it rests until the application is ready to give it up
        self._agenda.append(partial(self._complete, self.generation, given))

    def _refused(self, reaction: Reaction, code: Code, sent: Generation, api: str, now_ms: int) -> None:
        """Carry out what follows from the refusal of a join or sync (4.4-1 to 4.4-12, CJ-8)."""
        reason = f"rebalance failed due to {java_name(code)}"
        unchanged = sent == self.generation
        match reaction:
            case Reaction.FAIL:
                self._fail(code)
            case Reaction.NEW_MEMBER if unchanged:
                self._reset(NO_GENERATION, reason, now_ms)
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

    def group_described(self, request: DescribeGroup, answer: GroupDescription, now_ms: int) -> None:
        """Take who has what, and have the group rebalance if a partition is nobody's (ST-2).

        A group that rebalances anyway needs no more: this member joins with what it has.
        """
        self._taken(request)
        reaction = FIND.get(answer.code, Reaction.TELL)
        if reaction is Reaction.AGAIN:
            self._describe_at = now_ms + self.settings.retry_backoff_ms
            return
        self._returned = False
        unchanged = request.generation == self.generation and self.phase is Phase.STABLE
        if answer.code or answer.owned is None or answer.state != "Stable" or not unchanged:
            return
        counts = {topic: len(self._seen.get(topic, ())) for topic in self.topics}
        there = {TopicPartition(topic, number) for topic in counts for number in range(counts[topic])}
        left = sorted(there - answer.owned)
        if left and self.rejoin_why is None:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            self._want_rejoin(f"nobody had {left[0]}{more} when this static member came back", now_ms)

    def heartbeat_answered(self, request: Heartbeat, code: Code, now_ms: int) -> None:
        """Take the answer to a heartbeat (4.5-1 to 4.5-7, HT-4)."""
        self._taken(request)
        unchanged = request.generation == self.generation and self.phase in JOINED
        reaction = HEARTBEAT.get(code, Reaction.AGAIN)
        if code in (Code.NONE, Code.REBALANCE_IN_PROGRESS):
            self._answered_at = now_ms
            self._heartbeat_backoff.reset()
            if code and unchanged and self.phase is Phase.STABLE:
                self._want_rejoin("group is already rebalancing", now_ms)
        elif reaction is Reaction.AGAIN or reaction is Reaction.ELSEWHERE:
            if reaction is Reaction.ELSEWHERE:
                self._lose_coordinator()
            self._heartbeat_at = now_ms + self._heartbeat_backoff.next_ms()
        elif unchanged:
            self._lose_place(reaction, code, "HEARTBEAT", now_ms)


# In this order (HT-2): nothing of the application's holds up the upper ones.
LOOKS: tuple[Callable[[Member, int], Request | None], ...] = (
    Member._expire,
    Member._disconnect,
    Member._find,
    Member._beat,
    Member._step,
    Member._refresh_metadata,
    Member._describe_group,
    Member._commit_now_and_then,
    Member._join,
)
