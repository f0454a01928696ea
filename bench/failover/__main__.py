"""`python -m bench.failover [HOW ...]`: how long groups wait when a broker of three goes, over PostgreSQL.

A member in each group sends a heartbeat and a commit every few milliseconds, over a connection of its own.
A round ends one broker; each member of its groups has a longest time between two answers free of error, for
heartbeats and for commits, and the round has that of the slowest. HOW is of `kill` (SIGKILL), `counting`
(SIGKILL where the database's sessions are not looked at) and `stop` (SIGTERM), all by default; and `offsets`
(SIGKILL where one shard has 1.2 million offsets), `partitions` (SIGKILL of who leads 10,000 partitions) and
`groups` (SIGKILL where there are 50,000 more groups of 2 members and 10 offsets each).
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

from bench.failover.phases import Phases
from bench.failover.rounds import Round, measured
from bench.machine import describe
from bench.postgres import Server, ensure_installed

BY_DEFAULT = ("kill", "counting", "stop")
HOWS = (*BY_DEFAULT, "offsets", "partitions", "groups")
COLUMNS = ("heartbeats", "commits", "elsewhere")


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=__doc__)
    parser.add_argument("how", nargs="*", metavar="HOW", help=f"of {', '.join(HOWS)}")
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--every-ms", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--logs", type=Path, metavar="DIR", help="where the brokers' logs stay")
    asked = parser.parse_args()
    asked.how = asked.how or BY_DEFAULT
    if unknown := {*asked.how} - {*HOWS}:
        parser.error(f"no such end: {', '.join(unknown)}")
    ensure_installed()
    tables = []
    with Server({"fsync": "on", "synchronous_commit": "on", "synchronous_standby_names": ""}) as server:
        for how in asked.how:
            folder = asked.logs and asked.logs / how
            if folder:
                folder.mkdir(parents=True)
            found, errors = measured(
                server,
                how,
                groups=asked.groups,
                every_s=asked.every_ms / 1000,
                rounds=asked.rounds,
                folder=folder,
            )
            tables.append((how, found, errors))
    print(f"{datetime.date.today()}, {describe()['processor']}, load {os.getloadavg()[0]:.1f}")
    print(f"{asked.groups} groups, every {asked.every_ms:g} ms; milliseconds, median and worst\n")
    for line in (*silences(tables), "", *in_phases(tables)):
        print(line)


def silences(tables: Sequence[tuple[str, Sequence[Round], set[int]]]) -> list[str]:
    """Return a table of the longest silences."""
    lines = ["| how | rounds | heartbeats | commits | heartbeats elsewhere | other errors |"]
    lines.append("|---|---:|---:|---:|---:|---|")
    for how, found, errors in tables:
        cells = [_cell([getattr(one, column) for one in found]) for column in COLUMNS]
        other = ", ".join(map(str, sorted(errors))) or "none"
        lines.append(f"| {how} | {len(found)} | {' | '.join(cells)} | {other} |")
    return lines


def in_phases(tables: Sequence[tuple[str, Sequence[Round], set[int]]]) -> list[str]:
    """Return a table of when each phase was over, since the signal; the first is how long a shard took."""
    names = [*Phases._fields, "served"]
    lines = [f"| since the signal | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for how, found, _ in tables:
        columns = [*zip(*(one.phases for one in found), strict=True), [one.served for one in found]]
        cells = [_cell([at for at in column if at is not None]) for column in columns]
        lines.append(f"| {how} | {' | '.join(cells)} |")
    return lines


def _cell(seconds: Sequence[float]) -> str:
    if not seconds:
        return "-"
    return f"{1000 * statistics.median(seconds):.0f}, {1000 * max(seconds):.0f}"


if __name__ == "__main__":
    main()
