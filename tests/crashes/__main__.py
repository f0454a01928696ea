"""`python -m crashes [--seed N | --seeds N --first N]` from the folder `tests`: each failing seed on a line.

One seed is told step by step.
"""

from __future__ import annotations

import argparse
import logging
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from crashes.life import run


def main() -> int:
    """Live through the seeds that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m crashes", description=__doc__)
    parser.add_argument("--seed", type=int, help="tell the story of this one")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)  # a disk that refuses is told of all the time
    if asked.seed is not None:
        outcome = run(asked.seed)
        print("\n".join(outcome.story))
        return 1 if outcome.violation else 0
    kills = failed = 0
    seeds = range(asked.first, asked.first + asked.seeds)
    quiet = {"initializer": logging.disable, "initargs": (logging.CRITICAL,)}
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn"), **quiet) as pool:
        for outcome in pool.map(run, seeds, chunksize=20):
            kills += outcome.kills
            if outcome.violation:
                failed += 1
                print(outcome.line, flush=True)
    print(f"{asked.seeds} seeds, {kills} crashes, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
