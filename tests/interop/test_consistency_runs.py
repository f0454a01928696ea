"""What a run makes of clients that fail, and of a moment in which a busy machine has somebody stuck."""

from __future__ import annotations

from pathlib import Path

import pytest
from interop.consistency.checks import Problem
from interop.consistency.runs import RAISED, STUCK, OnceMore, attempt

STANDS = Problem(STUCK, "somebody does not go on")
LOST = Problem("lost", "a record")


@pytest.mark.parametrize(
    ("runs", "shown"),
    [
        ([[]], []),
        ([[STANDS], []], []),
        ([[STANDS], [STANDS]], [STANDS]),
        ([[STANDS], [LOST]], [LOST]),
        ([[STANDS, LOST]], [STANDS, LOST]),
        ([[LOST]], [LOST]),
    ],
)
def test_a_run_that_only_has_somebody_stuck_is_done_once_more_and_a_loss_is_a_loss(
    runs: list[list[Problem]], shown: list[Problem]
):
    left = iter(runs)

    assert OnceMore(lambda _: None).run(lambda: next(left)) == shown
    assert not [*left]


def test_where_a_second_run_has_somebody_stuck_it_is_no_moment_of_the_machine():
    left = iter([[STANDS], [], [STANDS]])
    runs = OnceMore(lambda _: None)

    assert runs.run(lambda: next(left)) == []
    assert runs.run(lambda: next(left)) == [STANDS]


def test_whatever_a_client_raises_is_a_problem_of_its_run_and_its_traceback_is_kept(tmp_path: Path):
    def fails() -> None:  # a mistake, which no second run makes good
        raise KeyError("orders-3")

    assert attempt(fails, tmp_path) == [Problem(RAISED, "KeyError: 'orders-3'")]
    assert "in fails" in (tmp_path / "threads.txt").read_text()
