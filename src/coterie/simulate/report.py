"""What came of a scenario, in figures: rebalances and their causes, stand-stills, moves; and all as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from coterie.base.ids import TopicPartition
from coterie.simulate.agenda import START_MS
from coterie.simulate.ownership import (
    Row,
)
from coterie.simulate.scenario import Script
from coterie.simulate.variant import Outcome
from coterie.story.drawing import (
    Span,
)
from coterie.story.model import Move, Rebalance

APART_MS = 5 * 60_000
MEMBERS_SHOWN_MAX = 100
"""Of a larger rebalance, JSON leaves the lists of members out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of one variant. Rebalances count from when every partition first had an owner."""

    at_work_ms: int | None
    """How long after the start every partition had an owner; None if that never was."""
    causes: Mapping[str, int]
    """How many rebalances each cause began."""
    returns: int
    """Members that came back without a rebalance."""
    moves: int
    """Partitions that went to another member."""
    stopped_ms: int
    """For how long the group was rebalancing."""
    idle_ms: int
    """For how long partitions had no owner at work, added up over all."""
    idle_median_ms: int
    worst: TopicPartition | None
    """The partition that stood still for the longest time in all."""
    worst_ms: int
    longest: Span | None
    """The longest single stand-still, and of which partition."""
    longest_of: TopicPartition | None
    twice_ms: int
    """For how long partitions were worked on by two, added up."""
    ended: int
    """Members that gave up for good."""

    @property
    def rebalances(self) -> int:
        """How many there were."""
        return sum(self.causes.values())


class Entry(NamedTuple):
    """A line of the story: a rebalance with what led to it, or moves that led to none."""

    at_ms: int
    moves: tuple[Move, ...]
    rebalance: Rebalance | None


def summary_of(outcome: Outcome) -> Summary:
    """Return the figures of a variant."""
    rows = outcome.ownership.rows
    firsts = [row.first_owned_ms for row in rows.values()]
    owned = [at_ms for at_ms in firsts if at_ms is not None]
    at_work_ms = max(owned) if len(owned) == len(firsts) else None
    events = [one for one in outcome.story if at_work_ms is None or ended_ms(one) > at_work_ms]
    worst = max(rows, key=lambda one: (rows[one].idle_ms, reverse(one)))
    longest = max(rows, key=lambda one: (length_of(rows[one]), reverse(one)))
    return Summary(
        at_work_ms=None if at_work_ms is None else at_work_ms - START_MS,
        causes=dict(Counter(one.why[0] for one in events if isinstance(one, Rebalance)).most_common()),
        returns=sum(is_return(one) for one in events),
        moves=sum(len(row.moves) for row in rows.values()),
        stopped_ms=sum(one.stopped_ms for one in events if isinstance(one, Rebalance)),
        idle_ms=sum(row.idle_ms for row in rows.values()),
        idle_median_ms=round(median(row.idle_ms for row in rows.values())),
        worst=worst if rows[worst].idle_ms else None,
        worst_ms=rows[worst].idle_ms,
        longest=rows[longest].longest,
        longest_of=longest if rows[longest].idle else None,
        twice_ms=sum(row.twice_ms for row in rows.values()),
        ended=len(outcome.ended),
    )


def ended_ms(event: Move | Rebalance) -> int:
    return event.over_at_ms if isinstance(event, Rebalance) else event.at_ms


def is_return(event: Move | Rebalance) -> bool:
    """Return whether a member came back and nothing else happened."""
    return isinstance(event, Move) and event.why == "static-member-replaced" and event.state == "Stable"


def length_of(row: Row) -> int:
    return row.longest.length_ms if row.longest is not None else 0


def reverse(one: TopicPartition) -> tuple[int, ...]:
    """Return a sort key by which the first of equal partitions is the greatest."""
    return (*(-ord(letter) for letter in one.topic), 0, -one.partition)


def entries(story: Iterable[Move | Rebalance]) -> Iterator[Entry]:
    """Yield the story by what belongs together."""
    waiting: list[Move] = []
    for event in story:
        if isinstance(event, Move):
            waiting.append(event)
            continue
        yield from alone(move for move in waiting if move.at_ms < event.at_ms)
        mine = tuple(move for move in waiting if move.at_ms >= event.at_ms)
        yield Entry(event.at_ms, mine, event)
        waiting = []
    yield from alone(waiting)


def alone(moves: Iterable[Move]) -> Iterator[Entry]:
    """Yield moves without a rebalance; those that follow one another for the same reason are one entry."""
    run: list[Move] = []
    for move in moves:
        if run and (run[-1].why != move.why or move.at_ms - run[-1].at_ms > APART_MS):
            yield Entry(run[0].at_ms, tuple(run), None)
            run = []
        run.append(move)
    if run:
        yield Entry(run[0].at_ms, tuple(run), None)


# -- JSON


def document(script: Script, outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Return all of it as JSON values. Times are milliseconds since the start."""
    return {"title": script.title, "variants": [variant_document(one) for one in outcomes]}


def variant_document(outcome: Outcome) -> dict[str, Any]:
    variant = outcome.variant
    return {
        "name": variant.name,
        "seed": variant.seed,
        "lasts_ms": variant.lasts_ms,
        "members": variant.members,
        "summary": summary_document(summary_of(outcome)),
        "partitions": [row_document(one, row) for one, row in sorted(outcome.ownership.rows.items())],
        "gave_up": [
            {"at": one.at_ms - START_MS, "member": one.name, "why": one.why} for one in outcome.ended
        ],
        "story": [story_document(one) for one in outcome.story],
        "played": outcome.played,
        "folded": outcome.folded,
    }


def summary_document(summary: Summary) -> dict[str, Any]:
    longest = summary.longest
    return {
        "at_work_ms": summary.at_work_ms,
        "rebalances": summary.rebalances,
        "rebalances_by_cause": summary.causes,
        "returned_without_rebalance": summary.returns,
        "partitions_moved": summary.moves,
        "rebalancing_ms": summary.stopped_ms,
        "partition_ms_without_owner": summary.idle_ms,
        "longest_ms": 0 if longest is None else longest.length_ms,
        "longest_at": None if longest is None else longest.from_ms - START_MS,
        "longest_of": None if summary.longest_of is None else str(summary.longest_of),
        "partition_ms_worked_by_two": summary.twice_ms,
        "gave_up": summary.ended,
    }


def row_document(one: TopicPartition, row: Row) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "without_owner_ms": row.idle_ms,
        "longest_ms": length_of(row),
        "stand_stills": len(row.idle),
        "moves": len(row.moves),
        "worked_by_two_ms": row.twice_ms,
    }


def story_document(event: Move | Rebalance) -> dict[str, Any]:
    """Return an entry as `__group_story` holds it, but for its times."""
    if isinstance(event, Move):
        return event.document() | {"at": event.at_ms - START_MS}
    values = event.abridged(event.moved) if len(event.members) > MEMBERS_SHOWN_MAX else event.document()
    return values | {"at": event.at_ms - START_MS, "formed_at": event.formed_at_ms - START_MS}
