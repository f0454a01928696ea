"""Histories as `coterie history` prints them for people, the worst group first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from coterie.base.errors import CoterieError
from coterie.base.plain import counted, moment_text, most_often, plain

if TYPE_CHECKING:
    from coterie.history.tables import Generation, History
    from coterie.story.cost import Cost

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
            pages.append((badness(losses, history.group_id), text(history, last)))
    except CoterieError as error:
        failure = error
    if len(pages) > 1:
        yield f"{totals}\n"
    yield from (words for _, words in sorted(pages))
    if failure is not None:
        raise failure


def text(history: History, last: int) -> str:
    """Return a history in lines: a summary of the group, and its last rebalances."""
    from coterie.history.ownership import costs_of
    from coterie.story.cost import Cost

    generations = history.generations[-last:] if last else ()
    lines = [click.style(f"{plain(history.group_id)}: {summary(history)}", bold=True)]
    costs = costs_of(history)
    for one in generations:
        lines += rebalance_lines(one, costs.get((one.generation, one.formed_at), Cost()))
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
        parts[0] += f", {most_often(causes)}"
    stood_still = sum(one.to_ms - one.from_ms for one in history.stalls)
    if stood_still:
        parts.append(f"partitions stood still {seconds(stood_still)} in all")
    if history.moves:
        parts.append(f"{counted(len(history.moves), 'move')} of a partition")
    if history.replacements:
        parts.append(f"{counted(len(history.replacements), 'static member')} replaced without a rebalance")
    return "; ".join(parts)


def rebalance_lines(one: Generation, cost: Cost) -> list[str]:
    """Return a rebalance in two or three lines: its causes, its cost, and the evidence."""
    what = f"{moment_text(one.formed_at)}  generation {one.generation}, {counted(len(one.members), 'member')}"
    lines = [f"  {what}: {', '.join(one.causes)} ({one.confidence:.0%})"]
    from coterie.history.advice import seconds

    costs = []
    if cost.longest_ms >= LEAST_MS:
        costs.append(f"{counted(cost.partitions, 'partition')} stood still, up to {seconds(cost.longest_ms)}")
    if cost.moved:
        costs.append(f"{cost.moved} moved")
    if costs:
        lines.append(f"      {', '.join(costs)}")
    return [*lines, f"      {plain('; '.join(one.evidence))}"]
