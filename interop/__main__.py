"""`python -m interop [SUITE ...]` starts a broker, runs the suites and counts their checks.

A suite is a folder with `run.sh`, which prints `ok NAME` or `FAILED NAME` for each check, or `skipped
NAME: why`; `passes.txt`, the names that must pass (without it, all); and `FINDINGS.md`, which
explains those that do not. `COTERIE_INTEROP_BOOTSTRAP` names another broker to run against, such as Apache
Kafka itself.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import kafka
from bench.kafka import REPOSITORY, SetupError

HERE = Path(__file__).parent
OTHER_BROKER = "COTERIE_INTEROP_BOOTSTRAP"
LIVE = ("topics", "records", "groups", "conformance")
AFTERWARDS = ("dumplog",)  # reads what the broker has written, once it has stopped
START_S, STOP_S, SUITE_S = 30, 30, 900
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


@dataclass(slots=True)
class Tally:
    """How many checks passed and failed, and how many are known not to pass."""

    passed: int = 0
    failed: int = 0
    known: int = 0

    def add(self, other: Tally) -> None:
        """Take the counts of a suite."""
        self.passed += other.passed
        self.failed += other.failed
        self.known += other.known


def main() -> int:
    """Run the suites that were asked for; returns 1 if a check failed that must pass."""
    asked = arguments()
    with tempfile.TemporaryDirectory(prefix="coterie-interop-") as work:
        tally = run_suites(asked, Path(work))
    if tally.known:
        print(f"{tally.known} known not to pass, see the suites' FINDINGS.md")
    print(f"{tally.passed} passed, {tally.failed} failed")
    return 1 if tally.failed or not tally.passed else 0


def arguments() -> list[str]:
    """Return the names of the suites to run."""
    parser = argparse.ArgumentParser(
        prog="python -m interop", description="Suites of others, against our broker."
    )
    there = [name for name in (*LIVE, *AFTERWARDS) if (HERE / name / "run.sh").exists()]
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(there)} (default: all)")
    asked: list[str] = parser.parse_args().suites or there
    for name in asked:
        if name not in there:
            parser.error(f"no such suite: {name} (there are {', '.join(there)})")
    return asked


def run_suites(names: list[str], work: Path) -> Tally:
    """Run the suites that talk to the broker, then those that read what it wrote."""
    tally, data = Tally(), work / "data"
    other = os.environ.get(OTHER_BROKER)
    if other:
        for name in names:
            if name in LIVE:
                tally.add(run_suite(name, bootstrap=other, data=data, work=work))
        return tally

    with broker(data, log=work / "broker.log") as bootstrap:
        for name in names:
            if name in LIVE:
                tally.add(run_suite(name, bootstrap=bootstrap, data=data, work=work))
        if not set(names) & {"records"} and set(names) & set(AFTERWARDS):
            run_suite(
                "records", bootstrap=bootstrap, data=data, work=work
            )  # so that there is something to read
    for name in names:
        if name in AFTERWARDS:
            tally.add(run_suite(name, bootstrap="", data=data, work=work))
    return tally


@contextmanager
def broker(data: Path, *, log: Path) -> Iterator[str]:
    """Yield HOST:PORT of a fresh broker, stopped by its pid afterwards."""
    command = [str(Path(sys.executable).with_name("coterie")), "serve", "--listen", "127.0.0.1:0"]
    command += ["--data", str(data)]
    for name, value in SETTINGS.items():
        command += ["--set", f"{name}={value}"]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline().split()
        if said[:1] != ["ready"]:
            raise SetupError(f"the broker did not start:\n{log.read_text()[-2000:]}")
        yield said[1]
        if process.poll() is not None:
            raise SetupError(
                f"the broker has died, exit code {process.returncode}:\n{log.read_text()[-4000:]}"
            )
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def run_suite(name: str, *, bootstrap: str, data: Path, work: Path) -> Tally:
    """Run one suite, show its lines, and count them against its list."""
    print(f"== {name}", flush=True)
    scratch = work / name
    scratch.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "BOOTSTRAP": bootstrap,
        "DATA": str(data),
        "WORK": str(scratch),
        "RUN": str(int(time.time())),  # in the names of topics and groups: another broker may know older ones
        "JAVA": kafka.java(),
        "KAFKA_CLASSPATH": kafka.classpath(),
        "PYTHON": sys.executable,
        "REPOSITORY": str(REPOSITORY),
    }
    results: dict[str, bool] = {}
    skipped = False
    with subprocess.Popen(
        ["bash", str(HERE / name / "run.sh")], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            word, _, check = line.rstrip("\n").partition(" ")
            skipped |= word == "skipped"
            if word in ("ok", "FAILED"):
                results[check.split(":", 1)[0]] = word == "ok"
    if not results and not skipped:  # a suite that is one check
        results[name] = process.returncode == 0
        print(f"{'ok' if results[name] else 'FAILED'} {name}")
    return counted(name, results)


def counted(name: str, results: dict[str, bool]) -> Tally:
    """Return the tally of a suite. What must pass and did not, or did not even run, is a failure."""
    listed = HERE / name / "passes.txt"
    wanted = set(listed.read_text().split()) if listed.exists() else set(results)
    passed = {check for check, passes in results.items() if passes}
    for check in sorted(wanted - results.keys()):
        print(f"FAILED {check}: it did not run")
    for check in sorted(passed - wanted):
        print(f"note: {check} passes and is not in {name}/passes.txt yet")
    return Tally(len(passed), len(wanted - passed), len(results.keys() - wanted - passed))


if __name__ == "__main__":
    if not shutil.which("bash"):
        sys.exit("interop needs bash")
    try:
        sys.exit(main())
    except SetupError as failure:
        sys.exit(str(failure))
