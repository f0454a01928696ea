"""Who was at work on what, nobody, and two; and the figures and pictures that are made of it."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

from scenes import DOTTED, a_variant

from coterie.base.ids import TopicPartition
from coterie.simulate.ownership import (
    Ownership,
)
from coterie.simulate.picture import page
from coterie.simulate.report import document, entries, summary_of
from coterie.simulate.scenario import Script, read_script
from coterie.simulate.variant import Outcome, simulate
from coterie.story.drawing import (
    Span,
)

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
NOTHING: frozenset[TopicPartition] = frozenset()
BOTH = frozenset({ONE, OTHER})
DEPLOY = 'deploy = [{ at = "5m", at_once = 1, restart = "20s", pause = "10s" }]\n'


def a_history(*changes: tuple[int, frozenset[TopicPartition], frozenset[TopicPartition], int]) -> Ownership:
    """Return the history of changes: who, what it had, what it has, and when; it ends at 100."""
    ownership = Ownership(BOTH)
    for change in changes:
        ownership.changed(*change)
    ownership.close(100)
    return ownership


def a_scene() -> tuple[Script, list[Outcome]]:
    script = read_script(DOTTED + DEPLOY + "[[variant]]\n[[variant]]\nmembers.static = true", name="scene")
    return script, [simulate(variant) for variant in script.variants]


def test_the_time_between_two_owners_is_a_stand_still_and_a_move():
    row = a_history((0, NOTHING, BOTH, 10), (0, BOTH, NOTHING, 40), (1, NOTHING, BOTH, 60)).rows[ONE]

    assert row.spans == [Span(10, 40, 0), Span(60, 100, 1)]
    assert (row.idle, row.moves, row.idle_ms) == ([Span(40, 60)], [60], 20)
    assert row.first_owned_ms == 10


def test_who_comes_back_has_not_moved_it():
    row = a_history((0, NOTHING, BOTH, 10), (0, BOTH, NOTHING, 40), (0, NOTHING, BOTH, 60)).rows[ONE]

    assert (row.moves, row.idle_ms) == ([], 20)


def test_what_nobody_takes_again_stands_still_to_the_end():
    row = a_history((0, NOTHING, BOTH, 10), (0, BOTH, frozenset({OTHER}), 40)).rows[ONE]

    assert row.longest == Span(40, 100)


def test_two_at_work_are_counted_for_as_long_as_both_are():
    row = a_history((0, NOTHING, BOTH, 10), (1, NOTHING, BOTH, 30), (0, BOTH, NOTHING, 45)).rows[ONE]

    assert (row.twice_ms, row.idle) == (15, [])


def test_what_never_had_an_owner_is_told_so():
    outcome = simulate(a_variant("members.starts_within = 0\nlasts = 2_000\n", base=LEAST))

    assert summary_of(outcome).at_work_ms is None


def test_the_figures_add_up():
    _, (dynamic, static) = a_scene()

    summary = summary_of(dynamic)
    assert summary.causes == {"member-left": 3, "member-joined": 3}
    assert summary.rebalances == 6
    assert summary.idle_ms == sum(row.idle_ms for row in dynamic.ownership.rows.values())
    assert summary_of(static).returns == 3


def test_the_story_keeps_together_what_belongs_together():
    _, (dynamic, static) = a_scene()

    first, left, joined, *_ = entries(dynamic.story)
    assert [move.why for move in first.moves] == ["member-joined"] * 3
    assert [[move.why for move in one.moves] for one in (left, joined)] == [
        ["member-left"],
        ["member-joined"],
    ]
    *_, alone = entries(static.story)
    assert alone.rebalance is None
    assert len(alone.moves) == 3


def test_json_has_the_story_with_times_from_the_start():
    told = json.loads(json.dumps(document(*a_scene())))

    dynamic, static = told["variants"]
    assert dynamic["summary"]["rebalances_by_cause"] == {"member-left": 3, "member-joined": 3}
    assert [one["partition"] for one in dynamic["partitions"]] == list(range(6))
    assert all(0 <= one["at"] < 600_000 for variant in told["variants"] for one in variant["story"])
    assert static["summary"]["returned_without_rebalance"] == 3
    assert {one["kind"] for one in static["story"]} == {"move", "rebalance"}


def test_the_page_needs_nothing_from_elsewhere_and_its_pictures_are_well_formed():
    drawn = page(*a_scene(), [("", "a"), ("rebalances", "<6>")])

    assert not re.search(r"<script|<link|<img|@import|url\(|https?://(?!www\.w3\.org/2000/svg)", drawn)
    pictures = re.findall(r"<svg.*?</svg>", drawn)
    assert len(pictures) == 2
    for picture in pictures:
        ElementTree.fromstring(picture)
    assert "&lt;6&gt;" in drawn
    assert "<title>nobody at work</title>" in pictures[0]


def test_a_long_scenario_is_drawn_again_around_its_first_trouble():
    script = read_script(DOTTED.replace("10m", "2h") + DEPLOY, name="scene")
    drawn = page(script, [simulate(variant) for variant in script.variants])

    assert len(re.findall("<svg", drawn)) == 2
    assert "the same, 00:04:45 to" in drawn


def test_a_day_of_many_partitions_stays_a_small_page():
    text = 'lasts = "9h"\ntopics.orders = 400\nmembers.count = 12\ndeploy = [{ every = "1h" }]'
    script = read_script(text, name="scene")
    drawn = page(script, [simulate(variant) for variant in script.variants])

    assert "40 of 400 partitions, evenly picked" in drawn
    assert len(drawn) < 1_000_000


LEAST = "topics.orders = 6\n"
