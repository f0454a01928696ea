"""`python -m bench.postgres_appends`: rounds of a real lane over PostgreSQL, by the sizes of batches.

A closed loop: each round's batches are put when the last has landed. Every batch is of another partition, so
none are joined. The server writes to this disk, with fsync. The table is that of docs/lanes.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench.brokers import data_directory
from bench.over_postgres import DURABLE
from bench.postgres import Server, ensure_installed
from coterie.storage.log.contract import AppendRefused
from coterie.storage.postgres.connecting import Connections, DatabaseAddress, connect
from coterie.storage.postgres.lane_session import LanePlace, LaneSession
from coterie.storage.postgres.schema import migrate
from coterie.storage.remote.chunk import PendingAppend
from coterie.storage.remote.lane import Lane
from coterie.storage.remote.session import LaneAnswer

HEAD = b"h" * 61
TICKS = os.sysconf("SC_CLK_TCK")


class Shape(NamedTuple):
    """What a round has, and on how many lanes at once there are rounds."""

    batches: int
    size: int
    lanes: int = 1

    def __str__(self) -> str:
        size = f"{self.size >> 20} MB" if self.size >= 1 << 20 else f"{self.size >> 10} KB"
        return f"{self.batches} x {size}{f', {self.lanes} lanes' if self.lanes > 1 else ''}"


SHAPES = (
    Shape(1, 1 << 10),
    Shape(20, 1 << 10),
    Shape(100, 1 << 10),
    Shape(100, 1 << 10, lanes=2),
    Shape(20, 16 << 10),
    Shape(20, 16 << 10, lanes=2),
    Shape(8, 128 << 10),
    Shape(1, 1 << 20),
    Shape(4, 1 << 20, lanes=2),
)


class Measured(NamedTuple):
    """One run of a shape: rounds, the time of all and of each, and who computed how long."""

    rounds: int
    seconds: float
    rounds_ms: list[float]
    client_s: float
    server_s: float


class Loop:
    """One lane in a closed loop."""

    def __init__(self, lane: int, shape: Shape, data: bytes) -> None:
        self.lane: Lane
        self.shape = shape
        self.data = data
        self.partition = 1 + lane * shape.batches
        self.rounds_ms: list[float] = []
        self.over = False
        self.ended = asyncio.Event()
        self._next = 0
        self._left = 0
        self._begun = 0.0

    def fenced(self) -> None:
        raise SystemExit("the lane was fenced")

    def lost(self, partitions: frozenset[int]) -> None:
        raise SystemExit("rows were lost")

    def conflicted(self, partitions: frozenset[int]) -> None:
        raise SystemExit("another's rows are there")

    def put(self) -> None:
        """Put the batches of a round."""
        offset, shape = self._next, self.shape
        self._next += 1
        self._left = shape.batches
        self._begun = time.perf_counter()
        for partition in range(self.partition, self.partition + shape.batches):
            self.lane.put(
                PendingAppend(
                    partition, offset, offset, 0, 0, 1, shape.size, (self.data,), HEAD, self._landed
                )
            )

    def _landed(self, refused: AppendRefused | None) -> None:
        assert refused is None
        self._left -= 1
        if self._left:
            return
        self.rounds_ms.append((time.perf_counter() - self._begun) * 1_000)
        if self.over:
            self.ended.set()
        else:
            self.lane.ask(self.put)


async def measure(server: Server, address: DatabaseAddress, shape: Shape, seconds: float) -> Measured:
    """Return one run; its tables are empty at first."""
    loop = asyncio.get_running_loop()
    own = await connect(address)
    await own.execute("TRUNCATE coterie.chunks_keep, coterie.lanes")
    await own.execute("INSERT INTO coterie.lanes SELECT 1, lane, 1 FROM generate_series(0, 9) AS lane")
    data = random.Random(1).randbytes(shape.size)
    loops = [Loop(number, shape, data) for number in range(shape.lanes)]
    for number, one in enumerate(loops):
        session = LaneSession(Connections(address, loop), LanePlace(1, number, 1), partial(answered, one))
        one.lane = Lane(
            session,
            one,
            name=f"lane {number}",
            clock=lambda: int(loop.time() * 1_000),
            call_soon=loop.call_soon,
        )
        one.lane.open()
        one.lane.ask(one.put)
    await asyncio.sleep(seconds / 4)  # what is first is not counted
    for one in loops:
        one.rounds_ms.clear()
    begun, client, in_server = time.perf_counter(), time.process_time(), cpu_of(server)
    await asyncio.sleep(seconds)
    took = time.perf_counter() - begun
    used = (time.process_time() - client, cpu_of(server) - in_server)
    rounds_ms = [one_ms for one in loops for one_ms in one.rounds_ms]
    for one in loops:
        one.over = True
        await one.ended.wait()
        one.lane.close()
    own.terminate()
    return Measured(len(rounds_ms), took, rounds_ms, *used)


def answered(one: Loop, life: int, answer: LaneAnswer) -> None:
    """Give an answer to the lane of a loop."""
    one.lane.answered(life, answer)


def cpu_of(server: Server) -> float:
    """Return the seconds that a server and its children have computed."""
    assert server.process is not None
    pids = [server.process.pid, *server.children()]
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields) / TICKS


def line_of(shape: Shape, runs: list[Measured]) -> str:
    """Return a row of the table: of several runs the one with the most rounds."""
    best = max(runs, key=lambda one: one.rounds / one.seconds)
    rate = best.rounds / best.seconds
    times = sorted(best.rounds_ms)
    p50, p99 = statistics.median(times), times[int(len(times) * 0.99)]
    batches = rate * shape.batches
    return (
        f"| {shape} | {rate:,.0f} | {batches:,.0f} | {batches * shape.size / 1e6:,.1f} | {p50:.2f}/{p99:.1f}"
        f" | {best.client_s / best.rounds * 1e3:.2f} | {best.server_s / best.rounds * 1e3:.2f} |"
    )


def main() -> int:
    """Measure all shapes, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.postgres_appends", description="Rounds of a lane.")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run (default: 2)")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each shape (default: 2)")
    asked = parser.parse_args()
    ensure_installed()
    place = data_directory()
    place.mkdir(parents=True, exist_ok=True)
    print("| append | rounds/s | batches/s | MB/s | p50/p99 ms | client CPU ms | server CPU ms |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    with Server(DURABLE, place=place) as server:
        address = DatabaseAddress(server.url(server.new_database()))
        uvloop.run(migrate(address))
        for shape in SHAPES:
            runs = [uvloop.run(measure(server, address, shape, asked.seconds)) for _ in range(asked.repeats)]
            print(line_of(shape, runs), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
