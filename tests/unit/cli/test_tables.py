"""Tables fit the terminal that they are printed on, and are whole everywhere else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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
