"""`coterie simulate`: what it prints for people and programs, and what it says to a file that is wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.assign.registry import ASSIGNORS
from coterie.cli import main
from coterie.cli.simulate.texts import clock_text, span_text
from coterie.simulate.scenario import read_script

EXAMPLES = Path(__file__).parents[3] / "examples" / "scenarios"
PAGE = Path(__file__).parents[3] / "docs" / "simulator.md"
SCENE = """
title = "Two deploys"
lasts = "25m"
topics.orders = 6
members.count = 4
deploy = [{ every = "10m", restart = "20s" }]
[[variant]]
name = "dynamic"
[[variant]]
name = "static"
members.static = true
"""


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    file = tmp_path / "scene.toml"
    file.write_text(SCENE)
    return file


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int | str | None, str, str]:
    """Return how the command ended, and what it said on both channels."""
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *map(str, words)])
    return ended.value.code, *capsys.readouterr()


def test_variants_are_told_side_by_side(capsys: pytest.CaptureFixture[str], scene: Path):
    code, said, complained = run(capsys, scene)

    assert (code, complained) == (0, "")
    lines = said.splitlines()
    assert lines[:2] == ["Two deploys", "25 m 00 s of 4 members on 6 partitions, seed 1"]
    assert lines[3].split() == ["dynamic", "static"]
    assert [line.split() for line in lines if line.startswith("members back without")] == [
        ["members", "back", "without", "a", "rebalance", "–", "8"]
    ]
    assert "the story of static" in lines
    assert any("static-member-replaced m1 m2 m3 m4; no rebalance" in line for line in lines)


def test_as_much_is_told_as_is_asked_for(capsys: pytest.CaptureFixture[str], scene: Path):
    _, said, _ = run(capsys, scene, "--story", 1, "--partitions", 2)

    assert "… 4 more, which stood still for less: --partitions 6" in said
    assert said.count("generation 1 of 4 members") == 2
    assert "more: --story" in said

    _, said, _ = run(capsys, scene, "--story", 0, "--partitions", 0)
    assert "story" not in said
    assert "orders-5" not in said.split("of partition")[0]


def test_json_is_for_programs(capsys: pytest.CaptureFixture[str], scene: Path):
    _, said, _ = run(capsys, scene, "--output", "json")

    told = json.loads(said)
    assert [one["name"] for one in told["variants"]] == ["dynamic", "static"]
    assert told["variants"][1]["summary"]["rebalances"] == 0


def test_the_picture_is_one_page(capsys: pytest.CaptureFixture[str], scene: Path, tmp_path: Path):
    code, _, _ = run(capsys, scene, "--html", tmp_path / "scene.html")

    assert code == 0
    assert (tmp_path / "scene.html").read_text().startswith("<!doctype html>")


def test_unfolded_is_the_same_later(capsys: pytest.CaptureFixture[str], scene: Path):
    assert run(capsys, scene, "--unfolded") == run(capsys, scene)


def test_another_seed_is_another_story(capsys: pytest.CaptureFixture[str], scene: Path):
    assert run(capsys, scene, "--seed", 2)[1] != run(capsys, scene)[1]


@pytest.mark.slow
def test_one_seed_is_one_outcome_in_every_process(scene: Path, tmp_path: Path):
    outcomes = set()
    for hash_seed in ("1", "2"):
        page = tmp_path / "scene.html"
        command = [
            sys.executable,
            "-m",
            "coterie",
            "simulate",
            str(scene),
            "--output",
            "json",
            "--html",
            page,
        ]
        told = subprocess.run(
            command, env=os.environ | {"PYTHONHASHSEED": hash_seed}, capture_output=True, check=True
        )
        outcomes.add((told.stdout, page.read_bytes()))

    assert len(outcomes) == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "cannot read {file}: No such file or directory"),
        (b"title = '\xff'", "cannot read {file}: it is not UTF-8 from byte 9 on"),
        (b"topics.a = 1\nlast = '1h'", "{file}: the file has no key last; did you mean lasts?"),
    ],
)
def test_a_wrong_file_is_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: bytes | None, sentence: str
):
    file = tmp_path / "scene.toml"
    if text is not None:
        file.write_bytes(text)

    assert run(capsys, file) == (1, "", f"coterie: {sentence.format(file=file)}\n")


def test_a_page_that_cannot_be_written_is_one_sentence(
    capsys: pytest.CaptureFixture[str], scene: Path, tmp_path: Path
):
    code, _, complained = run(capsys, scene, "--html", tmp_path / "no" / "page.html")

    assert code == 1
    assert "page.html: No such file or directory" in complained


def test_a_page_that_is_a_directory_is_refused_before_anything_is_played(
    capsys: pytest.CaptureFixture[str], scene: Path, tmp_path: Path
):
    code, _, complained = run(capsys, scene, "--html", tmp_path)

    assert code == 2
    assert f"File '{tmp_path}' is a directory" in complained


@pytest.mark.parametrize(
    ("span_ms", "said"),
    [(0, "0 ms"), (999, "999 ms"), (6_240, "6.2 s"), (59_940, "59.9 s"), (59_950, "1 m 00 s"),
     (154_000, "2 m 34 s"), (3_599_600, "1 h 00 m"), (11_100_000, "3 h 05 m"),
     (3_600_000_000, "1,000 h 00 m")],
)  # fmt: skip
def test_spans_are_said_as_people_say_them(span_ms: int, said: str):
    assert span_text(span_ms) == said


def test_moments_count_from_the_start():
    assert clock_text(90_061_004) == "25:01:01.004"


# -- the examples


def figures(capsys: pytest.CaptureFixture[str], example: str) -> dict[str, dict[str, object]]:
    """Return the figures of each variant of an example."""
    code, said, _ = run(capsys, EXAMPLES / example, "--output", "json")
    assert code == 0
    return {one["name"]: one["summary"] for one in json.loads(said)["variants"]}


@pytest.mark.slow
def test_the_rolling_restart_shows_what_static_membership_saves_and_costs(capsys: pytest.CaptureFixture[str]):
    told = figures(capsys, "rolling-restart.toml")

    dynamic, static, short = told["dynamic"], told["static"], told["static, session of 20 s"]
    assert (static["rebalances"], static["partitions_moved"]) == (0, 0)
    assert static["returned_without_rebalance"] == 23 * 12
    assert dynamic["rebalances"] > 200
    assert dynamic["longest_ms"] < 5_000 < 15_000 < static["longest_ms"] < 31_000
    assert short["rebalances_by_cause"]["session-expired"] > 0
    assert short["partition_ms_without_owner"] > static["partition_ms_without_owner"]


def test_the_slow_poll_shows_what_a_longer_interval_saves_and_costs(capsys: pytest.CaptureFixture[str]):
    told = figures(capsys, "slow-poll.toml")

    assert told["5 minutes"]["rebalances_by_cause"]["poll-interval-exceeded"] == 1
    assert told["5 minutes"]["partition_ms_worked_by_two"] > 0
    assert told["10 minutes"]["partition_ms_worked_by_two"] == 0
    assert told["1 minute"]["longest_ms"] < 60_000 < 2 * 60_000 < told["10 minutes"]["longest_ms"]


@pytest.mark.skipif("cooperative-sticky" not in ASSIGNORS, reason="cooperative-sticky is not built yet")
def test_cooperative_members_go_on_while_the_group_rebalances(capsys: pytest.CaptureFixture[str]):
    told = figures(capsys, "eager-cooperative.toml")

    eager, cooperative = told["eager"], told["cooperative"]
    assert cooperative["rebalances"] > eager["rebalances"]
    assert cooperative["partitions_moved"] < eager["partitions_moved"]
    assert cooperative["partition_ms_without_owner"] < eager["partition_ms_without_owner"]


def sessions(page: Path) -> list[tuple[str, list[str]]]:
    """Return the commands that a page shows, each with what it prints; `…` stands for anything."""
    blocks = re.findall(r"```console\n\$ coterie simulate (.*?)\n(.*?)```", page.read_text(), re.DOTALL)
    return [(command, [line for line in said.splitlines() if line != "…"]) for command, said in blocks]


SHOWN = sessions(PAGE)


def test_the_page_shows_each_example():
    assert {command.split()[0] for command, _ in SHOWN} == {
        f"examples/scenarios/{file.name}" for file in EXAMPLES.glob("*.toml")
    }


@pytest.mark.slow
@pytest.mark.parametrize(("command", "lines"), SHOWN, ids=[command.split()[0] for command, _ in SHOWN])
def test_what_the_page_shows_is_what_is_printed(
    command: str, lines: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(PAGE.parents[1])

    code, said, _ = run(capsys, *command.split())

    printed = iter(said.splitlines())
    missing = [line for line in lines if line not in printed]
    assert (code, missing) == (0, [])


def test_the_file_that_the_page_explains_is_one():
    """Every table and key that the page names is known."""
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)

    script = read_script(text, name="the page")

    assert [variant.name for variant in script.variants] == ["dynamic", "static"]


def test_every_example_says_what_it_is_for():
    for file in EXAMPLES.glob("*.toml"):
        text = file.read_text()
        assert text.startswith("# ")
        assert f"coterie simulate examples/scenarios/{file.name}" in text
