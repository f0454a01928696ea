"""Commits, in runs: of a stretch of commits of one partition only the ends and the longest silence are kept.

A run ends where its group forms a generation (any record of the group but a commit says so), and with the
quarter of the day: so a quiet month is some hundred rows a partition, whatever was committed in it, and of
every quarter of a day of every partition the longest silence is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple
from uuid import UUID

from coterie.base.ids import TopicPartition

RUN_ENDS_MS = 6 * 3_600_000


class Commit(NamedTuple):
    """One committed offset. `epoch` counts the records of its group that are no commits before it."""

    place: int
    at_ms: int
    topic: str
    partition: int
    offset: int
    epoch: int
    topic_id: UUID | None = None


class Run(NamedTuple):
    """Commits of one partition, one after another. `place` is the log offset of the first."""

    topic: str
    partition: int
    place: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses
    first_ms: int
    last_ms: int
    first: int
    last: int
    silent_from_ms: int
    silent_to_ms: int
    silent_before: int
    silent_after: int
    """The longest time between two commits, and the offsets committed before and after it."""
    topic_id: UUID | None = None

    @property
    def cadence_ms(self) -> float | None:
        """Return the time from commit to commit on average, None where too few tell."""
        return (self.last_ms - self.first_ms) / (self.count - 1) if self.count > 2 else None


def runs_of(commits: Iterable[Commit]) -> Iterator[Run]:
    """Yield the runs of one group's commits, which come in the order of the log.

    Times are the committers' and may go back: what belongs to a quarter of a day is one run for all that.
    """
    runs: dict[tuple[str, int, int, int], Run] = {}
    for commit in commits:
        which = (commit.topic, commit.partition, commit.epoch, commit.at_ms // RUN_ENDS_MS)
        run = runs.get(which)
        runs[which] = begun(commit) if run is None else longer(run, commit)
    yield from runs.values()


def begun(commit: Commit) -> Run:
    """Return a run of one commit."""
    place, at, topic, partition, offset, _, topic_id = commit
    return Run(topic, partition, place, 1, at, at, offset, offset, at, at, offset, offset, topic_id)


def longer(run: Run, commit: Commit) -> Run:
    """Return the run with one more commit."""
    grown = run._replace(count=run.count + 1, last_ms=commit.at_ms, last=commit.offset)
    if commit.at_ms - run.last_ms <= run.silent_to_ms - run.silent_from_ms:
        return grown
    return grown._replace(
        silent_from_ms=run.last_ms,
        silent_to_ms=commit.at_ms,
        silent_before=run.last,
        silent_after=commit.offset,
    )


def by_partition(runs: Iterable[Run]) -> dict[TopicPartition, list[Run]]:
    """Return runs by partition, each partition's in the order of the log."""
    found: dict[TopicPartition, list[Run]] = {}
    for run in sorted(runs, key=attrgetter("place")):
        found.setdefault(TopicPartition(run.topic, run.partition), []).append(run)
    return found
