"""One recorded life in the broker's story, and in each form of its history: the same counts and times."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from pipeline.report.history import rebalances_of

from coterie.base.plain import counted
from coterie.cli.groups.texts import story_lines
from coterie.cli.history.texts import summary, text
from coterie.history.from_story import overlaid, read_story
from coterie.history.ownership import NO_OWNER, costs_of
from coterie.history.report import Totals, report
from coterie.history.tables import History
from coterie.story.cost import Cost, Costs
from coterie.story.model import Rebalance
from simulate.test_history_of_lives import TOPICS, Chance, lived, told

SEEDS = range(12)


def a_life(seed: int, compacted: float) -> tuple[list[dict[str, Any]], History]:
    """Return the story of a group as its topic has it, and the history of the same broker's log with it, of
    which a part is compacted.
    """
    replay = lived(Chance(seed).life(), seed)
    values = [
        json.dumps(one.document()).encode() for one in replay.station.story if isinstance(one, Rebalance)
    ]
    (story,) = read_story(values).values()
    return story, overlaid(told(replay, compacted=compacted), story)


def said(cost: Cost, document: dict[str, Any]) -> str:
    """Return the part of a story's line that has the cost."""
    if not document["size"]:
        return "nobody is left"
    empty = document["state_before"] in (None, "Empty")
    if empty and document["generation"] == 1:
        return "nobody had worked before"
    if empty and not cost.partitions:
        return "nobody worked in it"
    if not cost.partitions:
        return "no partition stood still ("
    partitions = "1 partition" if cost.partitions == 1 else f"{cost.partitions} partitions"
    return f"{partitions} stood still, up to {cost.longest_ms:,} ms ("


LIVES = [(seed, 0.0) for seed in SEEDS] + [(seed, part) for seed in SEEDS for part in (0.3, 0.8)]


@pytest.fixture(scope="module", params=LIVES, ids=str)
def life(request: pytest.FixtureRequest) -> tuple[list[dict[str, Any]], History]:
    return a_life(*request.param)


def test_a_rebalance_is_the_same_thing_everywhere(life: tuple[list[dict[str, Any]], History]):
    """A generation that was formed, also one that nobody is left in, or that was cut short."""
    story, history = life
    totals = Totals()
    list(totals.of([history]))
    count = len(story)

    assert [(one.generation, one.formed_at) for one in history.generations] == [
        (one["generation"], one["formed_at"]) for one in story
    ]
    assert summary(history).startswith(f"{count} rebalances, ")
    assert text(history, 1_000).count("  generation ") == count
    assert totals.rebalances == count
    assert f"1 group, {counted(count, 'rebalance')} " in report([history], title="one")
    assert len(rebalances_of(history, next(iter(TOPICS)))) == count


def test_a_stand_still_and_a_move_are_the_same_everywhere(life: tuple[list[dict[str, Any]], History]):
    """But for what a static member's restart costs: that is no rebalance, and only commits tell of it."""
    story, history = life
    costs = Costs()
    found = {(one["generation"], one["formed_at"]): costs.of(one) for one in story}
    still: dict[tuple[int, int], list[int]] = {}
    for one in history.stalls:
        if one.kind == NO_OWNER:
            still.setdefault((one.generation, one.to_ms), []).append(one.to_ms - one.from_ms)
    moved = Counter((one.generation, one.at) for one in history.moves)
    known = costs_of(history)

    for place, cost in found.items():
        lengths = still.pop(place, [])
        assert cost is not None
        assert cost[:3] == (len(lengths), max(lengths, default=0), moved[place]), place
        mine = known.get(place, Cost())
        assert cost == mine._replace(longest_ms=mine.unowned_ms, silent_ms=0), place
    for one, formed in zip(story, rebalances_of(history, next(iter(TOPICS))), strict=True):
        cost = found[one["generation"], one["formed_at"]]
        assert cost is not None
        assert (formed.stopped_ms, formed.moved) == (cost.longest_ms, cost.moved)
        assert said(cost, one) in story_lines(one, cost)[1]
    assert still.keys() <= {(one.generation, one.at) for one in history.replacements}
