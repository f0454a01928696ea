"""`python -m interop.kills [--kills N] [--seed S]`: one line a kill; ends with 1 if something is lost."""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import tempfile
from pathlib import Path

from coterie.base.errors import CoterieError
from interop.kills.rounds import run


def main() -> int:
    """Run the kills that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m interop.kills", description="kill -9 under load.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)  # a client has a lot to say when its broker dies
    print(f"seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="coterie-kills-") as data:
        try:
            run(asked.kills, seed=asked.seed, data=Path(data), say=lambda line: print(line, flush=True))
        except (AssertionError, CoterieError) as lost:
            print(f"FAILED kills: seed {asked.seed}: {lost}", flush=True)
            return 1
    print("ok kills", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
