"""The report, one file of HTML: a table of all groups, and of the worst a page each with what would help.

The pages are sections of it, of which the address picks one; nothing is loaded. A short script sorts and
searches the table of groups: without it all is there, the worst group first. Names come out of a log that
anybody may write to: all of them are escaped where they are written.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from html import escape
from itertools import islice
from typing import NamedTuple

from coterie.base.ids import ShortNames
from coterie.base.plain import counted, moment, moment_text, most_often
from coterie.history.advice import Advice, Backing, Losses, Replays, advice_for, losses_of, seconds
from coterie.history.ownership import costs_of
from coterie.history.short_names import short_names
from coterie.history.tables import Assignment, Generation, History, Stall
from coterie.story.cost import Cost
from coterie.story.drawing import (
    Row,
    Span,
    Window,
    axis,
    bands,
    colour,
    document,
    floor_of,
    guides,
    lines,
    picked,
    picture,
    table,
)

PAGES_MOST = 100
"""So many groups have a page, the worst; `--group` asks for others."""
GROUPS_MOST = 10_000
"""So many groups have a row in the summary, the worst."""
HEADS = ("group", "stood still", "rebalances", "members removed", "storms")
REBALANCES_MOST, DAYS_MOST, MEMBERS_MOST = 200, 31, 100
LEGEND_MOST = 20
DAY_MS = 86_400_000
NO_MEMBER = -1

# A section is shown when the address names it, the summary when it names none.
STYLE = """
section{display:none} section:target,body:not(:has(section:target)) #summary{display:block}
a{color:inherit} .figures td{vertical-align:top}
.figures td:last-child,.figures th:last-child,.figures td:first-child,.figures th:first-child{text-align:left}
.figures td:nth-child(2){white-space:nowrap}
.figures button{all:unset;cursor:pointer} .figures button:focus-visible{outline:2px solid}
th[aria-sort=descending]::after{content:" \\2193"} th[aria-sort=ascending]::after{content:" \\2191"}
@media print{#find,label[for=find]{display:none}}
"""
# `data-by` is what a cell is sorted by: a text in the first column, numbers in the others.
SCRIPT = """
const groups = document.querySelector('.figures'), body = groups.tBodies[0]
const find = document.querySelector('#find')
find.hidden = find.labels[0].hidden = false
find.addEventListener('input', () => {
  const wanted = find.value.toLowerCase()
  for (const row of body.rows) row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted)
})
groups.tHead.addEventListener('click', event => {
  const head = event.target.closest('th'), by = row => row.cells[head.cellIndex].dataset.by
  if (!head || by(body.rows[0]) === undefined) return
  const up = head.ariaSort === 'descending' || (head.cellIndex === 0 && head.ariaSort !== 'ascending')
  for (const other of groups.tHead.rows[0].cells) other.removeAttribute('aria-sort')
  head.ariaSort = up ? 'ascending' : 'descending'
  const order = head.cellIndex ? (a, b) => by(a) - by(b) : (a, b) => by(a).localeCompare(by(b))
  body.append(...[...body.rows].sort((a, b) => up ? order(a, b) : order(b, a)))
})
"""


class Page(NamedTuple):
    """A group in the report."""

    history: History
    losses: Losses
    advice: tuple[Advice, Backing | None] | None
    anchor: str


class Totals:
    """Adds up what all groups lost, as they go by: of most only that is kept."""

    def __init__(self) -> None:
        self.groups = self.rebalances = self.stood_still_ms = self.while_empty_ms = 0
        self.causes: Counter[str] = Counter()
        self.from_ms: int | None = None
        self.to_ms: int | None = None
        self.losses: list[tuple[Losses, str]] = []
        """What each group lost, with its name."""

    def of(self, histories: Iterable[History]) -> Iterator[tuple[Losses, History]]:
        """Yield each group with what it lost."""
        for one in histories:
            losses = losses_of(one)
            self.losses.append((losses, one.group_id))
            self.groups += 1
            self.rebalances += losses.rebalances
            self.stood_still_ms += losses.stood_still_ms
            self.while_empty_ms += losses.while_empty_ms
            self.causes.update(cause for each in one.generations for cause in each.causes)
            formed = [each.formed_at for each in one.generations]
            if formed:
                self.from_ms = min(formed) if self.from_ms is None else min(self.from_ms, *formed)
                self.to_ms = max(formed) if self.to_ms is None else max(self.to_ms, *formed)
            yield losses, one

    def __str__(self) -> str:
        """Return a sentence: how many rebalances in which time, the most frequent cause, what stood still."""
        span = often = empty = ""
        if self.from_ms is not None and self.to_ms is not None:
            span = f" from {moment_text(self.from_ms, 'seconds')} to {moment_text(self.to_ms, 'seconds')}"
        if self.causes:
            often = f", {most_often(self.causes)}"
        if self.while_empty_ms:
            empty = f", {seconds(self.while_empty_ms)} of it in groups without members"
        return (
            f"{counted(self.groups, 'group')}, {counted(self.rebalances, 'rebalance')}{span}{often};"
            f" partitions stood still for {seconds(self.stood_still_ms)} in all, added up over"
            f" partitions{empty}. The worst come first."
        )


def report(histories: Iterable[History], *, title: str, replays: Replays | None = None) -> str:
    """Return the report on these groups; `replays` backs what is recommended."""
    totals = Totals()
    worst = nsmallest(PAGES_MOST, totals.of(histories), key=lambda one: badness(one[0], one[1].group_id))
    pages = [
        Page(history, losses, advice_for(history, replays), f"group-{number}")
        for number, (losses, history) in enumerate(worst, 1)
    ]
    parts = [*summary(title, pages, totals)]
    for page in pages:
        parts += group_page(page)
    parts.append(f"<script>{SCRIPT}</script>")
    return document(title, parts, STYLE)


def badness(losses: Losses, group_id: str) -> tuple[tuple[int, ...], str]:
    """Return the sort key by which the worst groups come first."""
    return tuple(-loss for loss in losses), group_id


def summary(title: str, pages: Sequence[Page], totals: Totals) -> Iterator[str]:
    """Yield the first page: a row a group, the worst with a link to their pages and what would help them."""
    yield f'<section id="summary"><h1>{escape(title)}</h1>'
    yield f"<p>{totals}</p>"
    if len(pages) < totals.groups:
        yield f"<p>The {len(pages)} worst have a page; <code>--group NAME</code> makes one for others.</p>"
    by_group = {page.history.group_id: page for page in pages}
    worst = nsmallest(GROUPS_MOST, totals.losses, key=lambda one: badness(*one))
    rows = "".join(row_of(losses, group_id, by_group.get(group_id)) for losses, group_id in worst)
    heads = [f'<th scope="col"><button>{one}</button></th>' for one in HEADS]
    heads.append('<th scope="col">what would help, and why</th>')
    yield '<p><label for="find" hidden>Find a group: </label><input id="find" type="search" hidden></p>'
    yield f'<table class="figures"><thead><tr>{"".join(heads)}</tr></thead>'
    yield f"<tbody>{rows}</tbody></table>"
    if len(worst) < totals.groups:
        yield f"<p>and {totals.groups - len(worst):,} more</p>"
    yield "</section>"


def row_of(lost: Losses, group_id: str, page: Page | None) -> str:
    """Return a group's row in the summary, as HTML; one without a page has no link and no advice."""
    name = escape(group_id) or "(no name)"
    linked = name if page is None else f'<a href="#{page.anchor}">{name}</a>'
    shown = (
        (lost.stood_still_ms, seconds(lost.stood_still_ms)),
        *((number, f"{number:,}") for number in (lost.rebalances, lost.thrown_out, lost.storms)),
    )
    figures = "".join(f'<td data-by="{number}">{text}</td>' for number, text in shown)
    advice = "–" if page is None else advised(page.advice)
    return f'<tr><td data-by="{escape(group_id)}">{linked}</td>{figures}<td>{advice}</td></tr>'


