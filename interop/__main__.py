"""`python -m interop [SUITE ...]` starts a broker, runs the suites, counts their checks and keeps what they
showed.

A suite is a folder with `run.sh`, which prints `ok NAME` or `FAILED NAME: why` for each check, `skipped
NAME: why` for what it did not try and `client NAME VERSION` for whose code it ran; `passes.txt`, the names
that must pass (without it, all); and `FINDINGS.md`, which explains those that do not. `--on kafka` proves
the suites themselves: the same checks against Apache Kafka, where all must pass. `--on cluster` starts three
brokers over PostgreSQL, `--on killed-cluster` the same, of which one that coordinates is killed every five
seconds; there `passes.txt` may have another name, that of the place.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from bench import kafka
from bench.kafka import REPOSITORY, SetupError

from interop import compatibility
from interop.outcomes import Outcome, keep, read_line
from interop.places import PLACES, SETTINGS, KilledBrokers

HERE = Path(__file__).parent
OTHER_BROKER = "COTERIE_INTEROP_BOOTSTRAP"
SOME_CHECKS = "CHECKS"  # a pattern for a suite that can run some of its checks
LIVE = ("topics", "records", "groups", "transactions", "conformance", "java", "kcat", "rdkafka-rust", "kgo")
# Start brokers of their own; the longest first, as they share the lanes.
ALONE = (
    "clients_on_kafka",
    "long_tests",
    "kills",
    "consistency",
    "tokens",
    "crashes",
    "simulator",
    "mixed",
    "live",
    "large",
    "takeover",
    "client",
    "answers",
    "captures",
    "exactly_once",
    "ledger_s3",
)
# The same, when asked for by name: CI has an hour for everything.
BY_NAME = (
    "anyrequest",
    "cluster",
    "consistency_planted",
    "main_job",
    "postgres",
    "engine_seeds",
    "first_run",
    "pythons",
    "streams",
    "connect",
    "kafka_python",
    "librdkafka",
    "spark",
    "spark43",
    "registry",
    "spark_brokers",
    "spark_kills",
    "spark_cluster",
    "history",
    "ledger_azure",
)
AFTERWARDS = ("dumplog",)  # reads what the broker has written, once it has stopped
# What these draw by chance is drawn anew in each run: a loss that the next run does not show is a loss.
BY_CHANCE = (
    "kills",
    "cluster",
    "consistency",
    "consistency_planted",
    "exactly_once",
    "ledger_s3",
    "postgres",
    "spark_cluster",
)
MOST_AGAIN = 3  # suites; where more have failed it is no moment of a busy machine
LANES = 2  # suites at once: most of a suite is waiting
SUITE_S = 1500
# Whole runs of `make test`, and of its half; 3,000 seeds, some 25 minutes of one core; an hour of
# runs, an hour of tokens.
LONGER_S = {
    "first_run": 7200,
    "pythons": 3600,
    "simulator": 3000,
    "spark_cluster": 7200,
    "consistency": 7200 if "RUNS" in os.environ else SUITE_S,
    "tokens": SUITE_S + 60 * float(os.environ.get("MINUTES", "3")),
}
ENDS_WITHIN_S = 5.0  # standard error, which a server that a suite has left behind may hold open
LINES_OF_AN_END = 20  # of a suite that broke off: all that was said is far above, if it was kept
SUITES: set[int] = set()
"""The process groups of the suites that run."""
ENDED = threading.Event()
"""Set when no more suites are to begin."""


def end_suites(number: int, frame: object) -> None:
    """End what was started, in order, and then this process: suites have sessions of their own, which
    neither a terminal's Ctrl-C nor the end of this process reaches.
    """
    ENDED.set()
    for group in list(SUITES):
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGTERM)
    raise SystemExit(128 + number)


def main() -> int:
    """Run the suites that were asked for; returns 1 if a check failed that must pass."""
    asked = arguments()
    ours_whole = not os.environ.get(OTHER_BROKER) and not os.environ.get(SOME_CHECKS)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end_suites)
    with tempfile.TemporaryDirectory(prefix="coterie-interop-", dir=on_disk()) as work:
        outcomes = run_suites(asked.suites, Path(work), on=asked.on)
        if asked.all and ours_whole:  # a second run starts a broker of its own
            outcomes = once_more(outcomes, Path(work) / "again", on=asked.on)
    if ours_whole and asked.on != KilledBrokers.name:  # where what passes is a list of its own
        for outcome in outcomes:
            keep(outcome)
        compatibility.write()
    return report(outcomes)


def arguments() -> argparse.Namespace:
    """Return which suites to run, and on which broker."""
    parser = argparse.ArgumentParser(
        prog="python -m interop", description="Suites of others, against our broker."
    )
    there = [name for name in (*LIVE, *ALONE, *BY_NAME, *AFTERWARDS) if (HERE / name / "run.sh").exists()]
    parser.add_argument(
        "suites",
        nargs="*",
        metavar="SUITE",
        help=f"of {', '.join(there)} (default: all but {', '.join(BY_NAME)})",
    )
    parser.add_argument("--on", choices=PLACES, default="coterie", help="what to start")
    asked = parser.parse_args()
    unasked = [name for name in there if name in LIVE or (asked.on == "coterie" and name not in BY_NAME)]
    asked.all = not asked.suites
    asked.suites = asked.suites or unasked
    for name in asked.suites:
        if name not in there:
            parser.error(f"no such suite: {name} (there are {', '.join(there)})")
    return asked


def on_disk() -> Path:
    """Return where a run's brokers keep their data: on the repository's disk, as /tmp may be memory."""
    place = REPOSITORY / ".cache" / "interop"
    place.mkdir(parents=True, exist_ok=True)
    return place


def report(outcomes: list[Outcome]) -> int:
    """Print what did not pass and the counts; returns 1 if something failed."""
    for outcome in outcomes:
        if outcome.suite in outcome.skipped:
            print(f"SKIPPED the whole suite {outcome.suite}: {outcome.skipped[outcome.suite]}")
        for name, why in outcome.unsteady.items():
            print(f"UNSTEADY {outcome.suite} {name}: passed when run again; before: {why}")
        for name in outcome.failed:
            print(f"FAILED {outcome.suite} {name}: {outcome.whys.get(name, '')}")
    known = sum(len(outcome.known) for outcome in outcomes)
    skipped = sum(len(outcome.skipped) for outcome in outcomes)
    if known or skipped:
        print(f"{known} known not to pass, {skipped} not tried; see the suites' FINDINGS.md")
    passed, failed = (sum(len(getattr(one, end)) for one in outcomes) for end in ("passed", "failed"))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


def run_suites(names: list[str], work: Path, *, on: str) -> list[Outcome]:
    """Run the suites: those that talk to one broker, and what reads its log, in one lane, one after another;
    those that start their own in the other, and in both once the first is through.
    """
    data = work / "data"
    live = [name for name in LIVE if name in names]  # in order: some leave things that others come upon
    afterwards = [name for name in names if name in AFTERWARDS]
    other = os.environ.get(OTHER_BROKER)
    if other:
        return [run_suite(name, bootstrap=other, data=data, work=work, on=on) for name in live]

    kafka.classpath()  # fetched once, before two suites want it
    with ThreadPoolExecutor(LANES) as lanes:
        first = lanes.submit(run_on_one_broker, live, afterwards, data, work, on)
        others = [
            lanes.submit(run_suite, name, bootstrap="", data=data, work=work, on=on)
            for name in sorted(set(names) - {*live, *afterwards}, key=(*ALONE, *BY_NAME).index)
        ]
        return [*first.result(), *(other.result() for other in others)]


def once_more(outcomes: list[Outcome], work: Path, *, on: str) -> list[Outcome]:
    """Run suites that have failed once more, alone: programs of others, and Apache Kafka beside ours, have
    times of their own, which two busy lanes on a busy machine overstep. The second outcome counts, and tells
    what the first was. Returns all outcomes.
    """
    failed = [one.suite for one in outcomes if one.failed and one.suite not in BY_CHANCE]
    if len(failed) > MOST_AGAIN:
        return outcomes
    known = {one.suite: one for one in outcomes}
    for name in failed:
        data = work / name / "data"
        data.parent.mkdir(parents=True)
        if name in LIVE or name in AFTERWARDS:
            live, afterwards = ([], [name]) if name in AFTERWARDS else ([name], [])
            second = run_on_one_broker(live, afterwards, data, data.parent, on)[-1]
        else:
            second = run_suite(name, bootstrap="", data=data, work=data.parent, on=on)
        first = known[name]
        second.unsteady = {one: first.whys.get(one, "") for one in first.failed if one not in second.failed}
        known[name] = second
    return list(known.values())


def run_on_one_broker(
    live: list[str], afterwards: list[str], data: Path, work: Path, on: str
) -> list[Outcome]:
    """Run the suites that talk to a broker on a fresh one, then those that read what it has written."""
    if not live and not afterwards:
        return []
    with running(on, data) as bootstrap:
        # Without any other there would be nothing to read afterwards.
        outcomes = [
            run_suite(name, bootstrap=bootstrap, data=data, work=work, on=on) for name in live or ["records"]
        ]
    return outcomes + [run_suite(name, bootstrap="", data=data, work=work, on=on) for name in afterwards]


@contextmanager
def running(on: str, data: Path) -> Iterator[str]:
    """Yield the addresses of fresh brokers with the suites' settings, stopped by their pids afterwards."""
    place = PLACES[on](data, SETTINGS)
    place.prepare()
    try:
        place.start()
        yield place.address
        if (said := place.died()) is not None:
            raise SetupError(f"a broker has died, {said}")
    finally:
        place.stop()


