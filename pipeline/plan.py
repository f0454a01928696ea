"""What the processes of the job agree on: names, the pace of the work, and where everything is written.

Nothing here touches the disk or the network; `Plan` is arithmetic over the number of events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TOPIC = "flights"
WARM_UP = "warm-up"
GROUP = "delays"
PARTITIONS = 6
FIRST, SECOND, FOREIGN = "spark-a", "spark-b", "foreign"
MEMBERS = (FIRST, SECOND, FOREIGN)
ASSIGNOR = "range"

SESSION_TIMEOUT_MS = 6000
HEARTBEAT_MS = 500  # how soon a member hears of a rebalance
MAX_POLL_MS = 60_000  # a Spark batch that takes longer than this is stuck

LEAST_EVENTS = 5000  # with fewer, batches hold so few records that some partitions have none to show
MANY_EVENTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How many records there are, and how fast each member goes through them."""

    events: int
    per_batch: int
    trigger_ms: int
    stage_s: float  # how long the group works in peace before the next thing happens to it
    brokers: int = 1

    @classmethod
    def of(cls, events: int, *, brokers: int = 1) -> Plan:
        """Return the pace at which `events` records last until the killed member is back.

        A trigger bounds the batches per second from above, so a fast machine does not run out of work; a slow
        one takes longer for each batch and runs out even later. A batch costs some 0.3 s of CPU however few
        records it has: a job of few has half as many batches in the same time.
        """
        assert events >= LEAST_EVENTS
        many = events >= MANY_EVENTS
        return cls(
            events=events,
            per_batch=events // (190 if many else 75),
            trigger_ms=500 if many else 1000,
            stage_s=3.5 if many else 2.5,
            brokers=brokers,
        )

    @property
    def parts(self) -> tuple[int, ...]:
        """How many records are produced at a time: at the start, when the second application comes, when the
        consumer has joined, when it has left, when the coordinator of several brokers has been killed, and
        when the killed member is back.

        Each step brings its own work: however long a busy machine takes to start a process, the others have
        not read by then what it is to read.
        """
        count = 5 if self.brokers == 1 else 6
        share = self.events // count
        return (share, self.events - (count - 1) * share, *[share] * (count - 2))


@dataclass(frozen=True, slots=True)
class Paths:
    """The files of one run below its folder: all that it makes, so that the next can clear it."""

    root: Path

    @property
    def broker(self) -> Path:
        return self.root / "broker"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def records(self) -> Path:
        """The Delta Lake table that all members write, each record once."""
        return self.root / "records"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def scratch(self) -> Path:
        return self.root / "scratch"

    @property
    def produced(self) -> Path:
        return self.root / "produced.parquet"

    @property
    def delays(self) -> Path:
        return self.root / "delays.parquet"

    @property
    def page(self) -> Path:
        return self.root / "rebalances.html"

    @property
    def drawing(self) -> Path:
        return self.root / "rebalances.svg"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    def checkpoint(self, member: str) -> Path:
        return self.checkpoints / member

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def made_by_a_run(self) -> Iterator[Path]:
        """The folders and files that a run replaces."""
        yield from (self.broker, self.logs, self.records, self.checkpoints, self.scratch)
        yield from (self.produced, self.delays, self.page, self.drawing, self.summary)
