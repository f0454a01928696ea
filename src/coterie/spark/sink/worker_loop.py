"""The loop on which a process does its tasks' work, and the connections that it keeps from one to the next.

A task that opened its own would spend more time on them than on its rows: four or five, to whoever leads and
coordinates, each with its versions asked and, with TLS and SASL, several round trips more.
"""

import asyncio
import atexit
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from coterie.client.net.cluster import Cluster
from coterie.client.producer.settings import ProducerSettings

IDLE_S = 240.0
"""So long connections are kept that nothing uses: behind a load balancer that forgets them, as some do after
350 s, the next request would wait for an answer until its time is up.
"""
LASTS_S = 3600.0
"""So long they are used at most: certificates that were renewed are read with the next."""
STEPS_TO_NOTICE = 4
"""So many steps of a loop later a connection knows that it was closed while the loop stood still."""
T = TypeVar("T")


@dataclass(slots=True)
class KeptCluster:
    """A cluster's connections, and how old they are: times in seconds of the loop's clock."""

    cluster: Cluster
    opened_s: float
    idle_since_s: float
    """When a task was done with them last."""
    learnt_s: float
    """When the leaders that it knows were forgotten last, as every metadata.max.age.ms."""

    def is_over(self, now_s: float) -> bool:
        """Return whether it is not to be used any more."""
        return now_s > self.idle_since_s + IDLE_S or now_s > self.opened_s + LASTS_S


class WorkerLoop:
    """Runs one task's work after the other. What fails takes the loop and all connections with it."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None
        self._idle: dict[ProducerSettings, KeptCluster] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the work's result, or raise what it raises."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            return self._runner.run(work)
        except BaseException:
            self.close()
            raise

    @asynccontextmanager
    async def cluster(self, settings: ProducerSettings) -> AsyncIterator[Cluster]:
        """Have connections to a cluster that nobody else uses meanwhile: those kept, or fresh ones. They are
        kept unless the block fails, or another loop than that of `run` is running.
        """
        held = await self._taken(settings)
        try:
            yield held.cluster
        except BaseException:
            await held.cluster.close()
            raise
        loop = asyncio.get_running_loop()
        if self._runner is None or loop is not self._runner.get_loop() or settings in self._idle:
            await held.cluster.close()
            return
        held.idle_since_s = loop.time()
        self._idle[settings] = held

    async def _taken(self, settings: ProducerSettings) -> KeptCluster:
        now_s = asyncio.get_running_loop().time()
        over = [one for one, held in self._idle.items() if held.is_over(now_s)]
        for one in over:
            await self._idle.pop(one).cluster.close()
        held = self._idle.pop(settings, None)
        if held is None:
            return KeptCluster(Cluster.of(settings), now_s, now_s, now_s)
        if now_s > held.learnt_s + settings.metadata_max_age_ms / 1000:
            held.cluster.forget(held.cluster.known.topics)
            held.learnt_s = now_s
        for _ in range(STEPS_TO_NOTICE):
            await asyncio.sleep(0)
        return held

    def close(self) -> None:
        """Close everything; the next work finds a fresh loop."""
        runner, self._runner = self._runner, None
        idle, self._idle = self._idle, {}
        if runner is None:
            return
        with runner:
            for held in idle.values():
                runner.run(held.cluster.close())


WORKER_LOOP = WorkerLoop()
"""This process's."""
atexit.register(WORKER_LOOP.close)
