"""The pace of the work."""

from __future__ import annotations

from pathlib import Path

import pytest
from pipeline.plan import Paths, Plan


@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("events", [5000, 20_000, 99_999, 100_000, 336_776])
def test_the_work_lasts_until_the_killed_member_is_back(events: int, brokers: int):
    plan = Plan.of(events, brokers=brokers)
    lasts_ms = [part / plan.per_batch * plan.trigger_ms for part in plan.parts]

    # One application does a batch at each trigger: each step that needs work brings six seconds of it for
    # two, however much of the earlier parts was read while a process started.
    assert len(lasts_ms) == (5 if brokers == 1 else 6)
    assert min(lasts_ms) >= 12_500


@pytest.mark.parametrize(("brokers", "count"), [(1, 5), (3, 6)])
@pytest.mark.parametrize("events", [5000, 20_001, 336_776])
def test_the_last_part_is_held_back_and_nothing_is_left_out(events: int, brokers: int, count: int):
    parts = Plan.of(events, brokers=brokers).parts

    assert sum(parts) == events
    assert parts[-1] == events // count


def test_a_run_replaces_all_that_it_makes(tmp_path: Path):
    paths = Paths(tmp_path)
    made = set(paths.made_by_a_run())

    assert {paths.summary, paths.page, paths.drawing, paths.delays} <= made
    assert paths.records in made
    assert paths.lock not in made
