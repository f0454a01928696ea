"""A plugin of pytest, `-p interop.own_tests.lines`: each test in the words of `interop.outcomes`."""

from __future__ import annotations

import os
import re

import pytest

__all__ = ["pytest_runtest_logreport", "pytest_unconfigure"]

LINES = 40  # of a failure's story
OUT = os.fdopen(os.dup(1), "w", encoding="utf-8")  # pytest keeps for itself what the tests print


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Say how a test ended; a failure of its fixtures counts as well."""
    name = name_of(report.nodeid)
    if report.skipped:
        say(f"skipped {name}: {reason_of(report)}")
    elif report.failed:
        say(f"FAILED {name}: {report.when}, {first_line(report)}")
        say("\n".join(f"    {line}" for line in report.longreprtext.splitlines()[-LINES:]))
    elif report.when == "call":
        say(f"ok {name}")


def pytest_unconfigure() -> None:
    """Close what the lines went to."""
    OUT.close()


def say(words: str) -> None:
    print(words, file=OUT, flush=True)


def name_of(nodeid: str) -> str:
    """Return a test's name in one word without a colon."""
    inside = re.sub(r"^tests/\w+/", "", nodeid)
    return re.sub(r"[\s:]+", "-", inside.replace(".py::", "."))


def reason_of(report: pytest.TestReport) -> str:
    """Return why a test was left out."""
    said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return said.removeprefix("Skipped: ")


def first_line(report: pytest.TestReport) -> str:
    """Return what was raised."""
    crash = getattr(report.longrepr, "reprcrash", None)
    said: str = str(report.longrepr) if crash is None else crash.message
    return said.partition("\n")[0][:300]
