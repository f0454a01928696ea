"""`python -m bench.failover [HOW ...]`: how long groups wait when a broker of three goes, over PostgreSQL.

A member in each group sends a heartbeat and a commit every few milliseconds, over a connection of its own.
A round ends one broker; each member of its groups has a longest time between two answers free of error, for
heartbeats and for commits, and the round has that of the slowest. HOW is of `kill` (SIGKILL), `counting`
(SIGKILL where the database's sessions are not looked at) and `stop` (SIGTERM); all by default.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import statistics
import struct
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.machine import describe
from bench.postgres import Server, ensure_installed
from bench.store_cluster import StoreCluster
from coterie.base.hashes import coordinator_partition
from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.client.net import messages
from coterie.wire.api.codec import decode_response, encode_request
from coterie.wire.api.entities import response_type

HOWS = ("kill", "counting", "stop")
TOPIC = "work"
SESSION_MS = 30_000
SETTLED_S, WATCHED_S = 3.0, 6.0
SILENT_S = 0.5  # after so long a member gives a connection up
JOIN, HEARTBEAT, COMMIT, SYNC, FIND = 11, 12, 8, 14, 10
VERSIONS = {JOIN: 5, HEARTBEAT: 3, COMMIT: 7, SYNC: 3, FIND: 4}  # before tags: errors lie at the end
SIZE, ERROR = struct.Struct(">i"), struct.Struct(">h")
Address = tuple[str, int]


async def ask(address: Address, request: Any) -> Any:
    """Return the answer to one request, over a connection of its own."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(encode_request(1, "probe", request))
        (size,) = SIZE.unpack(await reader.readexactly(SIZE.size))
        frame = await reader.readexactly(size)
        return decode_response(response_type(request.__api_key__, request.__version__), frame)[1]
    finally:
        writer.close()


class Member(asyncio.Protocol):
    """The one member of a group, which keeps when it was answered without error."""

    def __init__(self, probe: Probe, group: str) -> None:
        self.group = group
        self._probe = probe
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._waiting: list[list[float]] = []  # for whose answers, in order
        self._sent_s = 0.0
        self._looking: asyncio.Task[None] | None = None
        self.heartbeats: list[float] = []
        self.commits: list[float] = []

    async def join(self) -> None:
        """Become the group's member, once its coordinator has begun."""
        while True:
            if await self._joined():
                return
            await asyncio.sleep(0.02)

    async def _joined(self) -> bool:
        address = await self._find()
        asked: dict[str, Any] = {"group_id": self.group, "instance_id": None}
        joined = await ask(
            address,
            messages.join_group(
                VERSIONS[JOIN],
                **asked,
                member_id="",
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=SESSION_MS,
                protocols=[("range", b"")],
                reason="",
            ),
        )
        if joined.error_code == 79:  # MEMBER_ID_REQUIRED
            joined = await ask(
                address,
                messages.join_group(
                    VERSIONS[JOIN],
                    **asked,
                    member_id=joined.member_id,
                    session_timeout_ms=SESSION_MS,
                    rebalance_timeout_ms=SESSION_MS,
                    protocols=[("range", b"")],
                    reason="",
                ),
            )
        if joined.error_code:
            return False
        mine = {**asked, "member_id": joined.member_id, "generation": joined.generation_id}
        synced = await ask(
            address,
            messages.sync_group(
                VERSIONS[SYNC], **mine, protocol="range", assignments={joined.member_id: b""}
            ),
        )
        if synced.error_code:
            return False
        commit = messages.offset_commit(
            VERSIONS[COMMIT],
            self.group,
            {TopicPartition(TOPIC, 0): 1},
            generation=joined.generation_id,
            member_id=joined.member_id,
            instance_id=None,
        )
        heartbeat = messages.heartbeat(VERSIONS[HEARTBEAT], **mine)
        self._frames = encode_request(1, "probe", heartbeat) + encode_request(2, "probe", commit)
        return True

    async def _find(self) -> Address:
        """Return the coordinator, as the first broker that knows it says."""
        request = messages.find_coordinator(VERSIONS[FIND], self.group)
        while True:
            for address in self._probe.addresses:
                try:
                    async with asyncio.timeout(SILENT_S):
                        found = (await ask(address, request)).coordinators[0]
                except (OSError, EOFError, TimeoutError):
                    continue
                if not found.error_code:
                    return found.host, found.port
            await asyncio.sleep(0.02)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        while self._transport is None:
            try:
                async with asyncio.timeout(SILENT_S):
                    await loop.create_connection(lambda: self, *await self._find())
            except (OSError, TimeoutError):
                await asyncio.sleep(0.02)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._buffer, self._waiting = b"", []

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

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
            elif self._transport is not None and error in (15, 16):
                self._transport.abort()  # its coordinator is another
                return
            else:
                self._probe.errors.add(error)

    def tick(self, now_s: float) -> None:
        """Ask, unless something is under way."""
        if self._transport is None:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._connect())
        elif not self._waiting:
            self._waiting = [self.heartbeats, self.commits]
            self._sent_s = now_s
            self._transport.write(self._frames)
        elif now_s - self._sent_s > SILENT_S:
            self._transport.abort()

    def longest(self, answered: list[float], since_s: float, until_s: float) -> float:
        """Return the longest time between two answers."""
        times = [since_s, *(at for at in answered if since_s < at < until_s), until_s]
        return max(after - before for before, after in pairwise(times))


