"""Members of groups that send heartbeats and commits all the time, and keep when they were answered."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from coterie.base.ids import TopicPartition
from coterie.client.net import messages
from coterie.wire.api.codec import decode_response, encode_request
from coterie.wire.api.entities import response_type

TOPIC = "work"
SESSION_MS = 30_000
SILENT_S = 0.5  # after so long a member gives a connection up
FIND_EVERY_S = 0.01
REFUSED_S = 0.1  # so long an address is not tried that refuses connections
JOIN, HEARTBEAT, COMMIT, SYNC, FIND = 11, 12, 8, 14, 10
VERSIONS = {JOIN: 5, HEARTBEAT: 3, COMMIT: 7, SYNC: 3, FIND: 4}  # before tags: errors lie at the end
LIST_GROUPS = (16, 4)
NOT_HERE = (15, 16)
MEMBER_ID_REQUIRED = 79
SIZE, ERROR = struct.Struct(">i"), struct.Struct(">h")
Address = tuple[str, int]


class Asking:
    """A connection on which one request is asked after the other."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: Any) -> Any:
        """Return the answer. Raises OSError or EOFError without one; the next request connects anew."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(*self.address)
            reader, writer = self._streams
            writer.write(encode_request(1, "probe", request))
            (size,) = SIZE.unpack(await reader.readexactly(SIZE.size))
            frame = await reader.readexactly(size)
        except BaseException:
            self.close()
            raise
        return decode_response(response_type(request.__api_key__, request.__version__), frame)[1]

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def ask(address: Address, request: Any) -> Any:
    """Return the answer to one request, over a connection of its own."""
    asking = Asking(address)
    try:
        return await asking.ask(request)
    finally:
        asking.close()


async def has_loaded(address: Address) -> bool:
    """Return whether a broker has loaded all groups that it coordinates."""
    answer = await ask(address, messages.request(*LIST_GROUPS, states_filter=("Dead",)))  # which none is
    return not answer.error_code


class Member(asyncio.Protocol):
    """The one member of a group, which keeps when it was answered without error."""

    def __init__(self, probe: Probe, group: str) -> None:
        self.group = group
        self._probe = probe
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._buffer = b""
        self._waiting: list[list[float]] = []  # for whose answers, in order
        self._sent_s = 0.0
        self._frames = b""
        self.heartbeats: list[float] = []
        self.commits: list[float] = []

    # -- joining

    async def joined(self, coordinator: Asking) -> bool:
        """Become the group's member, and return True, unless its coordinator is not there yet."""
        answer = await self._join(coordinator, "")
        if answer.error_code == MEMBER_ID_REQUIRED:
            answer = await self._join(coordinator, answer.member_id)
        if answer.error_code:
            return False
        member: dict[str, Any] = {
            "group_id": self.group,
            "instance_id": None,
            "member_id": answer.member_id,
            "generation": answer.generation_id,
        }
        share = {answer.member_id: b""}
        sync = messages.sync_group(VERSIONS[SYNC], **member, protocol="range", assignments=share)
        if (await coordinator.ask(sync)).error_code:
            return False
        heartbeat = messages.heartbeat(VERSIONS[HEARTBEAT], **member)
        del member["group_id"]
        offsets = {TopicPartition(TOPIC, 0): 1}
        commit = messages.offset_commit(VERSIONS[COMMIT], self.group, offsets, **member)
        self._frames = encode_request(1, "probe", heartbeat) + encode_request(2, "probe", commit)
        return True

    async def _join(self, coordinator: Asking, member_id: str) -> Any:
        join = messages.join_group(
            VERSIONS[JOIN],
            group_id=self.group,
            instance_id=None,
            member_id=member_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            protocols=[("range", b"")],
            reason="",
        )
        return await coordinator.ask(join)

    # -- its connection

    @property
    def is_lost(self) -> bool:
        """Whether it has no connection."""
        return self._transport is None

    def found(self, address: Address) -> None:
        """Connect to the coordinator that a broker has named, unless it does already."""
        if self._transport is None and (self._connecting is None or self._connecting.done()):
            self._connecting = asyncio.create_task(self._connect(address))

    async def _connect(self, address: Address) -> None:
        try:
            async with asyncio.timeout(SILENT_S):
                await asyncio.get_running_loop().create_connection(lambda: self, *address)
        except (OSError, TimeoutError):
            self._probe.note_refused(address)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._buffer, self._waiting = b"", []
        self.tick(time.monotonic())

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._probe.lost.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        now_s = time.monotonic()
        while len(self._buffer) >= SIZE.size:
            end = SIZE.size + SIZE.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                return
            (error,) = ERROR.unpack_from(self._buffer, end - ERROR.size)
            self._buffer = self._buffer[end:]
            answered = self._waiting.pop(0)
            if not error:
                answered.append(now_s)
            elif self._transport is not None and error in NOT_HERE:
                self._transport.abort()
                return
            else:
                self._probe.errors.add(error)

    def tick(self, now_s: float) -> None:
        """Ask, unless something is under way."""
        if self._transport is None:
            return
        if not self._waiting:
            self._waiting = [self.heartbeats, self.commits]
            self._sent_s = now_s
            self._transport.write(self._frames)
        elif now_s - self._sent_s > SILENT_S:
            self._transport.abort()


