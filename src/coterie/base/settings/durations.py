"""Spans of time as people write them: ISO 8601 (`P1DT2H30M`), and units (`1h30m`, `10 seconds`). Pure."""

from __future__ import annotations

import re
from typing import Final

from coterie.base.whole import whole_number

LONGEST_MS: Final = 1 << 63
# Patterns are compiled when they are first used: start-up is short.
ISO: Final = (
    r"(?P<sign>[-+]?)P(?:(?P<d>\d+)D)?"
    r"(?:T(?=\d)(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d{1,9})?)S)?)?"
)
WITH_UNITS: Final = r"(?:\s*\d+(?:\.\d+)?\s*[a-z]+)+\s*"
PART: Final = r"([\d.]+)\s*([a-z]+)"
UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LONG_NAMES: Final = {
    "millisecond": "ms",
    "sec": "s",
    "second": "s",
    "min": "m",
    "minute": "m",
    "hour": "h",
    "day": "d",
}


def iso_duration_ms(text: str) -> int:
    """Return the milliseconds of a duration of ISO 8601, of days to seconds, negative with a minus before it,
    as Java reads it. Raises ValueError with a sentence.
    """
    found = re.fullmatch(ISO, text.strip(), re.IGNORECASE | re.ASCII)
    numbers = {} if found is None else {unit: number for unit, number in found.groupdict().items() if number}
    sign = -1 if numbers.pop("sign", "") == "-" else 1
    if not numbers:
        raise ValueError(f"{text!r} is no duration; write P1D, PT6H or PT30M")
    total_ms = sum(float(number) * UNITS_MS[unit] for unit, number in numbers.items())
    if not total_ms < LONGEST_MS:  # thousands of digits are infinite
        raise ValueError(f"{text[:100]!r} is longer than any time there is")
    return sign * round(total_ms)


def span_ms(text: str) -> int | None:
    """Return the milliseconds of a span in units, or their sum if there are several; None if it is none."""
    folded = text.lower()
    if not re.fullmatch(WITH_UNITS, folded, re.ASCII):
        return None
    total_ms = 0.0
    for number, unit in re.findall(PART, folded, re.ASCII):
        short = LONG_NAMES.get(unit) or LONG_NAMES.get(unit.removesuffix("s")) or unit
        total_ms += float(number) * UNITS_MS.get(short, LONGEST_MS)
    return round(total_ms) if total_ms < LONGEST_MS else None


def ms_of(text: str) -> int | None:
    """Return the milliseconds of a span in units, or of a whole number; None if it is neither."""
    number = whole_number(text.strip())
    return span_ms(text) if number is None else number
