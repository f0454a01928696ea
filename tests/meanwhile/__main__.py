"""`python -m meanwhile [--seeds N] [--first N] [--plant NAME]` from the folder `tests`.

With a planted fault it ends with 0 when the fault is found.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys

from meanwhile.life import run
from meanwhile.planted import FAULTS


def main() -> int:
    """Live so many lives; return 1 if one broke what must hold, or none of a planted fault did."""
    parser = argparse.ArgumentParser(prog="python -m meanwhile", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--plant", choices=FAULTS, default="")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for seed in range(asked.first, asked.first + asked.seeds):
        with FAULTS[asked.plant]() if asked.plant else contextlib.nullcontext():
            outcome = run(seed)
        if outcome.violation:
            print(outcome.violation, *outcome.told, sep="\n  ")
            return 0 if asked.plant else 1
    print(f"{asked.seeds} lives from seed {asked.first} on, and nothing was found")
    return 1 if asked.plant else 0


if __name__ == "__main__":
    sys.exit(main())
