"""Whole numbers in texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.whole import whole_number


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_number_is_read_as_it_is_written(number):
    assert whole_number(str(number)) == number


@pytest.mark.parametrize("text", ["", "-", "1_0", "٣", " 1", "1.0", "9" * 19, "9" * 5000, "nan"])
def test_what_is_none_or_too_large_is_none(text):
    assert whole_number(text) is None


def test_zeros_before_it_do_not_matter():
    assert whole_number("0" * 5000 + "7", bits=3) == 7
    assert whole_number("8", bits=3) is None
