"""All the ways in which a member's subscription or assignment can be malformed."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

from coterie.base.ids import TopicPartition
from coterie.wire.payloads.consumer_protocol import Assignment, Subscription

__all__ = ["ASSIGNMENTS", "SUBSCRIPTIONS", "rubbish"]

OWNED = (TopicPartition("orders", 0), TopicPartition("payments", 3))
WHOLE = Subscription(("orders", "payments"), b"user data", OWNED, 7, "rack-1").encode()
GIVEN = Assignment(OWNED, b"user data").encode()


def int16(number: int) -> bytes:
    return struct.pack(">h", number)


def int32(number: int) -> bytes:
    return struct.pack(">i", number)


def cut_short(whole: bytes) -> dict[str, bytes]:
    """Return every beginning of the bytes."""
    return {f"cut at byte {size}": whole[:size] for size in range(len(whole))}


ONE = int32(1)
ORDERS = int16(6) + b"orders"
NO_DATA = int32(-1)

SUBSCRIPTIONS: dict[str, bytes] = {
    **cut_short(WHOLE),
    "version -1": int16(-1) + WHOLE[2:],
    "the lowest version": int16(-(2**15)) + WHOLE[2:],
    "a version of the future": int16(2**15 - 1) + WHOLE[2:],
    "-1 topics": int16(0) + int32(-1) + NO_DATA,
    "the least number of topics": int16(0) + int32(-(2**31)) + NO_DATA,
    "two thousand million topics": int16(0) + int32(2**31 - 1) + ORDERS,
    "more topics than there are": int16(0) + int32(3) + ORDERS + NO_DATA,
    "a topic that is null": int16(0) + ONE + int16(-1) + NO_DATA,
    "a topic of negative length": int16(0) + ONE + int16(-2) + b"orders" + NO_DATA,
    "a topic longer than all there is": int16(0) + ONE + int16(2**15 - 1) + b"orders" + NO_DATA,
    "a topic that is no UTF-8": int16(0) + ONE + int16(4) + b"\xff\xfe\xc0\x80" + NO_DATA,
    "half a character": int16(0) + ONE + int16(2) + "€".encode()[:2] + NO_DATA,
    "a surrogate": int16(0) + ONE + int16(3) + b"\xed\xa0\x80" + NO_DATA,
    "user data of negative length": int16(0) + ONE + ORDERS + int32(-2),
    "user data longer than all there is": int16(0) + ONE + ORDERS + int32(2**31 - 1) + b"x",
    "owned partitions without end": int16(1) + ONE + ORDERS + NO_DATA + int32(2**31 - 1),
    "bytes behind the end": WHOLE + b"\x00" * 100,
    "nothing but zeros": bytes(64),
    "nothing but ones": b"\xff" * 64,
    "the words of another protocol": b'{"worker": "http://127.0.0.1:8083"}',
    "an assignment": GIVEN,
    "a large one": bytes(range(256)) * 256,
}

ASSIGNMENTS: dict[str, bytes] = {
    **cut_short(GIVEN),
    "version -1": int16(-1) + GIVEN[2:],
    "a version of the future": int16(2**15 - 1) + GIVEN[2:],
    "-1 topics": int16(0) + int32(-1) + NO_DATA,
    "two thousand million topics": int16(0) + int32(2**31 - 1),
    "a topic that is null": int16(0) + ONE + int16(-1) + ONE + int32(0) + NO_DATA,
    "a topic that is no UTF-8": int16(0) + ONE + int16(2) + b"\xff\xfe" + ONE + int32(0) + NO_DATA,
    "two thousand million partitions": int16(0) + ONE + ORDERS + int32(2**31 - 1) + int32(0) + NO_DATA,
    "-1 partitions": int16(0) + ONE + ORDERS + int32(-1) + NO_DATA,
    "a partition below zero": int16(0) + ONE + ORDERS + ONE + int32(-5) + NO_DATA,
    "a partition twice": int16(0) + ONE + ORDERS + int32(2) + int32(1) * 2 + NO_DATA,
    "user data of negative length": int16(0) + int32(0) + int32(-2),
    "bytes behind the end": GIVEN + b"behind",
    "nothing but ones": b"\xff" * 64,
    "words": b"everything, please",
}


def rubbish() -> st.SearchStrategy[bytes]:
    """Return bytes of any kind: chance, and what is almost right."""
    spoiled = st.tuples(
        st.sampled_from((WHOLE, GIVEN)), st.integers(0, len(WHOLE) - 1), st.integers(0, 255)
    ).map(lambda drawn: drawn[0][: drawn[1]] + bytes([drawn[2]]) + drawn[0][drawn[1] + 1 :])
    return st.one_of(st.binary(max_size=200), spoiled)
