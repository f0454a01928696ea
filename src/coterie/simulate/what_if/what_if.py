"""What if a recorded group had had other settings: what is asked, and the rows that answer it.

A question is `session.timeout.ms=30000,group.instance.id=on,assignor=cooperative-sticky`; a value may be
several, `10000|30000`, and then it is a question for each. docs/history.md says how to read the answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import hypot, sqrt
from typing import Any, NamedTuple

from coterie.base.whole import whole_number
from coterie.broker.config.settings import BrokerSettings, SettingError
from coterie.history.advice import BELIEVED, Backing, ReplayTotals
from coterie.history.tables import History
from coterie.simulate.scenario import CLIENT, KIND, Kind, check_client
from coterie.simulate.values import BadScript, Read, hint
from coterie.simulate.what_if.generations import HEARTBEAT_MS
from coterie.simulate.what_if.recorded import unplayable
from coterie.simulate.what_if.replay import FOREVER_MS, Change, Figures, Replayed, best_reading, foretold

AS_RECORDED = "as recorded"
ASSIGNOR, STATIC = "assignor", "group.instance.id"
BROKER = ("group.initial.rebalance.delay.ms", "group.max.size")
ALIASES: Mapping[str, str] = {ASSIGNOR: "partition.assignment.strategy"}
EVEN_CHANCE = 0.29
SWITCH = {"on": True, "off": False, "true": True, "false": False}
KNOWN = (*CLIENT, ASSIGNOR, STATIC, *BROKER)
LEAST_MS: Mapping[str, int] = {"session.timeout.ms": 1_000, "max.poll.interval.ms": 1_000}
"""Below it the 20 ms between polls and the few that a message takes count, which are not in the record."""


class Question(NamedTuple):
    """One set of settings, as it was asked, and what changes by it."""

    text: str
    change: Change


class WhatIf(NamedTuple):
    """What a group would have come to. The first row of a group has its own settings: `as recorded`."""

    group_id: str
    setting: str
    rebalances: int | None
    """None: there is nothing to replay, `note` says why."""
    causes: tuple[str, ...]
    """Each with how many rebalances had it."""
    stood_still_ms: int | None
    """For how long partitions got nowhere, added up over all."""
    longest_still_ms: int | None
    """The longest that one did at a time."""
    moves: int | None
    recorded_rebalances: int
    recorded_stood_still_ms: int
    recorded_moves: int
    replayed_rebalances: int
    """How many the replay with the recorded settings had."""
    matched: int
    """How many of those are the recorded ones: the same causes, at about the same time."""
    fidelity: float
    """The share of all rebalances that are in both, recorded and replayed; or of standing still, if less."""
    note: str
    replayed_stood_still_ms: int = 0
    """For how long partitions got nowhere in the replay with the recorded settings."""
    stood_still_error: float = 0.0
    """By which share that is off what was recorded: take every answer to be off by as much."""
    give_or_take_ms: int = 0
    """By how much `stood_still_ms` may be off: by that error, by what heartbeats do by chance, and by what is
    told of those who went without being sure.
    """
    helps: bool | None = None
    """Whether it would have been better: no more rebalances and no more standing still, and less of one. None
    for its own settings, and where the replay is not to be believed.
    """


# -- what is asked


def questions(text: str) -> list[Question]:
    """Return the questions of a text, several for values with alternatives. Raises `BadScript`."""
    given = [pair(one) for one in text.split(",") if one.strip()]
    if not given:
        raise BadScript("--what-if is empty; name a setting, as in session.timeout.ms=30000")
    names = [name for name, _ in given]
    meant = [ALIASES.get(name, name) for name in names]
    twice = next((name for name, one in zip(names, meant, strict=True) if meant.count(one) > 1), None)
    if twice is not None:
        raise BadScript(f"--what-if names {twice} twice; for a question each, write {twice}=one|other")
    choices = product(*(values for _, values in given))
    return [question(dict(zip(names, values, strict=True))) for values in choices]


def pair(text: str) -> tuple[str, list[str]]:
    """Return a setting's name and its values."""
    name, equals, values = (one.strip() for one in text.partition("="))
    if name not in KNOWN:
        raise BadScript(f"--what-if knows no setting {name}{hint(name, sorted(KNOWN))}")
    if not equals or not values:
        raise BadScript(f"--what-if: {name} has no value; write {name}=...")
    return name, [one.strip() for one in values.split("|")]


def question(given: Mapping[str, str]) -> Question:
    """Return one question, checked as a member and a broker would check it."""
    asked = read(given)
    client = {CLIENT[ALIASES.get(name, name)]: value for name, value in asked.items()}
    broker = {name: value for name, value in given.items() if name in BROKER}
    try:
        BrokerSettings.of(broker)
    except SettingError as error:
        raise BadScript(f"--what-if: {error}") from None
    static = given.get(STATIC)
    if static is not None and static not in SWITCH:
        raise BadScript(f"--what-if: {STATIC} is {static!r}; it takes on (each place has its own) or off")
    check_spans({name: value for name, value in asked.items() if isinstance(value, int)})
    change = Change(client, None if static is None else SWITCH[static], broker)
    check_client(change.of(Kind()).settings, "--what-if")
    return Question(",".join(f"{name}={value}" for name, value in given.items()), change)


