"""`python -m bench.failover.picture SVG`: a failover of three brokers, drawn from the story of a group.

Two members of a group read six partitions; a third comes, the group's coordinator is killed (SIGKILL), the
third leaves. Which member owned what is read from the database afterwards, as `coterie history` reads it. The
row of the commits is from when members had one acknowledged: its colour is the group's coordinator.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from bench.failover.filling import make_topics
from bench.postgres import Server, ensure_installed
from bench.store_cluster import StoreCluster
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.transfer.groups import dump_groups
from coterie.cli.history import histories_in
from coterie.client import Consumer, CoterieError, Producer
from coterie.history.report import rows_of
from coterie.history.short_names import short_names
from coterie.history.tables import History
from coterie.storage.postgres.connecting import DatabaseAddress
from coterie.story.drawing import (
    AXIS,
    LEFT,
    RIGHT,
    STYLE,
    TOP,
    WIDTH,
    Row,
    Span,
    Window,
    axis,
    bands,
    colour,
    floor_of,
    guides,
    lines,
)

GROUP, TOPIC, PARTITIONS = "billing", "payments", 6
EVERY_S = 0.05
LATE_MS = 500
"""A time without an acknowledged commit that is longer than this is drawn: several times as long as usual."""
SHOWN_BEFORE_MS = 10_000
COMMITS = "commits"
LETTER = 7
"""So wide is a letter, about."""
BROKERS = 3
LEGEND = 24
SETTINGS = {"fsync": "on", "synchronous_commit": "on", "synchronous_standby_names": ""}


class Failover(NamedTuple):
    """What has happened: times are of the wall's clock."""

    history: History
    killed_ms: int
    coordinators: tuple[int, int]
    """The broker that was killed, and the one that was the group's coordinator afterwards."""
    commits_ms: Sequence[int]
    """When a commit was acknowledged, up to when the last two members were to leave."""


# -- what happens


