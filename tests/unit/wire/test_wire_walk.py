"""Records that are walked over: what is whole passes, with the time of the youngest; nothing else does."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.errors import Corrupt
from coterie.wire.records import walk
from coterie.wire.records.batches import HEADER_SIZE, Record, build_batch, read_header, records_of
from coterie.wire.records.walk import EndlessLength, youngest_delta
from coterie.wire.varints import varlong
from examples import drawn

NOW = 1_700_000_000_000
BLOBS = st.none() | st.binary(max_size=3) | st.sampled_from([b"", b"v" * 63, b"v" * 64, b"v" * 9_000])
HEADERS = st.lists(st.tuples(st.sampled_from(["", "h", "h" * 70]), BLOBS), max_size=2).map(tuple)


def sized(data: bytes | None) -> bytes:
    return varlong(-1) if data is None else varlong(len(data)) + data


def a_record(
    delta: int = 0,
    *,
    time: int = 0,
    key: bytes = sized(b"k"),
    value: bytes = sized(b"v"),
    headers: bytes = b"\0",
    size: int | None = None,
) -> bytes:
    """Return a record of these parts as they are written, its length right unless one is given."""
    body = b"\0" + varlong(time) + varlong(delta) + key + value + headers
    return varlong(len(body) if size is None else size) + body


ONE, TWO = a_record(), a_record(0) + a_record(1)
UNSOUND = {
    "too few": (TWO, 3),
    "too many": (TWO, 1),
    "none": (b"", 1),
    "the last cut": (TWO[:-1], 2),
    "more bytes behind": (TWO + b"\0", 2),
    "zeros": (bytes(60), 1),
    "a negative length": (ONE + a_record(1, size=-3), 2),
    "a length of nothing": (ONE + a_record(1, size=0), 2),
    "a length beyond the end": (ONE + a_record(1, size=100), 2),
    "a length that is short by one": (ONE + a_record(1, size=7), 2),
    "a length without an end": (b"\xff" * 60, 1),
    "a time without an end": (varlong(17) + b"\0" + b"\x80" * 11 + b"\2k\2v\0", 1),
    "an offset behind its batch": (ONE + a_record(1_000), 2),
    "an offset before its batch": (ONE + a_record(-1), 2),
    "a key beyond its record": (a_record(key=varlong(50) + b"k"), 1),
    "a key that is some of the value": (a_record(key=varlong(3) + b"k"), 1),
    "a value beyond its record": (a_record(value=varlong(50) + b"v"), 1),
    "no count of headers": (a_record(headers=b""), 1),
    "a negative count of headers": (a_record(headers=varlong(-1)), 1),
    "a header that is not there": (a_record(headers=varlong(1)), 1),
    "a header without a name": (a_record(headers=varlong(1) + varlong(-1) + varlong(-1)), 1),
    "a header's value beyond its record": (a_record(headers=varlong(1) + sized(b"h") + varlong(9)), 1),
    "something behind the headers": (a_record(headers=bytes(3)), 1),
}


@pytest.mark.parametrize(("body", "count"), UNSOUND.values(), ids=UNSOUND)
@pytest.mark.parametrize("before", [0, 200])
def test_records_that_would_stop_a_reader_are_corrupt(body: bytes, count: int, before: int):
    """`before`: behind so many sound ones, most of which are compared by the column."""
    sound = b"".join(a_record(delta) for delta in range(before))

    with pytest.raises(Corrupt) as refused:
        youngest_delta(sound + body, 0, before + count)

    assert isinstance(refused.value, EndlessLength) == (body == b"\xff" * 60)


@pytest.mark.parametrize("sizes", [1, 3])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("width", [2, 3, 5])
def test_an_offset_in_more_bytes_than_it_needs_does_not_vouch_for_what_follows(
    width: int, number: int, sizes: int
):
    """In those behind the first `number` only the first byte is the offset: the rest is of no form at all."""

    def in_bytes(first: int, rest: bytes) -> bytes:
        body = b"\0\0" + bytes([first]) + rest + sized(None) + sized(b"v" * (first // 2 % sizes)) + b"\0"
        return varlong(len(body)) + body

    padded = b"".join(in_bytes(2 * n | 128, b"\x80" * (width - 2) + b"\0") for n in range(number))
    body = padded + b"".join(in_bytes(2 * n, bytes(width - 1)) for n in range(number, 30))

    assert youngest_delta(padded, 0, number) == 0
    with pytest.raises(Corrupt):
        youngest_delta(body, 0, 30)


@pytest.mark.parametrize("sizes", [1, 3])
def test_an_offset_of_two_bytes_is_looked_at_whole(sizes: int):
    """64 more, and its first byte is the same."""
    records = [a_record(delta, value=sized(b"v" * (delta % sizes))) for delta in range(150)]
    assert youngest_delta(b"".join(records), 0, 150) == 0

    records[100] = a_record(164, value=sized(b"v" * (100 % sizes)))
    with pytest.raises(Corrupt):
        youngest_delta(b"".join(records), 0, 150)


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("at", range(20))
def test_wherever_alike_records_cease_to_be_alike_they_are_corrupt_and_nothing_else(at: int, place: int):
    """`place`: one of the lengths in a record of nine bytes, or its offset."""
    body = bytearray(b"".join(a_record(delta) for delta in range(20)))
    size = len(body) // 20
    body[at * size + (0, 3, 4, 6, 8, 8)[place]] ^= 0x01 if place < 5 else 0x80

    with pytest.raises(Corrupt):
        youngest_delta(bytes(body), 0, 20)


def test_what_kafka_lets_pass_passes():
    for body, count in (
        (a_record(0) + a_record(0), 2),
        (a_record(key=varlong(-2), value=varlong(-2)), 1),
        (a_record(headers=varlong(1) + sized(b"\xff") + varlong(-2)), 1),
    ):
        assert youngest_delta(body, 0, count) == 0


@settings(max_examples=drawn(60), deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 300) | st.integers(-NOW, NOW), BLOBS, BLOBS, HEADERS), min_size=1))
def test_whatever_is_built_is_whole_and_its_youngest_is_found(rows: list[tuple[int, bytes, bytes, tuple]]):
    records = [Record(place, NOW + time, *rest) for place, (time, *rest) in enumerate(rows)]
    batch = build_batch(records)

    assert NOW + rows[0][0] + youngest_delta(batch, HEADER_SIZE, len(rows)) == NOW + max(r[0] for r in rows)


def test_records_that_are_alike_are_judged_as_one_by_one(monkeypatch: pytest.MonkeyPatch):
    """Whatever byte is changed among records of one form, it is judged as without the look by the column."""
    chance = random.Random(3)
    quickly, looked = [], []
    alike = walk._uniform

    def watched(*arguments: object) -> walk.Uniform:
        looked.append(found := alike(*arguments))  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(walk, "_uniform", watched)
    monkeypatch.setattr(walk, "_forms", {})
    bodies = []
    for _ in range(300):
        value, count, pace = (
            b"v" * chance.choice((3, 100, 9_000)),
            chance.choice((20, 90, 150)),
            chance.random(),
        )
        records = [Record(n, NOW + int(n * pace), b"k", value) for n in range(count)]
        body = bytearray(build_batch(records)[HEADER_SIZE:])
        body[chance.choice((chance.randrange(len(body)), len(body) // count * chance.randrange(count)))] ^= (
            1 << chance.randrange(8)
        )
        bodies.append((bytes(body), count))
        quickly.append(judged(*bodies[-1]))

    assert quickly == [judged_plainly(*one) for one in bodies]
    assert max(found for found, *_ in looked) > 60
    assert None in quickly


def judged(body: bytes, count: int) -> int | None:
    """Return the youngest, None where it is Corrupt."""
    try:
        return youngest_delta(body, 0, count)
    except Corrupt:
        return None


def told(body: bytes, count: int) -> int | tuple[type, str]:
    """Return the youngest, or what exactly is raised."""
    try:
        return youngest_delta(body, 0, count)
    except Corrupt as error:
        return type(error), str(error)


def judged_plainly(body: bytes, count: int, judge: Callable = judged) -> Any:
    """Return what is judged by the plain walk alone."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(walk, "_forms", {})
        patched.setattr(walk, "_uniform", lambda *_: walk.NONE_UNIFORM)
        patched.setattr(walk, "_uniform_but_in_size", lambda *_: walk.NONE_UNIFORM)
        return judge(body, count)


