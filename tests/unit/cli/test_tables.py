"""Tables fit the terminal that they are printed on, and are whole everywhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.cli.history.what_if import HEAD
from coterie.cli.tables import NARROWEST, cut, fitted, table


@given(widths=st.lists(st.integers(1, 60), min_size=1, max_size=8), most=st.integers(20, 200), data=st.data())
def test_the_widest_text_gives_way_and_numbers_stay(widths, most, data):
    numbers = data.draw(st.lists(st.booleans(), min_size=len(widths), max_size=len(widths)))

    room = fitted(widths, numbers, most)

    assert all(one == wide for one, wide, number in zip(room, widths, numbers, strict=True) if number)
    assert all(one == wide or NARROWEST <= one < wide for one, wide in zip(room, widths, strict=True))
    fits = sum(room) + 2 * (len(room) - 1) <= most
    assert fits or all(n or one <= NARROWEST for one, n in zip(room, numbers, strict=True))


def test_a_long_name_loses_its_middle_for_ids_differ_at_their_ends():
    assert cut("consumer-readers-1-4f2a", 11) == "consu…-4f2a"
    assert cut("short", 11) == "short"


def test_what_is_no_terminal_gets_every_name_whole():
    assert table(("NAME",), [("x" * 500,)])[1] == "x" * 500


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Make standard output a terminal of so many columns."""
    master, slave = os.openpty()
    with open(slave, "w", encoding="utf-8") as stream:

        def made(columns: int) -> None:
            monkeypatch.setattr(sys, "stdout", stream)
            monkeypatch.setenv("COLUMNS", str(columns))

        yield made
    os.close(master)


WHAT_IF = [("session.timeout.ms=30000", 3, "12.3 ±0.4", "4.0", 20, "session-expired 2, member-joined 1")]


def test_a_table_with_an_indent_is_no_wider_than_the_terminal(terminal: Callable[[int], None]):
    terminal(80)

    lines = table(HEAD, WHAT_IF, indent="  ")

    assert len(lines) == 2
    assert all(line.startswith("  ") and len(line) <= 80 for line in lines)


def test_a_first_cell_that_is_a_number_is_named_where_each_cell_has_a_line(terminal: Callable[[int], None]):
    terminal(15)

    assert table(("PRODUCER", "LAST WRITTEN"), [(7, "2026-11-22T15:21:14.817Z")]) == [
        "PRODUCER 7",
        "  LAST WRITTEN  2026-11-22T15:21:14.817Z",
    ]


def test_a_table_that_cannot_be_so_narrow_has_a_line_for_each_cell(terminal: Callable[[int], None]):
    terminal(60)

    assert table(HEAD, WHAT_IF, indent="  ") == [
        "  session.timeout.ms=30000",
        "    rebalances     3",
        "    stood still s  12.3 ±0.4",
        "    longest s      4.0",
        "    moves          20",
        "    causes         session-expired 2, member-joined 1",
    ]
