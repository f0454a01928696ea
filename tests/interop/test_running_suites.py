"""What a run makes of suites that fail: the reasons stand at its end, and a bad moment gets a second run."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from interop.outcomes import Outcome

from interop import __main__ as running

FAILS_ONCE = """
if [ -e "$MARK" ]; then echo "ok steady"; echo "ok late"
else touch "$MARK"; echo "ok steady"; echo "FAILED late: not within 30 s"; fi
"""
FAILS_ALWAYS = 'echo "FAILED wrong: 1 is not 2"'
BREAKS_OFF = 'echo "ok first"; echo "the last words"; exit 7'
RAISES = 'echo "ok first"; echo "KeyError: 3" >&2; exit 1'
LEAVES_ONE_BEHIND = 'sleep 60 >/dev/null & echo $! >"$MARK"; echo "ok first"'

Suites = Callable[..., list[Outcome]]


@pytest.fixture
def suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suites:
    """Return what runs suites, given by name and script, as a whole run does."""
    monkeypatch.setattr(running, "HERE", tmp_path / "suites")
    monkeypatch.setattr(running, "environment", lambda name, **_: {"MARK": str(tmp_path / f"{name}.mark")})

    def run(**scripts: str) -> list[Outcome]:
        for name, script in scripts.items():
            (tmp_path / "suites" / name).mkdir(parents=True)
            (tmp_path / "suites" / name / "run.sh").write_text(script)
        place = {"data": tmp_path / "data", "work": tmp_path, "on": "coterie"}
        first = [running.run_suite(name, bootstrap="", **place) for name in scripts]
        return running.once_more(first, tmp_path / "again", on="coterie")

    return run


def test_a_suite_that_passes_when_it_runs_alone_passes_and_is_told_of(
    suites: Suites, capsys: pytest.CaptureFixture[str]
) -> None:
    assert running.report(suites(mixed=FAILS_ONCE)) == 0

    *_, told, counted = capsys.readouterr().out.splitlines()
    assert told == "UNSTEADY mixed late: passed when run again; before: not within 30 s"
    assert counted == "2 passed, 0 failed"


def test_what_fails_twice_has_failed_and_says_why(suites: Suites, capsys: pytest.CaptureFixture[str]) -> None:
    assert running.report(suites(mixed=FAILS_ALWAYS)) == 1

    assert "FAILED mixed wrong: 1 is not 2" in capsys.readouterr().out.splitlines()[-2]


def test_a_loss_found_by_chance_is_no_bad_moment(suites: Suites) -> None:
    (kills,) = suites(kills=FAILS_ONCE)

    assert (kills.failed, kills.unsteady) == (["late"], {})


def test_where_much_has_failed_nothing_is_run_again(suites: Suites) -> None:
    outcomes = suites(**dict.fromkeys(("mixed", "takeover", "client", "answers"), FAILS_ONCE))

    assert [one.failed for one in outcomes] == [["late"]] * 4


def test_a_suite_that_breaks_off_tells_its_last_words(
    suites: Suites, capsys: pytest.CaptureFixture[str]
) -> None:
    assert running.report(suites(mixed=BREAKS_OFF)) == 1

    told = capsys.readouterr().out
    assert "FAILED mixed runs-to-its-end: it ended with 7, after:\nok first\nthe last words\n" in told


@pytest.mark.parametrize("variable", [running.OTHER_BROKER, running.SOME_CHECKS])
def test_what_fails_on_a_broker_of_others_or_in_a_few_checks_is_not_run_again_on_ours(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = Outcome("topics", "coterie", "2026-11-23", failed=["delete"])
    again = Outcome("topics", "coterie", "2026-11-23", passed=["delete"])
    monkeypatch.setattr(running.sys, "argv", ["interop"])
    monkeypatch.setattr(running.signal, "signal", lambda *_: None)
    monkeypatch.setattr(running, "run_suites", lambda *_, **__: [failed])
    monkeypatch.setattr(running, "once_more", lambda *_, **__: [again])
    monkeypatch.setenv(variable, "127.0.0.1:9092")

    assert running.main() == 1


@pytest.mark.parametrize("suite", ["simulator", "engine_seeds"])
def test_the_list_of_what_must_pass_is_what_a_suite_of_seeds_runs(suite: str):
    folder = Path(running.__file__).parent / suite
    unasked = {name: text for name, text in os.environ.items() if "SEEDS" not in name and "FIRST" not in name}
    of_no_seeds = {**unasked, "PYTHON": "true", "REPOSITORY": str(folder.parent.parent)}

    told = subprocess.check_output(["bash", str(folder / "run.sh")], env=of_no_seeds, text=True)

    assert [f"ok {name}" for name in (folder / "passes.txt").read_text().split()] == told.splitlines()


def test_several_brokers_may_have_a_list_of_their_own_of_what_must_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "HERE", tmp_path)
    (tmp_path / "kgo").mkdir()
    (tmp_path / "kgo" / "passes.txt").write_text("produce consume\n")
    (tmp_path / "kgo" / "killed-cluster.txt").write_text("produce\n")
    outcomes = [
        Outcome("kgo", place, "2026-11-26", passed=["produce"], failed=["consume"])
        for place in ("cluster", "killed-cluster")
    ]

    for outcome in outcomes:
        running.judge(outcome)

    assert [(one.failed, one.known) for one in outcomes] == [(["consume"], []), ([], ["consume"])]


def test_of_a_suite_that_broke_off_what_it_wrote_to_standard_error_is_told(suites: Suites) -> None:
    (mixed,) = suites(mixed=RAISES)

    assert "KeyError: 3" in mixed.whys["runs-to-its-end"]


def test_who_is_left_behind_with_the_standard_error_of_a_suite_keeps_nobody(
    suites: Suites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "ENDS_WITHIN_S", 0.1)

    (mixed,) = suites(mixed=LEAVES_ONE_BEHIND)

    os.kill(int((tmp_path / "mixed.mark").read_text()), signal.SIGKILL)
    assert mixed.passed == ["first"]