def advised(found: tuple[Advice, Backing | None] | None) -> str:
    """Return a recommendation as HTML, with the replay that bears it out; or that nothing helps.

    What no replay bears out is no recommendation, and nothing stands out in it.
    """
    if found is None:
        return "–"
    advice, backing = found
    setting, why = escape(advice.setting), escape(advice.why)
    if backing is None:
        return f"Nothing is recommended. {why}. <i>Not backed: its life was not replayed.</i>"
    backed = f"<i>{escape(str(backing))}</i>"
    if backing.bears_out:
        return f"<b>{setting}</b>: {why}. {backed}"
    if not backing.believed:
        return f"Nothing is recommended. {why}. {backed}"
    return f"Nothing tried helps. Tried first, {setting}: {why}. {backed}"


def members_of(assignments: Sequence[Assignment], names: ShortNames) -> Iterator[Sequence[str]]:
    """Yield a row for each member, in the order of their coming: who it was, and what it read."""
    topics: dict[str, dict[str, None]] = {}
    members: dict[str, Assignment] = {}
    for one in assignments:
        members.setdefault(one.member_id, one)
        topics.setdefault(one.member_id, {}).update({one.topic: None} if one.topic else {})
    yield "member", "member id", "client", "host", "instance", "session", "topics"
    for member_id, one in islice(members.items(), MEMBERS_MOST):
        session = seconds(one.session_timeout_ms) if one.session_timeout_ms > 0 else "–"  # the broker's
        yield (
            names.of(member_id),
            member_id,
            one.client_id,
            one.client_host,
            one.instance_id or "–",
            session,
            ", ".join(topics[member_id]),
        )
    if len(members) > MEMBERS_MOST:
        yield f"and {len(members) - MEMBERS_MOST:,} more", "", "", "", "", "", ""


