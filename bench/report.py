"""The report: `bench/results/latest.json` with every sample, and the table in `docs/bench.md`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.figures import Figure
from bench.kafka import KAFKA_VERSION, REPOSITORY

__all__ = ["merged", "table", "write"]

RESULTS = REPOSITORY / "bench" / "results" / "latest.json"
PAGE = REPOSITORY / "docs" / "bench.md"

ABOUT = """\
# Coterie beside Apache Kafka

This page compares Coterie with Apache Kafka, with Spark's own connector and with other Python clients: one
row for each claim, with its goal. `make bench` writes it; do not edit it. `bench/claims/` has a short
script for each claim.

**How to read it.** The figures are medians of a few runs on one small machine, where client and broker
share the processor. So look at the ratios rather than at the rates, and measure on your own machine.

**Brokers.** Both are one node with default settings. Two settings differ:
`group.initial.rebalance.delay.ms` is 0, and Kafka's internal topics have a replication factor of 1. Kafka's
process has the memory and garbage collector settings of Kafka's start script. One broker runs at a time, on
a fresh directory, and the order alternates with each repetition. Measuring begins after a warm-up, which a
JVM needs more than Coterie does: 200,000 heartbeats, 100,000 commits, two groups of the same size, one
storm, 2,000 transactions, one run of producing and consuming.

**Clients.** A row in `x` compares two clients: Coterie's figure divided by the other's. The second column
is measured on Coterie's broker, the third on Kafka's.

**Assignors.** No broker runs. The columns are Coterie's assignor and Kafka's.

**Spark.** These rows compare sources, not brokers. One Spark application (local[2], Unix sockets to its
Python workers) reads the same topic by Coterie's source and by Spark's own connector, in turn, five times
(three for codecs) after some runs that do not count. Each column says how many times longer the connector
took. Where the goal is "at most", it says how many times longer Coterie took. The goal must be reached in
both columns. "Tuned" is the connector with `max.poll.records=10000`, `max.partition.fetch.bytes` of 8 MiB
and `receive.buffer.bytes=-1`. A row with `columns=` uses the option of this name, which tells Coterie's
source which columns the query needs; Spark does not tell it.

**Processes.** Broker and clients share two cores, whatever `--processes` says. So what more than two
processes would do on a larger machine is told by their CPU an operation, not by their rates; and two Java
clients at once take three quarters of the machine and more by themselves (`bench processes` says how much),
which leaves even a broker that took no CPU at all no more than a fifth to a third above Kafka's rate. With
each process a producer's requests have fewer batches, so that each record costs more.

**PostgreSQL.** What is acknowledged is on its disk. One row says how long that disk takes to flush; commits
and records wait for that, and share it. Where it says a few microseconds, that disk was memory, Kafka's too.

**Growth.** A row "time from A to B records, beside their number" divides the growth of the time by the
growth of the number: 1 is linear, less than 1 is better.
"""


def write(
    figures: Iterable[Figure], *, about: dict[str, str], json_file: Path = RESULTS, page: Path = PAGE
) -> None:
    """Write both files; rows that were not measured this time keep their figures and their date."""
    rows = merged(_kept(json_file), [{**figure.as_json(), "about": about} for figure in figures])
    json_file.parent.mkdir(parents=True, exist_ok=True)
    json_file.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join([ABOUT, table(rows), _short(rows), _circumstances(rows), ""]))


def _kept(json_file: Path) -> list[dict[str, Any]]:
    """Return the rows of the last report."""
    if not json_file.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(json_file.read_text())["rows"]
    return rows


def merged(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the old rows with the new ones in their place, new kinds of rows at the end."""
    by_name = {row["what"]: row for row in old}
    by_name.update({row["what"]: row for row in new})
    return list(by_name.values())


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        f"| what | Coterie | Kafka {KAFKA_VERSION} | ratio | goal | reached |",
        "|---|---:|---:|---:|---|---|",
    ]
    for row in rows:
        ratio = "" if row["ratio"] is None or row["unit"] == "x" else f"{row['ratio']:.2f}"
        reached = {True: "yes", False: "**no**", None: "?"}[row["reached"]]
        ours, theirs = (_amount(row[name], row["unit"]) for name in ("coterie", "kafka"))
        lines.append(f"| {row['what']} | {ours} | {theirs} | {ratio} | {row['goal']} | {reached} |")
    return "\n".join(lines) + "\n"


def _amount(value: float | None, unit: str) -> str:
    """Return a figure with its unit, in a readable number of digits."""
    if value is None:
        return ""
    digits = 3 if value < 10 else 0
    return f"{value:,.{digits}f} {unit}".replace(" /s", "/s")


def _short(rows: list[dict[str, Any]]) -> str:
    """Return the sentence about what falls short."""
    missed = [row["what"] for row in rows if row["reached"] is False]
    if not missed:
        return "Every goal that was measured is reached.\n"
    return "Short of the goal: " + "; ".join(missed) + ".\n"


def _circumstances(rows: list[dict[str, Any]]) -> str:
    """Return when, on what and how the rows were measured; rows of one run share a paragraph."""
    runs: dict[str, list[str]] = {}
    for row in rows:
        text = "; ".join(f"{name}: {value}" for name, value in row["about"].items())
        runs.setdefault(text, []).append(row["claim"])
    paragraphs = [f"Measured ({', '.join(dict.fromkeys(claims))}): {text}." for text, claims in runs.items()]
    return "\n\n".join(paragraphs) + "\n"
