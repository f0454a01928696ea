"""The picture of a run: which member owned which partition over time, gaps included.

One SVG that needs no network and no script, drawn from a `Scene`. Its colours follow the reader's light or
dark setting; what the colours say is also said in words and in tooltips.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import count

from pipeline.report.scene import Scene, Span
from pipeline.watch.story import Rebalance, because

WIDTH, LEFT, RIGHT = 1180, 96, 28
TITLE, LABEL_ROW, BADGE = 82, 44, 26
ROW, ROW_GAP = 34, 6
TRACK, TRACK_GAP = 15, 7
CHART = 92
STEPS, MOST_TICKS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600), 14

COLOURS = ("#2f6fde", "#e08a1e", "#12917f", "#a14fc9", "#c43d5c", "#5d7a1f")

STYLE = """
.bg{fill:#fff} .ink{fill:#172033} .soft{fill:#5b6780} .guide{fill:#eef1f6} .grid{stroke:#dde2ea}
.rule{stroke:#8a95a8} .gap{fill:url(#gap)} .hatch{stroke:#a3adbf} .badge{fill:#172033} .onbadge{fill:#fff}
.lag{fill:#8a95a8;fill-opacity:.25} .lagline{stroke:#5b6780} .kill{stroke:#d11a2a} .killed{fill:#d11a2a}
.halo{paint-order:stroke;stroke:#fff;stroke-width:3px}
.on{fill:#fff} text{font-family:system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;font-size:12px}
.title{font-size:20px;font-weight:650} .small{font-size:11px} .bold{font-weight:600}
@media (prefers-color-scheme:dark){.bg{fill:#10151f} .ink{fill:#e8ecf4} .soft{fill:#9aa6bb}
.guide{fill:#1b2331} .grid{stroke:#2a3446} .rule{stroke:#6b7890} .hatch{stroke:#566279}
.badge{fill:#e8ecf4} .onbadge{fill:#10151f} .lagline{stroke:#9aa6bb} .halo{stroke:#10151f}
.kill{stroke:#ff5c6c} .killed{fill:#ff5c6c}}
"""


def el(name: str, *inside: str, **attributes: object) -> str:
    """Return an element; `class_` and `stroke_width` stand for `class` and `stroke-width`."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{short(value)}"' for key, value in attributes.items()
    )
    return f"<{name}{written}>{''.join(inside)}</{name}>" if inside else f"<{name}{written}/>"


def short(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else escape(str(value))


def text(words: str, x: float, y: float, *, class_: str = "ink", anchor: str = "start") -> str:
    return el("text", escape(words), x=x, y=y, class_=class_, text_anchor=anchor)


def tip(words: str) -> str:
    return el("title", escape(words))


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What is said about a rebalance above its badge: a few lines, and in which row of labels they stand."""

    rebalance: Rebalance
    lines: tuple[str, ...]
    x: float  # of the badge
    at: float  # of the words
    row: int


@dataclass(frozen=True)
class Frame:
    """Where things are: time to the right, partitions, lanes and the chart downwards."""

    scene: Scene

    @cached_property
    def labels(self) -> list[Label]:
        """The labels of the rebalances; none covers another or is crossed by another's stem."""
        placed: list[Label] = []
        for rebalance in reversed(self.scene.rebalances):
            lines = label_lines(rebalance)
            x, width = self.x(rebalance.working_at_ms), 6.0 * max(map(len, lines)) + 3
            at = min(x - 7, WIDTH - RIGHT - width)
            below = [label.row for label in placed if min(label.x, label.at) < at + width]
            row = 1 + max(below) if below else 0
            placed.append(Label(rebalance=rebalance, lines=lines, x=x, at=at, row=row))
        return placed[::-1]

    @property
    def rows_at(self) -> float:
        return TITLE + (1 + max((label.row for label in self.labels), default=0)) * LABEL_ROW + BADGE

    @property
    def tracks_at(self) -> float:
        return self.rows_at + self.scene.partitions * (ROW + ROW_GAP) + 22

    @property
    def chart_at(self) -> float:
        return self.tracks_at + len(self.scene.members) * (TRACK + TRACK_GAP) + 34

    @property
    def axis_at(self) -> float:
        return self.chart_at + CHART

    @property
    def height(self) -> float:
        return self.axis_at + 46

    def x(self, at_ms: int) -> float:
        whole_ms = max(1, self.scene.ended_ms - self.scene.begins_ms)
        share = (at_ms - self.scene.begins_ms) / whole_ms
        return LEFT + min(1.0, max(0.0, share)) * (WIDTH - LEFT - RIGHT)

    def row(self, partition: int) -> float:
        return self.rows_at + partition * (ROW + ROW_GAP)

    def track(self, member: str) -> float:
        return self.tracks_at + list(self.scene.members).index(member) * (TRACK + TRACK_GAP)

    def colour(self, member: str) -> str:
        """Return a member's colour; one that was not announced gets the last."""
        known = list(self.scene.members)
        return COLOURS[known.index(member) % len(COLOURS)] if member in known else COLOURS[-1]


def draw(scene: Scene, *, title: str, subtitle: str) -> str:
    """Return the whole picture as one SVG."""
    frame = Frame(scene)
    parts = [
        el("style", STYLE),
        el("defs", *patterns(frame)),
        el("rect", class_="bg", width=WIDTH, height=frame.height, rx=12),
        text(title, 24, 36, class_="ink title"),
        text(subtitle, 24, 58, class_="soft"),
        *legend(frame),
        *guides(frame),
        *(band(frame, span) for span in scene.spans),
        *deaths(frame),
        *badges(frame),
        *tracks(frame),
        *chart(frame),
        *axis(frame),
    ]
    return el(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {short(frame.height)}",
        width=WIDTH,
        height=frame.height,
        role="img",
        aria_label=title,
    )


def patterns(frame: Frame) -> Iterator[str]:
    """Hatchings: one for time without an owner, one in each member's colour for time with a dead one."""
    diagonal = "M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4"
    box = {"width": 8, "height": 8, "patternUnits": "userSpaceOnUse"}
    yield el("pattern", el("path", d=diagonal, class_="hatch", stroke_width=1.3), id="gap", **box)
    for member in frame.scene.members:
        colour = frame.colour(member)
        yield el(
            "pattern",
            el("rect", width=8, height=8, fill=colour, fill_opacity=0.14),
            el("path", d=diagonal, stroke=colour, stroke_width=1.6),
            id=f"dead-{member}",
            **box,
        )


def legend(frame: Frame) -> Iterator[str]:
    """One swatch for each member and for the two kinds of nobody, to the right of the title."""
    entries = [(member, frame.colour(member)) for member in frame.scene.members]
    entries += [("nobody: rebalancing", "url(#gap)")]
    entries += [("owner dead", f"url(#dead-{death.member})") for death in frame.scene.deaths[:1]]
    x = WIDTH - RIGHT - sum(34 + 6.6 * len(name) for name, _ in entries) + 12
    for name, fill in entries:
        yield el("rect", x=x, y=26, width=14, height=14, rx=3, fill=fill)
        yield text(name, x + 20, 37, class_="soft")
        x += 34 + 6.6 * len(name)


def guides(frame: Frame) -> Iterator[str]:
    """The empty rows of the partitions with their names."""
    for partition in range(frame.scene.partitions):
        y = frame.row(partition)
        yield el("rect", x=LEFT, y=y, width=WIDTH - LEFT - RIGHT, height=ROW, class_="guide", rx=4)
        yield text(f"partition {partition}", LEFT - 12, y + ROW / 2 + 4, class_="soft", anchor="end")


def band(frame: Frame, span: Span) -> str:
    """One stretch of one partition, with its owner's name where there is room for it."""
    x, y = frame.x(span.from_ms), frame.row(span.partition)
    width = max(0.8, frame.x(span.to_ms) - x)
    fills = {"works": frame.colour(span.owner), "dead": f"url(#dead-{span.owner})", "stopped": "url(#gap)"}
    box = el("rect", x=x, y=y, width=width, height=ROW, rx=3 if span.owner else 0, fill=fills[span.kind])
    named = span.kind == "works" and width > 7 * len(span.owner) + 14
    name = [text(span.owner, x + 8, y + ROW / 2 + 4, class_="on bold")] if named else []
    member = {"data_member": span.owner} if span.owner else {}
    return el("g", tip(tooltip(frame.scene, span)), box, *name, class_="tip", **member)


def tooltip(scene: Scene, span: Span) -> str:
    """Return the tooltip of a stretch."""
    when = f"{scene.seconds(span.from_ms):.1f} s to {scene.seconds(span.to_ms):.1f} s ({span.seconds:.2f} s)"
    heads = {
        "works": f"{span.owner} owns partition {span.partition}, generation {span.generation}",
        "dead": f"{span.owner} is dead and still owns partition {span.partition}",
        "stopped": f"nobody works on partition {span.partition}: generation {span.generation} is forming",
    }
    return f"{heads[span.kind]}\n{when}"


def deaths(frame: Frame) -> Iterator[str]:
    """A red line through what a member owned when it was killed, and its name below."""
    orphaned = [span for span in frame.scene.spans if span.kind == "dead"]
    for death in frame.scene.deaths:
        x, bottom = frame.x(death.at_ms), frame.row(frame.scene.partitions) - ROW_GAP
        mine = [frame.row(span.partition) for span in orphaned if span.owner == death.member]
        top = min(mine, default=frame.rows_at) - 3
        yield el("line", x1=x, x2=x, y1=top, y2=bottom + 3, class_="kill", stroke_width=1.6)
        yield text(f"✕ {death.member} killed", x, bottom + 17, class_="killed small bold", anchor="middle")


def badges(frame: Frame) -> Iterator[str]:
    """Each generation's number over the moment it began to work, and why it came about above that."""
    for label in frame.labels:
        yield badge(frame, label)


def badge(frame: Frame, label: Label) -> str:
    """One generation: its label, a stem down to its number, and a line through the partitions."""
    x, number = label.x, label.rebalance.generation
    circle_y = frame.rows_at - BADGE / 2 - 2
    y = circle_y - BADGE / 2 - 2 - (label.row + 1) * LABEL_ROW + 12
    floor = frame.row(frame.scene.partitions) - ROW_GAP
    words = [f"generation {number}", *label.lines, *shares(label.rebalance)]
    return el(
        "g",
        tip("\n".join(words)),
        el("line", x1=x, x2=x, y1=y + 33, y2=circle_y, class_="grid"),
        el("line", x1=x, x2=x, y1=circle_y, y2=floor, class_="rule", stroke_width=0.8),
        *(
            text(line, label.at, y + 2 + 13 * i, class_="soft small" if i else "ink small bold")
            for i, line in enumerate(label.lines)
        ),
        el("circle", cx=x, cy=circle_y, r=10, class_="badge"),
        text(str(number), x, circle_y + 4, class_="onbadge bold", anchor="middle"),
        class_="tip",
    )


def label_lines(rebalance: Rebalance) -> tuple[str, ...]:
    """Return the label of a rebalance: its cause, how long no member worked, and how much changed hands."""
    return (because(rebalance), *rebalance.cost.split("; "))


def shares(rebalance: Rebalance) -> Iterator[str]:
    """Yield a line for each member with the partitions that it got."""
    for name, partitions in rebalance.members.items():
        yield f"{name}: {', '.join(map(str, partitions)) or 'nothing'}"


def tracks(frame: Frame) -> Iterator[str]:
    """A tick for every batch that a member committed, a lane a member."""
    for member in frame.scene.members:
        y = frame.track(member)
        yield text(member, LEFT - 12, y + TRACK - 3, class_="soft", anchor="end")
        yield el("rect", x=LEFT, y=y, width=WIDTH - LEFT - RIGHT, height=TRACK, class_="guide", rx=3)
        ticks = [
            el("rect", x=frame.x(at_ms) - 0.8, y=y + 2, width=1.6, height=TRACK - 4)
            for at_ms in frame.scene.batches.get(member, ())
        ]
        words = tip(f"{len(ticks)} batches committed by {member}")
        yield el("g", words, *ticks, fill=frame.colour(member), class_="tip", data_member=member)
    yield text("batches committed", LEFT, frame.tracks_at - 7, class_="soft small")


def chart(frame: Frame) -> Iterator[str]:
    """The records that waited for the group, and what was done to it meanwhile."""
    looks = [look for look in frame.scene.progress if look.at_ms >= frame.scene.begins_ms]
    most = nice(max((sum(look.lag) for look in looks), default=1))
    floor = frame.axis_at
    points = [(frame.x(look.at_ms), floor - CHART * sum(look.lag) / most) for look in looks]
    for share in (0.5, 1.0):
        y = floor - CHART * share
        yield el("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid")
        yield text(f"{most * share:,.0f}", LEFT - 12, y + 4, class_="soft small", anchor="end")
    if points:
        line = " ".join(f"{short(x)},{short(y)}" for x, y in points)
        outline = f"{short(points[0][0])},{short(floor)} {line} {short(points[-1][0])},{short(floor)}"
        yield el("polygon", points=outline, class_="lag")
        yield el("polyline", points=line, class_="lagline", fill="none", stroke_width=1.5)
    yield text("records waiting", LEFT, frame.chart_at - 8, class_="soft small")
    yield from flags(frame)


def flags(frame: Frame) -> Iterator[str]:
    """What was done from outside, as lines through the chart; words that would overlap go one line lower."""
    shown = [one for one in frame.scene.happenings if one.at_ms >= frame.scene.begins_ms]
    for happening in shown:
        x = frame.x(happening.at_ms)
        yield el(
            "line", x1=x, x2=x, y1=frame.chart_at, y2=frame.axis_at, class_="rule", stroke_dasharray="2 3"
        )
    taken: list[tuple[int, float, float]] = []
    for happening in shown:
        x, width = frame.x(happening.at_ms), 6.1 * len(happening.what) + 10
        left = x if x + width < WIDTH - RIGHT else x - width
        row = lowest_free(taken, left, left + width)
        taken.append((row, left, left + width))
        ink = {"fill": frame.colour(happening.member)} if happening.member else {}
        words = el("tspan", escape(happening.what), **ink)
        yield el("text", words, x=left + 5, y=frame.chart_at + 12 + row * 15, class_="soft small halo")


def lowest_free(taken: Iterable[tuple[int, float, float]], left: float, right: float) -> int:
    """Return the first row in which nothing stands between two points."""
    crowded = {row for row, begins, ends in taken if begins < right and left < ends}
    return next(row for row in count() if row not in crowded)


def axis(frame: Frame) -> Iterator[str]:
    """Seconds since the start of the job."""
    first_s = frame.scene.seconds(frame.scene.begins_ms)
    last_s = frame.scene.seconds(frame.scene.ended_ms)
    step = next((step for step in STEPS if (last_s - first_s) / step <= MOST_TICKS), STEPS[-1])
    y = frame.axis_at
    yield el("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="rule")
    for second in range(math.ceil(first_s / step) * step, math.floor(last_s) + 1, step):
        x = frame.x(frame.scene.started_ms + second * 1000)
        yield el("line", x1=x, x2=x, y1=y, y2=y + 5, class_="rule")
        yield text(f"{second} s", x, y + 19, class_="soft small", anchor="middle")


def nice(most: float) -> float:
    """Return the next round number: 1, 2 or 5 times a power of ten."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(power * step for step in (1, 2, 3, 4, 5, 6, 8, 10) if power * step >= most)
