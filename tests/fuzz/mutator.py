"""Bytes bent by seed: what hostile clients send and broken disks give back."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

__all__ = ["mutated"]

# Null, the longest lengths, the shortest ones, varints that do not end, numbers just beyond a sign.
POISONS = (
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x80" * 11,
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\xff\xff\xff\xff",
    b"\0\0\0\0",
    b"\x7f\xff",
    b"\x80\0",
    b"\xff\xff",
    b"\0",
    b"\xff",
    b"\xed\xa0\x80",  # half of a UTF-16 pair, which UTF-8 has no place for
    b"9" * 5000,  # more digits than Python makes a number of
    b"\n",
    b" ",
    "٣".encode(),  # a digit to Python's isdigit, and none to Kafka
)
LONGEST = 1 << 16


def mutated(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """Return the bytes after one to four changes."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        data = random.choice(CHANGES)(data, random, others)
    return data[:LONGEST]


def poisoned(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """Put a poison over what is there."""
    at, poison = random.randint(0, len(data)), random.choice(POISONS)
    return data[:at] + poison + data[at + len(poison) :]


def injected(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """Put a poison, or anything, between what is there."""
    at = random.randint(0, len(data))
    poison = random.choice(POISONS) if random.random() < 0.7 else random.randbytes(random.randint(1, 9))
    return data[:at] + poison + data[at:]


def flipped(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """Turn one bit."""
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + bytes((data[at] ^ 1 << random.randrange(8),)) + data[at + 1 :]


def nudged(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """Make one byte a little more or less: a length that is off by one."""
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + bytes(((data[at] + random.choice((-2, -1, 1, 2))) % 256,)) + data[at + 1 :]


def cut(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """Drop the end."""
    return data[: random.randint(0, len(data))]


def dropped(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """Drop a piece."""
    at = random.randint(0, len(data))
    return data[:at] + data[at + random.randint(1, 8) :]


def repeated(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """Say a piece again, a few times or very often."""
    at = random.randint(0, len(data))
    piece = data[at : at + random.randint(1, 32)]
    return data[:at] + piece * random.choice((2, 3, 1000)) + data[at:]


def spliced(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """Go on as another input does."""
    other = random.choice(others) if others else b""
    return data[: random.randint(0, len(data))] + other[random.randint(0, len(other)) :]


CHANGES = (poisoned, poisoned, injected, flipped, nudged, nudged, cut, dropped, repeated, spliced)
