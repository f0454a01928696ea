"""Our tests, a folder of them, in a pytest of its own: a line for each in the words of `interop.outcomes`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from bench.kafka import REPOSITORY, SetupError

__all__ = ["exits", "run_tests"]

PATTERN = "CHECKS"
TEST_WITHIN_S = 300
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
