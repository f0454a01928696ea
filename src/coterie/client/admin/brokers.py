"""Which broker an administrator asks, and how: again while what went wrong may pass, a change only once.

A broker of Coterie's that is cut off from its database goes on answering with what was before, and names no
controller. So whoever is asked, before a change, for it and after it, is a broker that knows a controller,
where one does: by what another remembers a topic that was just made is not there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from coterie.base.codes import Code
from coterie.base.errors import CoterieError, RefusedBy
from coterie.base.ids import TopicPartition
from coterie.client.admin import messages as requests
from coterie.client.admin.messages import ClusterInfo
from coterie.client.errors import ClientTimeout, Disconnected, Unsupported, given_up
from coterie.client.net.addresses import Address
from coterie.client.net.cluster import Cluster
from coterie.client.net.messages import Rpc

T = TypeVar("T")
Broker = Callable[[], Awaitable[Address]]
"""Finds the broker to ask, anew for each try."""
NO_CONTROLLER = (
    "%s: for %g s the cluster has written no changes (%s): no broker that answers names a controller, and of"
    " Coterie's none does while its database is away; %s; check PostgreSQL (of Apache Kafka the controller):"
    " a broker's log says since when and why, look for `suspended`"
)
NOTHING, PERHAPS = "nothing was changed", "this may have been done, or be done yet: look once it is back"
BY_ONE_PERHAPS = "by one of the tries this may have been done, or be done yet: look before you try again"
GRACE_S, GRACE_MOST_S, ROUND_TRIPS = 0.5, 3.0, 10
"""So long others are waited for at least and at most where one broker knows no controller, and between these
as many times as long as its answer took: to connect to them, over TLS and with SASL, takes some round trips.
"""
NOT_NOW = (Code.NOT_CONTROLLER, Code.REQUEST_TIMED_OUT)
"""What a broker answers that cannot have changes written."""


def no_codes(_: object) -> Iterable[Code]:
    """Return the codes in an answer that is refused as a whole, or not at all."""
    return ()


class Tries:
    """The tries of one change, each within `with`: it may be done though nobody said so.

    A connection is opened before: where none can be opened, nothing was sent. A change that `only_asks` what
    would be is never done.
    """

    def __init__(self, *, only_asks: bool = False) -> None:
        self.uncertain = False
        """Whether a try before this one may have been carried out."""
        self.knew_controller = True
        """Whether a broker named a controller at the last try, as far as that got."""
        self._only_asks = only_asks

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unanswered = isinstance(error, Disconnected | ClientTimeout)
        late = isinstance(error, RefusedBy) and error.code is Code.REQUEST_TIMED_OUT
        self.uncertain = self.uncertain or (not self._only_asks and (unanswered or late))


class AskedBroker(NamedTuple):
    """A broker that is asked for the cluster, since when, and where its answer will be."""

    address: Address
    since_s: float
    answer: asyncio.Task[ClusterInfo]


class Brokers:
    """Asks a cluster's brokers for an administrator."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._asked: dict[tuple[Address, bool], AskedBroker] = {}
        """Those whose answers to `describe_cluster` are still to come, each asked once at a time."""

    async def close(self) -> None:
        """Wait for no answer any more."""
        late = [one.answer for one in self._asked.values()]
        for one in late:
            one.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def ask(self, what: str, rpc: Rpc[T], *, of: Broker | None = None) -> T:
        """Return the content of the answer of the broker that `of` finds, or of an informed one; retried."""
        find = of or self.informed

        async def ask() -> T:
            return await self._cluster.ask(await find(), rpc)

        return await self._cluster.retrying(what, ask)

    async def change(
        self,
        what: str,
        rpc: Rpc[T],
        *,
        done: Mapping[Code, Callable[[], Awaitable[T]]],
        codes_in: Callable[[T], Iterable[Code]] = no_codes,
        only_asks: bool = False,
    ) -> T:
        """Return the content of the controller's answer to a change; retried.

        A code in `done` that comes after a try of which nobody knows what became says that it was done: then
        what is found there is returned. Else it does not pass by waiting. Where no broker knows a controller
        any of them is sent it: there are services whose brokers never name one. What they refuse then, as a
        whole or by one of `codes_in` the answer, may be for want of a database, and that is said. So is that
        a try may have been carried out, whatever the last one ends with, unless a change `only_asks`.
        """
        tries = Tries(only_asks=only_asks)

        async def ask() -> T:
            tries.knew_controller = True
            controller = await self._controller()
            tries.knew_controller = controller is not None
            broker = await self._cluster.connection(controller or await self.anyone())
            try:
                with tries:
                    answer = await self._cluster.ask_over(broker, rpc)
                    if not tries.knew_controller and Code.REQUEST_TIMED_OUT in codes_in(answer):
                        raise RefusedBy(Code.REQUEST_TIMED_OUT, what)
                    return answer
            except RefusedBy as refusal:
                if refusal.code not in done or not tries.uncertain:
                    raise
                return await done[refusal.code]()

        try:
            return await self._cluster.retrying(what, ask, final=done)
        except ClientTimeout as error:
            last = error.last
            if not tries.knew_controller and isinstance(last, RefusedBy) and last.code in NOT_NOW:
                known = PERHAPS if tries.uncertain else NOTHING
                said = NO_CONTROLLER % (what, self._cluster.api_timeout_s, last.code.name, known)
            elif tries.uncertain:
                said = f"{error}; {BY_ONE_PERHAPS}"
            else:
                raise
            raise given_up(said, last) from error
        except RefusedBy as refusal:
            if tries.uncertain and refusal.code not in done:
                refusal.args = (f"{refusal}; {BY_ONE_PERHAPS}",)
            raise

    async def describe_cluster(self, *, fenced: bool = False, patient: bool = False) -> ClusterInfo:
        """Return the cluster's id, controller and brokers, as one of them says that knows a controller; where
        none does, as one of them says. Brokers that do not answer soon are waited for by who is `patient`.
        """

        async def ask() -> ClusterInfo:
            address = await self.anyone()
            began_s = asyncio.get_running_loop().time()
            found = await self._described_by(address, fenced=fenced)
            if found.controller_id < 0:
                took_s = asyncio.get_running_loop().time() - began_s
                grace_s = min(max(GRACE_S, ROUND_TRIPS * took_s), GRACE_MOST_S)
                found = await self._described_by_another(found, fenced, None if patient else grace_s)
            self._cluster.pass_over(found.cut_off)
            return found

        return await self._cluster.retrying("DescribeCluster", ask)

    async def _described_by(self, address: Address, *, fenced: bool) -> ClusterInfo:
        found = await self._cluster.ask(address, requests.describe_cluster(fenced=fenced))
        return found._replace(said_by=address)

    async def _described_by_another(
        self, found: ClusterInfo, fenced: bool, grace_s: float | None
    ) -> ClusterInfo:
        """Return the cluster as the first broker says that knows a controller; where none does, as it was
        `found`. All others are asked at once: each may be silent for as long as a request may take, which is
        waited for where there is no `grace_s`.
        """
        addresses = {*(one.address for one in found.brokers), *self._cluster.addresses} - {found.said_by}
        asked = [self._ask_for_cluster(one, fenced) for one in sorted(addresses)]
        while asked:
            left_s = None if grace_s is None else grace_s - _asked_for_s(asked)
            if left_s is not None and left_s <= 0:
                break
            done, _ = await asyncio.wait(
                [one.answer for one in asked], timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            for one in done:
                with suppress(CoterieError, asyncio.CancelledError):  # it does not know better
                    if (other := one.result()).controller_id >= 0:
                        return other._replace(cut_off=found.said_by)
            asked = [one for one in asked if one.answer not in done]
        for late in asked:
            self._cluster.note_silent(late.address)
        return found._replace(cut_off=found.said_by)

    def _ask_for_cluster(self, address: Address, fenced: bool) -> AskedBroker:
        """Return the question to a broker, one that is under way if there is. Where nobody waits any more for
        its answer, that still tells the broker from those that are silent.
        """
        key = address, fenced
        if key not in self._asked:
            answer = asyncio.create_task(
                self._described_by(address, fenced=fenced), name=f"the cluster by {address}"
            )
            self._asked[key] = AskedBroker(address, asyncio.get_running_loop().time(), answer)
            answer.add_done_callback(lambda done: self._answered(key, done))
        return self._asked[key]

    def _answered(self, key: tuple[Address, bool], answer: asyncio.Task[ClusterInfo]) -> None:
        del self._asked[key]
        if not answer.cancelled():
            answer.exception()  # noted, even if nobody waits for it any more

    async def anyone(self) -> Address:
        """Return a broker that can be reached, first of those to which there is a connection."""

        async def reached(address: Address) -> Address:
            await self._cluster.connection(address)
            return address

        return await self._cluster.first_of(self._cluster.by_load(), reached)

    async def informed(self) -> Address:
        """Return a broker that knows a controller. Where none does, or none can be asked, it is any."""
        try:
            said_by = (await self.describe_cluster()).said_by
        except Unsupported:  # before Kafka 2.8
            said_by = None
        return said_by or await self.anyone()

    async def _controller(self) -> Address | None:
        """Return the broker to send changes to: in KRaft any passes them on, and names itself or another.
        None where no broker that can be reached names one. Of brokers that cannot be asked it is any.
        """
        try:
            found = await self.describe_cluster(patient=True)
        except Unsupported:  # before Kafka 2.8
            return await self.anyone()
        known = {broker.broker_id: broker.address for broker in found.brokers}
        if found.controller_id < 0:
            return None
        return known.get(found.controller_id) or found.said_by

    def leader_of(self, partition: TopicPartition) -> Broker:
        """Return a lookup of the partition's leader."""

        async def leader() -> Address:
            self._cluster.forget([partition.topic])
            return (await self._cluster.leaders([partition]))[partition]

        return leader


def _asked_for_s(asked: Iterable[AskedBroker]) -> float:
    """Return for how long now the one that was asked last has not answered."""
    return asyncio.get_running_loop().time() - max(one.since_s for one in asked)


def at(address: Address) -> Broker:
    """Return a lookup of the broker at this address."""

    async def found() -> Address:
        return address

    return found
