"""`python tests/fuzz/run.py --minutes 10`: every target in turn, in its own process; what is new is kept.

`--target NAME FILE` feeds one input. A reader that kills its process leaves the input behind.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

from engine import CORPUS, Found, fuzz, judge
from targets import TARGETS, Target

LAST_INPUT = Path("/tmp")
KEPT_OF_EACH = 12


def main() -> int:
    """Do what the command line says; returns 1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="for all targets together")
    parser.add_argument("--target", help="one of them alone")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="what the inputs are drawn from")
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("input", nargs="?", type=Path, help="feed this input only")
    chosen = parser.parse_args()
    wanted = [target for target in TARGETS if chosen.target in (None, target.name)]
    if not wanted:
        parser.error(f"no such target: {chosen.target} (there are {', '.join(t.name for t in TARGETS)})")
    if chosen.input:
        print(judge(wanted[0], chosen.input.read_bytes(), weighed=True))
        return 0
    if chosen.seconds:
        return run_here(wanted[0], seed=chosen.seed, seconds=chosen.seconds)
    seconds = 60 * chosen.minutes / len(wanted)
    return max(run_apart(target, seed=chosen.seed, seconds=seconds) for target in wanted)


def run_apart(target: Target, *, seed: int, seconds: float) -> int:
    """Run a target in a process of its own; returns 1 if that found something, or died."""
    words = ["--target", target.name, "--seed", str(seed), "--seconds", str(seconds)]
    done = subprocess.run([sys.executable, __file__, *words], check=False)
    if done.returncode not in (0, 1):
        print(f"FAILED {target.name}: it died ({done.returncode}) of {last_input(target)}", flush=True)
    return min(1, abs(done.returncode))


def run_here(target: Target, *, seed: int, seconds: float) -> int:
    """Feed a target for some seconds, and keep what it answers in a new way."""
    until = time.monotonic() + seconds
    fed = 0

    def go_on(number: int) -> bool:
        nonlocal fed
        fed = number
        return time.monotonic() < until

    with last_input(target).open("wb", buffering=0) as last:

        def remember(data: bytes) -> None:
            last.seek(0)
            last.truncate()
            last.write(data)

        try:
            for data in fuzz(target, seed=seed, go_on=go_on, before=remember):
                keep(target, data)
        except Found as failure:
            print(f"FAILED {failure} (seed {seed})", flush=True)
            return 1
    print(f"ok {target.name}: {fed} inputs, seed {seed}", flush=True)
    return 0


def keep(target: Target, data: bytes) -> None:
    """Put an input into the corpus, while there is room."""
    directory = CORPUS / target.name
    directory.mkdir(parents=True, exist_ok=True)
    if len(list(directory.iterdir())) < KEPT_OF_EACH:
        (directory / f"{sha256(data).hexdigest()[:12]}.bin").write_bytes(data)


def last_input(target: Target) -> Path:
    """Return where the input lies that a target was fed last."""
    return LAST_INPUT / f"fuzz-{target.name}-last.bin"


if __name__ == "__main__":
    sys.exit(main())
