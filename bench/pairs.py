"""`python -m bench.pairs COMMIT CLAIM ...`: claims measured by this tree and by another commit, in turn.

A shared machine is now fast and now slow, so figures of two runs say little about two commits. Here each
pair is measured within a minute or two, and what counts is the median of the pairs' ratios. Broker, clients
and bench are those of either commit; Python and its libraries are this tree's.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.claims import CLAIMS
from bench.kafka import REPOSITORY, SetupError

PAIRS = 7
CACHE = REPOSITORY / ".cache"
# As bench/__main__.py prints a figure: its unit may be of two words, or none, and Kafka's figure may follow.
FIGURE = re.compile(r"^(?P<what>.+): coterie (?P<value>-?[\d,]+\.\d+) .*$")


class Pair(NamedTuple):
    """One figure by the other commit and by this tree, measured one after the other."""

    before: float
    now: float

    @property
    def ratio(self) -> float:
        """What this tree measures divided by what the other commit does."""
        return self.now / self.before if self.before else float("nan")


def main() -> int:
    """Measure what the command line asks for, and print a table."""
    asked = arguments()
    pairs: dict[str, list[Pair]] = {}
    with checked_out(asked.commit) as other:
        for number in range(asked.pairs):
            trees = (other, REPOSITORY) if number % 2 == 0 else (REPOSITORY, other)
            figures = {tree: figures_of(tree, asked.claims) for tree in trees}
            for what in figures[other].keys() ^ figures[REPOSITORY].keys():
                print(f"pair {number + 1}: {what}: measured by one of the two only", file=sys.stderr)
            for what in (one for one in figures[REPOSITORY] if one in figures[other]):
                pair = Pair(figures[other][what], figures[REPOSITORY][what])
                pairs.setdefault(what, []).append(pair)
                print(
                    f"pair {number + 1}: {what}: {pair.before:g} -> {pair.now:g}", file=sys.stderr, flush=True
                )
    print(table(pairs))
    return 0 if pairs else 1


def arguments() -> argparse.Namespace:
    """Return the command line's meaning."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.pairs", description="This tree beside another commit."
    )
    parser.add_argument("commit", help="the commit to measure beside, as git names it")
    parser.add_argument("claims", nargs="+", metavar="CLAIM", help=f"of: {', '.join(CLAIMS)}")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"how many pairs (default: {PAIRS})")
    asked = parser.parse_args()
    for claim in asked.claims:
        if claim not in CLAIMS:
            parser.error(f"no such claim: {claim} (there are {', '.join(CLAIMS)})")
    return asked


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Yield a folder with the files of a commit, gone afterwards; what benches have fetched is there, too."""
    place = CACHE / "pairs" / "other"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else only this tree's modules would come compiled
    if place.exists():  # a run was killed
        git("worktree", "remove", "--force", str(place))
    git("worktree", "add", "--force", "--detach", str(place), commit)
    try:
        (place / ".cache").symlink_to(CACHE)
        yield place
    finally:
        git("worktree", "remove", "--force", str(place))


def git(*words: str) -> None:
    """Run git in this repository. Raises `SetupError` with what it says."""
    ran = subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SetupError(f"git {' '.join(words)}: {ran.stderr.strip()}")


def figures_of(tree: Path, claims: list[str]) -> dict[str, float]:
    """Return each figure of the claims as a tree measures it, once. Raises `SetupError` if it cannot."""
    ran = subprocess.run(
        [sys.executable, "-m", "bench", "--only", "coterie", "--repeats", "1", "--no-write", *claims],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise SetupError(f"{tree}: python -m bench has ended with {ran.returncode}")
    found = map(FIGURE.match, ran.stdout.splitlines())
    return {line["what"]: float(line["value"].replace(",", "")) for line in found if line}


def table(pairs: dict[str, list[Pair]]) -> str:
    """Return a row for each figure: both medians, the median of the ratios, and their quartiles."""
    lines = ["| what | before | now | now / before | quartiles |", "|---|---:|---:|---:|---:|"]
    for what, those in pairs.items():
        ratios = [pair.ratio for pair in those]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        before = statistics.median(pair.before for pair in those)
        now = statistics.median(pair.now for pair in those)
        lines.append(f"| {what} | {before:,g} | {now:,g} | {middle:.3f} | {low:.3f} to {high:.3f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as failure:
        sys.exit(str(failure))
