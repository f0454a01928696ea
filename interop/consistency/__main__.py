"""`python -m interop.consistency [--runs N] [--seconds S] [--seed N]`: runs over fresh brokers and databases,
each with the next seed; what fails when is the seed's. Ends with 1 if something may not be, with its history
and the brokers' logs kept. `--planted gate` or `lives` takes one of these out, under what it is found by, and
fails if it is not found; `--only hold` or `late` has nothing else fail, and all is there.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path

from bench.kafka import REPOSITORY, SetupError
from bench.postgres import ensure_installed

from interop.consistency.apart import apart
from interop.consistency.checks import Problem
from interop.consistency.runs import NONE, OF_THE_RUN, OnceMore, run
from interop.consistency.schedule import ALONE, Kind

KEPT = REPOSITORY / ".cache" / "consistency"
PLANTING = Path(__file__).parent / "planting"
PLANTED = "COTERIE_PLANTED"
FAULTS = {"gate": Kind.HOLD, "lives": Kind.LATE}
"""What a fault is found by, of what may fail."""
SETTINGS: Mapping[Kind | None, Mapping[str, str]] = {
    Kind.LATE: {"broker.session.timeout.ms": "20000", "coterie.presence.enable": "false"}
}
"""The brokers', where only one kind of thing fails: who connects again goes on leading, and lives matter."""
SHOWN = 12
ENDS_WITHIN_S = 300.0
"""After nothing fails any more: each wait of a run has an end of its own, and this is about the sum of those
that one meets.
"""


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m interop.consistency", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--only", choices=ALONE, type=Kind, help="have nothing else fail")
    parser.add_argument("--planted", choices=FAULTS, help="take this out of the brokers; it must be found")
    return parser.parse_args()


def plant(fault: str) -> None:
    """Have all processes from now on begin with the fault."""
    os.environ[PLANTED] = fault
    os.environ["PYTHONPATH"] = os.pathsep.join([str(PLANTING), os.environ.get("PYTHONPATH", "")]).rstrip(
        os.pathsep
    )


def one_run(seed: int, seconds: float, only: Kind | None = None) -> list[Problem]:
    """Return what a run showed that may not be; then its folder is kept."""
    with tempfile.TemporaryDirectory(prefix="coterie-consistency-") as folder:
        begun = time.monotonic()
        once = partial(run, seed, seconds, Path(folder), say, only, SETTINGS.get(only, NONE))
        found = apart(once, Path(folder), seconds + ENDS_WITHIN_S)
        for kind, count in Counter(one.kind for one in found).items():
            say(f"seed {seed}: {kind}: {count}")
        for problem in found[:SHOWN]:
            say(f"seed {seed}: {problem}")
        if found:
            kept = KEPT / f"{seed}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(folder, kept)
            say(f"seed {seed}: kept in {kept}")
        say(f"seed {seed}: {time.monotonic() - begun:.0f} s")
    return found


def wrong_of(seeds: range, seconds: float, only: Kind | None) -> list[int]:
    """Run all; return the seeds whose runs showed something, and say so of each."""
    wrong = []
    runs = OnceMore(say)
    for seed in seeds:
        found = runs.run(partial(one_run, seed, seconds, only))
        wrong += [seed] if found else []
        say(f"FAILED seed-{seed}: {found[0]} ({len(found)} in all)" if found else f"ok seed-{seed}")
    return wrong


def main() -> int:
    """Run what the command line asks for."""
    asked = arguments()
    ensure_installed()
    logging.disable(logging.CRITICAL)  # a client has a lot to say when its broker dies
    say(f"client confluent-kafka {version('confluent-kafka')}")
    seeds = range(asked.seed, asked.seed + asked.runs)
    if not asked.planted:
        return 1 if wrong_of(seeds, asked.seconds, asked.only) else 0
    plant(asked.planted)
    only = FAULTS[asked.planted]
    # A machine that is busy may have somebody stuck, whatever is planted.
    found = any(one.kind not in OF_THE_RUN for seed in seeds for one in one_run(seed, asked.seconds, only))
    say(f"{'ok' if found else 'FAILED'} without-{asked.planted}: {'' if found else 'nothing was '}found")
    return 0 if found else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as failure:
        sys.exit(str(failure))
