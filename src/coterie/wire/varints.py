"""Variable-length integers: Kafka's unsigned ones in messages, the zigzag ones in records."""

from coterie.base.errors import Corrupt

ONE_BYTE = tuple(bytes((number,)) for number in range(128))
LONGEST_UVARINT = 5
LONGEST_VARLONG = 10


def uvarint(number: int) -> bytes:
    """Return the unsigned varint of a number that is not negative."""
    if number < 128:
        return ONE_BYTE[number]
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def varlong(number: int) -> bytes:
    """Return the zigzag varint of a signed number of up to 64 bits."""
    if 0 <= number < SMALL_NUMBERS:
        return SMALL[number]
    return uvarint(number << 1 if number >= 0 else (-number << 1) - 1)


SMALL_NUMBERS = 512
SMALL = tuple(uvarint(number << 1) for number in range(SMALL_NUMBERS))
"""The zigzag varints of deltas, and of the sizes of most keys, values and records."""


WIDER_AT = (64, 8_192, 1_048_576, 134_217_728)
"""From these numbers on, a zigzag varint is a byte longer."""
ONE_DIGIT_UNTIL, TWO_DIGITS_UNTIL, *_ = WIDER_AT
FIRST_DIGITS = bytes(range(0, 128, 2)) + bytes(range(128, 256, 2)) * 127
SECOND_DIGITS = b"".join(digit * ONE_DIGIT_UNTIL for digit in ONE_BYTE)
assert len(FIRST_DIGITS) == len(SECOND_DIGITS) == TWO_DIGITS_UNTIL
"""By number, the first and second byte of its zigzag varint, as it is where there are two: what the offsets
of records that follow one another have is a slice of these.
"""


def read_uvarint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the unsigned varint at `at` and where it ends. More than five bytes are Corrupt."""
    try:
        number = data[at]
        if number < 128:
            return number, at + 1
        number += (data[at + 1] << 7) - 128
        if number < 1 << 14:
            return number, at + 2
        number += (data[at + 2] << 14) - (1 << 14)
        if number < 1 << 21:
            return number, at + 3
        return _read_long_uvarint(data, at)
    except IndexError:
        raise Corrupt("varint", at=at, expected="at most five whole bytes") from None


def _read_long_uvarint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    number = 0
    for place in range(LONGEST_UVARINT):
        byte = data[at + place]
        number |= (byte & 127) << 7 * place
        if byte < 128:
            return number, at + place + 1
    raise Corrupt("varint", at=at, expected="at most five whole bytes")


def read_varlong(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the zigzag varint at `at` and where it ends. More than ten bytes are Corrupt.

    Raises IndexError where there is no byte at all: the caller knows what was cut.
    """
    number = data[at]
    if number < 128:
        return (number >> 1) ^ -(number & 1), at + 1
    second = data[at + 1]
    if second < 128:
        number += (second << 7) - 128
        return (number >> 1) ^ -(number & 1), at + 2
    return _read_long_varlong(data, at)


def _read_long_varlong(data: bytes | memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    for end in range(at, min(at + LONGEST_VARLONG, len(data))):
        byte = data[end]
        number |= (byte & 127) << shift
        if byte < 128:
            return (number >> 1) ^ -(number & 1), end + 1
        shift += 7
    raise Corrupt("varlong", at=at, expected="at most ten whole bytes")
