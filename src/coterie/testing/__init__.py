"""A real broker for the tests of others: `with coterie.testing.broker() as kafka: use(kafka.bootstrap)`.

It runs in a process of its own, on a free port, in a temporary folder, and works with any Kafka client. The
pytest fixtures are in `plugin`; nothing here needs pytest.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from coterie.base.errors import CoterieError

__all__ = ["Broker", "BrokerFailed", "broker"]

HOST = "127.0.0.1"
STOP_S = 20.0

# A test should not wait three seconds for members that never come.
TEST_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


class BrokerFailed(CoterieError):
    """The broker did not start; `str()` ends with what it said."""


def broker(
    settings: Mapping[str, object] | None = None,
    *,
    data: str | Path | None = None,
    start_within_s: float = 30.0,
    **more: object,
) -> Broker:
    """Return a broker that runs inside a `with` or `async with` block.

    Settings have Kafka's names, as a mapping or, dots written as underscores, as keywords:
    `broker(num_partitions=3)`. Groups start without Kafka's initial delay unless
    `group.initial.rebalance.delay.ms` is set. `data` names a directory that is kept.
    """
    named = {name.replace("_", "."): value for name, value in more.items()}
    texts = {name: _text(value) for name, value in {**(settings or {}), **named}.items()}
    return Broker(TEST_SETTINGS | texts, data=data, start_within_s=start_within_s)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class Broker:
    """A broker in a process of its own. Between `kill` or `stop` and `restart` nobody listens."""

    def __init__(
        self, settings: Mapping[str, str], *, data: str | Path | None, start_within_s: float
    ) -> None:
        self.host = HOST
        self.port = 0  # until it has started; then always the same
        self._settings = dict(settings)
        self._start_within_s = start_within_s
        self._folder: Path | None = None
        self._kept = None if data is None else Path(data)
        self._process: subprocess.Popen[str] | None = None

    # -- what a test wants to know

    @property
    def bootstrap(self) -> str:
        """HOST:PORT, for `bootstrap.servers`."""
        return f"{self.host}:{self.port}"

    @property
    def data(self) -> Path:
        """The data directory."""
        return self._kept or self._place() / "data"

    @property
    def pid(self) -> int:
        """The process that runs now."""
        assert self._process is not None, "the broker does not run"
        return self._process.pid

    @property
    def log(self) -> str:
        """What the broker has written to standard error since it was first started in this block."""
        if self._folder is None:
            return ""
        return (self._folder / "broker.log").read_text(encoding="utf-8", errors="replace")

    # -- what a test wants done

    def start(self) -> Self:
        """Start it and return when it answers. Raises `BrokerFailed`."""
        assert self._process is None, "the broker runs already"
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="coterie-test-"))
        with open(self._folder / "broker.log", "ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            )
        line = self._first_line()
        words = (line or "").split()
        if len(words) != 2 or words[0] != "ready":
            self.kill()
            in_time = f" within {self._start_within_s} s" if line is None else ""
            raise BrokerFailed(f"the broker did not start{in_time}: {self.log.strip()}")
        self.port = int(words[1].rpartition(":")[2])
        return self

    def stop(self) -> None:
        """Ask it to stop (SIGTERM) and wait until it has."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once (SIGKILL), as a crash would."""
        self._end(getattr(signal, "SIGKILL", signal.SIGTERM))

    def restart(self) -> Self:
        """Start it again, on the same port and data; if it still runs it is stopped before."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stop it and remove its temporary folder."""
        self.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    # -- how

    def _place(self) -> Path:
        assert self._folder is not None, "the broker was never started"
        return self._folder

    def _command(self) -> list[str]:
        words = [sys.executable, "-m", "coterie", "serve"]
        words += ["--listen", self.bootstrap, "--data", str(self.data)]
        for name, text in self._settings.items():
            words += ["--set", f"{name}={text}"]
        return words

    def _first_line(self) -> str | None:
        """Return the broker's first line, empty if it ends, None if it is silent for too long."""
        assert self._process is not None
        output = self._process.stdout
        assert output is not None
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.append(output.readline()), daemon=True)
        reader.start()
        reader.join(self._start_within_s)
        return said[0] if said else None

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            assert process.stdout is not None
            process.stdout.close()

    # -- blocks

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        import asyncio

        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import asyncio

        await asyncio.to_thread(self.close)
