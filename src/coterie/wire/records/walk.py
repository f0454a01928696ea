"""Whether the records of a batch are whole, one after the other up to its end, without taking them out.

Who reads a batch goes by its count and by the lengths in it: what does not fit stops every consumer of the
partition. Every record of every producer is walked over, so this is written for speed: numbers of one and of
two bytes are read in place, records that are alike are compared by the column, as far as they are, and
batches of a known form with that.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from coterie.base.errors import Corrupt
from coterie.wire.varints import FIRST_DIGITS, ONE_DIGIT_UNTIL, SECOND_DIGITS, TWO_DIGITS_UNTIL

Bytes: TypeAlias = bytes | bytearray

INT_BYTES, LONG_BYTES = 5, 10
TWO_BYTES_MOST = (1 << 14) - 1
UNIFORM_FROM = 8  # so many records are worth a look by the column, which is not tried more often either
WORTH_FROM = 24  # so many are worth the next look at once, and fewer a longer wait for it
UNIFORM_MOST = 256  # at a time
FORMS_MOST, LEARNT_MOST = 256, 256  # forms that are kept, and records of a batch whose form is
# The first bytes of zig-zag numbers that are not negative: of one byte, and of more.
EVEN, GOES_ON_EVEN = bytes(range(0, 128, 2)), bytes(range(128, 256, 2))
# By a time of one byte, zig-zag: those up to it that are not before the base either; of others none.
NOT_AFTER = tuple(bytes(range(0, n + 1, 2)) if n in EVEN else b"" for n in range(256))


class EndlessLength(Corrupt):
    """The length of a record goes on for longer than a length can."""


class FormRun(NamedTuple):
    """Records of one form that follow each other: where the first and its parts begin, and how many.

    The first record is `size` bytes long, and so are the others.
    """

    begin: int
    time_at: int
    delta_at: int
    key_at: int
    value_at: int
    headers_at: int
    size: int
    number: int


class Form(NamedTuple):
    """What a batch looked like that was walked over: all that the walk went by, but for the times.

    A batch that has the same bytes in the same places is as sound.
    """

    framing_of: Callable[[Bytes], tuple[Bytes, ...]]
    framing: tuple[bytes, ...]
    times: tuple[slice, ...]


# How many records are alike, the time of the youngest, and where they end. With a time below 0 so many only
# seemed to be, and nothing is known of them.
Uniform: TypeAlias = tuple[int, int, int]
NONE_UNIFORM = 0, -1, 0

# By length, start and count: the forms of batches that came more than once; None came once.
_forms: dict[tuple[int, int, int], Form | None] = {}


def youngest_delta(data: Bytes, at: int, count: int) -> int:
    """Return by how much the youngest of `count` records, which fill `data` from `at` on, is after the base.

    Raises Corrupt where they do not, or where a record's offset is one of as many. As in Kafka, an
    offset may come twice, and the name of a header need not be text.
    """
    key = len(data), at, count
    form = _forms.get(key) if count >= UNIFORM_FROM else None
    if form is not None and (youngest := _youngest_by(form, data)) >= 0:
        return youngest
    try:
        youngest, at, runs = _walked(data, at, count)
    except IndexError:
        raise Corrupt("record", at=len(data), expected="a whole one") from None
    if at != len(data):
        raise Corrupt("batch", at=at, expected=f"{count} records and no more")
    if form is None and runs and count <= LEARNT_MOST and sum(run.number for run in runs) == count:
        _learn(key, data, runs)
    return youngest


def _youngest_by(form: Form, data: Bytes) -> int:
    """Return the youngest delta of a batch of this form, -1 of any other."""
    if form.framing_of(data) != form.framing:
        return -1
    youngest = -1
    for places in form.times:
        times = data[places]
        last = times[-1]
        if times.strip(NOT_AFTER[last]):  # nearly always the last is the youngest
            if times.strip(EVEN):
                return -1
            last = max(times)
        if last > youngest:
            youngest = last
    return youngest >> 1


def _learn(key: tuple[int, int, int], data: Bytes, runs: list[FormRun]) -> None:
    """Keep what a sound batch looks like, all of whose records are in `runs`, when its like came before."""
    if key not in _forms:
        if len(_forms) >= FORMS_MOST:
            _forms.clear()
        _forms[key] = None
        return
    framing, times = [], []
    for run in runs:
        end = run.begin + run.size * run.number
        if run.delta_at != run.time_at + 1:
            return
        places = [*range(run.begin, run.time_at - 1), *range(run.delta_at, run.key_at), run.headers_at]
        for place in (run.key_at, run.value_at):
            places.append(place)
            while data[place] > 127:
                place += 1
                places.append(place)
        framing += [slice(place, end, run.size) for place in places]
        times.append(slice(run.time_at, end, run.size))
    framing_of = itemgetter(*framing)
    _forms[key] = Form(framing_of, tuple(map(bytes, framing_of(data))), tuple(times))


def _walked(data: Bytes, at: int, count: int) -> tuple[int, int, list[FormRun]]:
    """Return the youngest delta, the end of the last record, and the runs. Numbers stay zig-zag."""
    end, last = len(data), count - 1 << 1
    youngest, before = -1, 1 << 64  # of the times from the base on, and of those before it
    walked, look_from, wait = 0, 0, 1
    runs: list[FormRun] = []
    while walked < count:
        begin = at
        length = data[at]
        at += 1
        if length > 127:
            length, at = length + (data[at] << 7) - 128, at + 1
            if length > TWO_BYTES_MOST:
                length, at = _number(data, begin, INT_BYTES, EndlessLength)
        stop = at + (length >> 1)
        if length & 1 or stop > end:
            raise Corrupt("record", at=begin, expected="a length that is there")
        time_at, at = at + 1, at + 2
        time = data[time_at]
        if time > 127:
            time, at = _number(data, time_at, LONG_BYTES)
        if time & 1:
            before = min(before, time)
        elif time > youngest:
            youngest = time
        delta_at, at = at, at + 1
        delta = data[delta_at]
        if delta > 127:
            delta, at = delta + (data[at] << 7) - 128, at + 1
            if delta > TWO_BYTES_MOST:
                delta, at = _number(data, delta_at, INT_BYTES)
        if delta > last or delta & 1:
            raise Corrupt("record", at=begin, expected="an offset within its batch")
        key_at, at = at, at + 1
        key = data[key_at]
        if key > 127:
            key, at = _number(data, key_at, INT_BYTES)
        if not key & 1:
            at += key >> 1
        value_at, at = at, at + 1
        value = data[value_at]
        if value > 127:
            value, at = value + (data[at] << 7) - 128, at + 1
            if value > TWO_BYTES_MOST:
                value, at = _number(data, value_at, INT_BYTES)
        if not value & 1:
            at += value >> 1
        if at + 1 != stop or data[at]:
            _walk_headers(data, at, stop)
        headers_at, at = at, stop
        walked += 1
        if walked >= look_from and count - walked >= UNIFORM_FROM:
            run = FormRun(begin, time_at, delta_at, key_at, value_at, headers_at, at - begin, count - walked)
            number, time, end_of_them = _followers(data, run, walked, runs)
            look_from = count if time < 0 < number else walked + max(number, wait)
            wait = 1 if number >= WORTH_FROM else 4 * wait
            if time >= 0:
                youngest, walked, at = max(youngest, time), walked + number, end_of_them
    return youngest >> 1 if youngest >= 0 else -(before + 1 >> 1), at, runs


def _followers(data: Bytes, run: FormRun, walked: int, runs: list[FormRun]) -> Uniform:
    """Return the records that are alike, at least but for sizes; those of one size are added to `runs`."""
    if data[run.begin] == data[run.begin + run.size]:
        uniform = _uniform(data, run, walked)
        if uniform[0]:
            runs.append(run._replace(number=1 + uniform[0]))
            return uniform
    return _uniform_but_in_size(data, run, walked)


def _uniform(data: Bytes, run: FormRun, walked: int) -> Uniform:
    """Return the records that are of one form with the one at which `run` begins.

    That one is the last of those `walked`, and sound: so is what has the same lengths in the same places. The
    run's `number` is how many records follow at most.
    """
    begin, time_at, delta_at, key_at, value_at, headers_at, size, _ = run
    most = min(_most(run, walked), (len(data) - begin) // size - 1, UNIFORM_MOST)
    if most < UNIFORM_FROM or headers_at != begin + size - 1:
        return NONE_UNIFORM
    for place in (begin, key_at, value_at, headers_at):
        while True:
            byte = data[place]
            column = data[place + size : place + most * size + 1 : size]
            if column.count(byte) != most:
                most -= len(column.lstrip(bytes((byte,))))
                if most < UNIFORM_FROM:
                    return NONE_UNIFORM
            if byte < 128:
                break
            place += 1
    end = begin + (most + 1) * size
    youngest = _youngest_in(data, (time_at + size, delta_at + size, key_at + size), size, end, walked)
    return (most, youngest, end) if youngest >= 0 else NONE_UNIFORM


def _uniform_but_in_size(data: Bytes, run: FormRun, walked: int) -> Uniform:
    """Return the followers whose values are of any size and headers of any content, as long as before.

    One by one only the lengths of a record and its value are looked at, which have to differ by as much as
    before, and its headers. What is before its value is put aside, and compared by the column.
    """
    begin, time_at, delta_at, key_at, value_at, headers_at, size, _ = run
    at = end = begin + size
    behind, headers = end - headers_at, data[headers_at:end]
    ahead = value_at - time_at + 2  # from the last byte of the record's length on
    # By so much the two lengths differ (zig-zag): the value's is of one byte, or of two and less 128.
    around = 2 * (ahead + behind)
    around_two = around + 2 - 128
    heads: list[Bytes] = []
    others: list[int] = []  # where other headers end
    lengths = 0
    try:
        for _ in range(_most(run, walked)):
            length = data[at]
            if length > 127:
                at += 1
                length += (data[at] << 7) - 128
            value_at = at + ahead
            value = data[value_at]
            if value > 127:
                if length - value - (data[value_at + 1] << 7) != around_two:
                    break
            elif length - value != around:
                break
            stop = at + 1 + (length >> 1)
            if (behind > 1 or data[stop - 1]) and data[stop - behind : stop] != headers:
                others.append(stop)
            heads.append(data[at:value_at])
            lengths |= length
            at = end = stop
    except IndexError:
        pass  # the plain walk will come to it
    if not heads or end > len(data) or lengths & 1 or lengths > TWO_BYTES_MOST:
        return len(heads), -1, end
    columns, shift = b"".join(heads), time_at - 2
    for place in range(key_at, run.value_at):
        if columns[place - shift :: ahead].count(data[place]) != len(heads):
            return len(heads), -1, end
        if data[place] < 128:
            break
    youngest = _youngest_in(columns, (2, delta_at - shift, key_at - shift), ahead, len(columns), walked)
    if youngest < 0:
        return len(heads), -1, end
    for stop in others:
        _walk_headers(data, stop - behind, stop)
    return len(heads), youngest, end


def _most(run: FormRun, walked: int) -> int:
    """Return the number of records that may follow in one form with the last of those `walked`, at most."""
    two = walked >= ONE_DIGIT_UNTIL
    # An offset may be written in more bytes than it needs: those that follow, in fewer, are of another form.
    if run.key_at != run.delta_at + 1 + two or run.delta_at > run.time_at + 2:
        return 0
    return min(run.number, (TWO_DIGITS_UNTIL if two else ONE_DIGIT_UNTIL) - walked)


def _youngest_in(data: Bytes, at: tuple[int, int, int], size: int, end: int, walked: int) -> int:
    """Return the youngest time, -1 if one is before the base, or an offset is not that of its place.

    `at`: where in the first record its time, its offset and its key are; those of the next are `size` on.
    """
    time_at, delta_at, key_at = at
    times = data[time_at:end:size]
    until = walked + len(times)
    if data[delta_at:end:size] != FIRST_DIGITS[walked:until] or (
        key_at > delta_at + 1 and data[delta_at + 1 : end : size] != SECOND_DIGITS[walked:until]
    ):
        return -1
    if delta_at == time_at + 1:
        return -1 if times.lstrip(EVEN) else max(times)
    later = data[time_at + 1 : end : size]
    if times.lstrip(GOES_ON_EVEN) or not later.isascii():
        return -1
    second, first = max(zip(later, times, strict=True))
    return first + (second << 7) - 128


def _number(data: Bytes, at: int, longest: int, failure: type[Corrupt] = Corrupt) -> tuple[int, int]:
    """Return the zig-zag number at `at` as it is written, and where it ends, `longest` bytes on at most."""
    number = 0
    for shift in range(0, 7 * longest, 7):
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise failure("number", at=at, expected=f"at most {longest} bytes")


def _walk_headers(data: Bytes, at: int, stop: int) -> None:
    """Raise Corrupt unless the headers of a record end where it does."""
    number, at = _number(data, at, INT_BYTES)
    if number & 1 or number >> 1 > stop - at:
        raise Corrupt("record", at=at, expected="as many headers as fit")
    for _ in range(number >> 1):
        name, name_at, at = data[at], at, at + 1
        if name > 127:
            name, at = _number(data, name_at, INT_BYTES)
        at += name >> 1
        if name & 1 or at > stop:
            raise Corrupt("header", at=at, expected="a name")
        value, value_at, at = data[at], at, at + 1
        if value > 127:
            value, at = _number(data, value_at, INT_BYTES)
        if not value & 1:
            at += value >> 1
        if at > stop:
            raise Corrupt("header", at=at, expected="a value within its record")
    if at != stop:
        raise Corrupt("record", at=at, expected=f"its end at {stop}")