def run_suite(name: str, *, bootstrap: str, data: Path, work: Path, on: str) -> Outcome:
    """Run one suite, show its lines behind its name, and judge them by its list."""
    if ENDED.is_set():
        raise SetupError(f"{name} was not begun")
    print(f"== {name}", flush=True)
    begun = time.monotonic()
    outcome = Outcome(name, on, datetime.date.today().isoformat())
    last: deque[str] = deque(maxlen=LINES_OF_AN_END)
    complaints, told = os.pipe()
    showing = threading.Thread(target=show, args=(name, complaints, last), daemon=True)
    showing.start()
    with subprocess.Popen(
        ["bash", str(HERE / name / "run.sh")],
        env=environment(name, bootstrap=bootstrap, data=data, work=work, on=on),
        stdout=subprocess.PIPE,
        stderr=told,
        text=True,
        start_new_session=True,
    ) as process:
        os.close(told)
        SUITES.add(process.pid)
        late = threading.Timer(LONGER_S.get(name, SUITE_S), os.killpg, (process.pid, signal.SIGKILL))
        late.start()
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line)
            print(f"{name}: {line}", end="", flush=True)
            read_line(outcome, line)
        showing.join(ENDS_WITHIN_S)
        late.cancel()
        SUITES.discard(process.pid)
    if not outcome.passed and not outcome.failed and not outcome.skipped:  # a suite that is one check
        (outcome.failed if process.returncode else outcome.passed).append(name)
    elif process.returncode < 0 or (process.returncode and not outcome.failed):
        outcome.failed.append("runs-to-its-end")  # not within its time, or it broke off without a word
        outcome.whys["runs-to-its-end"] = f"it ended with {process.returncode}, after:\n{''.join(last)}"
    judge(outcome)
    print(f"-- {name}: {len(outcome.passed)} passed, {time.monotonic() - begun:.0f} s", flush=True)
    return outcome


