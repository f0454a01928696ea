"""A cluster of three, and one of its brokers that goes, again and again."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench.failover.filling import fill_groups, fill_offsets, fill_partitions, make_topics
from bench.failover.phases import Phases, phases
from bench.failover.probe import TOPIC, Address, Member, Probe, has_loaded, longest, served_again
from bench.kafka import SetupError
from bench.postgres import Server
from bench.store_cluster import StoreBroker, StoreCluster
from coterie.base.hashes import coordinator_partition
from coterie.base.topic_names import OFFSETS_TOPIC

SETTLED_S, WATCHED_S = 3.0, 6.0
LOADED_WITHIN_S = 60.0


class Round(NamedTuple):
    """What one round has shown, in seconds."""

    heartbeats: float
    """The longest silence of heartbeats, of the groups that the broker led; then of commits."""
    commits: float
    elsewhere: float
    """The longest silence of heartbeats of groups that it did not lead."""
    served: float
    """When the last member was answered again that had waited longest, since the signal."""
    phases: Phases


class Rounds:
    """A probe's members in a cluster, and what becomes of them."""

    def __init__(self, cluster: StoreCluster, *, groups: int, every_s: float) -> None:
        self.cluster = cluster
        self.addresses: list[Address] = [("127.0.0.1", one.port) for one in cluster.brokers.values()]
        self._groups, self._every_s = groups, every_s
        self.probe: Probe

    async def run(self, how: str, number: int) -> list[Round]:
        """Return what so many rounds show."""
        self.probe = Probe(self.addresses, self._groups, self._every_s)
        await self.probe.join()
        at_first = await asyncio.to_thread(self.cluster.leaders, OFFSETS_TOPIC)
        await self._fill(how)
        self.probe.begin()
        found = []
        for at in range(number):
            await self._until_loaded(at_first)
            await asyncio.sleep(SETTLED_S)
            victim = await self._victim(how, at)
            found.append(await self._round(victim, how))
            await asyncio.to_thread(victim.start)
        self.probe.end()
        return found

    async def _fill(self, how: str) -> None:
        address = self.addresses[0]
        if how == "offsets":
            await fill_offsets(address, self.probe.members[0].group, len(self.cluster.leaders(OFFSETS_TOPIC)))
        elif how == "partitions":
            await fill_partitions(address, 1)
        elif how == "groups":
            cluster = self.cluster
            await asyncio.to_thread(cluster.stop)
            await fill_groups(cluster.server.url(cluster.database))
            await asyncio.to_thread(cluster.start)
            self.probe.lost.set()

    async def _until_loaded(self, leaders: list[int | None]) -> None:
        """Return once everybody leads what it led at first, and has loaded it: what others still load since
        they began is no part of what a death costs. Raises `SetupError` where that takes too long.
        """
        until = time.monotonic() + LOADED_WITHIN_S
        while not (
            await asyncio.to_thread(self.cluster.leaders, OFFSETS_TOPIC) == leaders
            and all([await has_loaded(address) for address in self.addresses])
        ):
            if time.monotonic() > until:
                raise SetupError(f"not all groups are loaded within {LOADED_WITHIN_S:.0f} s")
            await asyncio.sleep(0.1)

    async def _victim(self, how: str, at: int) -> StoreBroker:
        """Return the broker to go: who leads what there is much of, else each in turn."""
        if how == "offsets":
            group = self.probe.members[0].group
            return self.cluster[await asyncio.to_thread(self.cluster.leader_of, OFFSETS_TOPIC, group)]
        return self.cluster[1 + at % (1 if how == "partitions" else len(self.cluster.brokers))]

    async def _round(self, victim: StoreBroker, how: str) -> Round:
        leaders = await asyncio.to_thread(self.cluster.leaders, OFFSETS_TOPIC)
        led = {number for number, leader in enumerate(leaders) if leader == victim.node_id}
        hit: list[Member] = []
        others: list[Member] = []
        for member in self.probe.members:
            of = coordinator_partition(member.group, partition_count=len(leaders))
            (hit if of in led else others).append(member)
        begun_s, begun_wall_s = time.monotonic(), time.time()
        await asyncio.to_thread(victim.stop if how == "stop" else victim.kill)
        await asyncio.sleep(begun_s + WATCHED_S - time.monotonic())
        ended_s = time.monotonic()
        return Round(
            max(longest(member.heartbeats, begun_s, ended_s) for member in hit),
            max(longest(member.commits, begun_s, ended_s) for member in hit),
            max((longest(member.heartbeats, begun_s, ended_s) for member in others), default=0.0),
            max(served_again(member.commits, begun_s, ended_s) for member in hit) - begun_s,
            phases((one.log for one in self.cluster.brokers.values()), begun_wall_s),
        )


def measured(
    server: Server, how: str, *, groups: int, every_s: float, rounds: int, folder: Path | None
) -> tuple[list[Round], set[int]]:
    """Return what rounds of one kind show, and the errors that members had beside those of a move. Logs stay
    in `folder`, if one is given.
    """
    settings = {"coterie.presence.enable": "false" if how == "counting" else "true"}
    with tempfile.TemporaryDirectory() as temporary:
        logs = folder or Path(temporary)
        with StoreCluster(server, logs, settings=settings, log_level="debug") as cluster:
            these = Rounds(cluster, groups=groups, every_s=every_s)
            work = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1}
            asyncio.run(make_topics(these.addresses[0], work))
            found = asyncio.run(these.run(how, rounds))
    return found, these.probe.errors