class Probe:
    """All members."""

    def __init__(self, addresses: list[Address], groups: int, every_s: float) -> None:
        self.addresses = addresses
        self.errors: set[int] = set()
        self.members = [Member(self, f"group-{number}") for number in range(groups)]
        self._every_s = every_s

    async def join(self) -> None:
        """Have all members join, a few at a time."""
        for member in self.members:
            await member.join()

    async def run(self) -> None:
        """Have all members ask, for ever, evenly over each interval."""
        loop = asyncio.get_running_loop()
        parts = 10
        while True:
            for part in range(parts):
                begun = loop.time()
                for member in self.members[part::parts]:
                    member.tick(time.monotonic())
                await asyncio.sleep(max(0.0, begun + self._every_s / parts - loop.time()))


async def rounds(cluster: StoreCluster, probe: Probe, how: str, number: int) -> list[tuple[float, float]]:
    """Return the longest silence of heartbeats and of commits in each round."""
    found = []
    await probe.join()
    asking = asyncio.create_task(probe.run())
    for at in range(number):
        victim = cluster[1 + at % len(cluster.brokers)]
        await asyncio.sleep(SETTLED_S)
        leaders = await asyncio.to_thread(cluster.leaders, OFFSETS_TOPIC)
        hit = [
            one
            for one in probe.members
            if leaders[coordinator_partition(one.group, partition_count=len(leaders))] == victim.node_id
        ]
        begun_s = time.monotonic()
        await asyncio.to_thread(victim.stop if how == "stop" else victim.kill)
        await asyncio.sleep(begun_s + WATCHED_S - time.monotonic())
        ended_s = time.monotonic()
        silences = [
            [member.longest(answered, begun_s, ended_s) for answered in (member.heartbeats, member.commits)]
            for member in hit
        ]
        heartbeats, commits = (max(column) for column in zip(*silences, strict=True))
        print(f"{how}: {len(hit)} groups, heartbeats {heartbeats:.3f} s, commits {commits:.3f} s", flush=True)
        found.append((heartbeats, commits))
        await asyncio.to_thread(victim.start)
        await asyncio.sleep(1.0)
    asking.cancel()
    return found


def measured(server: Server, how: str, asked: argparse.Namespace) -> str:
    """Return a row of the table."""
    settings = {"coterie.presence.enable": "false" if how == "counting" else "true"}
    with (
        tempfile.TemporaryDirectory() as folder,
        StoreCluster(server, Path(folder), settings=settings) as cluster,
    ):
        addresses = [("127.0.0.1", one.port) for one in cluster.brokers.values()]
        probe = Probe(addresses, asked.groups, asked.every_ms / 1000)
        asyncio.run(make_topic(addresses[0]))
        found = asyncio.run(rounds(cluster, probe, how, asked.rounds))
    heartbeats, commits = zip(*found, strict=True)
    cells = [
        f"{1000 * of(all_of):.0f}" for all_of in (heartbeats, commits) for of in (statistics.median, max)
    ]
    other = ", ".join(map(str, sorted(probe.errors))) or "none"
    return f"| {how} | {len(found)} | {' | '.join(cells)} | {other} |"


async def make_topic(address: Address) -> None:
    """Make the topic that offsets are committed for."""
    topic = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1}
    answer = await ask(address, messages.request(19, 4, topics=[topic], timeout=10_000))
    assert not answer.topics[0].error_code, answer


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=__doc__)
    parser.add_argument("how", nargs="*", metavar="HOW", help=f"of {', '.join(HOWS)}")
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--every-ms", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    asked.how = asked.how or HOWS
    if unknown := {*asked.how} - {*HOWS}:
        parser.error(f"no such end: {', '.join(unknown)}")
    ensure_installed()
    with Server({"fsync": "on", "synchronous_commit": "on", "synchronous_standby_names": ""}) as server:
        rows = [measured(server, how, asked) for how in asked.how]
    print(f"{datetime.date.today()}, {describe()['processor']}")
    print(f"{asked.groups} groups, every {asked.every_ms:g} ms")
    print("| how | rounds | heartbeats: median ms | worst | commits: median ms | worst | other errors |")
    print("|---|---:|---:|---:|---:|---:|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
