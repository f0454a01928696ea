"""Java's clients in a process of their own, asked a line at a time."""

from __future__ import annotations

import subprocess
from types import TracebackType

from bench import kafka

__all__ = ["Java", "JavaFailed"]


class JavaFailed(Exception):
    """Java's answer was an exception; `str()` is its text."""


class Java:
    """The program `Lives`, for as long as its consumers and producers are to live."""

    def __init__(self, address: str, classpath: str) -> None:
        command = [kafka.java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
        self._process = subprocess.Popen(
            [*command, quiet, "-cp", classpath, "Lives", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *words: object) -> str:
        """Return the answer to a command. Raises `JavaFailed`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line.startswith("= "):
            raise JavaFailed(f"{words}: {line[2:].strip() or 'the program has ended'}")
        return line[2:].strip()

    def close(self) -> None:
        """End the program at once, as a crash of all its clients would."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Java:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()
