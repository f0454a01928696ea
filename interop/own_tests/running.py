"""Our tests, a folder of them, in a pytest of its own: a line for each in the words of `interop.outcomes`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from bench.kafka import REPOSITORY, SetupError

__all__ = ["exits", "free_port", "listening", "run_tests"]

PATTERN = "CHECKS"
TEST_WITHIN_S = 300
STARTS_WITHIN_S = 60
LINES = ("-p", "no:terminal", "-p", "interop.own_tests.lines")
OPTIONS = ("-o", "addopts=--strict-markers -p no:cacheprovider")
MAKE_TEST = "not interop"
"""The tests that make test runs, as a pattern of their marks."""


def run_tests(
    folder: str,
    *,
    python: str | Path = sys.executable,
    environment: Mapping[str, str] = MappingProxyType({}),
    marked: str = MAKE_TEST,
) -> int:
    """Run the folder's tests of these marks, or those that CHECKS names, with more words from the command
    line; returns pytest's exit code.
    """
    asked = os.environ.get(PATTERN)
    chosen = ["-k", asked] if asked else []
    command = [str(python), "-m", "pytest", *LINES, *OPTIONS, "-m", marked, "--timeout", str(TEST_WITHIN_S)]
    return subprocess.run(
        [*command, folder, *chosen, *sys.argv[1:]],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        check=False,
    ).returncode


def exits(main: Callable[[], int]) -> None:
    """End the process with what `main` returns, or with a sentence about what could not be set up."""
    try:
        sys.exit(main())
    except SetupError as failure:
        sys.exit(str(failure))


def free_port() -> int:
    """Return a port that nobody has yet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@contextmanager
def listening(command: Sequence[str], port: int, name: str) -> Iterator[None]:
    """Have a server run that listens at a port."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + STARTS_WITHIN_S
            while not listens(port):
                if process.poll() is not None or time.monotonic() > until:
                    raise SetupError(f"{name} does not listen within {STARTS_WITHIN_S} s")
                time.sleep(0.1)
            yield
        finally:
            process.kill()


def listens(port: int) -> bool:
    """Return whether somebody listens there."""
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0
