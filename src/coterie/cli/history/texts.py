"""Histories as `coterie history` prints them for people, the worst group first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING

import click

from coterie.base.errors import CoterieError
from coterie.base.plain import counted, moment_text, most_often, plain
from coterie.cli.costs import still_text

if TYPE_CHECKING:
    from coterie.history.tables import Generation, History, Replacement
    from coterie.story.cost import Cost

SHORT_MS = 1_000


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
    entries = [
        (one.formed_at, rebalance_lines(one, costs.get((one.generation, one.formed_at), Cost())))
        for one in generations
    ]
    entries += [
        (one.at, [replacement_line(one, costs.get((one.generation, one.at), Cost()))])
        for one in history.replacements[-last:]
        if generations and one.at >= generations[0].formed_at
    ]
    for _, some in sorted(entries, key=itemgetter(0)):
        lines += some
    lines += [
        f"  {one.kind}, {moment_text(one.from_ms)} to {moment_text(one.to_ms)}: {plain(one.why)}"
        for one in history.waves
    ]
    return "\n".join(lines) + "\n"


def summary(history: History) -> str:
    """Return the number of a group's rebalances, their most frequent cause, and their cost."""
    from coterie.history.advice import losses_of

    parts = [counted(len(history.generations), "rebalance")]
    causes = Counter(cause for one in history.generations for cause in one.causes)
    if causes:
        parts[0] += f", {most_often(causes)}"
    losses = losses_of(history)
    if losses.stood_still_ms:
        parts.append(f"partitions stood still {losses.still_text}")
    if history.moves:
        parts.append(f"{counted(len(history.moves), 'move')} of a partition")
    if history.replacements:
        parts.append(f"{counted(len(history.replacements), 'static member')} replaced without a rebalance")
    return "; ".join(parts)


def span_text(ms: int) -> str:
    """Return a time: to the millisecond, as the story has it, where rounding would leave nothing of it."""
    from coterie.history.advice import seconds

    return f"{ms} ms" if ms < SHORT_MS else seconds(ms)


def replacement_line(one: Replacement, cost: Cost) -> str:
    """Return the line of a static member's return without a rebalance, with what stood still until then."""
    who = plain(one.instance_id)
    line = f"  {moment_text(one.at)}  {who} came back under a new member id, without a rebalance"
    return f"{line}: {still_text(cost, span_text)}" if cost.partitions else line


def rebalance_lines(one: Generation, cost: Cost) -> list[str]:
    """Return a rebalance in two or three lines: its causes, its cost, and the evidence."""
    what = f"{moment_text(one.formed_at)}  generation {one.generation}, {counted(len(one.members), 'member')}"
    lines = [f"  {what}: {', '.join(one.causes)} ({one.confidence:.0%})"]
    costs = [still_text(cost, span_text)] if cost.partitions else []
    if cost.moved:
        costs.append(f"{cost.moved} moved")
    if costs:
        lines.append(f"      {', '.join(costs)}")
    return [*lines, f"      {plain('; '.join(one.evidence))}"]
