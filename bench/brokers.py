"""The two brokers behind one face: prepare a fresh directory, start, wait until answered, stop."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from bench import kafka
from bench.kafka import REPOSITORY, SetupError

__all__ = ["BROKERS", "Broker", "Coterie", "Kafka", "Processes"]

# All that differs from either broker's defaults; a single node's replication factors come on Kafka's side.
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
START_WITHIN_S = 60.0
STOP_WITHIN_S = 30.0
# Metadata v1, correlation id 1, no client id, no topics.
METADATA_REQUEST = struct.pack(">ihhihi", 14, 3, 1, 1, -1, 0)


class Broker:
    """One broker over a fresh directory. A context manager: on the way out the process has ended."""

    name: ClassVar[str]
    nodes = 1
    """How many brokers there are, in processes of their own."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.settings = dict(SETTINGS if settings is None else settings)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.started_in_s = 0.0

    @property
    def address(self) -> str:
        """HOST:PORT to give to clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The broker's process."""
        assert self.process is not None
        return self.process.pid

    def prepare(self) -> None:
        """Make an empty directory for the broker; what is done here is not part of any figure."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)

    def command(self) -> list[str]:
        """Return the command line that starts it."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the process, wait for the first answered Metadata request, and note how long that took."""
        log = self.directory.with_suffix(".log")
        command = self.command()
        with log.open("wb") as file:
            begun = time.perf_counter()
            self.process = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        while not answers_metadata(self.port, brokers=self.nodes):
            if self.process.poll() is not None or time.perf_counter() - begun > START_WITHIN_S:
                self.stop()
                raise SetupError(f"{self.name} did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.002)
        self.started_in_s = time.perf_counter() - begun

    def died(self) -> str | None:
        """Return how it ended, with its last words, if it has ended by itself."""
        assert self.process is not None
        if self.process.poll() is None:
            return None
        log = self.directory.with_suffix(".log").read_text()
        return f"exit code {self.process.returncode}:\n{log[-4000:]}"

    def stop(self) -> None:
        """End the process and wait for it."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            print(f"{self.name} did not stop within {STOP_WITHIN_S:.0f} s; killed", file=sys.stderr)
            self.process.kill()
            self.process.wait()
        self.process = None

    def crash(self) -> None:
        """End the process at once, as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process = None

    def __enter__(self) -> Broker:
        self.prepare()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


class Coterie(Broker):
    """Our broker, as its users start it."""

    name = "coterie"

    def command(self) -> list[str]:
        program = Path(sys.executable).with_name("coterie")
        if not program.exists():
            raise SetupError(f"there is no {program}: run `make setup` first")
        settings = [word for name, value in self.settings.items() for word in ("--set", f"{name}={value}")]
        return [str(program), "serve", "--listen", self.address, "--data", str(self.directory), *settings]


class Processes(Coterie):
    """Our broker in several processes."""

    def __init__(self, directory: Path, nodes: int) -> None:
        super().__init__(directory)
        self.nodes = nodes
        self.port = free_ports(nodes)

    def command(self) -> list[str]:
        return [*super().command(), "--processes", str(self.nodes)]


class Kafka(Broker):
    """Apache Kafka: one KRaft node that is broker and controller."""

    name = "kafka"

    def prepare(self) -> None:
        super().prepare()
        self.properties = kafka.format_storage(
            self.directory,
            port=self.port,
            controller_port=free_port(besides=self.port),
            settings=self.settings,
        )

    def command(self) -> list[str]:
        return kafka.broker_command(self.properties)


BROKERS: dict[str, type[Broker]] = {"coterie": Coterie, "kafka": Kafka}


def free_port(*, besides: int = 0) -> int:
    """Return a port that nobody listens on now; `besides` one that somebody is about to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port if port != besides else free_port(besides=besides)


def free_ports(count: int) -> int:
    """Return the first of so many ports, one after the other, that nobody listens on now."""
    while True:
        port = free_port()
        try:
            for place in range(count):
                socket.create_server(("127.0.0.1", port + place)).close()
        except (OSError, OverflowError):
            continue
        return port


def answers_metadata(port: int, *, brokers: int = 1) -> bool:
    """Whether a Metadata request is answered, and the answer names so many brokers."""
    try:
        with connected(port) as asked:
            asked.sendall(METADATA_REQUEST)
            size = struct.unpack(">i", receive(asked, 4))[0]
            answer = receive(asked, size)
    except OSError:
        return False
    correlation, named = struct.unpack_from(">ii", answer)
    return bool(correlation == 1 and named >= brokers)


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    """Yield a connection to the port, closed afterwards."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        yield connection


def receive(connection: socket.socket, count: int) -> bytes:
    """Return exactly `count` bytes from a connection."""
    got = b""
    while len(got) < count:
        chunk = connection.recv(count - len(got))
        if not chunk:
            raise ConnectionError("the broker closed the connection")
        got += chunk
    return got


def data_directory() -> Path:
    """Return where this run's brokers keep their data: on the repository's disk, as /tmp may be memory."""
    return REPOSITORY / "bench" / ".cache" / f"data-{os.getpid()}"