SHAPES = st.tuples(
    st.sampled_from([8, 16, 64, 65, 73, 90, 150]),
    st.sampled_from([None, b"", b"k", b"k" * 70]),
    st.sampled_from([None, b"", b"v" * 56, b"v" * 57, b"v" * 100, b"v" * 9_000]),
    st.sampled_from([0.0, 0.1, 0.7, -0.2]),
)


@settings(max_examples=drawn(60), deadline=None)
@given(shape=SHAPES, data=st.data())
def test_a_batch_of_a_known_form_is_judged_as_by_the_plain_walk(shape: tuple, data: st.DataObject):
    """Whatever is changed in it, payload, framing or times: what was learnt vouches for its like alone."""
    count, key, value, pace = shape
    body = build_batch([Record(n, NOW + int(n * pace), key, value) for n in range(count)])[HEADER_SIZE:]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(walk, "_forms", {})
        for _ in range(3):
            assert judged(body, count) == max(0, int((count - 1) * pace))
        size = len(body) // count
        for _ in range(10):
            changed = bytearray(body)
            for _ in range(data.draw(st.integers(1, 2))):
                record = data.draw(st.integers(0, count - 1))
                at = data.draw(st.integers(0, min(size, 12)) | st.integers(0, size) | st.just(size - 1))
                at = min(record * size + at, len(body) - 1)
                changed[at] = data.draw(st.integers(0, 255) | st.sampled_from([body[at] ^ 1, body[at] ^ 128]))
            assert judged(bytes(changed), count) == judged_plainly(bytes(changed), count)


