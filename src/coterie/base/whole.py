"""Whole numbers in texts that people and other programs write. Pure."""

from typing import Final

DIGITS_MOST: Final = 19  # of a number of 63 bits


def whole_number(text: str, *, bits: int = 63) -> int | None:
    """Return the whole number that Java reads in a text, None if there is none or it needs more bits.

    Python's own int() takes underscores, and refuses thousands of digits with an error of another kind, were
    they zeros.
    """
    negative, digits = text.startswith("-"), text[1:] if text[:1] in {"+", "-"} else text
    if not (digits.isascii() and digits.isdigit()):
        return None
    digits = digits.lstrip("0")
    if len(digits) > DIGITS_MOST:
        return None
    number = int(digits or "0") * (-1 if negative else 1)
    return number if -(1 << bits) <= number < 1 << bits else None
