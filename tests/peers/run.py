"""`python tests/peers/run.py --seeds 100 --first 0`: so many lives beside peers that misbehave in time."""

from __future__ import annotations

import argparse
import sys

from misbehaving import live_through
from planted import PLANTS
from stage import Stage


def main() -> int:
    """Live through the seeds on one broker; returns 1 at the first promise that was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--plant", choices=PLANTS, help="put a fault back that was mended")
    chosen = parser.parse_args()
    with Stage(chosen.plant) as stage:
        for seed in range(chosen.first, chosen.first + chosen.seeds):
            try:
                live_through(stage, seed, tell=lambda line: print(line, flush=True))
            except AssertionError as failure:
                print(f"FAILED {failure}", flush=True)
                return 1
            print(f"ok {seed}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
