"""The picture of a scenario: who worked on which partition when, and when nobody did. One page, no network.

A row a partition, a colour a member, red where nobody was at work. Each variant is drawn whole, and once
more around the first thing that was done to it, where a day would hide what takes seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import NamedTuple

from coterie.base.ids import TopicPartition
from coterie.observe.story import Rebalance
from coterie.sim.ownership import Span
from coterie.sim.script import Script
from coterie.sim.simulate import Outcome
from coterie.sim.timetable import Act
from coterie.sim.world import START_MS

__all__ = ["page"]

LEFT, RIGHT, WIDTH = 96, 16, 1180
ROW, GAP, TOP, AXIS = 13, 2, 34, 22
ROWS_MOST = 40
HAIR = 0.8
"""What is shorter than a hair is drawn as one: a stand-still of seconds in a day."""
CLOSE_UP_OF = 20 * 60_000
CLOSE_UP_MS, PAUSE_MS, LEAD_MS = 3 * 60_000, 90_000, 15_000
TICKS = 8
STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 604800)
MARKS = {"kill": "✕", "stop": "■", "stall": "…", "pause": "‖"}
WORDS = {"kill": "is killed", "stop": "stops", "stall": "polls slowly", "pause": "is paused"}

STYLE = """
:root{color-scheme:light dark;--ink:#172033;--soft:#5b6780;--paper:#fff;--row:#eef1f6;--gap:#c5283d;
--line:#8a95a8}
@media (prefers-color-scheme:dark){:root{--ink:#e8ecf4;--soft:#9aa6bb;--paper:#10151f;--row:#1b2331;
--gap:#ff6b78;--line:#6b7890}}
body{background:var(--paper);color:var(--ink);margin:2rem auto;max-width:1180px;
font:14px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif}
h1{font-size:1.4rem;margin:0 0 .3rem} h2{font-size:1.05rem;margin:2rem 0 .2rem}
p{color:var(--soft);margin:.2rem 0}
svg{display:block;width:100%;height:auto;margin-top:.4rem}
text{fill:var(--soft);font-size:11px} .row{fill:var(--row)} .gap{fill:var(--gap)} .line{stroke:var(--line)}
.mark{fill:var(--ink);font-size:12px} .key i{display:inline-block;width:.9em;height:.9em;margin:0 .3em 0 .9em;
vertical-align:-.1em;border-radius:2px}
table{border-collapse:collapse;margin:1rem 0} td,th{padding:.15rem .9rem .15rem 0;text-align:right}
td:first-child{text-align:left;color:var(--soft);white-space:pre}
"""


class Window(NamedTuple):
    """A stretch of time, and where it is drawn."""

    from_ms: int
    to_ms: int

    def x(self, at_ms: int) -> float:
        """Return where a moment is."""
        share = (min(max(at_ms, self.from_ms), self.to_ms) - self.from_ms) / (self.to_ms - self.from_ms)
        return LEFT + share * (WIDTH - LEFT - RIGHT)


def page(script: Script, outcomes: Sequence[Outcome], figures: Iterable[Sequence[str]] = ()) -> str:
    """Return the whole page; `figures` are the rows of a table, the first of which is its head."""
    parts = [
        f"<title>{escape(script.title)}</title><style>{STYLE}</style><h1>{escape(script.title)}</h1>",
        '<p class="key">A row a partition, a colour a member;'
        '<i style="background:var(--gap)"></i>nobody at work; '
        "■ stops, ✕ is killed, … polls slowly, ‖ is paused, ⚡ the broker</p>",
        *table(figures),
    ]
    for outcome in outcomes:
        parts += section(outcome)
    return f'<!doctype html><html lang="en"><meta charset="utf-8">{"".join(parts)}</html>\n'


def table(figures: Iterable[Sequence[str]]) -> Iterator[str]:
    rows = [
        "<tr>" + "".join(f"<{cell}>{escape(text)}</{cell}>" for text in row) + "</tr>"
        for cell, row in zip(("th", *("td" for _ in range(1_000))), figures, strict=False)
    ]
    if rows:
        yield f"<table>{''.join(rows)}</table>"


def section(outcome: Outcome) -> Iterator[str]:
    """Yield one variant: whole, and close up."""
    variant = outcome.variant
    if variant.name:
        yield f"<h2>{escape(variant.name)}</h2>"
    shown = rows_shown(sorted(outcome.ownership.rows))
    if len(shown) < len(outcome.ownership.rows):
        yield f"<p>{len(shown)} of {len(outcome.ownership.rows):,} partitions, evenly picked</p>"
    whole = Window(START_MS, START_MS + variant.lasts_ms)
    yield drawn(outcome, whole, shown)
    close_up = first_trouble(outcome)
    if close_up is not None:
        yield f"<p>the same, {stamp(close_up.from_ms)} to {stamp(close_up.to_ms)}</p>"
        yield drawn(outcome, close_up, shown)


def rows_shown(partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions that are drawn: all, or as many as there is room for."""
    count = min(len(partitions), ROWS_MOST)
    return [partitions[place * len(partitions) // count] for place in range(count)]


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
    floor = TOP + len(shown) * (ROW + GAP)
    parts = [
        *rebalances(outcome, window, floor),
        *guides(shown),
        *bands(outcome, window, shown),
        *marks(outcome, window),
        *axis(window, floor),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {floor + AXIS}" role="img"'
        f' aria-label="who worked on which partition">{"".join(parts)}</svg>'
    )


def guides(shown: Sequence[TopicPartition]) -> Iterator[str]:
    for place, one in enumerate(shown):
        y = TOP + place * (ROW + GAP)
        yield f'<rect class="row" x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="{ROW}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + ROW - 3}" text-anchor="end">{escape(str(one))}</text>'


def bands(outcome: Outcome, window: Window, shown: Sequence[TopicPartition]) -> Iterator[str]:
    """Yield a shape a member, and over them one for the time that nobody was at work."""
    shapes: dict[int, list[str]] = defaultdict(list)
    for place, one in enumerate(shown):
        row, y = outcome.ownership.rows[one], TOP + place * (ROW + GAP)
        for span in merged(seen(row.spans, window)):
            shapes[span.owner].append(box(window, span, y))
        for from_x, to_x in gaps(seen(row.idle, window), window):
            shapes[-1].append(f"M{num(from_x)} {y}h{num(to_x - from_x)}v{ROW}h{num(from_x - to_x)}z")
    for owner in sorted(shapes, reverse=True):
        name = "nobody at work" if owner < 0 else outcome.names[owner]
        look = 'class="gap"' if owner < 0 else f'fill="{colour(owner)}"'
        yield f'<path {look} d="{"".join(shapes[owner])}"><title>{escape(name)}</title></path>'


def seen(spans: Iterable[Span], window: Window) -> Iterator[Span]:
    """Yield what of the spans is within the window."""
    for span in spans:
        if span.to_ms > window.from_ms and span.from_ms < window.to_ms:
            yield span


def merged(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield spans, those of one owner in a row as one: the gaps are drawn over them."""
    last: Span | None = None
    for span in spans:
        if last is not None and last.owner == span.owner:
            last = last._replace(to_ms=max(last.to_ms, span.to_ms))
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last


def gaps(spans: Iterable[Span], window: Window) -> Iterator[tuple[float, float]]:
    """Yield from where to where nobody was at work, hairs at least; those that touch are one."""
    last: tuple[float, float] | None = None
    for span in spans:
        from_x = window.x(span.from_ms)
        to_x = max(window.x(span.to_ms), from_x + HAIR)
        if last is not None and from_x <= last[1]:
            last = last[0], max(last[1], to_x)
            continue
        if last is not None:
            yield last
        last = from_x, to_x
    if last is not None:
        yield last


def box(window: Window, span: Span, y: int) -> str:
    from_x = window.x(span.from_ms)
    width = max(HAIR / 2, window.x(span.to_ms) - from_x)
    return f"M{num(from_x)} {y}h{num(width)}v{ROW}h{num(-width)}z"


def num(value: float) -> str:
    """Return a coordinate, a hundredth exact."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def colour(owner: int) -> str:
    """Return a member's colour: neighbours differ by the golden ratio of what is not red, as nobody is."""
    hue = 30 + 300 * (owner * 0.618034 % 1)
    return f"hsl({hue:.0f} {38 + owner % 3 * 8}% {56 + owner % 2 * 10}%)"


def rebalances(outcome: Outcome, window: Window, floor: int) -> Iterator[str]:
    """Yield a line where each rebalance was over."""
    taken: set[str] = set()
    for told in outcome.story:
        if not isinstance(told, Rebalance) or not window.from_ms <= told.over_at_ms <= window.to_ms:
            continue
        x = f"{window.x(told.over_at_ms):.0f}"
        if x not in taken:
            taken.add(x)
            words = f"generation {told.generation}: {', '.join(told.why)}"
            line = f'<line class="line" x1="{x}" x2="{x}" y1="{TOP - 8}" y2="{floor + 3}" stroke-width=".6"/>'
            yield f"<g><title>{escape(words)}</title>{line}</g>"


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
    """Return what was done, in words."""
    who = outcome.names[act.member - 1] if act.member else "the broker"
    return f"a deploy begins: {who} {WORDS[act.what]}" if act.begins else f"{who} {WORDS[act.what]}"


def axis(window: Window, floor: int) -> Iterator[str]:
    seconds = (window.to_ms - window.from_ms) / 1_000
    step_ms = 1_000 * next((step for step in STEPS_S if seconds / step <= TICKS), STEPS_S[-1])
    place = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor + 2}" y2="{floor + 2}"'
    yield f'<line class="line" {place} stroke-width=".6"/>'
    first = -(-(window.from_ms - START_MS) // step_ms) * step_ms
    for at_ms in range(first, window.to_ms - START_MS + 1, step_ms):
        x = window.x(START_MS + at_ms)
        anchor = "end" if x > WIDTH - RIGHT - 26 else "middle"
        yield f'<text x="{num(x)}" y="{floor + 16}" text-anchor="{anchor}">{stamp(START_MS + at_ms)}</text>'


def stamp(at_ms: int) -> str:
    """Return a moment: hours, minutes and seconds since the start."""
    seconds = (at_ms - START_MS) // 1_000
    return f"{seconds // 3_600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
