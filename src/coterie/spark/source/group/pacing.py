"""What a member and its query wait for: a rebalance for the batch under way, a batch for its trigger."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from coterie.base.ids import TopicPartition
from coterie.client.consumer.listener import RebalanceListener
from coterie.client.member import Generation, MemberSettings, Phase
from coterie.client.member.runner import Membership
from coterie.client.net.silence import next_word_s

log = logging.getLogger("coterie.spark")

# No call of Spark's waits longer than this for records: a reader must notice that its application died.
LONGEST_WAIT_S = 0.25
# So long at most where the query has other sources: what comes there meanwhile has to wait.
SHORT_WAIT_S = 0.05
# A batch that takes so much of the rebalance timeout is warned of.
NEARLY = 0.8
# Who reads nothing says what it waits for after so long, and again each time after twice as long as before.
FIRST_WARNING_S = 10.0


class OtherSources:
    """Knows from Spark's calls whether a query has other sources, and how long to wait for records then.

    Spark asks all sources of a query one after the other. One that waits holds the others up. None is told of
    the others; but each is told when a batch begins (`commit`), also one that had nothing for it.
    """

    def __init__(self) -> None:
        self._gave = False
        self._begun = False
        self._others = False

    def batch_began(self) -> None:
        """Note that Spark began a batch since it last asked."""
        self._begun = True

    def longest_wait_s(self) -> float:
        """Return the seconds that a source may wait which has nothing to read just now."""
        if self._begun and not self._gave:
            self._others = True
        busy = self._begun and self._others
        self._begun = self._gave = False
        return 0.0 if busy else SHORT_WAIT_S if self._others else LONGEST_WAIT_S

    def has_rows(self) -> None:
        """Note that the next batch has something of this source."""
        self._gave = True


class Barrier(RebalanceListener):
    """Gives nothing up before the batch under way is done and committed (rule 3 of `protocol`).

    The member heartbeats meanwhile. A batch is lost, and waited for no longer, when the member is thrown out
    of its generation, or when the others have waited as long as a coordinator lets them.
    """

    def __init__(self, place: Callable[[], Generation | None], *, limit_s: float) -> None:
        self._place, self._limit_s = place, limit_s
        self._free = asyncio.Event()
        self._free.set()
        self.assigned_at = ""
        """When the last rebalance was over for this member."""

    def hold(self) -> None:
        """Note that a batch of what is owned is under way."""
        self._free.clear()

    def release(self) -> None:
        """Note that no batch is under way."""
        self._free.set()

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Wait for the batch, while it is worth anything."""
        clock, place = asyncio.get_running_loop(), self._place()
        until = clock.time() + self._limit_s
        while not self._free.is_set() and self._place() == place and clock.time() < until:
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_WAIT_S):
                    await self._free.wait()
        self._free.set()

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Note when a generation began for this member."""
        self.assigned_at = datetime.now(UTC).isoformat(timespec="milliseconds")

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Give the batch up: others may read it already."""
        self._free.set()


class PollIntervalCheck:
    """Looks that Spark comes back within the rebalance timeout. Where nobody says that a batch has ended, its
    end is learnt with the next plan.

    The interval of a query's trigger is not told to Python sources, so what is judged is what was measured.
    """

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings
        self._since: float | None = None
        self._ended = False
        self._warned_s = 0.0

    def planned(self, now_s: float) -> None:
        """Note that a batch begins."""
        self._since, self._ended = now_s, False

    def ended(self, now_s: float) -> None:
        """Note that it is over, and Spark waits for its trigger from now on."""
        if self._since is not None and not self._ended:
            self._judge("a batch", now_s)
            self._since, self._ended = now_s, True

    def called(self, now_s: float) -> None:
        """Note that Spark asks for the next."""
        self._judge(
            "the wait for a trigger" if self._ended else "a batch and the wait for its trigger", now_s
        )
        self._since = None

    def _judge(self, what: str, now_s: float) -> None:
        """Warn where something took nearly too long, or too long."""
        if self._since is None:
            return
        took_s = now_s - self._since
        limit_s = self._settings.max_poll_interval_ms / 1000
        if took_s < limit_s * NEARLY or took_s < self._warned_s * 1.2:
            return
        self._warned_s = took_s
        over = "more than" if took_s > limit_s else f"{took_s / limit_s:.0%} of"
        log.warning(
            "group %s: %s took %.1f s, %s kafka.max.poll.interval.ms"
            " (%g s), the group's rebalance timeout. A member that takes longer loses its partitions, and"
            " others read its batch again: set it higher, take less with maxOffsetsPerTrigger, or trigger"
            " more often",
            self._settings.group_id,
            what,
            took_s,
            over,
            limit_s,
        )


class WaitLog:
    """Says what a query waits for that has nothing to read from: soon, then ever more seldom."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._since: float | None = None
        self._next_s = FIRST_WARNING_S

    def about(self, what: str, now_s: float) -> None:
        """Note what is waited for now, nothing if `what` is empty; say it if that has been so for long."""
        if not what:
            self._since, self._next_s = None, FIRST_WARNING_S
            return
        if self._since is None:
            self._since = now_s
        waited_s = now_s - self._since
        if waited_s >= self._next_s:
            self._next_s = next_word_s(waited_s)
            log.warning("group %s: reads nothing for %.0f s: it waits for %s", self._group_id, waited_s, what)


def waited_for(membership: Membership, *, servers: str) -> str:
    """Return the sentence about what a member waits for, "" if it has a partition to read from."""
    member, group_id = membership.member, membership.settings.group_id
    who = f"`coterie groups describe {group_id} --members --bootstrap {servers}` shows who is in it"
    if not member.coordinator_known:
        return f"the group's coordinator, from {servers}" + (
            membership.trouble and f" ({membership.trouble})"
        )
    if member.phase is Phase.JOINING:
        return f"the group's other members to join as well (each has its rebalance timeout for that); {who}"
    if member.phase is Phase.SYNCING:
        return f"the group's leader to say who reads what; {who}"
    if membership.owned:
        return ""
    if membership.missing:
        return f"topic {', '.join(sorted(membership.missing))}: there is none of that name at {servers}"
    if member.pattern is not None and not member.topics:
        return f"a topic that {member.pattern.pattern} matches: there is none at {servers}"
    if member.ready:
        return f"a partition: other members have them all, or are to be back for them; {who}"
    return f"its place in the group ({member.phase.value})"
