"""What a consumer reads: topics as a member of a group, or partitions that were assigned by hand."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from weakref import WeakSet

from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.client.consumer.listener import RebalanceListener
from coterie.client.ending import begun, cut_short
from coterie.client.errors import WrongUse
from coterie.client.member import MemberSettings
from coterie.client.member.runner import Membership, caller
from coterie.client.net.cluster import Cluster
from coterie.client.partitions import Partitions, many
from coterie.client.settings import ConsumerSettings

log = logging.getLogger("coterie.client")


class Subscription:
    """The topics or partitions that were asked for, and the membership that serves them."""

    def __init__(
        self,
        settings: ConsumerSettings,
        *,
        done: Callable[[], Mapping[TopicPartition, OffsetAndMetadata]],
        applied: Callable[[frozenset[TopicPartition]], None],
    ) -> None:
        """`done` returns the positions for auto commit; `applied` is called with what may be fetched."""
        self._settings, self._done, self._applied = settings, done, applied
        self.topics: tuple[str, ...] | re.Pattern[str] | None = None
        self.assigned: tuple[TopicPartition, ...] = ()
        self.membership: Membership | None = None
        self._listener: RebalanceListener | None = None
        self._parted: dict[asyncio.Task[None], Membership] = {}
        """Memberships that were given up, and what ends them."""
        self._memberships: WeakSet[Membership] = WeakSet()
        """All there were: a method of the listener may still run that one of them has called."""

    # What is asked for

    def subscribe(
        self,
        topics: Iterable[str],
        pattern: str | re.Pattern[str] | None,
        listener: RebalanceListener | None,
    ) -> None:
        """Take topics or a pattern, or raise WrongUse for what cannot be subscribed to now."""
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        for name in names:
            if not isinstance(name, str):  # Consumer(["orders"]) is easily written
                raise WrongUse(
                    f'a topic\'s name is text, not {name!r}: Consumer("a", "b"), subscribe(["a", "b"])'
                )
        if bool(names) == (pattern is not None):
            raise WrongUse("subscribe wants topics or a pattern, one of them")
        if not self._settings.group_id:
            raise WrongUse("subscribing needs a group_id; without one, assign partitions")
        if self.assigned:
            raise WrongUse("partitions are assigned by hand; unsubscribe() first")
        self.topics = names if pattern is None else compiled(pattern)
        if listener is not None and self.membership is not None and listener is not self._listener:
            raise WrongUse("unsubscribe() before another listener is given")
        self._listener = listener or self._listener

    def assign(self, partitions: Partitions) -> None:
        """Take partitions, or raise WrongUse while topics are subscribed to."""
        if self.topics is not None:
            raise WrongUse("this consumer is subscribed; unsubscribe() first")
        self.assigned = many(partitions)

    def apply(self, cluster: Cluster) -> None:
        """Fetch what is assigned by hand, or be a member for what is subscribed to."""
        if self.topics is None:
            self._applied(frozenset(self.assigned))
        elif self.membership is not None:
            self.membership.subscribe(self.topics)
        else:
            self.membership = Membership(
                cluster,
                member_settings(self._settings),
                self.topics,
                listener=self._listener,
                progress=self._done if self._settings.enable_auto_commit else None,
                applied=self._applied,
                after=tuple(self._parted),
            )
            self._memberships.add(self.membership)

    # What there is

    @property
    def caller(self) -> Membership | None:
        """The membership that waits for the listener's method which this is part of, if it is one of ours."""
        found = caller()
        return found if found is not None and found in self._memberships else None

    @property
    def current(self) -> Membership | None:
        """The membership to commit for: in a method of the listener that which has called it."""
        return self.caller or self.membership

    @property
    def member(self) -> Membership:
        """The membership, or WrongUse where there is none."""
        if self.membership is None:
            raise WrongUse("only a subscribed consumer is a member of a group")
        return self.membership

    def owned(self) -> frozenset[TopicPartition]:
        """Return the partitions that are this consumer's now."""
        membership = self.current
        return frozenset(self.assigned) if membership is None else membership.owned

    def handed_out(self) -> None:
        """Note that the application is handed what there was of what is owned, be it nothing."""
        if self.membership is not None:
            self.membership.handed_out()

    # Its end

    def give_up(self, done: Mapping[TopicPartition, OffsetAndMetadata]) -> "asyncio.Task[None] | None":
        """Want nothing any more; return the task that leaves the group, if there was a membership."""
        membership, self.membership = self.membership, None
        self.topics, self.assigned, self._listener = None, (), None
        if membership is None:
            return None
        membership.part(done)
        parting = begun(membership.close(), name="leaves the group")
        self._parted[parting] = membership
        parting.add_done_callback(self._parted.pop)
        return parting

    def report(self, parting: "asyncio.Task[None]") -> None:
        """Log the error that a membership's end has raised, where nobody waits for it."""
        if not parting.cancelled() and parting.exception() is not None:
            log.warning("group %s: leaving it: %s", self._settings.group_id, parting.exception())

    async def close(self, leave: bool | None, until: float) -> None:
        """End all memberships, within the time that is left until then on the monotonic clock."""
        if self.membership is not None:
            await self.membership.close(leave=leave, timeout_s=max(0, until - time.monotonic()))
        if self._parted:
            await asyncio.wait(self._parted, timeout=max(0, until - time.monotonic()))

    async def cut(self, leave: bool | None) -> None:
        """End at once what has not ended."""
        await cut_short(*self._parted)
        if self.membership is not None:
            await self.membership.cut(leave)


def compiled(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    """Return a pattern of Python's `re`, which topics' whole names are to match."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise WrongUse(f"{pattern!r} is no pattern: {error}; write it as Python's re has it") from None


def member_settings(settings: ConsumerSettings) -> MemberSettings:
    """Return the member's part of a consumer's settings."""
    assert settings.group_id is not None
    return MemberSettings(
        group_id=settings.group_id,
        instance_id=settings.group_instance_id,
        session_timeout_ms=settings.session_timeout_ms,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        max_poll_interval_ms=settings.max_poll_interval_ms,
        assignors=settings.assignors(),
        retry_backoff_ms=settings.retry_backoff_ms,
        retry_backoff_max_ms=settings.retry_backoff_max_ms,
        auto_commit_interval_ms=settings.auto_commit_interval_ms,
        metadata_max_age_ms=settings.metadata_max_age_ms,
        rack=settings.client_rack or None,
    )
