"""One member of a group, classic protocol, eager: events in, requests out. Pure.

`next` says what is to be sent now, or until when there is nothing to do; whoever runs the member sends it and
hands back the answer. One group request is under way at a time. A reader works with what the member owns:

- `called` is the sign of life that `max.poll.interval.ms` counts from;
- `hold` says that a batch is under way. While it is, a rebalance that the coordinator asks for waits (the
  heartbeats go on), for the rebalance timeout at most;
- `release` says that the batch is done and committed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from coterie.assign.model import Cluster
from coterie.assign.model import Member as Subscriber
from coterie.assign.registry import ASSIGNORS
from coterie.base.codes import Code
from coterie.base.errors import Corrupt, RefusedBy
from coterie.base.ids import TopicPartition
from coterie.wire.consumer import Assignment, Subscription

__all__ = [
    "Count",
    "FindCoordinator",
    "Generation",
    "Heartbeat",
    "Join",
    "Joined",
    "Leave",
    "Member",
    "MemberSettings",
    "Phase",
    "Request",
    "Sync",
    "Wait",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """What a member needs to know of its configuration, in Kafka's names."""

    group_id: str
    instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    """The rebalance timeout as well."""
    assignors: tuple[str, ...] = ("range",)
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    auto_commit_interval_ms: int = 5_000
    metadata_max_age_ms: int = 300_000
    """How often a member looks whether topics came, went or grew."""
    rack: str | None = None


class Phase(Enum):
    """Where the member stands. Heartbeats are sent in SYNCING (between requests) and STABLE."""

    UNJOINED = "unjoined"
    ASSIGNING = "assigning"
    """Leader; the partition counts of the group's topics are asked for."""
    SYNCING = "syncing"
    STABLE = "stable"
    ASLEEP = "asleep"
    """Out of the group since nobody called for max.poll.interval.ms; the next call joins again."""
    STOPPED = "stopped"
    FAILED = "failed"


class Generation(NamedTuple):
    """The member's place in the group: what a commit must carry."""

    id: int = -1
    member_id: str = ""
    protocol: str = ""


NOWHERE = Generation()


# Requests


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to send until then, unless something happens."""

    until_ms: int | None


@dataclass(frozen=True, slots=True)
class FindCoordinator:
    """Ask who coordinates the group."""


@dataclass(frozen=True, slots=True)
class Join:
    """Send JoinGroup; the answer may take until all have rejoined."""

    member_id: str
    protocols: tuple[tuple[str, bytes], ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Count:
    """Ask the cluster how many partitions these topics have, and hand the answer to `counted`."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Sync:
    """Send SyncGroup."""

    generation: Generation
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Send Heartbeat."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Leave:
    """Send LeaveGroup; the member is out whatever the answer."""

    member_id: str
    reason: str


Request = Wait | FindCoordinator | Join | Count | Sync | Heartbeat | Leave


@dataclass(frozen=True, slots=True)
class Joined:
    """What JoinGroup answered."""

    code: Code
    generation: int = -1
    member_id: str = ""
    protocol: str = ""
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """(member id, instance id, subscription) of all, for the leader."""
    skip_assignment: bool = False


COORDINATOR_LOST = frozenset({Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR})
LATER = frozenset({Code.COORDINATOR_LOAD_IN_PROGRESS, Code.REBALANCE_IN_PROGRESS})


