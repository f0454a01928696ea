"""`coterie history` tells people and programs what happened to the captured groups."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from coterie.base.errors import CoterieError
from coterie.cli.history import command
from coterie.cli.history.texts import text
from unit.history.history_rig import CAPTURES, Tale

DATA = Path(__file__).parents[2] / "data"
captured = pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures are not beside this checkout")


@captured
def test_a_group_is_told_with_causes_and_evidence():
    told = CliRunner().invoke(command, [str(CAPTURES), "--group", "storm"], catch_exceptions=False).output

    assert told.startswith("storm: 14 rebalances, most often ")
    assert "; partitions stood still " in told.splitlines()[0]
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


def test_the_directory_of_several_brokers_is_refused_with_theirs_named(tmp_path: Path):
    for broker_id in (1, 2):
        (tmp_path / str(broker_id) / "__consumer_offsets-0").mkdir(parents=True)

    with pytest.raises(CoterieError) as raised:
        CliRunner().invoke(command, [str(tmp_path)], catch_exceptions=False)

    assert str(raised.value) == (
        f"{tmp_path} has the directories of several brokers, each with its own groups: give one of them,"
        f" {tmp_path / '1'}, {tmp_path / '2'}"
    )


def test_a_log_without_groups_is_said_to_have_none(tmp_path: Path):
    partition = tmp_path / "__consumer_offsets-0"
    partition.mkdir()
    (partition / f"{0:020d}.log").touch()

    told = CliRunner().invoke(command, [str(tmp_path)], catch_exceptions=False)

    assert (told.exit_code, told.stdout) == (0, "")
    assert told.stderr == f"There are no groups in {tmp_path}.\n"


def test_settings_that_the_environment_has_for_a_client_do_not_matter_to_a_directory(tmp_path: Path):
    (tmp_path / "__consumer_offsets-0").mkdir()
    (tmp_path / "__consumer_offsets-0" / f"{0:020d}.log").touch()
    (tmp_path / "client.properties").write_text("client.id=me\n")
    environment = {"COTERIE_COMMAND_CONFIG": str(tmp_path / "client.properties")}

    told = CliRunner().invoke(command, [str(tmp_path)], env=environment, catch_exceptions=False)

    assert (told.exit_code, told.stderr) == (0, f"There are no groups in {tmp_path}.\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--html", "x.html", "--what-if", "group.instance.id=on"],
            "--html and --what-if do not go together",
        ),
        (["--html", "x.html", "--parquet", "tables"], "--parquet and --html do not go together"),
        (["--set", "client.id=me"], "--set is for the client of --bootstrap"),
        (["--command-config", os.devnull], "--command-config is for the client of --bootstrap"),
        (["--stuck-after", "3"], "--stuck-after is for --watch"),
        (["--parquet", "tables", "--group", "mine"], "--parquet is for all groups: leave out --group"),
        (["--html", "x.html", "--output", "json"], "--html has its own format"),
    ],
)
def test_an_answer_that_would_not_be_given_is_refused(tmp_path: Path, words: list[str], says: str):
    asked = CliRunner().invoke(command, [str(tmp_path), *words])

    assert (asked.exit_code, says in asked.output) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_is_told_of_before_anything_is_read(tmp_path: Path):
    partition = tmp_path / "__consumer_offsets-0"
    partition.mkdir()
    (partition / f"{0:020d}.log").mkdir()  # reading this would fail

    with pytest.raises(CoterieError, match=r"^cannot write .*gone/x.html: No such file or directory$"):
        CliRunner().invoke(
            command, [str(tmp_path), "--html", str(tmp_path / "gone" / "x.html")], catch_exceptions=False
        )


def test_what_a_name_would_do_to_a_terminal_is_shown_instead():
    history = Tale().formed(0, {"a\x1b[2J/1": (0,)}).told()._replace(group_id="\x1b]0;gone\x07")

    told = text(history, 20)

    assert "\\x1b]0;gone\\x07: 1 rebalance" in told
    assert "\x1b[2J" not in told


def test_a_segment_that_is_damaged_is_named_with_what_to_do(tmp_path: Path):
    offsets = tmp_path / "__consumer_offsets-9"
    offsets.mkdir()
    segment = (DATA / "consumer_offsets_9.log").read_bytes()
    (offsets / "00000000000000000000.log").write_bytes(segment + bytes(5000))  # as after a power cut

    told = CliRunner().invoke(command, [str(tmp_path)])

    assert told.exit_code == 1
    assert str(told.exception) == (
        f"{offsets} is damaged (magic 0 at byte {len(segment) + 16}, expected 2); copy it anew from the "
        "broker, or give a copy without it"
    )


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


def test_a_cluster_that_is_not_there_is_one_sentence_before_spark_is_started():
    script = (
        "import sys\n"
        "from coterie.cli import main\n"
        "try:\n"
        "    main(['history', '--bootstrap-server', '127.0.0.1:1'])\n"
        "except SystemExit as end:\n"
        "    print(end.code, 'pyspark' in sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)

    assert ended.stdout == "1 False\n"
    assert ended.stderr.startswith("coterie: no connection to 127.0.0.1:1")
