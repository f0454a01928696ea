"""Members in processes of their own, and what they have told."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.kafka import REPOSITORY, java

__all__ = ["HEARTBEAT_MS", "SESSION_MS", "Member"]

SESSION_MS = 10_000
HEARTBEAT_MS = 300
STOP_S = 40.0
JVM = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xmx128m",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
)


class Member:
    """A member of a group in a process of its own. `events` is what it has told, in order."""

    def __init__(
        self, name: str, kind: str, topic: str, settings: Mapping[str, str], *, classes: str, folder: Path
    ) -> None:
        self.name, self.kind = name, kind
        self.events: list[dict[str, Any]] = []
        self.died_ns: int | None = None
        self._log = folder / f"{name}.log"
        words = [f"{key}={value}" for key, value in settings.items()]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*program(kind, classes), topic, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=REPOSITORY,
            )
        self._reader = threading.Thread(target=self._listen)
        self._reader.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{") and line.endswith("}\n"):  # who is killed may leave half a line
                self.events.append(json.loads(line))

    @property
    def failed(self) -> str | None:
        """Why it has ended though nobody asked it to; None if it has not."""
        if self.died_ns is None and self._process.poll() is not None:
            return f"{self.name} has ended, exit code {self._process.returncode}: {self.log[-600:]}"
        return None

    @property
    def log(self) -> str:
        """What it said on standard error."""
        return self._log.read_text("utf-8", errors="replace")

    @property
    def state(self) -> tuple[int, frozenset[int]]:
        """The generation it is in, and what it owns, as it said last."""
        for event in reversed(self.events):
            if event["kind"] == "state":
                return event["generation"], frozenset(event["owned"])
        return -1, frozenset()

    @property
    def held(self) -> frozenset[int]:
        """What its listener was told to begin with, and not yet to give up."""
        held: frozenset[int] = frozenset()
        for event in self.events:
            if event["kind"] == "assigned":
                held |= set(event["partitions"])
            elif event["kind"] in ("revoked", "lost"):
                held -= set(event["partitions"])
        return held

    def told(self, *kinds: str) -> int:
        """How many events of these kinds it has told."""
        return sum(event["kind"] in kinds for event in self.events)

    def ask_to_stop(self) -> None:
        """Let it end as a good member does; `wait` sees to it."""
        if self.died_ns is None:
            self.died_ns = sys.maxsize
            assert self._process.stdin is not None
            self._process.stdin.write("stop\n")
            self._process.stdin.close()

    def wait(self) -> None:
        """Return when it has ended after `ask_to_stop`."""
        code = self._process.wait(STOP_S)
        self._gone()
        assert code == 0, f"{self.name} ended with exit code {code}: {self.log[-600:]}"

    def kill(self) -> None:
        """End it without a word, as a crash would."""
        self._process.kill()
        self._process.wait()
        self.died_ns = time.monotonic_ns()
        self._gone()

    def _gone(self) -> None:
        self._reader.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()


def program(kind: str, classes: str) -> list[str]:
    """Return the command line of a member; `classes` is the class path of one that runs in Java."""
    if kind.startswith("java"):
        return [java(), *JVM, "-cp", classes, "Talker"]
    return [sys.executable, "-m", "interop.mixed.talker", kind]