class Member:
    """The state machine. All times are milliseconds of one clock that never goes back."""

    def __init__(self, settings: MemberSettings, topics: Iterable[str], *, now_ms: int) -> None:
        unknown = [name for name in settings.assignors if name not in ASSIGNORS]
        assert settings.assignors
        assert not unknown, f"no assignor {unknown}"
        self.settings = settings
        self.topics = frozenset(topics)
        self.phase = Phase.UNJOINED
        self.generation = NOWHERE
        self.owned: frozenset[TopicPartition] = frozenset()
        self.coordinator_known = False
        self.failure: RefusedBy | None = None
        self.why = "first join"
        """Why the last join was sent."""
        self.busy = False
        self.rejoin_why: str | None = None
        """Set while a rebalance is wanted; it begins when no batch is under way."""
        self._rejoin_by = 0
        self._called_at = now_ms
        self._backoff_until = 0
        self._heartbeat_at = now_ms
        self._heard_at = now_ms
        self._leader_counts: Mapping[str, int | None] | None = None
        self._joined: Joined | None = None
        self._joined_topics = self.topics
        self._assignments: Mapping[str, bytes] = {}

    # The reader's side

    @property
    def ready(self) -> bool:
        """Whether a batch may be planned from what is owned now."""
        return self.phase is Phase.STABLE and self.rejoin_why is None

    def called(self, now_ms: int) -> None:
        """Note a sign of life of the application; one that slept joins again."""
        self._called_at = now_ms
        if self.phase is Phase.ASLEEP:
            self.phase = Phase.UNJOINED

    def hold(self) -> None:
        """Note that a batch of what is owned is under way."""
        assert self.ready
        self.busy = True

    def release(self) -> None:
        """Note that no batch is under way: a rebalance that waited may begin."""
        self.busy = False

    def subscribe(self, topics: Iterable[str], now_ms: int) -> None:
        """Change the subscription; the group learns it by a rejoin."""
        self.topics = frozenset(topics)
        self._compare_subscription(now_ms)

    def _compare_subscription(self, now_ms: int) -> None:
        if self.phase is Phase.STABLE and self.topics != self._joined_topics:
            self._want_rejoin("subscription has changed", now_ms=now_ms)

    @property
    def watched(self) -> frozenset[str]:
        """The topics whose partition counts matter: ours, and for the leader everybody's (CA-2)."""
        return self.topics | frozenset(self._leader_counts or ())

    def cluster_changed(self, counts: Mapping[str, int], now_ms: int) -> None:
        """Compare what the leader assigned with what there is now (CP-8, CP-10)."""
        seen = self._leader_counts
        if self.phase is not Phase.STABLE or seen is None:
            return
        if seen != {topic: counts.get(topic) for topic in seen}:
            self._want_rejoin("cached metadata has changed", now_ms=now_ms)

    # What to do

    def next(self, now_ms: int) -> Request:
        """Return what is to be sent now, or until when to wait."""
        if self.phase in (Phase.STOPPED, Phase.FAILED, Phase.ASLEEP):
            return Wait(None)
        if now_ms - self._called_at >= self.settings.max_poll_interval_ms:
            return self._fall_asleep()
        if now_ms < self._backoff_until:
            return Wait(self._backoff_until)
        if self.phase is Phase.STABLE and now_ms - self._heard_at >= self.settings.session_timeout_ms:
            self.coordinator_known = False
            self._heard_at = now_ms
        if not self.coordinator_known:
            return FindCoordinator()
        return self._group_request(now_ms)

    def _group_request(self, now_ms: int) -> Request:
        if self.phase is Phase.STABLE and self._may_rejoin(now_ms):
            self._give_up(self.generation, self.rejoin_why or "")
        if self.phase is Phase.UNJOINED:
            self._joined_topics = self.topics
            return Join(self.generation.member_id, self._protocols(), self.why)
        if self.phase is Phase.ASSIGNING:
            return Count(self._topics_of_all())
        if self.phase is Phase.SYNCING:
            return Sync(self.generation, self._assignments)
        if now_ms >= self._heartbeat_at:
            return Heartbeat(self.generation)
        return Wait(min(self._heartbeat_at, self._called_at + self.settings.max_poll_interval_ms))

    def _may_rejoin(self, now_ms: int) -> bool:
        """Whether the rebalance may begin: nothing is under way, or it took too long and counts as lost."""
        return self.rejoin_why is not None and (not self.busy or now_ms >= self._rejoin_by)

    def _protocols(self) -> tuple[tuple[str, bytes], ...]:
        """Return the subscription for each assignor; eager members own nothing when they join (CA-7)."""
        subscription = Subscription(
            topics=tuple(sorted(self.topics)),
            user_data=None,
            owned=(),
            generation=self.generation.id,
            rack=None,
        )
        data = subscription.encode()
        return tuple((name, data) for name in self.settings.assignors)

    def _fall_asleep(self) -> Request:
        """Leave since nobody calls; a static member goes without a word (HT-5)."""
        left = self.generation.member_id
        self._give_up(NOWHERE, "consumer poll timeout has expired")
        self.phase = Phase.ASLEEP
        if left and self.coordinator_known and self.settings.instance_id is None:
            return Leave(left, self.why)
        return Wait(None)

    def stop(self) -> Request:
        """End: return Leave if the group should hear of it, else nothing to do (CV-1, CV-2, CV-3)."""
        left = self.generation.member_id
        known = self.coordinator_known and self.phase not in (Phase.STOPPED, Phase.FAILED, Phase.ASLEEP)
        self._give_up(NOWHERE, "")
        self.phase = Phase.STOPPED
        if left and known and self.settings.instance_id is None:
            return Leave(left, "the consumer is being closed")
        return Wait(None)

    # What happened

    def found(self, code: Code, now_ms: int) -> None:
        """Take the answer to FindCoordinator."""
        if code is Code.GROUP_AUTHORIZATION_FAILED:
            self._fail(code)
        elif code:
            self._back_off(now_ms)
        else:
            self.coordinator_known = True
            self._heard_at = now_ms

    def lost_connection(self, now_ms: int) -> None:
        """Take the loss of the connection or an answer that did not come: look for the coordinator anew."""
        self.coordinator_known = False
        if self.phase in (Phase.ASSIGNING, Phase.SYNCING):
            self._give_up(self.generation, "rebalance failed due to DisconnectException")
        self._back_off(now_ms)

    def joined(self, answer: Joined, now_ms: int) -> None:
        """Take the answer to JoinGroup (table in behaviours 4.4)."""
        code = answer.code
        if code is Code.NONE:
            self._take_place(answer, now_ms)
        elif code is Code.MEMBER_ID_REQUIRED:
            self.generation = Generation(member_id=answer.member_id)
        elif code is Code.UNKNOWN_MEMBER_ID:
            self._give_up(NOWHERE, self.why)
        elif code in COORDINATOR_LOST or code in LATER:
            self.coordinator_known = code not in COORDINATOR_LOST
            self._back_off(now_ms)
        else:
            self._fail(code)

    def _take_place(self, answer: Joined, now_ms: int) -> None:
        self.generation = Generation(answer.generation, answer.member_id, answer.protocol)
        self._heard_at = now_ms
        self._heartbeat_at = now_ms + self.settings.heartbeat_interval_ms
        self._assignments = {}
        leads = answer.leader == answer.member_id
        self._joined = answer if leads else None
        self._leader_counts = None
        self.phase = Phase.ASSIGNING if leads else Phase.SYNCING

    def _topics_of_all(self) -> frozenset[str]:
        return frozenset(topic for member in self._subscribers() for topic in member.subscription.topics)

    def _subscribers(self) -> list[Subscriber]:
        """Return all members with what they subscribe; one that cannot be read subscribes nothing."""
        assert self._joined is not None
        return [
            Subscriber(member_id=member_id, instance_id=instance_id, subscription=subscription_of(data))
            for member_id, instance_id, data in self._joined.members
        ]

    def counted(self, counts: Mapping[str, int]) -> None:
        """Take the partition counts, and assign as the group's protocol says."""
        assert self.phase is Phase.ASSIGNING
        subscribers = self._subscribers()
        topics = self._topics_of_all()
        self._leader_counts = {topic: counts.get(topic) for topic in topics}
        self.phase = Phase.SYNCING
        # A static leader that came back finds its group assigned already (CA-3).
        if self._joined is not None and not self._joined.skip_assignment:
            known = {topic: counts[topic] for topic in topics & counts.keys()}
            given = assign(self.generation.protocol, Cluster(partition_counts=known), subscribers)
            self._assignments = {
                member_id: Assignment(partitions=tuple(partitions), user_data=None).encode()
                for member_id, partitions in given.items()
            }
        self._joined = None

    def synced(self, code: Code, assignment: bytes, now_ms: int) -> None:
        """Take the answer to SyncGroup (table in behaviours 4.4)."""
        if code is Code.NONE:
            self.owned = self._owned_by(assignment)
            self.phase = Phase.STABLE
            self._heard_at = now_ms
            self._compare_subscription(now_ms)
            return
        if code is Code.UNKNOWN_MEMBER_ID:
            self._give_up(NOWHERE, failed_in("SyncGroup", code))
        elif code is Code.ILLEGAL_GENERATION:
            self._give_up(self.generation._replace(id=-1), failed_in("SyncGroup", code))
        elif code in COORDINATOR_LOST or code in LATER:
            self.coordinator_known = self.coordinator_known and code not in COORDINATOR_LOST
            self._give_up(self.generation, failed_in("SyncGroup", code))
            if code is not Code.REBALANCE_IN_PROGRESS:
                self._back_off(now_ms)  # a coordinator that cannot write would be asked again at once (CJ-8)
        else:
            self._fail(code)

    def _owned_by(self, assignment: bytes) -> frozenset[TopicPartition]:
        """Return what the leader gave; a leader that gives nothing may send no bytes at all (SG-11)."""
        if not assignment:
            return frozenset()
        given = Assignment.decode(assignment).partitions
        return frozenset(one for one in given if one.topic in self._joined_topics)

    def heard(self, generation: Generation, code: Code, now_ms: int) -> None:
        """Take the answer to a heartbeat of `generation` (table in behaviours 4.5)."""
        if generation != self.generation or self.phase is not Phase.STABLE:
            return
        self._heartbeat_at = now_ms + self.settings.heartbeat_interval_ms
        if code in (Code.NONE, Code.REBALANCE_IN_PROGRESS):
            self._heard_at = now_ms
            if code:
                self._want_rejoin("group is already rebalancing", now_ms=now_ms)
        elif code in COORDINATOR_LOST:
            self.coordinator_known = False
        elif code is Code.ILLEGAL_GENERATION:
            self._give_up(generation._replace(id=-1), failed_in("Heartbeat", code))
        elif code is Code.UNKNOWN_MEMBER_ID:
            self._give_up(NOWHERE, failed_in("Heartbeat", code))
        elif code is Code.FENCED_INSTANCE_ID:
            self._fail(code)
        else:
            self._heartbeat_at = now_ms + self.settings.retry_backoff_ms

    def refused_commit(self, generation: Generation, code: Code, now_ms: int) -> None:
        """Take the refusal of a commit of `generation` (table in behaviours 4.8)."""
        if generation != self.generation or self.phase is not Phase.STABLE:
            return
        if code is Code.REBALANCE_IN_PROGRESS:
            self._want_rejoin("group is already rebalancing", now_ms=now_ms)
        elif code is Code.ILLEGAL_GENERATION:
            self._give_up(generation._replace(id=-1), failed_in("OffsetCommit", code))
        elif code is Code.UNKNOWN_MEMBER_ID:
            self._give_up(NOWHERE, failed_in("OffsetCommit", code))
        elif code in (Code.FENCED_INSTANCE_ID, Code.GROUP_AUTHORIZATION_FAILED):
            self._fail(code)

    # Steps that several share

    def _want_rejoin(self, why: str, *, now_ms: int) -> None:
        if self.rejoin_why is None:
            self.rejoin_why = why
            self._rejoin_by = now_ms + self.settings.max_poll_interval_ms

    def _give_up(self, generation: Generation, why: str) -> None:
        """Own nothing any more, and join next, as `generation` says: with or without the member id."""
        self.generation = generation
        self.owned = frozenset()
        self.busy = False
        self.rejoin_why = None
        self.why = why
        self.phase = Phase.UNJOINED
        self._joined = None
        self._leader_counts = None

    def _back_off(self, now_ms: int) -> None:
        self._backoff_until = now_ms + self.settings.retry_backoff_ms

    def _fail(self, code: Code) -> None:
        self._give_up(NOWHERE, failed_in("group", code))
        self.failure = RefusedBy(code, EXPLAINED.get(code, f"group {self.settings.group_id}"))
        self.phase = Phase.FAILED


