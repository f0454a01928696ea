"""Several brokers of ours over one PostgreSQL that is made for the run: their start, and the death of one."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.processes.children import Child, JobError
from pipeline.processes.process_tree import signal_all, tree

if TYPE_CHECKING:
    from bench.postgres import Server

DURABLE = {"fsync": "on", "synchronous_commit": "on", "synchronous_standby_names": ""}
Start = Callable[[str, Sequence[str]], Awaitable[Child]]


class Brokers:
    """Brokers 1 to `count`, and the server that they share."""

    def __init__(self, count: int, start: Start, *, within_s: float) -> None:
        """`start` starts a process of the job; each broker has so many seconds until it serves."""
        self.count = count
        self._start_process = start
        self._within_s = within_s
        self._server: Server | None = None
        self._url = ""
        self._children: dict[int, Child] = {}
        self._addresses: dict[int, str] = {}

    @property
    def bootstrap(self) -> str:
        """The addresses of all, for `bootstrap.servers`."""
        return ",".join(self._addresses[number] for number in sorted(self._addresses))

    async def start(self) -> None:
        """Start the database and all brokers. Raises JobError without PostgreSQL."""
        await asyncio.to_thread(self._start_database)
        await asyncio.gather(*(self._begin(number, "127.0.0.1:0") for number in range(1, self.count + 1)))

    def _start_database(self) -> None:
        from bench.kafka import SetupError
        from bench.postgres import Server, ensure_installed

        try:
            ensure_installed()
            self._server = Server(
                {"fsync": "on", "synchronous_commit": "on", "synchronous_standby_names": ""}
            )
            self._server.prepare()
            self._server.start()
            self._url = self._server.url(self._server.new_database())
        except SetupError as failure:
            raise JobError(str(failure)) from None

    async def _begin(self, number: int, listen: str) -> None:
        command = [str(Path(sys.executable).with_name("coterie")), "serve", "--store", self._url]
        command += ["--set", f"node.id={number}", "--listen", listen]
        child = self._children[number] = await self._start_process(f"broker-{number}", command)
        self._addresses[number] = (await child.expect("ready", within_s=self._within_s))["text"]

    def kill(self, number: int) -> None:
        """Kill a broker: it has no time for anything."""
        victim = self._children[number]
        victim.may_end = True
        signal_all(tree(victim.pid), signal.SIGKILL)

    async def bring_back(self, number: int) -> None:
        """Start a broker again, at its address."""
        await self._begin(number, self._addresses[number])

    def end_database(self) -> None:
        """End the database and remove its files; the brokers have ended by then."""
        if self._server is not None:
            self._server.__exit__(None, None, None)


def coordinator_of(bootstrap: str, group: str) -> int:
    """Return the id of the broker that coordinates a group."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap, "client.id": "run"})
    described = admin.describe_consumer_groups([group], request_timeout=20)[group].result(timeout=30)
    node_id: int = described.coordinator.id
    return node_id
