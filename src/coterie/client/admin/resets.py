"""Where a group's offsets can be set to: all the forms of Kafka's tool, and what each comes to. Pure."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.base.settings.durations import iso_duration_ms
from coterie.base.whole import whole_number


@dataclass(frozen=True, slots=True)
class ToEarliest:
    """To the first record that there is."""


@dataclass(frozen=True, slots=True)
class ToLatest:
    """To the end: only what comes from now on."""


@dataclass(frozen=True, slots=True)
class ToCurrent:
    """To where it is; where nothing is committed, to the end."""


@dataclass(frozen=True, slots=True)
class ToOffset:
    """To one offset, the same in every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """So many records forward, or back if it is negative."""

    by: int


@dataclass(frozen=True, slots=True)
class ToTime:
    """To the first record of that time or later; to the end where there is none."""

    ms: int


@dataclass(frozen=True, slots=True)
class ByDuration:
    """To the first record that is no older than this."""

    ms: int


@dataclass(frozen=True, slots=True)
class FromFile:
    """To what a file says."""

    offsets: Mapping[TopicPartition, int]


Reset: TypeAlias = ToEarliest | ToLatest | ToCurrent | ToOffset | ShiftBy | ToTime | ByDuration | FromFile


class Known(NamedTuple):
    """What a cluster says of a partition: its range, what is committed, and the first offset at a time."""

    earliest: int
    latest: int
    committed: int | None
    at_time: int | None = None  # None also if no record is that young


class Move(NamedTuple):
    """One partition's offset before and after; `note` says what stood in the way of the one asked for."""

    partition: TopicPartition
    before: int | None
    after: int
    note: str = ""


def moves_of(reset: Reset, known: Mapping[TopicPartition, Known]) -> list[Move]:
    """Return each partition's offset before and after the reset."""
    return [_move(reset, partition, known[partition]) for partition in sorted(known)]


def _move(reset: Reset, partition: TopicPartition, known: Known) -> Move:
    after, note = known.latest, ""
    match reset:
        case ToEarliest():
            after = known.earliest
        case ToLatest():
            pass
        case ToCurrent() if known.committed is not None:
            after = known.committed
        case ToCurrent():
            note = "nothing was committed: the end"
        case ToOffset(offset):
            after, note = _within(offset, known)
        case ShiftBy(by):
            after, note = _within(_committed(partition, known) + by, known)
        case ToTime() | ByDuration() if known.at_time is not None:
            after = known.at_time
        case ToTime() | ByDuration():
            note = "no record is that young: the end"
        case FromFile(offsets):
            after, note = _within(offsets[partition], known)
    return Move(partition, known.committed, after, note)


def _within(offset: int, known: Known) -> tuple[int, str]:
    """Return the offset, or the end of the log that is nearest to it."""
    if offset > known.latest:
        return known.latest, f"{offset} is past the end"
    if offset < known.earliest:
        return known.earliest, f"{offset} is before the first record"
    return offset, ""


def _committed(partition: TopicPartition, known: Known) -> int:
    if known.committed is None:
        raise CoterieError(
            f"the group has committed nothing for {partition}, so there is nothing to shift; "
            "reset it to an offset, a time, the beginning or the end"
        )
    return known.committed


# -- as people write them


def time_ms(text: str) -> int:
    """Return the time of an ISO 8601 text in ms: 2026-11-21T13:00:00.000. Without a zone it is UTC."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise CoterieError(f"{text!r} is no time; write it like 2026-11-21T13:00:00.000+01:00") from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def duration_ms(text: str) -> int:
    """Return an ISO 8601 duration in ms: P1DT2H30M is a day, two hours and a half."""
    try:
        return iso_duration_ms(text)
    except ValueError as error:
        raise CoterieError(str(error)) from None


def file_of(lines: Iterable[str], group_id: str) -> FromFile:
    """Return the offsets in lines `topic,partition,offset`, or in the group's among `group,topic,...`.

    Kafka's tool and `coterie groups reset --export` write them.
    """
    offsets: dict[TopicPartition, int] = {}
    for number, fields in enumerate(fields_of(lines), start=1):
        if not fields:
            continue
        if len(fields) == 4 and fields[0] != group_id:
            continue
        try:
            if len(fields) not in (3, 4):
                raise ValueError(fields)
            topic, partition, offset = fields[-3:]
            offsets[TopicPartition(topic, _whole(partition))] = _whole(offset)
        except ValueError:
            raise CoterieError(
                f"line {number} of the file is {','.join(fields)!r}; write topic,partition,offset"
            ) from None
    if not offsets:
        raise CoterieError(f"the file has no line for group {group_id}; write topic,partition,offset")
    return FromFile(offsets)


def fields_of(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the fields of each line, or raise CoterieError for what has none."""
    try:
        yield from csv.reader(lines)
    except csv.Error as error:
        raise CoterieError(f"the file has no lines of topic,partition,offset: {error}") from None


def _whole(text: str) -> int:
    number = whole_number(text.strip())
    if number is None or number < 0:
        raise ValueError(text)
    return number


def partitions_of(words: Iterable[str], count: Callable[[str], int]) -> list[TopicPartition]:
    """Return the partitions that words name: TOPIC is all there are by `count`, TOPIC:0,2 are those."""
    found: list[TopicPartition] = []
    for word in words:
        topic, colon, numbers = word.rpartition(":")
        if not colon:
            found += (TopicPartition(word, number) for number in range(count(word)))
            continue
        try:
            found += (TopicPartition(topic, _whole(number)) for number in numbers.split(","))
        except ValueError:
            raise CoterieError(f"{word!r} names no partitions; write TOPIC or TOPIC:0,2") from None
    return sorted(set(found))