EXPLAINED: Mapping[Code, str] = {
    Code.FENCED_INSTANCE_ID: "another member joined with the same group.instance.id and took the place",
    Code.GROUP_MAX_SIZE_REACHED: "the group has as many members as group.max.size allows",
    Code.INCONSISTENT_GROUP_PROTOCOL: (
        "the group's members have no assignor in common with partition.assignment.strategy,"
        " or it is no group of consumers"
    ),
    Code.INVALID_SESSION_TIMEOUT: (
        "session.timeout.ms is not between the broker's group.min.session.timeout.ms"
        " and group.max.session.timeout.ms"
    ),
}


def failed_in(api: str, code: Code) -> str:
    """Return the rejoin reason after an error, as Kafka's clients word it (CV-6)."""
    return f"encountered {code.name} from {api} response"


def subscription_of(data: bytes) -> Subscription:
    """Return what a member subscribes; bytes that cannot be read are none of a leader's to refuse."""
    try:
        return Subscription.decode(data)
    except Corrupt:
        return Subscription(topics=(), user_data=None, owned=(), generation=-1, rack=None)


def assign(
    protocol: str, cluster: Cluster, subscribers: Sequence[Subscriber]
) -> Mapping[str, tuple[TopicPartition, ...]]:
    """Return who gets what by the assignor that the group voted for."""
    return ASSIGNORS[protocol].assign(cluster, subscribers)
