"""`python -m swarm`: one seed told in full, or many seeds in a row; the only part that is not pure."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Protocol

from swarm.clustered.scenario import run as run_clustered
from swarm.scenario import Outcome, run


class Run(Protocol):
    """Lives through the scenario of a seed."""

    def __call__(self, seed: int, *, listener: Callable[[str], None] | None = None) -> Outcome:
        """Return the outcome."""
        ...


CHUNK = 10
HOUR_MS = 3_600_000
TOLD_OF_FAILURE = 30


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m swarm", description=__doc__)
    parser.add_argument("--seed", type=int, help="live through this seed and tell all that happens")
    parser.add_argument("--quiet", action="store_true", help="with --seed: tell only the end")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to live through (200)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--jobs", type=int, default=1, help="in how many processes (1)")
    parser.add_argument("--data", action="store_true", help="scenarios whose clients write and read, too")
    parser.add_argument("--engine", action="store_true", help="scenarios of brokers over one database")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    return parser


def outcomes(seeds: Iterable[int], jobs: int, kind: Run = run) -> Iterator[Outcome]:
    """Yield the outcome of each seed, in order."""
    if jobs <= 1:
        yield from map(kind, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(kind, seeds, chunksize=CHUNK)


def tell_one(seed: int, *, quiet: bool, kind: Run = run) -> int:
    """Live through one seed, telling everything."""
    outcome = kind(seed, listener=None if quiet else print)
    hours = outcome.simulated_ms / HOUR_MS
    print(f"seed {seed}: {hours:.2f} hours in {outcome.steps} steps, trace {outcome.trace_hash}")
    print(outcome.line if outcome.violation else "all held")
    return 1 if outcome.violation else 0


def tell_failure(outcome: Outcome) -> None:
    """Tell the last that happened, and last the one line that reproduces it."""
    for line in outcome.told[-TOLD_OF_FAILURE:]:
        print(f"  {line}")
    print(outcome.line, flush=True)


def tell_many(seeds: range, *, jobs: int, keep_going: bool, kind: Run = run) -> int:
    """Live through many seeds; tell the failures, and how much was simulated."""
    failed = done = simulated_ms = 0
    for outcome in outcomes(seeds, jobs, kind):
        done += 1
        simulated_ms += outcome.simulated_ms
        if outcome.violation:
            failed += 1
            tell_failure(outcome)
            if not keep_going:
                break
    print(f"{done} seeds, {simulated_ms / HOUR_MS:.0f} simulated hours, {failed} failed")
    return 1 if failed else 0


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    given = arguments().parse_args()
    kind: Run = run_clustered if given.engine else partial(run, data=given.data)
    if given.seed is not None:
        return tell_one(given.seed, quiet=given.quiet, kind=kind)
    seeds = range(given.first, given.first + given.seeds)
    return tell_many(seeds, jobs=given.jobs, keep_going=given.keep_going, kind=kind)


if __name__ == "__main__":
    sys.exit(main())
