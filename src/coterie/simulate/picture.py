"""The picture of a scenario: who worked on which partition when, and when nobody did. One page, no network.

A row a partition, a colour a member, red where nobody was at work. Each variant is drawn whole, and once
more around the first thing that was done to it, where a day would hide what takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from coterie.base.ids import TopicPartition
from coterie.simulate.agenda import START_MS
from coterie.simulate.scenario import Script
from coterie.simulate.timetable import Act
from coterie.simulate.variant import Outcome
from coterie.story.drawing import (
    TOP,
    Row,
    Window,
    axis,
    bands,
    document,
    floor_of,
    guides,
    lines,
    num,
    picked,
    picture,
    table,
)
from coterie.story.model import Rebalance

CLOSE_UP_OF = 20 * 60_000
CLOSE_UP_MS, PAUSE_MS, LEAD_MS = 3 * 60_000, 90_000, 15_000
MARKS = {"kill": "✕", "stop": "■", "stall": "…", "pause": "‖"}
WORDS = {"kill": "is killed", "stop": "stops", "stall": "polls slowly", "pause": "is paused"}


def page(script: Script, outcomes: Sequence[Outcome], figures: Iterable[Sequence[str]] = ()) -> str:
    """Return the whole page; `figures` are the rows of a table, the first of which is its head."""
    parts = [
        f"<h1>{escape(script.title)}</h1>",
        '<p class="key">A row a partition, a colour a member;'
        '<i style="background:var(--gap)"></i>nobody at work; '
        "■ stops, ✕ is killed, … polls slowly, ‖ is paused, ⚡ the broker</p>",
        *table(figures),
    ]
    for outcome in outcomes:
        parts += section(outcome)
    return document(script.title, parts)


def section(outcome: Outcome) -> Iterator[str]:
    """Yield one variant: whole, and close up."""
    variant = outcome.variant
    if variant.name:
        yield f"<h2>{escape(variant.name)}</h2>"
    shown = picked(sorted(outcome.ownership.rows))
    if len(shown) < len(outcome.ownership.rows):
        yield f"<p>{len(shown)} of {len(outcome.ownership.rows):,} partitions, evenly picked</p>"
    whole = Window(START_MS, START_MS + variant.lasts_ms)
    yield drawn(outcome, whole, shown)
    close_up = first_trouble(outcome)
    if close_up is not None:
        yield f"<p>the same, {stamp(close_up.from_ms)} to {stamp(close_up.to_ms)}</p>"
        yield drawn(outcome, close_up, shown)


def first_trouble(outcome: Outcome) -> Window | None:
    """Return the time around the first thing that is done to the group, None if the whole shows it."""
    troubles = [act.at_ms for act in outcome.acts if act.what != "start"]
    if outcome.variant.lasts_ms < CLOSE_UP_OF or not troubles:
        return None
    last_ms = troubles[0]
    for act in outcome.acts:
        if last_ms <= act.at_ms <= last_ms + PAUSE_MS:
            last_ms = act.at_ms
    from_ms = max(0, troubles[0] - LEAD_MS)
    to_ms = min(outcome.variant.lasts_ms, max(last_ms + LEAD_MS, from_ms + CLOSE_UP_MS))
    return Window(START_MS + from_ms, START_MS + to_ms)


def drawn(outcome: Outcome, window: Window, shown: Sequence[TopicPartition]) -> str:
    """Return the picture of some partitions over some time."""
    floor = floor_of(len(shown))
    rows = [
        Row(str(one), outcome.ownership.rows[one].spans, outcome.ownership.rows[one].idle) for one in shown
    ]
    parts = [
        *lines(rebalances(outcome), window, floor),
        *guides(row.name for row in rows),
        *bands(rows, window, outcome.names.__getitem__),
        *marks(outcome, window),
        *axis(window, floor, stamp, origin_ms=START_MS),
    ]
    return picture(parts, len(shown))


def rebalances(outcome: Outcome) -> Iterator[tuple[int, str]]:
    """Yield the time at which each rebalance was over, and its causes."""
    for event in outcome.story:
        if isinstance(event, Rebalance):
            yield event.over_at_ms, f"generation {event.generation}: {', '.join(event.why)}"


def marks(outcome: Outcome, window: Window) -> Iterator[str]:
    """Yield a sign above for what was done, where there is room for it."""
    free_from = 0.0
    for act in outcome.acts:
        at_ms = START_MS + act.at_ms
        if act.what == "start" or not window.from_ms <= at_ms <= window.to_ms:
            continue
        x = window.x(at_ms)
        if x < free_from:
            continue
        free_from = x + 12
        words = escape(f"{stamp(at_ms)} {done(outcome, act)}")
        sign = MARKS[act.what] if act.member else "⚡"
        title = f"<title>{words}</title>"
        yield f'<text class="mark" x="{num(x)}" y="{TOP - 14}" text-anchor="middle">{sign}{title}</text>'


def done(outcome: Outcome, act: Act) -> str:
    """Return the act in words."""
    who = outcome.names[act.member - 1] if act.member else "the broker"
    return f"a deploy begins: {who} {WORDS[act.what]}" if act.begins else f"{who} {WORDS[act.what]}"


def stamp(at_ms: int) -> str:
    """Return a moment: hours, minutes and seconds since the start."""
    seconds = (at_ms - START_MS) // 1_000
    return f"{seconds // 3_600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