class Members:
    """The members of the group, and what they were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.commits_ms: list[int] = []
        self._bootstrap = bootstrap
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._committed: dict[str, asyncio.Event] = {}

    def come(self, name: str) -> None:
        """Have a member join and read."""
        self._committed[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._read(name))

    async def commits_of(self, name: str) -> None:
        """Wait until a member has had a commit acknowledged."""
        await self._committed[name].wait()

    async def leave(self, *names: str) -> None:
        """Have members leave."""
        for name in names:
            self._tasks[name].cancel()
        await asyncio.gather(*(self._tasks.pop(name) for name in names), return_exceptions=True)

    async def produce(self) -> None:
        """Write a record to each partition again and again."""
        async with Producer(self._bootstrap) as producer:
            while True:
                for partition in range(PARTITIONS):
                    await producer.send(TOPIC, b"paid", partition=partition)
                await asyncio.sleep(EVERY_S)

    async def _read(self, name: str) -> None:
        async with Consumer(
            TOPIC,
            bootstrap_servers=self._bootstrap,
            group_id=GROUP,
            client_id=name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            while True:
                if await consumer.getmany(timeout_ms=int(EVERY_S * 1000)):
                    try:
                        await consumer.commit()
                    except CoterieError:  # it is to join again first, or to find the coordinator
                        continue
                    self.commits_ms.append(_wall_ms())
                    self._committed[name].set()


async def fail_over(cluster: StoreCluster) -> tuple[int, int, list[int]]:
    """Return who the coordinator was and when it was killed, and when commits were acknowledged."""
    work = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 1}
    await make_topics(("127.0.0.1", cluster[1].port), work)
    members = Members(cluster.bootstrap)
    producing = asyncio.create_task(members.produce())
    for name in ("app-0", "app-1"):
        members.come(name)
        await members.commits_of(name)
    await asyncio.sleep(4)
    members.come("app-2")
    await members.commits_of("app-2")
    await asyncio.sleep(4)
    victim = cluster.leader_of(OFFSETS_TOPIC, GROUP)
    killed_ms = _wall_ms()
    await asyncio.to_thread(cluster[victim].kill)
    await asyncio.sleep(6)
    await members.leave("app-2")
    await asyncio.sleep(4)
    commits_ms = sorted(members.commits_ms)
    await members.leave("app-0", "app-1")
    producing.cancel()
    await asyncio.gather(producing, return_exceptions=True)
    return victim, killed_ms, commits_ms


def record(server: Server, folder: Path) -> Failover:
    """Have a failover happen, and return it."""
    with StoreCluster(server, folder, count=BROKERS) as cluster:
        victim, killed_ms, commits_ms = asyncio.run(fail_over(cluster))
        after = cluster.leader_of(OFFSETS_TOPIC, GROUP)
        address = DatabaseAddress(server.url(cluster.database))
        with tempfile.TemporaryDirectory() as found:
            asyncio.run(dump_groups(address, Path(found)))
            [history] = (one for one in histories_in(Path(found)) if one.group_id == GROUP)
    return Failover(history, killed_ms, (victim, after), commits_ms)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


# -- how it is drawn


def drawn(failover: Failover) -> str:
    """Return the picture."""
    history, killed_ms = failover.history, failover.killed_ms
    window = Window(killed_ms - SHOWN_BEFORE_MS, max(failover.commits_ms))
    names = short_names(history.assignments)
    partitions, members = rows_of(history, window, names)
    silent = next(one for one in _silences(failover.commits_ms) if one.to_ms - killed_ms > LATE_MS)
    brokers = [f"commits at broker {number}" for number in range(1, BROKERS + 1)]
    rows = [_commits(failover, window, len(members), silent), *partitions]
    floor = floor_of(len(rows))
    moments = [
        (one.formed_at, f"generation {one.generation}: {', '.join(one.causes)}")
        for one in history.generations
        if window.from_ms < one.formed_at < window.to_ms
    ]
    before, after = failover.coordinators
    words = f"broker {before} is killed; after {silent.length_ms:,} ms broker {after} acknowledges commits"
    if all(not silent.from_ms < one.formed_at <= silent.to_ms for one in history.generations):
        words += ", and nobody had to join anew"
    killed = (killed_ms, words)

    def stamp(at_ms: int) -> str:
        return f"{(at_ms - killed_ms) / 1000:.0f} s"

    parts = [
        *lines([*moments, killed], window, floor),
        *_words([killed], window, TOP - 18),
        *_words(moments, window, TOP - 5),
        *guides(row.name for row in rows),
        *bands(rows, window, [*members, *brokers].__getitem__),
        *axis(window, floor, stamp, origin_ms=killed_ms),
        *_legend([*members, *brokers], floor + AXIS + 14),
    ]
    head = f'viewBox="0 0 {WIDTH} {floor + AXIS + LEGEND}" role="img" aria-label="a failover, and its group"'
    ground = '<rect width="100%" height="100%" fill="var(--paper)"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {head}><style>{STYLE}'
        'text{font-family:system-ui,"DejaVu Sans",sans-serif}</style>'
        f"{ground}{''.join(parts)}</svg>\n"
    )


def _silences(commits_ms: Sequence[int]) -> Iterator[Span]:
    for before, after in pairwise(commits_ms):
        yield Span(before, after)


def _commits(failover: Failover, window: Window, members: int, silent: Span) -> Row:
    """Return the row of who acknowledged commits, red where nobody did. Its colours are behind those of the
    members.
    """
    before, after = (members + number - 1 for number in failover.coordinators)
    spans = [Span(window.from_ms, silent.from_ms, before), Span(silent.to_ms, window.to_ms, after)]
    idle = [one for one in _silences(failover.commits_ms) if one.length_ms > LATE_MS]
    return Row(COMMITS, spans, idle)


def _words(moments: Sequence[tuple[int, str]], window: Window, y: int) -> Iterator[str]:
    """Yield the words of moments beside their lines, as far as there is room."""
    free = float(LEFT)
    for at_ms, words in sorted(moments):
        width = LETTER * len(words)
        left = min(window.x(at_ms) + 4, WIDTH - RIGHT - width)
        if left >= free:
            free = left + width
            yield f'<text class="mark" x="{left:.0f}" y="{y}">{escape(words)}</text>'


def _legend(names: Sequence[str], y: int) -> Iterator[str]:
    shades: list[tuple[str, str]] = [(f'fill="{colour(number)}"', name) for number, name in enumerate(names)]
    shades.append(('class="gap"', "nobody at work, or no commit acknowledged"))
    x = LEFT
    for shade, name in shades:
        yield f'<rect {shade} x="{x}" y="{y - 9}" width="10" height="10" rx="2"/>'
        yield f'<text x="{x + 14}" y="{y}">{escape(name)}</text>'
        x += 34 + LETTER * len(name)


def main() -> None:
    """Have a failover happen, and write the picture."""
    parser = argparse.ArgumentParser(prog="python -m bench.failover.picture", description=__doc__)
    parser.add_argument("svg", type=Path, metavar="SVG")
    asked = parser.parse_args()
    ensure_installed()
    with Server(SETTINGS) as server, tempfile.TemporaryDirectory() as logs:
        asked.svg.write_text(drawn(record(server, Path(logs))))
    print(f"written: {asked.svg}")


if __name__ == "__main__":
    main()
