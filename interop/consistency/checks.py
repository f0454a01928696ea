"""What may not be in a history: pure functions, each of which yields a sentence for what it finds.

`problems` is all of them. They go by a last read of everything, when nothing fails any more, so that what is
lost is lost for good.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeAlias

from interop.consistency import registers
from interop.consistency.history import (
    BY,
    Copies,
    End,
    EndRead,
    FinalRead,
    History,
    Outcome,
    Poll,
    Send,
    Transaction,
)

__all__ = ["Problem", "problems", "read_problems", "write_problems"]

FOUND = "found.json"
Place: TypeAlias = tuple[str, int]
"""(topic, partition)"""


class Problem(NamedTuple):
    """Something that may not be."""

    kind: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence}"


def write_problems(found: list[Problem], folder: Path) -> None:
    """Keep in a run's folder what it has found so far."""
    (folder / FOUND).write_text(json.dumps(found), encoding="utf-8")


def read_problems(folder: Path) -> list[Problem] | None:
    """Return what a run has found, by its folder; None where it has not come to look."""
    try:
        return [Problem(*one) for one in json.loads((folder / FOUND).read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return None


class _Seen:
    """A history, by what the checks look for."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.sends = history.of(Send)
        self.polls = history.of(Poll)
        self.final = {
            read_committed: {
                (one.topic, one.partition): dict(one.records)
                for one in history.of(FinalRead)
                if one.read_committed is read_committed
            }
            for read_committed in (True, False)
        }
        """By isolation and place: offset -> value, at the end."""

    @cached_property
    def values(self) -> dict[bool, set[str]]:
        """By isolation: all values that are there at the end."""
        return {
            read_committed: {value for records in places.values() for value in records.values()}
            for read_committed, places in self.final.items()
        }

    @cached_property
    def ends(self) -> dict[str, End]:
        """How each transaction ended; one of which nothing is noted may have ended either way."""
        return {one.name: one.end for one in self.history.of(Transaction)}

    @cached_property
    def transactions(self) -> dict[str, list[Send]]:
        """The records of each transaction."""
        found: dict[str, list[Send]] = defaultdict(list)
        for one in self.sends:
            if one.transaction:
                found[one.transaction].append(one)
        return found


def problems(history: History) -> list[Problem]:
    """Return all that may not be in a history."""
    seen = _Seen(history)
    found = [Problem(kind, sentence) for kind, check in CHECKS.items() for sentence in check(seen)]
    return found + [Problem(kind, sentence) for kind, sentence in registers.problems(history)]


def divergent(seen: _Seen) -> Iterator[str]:
    """An offset at which two different values were acknowledged or read."""
    at: dict[tuple[str, int, int], set[str]] = defaultdict(set)
    for send in seen.sends:
        if send.offset is not None:
            at[send.topic, send.partition, send.offset].add(send.value)
    for poll in seen.polls:
        for topic, partition, offset, value in poll.records:
            at[topic, partition, offset].add(value)
    for places in seen.final.values():
        for place, records in places.items():
            for offset, value in records.items():
                at[(*place, offset)].add(value)
    for (topic, partition, offset), values in at.items():
        if len(values) > 1:
            yield f"{topic}-{partition} has {' and '.join(sorted(values))} at {offset}"


def duplicate(seen: _Seen) -> Iterator[str]:
    """A value that is there twice."""
    at: dict[str, set[tuple[str, int, int]]] = defaultdict(set)
    for (topic, partition), records in seen.final[False].items():
        for offset, value in records.items():
            at[value].add((topic, partition, offset))
    for value, places in at.items():
        if len(places) > 1:
            yield f"{value} is at {' and '.join(f'{one[0]}-{one[1]} {one[2]}' for one in sorted(places))}"


def lost(seen: _Seen) -> Iterator[str]:
    """A value that was acknowledged, or whose transaction was, and is not there."""
    for send in seen.sends:
        if send.transaction:
            if seen.ends.get(send.transaction) is End.COMMITTED and send.value not in seen.values[True]:
                yield f"{send.value} of {send.transaction}, which was committed"
        elif send.outcome is Outcome.OK and send.value not in seen.values[False]:
            yield f"{send.value}, acknowledged at {send.topic}-{send.partition} {send.offset}"


def gone(seen: _Seen) -> Iterator[str]:
    """A value that a consumer has read, and that is not there at the end."""
    for poll in seen.polls:
        for topic, partition, offset, value in poll.records:
            if value not in seen.values[poll.read_committed]:
                yield f"{poll.client} has read {value} at {topic}-{partition} {offset}"


def invented(seen: _Seen) -> Iterator[str]:
    """A value that nobody has sent."""
    sent = {one.value for one in seen.sends}
    yield from sorted(seen.values[False] - sent)


def reordered(seen: _Seen) -> Iterator[str]:
    """Values of one producer that are there in another order than it has sent them."""
    at = {
        value: (place, offset)
        for place, records in seen.final[False].items()
        for offset, value in records.items()
    }
    sent: dict[tuple[str, Place], list[tuple[int, str]]] = defaultdict(list)
    for send in sorted(seen.sends, key=lambda one: one.began):
        if send.value in at:
            place, offset = at[send.value]
            sent[send.client, place].append((offset, send.value))
    for (client, (topic, partition)), order in sent.items():
        for (before, first), (after, second) in pairwise(order):
            if after < before:
                yield f"{client} has sent {first} before {second}, in {topic}-{partition} {before}, {after}"


def skipped(seen: _Seen) -> Iterator[str]:
    """A consumer that went back, or that passed over what is there."""
    orders = {
        isolation: {place: sorted(records) for place, records in places.items()}
        for isolation, places in seen.final.items()
    }
    positions = {
        isolation: {
            place: {offset: at for at, offset in enumerate(offsets)} for place, offsets in order.items()
        }
        for isolation, order in orders.items()
    }
    next_at: dict[tuple[str, Place], int] = defaultdict(int)
    for poll in seen.polls:
        for topic, partition, offset, _ in poll.records:
            place = (topic, partition)
            position = positions[poll.read_committed].get(place, {}).get(offset)
            if position is None:
                continue  # which is gone
            expected = next_at[poll.client, place]
            if position != expected:
                missed = orders[poll.read_committed][place][expected:position][:3]
                what = f"passing over {missed}" if missed else "which it had passed"
                yield f"{poll.client} has read {topic}-{partition} {offset}, {what}"
            next_at[poll.client, place] = position + 1


def aborted_read(seen: _Seen) -> Iterator[str]:
    """A value of an aborted transaction that a read_committed consumer was given."""
    aborted = {
        send.value: name
        for name, sends in seen.transactions.items()
        if seen.ends.get(name) is End.ABORTED
        for send in sends
    }
    read = {one[3]: poll.client for poll in seen.polls if poll.read_committed for one in poll.records}
    read |= dict.fromkeys(seen.values[True], "the last read")
    for value, client in read.items():
        if value in aborted:
            yield f"{client} has {value} of {aborted[value]}"


def torn(seen: _Seen) -> Iterator[str]:
    """A transaction of which some counts and some does not."""
    for name, sends in seen.transactions.items():
        there = {one.value for one in sends} & seen.values[True]
        if there and len(there) < len(sends):
            yield f"{name}: {len(there)} of {len(sends)} are there"


def hanging(seen: _Seen) -> Iterator[str]:
    """A partition of which read_committed consumers do not reach the end, though all producers are done."""
    ends = {(one.topic, one.partition, one.read_committed): one.end for one in seen.history.of(FinalRead)}
    for (topic, partition, read_committed), end in ends.items():
        whole = ends.get((topic, partition, False), end)
        if read_committed and end < whole:
            yield f"{topic}-{partition} is read up to {end} of {whole}"


def unseen(seen: _Seen) -> Iterator[str]:
    """An end of a partition that a client was answered after a record behind it was acknowledged."""
    sends = [one for one in seen.sends if one.offset is not None and not one.transaction]
    answered = [
        (one.ended, 1, one.topic, one.partition, one.offset + 1) for one in sends if one.offset is not None
    ]
    reads = seen.history.of(EndRead)
    answered += [(one.ended, 1, one.topic, one.partition, one.offset) for one in reads]
    asked = [(one.began, 0, one.topic, one.partition, one.offset) for one in reads]
    least: dict[Place, int] = defaultdict(int)
    for _, is_answer, topic, partition, offset in sorted([*answered, *asked]):
        place = (topic, partition)
        if is_answer:
            least[place] = max(least[place], offset)
        elif offset < least[place]:
            yield f"{topic}-{partition} is said to end at {offset}, after {least[place]} was known"


def not_copied_once(seen: _Seen) -> Iterator[str]:
    """A copy, in transactions with their offsets, that is not what was committed of its source, in order."""
    for copies in seen.history.of(Copies):
        done = registers.last_offsets(seen.history, copies.group)
        for (topic, partition), records in seen.final[True].items():
            if topic != copies.source:
                continue
            committed = max(done.get((topic, partition), 0), 0)
            expected = [value for offset, value in sorted(records.items()) if offset < committed]
            target = seen.final[True].get((copies.target, partition), {})
            found = [value.partition(BY)[0] for _, value in sorted(target.items())]
            if found != expected:
                yield _difference(copies, partition, expected, found)


def _difference(copies: Copies, partition: int, expected: list[str], found: list[str]) -> str:
    where = f"{copies.target}-{partition}, of {len(expected)}"
    if missing := sorted({*expected} - {*found}):
        return f"{where}: {len(missing)} are missing, such as {missing[0]}"
    if more := sorted({*found} - {*expected}):
        return f"{where}: {len(more)} are there that were not committed, such as {more[0]}"
    if len(found) > len(expected):
        return f"{where}: {len(found) - len(expected)} are there twice"
    return f"{where}: they are in another order"


CHECKS: dict[str, Callable[[_Seen], Iterator[str]]] = {
    "divergent": divergent,
    "duplicate": duplicate,
    "lost": lost,
    "gone": gone,
    "invented": invented,
    "reordered": reordered,
    "skipped": skipped,
    "aborted read": aborted_read,
    "torn": torn,
    "hanging": hanging,
    "unseen": unseen,
    "not copied once": not_copied_once,
}
