"""Where a member stands, and the changes of that which several stages share. Pure."""

import re
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial

from coterie.assign.model import Assignor, RebalanceProtocol
from coterie.assign.registry import new_assignor
from coterie.assign.vote import common_protocol
from coterie.base.codes import Code
from coterie.base.errors import RefusedBy
from coterie.base.ids import (
    GroupMetadata,
    TopicPartition,
)
from coterie.client.member.backoff import Backoff, spaced, steady
from coterie.client.member.leader import Leadership, View
from coterie.client.member.reactions import EXPLAINED
from coterie.client.member.requests import (
    NO_GENERATION,
    Call,
    Generation,
    Join,
    Request,
    Sync,
)
from coterie.client.member.settings import MemberSettings

Step = Callable[[int], Request | None]


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
NOTHING: frozenset[TopicPartition] = frozenset()


class Standing:
    """A member's phase, its place in the group, what it owns, what is under way, and when what is due."""

    def __init__(
        self,
        settings: MemberSettings,
        *,
        now_ms: int,
        auto_commit: bool = False,
        jitter: Callable[[], float] = steady,
    ) -> None:
        self.settings, self.auto_commit = settings, auto_commit
        self.assignors, self.protocol = made_assignors(settings)
        self.phase = Phase.UNJOINED
        self.generation = NO_GENERATION
        self.owned: frozenset[TopicPartition] = frozenset()
        self.coordinator_known = False
        self.failure: RefusedBy | None = None
        """What ended the membership, if something did."""
        self.rejoin_why: str | None = ""
        """Why the member wants to join; None while it does not (CV-6)."""
        self.wanted_why = ""
        """Why it last wanted to; unlike `rejoin_why`, it stays, and tells nothing of joins tried again."""
        self.held = False
        self.pattern: re.Pattern[str] | None = None
        self.topics: frozenset[str] = frozenset()
        self.subscribed = False
        self._joined_topics = self.topics
        self._returned = False
        """Whether it may have taken the place of an earlier self that had something to give up yet."""
        self._pending_error: BaseException | None = None
        self._out: dict[type[Request], Request] = {}
        self.owned_in = NO_GENERATION
        """The generation that gave what is owned."""
        self._handed_out_in = NO_GENERATION
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
        self._disconnect_wanted = False
        self._called_at = self._answered_at = self._heartbeat_at = now_ms
        self._find_at = self._join_at = self._metadata_at = self._watch_at = self._describe_at = now_ms
        self._commit_at = now_ms + spaced(settings.auto_commit_interval_ms)
        backoff = partial(Backoff, settings.retry_backoff_ms, settings.retry_backoff_max_ms, jitter=jitter)
        self._find_backoff, self._heartbeat_backoff, self._metadata_backoff = backoff(), backoff(), backoff()

    # What it comes to

    @property
    def ready(self) -> bool:
        """Whether the member is at work, nothing is to be given up or handed out, and if it has come back, it
        knows that nothing was left to nobody meanwhile.
        """
        idle = not self._agenda and self._awaited is None and self.rejoin_why is None
        return self.at_work and idle and not self._returned

    @property
    def at_work(self) -> bool:
        """Whether what is owned is what this generation gave, be it about to be given up."""
        return self.phase is Phase.STABLE and self.owned_in == self.generation

    @property
    def holds_owned(self) -> bool:
        """Whether what is owned is still this member's to commit: as `at_work`; in a cooperative group also
        what a rebalance has not taken away yet, though a newer generation has begun.
        """
        kept = self.protocol is RebalanceProtocol.COOPERATIVE and self.generation.valid
        return self.phase is Phase.STABLE and (kept or self.owned_in == self.generation)

    @property
    def fetchable(self) -> frozenset[TopicPartition]:
        """What may be fetched and handed out now: what is owned and not about to be given up (CB-1)."""
        return self.owned - self._pending if self._pending else self.owned

    @property
    def announced(self) -> frozenset[TopicPartition]:
        """What the application is being told of as assigned: nothing of it is handed out before it knows."""
        call = self._awaited
        if isinstance(call, Call) and call.kind == "assigned":
            return frozenset(call.partitions)
        return NOTHING

    def handed_out(self) -> None:
        """Note that the application has been handed what there was of what is owned, be it nothing."""
        if self.owned_in.valid:
            self._handed_out_in = self.owned_in

    def metadata(self, *, current: bool = False) -> GroupMetadata:
        """The member's identity in commits: in the generation whose records were handed out last, as long as
        there was any. If `current`, as the listener's methods are to see it (CB-14), in that of now, unless
        it is lost: a commit in no generation is nobody's, and would be taken whoever has the partitions.
        """
        place = self._handed_out_in
        if not place.valid or (current and self.generation.valid):
            place = self.generation
        return GroupMetadata(self.settings.group_id, place.id, place.member_id, self.settings.instance_id)

    @property
    def _under_way(self) -> bool:
        """Whether a join or sync is out."""
        return Join in self._out or Sync in self._out

    # What several stages do

    def _due(self, at_ms: int, now_ms: int) -> bool:
        """Return whether the time has come; if not, remember it."""
        if now_ms >= at_ms:
            return True
        self._soonest = at_ms if self._soonest is None else min(self._soonest, at_ms)
        return False

    def _taken(self, request: Request) -> None:
        """Note that a request is not under way any more."""
        taken = self._out.pop(type(request))
        assert taken is request

    def _matching(self) -> frozenset[str]:
        """Return the topics there are that the pattern matches; it must match the whole name."""
        assert self.pattern is not None
        return frozenset(topic for topic in self._seen if self.pattern.fullmatch(topic))

    def _wants(self, topic: str) -> bool:
        return topic in self.topics if self.pattern is None else bool(self.pattern.fullmatch(topic))

    def _suspend(self, partitions: frozenset[TopicPartition]) -> None:
        """Hand out nothing more of these."""
        self._pending |= partitions

    def _drop(self, partitions: frozenset[TopicPartition], now_ms: int) -> None:
        self.owned -= partitions
        self._pending &= self.owned

    def _want_rejoin(self, why: str, now_ms: int) -> None:
        """Have a rebalance begin, when the application is ready for it."""
        if self.rejoin_why is None:
            self._rejoin_by = now_ms + self.settings.max_poll_interval_ms
        self.rejoin_why = self.wanted_why = why

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
        self._disconnect_wanted = self._disconnect_wanted or self.coordinator_known
        self.coordinator_known = False

    def _complain(self, error: BaseException) -> None:
        """Keep the first thing that the application has to hear of (CB-10)."""
        self._pending_error = self._pending_error or error

    def _fail(self, code: Code) -> None:
        """End the membership, for good: every call of the application raises it from now on (CP-2)."""
        self._disconnect_wanted = self._disconnect_wanted or self._under_way
        self._reset(NO_GENERATION, "", self._called_at)
        self.failure = RefusedBy(code, EXPLAINED.get(code, f"group {self.settings.group_id}"))
        self.phase = Phase.FAILED


def made_assignors(settings: MemberSettings) -> tuple[dict[str, Assignor], RebalanceProtocol]:
    """Return the assignors by name, and how their members give up partitions (CA-6, CO-4)."""
    made: Sequence[Assignor] = [
        new_assignor(one) if isinstance(one, str) else one for one in settings.assignors
    ]
    return {one.name: one for one in made}, common_protocol(made)
