"""What every test goes by."""

from __future__ import annotations

import gc
import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import InMemoryExampleDatabase

import trees

# These are hooks: pytest finds them by their names.
from row_marks import pytest_configure, pytest_runtest_call

__all__ = [
    "pytest_collection",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_runtest_call",
    "pytest_runtest_setup",
    "pytest_runtest_teardown",
    "pytest_terminal_summary",
    "pytest_xdist_auto_num_workers",
    "pytest_xdist_make_scheduler",
]

SPARK = "tests/spark/test_"
SESSION = "the Spark session"
SESSION_ASKED_FOR = re.compile(r"^def \w+\((?:[^)]*\W)?spark\b", re.MULTILINE)
"""A function that is given the fixture `spark`."""
STARTS_ANOTHER = ("history_session", "ledger_queries")
"""These start a JVM of their own, and wait their turn: memory has no room for two."""


def files_of_the_session() -> Iterator[str]:
    """Yield which files share the Spark session: its start, and the warming up of its JVM and its Python
    workers, take twelve seconds of a core. All others are shares of their own.
    """
    yield from (f"{SPARK}{name}.py" for name in STARTS_ANOTHER)
    for file in (Path(__file__).parent / "spark").glob("test_*.py"):
        if SESSION_ASKED_FOR.search(file.read_text("utf-8")):
            yield f"tests/spark/{file.name}"


SESSION_OF = dict.fromkeys(files_of_the_session(), SESSION)
LONGEST = (
    SESSION,
    f"{SPARK}driving.py",
    "tests/seeds/test_engine_seeds.py",
    "tests/seeds/test_sim_seeds.py",
    "tests/cluster/test_lives.py",
    "tests/kills/test_kills.py",
)
MODULES_TOLD = 15
GC_THRESHOLDS = (100_000, 50, 50)
"""So rarely is garbage collected where tests run: lives in virtual time make millions of small values, none
in a cycle, and to look through them took a tenth of the time. No test waits for it.
"""
LONGEST_FIRST = {share: place for place, share in enumerate(LONGEST)}

# Tests start hundreds of programs, each of them for seconds. Where bytecode is not kept, each would compile
# all of its modules again, and a JVM's optimising compiler costs more here than it ever gives back, as does
# its proof that Spark's thousands of classes are well formed.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
JVM_OPTIONS += ("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote")
os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(JVM_OPTIONS))
# numpy starts threads for matrices, which wait for work by spinning; nothing here has any for them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Spark looks for the machine's address by its name, which a bare one does not know.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

# Whoever starts the tests may ignore SIGHUP, as nohup does. What they start would, too, and be right.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The machines are shared and noisy: a slow example says nothing, and what is found by chance would stop a
# change that has nothing to do with it. So each run draws the same examples, by the seed in pyproject.toml:
# `derandomize` would read and tokenize each test's source twice for a seed of its own. Others are drawn by
# pytest --hypothesis-profile=exhaustive --hypothesis-seed=random tests/property, for a night. make interop
# draws more of them than make test has time for: the profile "plenty", in the suite long_tests.
STEADY = settings(
    deadline=None, database=InMemoryExampleDatabase(), suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("steady", STEADY, max_examples=50)
settings.register_profile("plenty", STEADY, max_examples=200)
settings.register_profile("exhaustive", deadline=None, max_examples=2_000)
settings.load_profile("steady")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have each test meet the same chance in each run, as a client's pauses differ by chance, and have Ctrl-C
    heard as in any program: what a script starts in the background ignores it, and a Spark session of an
    earlier test has left its own handler, beside which asyncio installs none.
    """
    random.seed(item.nodeid)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Let go of the syntax trees that a file's tests have read: a million objects more to look through."""
    if nextitem is None or nextitem.path != item.path:
        trees.tree_of.cache_clear()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Have the garbage collector leave alone what is there before the first test: half a million objects of
    pytest, kio and the tests' modules stay to the last, and it would look through them again and again.
    """
    read_another_part_first(session.config)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)


def read_another_part_first(config: pytest.Config) -> None:
    """Have each of several processes that collect all tests begin with another part of them. Where nothing is
    compiled yet, as in a fresh clone, each would compile all of it, beside each other.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    files = sorted(str(path) for place in config.args for path in Path(place).rglob("test_*.py"))
    first = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    config.args = files[first:] + files[:first]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell which modules took the longest, where there were many."""
    took: Counter[str] = Counter()
    for report in (one for reports in terminalreporter.stats.values() for one in reports):
        if isinstance(report, pytest.TestReport):
            took[report.nodeid.partition("::")[0]] += report.duration
    if len(took) > MODULES_TOLD:
        terminalreporter.section(f"{MODULES_TOLD} longest of {len(took)} modules, {took.total():.0f} s")
        for module, seconds in took.most_common(MODULES_TOLD):
            terminalreporter.line(f"{seconds:7.1f} s {module}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the longest shares begin first, so that nobody waits for them at the end. The rest is mixed, the
    same way in each process: those that wait for brokers, and those that compute, stand in folders of their
    own, and would keep both cores idle in one half of the time, and not suffice them in the other.
    """
    last = len(LONGEST_FIRST)
    places = {item.path: str(item.path.relative_to(item.config.rootpath)) for item in items}
    mixed = {path: (crc32(place.encode()), place) for path, place in places.items()}
    items.sort(key=lambda item: (LONGEST_FIRST.get(share_of(item.nodeid), last), mixed[item.path]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return how many processes share the tests: one more than cores, as a third of the time is waiting."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return who hands out the tests to several processes: by shares, a share to one process."""
    from xdist.scheduler import LoadScopeScheduling

    class Shares(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return share_of(nodeid)

    return Shares(config, log)


def share_of(nodeid: str) -> str:
    """Return with which tests one shares its fixtures: those of its file, or of its Spark session."""
    path = nodeid.partition("::")[0]
    return SESSION_OF.get(path, path)
