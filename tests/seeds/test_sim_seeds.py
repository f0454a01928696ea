"""The seeds of `make test`, and that a seed is all that a scenario depends on."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from faults import FAULTS
from swarm.__main__ import main, tell_many
from swarm.options import TROUBLES
from swarm.scenario import run

SEEDS = range(100)
HOURS_LEAST = 100
SEEN_LEAST = 3
"""In so many of the seeds each of these has to come about, or they are no proof of it."""
MARKS = frozenset(TROUBLES) | {
    *(f"{how} {kind}" for how in ("eager", "cooperative") for kind in ("assigned", "revoked", "lost")),
    *("upgraded", "asleep", "failed", "stopped", "twice", "listener raised", "ahead", "behind"),
    *("answer lost", "overtaken"),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_scenarios_hold():
    outcomes = [run(seed) for seed in SEEDS]

    failures = [outcome.line for outcome in outcomes if outcome.violation]
    assert not failures, "\n".join(failures)
    seen = Counter(mark for outcome in outcomes for mark in outcome.marks)
    assert {mark: seen[mark] for mark in MARKS if seen[mark] < SEEN_LEAST} == {}
    assert 0 < max(outcome.settled for outcome in outcomes) <= 1  # of the bound that docs/simulator.md states
    assert sum(outcome.simulated_ms for outcome in outcomes) >= HOURS_LEAST * 3_600_000


def test_one_seed_is_one_trace():
    first, second = run(11), run(11)

    assert first.trace_hash == second.trace_hash
    assert first.steps == second.steps
    assert run(12).trace_hash != first.trace_hash


@pytest.mark.slow
def test_a_trace_does_not_depend_on_the_process():
    """The hash of strings differs from process to process; nothing may go by it."""
    hashes = set()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "swarm", "--seed", "11", "--quiet"]
        told = subprocess.run(
            command, env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
        )
        hashes.add(told.stdout.split("trace ")[1].split()[0])

    assert hashes == {run(11).trace_hash}


def test_a_failing_seed_prints_the_line_that_reproduces_it(capsys: pytest.CaptureFixture[str]):
    with FAULTS["leave_does_not_remove"]():
        code = tell_many(range(20), jobs=1, keep_going=False)

    told = capsys.readouterr().out.splitlines()
    assert code == 1
    assert told[-2].startswith("seed ")
    assert "who left is gone" in told[-2]
    assert "| python -m swarm --seed " in told[-2]
    assert told[-1].endswith("1 failed")


def test_a_seed_is_told_step_by_step(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["swarm", "--seed", "3"])

    assert main() == 0

    told = capsys.readouterr().out
    assert "JoinGroup" in told
    assert "all is healed" in told
    assert told.endswith("all held\n")