def show(name: str, complaints: int, last: deque[str]) -> None:
    """Show behind a suite's name what comes from the pipe of its standard error, and count it among its last
    lines: a traceback says why a suite broke off.
    """
    with open(complaints, errors="replace") as lines:
        for line in lines:
            last.append(line)
            print(f"{name}: {line}", end="", file=sys.stderr, flush=True)


def environment(name: str, *, bootstrap: str, data: Path, work: Path, on: str) -> dict[str, str]:
    """Return what a suite's run.sh finds in its environment; interop/lib.sh uses it."""
    scratch = work / name
    scratch.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **kept,  # suites start thousands of programs, which are not to compile their modules each time
        "BOOTSTRAP": bootstrap,
        "BROKER": on,  # for suites that start their own
        "DATA": str(data),
        "WORK": str(scratch),
        "CACHE": str(on_disk()),
        "RUN": str(int(time.time())),  # in the names of topics and groups: another broker may know older ones
        "JAVA": kafka.java(),
        "KAFKA_CLASSPATH": kafka.classpath(),
        "KAFKA_VERSION": kafka.KAFKA_VERSION,
        "PYTHON": sys.executable,
        "REPOSITORY": str(REPOSITORY),
    }


def judge(outcome: Outcome) -> None:
    """Tell failures from what is known, and print what passes and is not in the list."""
    of_the_place = HERE / outcome.suite / f"{outcome.broker}.txt"
    listed = of_the_place if of_the_place.exists() else HERE / outcome.suite / "passes.txt"
    if not listed.exists():
        return
    wanted = set(listed.read_text().split())
    outcome.judge(wanted)
    for name in outcome.passed:
        if name not in wanted and outcome.broker == "coterie":
            print(f"note: {name} passes and is not in {outcome.suite}/passes.txt yet")


if __name__ == "__main__":
    if not shutil.which("bash"):
        sys.exit("interop needs bash")
    try:
        sys.exit(main())
    except SetupError as failure:
        sys.exit(str(failure))