def longest(answered: Sequence[float], since_s: float, until_s: float) -> float:
    """Return the longest time between two answers."""
    times = [since_s, *(at for at in answered if since_s < at < until_s), until_s]
    return max(after - before for before, after in pairwise(times))


def served_again(answered: Sequence[float], since_s: float, until_s: float) -> float:
    """Return when the longest time between two answers was over."""
    times = [since_s, *(at for at in answered if since_s < at < until_s), until_s]
    return max(pairwise(times), key=lambda pair: pair[1] - pair[0])[1]


class Probe:
    """All members, and who asks for their coordinators: as a client does, for all of its groups at once."""

    def __init__(self, addresses: Sequence[Address], groups: int, every_s: float) -> None:
        self.addresses = addresses
        self.errors: set[int] = set()
        self.lost = asyncio.Event()
        self.members = [Member(self, f"group-{number}") for number in range(groups)]
        self._every_s = every_s
        self._refused_s: dict[Address, float] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def join(self) -> None:
        """Have all members join, each once its coordinator has begun."""
        asking = {address: Asking(address) for address in self.addresses}
        waiting = {member.group: member for member in self.members}
        while waiting:
            for group, address in (await self._find(asking[self.addresses[0]], waiting)).items():
                if await waiting[group].joined(asking[address]):
                    del waiting[group]
            await asyncio.sleep(FIND_EVERY_S)
        for one in asking.values():
            one.close()

    async def _find(self, asking: Asking, groups: Sequence[str] | dict[str, Any]) -> dict[str, Address]:
        """Return the coordinators that a broker names."""
        answer = await asking.ask(messages.find_coordinator(VERSIONS[FIND], *groups))
        return {one.key: (one.host, one.port) for one in answer.coordinators if not one.error_code}

    def begin(self) -> None:
        """Have all members ask, for ever."""
        self.lost.set()
        work = [self._ask(), *(self._look_for_lost(Asking(address)) for address in self.addresses)]
        self._tasks = [asyncio.create_task(one) for one in work]

    def end(self) -> None:
        """Ask no more."""
        for task in self._tasks:
            task.cancel()

    async def _ask(self) -> None:
        """Have all members ask, evenly over each interval."""
        loop = asyncio.get_running_loop()
        parts = 10
        while True:
            for part in range(parts):
                begun = loop.time()
                for member in self.members[part::parts]:
                    member.tick(time.monotonic())
                await asyncio.sleep(max(0.0, begun + self._every_s / parts - loop.time()))

    async def _look_for_lost(self, asking: Asking) -> None:
        """Ask a broker again and again for the coordinators of members without a connection."""
        while True:
            await self.lost.wait()
            await asyncio.sleep(FIND_EVERY_S)
            lost = {member.group: member for member in self.members if member.is_lost}
            if not lost:
                self.lost.clear()
                continue
            try:
                async with asyncio.timeout(SILENT_S):
                    found = await self._find(asking, [*lost])
            except (OSError, EOFError, TimeoutError):
                await asyncio.sleep(REFUSED_S)
                continue
            for group, address in found.items():
                if self._refused_s.get(address, 0.0) + REFUSED_S <= time.monotonic():
                    lost[group].found(address)

    def note_refused(self, address: Address) -> None:
        """Take note that nobody is at an address for now."""
        self._refused_s[address] = time.monotonic()
