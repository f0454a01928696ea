"""Which broker an administrator asks, and how: again while what went wrong may pass, a change only once."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from coterie.base.codes import Code
from coterie.base.errors import RefusedBy
from coterie.base.ids import TopicPartition
from coterie.client.admin import messages as requests
from coterie.client.admin.messages import ClusterInfo
from coterie.client.errors import ClientTimeout, Disconnected
from coterie.client.net.addresses import Address
from coterie.client.net.cluster import Cluster
from coterie.client.net.messages import Rpc

T = TypeVar("T")
Broker = Callable[[], Awaitable[Address]]
"""Finds the broker to ask, anew for each try."""
NO_CONTROLLER = (
    "%s: for %g s no broker has taken changes: as far as can be told none reaches its database (Apache"
    " Kafka's: a controller), and %s; check PostgreSQL, a broker's log says since when and why: look for"
    " `suspended`"
)
NOTHING, PERHAPS = "nothing was changed", "this may have been done before: look once it is back"


class Tries:
    """The tries of one change, each within `with`: it may be done though nobody said so.

    A connection is opened before: where none can be opened, nothing was sent.
    """

    def __init__(self) -> None:
        self.uncertain = False
        """Whether a try before this one may have been carried out."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unanswered = isinstance(error, Disconnected | ClientTimeout)
        late = isinstance(error, RefusedBy) and error.code is Code.REQUEST_TIMED_OUT
        self.uncertain = self.uncertain or unanswered or late


class Brokers:
    """Asks a cluster's brokers for an administrator."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def ask(self, what: str, rpc: Rpc[T], *, of: Broker | None = None) -> T:
        """Return the content of the answer of the broker that `of` finds, or of any; retried."""
        find = of or self.anyone

        async def ask() -> T:
            return await self._cluster.ask(await find(), rpc)

        return await self._cluster.retrying(what, ask)

    async def change(self, what: str, rpc: Rpc[T], *, done: Mapping[Code, Callable[[], Awaitable[T]]]) -> T:
        """Return the content of the controller's answer to a change; retried.

        A code in `done` that comes after a try of which nobody knows what became says that it was done: then
        what is found there is returned. Else it does not pass by waiting. Where no broker takes changes that
        is said, with what is known of this one.
        """
        tries = Tries()

        async def ask() -> T:
            broker = await self._cluster.connection(await self.controller())
            try:
                with tries:
                    return await self._cluster.ask_over(broker, rpc)
            except RefusedBy as refusal:
                if refusal.code not in done or not tries.uncertain:
                    raise
                return await done[refusal.code]()

        try:
            return await self._cluster.retrying(what, ask, final=done)
        except ClientTimeout as error:
            last = error.last
            if not isinstance(last, RefusedBy) or last.code is not Code.NOT_CONTROLLER:
                raise
            known = PERHAPS if tries.uncertain else NOTHING
            given_up = ClientTimeout(NO_CONTROLLER % (what, self._cluster.api_timeout_s, known))
            given_up.last = last
            raise given_up from error

    async def describe_cluster(self, *, fenced: bool = False) -> ClusterInfo:
        """Return the cluster's id, controller and brokers, as one of them says."""

        async def ask() -> ClusterInfo:
            return await self._described_by(await self.anyone(), fenced=fenced)

        return await self._cluster.retrying("DescribeCluster", ask)

    async def _described_by(self, address: Address, *, fenced: bool = False) -> ClusterInfo:
        found = await self._cluster.ask(address, requests.describe_cluster(fenced=fenced))
        return found._replace(said_by=address)

    async def anyone(self) -> Address:
        """Return a broker that can be reached."""

        async def reached(address: Address) -> Address:
            await self._cluster.connection(address)
            return address

        return await self._cluster.first_of(self._cluster.addresses, reached)

    async def controller(self) -> Address:
        """Return the broker to send changes to: in KRaft any passes them on, and names itself or another.

        Raises `RefusedBy` where no broker names one.
        """
        found = await self.describe_cluster()
        if found.controller_id < 0:
            found = await self._described_by_another(found)
        known = {broker.broker_id: broker.address for broker in found.brokers}
        return known.get(found.controller_id) or await self.anyone()

    async def _described_by_another(self, found: ClusterInfo) -> ClusterInfo:
        """Return the cluster as a broker says that knows a controller: one alone may be cut off."""
        for broker in found.brokers:
            if broker.address != found.said_by:
                with suppress(Disconnected, ClientTimeout):
                    other = await self._described_by(broker.address)
                    if other.controller_id >= 0:
                        return other
        raise RefusedBy(Code.NOT_CONTROLLER, "no broker that answers knows a controller")

    def leader_of(self, partition: TopicPartition) -> Broker:
        """Return a lookup of the partition's leader."""

        async def leader() -> Address:
            self._cluster.forget([partition.topic])
            return (await self._cluster.leaders([partition]))[partition]

        return leader


def at(address: Address) -> Broker:
    """Return a lookup of the broker at this address."""

    async def found() -> Address:
        return address

    return found
