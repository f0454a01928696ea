"""What `coterie simulate` prints for people: the figures of all variants side by side, and their stories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from coterie.base.plain import counted
from coterie.cli.tables import columns

if TYPE_CHECKING:
    from coterie.simulate.report import Entry, Summary
    from coterie.simulate.scenario import Script, Variant
    from coterie.simulate.variant import Outcome
    from coterie.story.model import Move, Rebalance

NAMES_MOST = 4
DASH = "–"


# -- times


def span_text(span_ms: int) -> str:
    """Return a span of time as people say it: 640 ms, 6.2 s, 2 m 34 s, 3 h 05 m."""
    if span_ms < 1_000:
        return f"{span_ms} ms"
    if span_ms < 59_950:  # which is no 60.0 s
        return f"{span_ms / 1_000:.1f} s"
    seconds = round(span_ms / 1_000)
    if seconds < 3_600:
        return f"{seconds // 60} m {seconds % 60:02} s"
    minutes = round(span_ms / 60_000)
    return f"{minutes // 60:,} h {minutes % 60:02} m"


def clock_text(at_ms: int) -> str:
    """Return a moment of a scenario: hours, minutes and seconds since its start."""
    seconds, milliseconds = divmod(at_ms, 1_000)
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}.{milliseconds:03}"


# -- the head


def heading(script: Script) -> list[str]:
    """Return the title, and the size of the group, of each variant if they differ."""
    shapes = {shape_text(variant) for variant in script.variants}
    lines = [click.style(script.title, bold=True)]
    if len(shapes) == 1:
        return [*lines, *shapes]
    return [*lines, *(f"{variant.name}: {shape_text(variant)}" for variant in script.variants)]


def shape_text(variant: Variant) -> str:
    partitions = sum(variant.topics.values())
    return (
        f"{span_text(variant.lasts_ms)} of {counted(variant.members, 'member')}"
        f" on {counted(partitions, 'partition')}, seed {variant.seed}"
    )


# -- the figures


def figures(names: Sequence[str], summaries: Sequence[Summary]) -> list[tuple[str, ...]]:
    """Return the table of all variants' figures: a head, and one row for each figure."""
    causes = Counter[str]()
    for summary in summaries:
        causes.update(summary.causes)
    rows = [("rebalances", *(number(one.rebalances) for one in summaries))]
    rows += [
        (f"  {cause}", *(number(one.causes.get(cause, 0)) for one in summaries))
        for cause, _ in causes.most_common()
    ]
    rows += [
        ("members back without a rebalance", *(number(one.returns) for one in summaries)),
        ("partitions moved", *(number(one.moves) for one in summaries)),
        ("longest stand-still", *(span_or_dash(one.longest and one.longest.length_ms) for one in summaries)),
        ("  of partition", *(DASH if one.longest_of is None else str(one.longest_of) for one in summaries)),
        ("without owner, all partitions", *(span_or_dash(one.idle_ms) for one in summaries)),
        ("  the median partition", *(span_or_dash(one.idle_median_ms) for one in summaries)),
        ("  the worst partition", *(span_or_dash(one.worst_ms) for one in summaries)),
    ]
    if any(one.twice_ms for one in summaries):
        rows.append(("worked on by two, all partitions", *(span_or_dash(one.twice_ms) for one in summaries)))
    rows.append(("first at work after", *(span_or_dash(one.at_work_ms) for one in summaries)))
    return [("", *names), *rows]


def number(count: int) -> str:
    return f"{count:,}" if count else DASH


def span_or_dash(span_ms: int | None) -> str:
    return span_text(span_ms) if span_ms else DASH


def partition_lines(names: Sequence[str], outcomes: Sequence[Outcome], most: int) -> list[str]:
    """Return a table of the partitions that were without an owner for longest, at most so many."""
    tables = [outcome.ownership.rows for outcome in outcomes]
    known = sorted({one for rows in tables for one in rows})
    still = {one: max(rows[one].idle_ms for rows in tables if one in rows) for one in known}
    shown = sorted(known, key=lambda one: -still[one])[:most]
    head = ["without owner, longest, moved"]
    head += [cell for name in names for cell in (name, "", "")]
    lines = []
    for one in sorted(shown):
        cells = [str(one)]
        for rows in tables:
            row = rows.get(one)
            if row is None:
                cells += [DASH] * 3
                continue
            longest_ms = None if row.longest is None else row.longest.length_ms
            cells += [span_or_dash(row.idle_ms), span_or_dash(longest_ms), number(len(row.moves))]
        lines.append(cells)
    more = len(known) - len(shown)
    rest = [f"… {more:,} more, which stood still for less: --partitions {len(known)}"]
    return [*columns([head, *lines]), *(rest if more else [])]


# -- the story


def story_lines(outcome: Outcome, most: int) -> list[str]:
    """Return the story of a variant, at most so many lines from its beginning."""
    from coterie.simulate.agenda import START_MS
    from coterie.simulate.report import entries

    story = list(entries(outcome.story))
    lines = [f"{clock_text(one.at_ms - START_MS)}  {entry_text(one)}" for one in story[:most]]
    lines += [
        f"{clock_text(one.at_ms - START_MS)}  {one.name} gives up: {one.why}" for one in outcome.ended[:most]
    ]
    more = len(story) - most
    return [*lines, f"… {more:,} more: --story {len(story)}"] if more > 0 else lines


def entry_text(entry: Entry) -> str:
    causes = causes_text(entry.moves)
    rebalance = entry.rebalance
    if rebalance is None:
        return f"{causes}; no rebalance"
    return f"{causes or ', '.join(rebalance.why)} → {rebalance_text(rebalance)}"


def causes_text(moves: Sequence[Move]) -> str:
    """Return the causes of a rebalance, with the members' names if they are few."""
    by_cause: dict[str, list[str]] = {}
    for move in moves:
        names = by_cause.setdefault(move.why or "unknown", [])
        names += [person.client_id for person in move.who]
    return ", ".join(
        f"{cause} {' '.join(names)}".rstrip() if len(names) <= NAMES_MOST else f"{cause} ×{len(names)}"
        for cause, names in by_cause.items()
    )


def rebalance_text(rebalance: Rebalance) -> str:
    stopped = span_text(rebalance.stopped_ms)
    cut_short = "" if rebalance.settled else ", cut short"
    size = counted(len(rebalance.members), "member")
    return f"generation {rebalance.generation} of {size} in {stopped}{cut_short}"
