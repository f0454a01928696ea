"""`python -m anyrequest [--minutes N] [--seed N] [--plant A7]` from the folder `tests`.

With a planted fault it ends with 0 when the fault is found.
"""

from __future__ import annotations

import argparse
import sys
import time

from anyrequest.harness import Broken, Trial
from anyrequest.plants import PLANTS


def main() -> int:
    """Run for as long as the command line says; returns 1 if something was found, or a plant was not."""
    parser = argparse.ArgumentParser(prog="python -m anyrequest", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--held-ms", type=float, default=50.0, help="how long the loop may be held")
    parser.add_argument("--answered-ms", type=float, default=100.0, help="how long others may wait")
    parser.add_argument("--plant", choices=[*PLANTS, "all"], default="")
    asked = parser.parse_args()
    if asked.plant == "all":
        return max(run(asked, plant) for plant in PLANTS)
    return run(asked, asked.plant)


def run(asked: argparse.Namespace, plant: str) -> int:
    """Run with one fault planted, or none."""
    begun = time.monotonic()
    trial = Trial(
        asked.seed, held_most_s=asked.held_ms / 1000, answered_most_s=asked.answered_ms / 1000, plant=plant
    )
    try:
        trial.run(lambda _: time.monotonic() < begun + 60 * asked.minutes)
    except Broken as broken:
        print(
            f"{'found ' + plant if plant else 'FAILED'} after {time.monotonic() - begun:.0f} s: {broken}",
            flush=True,
        )
        return 0 if plant else 1
    outcome = f"NOT FOUND {plant}" if plant else "ok"
    held, others = trial.worst_held_s * 1000, trial.worst_other_s * 1000
    print(f"{outcome}: {trial.requests} requests, {trial.restarts} restarts, seed {asked.seed}", flush=True)
    print(f"the loop was held for {held:.0f} ms at most, others waited {others:.0f} ms", flush=True)
    return 1 if plant else 0


if __name__ == "__main__":
    sys.exit(main())
