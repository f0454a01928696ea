"""Starts Spark applications, kills all their processes, and reads what they have written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.kafka import REPOSITORY
from pipeline.processes.process_tree import readers_first, signal_all, tree, wait_gone

__all__ = ["Application", "wait_for"]

WITHIN_S = 300.0


class Application:
    """One application, its checkpoint and what it wrote. It may be started again."""

    def __init__(self, folder: Path, name: str, **wanted: Any) -> None:
        self.folder, self.name = folder, name
        self.module = "interop.spark.app"
        self.out = folder / f"{name}.out"
        self.log = folder / f"{name}.log"
        self.wanted = {"format": "coterie", "out": str(self.out), "checkpoint": str(folder / name), **wanted}
        self.environment: dict[str, str] = {}
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> Application:
        """Start it; its query begins some seconds later."""
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, json.dumps(self.wanted)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=REPOSITORY,
                env={**os.environ, **self.environment},
            )
        return self

    def run(self, **changed: Any) -> None:
        """Run it to its end; what it says of a failure is raised."""
        self.wanted |= changed
        self.start()
        self.ended()

    def ended(self) -> None:
        """Wait for its end."""
        assert self.process is not None
        try:
            self.process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not end:\n{self.last_words}") from None
        assert self.process.returncode == 0, f"{self.name} failed:\n{self.last_words}"

    @property
    def last_words(self) -> str:
        """The end of its log."""
        lines = [line for line in self.log.read_text().splitlines() if not line.lstrip().startswith("at ")]
        return "\n".join(lines[-25:])

    def stop(self) -> None:
        """End its query and itself, politely."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None
        self.ended()

    def kill(self) -> None:
        """Kill every process of it at once."""
        assert self.process is not None
        family = readers_first(tree(self.process.pid))
        signal_all(family, signal.SIGKILL)
        self.process.wait(WITHIN_S)
        left = wait_gone(family, within_s=WITHIN_S)
        assert not left, f"they survived SIGKILL: {left}"

    def kill_if_it_lives(self) -> None:
        """Kill it if a check did not come to its end."""
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def batches(self) -> Mapping[int, list[tuple[int, int]]]:
        """What it wrote, by batch."""
        return {
            int(file.stem): [(partition, offset) for partition, offset in json.loads(file.read_text())]
            for file in sorted(self.out.glob("*.json"))
            if file.stem.isdecimal()
        }

    def places(self) -> list[tuple[int, int]]:
        """What it wrote, partition and offset."""
        found = [json.loads(file.read_text()) for file in self.out.glob("*.json")]
        return sorted((partition, offset) for places in found for partition, offset in places)

    def last_batch(self) -> list[tuple[int, int]]:
        """The last batch that it wrote."""
        batches = self.batches()
        return batches[max(batches)] if batches else []

    def logged(self) -> list[dict[str, Any]]:
        """The offset documents of its checkpoint, oldest first."""
        folder = Path(self.wanted["checkpoint"], "offsets")
        files = [one for one in folder.glob("*") if one.name.isdecimal()]
        files.sort(key=lambda one: int(one.name))
        return [json.loads(one.read_text().splitlines()[-1]) for one in files]


def wait_for(condition: Callable[[], object], *, what: str, within_s: float = WITHIN_S) -> None:
    """Wait until the condition holds."""
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, f"it does not come to pass: {what}"
        time.sleep(0.1)
