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

Written by `make bench`; do not edit. Benchmarks mislead easily: these are medians of a few runs on one
small machine where client and broker share the processor, so read the ratios, not the rates, and run it
on yours.

Both brokers are one node with default settings, but `group.initial.rebalance.delay.ms=0` and, for Kafka,
the replication factors of its internal topics at 1. Kafka's process gets the memory and collector settings
of Kafka's start script. One broker runs at a time, on a fresh directory, and the order turns with each
repetition. Counting begins after a warm-up, which a JVM needs more than we do: 200,000 heartbeats, 100,000
commits, two groups of the same size, one storm, 2,000 transactions, one run of producing and consuming.
`bench/claims/` has a short script for each claim.

A row in `x` compares two clients, ours divided by the other: in the second column on Coterie's broker, in
the third on Kafka's. In rows of assignors and applications the columns are the two that are compared.

Rows that begin with "Spark" compare sources, not brokers: one Spark application (local[2], Unix sockets to
its Python workers) reads the same topic by our source and by Spark's own connector in turn, five times (three
for codecs) after some that do not count. Each column says how many times longer the connector took, or how
many times longer we took where the goal is "at most"; the goal holds for both columns. "Tuned" is the
connector with `max.poll.records=10000`, `max.partition.fetch.bytes` of 8 MiB and `receive.buffer.bytes=-1`.
Where a row has `columns=`, our source was told what the query needs; Spark tells it nothing.
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