def group_page(page: Page) -> Iterator[str]:
    """Yield the page of a group."""
    history = page.history
    yield f'<section id="{page.anchor}"><p><a href="#summary">all groups</a></p>'
    yield f"<h1>{escape(history.group_id)}</h1><p>{advised(page.advice)}</p>"
    for wave in history.waves:
        yield f"<p>{wave.kind}, {stamp(wave.from_ms)} to {stamp(wave.to_ms)}: {escape(wave.why)}</p>"
    names = short_names(history.assignments)
    yield from ownership_of(history, names)
    yield "<h2>Members</h2>"
    yield from table(members_of(history.assignments, names))
    yield "<h2>Rebalances by cause</h2>"
    yield from table(causes_of(history.generations))
    yield from table(rebalances_of(history))
    days = stood_still(history.stalls)
    if days:
        yield "<h2>Time stood still, by partition and day (UTC)</h2>"
        yield from table(days)
    yield "</section>"


def ownership_of(history: History, names: ShortNames) -> Iterator[str]:
    """Yield the picture of who owned what, with the times in which nobody was at work."""
    ended = [one.formed_at for one in history.generations] + [one.to_ms for one in history.stalls]
    ended += [one.to_ms or one.from_ms for one in history.ownership]
    began = [one.from_ms for one in history.ownership]
    if not began:
        return
    window = Window(min(began), max(max(ended), min(began) + 1_000))
    rows, drawn = rows_of(history, window, names)
    shown = picked(rows)
    less = "" if len(shown) == len(rows) else f" {len(shown)} of {len(rows):,} partitions, evenly picked."
    yield (
        '<h2>Who owned what</h2><p class="key">A row is a partition, a colour is a member:'
        f"{legend(drawn)}"
        f'<i style="background:var(--gap)"></i>no owner, or one that read nothing.{less}</p>'
    )
    floor = floor_of(len(shown))
    moments = [
        (one.formed_at, f"{stamp(one.formed_at)}, generation {one.generation}: {', '.join(one.causes)}")
        for one in history.generations
    ]
    parts = [
        *lines(moments, window, floor),
        *guides(row.name for row in shown),
        *bands(shown, window, drawn.__getitem__),
        *axis(window, floor, short),
    ]
    yield picture(parts, len(shown))


def legend(names: Sequence[str]) -> str:
    """Return the colours of the first members with their names, as HTML."""
    shown = [
        f'<i style="background:{colour(number)}"></i>{escape(name)}'
        for number, name in enumerate(names[:LEGEND_MOST])
    ]
    return "".join(shown) + (f" and {len(names) - LEGEND_MOST:,} more" if len(names) > LEGEND_MOST else "")


def rows_of(history: History, window: Window, names: ShortNames) -> tuple[list[Row], list[str]]:
    """Return a row a partition, and the names of the members that they number."""
    numbers: dict[str, int] = {}
    spans: dict[tuple[str, int], list[Span]] = defaultdict(list)
    idle: dict[tuple[str, int], list[Span]] = defaultdict(list)
    for one in history.ownership:
        number = numbers.setdefault(names.of(one.member_id), len(numbers))
        to_ms = window.to_ms if one.to_ms is None else one.to_ms
        spans[one.topic, one.partition].append(Span(one.from_ms, to_ms, number))
    for stall in history.stalls:
        idle[stall.topic, stall.partition].append(Span(stall.from_ms, stall.to_ms, NO_MEMBER))
    rows = [
        Row(f"{topic}-{partition}", spans[topic, partition], idle[topic, partition])
        for topic, partition in sorted(spans)
    ]
    return rows, list(numbers)


