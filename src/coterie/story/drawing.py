"""Pages and pictures of who worked on which partition when: HTML and SVG as text, nothing from elsewhere.

A row a partition, a colour a member, red where nobody was at work. The simulator and the history of groups
draw with it; what a moment is called, and what is written beside the picture, is theirs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from itertools import islice
from typing import NamedTuple, TypeVar

T = TypeVar("T")

LEFT, RIGHT, WIDTH = 96, 16, 1180
HEIGHT, GAP, TOP, AXIS = 13, 2, 34, 22
ROWS_MOST = 40
HAIR = 0.8
"""What is shorter than a hair is drawn as one: a stand-still of seconds in a day."""
TICKS = 8
STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 604800)

STYLE = """
:root{color-scheme:light dark;--ink:#172033;--soft:#5b6780;--paper:#fff;--row:#eef1f6;--gap:#c5283d;
--line:#8a95a8}
@media (prefers-color-scheme:dark){:root{--ink:#e8ecf4;--soft:#9aa6bb;--paper:#10151f;--row:#1b2331;
--gap:#ff6b78;--line:#6b7890}}
body{background:var(--paper);color:var(--ink);margin:2rem auto;max-width:1180px;padding:0 1rem;
font:14px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif}
h1{font-size:1.4rem;margin:0 0 .3rem} h2{font-size:1.05rem;margin:2rem 0 .2rem}
p{color:var(--soft);margin:.2rem 0}
svg{display:block;width:100%;height:auto;margin-top:.4rem}
text{fill:var(--soft);font-size:11px} .row{fill:var(--row)} .gap{fill:var(--gap)} .line{stroke:var(--line)}
.mark{fill:var(--ink);font-size:12px} .key i{display:inline-block;width:.9em;height:.9em;margin:0 .3em 0 .9em;
vertical-align:-.1em;border-radius:2px}
table{border-collapse:collapse;margin:1rem 0} td,th{padding:.15rem .9rem .15rem 0;text-align:right}
td:first-child{text-align:left;color:var(--soft);white-space:pre}
td.t,th.t{text-align:left}
@media (max-width:700px){table{display:block;overflow-x:auto}}
@media print{body{margin:0;max-width:none} tr,svg{break-inside:avoid}}
"""


TABLE_ROWS_MOST = 1_001


class Span(NamedTuple):
    """A stretch of time; `owner` is a member's number."""

    from_ms: int
    to_ms: int
    owner: int = -1

    @property
    def length_ms(self) -> int:
        """How long it lasts."""
        return self.to_ms - self.from_ms


class Row(NamedTuple):
    """A partition as it is drawn: its name, who was at work on it, and when nobody was."""

    name: str
    spans: Sequence[Span]
    idle: Sequence[Span]


class Window(NamedTuple):
    """A stretch of time, and where it is drawn."""

    from_ms: int
    to_ms: int

    def x(self, at_ms: int) -> float:
        """Return the x coordinate of a moment; one outside of the window is at its edge."""
        share = (min(max(at_ms, self.from_ms), self.to_ms) - self.from_ms) / (self.to_ms - self.from_ms)
        return LEFT + share * (WIDTH - LEFT - RIGHT)


def document(title: str, parts: Iterable[str], style: str = "") -> str:
    """Return a whole page."""
    phone = '<meta name="viewport" content="width=device-width,initial-scale=1">'
    head = f'<meta charset="utf-8">{phone}<title>{escape(title)}</title><style>{STYLE}{style}</style>'
    return f'<!doctype html><html lang="en">{head}{"".join(parts)}</html>\n'


def table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table of texts, the first row of which is its head; nothing if there are no rows."""
    given = list(islice(rows, TABLE_ROWS_MOST))
    # what does not begin with a digit, in the first row, is a column of texts
    texts = [not cell[:1].isdigit() for cell in (given[1] if len(given) > 1 else ())]
    written = [
        "<tr>" + "".join(cells(row, "td" if at else "th", texts)) + "</tr>" for at, row in enumerate(given)
    ]
    if written:
        yield f"<table>{''.join(written)}</table>"


def cells(row: Sequence[str], kind: str, texts: Sequence[bool]) -> Iterator[str]:
    """Yield the cells of a row; texts begin at the left."""
    for at, text in enumerate(row):
        left = ' class="t"' if at < len(texts) and texts[at] else ""
        yield f"<{kind}{left}>{escape(text)}</{kind}>"


def picked(things: Sequence[T], most: int = ROWS_MOST) -> list[T]:
    """Return the things that are drawn: all, or as many as there is room for, evenly picked."""
    count = min(len(things), most)
    return [things[place * len(things) // count] for place in range(count)]


def floor_of(rows: int) -> int:
    """Return the y coordinate of the time line below so many rows."""
    return TOP + rows * (HEIGHT + GAP)


def picture(parts: Iterable[str], rows: int) -> str:
    """Return a picture of so many rows."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {floor_of(rows) + AXIS}" role="img"'
        f' aria-label="who worked on which partition">{"".join(parts)}</svg>'
    )


def guides(names: Iterable[str]) -> Iterator[str]:
    """Yield the ground of each row, and its name before it."""
    for place, name in enumerate(names):
        y = TOP + place * (HEIGHT + GAP)
        yield f'<rect class="row" x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + HEIGHT - 3}" text-anchor="end">{escape(name)}</text>'


def bands(rows: Iterable[Row], window: Window, owner_name: Callable[[int], str]) -> Iterator[str]:
    """Yield a shape a member, and over them one for the time that nobody was at work."""
    shapes: dict[int, list[str]] = defaultdict(list)
    for place, row in enumerate(rows):
        y = TOP + place * (HEIGHT + GAP)
        for span in merged(seen(row.spans, window)):
            shapes[span.owner].append(box(window, span, y))
        for from_x, to_x in gaps(seen(row.idle, window), window):
            shapes[-1].append(f"M{num(from_x)} {y}h{num(to_x - from_x)}v{HEIGHT}h{num(from_x - to_x)}z")
    for owner in sorted(shapes, reverse=True):
        name = "nobody at work" if owner < 0 else owner_name(owner)
        look = 'class="gap"' if owner < 0 else f'fill="{colour(owner)}"'
        yield f'<path {look} d="{"".join(shapes[owner])}"><title>{escape(name)}</title></path>'


def seen(spans: Iterable[Span], window: Window) -> Iterator[Span]:
    """Yield the spans that reach into the window."""
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
    """Yield (from x, to x) of each time without work, a hair at least; those that touch are one."""
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
    return f"M{num(from_x)} {y}h{num(width)}v{HEIGHT}h{num(-width)}z"


def num(value: float) -> str:
    """Return a coordinate, a hundredth exact."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def colour(owner: int) -> str:
    """Return a member's colour: neighbours differ by the golden ratio of what is not red, as nobody is."""
    hue = 30 + 300 * (owner * 0.618034 % 1)
    return f"hsl({hue:.0f} {38 + owner % 3 * 8}% {56 + owner % 2 * 10}%)"


def lines(moments: Iterable[tuple[int, str]], window: Window, floor: int) -> Iterator[str]:
    """Yield a line at each of these moments, with its words; one where they fall together."""
    taken: set[str] = set()
    for at_ms, words in moments:
        x = f"{window.x(at_ms):.0f}"
        if window.from_ms <= at_ms <= window.to_ms and x not in taken:
            taken.add(x)
            line = f'<line class="line" x1="{x}" x2="{x}" y1="{TOP - 8}" y2="{floor + 3}" stroke-width=".6"/>'
            yield f"<g><title>{escape(words)}</title>{line}</g>"


def axis(window: Window, floor: int, stamp: Callable[[int], str], *, origin_ms: int = 0) -> Iterator[str]:
    """Yield the time line: round times since `origin_ms`, as `stamp` writes them."""
    seconds = (window.to_ms - window.from_ms) / 1_000
    weeks = -(-int(seconds) // (TICKS * STEPS_S[-1]))  # a clock may be centuries wrong
    step_ms = 1_000 * next((step for step in STEPS_S if seconds / step <= TICKS), weeks * STEPS_S[-1])
    place = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor + 2}" y2="{floor + 2}"'
    yield f'<line class="line" {place} stroke-width=".6"/>'
    first = -(-(window.from_ms - origin_ms) // step_ms) * step_ms
    for at_ms in range(origin_ms + first, window.to_ms + 1, step_ms):
        x = window.x(at_ms)
        anchor = "end" if x > WIDTH - RIGHT - 26 else "middle"
        yield f'<text x="{num(x)}" y="{floor + 16}" text-anchor="{anchor}">{escape(stamp(at_ms))}</text>'
