"""`coterie history` tells people and programs what happened to the captured groups."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from coterie.base.errors import CoterieError
from coterie.cli.history import command
from unit.history.history_rig import CAPTURES

captured = pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures are not beside this checkout")


@captured
def test_a_group_is_told_with_causes_and_evidence():
    told = CliRunner().invoke(command, [str(CAPTURES), "--group", "storm"], catch_exceptions=False).output

    assert told.startswith("storm: 14 rebalances, 0 replacements")
    assert "generation 3, 2 members: poll-interval-exceeded" in told
    assert "storm-slow-0 went" in told
    assert "audit" not in told


@captured
def test_programs_get_a_line_of_json_a_group():
    told = CliRunner().invoke(command, [str(CAPTURES), "--output", "json"], catch_exceptions=False).output

    rows = [json.loads(line) for line in told.splitlines()]
    assert sorted(row["group_id"] for row in rows) == ["audit", "billing", "nextgen", "shipping", "storm"]


def test_a_directory_without_groups_is_an_error(tmp_path: Path):
    with pytest.raises(CoterieError, match="__consumer_offsets"):
        CliRunner().invoke(command, [str(tmp_path)], catch_exceptions=False)
