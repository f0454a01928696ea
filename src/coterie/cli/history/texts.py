"""Histories as `coterie history` prints them for people, the worst group first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from coterie.base.errors import CoterieError
from coterie.base.plain import moment_text, plain
from coterie.cli.tables import counted

if TYPE_CHECKING:
    from coterie.history.tables import Generation, History

LEAST_MS = 100
"""A stand-still that is shorter is not printed."""


def texts(histories: Iterable[History], last: int) -> Iterator[str]:
    """Yield a summary of all groups, if there are several, and the text of each, the worst first.

    If reading ends with an error, the groups that were read before it come all the same.
    """
    from coterie.history.report import Totals, badness

    totals, pages, failure = Totals(), [], None
    try:
        for losses, history in totals.of(histories):
            pages.append((badness((losses, history)), text(history, last)))
    except CoterieError as error:
        failure = error
    if len(pages) > 1:
        yield f"{totals}\n"
    yield from (words for _, words in sorted(pages))
    if failure is not None:
        raise failure


def text(history: History, last: int) -> str:
    """Return a history in lines: a summary of the group, and its last rebalances."""
    generations = history.generations[-last:] if last else ()
    lines = [click.style(f"{plain(history.group_id)}: {summary(history)}", bold=True)]
    stood_still, moved = stood_still_by(history), Counter((one.generation, one.at) for one in history.moves)
    for one in generations:
        place = one.generation, one.formed_at
        lines += rebalance_lines(one, stood_still.get(place, (0, 0)), moved[place])
    lines += [
        f"  {one.kind}, {moment_text(one.from_ms)} to {moment_text(one.to_ms)}: {plain(one.why)}"
        for one in history.waves
    ]
    return "\n".join(lines) + "\n"


def summary(history: History) -> str:
    """Return the number of a group's rebalances, their most frequent cause, and their cost."""
    from coterie.history.advice import seconds

    parts = [counted(len(history.generations), "rebalance")]
    causes = Counter(cause for one in history.generations for cause in one.causes)
    if causes:
        ((cause, times),) = causes.most_common(1)
        parts[0] += f", most often {cause} ({times})"
    stood_still = sum(one.to_ms - one.from_ms for one in history.stalls)
    if stood_still:
        parts.append(f"partitions stood still {seconds(stood_still)} in all")
    if history.moves:
        parts.append(f"{counted(len(history.moves), 'move')} of a partition")
    if history.replacements:
        parts.append(f"{counted(len(history.replacements), 'static member')} replaced without a rebalance")
    return "; ".join(parts)


def stood_still_by(history: History) -> dict[tuple[int, int], tuple[int, int]]:
    """Return for each generation the longest time (ms) that a partition had no owner before it, and how many
    had none.

    A dead member's partitions count from its last progress: no member read them from then on.
    """
    from coterie.history.ownership import NO_OWNER

    found: dict[tuple[int, int], tuple[int, int]] = {}
    partition, since, until = ("", -1), 0, 0
    for one in sorted(history.stalls, key=lambda stall: (stall.topic, stall.partition, stall.from_ms)):
        if (one.topic, one.partition) != partition or one.from_ms > until:
            partition, since = (one.topic, one.partition), one.from_ms
        until = one.to_ms
        if one.kind == NO_OWNER:
            longest, partitions = found.get((one.generation, one.to_ms), (0, 0))
            found[one.generation, one.to_ms] = max(longest, one.to_ms - since), partitions + 1
    return found


def rebalance_lines(one: Generation, stood_still: tuple[int, int], moved: int) -> list[str]:
    """Return a rebalance in two or three lines: its causes, its cost, and the evidence."""
    what = f"{moment_text(one.formed_at)}  generation {one.generation}, {counted(len(one.members), 'member')}"
    lines = [f"  {what}: {', '.join(one.causes)} ({one.confidence:.0%})"]
    from coterie.history.advice import seconds

    longest_ms, partitions = stood_still
    costs = []
    if longest_ms >= LEAST_MS:
        costs.append(f"{counted(partitions, 'partition')} stood still, up to {seconds(longest_ms)}")
    if moved:
        costs.append(f"{moved} moved")
    if costs:
        lines.append(f"      {', '.join(costs)}")
    return [*lines, f"      {plain('; '.join(one.evidence))}"]
