"""What if, held against the truth: the same life was lived under other settings on a real Kafka as well."""

from __future__ import annotations

import pytest

from coterie.sim.recorded import stood_still_ms
from coterie.sim.whatif import WhatIf, answers, questions
from sim.lives_lived import histories, truly_stood_still_ms

TENTH = 0.1
SETTINGS = {
    "one": (
        "life-base",
        {
            "life-session30": "session.timeout.ms=30s",
            "life-coop": "assignor=cooperative-sticky",
            "life-static": "group.instance.id=on",
            "life-static30": "group.instance.id=on,session.timeout.ms=30s",
        },
    ),
    "three": (
        "three-base",
        {
            "three-session12": "session.timeout.ms=12s",
            "three-poll30": "max.poll.interval.ms=30s",
            "three-coop": "assignor=cooperative-sticky",
            "three-static": "group.instance.id=on",
        },
    ),
}
GROUPS = [(life, group) for life, (base, others) in SETTINGS.items() for group in (base, *others)]
FORETOLD = [
    (life, base, group, asked) for life, (base, others) in SETTINGS.items() for group, asked in others.items()
]


def off(some: float, truth: float) -> float:
    return abs(some - truth) / truth


@pytest.mark.parametrize(("life", "group"), GROUPS)
def test_a_life_replayed_with_its_own_settings_rebalances_moves_and_stands_still_as_it_did(
    life: str, group: str
):
    (row,) = answers(histories(life)[group], [])

    assert (row.rebalances, row.moves) == (row.recorded_rebalances, row.recorded_moves)
    assert row.fidelity >= 0.9
    assert off(row.stood_still_ms or 0, row.recorded_stood_still_ms) <= TENTH
    assert row.stood_still_error == pytest.approx(
        abs((row.stood_still_ms or 0) - row.recorded_stood_still_ms)
        / max(row.stood_still_ms or 0, row.recorded_stood_still_ms, 3_000 * row.recorded_rebalances),
        abs=0.001,
    )


@pytest.mark.parametrize(("life", "base", "group", "asked"), FORETOLD)
def test_what_is_foretold_of_a_life_is_what_it_was_under_those_settings(
    life: str, base: str, group: str, asked: str
):
    _, foretold = answers(histories(life)[base], questions(asked))
    (was,) = answers(histories(life)[group], [])

    assert (foretold.rebalances, foretold.moves) == (was.recorded_rebalances, was.recorded_moves)
    assert off(foretold.stood_still_ms or 0, was.recorded_stood_still_ms) <= TENTH


@pytest.mark.parametrize("group", [group for life, group in GROUPS if life == "three"])
def test_the_history_of_a_life_has_the_standing_still_that_its_members_saw(group: str):
    told_ms = stood_still_ms(histories("three")[group].stalls)

    assert off(told_ms, truly_stood_still_ms("three", group)) <= 0.05


def test_the_error_of_the_replay_stands_in_every_answer():
    rows: list[WhatIf] = list(answers(histories("one")["life-base"], questions("session.timeout.ms=20s|30s")))

    assert len({(row.fidelity, row.stood_still_error, row.replayed_stood_still_ms) for row in rows}) == 1
    assert rows[0].replayed_stood_still_ms == rows[0].stood_still_ms