def check_spans(spans: Mapping[str, Any]) -> None:
    """Raise `BadScript` for a span that no replay can tell of, as where 10 was meant in seconds."""
    for name, asked_ms in spans.items():
        least_ms = LEAST_MS.get(name, 0)
        if asked_ms < least_ms:
            raise BadScript(
                f"--what-if: {name} is {asked_ms} ms, and a replay takes {least_ms} at least;"
                " ten seconds are 10s"
            )
        if asked_ms > FOREVER_MS:
            raise BadScript(f"--what-if: {name} is {asked_ms} ms, and a replay takes {FOREVER_MS} at most")


def read(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a member's settings."""
    found = {}
    for name, value in given.items():
        if name in CLIENT or name in ALIASES:
            reader: Read = KIND[ALIASES.get(name, name)]
            found[name] = reader(
                value if (number := whole_number(value)) is None else number, f"--what-if: {name}"
            )
    return found


# -- the answers


def answers(history: History, asked: Sequence[Question]) -> Iterator[WhatIf]:
    """Yield the outcomes of a group: with its own settings first, then one row a question."""
    known = best_reading(history)
    if known is None:
        yield nothing(history)
        return
    yield row(known, AS_RECORDED, known.figures, Change())
    usual = totals(known.usually()) if asked else None
    for one in asked:
        figures = foretold(known.life, one.change, known.reading.seed)
        answer = row(known, one.text, figures, one.change)
        found = backing(known, usual, totals(figures))
        yield answer._replace(helps=found.bears_out if found.believed else None)


def backings(history: History, asked: Sequence[str]) -> Iterator[Backing | None]:
    """Yield the backing by a group's replay of each of these questions, as they are taken; each has one
    value.
    """
    known = best_reading(history) if asked else None
    usual = totals(known.usually()) if known is not None and known.fidelity >= BELIEVED else None
    for text in asked:
        if known is None:
            yield None
            continue
        (one,) = questions(text)
        figures = known.figures if usual is None else foretold(known.life, one.change, known.reading.seed)
        yield backing(known, usual, totals(figures))


def backing(known: Replayed, usual: ReplayTotals | None, would: ReplayTotals) -> Backing:
    """Return the backing by the replay of a group of one question, which came to this."""
    likeness = len(known.life.expected), len(known.figures.rebalances), known.matched, known.fidelity
    return Backing(*likeness, totals(known.figures), would, known.stood_still_error, usual)


def totals(figures: Figures) -> ReplayTotals:
    return ReplayTotals(len(figures.rebalances), figures.stood_still_ms, figures.moves)


def row(known: Replayed, setting: str, figures: Figures, change: Change) -> WhatIf:
    life = known.life
    return WhatIf(
        life.group_id,
        setting,
        len(figures.rebalances),
        tuple(f"{cause} {count}" for cause, count in figures.causes.items()),
        figures.stood_still_ms,
        figures.longest_ms,
        figures.moves,
        len(life.expected),
        life.stood_still_ms,
        life.moves,
        len(known.figures.rebalances),
        known.matched,
        round(known.fidelity, 3),
        life.note,
        known.figures.stood_still_ms,
        round(known.stood_still_error, 3),
        round(give_or_take_ms(known, figures, change)),
    )


def give_or_take_ms(known: Replayed, figures: Figures, change: Change) -> float:
    """Return by how much the standing still of an answer may be off, in nineteen cases of twenty.

    Each is two deviations: by how much the record's own replay is off, of which that is one; what heartbeats
    do by chance; and whether those who went did so as they are taken to, which is a session of their share.
    """
    life = known.life
    session_ms = max(change.of(kind).settings.session_timeout_ms for kind in life.kinds)
    return hypot(
        2 * figures.stood_still_ms * known.stood_still_error,
        chance_ms(known, figures),
        2 * session_ms * life.share * sqrt(life.doubt),
    )


def chance_ms(known: Replayed, figures: Figures) -> float:
    """Return by how much heartbeats' phases, which no record has, may change how long partitions stand still.

    Whoever dies is missed up to a heartbeat sooner or later, and so is a rebalance heard of: an even chance
    has a deviation of 0.29 of the interval, each changes a member's share of the partitions, and two
    deviations hold in nineteen cases of twenty.
    """
    life = known.life
    happened = len(life.last_heartbeats) + len(figures.rebalances)
    return 2 * EVEN_CHANCE * HEARTBEAT_MS * life.share * sqrt(happened)


def nothing(history: History) -> WhatIf:
    """Return the row of a group that cannot be replayed."""
    why = f"nothing to replay: {unplayable(history) or 'nobody ever was in it'}"
    count = len(history.generations)
    none = (None, (), None, None, None)
    return WhatIf(history.group_id, AS_RECORDED, *none, count, 0, len(history.moves), 0, 0, 0.0, why)
