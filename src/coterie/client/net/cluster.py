"""A cluster as a client sees it: who leads what, who coordinates whom, which offsets there are.

Every question is asked again while what went wrong may pass, until its time is up.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from coterie.base.codes import Code
from coterie.base.errors import RefusedBy
from coterie.base.ids import OffsetAndMetadata, TopicPartition
from coterie.client.ending import shared
from coterie.client.errors import RETRIABLE, ClientTimeout, Closed, Disconnected, given_up
from coterie.client.member.backoff import Backoff
from coterie.client.net import messages
from coterie.client.net.addresses import Address
from coterie.client.net.connection import PLAIN, Connection
from coterie.client.net.jitter import jitter
from coterie.client.net.messages import EpochEnd, ListedOffset, Metadata, Rpc
from coterie.client.net.silence import Silence
from coterie.client.settings import ClientSettings, Security
from coterie.wire.api.apis import ApiKey
from coterie.wire.api.codec import only

GROUPS_AT_ONCE = 10_000
"""So many groups are asked for in one request; some 600 KB."""
WITHOUT_LEADER = (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.LEADER_NOT_AVAILABLE)
OTHERS_WITHIN_S = 1.0
"""How long others are asked, some of which may be dead, before one whose answer lacked something is again."""
SILENT_AGAIN_S = 5.0
"""How soon one that was silent is asked before such a one again: it may be well by now, and know more."""
T = TypeVar("T")


class Cluster:
    """Connections to a cluster's brokers, opened when first needed; used from one loop."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        client_id: str = "coterie",
        request_timeout_ms: int = 30_000,
        api_timeout_ms: int = 60_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        security: Security = PLAIN,
    ) -> None:
        self.bootstrap = tuple(bootstrap)
        self.client_id = client_id
        self.security = security
        self.request_timeout_s = request_timeout_ms / 1000
        self.api_timeout_s = api_timeout_ms / 1000
        self.backoff = partial(Backoff, retry_backoff_ms, retry_backoff_max_ms, jitter=jitter)
        """Makes what says how long to wait before each next try (KIP-580)."""
        self.known = Metadata({}, {})
        self.passed_over: Address | None = None
        """A broker that is asked last what any of them may answer: it could not tell what was wanted. One
        that is cut off, as from its database, goes on answering with what was before.
        """
        self._silent: dict[Address, float] = {}
        """Those that have not answered in time, and not since either; and when that was seen last."""
        self._teller: Address | None = None  # who has answered last what any of them may
        # whose coordinator was looked up last, and who has answered
        self._last_lookup: tuple[int, str, Address | None] | None = None
        self._connections: dict[tuple[str, Address], Connection] = {}
        self._coordinators: dict[str, Address] = {}
        self._opening: dict[tuple[str, Address], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._lookups: dict[tuple[int, str], asyncio.Task[Address]] = {}
        self._closed = False
        self._silence = Silence(self.bootstrap)

    @classmethod
    def of(cls, settings: ClientSettings) -> "Cluster":
        """Return the cluster that a client's settings name; reads the certificates' files."""
        return cls(
            settings.addresses,
            client_id=settings.client_id,
            request_timeout_ms=settings.request_timeout_ms,
            api_timeout_ms=settings.default_api_timeout_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
            retry_backoff_max_ms=settings.retry_backoff_max_ms,
            security=settings.security(),
        )

    async def connection(self, address: Address, *, purpose: str = "data") -> Connection:
        """Return the open connection to this address that serves this purpose."""
        key = (purpose, address)
        async with self._opening[key]:
            self._check_open()
            held = self._connections.get(key)
            if held is None or held.closed:
                held = await self._heard(
                    address,
                    Connection.open(
                        address,
                        client_id=self.client_id,
                        timeout_s=self.request_timeout_s,
                        security=self.security,
                    ),
                )
                try:
                    self._check_open()
                except Closed:  # meanwhile: nobody else would close this one
                    held.close()
                    await held.wait_closed()
                    raise
                self._connections[key] = held
            return held

    async def ask(self, address: Address, rpc: Rpc[T], *, purpose: str = "data") -> T:
        """Return the content of one broker's answer; asked once, refusals are raised."""
        return await self.ask_over(await self.connection(address, purpose=purpose), rpc)

    async def ask_over(self, broker: Connection, rpc: Rpc[T]) -> T:
        """Return the content of the answer over this connection; asked once, refusals are raised."""
        answer = broker.call(rpc.api_key, rpc.make, self.request_timeout_s)
        return rpc.read(await self._heard(broker.address, answer))

    async def _heard(self, address: Address, answer: Awaitable[T]) -> T:
        """Return the answer of a broker, and take note whether it comes in time."""
        try:
            answered = await answer
        except ClientTimeout:
            self.note_silent(address)
            raise
        self._silent.pop(address, None)
        return answered

    def note_silent(self, address: Address) -> None:
        """Have a broker that does not answer be asked behind all others, until it answers once."""
        self._silent[address] = asyncio.get_running_loop().time()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this client is closed; make another one")

    def drop(self, address: Address, *, purpose: str) -> None:
        """Close one connection: whatever waits on it raises Disconnected."""
        held = self._connections.pop((purpose, address), None)
        if held is not None:
            held.close()

    async def close(self) -> None:
        """Close all connections, and wait until they are; none is opened after that."""
        self._closed = True
        lookups = list(self._lookups.values())
        for lookup in lookups:
            lookup.cancel()
        closing = [*self._connections.values()]
        self._connections.clear()
        for held in closing:  # all of them before anything is waited for: who waits may be cancelled
            held.close()
        await asyncio.gather(*lookups, return_exceptions=True)
        for held in closing:
            await held.wait_closed()

    async def reach(self) -> None:
        """Connect to one of the addresses that were given, or raise Disconnected at once if none is there."""
        await self.first_of(self.bootstrap, self.connection)

    @property
    def addresses(self) -> list[Address]:
        """The brokers last heard of, then the addresses that were given, each once."""
        return [*dict.fromkeys((*self.known.brokers.values(), *self.bootstrap))]

    async def first_of(self, addresses: Iterable[Address], ask: Callable[[Address], Awaitable[T]]) -> T:
        """Return the result of `ask` for the first broker that can be reached, or raise Disconnected."""
        tried: list[str] = []
        for address in addresses:
            try:
                return await ask(address)
            except (Disconnected, ClientTimeout) as error:
                tried.append(str(error))
        raise Disconnected("; ".join(tried))

    # What the cluster looks like

    async def metadata(self, topics: Iterable[str] | None, *, create: bool = False) -> Metadata:
        """Return fresh metadata of these topics (None: of all), from any broker that answers."""
        wanted = None if topics is None else sorted(set(topics))

        async def ask() -> Metadata:
            return await self._ask_any(wanted, create=create)

        return await self.retrying("Metadata", ask)

    async def _ask_any(self, topics: list[str] | None, *, create: bool = False) -> Metadata:
        make = partial(messages.metadata, topics=topics, create=create)
        rpc = Rpc(ApiKey.METADATA, make, messages.read_metadata)
        found = await self.ask_first(rpc, lacks=_lacks_leaders)
        self.known = found._replace(topics={**self.known.topics, **found.topics})
        return found

    async def ask_first(
        self, rpc: Rpc[T], *, purpose: str = "data", lacks: Callable[[T], bool] = lambda _: False
    ) -> T:
        """Return the content of the answer of the first broker that can be reached. One that is passed over
        is asked when the others have not answered for a while, and before those that were silent lately.
        """

        asked: list[Address] = []

        async def ask(address: Address) -> T:
            asked.append(address)
            try:
                found = await self.ask(address, rpc, purpose=purpose)
            except RefusedBy:
                self.passed_over = address
                raise
            self._teller = address
            if lacks(found):
                self.passed_over = address
            elif self.passed_over == address:
                self.passed_over = None
            return found

        order = self.by_load()
        last = [one for one in order if one == self.passed_over]
        others = [one for one in order if one not in last and not self._was_silent_lately(one)]
        if not others or not last:
            return await self.first_of(order, ask)
        try:
            async with asyncio.timeout(OTHERS_WITHIN_S):
                return await self.first_of(others, ask)
        except TimeoutError:
            self.note_silent(asked[-1])
        except Disconnected:
            pass
        return await self.first_of([*last, *(one for one in order if one not in last)], ask)

    def _was_silent_lately(self, address: Address) -> bool:
        seen_s = self._silent.get(address)
        return seen_s is not None and asyncio.get_running_loop().time() < seen_s + SILENT_AGAIN_S

    def by_load(self) -> list[Address]:
        """Return all brokers, those first on whose open connections the least is waited for (CL-1). Behind
        them is the one that is passed over, and behind that are those that do not answer.
        """

        def load(address: Address) -> tuple[bool, bool, bool, int]:
            last = (address in self._silent, address == self.passed_over)
            held = self._connections.get(("data", address))
            return (*last, True, 0) if held is None or held.closed else (*last, False, held.waiting)

        return sorted(self.addresses, key=load)

    def pass_over(self, address: Address | None) -> None:
        """Have this broker be asked last, if any: who is cut off has been found out, and what was looked up
        before speaks against nobody.
        """
        self.passed_over, self._last_lookup = address, None

    async def leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Address]:
        """Return the address of each partition's leader; asks again while one has none."""
        wanted = set(partitions)
        found = self.known_leaders(wanted)
        if len(found) == len(wanted):
            return found

        async def ask() -> dict[TopicPartition, Address]:
            await self._ask_any(sorted({one.topic for one in wanted}))
            found = self.known_leaders(wanted)
            missing = sorted(wanted - found.keys())
            if missing:
                raise RefusedBy(self.known.why_without_leader(missing[0]), str(missing[0]))
            return found

        return await self.retrying("Metadata", ask)

    def known_leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Address]:
        """Return the leaders last heard of, as far as there are any."""
        found = {}
        for one in partitions:
            topic = self.known.topics.get(one.topic)
            leader = -1 if topic is None else topic.leaders.get(one.partition, -1)
            if leader in self.known.brokers:
                found[one] = self.known.brokers[leader]
        return found

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Return the epoch that the leader last heard of leads in, -1 if it is not known."""
        topic = self.known.topics.get(partition.topic)
        return -1 if topic is None else topic.epochs.get(partition.partition, -1)

    def forget(self, topics: Iterable[str]) -> None:
        """Drop what is known of these topics' leaders: it proved wrong."""
        gone = set(topics)
        self.known = self.known._replace(
            topics={name: topic for name, topic in self.known.topics.items() if name not in gone}
        )

    async def list_offsets(
        self, stamps: Mapping[TopicPartition, int], *, isolation: int = 0
    ) -> dict[TopicPartition, ListedOffset]:
        """Return the offset of each partition at its timestamp (or messages.EARLIEST, LATEST)."""

        async def ask() -> dict[TopicPartition, ListedOffset]:
            by_leader: dict[Address, dict[TopicPartition, int]] = defaultdict(dict)
            for one, address in (await self.leaders(stamps)).items():
                by_leader[address][one] = stamps[one]
            answers = await asyncio.gather(
                *(self._list_at(address, part, isolation) for address, part in by_leader.items())
            )
            return {one: listed for answer in answers for one, listed in answer.items()}

        topics = {one.topic for one in stamps}
        return await self.retrying("ListOffsets", ask, forget=lambda: self.forget(topics))

    async def _list_at(
        self, address: Address, stamps: Mapping[TopicPartition, int], isolation: int
    ) -> dict[TopicPartition, ListedOffset]:
        make = partial(messages.list_offsets, stamps=stamps, isolation=isolation)
        listed = await self.ask(address, Rpc(ApiKey.LIST_OFFSETS, make, messages.read_list_offsets))
        for one, offset in listed.items():
            if offset.code:
                raise RefusedBy(offset.code, f"ListOffsets of {one}")
        return listed

    async def end_of_epochs(
        self, address: Address, asked: Mapping[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, EpochEnd]:
        """Return the ends of epochs by one broker's answer; asked once."""
        make = partial(messages.end_of_epochs, asked=asked)
        return await self.ask(address, Rpc(ApiKey.OFFSET_FOR_LEADER_EPOCH, make, messages.read_epoch_ends))

    # Groups

    async def coordinator(self, key: str, *, kind: int = messages.GROUP) -> Address:
        """Return the address of a group's or transactional id's coordinator, asked once; refusals are raised.

        Whoever asks while a lookup is under way waits for that one (CL-1).
        """
        lookup = self._lookups.get((kind, key))
        if lookup is None:
            lookup = asyncio.create_task(self._look_up(kind, key), name=f"coordinator of {key}")
            self._lookups[kind, key] = lookup
            lookup.add_done_callback(lambda done: self._looked_up(kind, key, done))
        return await shared(lookup, Closed("this client was closed meanwhile"))

    def _looked_up(self, kind: int, key: str, lookup: asyncio.Task[Address]) -> None:
        self._lookups.pop((kind, key), None)
        if not lookup.cancelled():
            lookup.exception()  # noted, even if nobody waits for it any more

    async def _look_up(self, kind: int, key: str) -> Address:
        if self._last_lookup is not None and self._last_lookup[:2] == (kind, key):
            self.passed_over = self._last_lookup[2]  # what it said was of no use
        with self._silence.during(f"FindCoordinator of {key}", passing=RETRIABLE):
            if not self.known.brokers:
                await self._ask_any([])
            found = await self.ask_first(messages.find_coordinators([key], kind=kind))
        self._last_lookup = (kind, key, self._teller)
        address: Address = only(found, "coordinators")[1]
        return address

    async def _ask_for_offsets(self, group_id: str, rpc: Rpc[T]) -> T:
        """Return the content of the answer of the group's coordinator, the last known."""
        if group_id not in self._coordinators:
            self._coordinators[group_id] = await self.coordinator(group_id)
        return await self.ask(self._coordinators[group_id], rpc, purpose="offsets")

    async def committed(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        """Return the group's committed offsets (require_stable), None where there is none (4.8)."""
        noted = await self.committed_notes(group_id, partitions)
        return {at: None if one is None else one.offset for at, one in noted.items()}

    async def committed_notes(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the same with the leader epoch and the metadata that were committed beside each."""
        wanted = sorted(set(partitions))
        make = partial(messages.offset_fetch, group_id=group_id, partitions=wanted)
        fetching = Rpc(ApiKey.OFFSET_FETCH, make, messages.read_committed)

        async def ask() -> dict[TopicPartition, OffsetAndMetadata | None]:
            code, offsets = await self._ask_for_offsets(group_id, fetching)
            if code:
                raise RefusedBy(code, f"OffsetFetch of group {group_id}")
            return {one: offsets.get(one) for one in wanted}

        if not wanted:
            return {}
        return await self.retrying(
            "OffsetFetch",
            ask,
            forget=lambda: self._coordinators.pop(group_id, None),
            final=frozenset({Code.UNKNOWN_TOPIC_OR_PARTITION}),
        )

    async def notes_of_groups(
        self, group_ids: Iterable[str], at: TopicPartition
    ) -> dict[str, OffsetAndMetadata | None]:
        """Return each group's committed offset of one partition: one request to each coordinator."""
        wanted = sorted(set(group_ids))
        found: dict[str, OffsetAndMetadata | None] = {}

        async def ask(some: Sequence[str]) -> None:
            for address, ours in (await self._coordinators_of(some)).items():
                make = partial(messages.offset_fetch_of, group_ids=ours, partitions=[at])
                fetching = Rpc(ApiKey.OFFSET_FETCH, make, messages.read_committed_of)
                answers = await self.ask(address, fetching, purpose="offsets")
                for group_id, (code, noted) in answers.items():
                    if code:
                        raise RefusedBy(code, f"OffsetFetch of group {group_id}")
                    found[group_id] = noted.get(at)

        for start in range(0, len(wanted), GROUPS_AT_ONCE):
            await self.retrying("OffsetFetch", partial(ask, wanted[start : start + GROUPS_AT_ONCE]))
        return found

    async def _coordinators_of(self, group_ids: Sequence[str]) -> dict[Address, list[str]]:
        """Return each coordinator with those of the groups that it has."""
        found: dict[Address, list[str]] = defaultdict(list)
        for group_id, address in await self.ask_first(messages.find_coordinators(group_ids)):
            found[address].append(group_id)
        return found

    async def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        *,
        generation: int = -1,
        member_id: str = "",
        instance_id: str | None = None,
        retry: bool = True,
    ) -> Code:
        """Commit and return the first code that is not worth another try: NONE, or why it was refused.

        By default as nobody's member (CC-3); for no offsets nothing is sent (CC-4). Without `retry`, whatever
        goes wrong is raised at once.
        """

        make = partial(
            messages.offset_commit,
            group_id=group_id,
            offsets=offsets,
            generation=generation,
            member_id=member_id,
            instance_id=instance_id,
        )

        async def ask() -> Code:
            code = await self._ask_for_offsets(
                group_id, Rpc(ApiKey.OFFSET_COMMIT, make, messages.read_offset_commit)
            )
            if code in RETRIABLE:
                raise RefusedBy(code, f"OffsetCommit of group {group_id}")
            return code

        if not offsets:
            return Code.NONE
        if not retry:
            try:
                return await ask()
            except (Disconnected, ClientTimeout, RefusedBy):
                self._coordinators.pop(group_id, None)
                raise
        return await self.retrying("OffsetCommit", ask, forget=lambda: self._coordinators.pop(group_id, None))

    # Trying again

    async def retrying(
        self,
        what: str,
        ask: Callable[[], Awaitable[T]],
        *,
        forget: Callable[[], object] = bool,
        final: Container[Code] = (),
    ) -> T:
        """Return the result of `ask`; after an error that may pass, forget what may be wrong and ask again.

        The codes in `final` do not pass here. What takes some seconds is told in the log.
        """
        with self._silence.during(what):
            return await self._tried(what, ask, forget, final)

    async def _tried(
        self,
        what: str,
        ask: Callable[[], Awaitable[T]],
        forget: Callable[[], object],
        final: Container[Code],
    ) -> T:
        clock = asyncio.get_running_loop()
        until = clock.time() + self.api_timeout_s
        backoff = self.backoff()
        while True:
            pause_s = backoff.next_ms() / 1000
            try:
                return await ask()
            except (Disconnected, ClientTimeout, RefusedBy) as error:
                if isinstance(error, RefusedBy) and (error.code not in RETRIABLE or error.code in final):
                    raise
                last = error.last if isinstance(error, ClientTimeout) else None  # of a question within this
                if last is not None or clock.time() + pause_s > until:
                    raise self._given_up(what, last or error) from error
                self._silence.failed(what, error, clock.time())
            forget()
            await asyncio.sleep(pause_s)

    def note_answer(self, what: str, code: Code) -> None:
        """Have it told, where that goes on for long, that who asks this is refused, and asks again."""
        with suppress(RefusedBy), self._silence.during(what, passing=RETRIABLE):
            if code:
                raise RefusedBy(code, what)

    def _given_up(self, what: str, last: Exception) -> ClientTimeout:
        return given_up(f"{what}: tried for {self.api_timeout_s:g} s, last {last}", last)


def _lacks_leaders(found: Metadata) -> bool:
    """Return whether a broker knows no leader of something that it was asked for."""
    return any(
        topic.code in WITHOUT_LEADER or not found.brokers.keys() >= {*topic.leaders.values()}
        for topic in found.topics.values()
    )
