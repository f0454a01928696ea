"""`python -m bench [CLAIM ...]`: measures, prints each figure as it comes, and writes the report."""

from __future__ import annotations

import argparse
import datetime
import shutil
import sys

from bench import machine, report
from bench.brokers import data_directory
from bench.claims import CLAIMS
from bench.figures import Figure, Plan
from bench.kafka import KAFKA_VERSION, SetupError


def main() -> int:
    """Measure what the command line asks for; returns 1 if a goal was measured and missed."""
    asked = arguments()
    brokers = (asked.only,) if asked.only else ("coterie", "kafka")
    plan = Plan(repeats=asked.repeats, quick=asked.quick, brokers=brokers, say=announce)
    figures: list[Figure] = []
    try:
        for claim in asked.claims or CLAIMS:
            for figure in CLAIMS[claim](plan):
                print(line_of(figure), flush=True)
                figures.append(figure)
    finally:
        shutil.rmtree(data_directory(), ignore_errors=True)
    print("\n" + report.table([figure.as_json() for figure in figures]))
    if asked.write and not asked.only:
        report.write(figures, about=circumstances())
        print(f"written: {report.PAGE}, {report.RESULTS}")
    return 1 if any(figure.reached is False for figure in figures) and asked.strict else 0


def arguments() -> argparse.Namespace:
    """Return the command line's meaning."""
    what = "Coterie beside Apache Kafka, measured."
    parser = argparse.ArgumentParser(prog="python -m bench", description=what)
    which = f"which to measure, of: {', '.join(CLAIMS)} (default: all)"
    parser.add_argument("claims", nargs="*", metavar="CLAIM", help=which)
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each broker (default: 3)")
    parser.add_argument("--quick", action="store_true", help="a fifth of the work, to see that it runs")
    parser.add_argument("--only", choices=("coterie", "kafka"), help="measure one broker; nothing is written")
    parser.add_argument("--no-write", dest="write", action="store_false", help="leave docs/bench.md as it is")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a goal is missed")
    asked = parser.parse_args()
    for claim in asked.claims:
        if claim not in CLAIMS:
            parser.error(f"no such claim: {claim} (there are {', '.join(CLAIMS)})")
    if asked.quick:
        asked.write = False
    return asked


def announce(text: str) -> None:
    """Show what is being measured now."""
    print(text, file=sys.stderr, flush=True)


def line_of(figure: Figure) -> str:
    """Return a figure as one line for the terminal."""
    parts = [f"{name} {figure.median(name):,.3f} {figure.unit}" for name in figure.samples]
    ratio = "" if figure.ratio is None else f", ratio {figure.ratio:.2f}"
    return f"{figure.what}: {', '.join(parts)}{ratio}"


def circumstances() -> dict[str, str]:
    """Return when, on what and with which command this was measured."""
    return {
        "date": datetime.date.today().isoformat(),
        **machine.describe(),
        "kafka": KAFKA_VERSION,
        "command": " ".join(["python -m bench", *sys.argv[1:]]),
    }


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as failure:
        sys.exit(str(failure))
