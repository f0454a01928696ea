"""`coterie serve --processes N` for tests, with its processes and its file of metadata."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from clients.soon import soon
from coterie.broker.cluster.image import Delta, Image
from coterie.broker.cluster.statements import ReadDelta
from coterie.broker.processes import METADATA
from coterie.broker.processes.sqlite import SqliteMetadata

STOP_S = 30.0
NO_ROOM = "CREATE TRIGGER no_room BEFORE INSERT ON topics BEGIN SELECT raise(ABORT, 'no room'); END"
"""By it the file of the metadata refuses every new topic."""
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "4",
}


class Several:
    """Some brokers, from their start to their end within a `with`."""

    def __init__(self, data: Path, processes: int, **settings: str) -> None:
        self.data = data
        self.processes = processes
        self._settings = SETTINGS | {name.replace("_", "."): text for name, text in settings.items()}
        self.addresses: list[str] = []
        self.log: list[str] = []
        self._process: subprocess.Popen[str]
        self._reader: threading.Thread

    @property
    def bootstrap(self) -> str:
        """All addresses."""
        return ",".join(self.addresses)

    def __enter__(self) -> Self:
        words = [sys.executable, "-m", "coterie", "serve", "--processes", str(self.processes)]
        words += ["--listen", "127.0.0.1:0", "--data", str(self.data)]
        for name, text in self._settings.items():
            words += ["--set", f"{name}={text}"]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._process.stdout is not None
        line = self._process.stdout.readline().split()
        assert line[:1] == ["ready"], "\n".join(self.log)
        self.addresses = line[1].split(",")
        return self

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line.rstrip("\n"))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join(STOP_S)
            for pipe in (self._process.stdout, self._process.stderr):
                assert pipe is not None
                pipe.close()
        if kind is None:
            assert code == 0, "\n".join(self.log)
            assert not self.mistakes(), "\n".join(self.log)

    def mistakes(self) -> Sequence[str]:
        """Return what the brokers have logged of mistakes of their own."""
        return [line for line in self.log if "Traceback" in line or " ERROR " in line]

    # -- processes

    def kill(self, broker_id: int) -> None:
        """End a broker's process at once; its parent starts it again."""
        os.kill(self.pid(broker_id), signal.SIGKILL)

    def pid(self, broker_id: int) -> int:
        """Return the process that has a broker's directory open."""
        lock = str(self.data / str(broker_id) / ".lock")
        parent = self._process.pid
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            for link in Path(f"/proc/{child}/fd").iterdir():
                if os.readlink(link) == lock:
                    return int(child)
        raise AssertionError(f"no process of broker {broker_id}")

    def wait_for(self, broker_id: int, times: int = 1) -> None:
        """Return when a broker was started again so often, and answers."""
        soon(lambda: sum(line.endswith(f" broker {broker_id} is back") for line in self.log) >= times)

    def command(self, *words: str) -> str:
        """Return what one of our commands prints about these brokers."""
        command = [sys.executable, "-m", "coterie", *words, "--bootstrap-server", self.bootstrap]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    # -- metadata

    def cluster_id(self) -> str:
        """Return the id of the cluster."""
        metadata = self.metadata()
        metadata.close()
        return metadata.cluster_id

    def metadata(self) -> SqliteMetadata:
        """Return a connection to the file."""
        return SqliteMetadata(str(self.data / METADATA))

    def image(self) -> Image:
        """Return the metadata as they stand."""
        metadata = self.metadata()
        delta = metadata.execute(ReadDelta(0))
        metadata.close()
        assert isinstance(delta, Delta)
        return Image().after(delta)

    def leaders(self, topic: str) -> list[int | None]:
        """Return who leads each partition of a topic."""
        image = self.image()
        row = image.topic(topic)
        assert row is not None
        return [one.leader for one in image.partitions(row.topic_id)]

    def logs(self, topic: str) -> list[str]:
        """Return where the logs of a topic lie, as BROKER/TOPIC-N."""
        found = self.data.glob(f"[0-9]*/{topic}-[0-9]*")
        return sorted(str(one.relative_to(self.data)) for one in found if "." not in one.name)
