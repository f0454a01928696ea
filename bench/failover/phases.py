"""How a failover divides into phases, by the logs of the brokers."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from typing import NamedTuple

LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) \w+ (.*)")
STAMP = "%Y-%m-%d %H:%M:%S,%f"
GIVEN = re.compile(r"to be given away: (__consumer_offsets-\d+)$")
ASKED = re.compile(r"asks the engine for (?:TakeOver|LeaveCluster)\(")
WRITTEN = re.compile(r"the engine answers (?:TakeOver|LeaveCluster) with Changed\(")
HEARD = re.compile(r"image \d+: \d+ logs are to be opened")
OPENED = re.compile(r"\S+-\d+ is open")
LOADED = re.compile(r"(__consumer_offsets-\d+): loaded .* groups? ")


class Phases(NamedTuple):
    """When each phase of a round was over, seconds after the signal; None where no log tells."""

    shard: float | None
    """The longest that a shard of groups took which was handed over by itself: from when nothing more was
    decided there until it was loaded elsewhere. It is no time since the signal.
    """
    asked: float | None
    """The image without the broker is asked for: others have found it dead, or it has handed over what groups
    are in, and drained.
    """
    written: float | None
    heard: float | None
    """The last broker has the image."""
    opened: float | None
    """The last log is open."""
    loaded: float | None
    """The last shard of groups is."""


def phases(logs: Iterable[str], begun_s: float) -> Phases:
    """Return the phases of a round, by what the brokers have logged since `begun_s`, seconds of the epoch."""
    lines = [line for text in logs for line in _lines(text) if line[0] >= begun_s - 0.001]
    first = min((at for at, text in lines if ASKED.match(text)), default=None)
    return Phases(
        max(_taken(lines), default=None),
        *(
            None if at is None else at - begun_s
            for at in (
                first,
                min((at for at, text in lines if WRITTEN.match(text)), default=None),
                *(
                    max((at for at, text in lines if one.match(text)), default=None)
                    for one in (HEARD, OPENED, LOADED)
                ),
            )
        ),
    )


def _taken(lines: Iterable[tuple[float, str]]) -> Iterable[float]:
    """Yield how long each shard took that was handed over by itself."""
    given: dict[str, float] = {}
    for at, text in sorted(lines):
        if found := GIVEN.match(text):
            given[found[1]] = at
        elif (found := LOADED.match(text)) and found[1] in given:
            yield at - given.pop(found[1])


def _lines(text: str) -> Iterable[tuple[float, str]]:
    for line in text.splitlines():
        if found := LINE.match(line):
            yield datetime.datetime.strptime(found[1], STAMP).timestamp(), found[2]
