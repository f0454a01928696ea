"""Brokers of one cluster over a PostgreSQL server, as their users start them: `coterie serve --store`."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from bench.brokers import SETTINGS, free_port
from bench.kafka import SetupError
from bench.postgres import Server
from coterie.base.hashes import coordinator_partition

__all__ = ["StoreBroker", "StoreCluster"]

START_WITHIN_S = 60.0
STOP_WITHIN_S = 20.0


class StoreBroker:
    """One broker's process, on a port that it keeps; its log is a file."""

    def __init__(
        self,
        node_id: int,
        url: str,
        log: Path,
        settings: Mapping[str, str],
        log_level: str = "info",
        *,
        direct: str | None = None,
    ) -> None:
        """`direct` is the way past a pooler."""
        self.node_id = node_id
        self.port = free_port()
        self.process: subprocess.Popen[str] | None = None
        self._url = url
        self._direct = direct
        self._log = log
        self._marked = 0
        self._log_level = log_level
        self._settings = {**settings, "node.id": str(node_id)}

    @classmethod
    def beside(cls, other: StoreBroker, *, port: int) -> StoreBroker:
        """Return another process of a broker's id, on a port of its own."""
        log = other._log.with_suffix(".other.log")
        made = cls(other.node_id, other._url, log, other._settings, other._log_level)
        made.port = port
        return made

    @property
    def address(self) -> str:
        """HOST:PORT to give to clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """All that its processes have written to standard error since it was marked."""
        return self._log.read_bytes()[self._marked :].decode(errors="replace")

    def mark(self) -> None:
        """Have the log begin here."""
        self._marked = self._log.stat().st_size

    @property
    def pid(self) -> int:
        """The broker's process."""
        assert self.process is not None
        return self.process.pid

    def begin(self) -> None:
        """Start the process, and do not wait for it."""
        settings = [word for name, value in self._settings.items() for word in ("--set", f"{name}={value}")]
        command = [sys.executable, "-m", "coterie", "serve", "--listen", self.address, "--store", self._url]
        if self._direct is not None:
            command += ["--store-direct", self._direct]
        command += ["--log-level", self._log_level]
        # Which would have each process compile all of its modules.
        kept = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        kept["PYTHONFAULTHANDLER"] = "1"  # SIGABRT has it write where it stands
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *settings],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=kept,
            )

    def until_ready(self) -> None:
        """Return once the broker has said that it is ready. Raises `SetupError` where it has ended, or takes
        too long: then it is ended, and its log says where it stood.
        """
        assert self.process is not None
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], START_WITHIN_S)[0]:
            self.send(signal.SIGABRT)
            self.wait()
            raise SetupError(
                f"broker {self.node_id} was not ready within {START_WITHIN_S:.0f} s:\n{self.log[-3000:]}"
            )
        line = self.process.stdout.readline()
        if line.split() != ["ready", self.address]:
            raise SetupError(f"broker {self.node_id} did not start:\n{self.log[-3000:]}")

    def start(self) -> None:
        """Start the broker, and wait until it serves."""
        self.begin()
        self.until_ready()

    def send(self, number: int) -> None:
        """Send the process a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end of the process; return its exit code."""
        assert self.process is not None
        process, self.process = self.process, None
        try:
            return process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise SetupError(f"broker {self.node_id} did not end:\n{self.log[-3000:]}") from None
        finally:
            assert process.stdout is not None
            process.stdout.close()

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        if self.process is not None:
            self.send(signal.SIGKILL)
            self.wait()

    def stop(self) -> int:
        """Have the broker leave the cluster and end; return its exit code."""
        self.send(signal.SIGTERM)
        return self.wait()


class StoreCluster:
    """So many brokers over a database, numbered from `first` on. A context manager: on the way out all have
    ended.
    """

    def __init__(
        self,
        server: Server,
        folder: Path,
        *,
        count: int = 3,
        first: int = 1,
        database: str | None = None,
        settings: Mapping[str, str] | None = None,
        log_level: str = "info",
        ports: Mapping[int, int] | None = None,
    ) -> None:
        """`folder` takes the logs. `ports` are those at which brokers find the database, by `node.id`; the
        server's own, unless they are given.
        """
        self.server = server
        self.database = database or server.new_database()
        given = {**SETTINGS, **(settings or {})}
        self.brokers = {
            number: StoreBroker(
                number,
                server.url(self.database, port=(ports or {}).get(number)),
                folder / f"broker-{number}.log",
                given,
                log_level,
            )
            for number in range(first, first + count)
        }

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for `bootstrap.servers`."""
        return ",".join(one.address for one in self.brokers.values())

    def __getitem__(self, node_id: int) -> StoreBroker:
        return self.brokers[node_id]

    def start(self) -> None:
        """Start all brokers that do not run, side by side."""
        begun = [one for one in self.brokers.values() if one.process is None]
        for broker in begun:
            broker.begin()
        for broker in begun:
            broker.until_ready()

    def stop(self) -> None:
        """End all brokers that run, at once."""
        for broker in self.brokers.values():
            broker.kill()

    def said(self) -> dict[int, str]:
        """Return what each broker has written to its log."""
        return {number: broker.log for number, broker in self.brokers.items()}

    # -- what the database says

    def leaders(self, topic: str) -> list[int | None]:
        """Return who leads each partition of a topic."""
        rows = self.server.sql(
            self.database,
            "SELECT leader FROM coterie.partitions JOIN coterie.topics USING (topic_id)"
            f" WHERE name = '{topic}' AND NOT deleted ORDER BY number",
        )
        return [int(row) if row else None for row in rows.splitlines()]

    def leader_of(self, topic: str, name: str) -> int:
        """Return the coordinator of a group or a transactional id, each by its internal topic."""
        leader = self.led_by(topic, name)
        assert leader is not None
        return leader

    def led_by(self, topic: str, name: str) -> int | None:
        """Return the same, None while there is none."""
        leaders = self.leaders(topic)
        return leaders[coordinator_partition(name, partition_count=len(leaders))]

    def live(self) -> list[int]:
        """Return the brokers that are live."""
        rows = self.server.sql(
            self.database, "SELECT broker_id FROM coterie.brokers WHERE state = 'live' ORDER BY 1"
        )
        return [int(row) for row in rows.splitlines()]

    def until(self, what: str, holds: Callable[[], bool], within_s: float = 30.0) -> None:
        """Return once `holds()` is true. Raises `SetupError` where that takes too long."""
        end = time.monotonic() + within_s
        while not holds():
            if time.monotonic() > end:
                raise SetupError(f"not within {within_s:.0f} s: {what}")
            time.sleep(0.01)

    def __enter__(self) -> StoreCluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
