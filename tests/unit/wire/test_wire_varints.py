"""Both kinds of variable-length integers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.errors import Corrupt
from coterie.wire.varints import read_uvarint, read_varlong, uvarint, varlong


@pytest.mark.parametrize(
    ("number", "encoded"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**32 - 1, "ffffffff0f")],
)
def test_unsigned_varints_are_kafkas(number, encoded):
    assert uvarint(number).hex() == encoded
    assert read_uvarint(bytes.fromhex(encoded), 0) == (number, len(encoded) // 2)


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_signed_varints_are_zigzag(number, encoded):
    assert varlong(number).hex() == encoded
    assert read_varlong(bytes.fromhex(encoded), 0) == (number, len(encoded) // 2)


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_a_signed_varint_is_read_where_it_stands(number, before, after):
    encoded = varlong(number)

    assert read_varlong(before + encoded + after, len(before)) == (number, len(before) + len(encoded))


@settings(deadline=None)
@given(st.integers(0, 2**35 - 1))
def test_an_unsigned_varint_is_read_back(number):
    assert read_uvarint(uvarint(number), 0) == (number, len(uvarint(number)))


def test_a_varint_that_does_not_end_is_corrupt():
    with pytest.raises(Corrupt):
        read_uvarint(b"\xff" * 5 + b"\1", 0)
    with pytest.raises(Corrupt):
        read_uvarint(b"\xff\xff", 0)
    with pytest.raises(Corrupt):
        read_varlong(b"\xff" * 10 + b"\1", 0)
    with pytest.raises(Corrupt):
        read_varlong(b"\xff\xff\xff", 0)