def test_the_form_of_a_batch_is_known_once_its_like_has_come_twice(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(walk, "_forms", {})
    batches = [
        build_batch([Record(n, NOW + n * pace // 10, None, bytes([pace]) * 100) for n in range(150)])
        for pace in range(4)
    ]

    youngest = [youngest_delta(batch, HEADER_SIZE, 150) for batch in batches[:2]]
    with monkeypatch.context() as patched:
        patched.setattr(walk, "_walked", None)
        youngest += [youngest_delta(batch, HEADER_SIZE, 150) for batch in batches[2:]]

    assert youngest == [0, 14, 29, 44]


def test_no_more_forms_are_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(walk, "_forms", forms := {})
    monkeypatch.setattr(walk, "FORMS_MOST", 5)

    for _ in range(3):
        for count in range(8, 30):
            batch = build_batch([Record(n, NOW, None, b"v") for n in range(count)])
            assert youngest_delta(batch, HEADER_SIZE, count) == 0
            assert len(forms) <= 5


def of_changing_sizes(chance: random.Random) -> list[bytes]:
    """Return the records of a batch, alike but for the sizes of their values."""
    count = chance.choice((9, 16, 65, 66, 80, 150))
    sizes = chance.choice(((0, 5), (50, 70), (50, 150), (60, 66), (7_900, 8_300) if count < 20 else (0, 100)))
    key = chance.choice((None, None, b"", b"k", b"12345678", b"k" * 63, b"k" * 64))
    names, own = chance.choice(((), (), ("a",), ("trace", "b"), ("h" * 70, "b"))), chance.random() < 0.5
    pace, nulls = chance.choice((0, 0.3, 1, 40, 200, -0.2)), chance.choice((0, 0, 0.03))

    def record(n: int) -> bytes:
        headers = [(name, chance.randbytes(9) if own else b"v" * 9) for name in names]
        value = None if chance.random() < nulls else chance.randbytes(chance.randint(*sizes))
        return a_record(
            n,
            time=int(n * pace),
            key=sized(key),
            value=sized(value),
            headers=varlong(len(headers)) + b"".join(sized(h.encode()) + sized(v) for h, v in headers),
        )

    return [record(n) for n in range(count)]


def spoilt(records: list[bytes], chance: random.Random) -> bytes:
    """Return them with something changed: near where a record begins or ends, most of the time."""
    changed = list(map(bytearray, records))
    for _ in range(chance.choice((1, 1, 2))):
        place = chance.randrange(len(changed))
        one = changed[place]
        near = (
            chance.randrange(14),
            chance.randrange(14),
            -1 - chance.randrange(30),
            chance.randrange(len(one)),
        )
        at = max(-len(one), min(chance.choice(near), len(one) - 1))
        match chance.randrange(6):
            case 0:
                one[at] = chance.randrange(256)
            case 1:
                one[at] ^= 1 << chance.randrange(8)
            case 2:
                del one[at]
            case 3:
                one.insert(at, chance.randrange(256))
            case 4:
                changed[place] = bytearray(chance.choice(records))
            case 5:  # two lengths that agree as before
                for at in (0, *chance.choices(range(4, 7), k=2)):
                    one[min(at, len(one) - 1)] ^= chance.choice((1, 2, 3))
        if not changed[place]:
            break
    return b"".join(changed)[: None if chance.random() < 0.9 else -chance.randrange(1, 20)]


def test_records_of_changing_sizes_are_judged_as_one_by_one():
    """The same is said of them, to the last word, whatever is changed. `WALKED=200000` looks at as many."""
    chance = random.Random(seed := int(os.environ.get("WALKED_SEED", "5")))
    sound = 0
    for _ in range(int(os.environ.get("WALKED", "3000")) // 20):
        records = of_changing_sizes(chance)
        for spoil in [False] + [True] * 19:
            body = spoilt(records, chance) if spoil else b"".join(records)
            count = len(records) + (chance.random() < 0.02)
            answer = told(body, count)
            assert answer == judged_plainly(body, count, told), (seed, body, count)
            sound += isinstance(answer, int)
    assert sound


def test_of_records_of_changing_sizes_nearly_none_is_walked_over_one_by_one(monkeypatch: pytest.MonkeyPatch):
    chance, found, inner = random.Random(1), [], walk._uniform_but_in_size

    def watched(*arguments: Any) -> walk.Uniform:
        found.append(inner(*arguments))
        return found[-1]

    monkeypatch.setattr(walk, "_uniform_but_in_size", watched)
    for key, headers in ((None, ()), (b"12345678", (("h", b"w"), ("trace", b"")))):
        found.clear()
        values = [chance.randbytes(chance.randint(50, 150)) for _ in range(150)]
        batch = build_batch([Record(n, NOW + n // 3, key, value, headers) for n, value in enumerate(values)])
        assert youngest_delta(batch, HEADER_SIZE, 150) == 49
        assert sum(number for number, time, _ in found if time >= 0) >= 145


@settings(max_examples=drawn(200), deadline=None)
@given(data=st.data())
def test_what_is_walked_over_can_be_read(data: st.DataObject):
    batch = bytearray(build_batch([Record(n, NOW + n, b"k", b"v", (("h", b"w"),)) for n in range(3)]))
    at = data.draw(st.integers(HEADER_SIZE, len(batch) - 1))
    batch[at : at + 2] = data.draw(st.binary(min_size=2, max_size=2))
    batch = batch[: read_header(batch).size]

    try:
        youngest = youngest_delta(batch, HEADER_SIZE, 3)
    except Corrupt:
        return
    assert max(record.timestamp for record in records_of(batch)) == NOW + youngest


def test_columns_are_compared_instead_of_records_which_is_what_makes_it_quick():
    """Judged by counted work: the general way is gone for few of a thousand records of one size."""
    body = build_batch([Record(n, NOW + n // 2, None, b"v" * 100) for n in range(1_000)])[HEADER_SIZE:]
    reads = 0

    class Counted(bytes):
        def __getitem__(self, place):  # type: ignore[no-untyped-def]
            nonlocal reads
            reads += 1
            return super().__getitem__(place)

    assert youngest_delta(Counted(body), 0, 1_000) == 499
    assert reads < 1_000