def causes_of(generations: Sequence[Generation]) -> list[tuple[str, ...]]:
    """Return the number of rebalances that each cause had its part in, and how sure that is."""
    times = Counter(cause for one in generations for cause in one.causes)
    rows: list[tuple[str, ...]] = [("cause", "rebalances", "surest", "least sure")]
    for cause, number in times.most_common():
        sure = [one.confidence for one in generations if cause in one.causes]
        rows.append((cause, f"{number:,}", f"{max(sure):.0%}", f"{min(sure):.0%}"))
    return rows


def rebalances_of(history: History) -> list[tuple[str, ...]]:
    """Return the last rebalances: when, why, what each cost, by what evidence."""
    heads = (
        "formed",
        "generation",
        "members",
        "confidence",
        "causes",
        "stood still, up to",
        "moved",
        "evidence",
    )
    rows: list[tuple[str, ...]] = [heads]
    costs = costs_of(history)
    for one in history.generations[-REBALANCES_MOST:]:
        cost = costs.get((one.generation, one.formed_at), Cost())
        figures = str(one.generation), str(len(one.members)), f"{one.confidence:.0%}"
        rows.append(
            (
                stamp(one.formed_at),
                *figures,
                ", ".join(one.causes),
                cost_text(cost),
                f"{cost.moved:,}" if cost.moved else "–",
                "; ".join(one.evidence),
            )
        )
    return rows


def cost_text(cost: Cost) -> str:
    """Return the words for a rebalance's cost: how many partitions stood still, for how long at most."""
    if not cost.partitions:
        return "–"
    text = f"{cost.partitions:,} for {seconds(cost.longest_ms)}"
    if cost.silent_ms:
        text += f", {seconds(cost.unowned_ms)} of it without an owner"
    return text + (f"; no members for {seconds(cost.empty_ms)}" if cost.empty_ms else "")


def stood_still(stalls: Sequence[Stall]) -> list[tuple[str, ...]]:
    """Return the time each partition stood still on each day, the last days only; nothing if none did."""
    lost = by_day(stalls)
    days = sorted({day for _, day in lost})[-DAYS_MOST:]
    totals: Counter[str] = Counter()
    for (partition, day), lost_ms in lost.items():
        if day in days:
            totals[partition] += lost_ms
    if not totals:
        return []
    rows = [("partition", *map(date, days), "in all")]
    for partition, total_ms in sorted(totals.items(), key=lambda one: (-one[1], one[0]))[:REBALANCES_MOST]:
        cells = (lost.get((partition, day), 0) for day in days)
        rows.append((partition, *(seconds(one) if one else "" for one in cells), seconds(total_ms)))
    return rows


def by_day(stalls: Sequence[Stall]) -> Mapping[tuple[str, int], int]:
    """Return the time that each partition stood still on each day; what goes on over midnight is of both."""
    lost: Counter[tuple[str, int]] = Counter()
    for one in stalls:
        last = one.to_ms // DAY_MS  # of those before, none is shown: a clock may be centuries wrong
        for day in range(max(one.from_ms // DAY_MS, last - DAYS_MOST + 1), last + 1):
            within_ms = min(one.to_ms, (day + 1) * DAY_MS) - max(one.from_ms, day * DAY_MS)
            if within_ms > 0:
                lost[f"{one.topic}-{one.partition}", day] += within_ms
    return lost


def date(day: int) -> str:
    """Return the date of a day, counted from 1970 on."""
    at = moment(day * DAY_MS)
    return f"day {day}" if at is None else at.date().isoformat()


def stamp(at_ms: int) -> str:
    """Return a moment, in UTC; the bare number where no calendar has it."""
    return moment_text(at_ms, "seconds")


def short(at_ms: int) -> str:
    """Return a moment as there is room for it on a time line: days at midnight, else the time."""
    at = moment(at_ms)
    if at is None:
        return date(at_ms // DAY_MS)
    return at.strftime("%m-%d") if at_ms % DAY_MS == 0 else at.strftime("%H:%M:%S")
