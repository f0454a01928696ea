"""`coterie history` tells people and programs what happened to the captured groups."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from coterie.base.errors import CoterieError
from coterie.cli.history import command, text
from unit.history.history_rig import CAPTURES, Tale

DATA = Path(__file__).parents[2] / "data"
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


def test_what_a_name_would_do_to_a_terminal_is_shown_instead():
    history = Tale().formed(0, {"a\x1b[2J/1": (0,)}).told()._replace(group_id="\x1b]0;gone\x07")

    told = text(history, 20)

    assert "\\x1b]0;gone\\x07: 1 rebalances" in told
    assert "\x1b[2J" not in told


def test_a_directory_or_a_cluster_is_told_of_and_only_a_cluster_watched(tmp_path: Path):
    neither = CliRunner().invoke(command, [])
    watched = CliRunner().invoke(command, [str(tmp_path), "--watch"])

    assert (neither.exit_code, "either a DIRECTORY or --bootstrap" in neither.output) == (2, True)
    assert (watched.exit_code, "--watch needs --bootstrap" in watched.output) == (2, True)


@pytest.mark.parametrize(
    "more", [(), ("--output", "json"), ("--what-if", "group.instance.id=on"), ("--html", "report.html")]
)
def test_a_group_that_is_not_there_is_said_to_be_missing_and_the_command_fails(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    offsets = tmp_path / "log" / "__consumer_offsets-9"
    offsets.mkdir(parents=True)
    segment = DATA / "consumer_offsets_9.log"
    (offsets / "00000000000000000000.log").write_bytes(segment.read_bytes())
    monkeypatch.chdir(tmp_path)

    told = CliRunner().invoke(command, ["log", "--group", "biling", *more])

    assert told.exit_code == 1
    assert "there is no record of biling among the 1 group in log; did you mean billing?" in str(
        told.exception
    )
    assert not (tmp_path / "report.html").exists()
