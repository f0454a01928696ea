"""Three brokers over PostgreSQL with a synchronous standby, each through a proxy, and how all of it fails."""

from __future__ import annotations

import asyncio
import shutil
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

from bench.database_proxy import Link, Proxy, Trouble
from bench.kafka import SetupError
from bench.postgres import Server
from bench.store_cluster import StoreCluster

from interop.consistency.schedule import ALL, BROKERS, Failure, Kind

__all__ = ["Databases", "Stage"]

SYNCHRONOUS = "synchronous_standby_names"
POSTGRES = {
    "synchronous_commit": "on",
    "wal_retrieve_retry_interval": "100ms",  # a standby finds a primary that is back
}
STREAMING = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
BACKENDS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'"
PARTITIONS = """
SELECT name, number, replicas, leader, leader_epoch, next_leader,
  (SELECT max(last_offset) FROM coterie.chunks_keep WHERE partition_id = partitions.partition_id)
FROM coterie.partitions JOIN coterie.topics USING (topic_id) WHERE NOT deleted ORDER BY name, number
"""
CHUNKS = """
SELECT name, number, base_offset, last_offset, chunk.leader_epoch, encode(heads, 'hex')
FROM coterie.chunks_keep AS chunk
  JOIN coterie.partitions USING (partition_id) JOIN coterie.topics USING (topic_id)
WHERE name NOT LIKE '\\_\\_%' ORDER BY name, number, base_offset
"""
FOLLOWS_WITHIN_S = 30.0
SETTLED_WITHIN_S = 60.0
SLOW_S = 0.02
AT_ONCE_S = 0.1
RECONNECTING_SLOW_S = 0.05
RECONNECTED_AFTER = 60
"""So many requests a broker's connections send, about, until its lanes go on."""
CLUSTER = {
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "auto.create.topics.enable": "false",
}


class Databases:
    """The server that takes writes, and a synchronous standby of it. A context manager."""

    def __init__(self) -> None:
        self.primary = Server(POSTGRES)
        del self.primary.settings[SYNCHRONOUS]  # which is changed while it runs
        self.standby: Server | None = None

    def __enter__(self) -> Databases:
        self.primary.__enter__()
        try:
            self.follow()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in (self.standby, self.primary):
            if server is not None:
                server.__exit__(kind, error, trace)

    def follow(self) -> None:
        """Have a standby follow, and every commit wait for it."""
        self.standby = self.primary.standby()
        del self.standby.settings[SYNCHRONOUS]
        self.standby.start()
        end = time.monotonic() + FOLLOWS_WITHIN_S
        while self.primary.sql("postgres", STREAMING) != "1":
            if time.monotonic() > end:
                raise SetupError("the standby does not follow")
            time.sleep(0.02)
        self._wait_for(self.primary, "*")

    @staticmethod
    def _wait_for(server: Server, standbys: str) -> None:
        server.sql("postgres", f"ALTER SYSTEM SET {SYNCHRONOUS} = '{standbys}'")
        server.sql("postgres", "SELECT pg_reload_conf()")

    def fail_over(self, moved: Callable[[Server], None]) -> None:
        """Lose the primary; `moved` is called with the one that takes its place, before it takes writes."""
        assert self.standby is not None
        lost, self.primary, self.standby = self.primary, self.standby, None
        lost.stop(signal.SIGKILL)
        self._wait_for(self.primary, "")
        moved(self.primary)
        self.primary.promote()
        shutil.rmtree(lost.directory, ignore_errors=True)


