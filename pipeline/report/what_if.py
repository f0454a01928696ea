"""What if: the same run with other settings, replayed by the production coordinator in virtual time.

The answers are those of `coterie history --what-if`; here they get words for the terminal and the page.
"""

from __future__ import annotations

from collections.abc import Sequence

from coterie.history.advice import BELIEVED
from coterie.history.tables import History
from coterie.simulate.what_if.what_if import WhatIf, answers, questions

# Spark takes longer to start again than the sessions of this run last: only longer ones outlive a kill.
STATIC = "group.instance.id=on,session.timeout.ms=45s"
ASKED = (STATIC, "group.instance.id=on", "session.timeout.ms=45s", "assignor=cooperative-sticky")
CALLED = {
    "as recorded": "as it was, replayed",
    STATIC: "static members, sessions of 45 s",
    "group.instance.id=on": "static members",
    "session.timeout.ms=45s": "sessions of 45 s",
    "assignor=cooperative-sticky": "cooperative-sticky",
}


def what_if(history: History) -> list[WhatIf]:
    """Return the run replayed: first as it was, then a row for each question."""
    return list(answers(history, [question for one in ASKED for question in questions(one)]))


def in_words(rows: Sequence[WhatIf]) -> str:
    """Return a sentence or two about what static members would have changed."""
    was = rows[0]
    if was.rebalances is None:
        return was.note
    then = next(row for row in rows if row.setting == STATIC)
    doubt = "" if was.fidelity >= BELIEVED else ", so this is not to be relied on"
    return (
        f"With static members and sessions of 45 s there would have been {then.rebalances} rebalances instead"
        f" of {was.rebalances} (the end of the group counts), and partitions would have stood still for"
        f" {seconds(then.stood_still_ms)} instead of {seconds(was.stood_still_ms)}, all added up."
        f" {verdict(rows)} The replay of the run as it was has {was.matched} of its"
        f" {was.recorded_rebalances} rebalances, and its standing still is off by"
        f" {was.stood_still_error:.0%}{doubt}."
    )


def verdict(rows: Sequence[WhatIf]) -> str:
    """Return a sentence that names the settings which help, by the rule of the history's report."""
    helping = [CALLED[row.setting] for row in rows if row.helps]
    return f"What helps, by the replay: {'; '.join(helping)}." if helping else "Nothing tried helps."


def seconds(span_ms: int | None) -> str:
    """Return a span in seconds."""
    return "–" if span_ms is None else f"{span_ms / 1000:.1f} s"
