"""How members behaved in a generation, as the commits of their partitions show.

A commit does not say who made it; that it was the partition's owner is taken for granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from coterie.base.ids import TopicPartition
from coterie.history.log.runs import Run

USUAL_CADENCE_MS = 5_000.0
"""auto.commit.interval.ms of every client, where a member's own cannot be seen."""
REGULAR_COMMITS, REGULAR_TIMES = 5, 4
STEADY_SHARE = 0.7
"""Of what comes at other times, so much came in a silence in which a member hung."""
LATE_TIMES, LATE_LEAST_MS = 1.5, 1_000
"""Who is silent for more intervals than that, and this is no jitter, hung."""
HELD_TIMES = 1.5
"""Of what an interval brings, so much may one that hangs have read and not committed, at most."""


class Presence(NamedTuple):
    """A member's commits in one generation. `last_ms` is None where there were none."""

    last_ms: int | None
    cadence_ms: float
    regular: bool
    """It committed steadily: when it stops, something happened to it."""
    late: bool = False
    """Its last commit ended a silence in which it hung: it had been asked for what it has before that."""


def presence(partitions: Iterable[TopicPartition], runs: Mapping[TopicPartition, Sequence[Run]]) -> Presence:
    """Return the behaviour of the owner of these partitions while these runs were written.

    Its cadence is that of its busiest partition, the steadiest of them if several are: the others wait for
    records, it does not.
    """
    last_ms: int | None = None
    busiest: tuple[float, int, int, str, int] | None = None
    run: Run | None = None
    quickest_ms = inf
    for partition in partitions:
        for one in runs.get(partition, ()):
            count, until_ms = one.count, one.last_ms
            if last_ms is None or until_ms > last_ms:
                last_ms = until_ms
            if count > 2 and (cadence_ms := (until_ms - one.first_ms) / (count - 1)) <= quickest_ms:
                # Of those that are alike the first, and not whichever a set comes to first.
                found = cadence_ms, one.silent_to_ms - one.silent_from_ms, -count, one[0], one[1]
                if busiest is None or found < busiest:
                    busiest, quickest_ms, run = found, cadence_ms, one
    if busiest is None or run is None:
        return Presence(last_ms, USUAL_CADENCE_MS, False)
    cadence_ms, longest_ms, fewer, *_ = busiest
    if -fewer > REGULAR_COMMITS and hung(run):
        steady_ms = (run.last_ms - run.first_ms - longest_ms) / (run.count - 2)
        late = gave_up_late(run) and longest_ms > LATE_TIMES * max(steady_ms, LATE_LEAST_MS)
        return Presence(last_ms, steady_ms, True, late)
    regular = -fewer >= REGULAR_COMMITS and longest_ms <= REGULAR_TIMES * max(cadence_ms, 100)
    return Presence(last_ms, cadence_ms, regular)


def hung(run: Run) -> bool:
    """Return whether it hung in its longest silence, as far as can be seen here, and is steady otherwise.

    Records came as ever meanwhile; or it was the end of that, for others wanted what it had.
    """
    longest_ms = run.silent_to_ms - run.silent_from_ms
    spoken_ms = run.last_ms - run.first_ms - longest_ms
    brought = run.silent_after - run.silent_before
    read = run.last - run.first - brought
    if gave_up_late(run):
        return True
    return 0 < STEADY_SHARE * read * longest_ms <= brought * spoken_ms


def gave_up_late(run: Run) -> bool:
    """Return whether its longest silence ended as it gave up at last what it had.

    What it commits then it had read before it began to hang: no more than what an interval brings.
    """
    brought = run.silent_after - run.silent_before
    read = run.last - run.first - brought
    intervals = run.count - 2
    return run.silent_to_ms == run.last_ms and brought * max(intervals, 1) <= HELD_TIMES * max(read, 0)


def last_rate(runs: Sequence[Run]) -> float | None:
    """Return the rate of the last of a partition's runs that tells one."""
    for run in reversed(runs):
        rate = rate_of(run)
        if rate is not None:
            return rate
    return None


def rate_of(run: Run) -> float | None:
    """Return the rate in records a millisecond of a run, None where too few commits tell."""
    took_ms, brought = run.last_ms - run.first_ms, run.last - run.first
    return brought / took_ms if run.count > 2 and took_ms > 0 and brought > 0 else None