class Stage:
    """All that runs, and may fail. A context manager."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        """`settings` are the brokers', beside those that all stages have."""
        self._settings = {**CLUSTER, **settings}
        self.databases = Databases()
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies")
        self._ending = ExitStack()
        self._processes = {broker: threading.Lock() for broker in BROKERS}
        self._database = threading.Lock()

    def __enter__(self) -> Stage:
        with ExitStack() as ending:
            ending.enter_context(self.databases)
            self._thread.start()
            ending.callback(self._end_loop)
            server = self.databases.primary
            self.proxies = {broker: Proxy(server.port) for broker in BROKERS}
            for proxy in self.proxies.values():
                self._in_loop(proxy.start())
                ending.callback(self._stop_proxy, proxy)
            ports = {broker: proxy.port for broker, proxy in self.proxies.items()}
            self.cluster = StoreCluster(server, self._folder, settings=self._settings, ports=ports)
            ending.enter_context(self.cluster)
            self._ending = ending.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.__exit__(kind, error, trace)

    def _stop_proxy(self, proxy: Proxy) -> None:
        self._in_loop(proxy.stop())

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _in_loop(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result()

    # -- what fails

    def fail(self, failure: Failure) -> None:
        """Have a failure happen, and end; several may go on side by side, of each process one."""
        match failure.kind:
            case Kind.KILL | Kind.STOP | Kind.PAUSE:
                with self._processes[failure.broker]:
                    self._fail_process(failure)
            case Kind.RESTART | Kind.PROMOTE | Kind.TERMINATE:
                with self._database:
                    self._fail_database(failure)
            case _:
                self._in_loop(self._fail_links(failure))

    def _fail_process(self, failure: Failure) -> None:
        broker = self.cluster[failure.broker]
        if failure.kind is Kind.PAUSE:
            broker.send(signal.SIGSTOP)
            time.sleep(failure.seconds)
            broker.send(signal.SIGCONT)
            return
        if failure.kind is Kind.STOP:
            broker.stop()
        else:
            broker.kill()
        time.sleep(failure.seconds)
        broker.start()

    def _fail_database(self, failure: Failure) -> None:
        primary = self.databases.primary
        if failure.kind is Kind.TERMINATE:
            primary.sql("postgres", BACKENDS.format(self.cluster.database))
        elif failure.kind is Kind.RESTART:
            primary.stop(signal.SIGQUIT)
            time.sleep(failure.seconds)
            primary.start()
        else:
            self.databases.fail_over(self._move)
            self.databases.follow()

    def _move(self, server: Server) -> None:
        """Have brokers, and whoever asks, find another server."""
        self.cluster.server = server
        for proxy in self.proxies.values():
            proxy.server_port = server.port

    async def _fail_links(self, failure: Failure) -> None:
        random = Random(failure.at_s)
        proxies = [one for broker, one in self.proxies.items() if failure.broker in (broker, ALL)]
        for proxy in proxies:
            proxy.slow_s = RECONNECTING_SLOW_S if failure.reconnecting else 0.0
        met = [link for proxy in proxies for link in proxy.links if random.random() < failure.share]
        for link in met:
            self._trouble(link, failure, random)
        if failure.kind is Kind.SLOW:
            await asyncio.sleep(failure.seconds)
            for link in met:
                link.slow_s = 0.0
        elif failure.kind is Kind.HOLD:  # else who waits too long for an answer asks on another connection
            for proxy in proxies:
                proxy.open.clear()
            await asyncio.sleep(failure.seconds)
            for proxy in proxies:
                proxy.open.set()

    @staticmethod
    def _trouble(link: Link, failure: Failure, random: Random) -> None:
        match failure.kind:
            case Kind.CUT:
                link.cut()
            case Kind.DEAF:
                link.trouble = Trouble.DEAF
            case Kind.LATE:
                # Within the time that a lane takes to connect again, or long after.
                link.late_s = random.choice((failure.seconds, AT_ONCE_S)) * random.random()
                link.late_requests = random.randint(1, RECONNECTED_AFTER) if failure.reconnecting else 0
                link.trouble = Trouble.LATE
            case Kind.HOLD:
                link.late_s = failure.seconds * random.uniform(0.6, 1.0)
                link.trouble = Trouble.HELD
            case Kind.SLOW:
                link.slow_s = SLOW_S

    # -- afterwards

    def heal(self) -> None:
        """Have nothing fail any more, and all brokers be live."""
        self._in_loop(self._heal_links())
        self.cluster.start()
        self.cluster.until(
            "all brokers are live", lambda: self.cluster.live() == [*BROKERS], SETTLED_WITHIN_S
        )

    async def _heal_links(self) -> None:
        for proxy in self.proxies.values():
            proxy.slow_s = 0.0
            proxy.open.set()
            for link in proxy.links:
                link.trouble, link.slow_s = None, 0.0

    def partitions(self) -> str:
        """Return who leads what, as the database has it: a line for each partition."""
        return self.databases.primary.sql(self.cluster.database, PARTITIONS)

    def chunks(self) -> str:
        """Return what the database has of the topics' logs: a line for each chunk, with heads of batches."""
        return self.databases.primary.sql(self.cluster.database, CHUNKS)
