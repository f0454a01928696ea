"""One broker that partitions are fetched from: what to ask it for, when, and in which words."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from coterie.base.ids import TopicPartition
from coterie.client.consumer.fetch_session import Ask, FetchPosition, FetchSession
from coterie.client.consumer.fetch_state import FetchState
from coterie.client.net import messages
from coterie.client.net.addresses import Address
from coterie.client.settings import ConsumerSettings

NODE_IDLE_S = 1.0
# So often the log's end is asked for news while there is other work: such a fetch does not wait there.
ENDS_EVERY_S = 0.1


class Fetchable(NamedTuple):
    """What to ask a broker for."""

    partitions: dict[TopicPartition, FetchState]
    more_soon: bool
    """Whether others are left out until some of their stock is gone: an answer must not be long then."""
    at_ends: bool
    """Whether all are known to have nothing now."""


class BrokerFetch:
    """A broker that partitions are fetched from, and the task that does it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.session = FetchSession[FetchPosition]()
        self.woken = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.ends_asked_at = 0.0
        """When those at their ends were last asked for, on the loop's clock."""

    def idle_s(self, wanted: Fetchable, now_s: float) -> float:
        """Return the seconds for which nothing is to be asked for, unless something moves.

        A broker that has nothing to send waits before it answers, and a partition whose records are taken
        meanwhile could not be asked for. So partitions at their ends are asked for together with others, or
        without waiting and not often.
        """
        if not wanted.partitions:
            return NODE_IDLE_S
        if not (wanted.more_soon and wanted.at_ends):
            return 0
        return self.ends_asked_at + ENDS_EVERY_S - now_s

    async def idle(self, most_s: float) -> None:
        """Wait until there may be something to fetch."""
        try:
            async with asyncio.timeout(most_s):
                await self.woken.wait()
        except TimeoutError:
            pass


def request_of(
    settings: ConsumerSettings, ask: Ask[FetchPosition], *, max_wait_ms: int, room: int
) -> Callable[[int], Any]:
    """Return a function that makes the Fetch request in a version; `room` is how many bytes may come."""

    def make(version: int) -> Any:
        return messages.fetch(
            version,
            {at: place.offset for at, place in ask.positions.items()},
            max_wait_ms=max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=min(settings.fetch_max_bytes, room),
            partition_max_bytes=settings.max_partition_fetch_bytes,
            isolation=settings.isolation,
            session=ask.session,
            forgotten=ask.forgotten,
            rack=settings.client_rack,
            epochs={at: place.leader_epoch for at, place in ask.positions.items()},
        )

    return make
