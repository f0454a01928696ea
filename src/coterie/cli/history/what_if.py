"""The tables that `coterie history --what-if` prints: for each group the record, its replay, and the replays
with other settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from coterie.base.plain import counted, plain, plain_json
from coterie.cli.tables import table

if TYPE_CHECKING:
    from coterie.history.tables import History
    from coterie.simulate.what_if.what_if import WhatIf

HEAD = ("setting", "rebalances", "stood still s", "longest s", "moves", "causes")


def check(asked: Sequence[str]) -> None:
    """Raise CoterieError for settings that cannot be replayed, before anything is read."""
    from coterie.simulate.what_if.what_if import questions

    for one in asked:
        questions(one)


def lines(histories: Iterable[History], asked: Sequence[str], *, as_json: bool) -> Iterator[str]:
    """Yield the answers: a line of JSON for each, or a table for each group."""
    from coterie.simulate.what_if.what_if import answers, questions

    wanted = [question for one in asked for question in questions(one)]
    for history in histories:
        rows = list(answers(history, wanted))
        if as_json:
            yield from (plain_json(json.dumps(row._asdict(), ensure_ascii=False)) for row in rows)
        else:
            yield text(rows, len(history.moves))


def text(rows: Sequence[WhatIf], moves: int) -> str:
    """Return a group's answers as a table; `moves` is how many partitions its history says were moved."""
    from coterie.history.advice import BELIEVED

    first = rows[0]
    if first.rebalances is None:
        return f"{click.style(plain(first.group_id), bold=True)}: {plain(first.note)}\n"
    matched = f"{first.matched} of {first.recorded_rebalances} rebalances recorded come out of the replay"
    name = plain(first.group_id)
    head = f"{name}: fidelity {first.fidelity:.0%}, {matched}, which has {first.replayed_rebalances}"
    head += f"; its stand-still is off by {first.stood_still_error:.0%}"
    was = ("(the record)", first.recorded_rebalances, seconds(first.recorded_stood_still_ms), None)
    cells = [(*was, moves, ""), *(cells_of(row) for row in rows)]
    doubt = ["  not to be relied on: the replay is too far from the record"] * (first.fidelity < BELIEVED)
    note = [f"  {plain(first.note)}"] * bool(first.note)
    same = moves - first.recorded_moves
    below = [f"  {same_place_text(moves, same)}"] * (same > 0)
    body = table(HEAD, cells, indent="  ")
    return "\n".join([click.style(head, bold=True), *note, *doubt, *body, *below, *verdict(rows[1:])]) + "\n"


def same_place_text(moves: int, same: int) -> str:
    """Return why the rows of replays have other moves than the record."""
    return (
        f"{same:,} of {counted(moves, 'move')} recorded went to a process that was started again, or came"
        " for the one before: a replay counts none of these"
    )


def verdict(answers: Sequence[WhatIf]) -> list[str]:
    """Return a line with the settings that help, by the rule of the report; none if the replay is not
    reliable.
    """
    judged = [one for one in answers if one.helps is not None]
    helping = [one.setting for one in judged if one.helps]
    if not judged:
        return []
    return [f"  helps: {', '.join(helping)}" if helping else "  nothing tried helps"]


def cells_of(row: WhatIf) -> tuple[object, ...]:
    still, longest = seconds(row.stood_still_ms), seconds(row.longest_still_ms)
    if row.stood_still_ms is not None:
        still = f"{still} ±{seconds(row.give_or_take_ms)}"
    return row.setting, row.rebalances, still, longest, row.moves, ", ".join(row.causes)


def seconds(span_ms: int | None) -> str | None:
    """Return a span in seconds."""
    return None if span_ms is None else f"{span_ms / 1000:.1f}"
