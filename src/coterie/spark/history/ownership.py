"""Who owned what, of many groups at once and in columns: what `coterie.history.ownership` tells one by one.

Python notes who sat in which generation and until when; shares become partitions, tenures, moves and
stand-stills in numpy. Groups of KIP-848, and those with static replacements, are told one by one instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coterie.base.ids import TopicPartition
from coterie.history.activity import HELD_TIMES
from coterie.history.causes import Chapter
from coterie.history.group import Outline
from coterie.history.log.members import Seat, numbers_by_topic
from coterie.history.ownership import (
    BURST,
    BUSY_BURST,
    BUSY_TIMES,
    SILENT_TIMES,
    STALL_LEAST_MS,
    part_least_ms,
)
from coterie.spark.history.schemas import STAMP, batch_of, stamps

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

OPEN = NEVER = -(2**62)
NO_OWNER, NO_PROGRESS = 0, 1
IDENTITY = attrgetter("member_id", "client_id", "host", "instance_id")
KINDS = pa.array(["no-owner", "no-progress"])


class Shares:
    """Numbers the sets of partitions that members have: a group has the same again and again."""

    def __init__(self) -> None:
        self.numbers: dict[frozenset[TopicPartition], int] = {}

    def ranked(self) -> tuple[list[TopicPartition], Ints, Ints]:
        """Return all partitions in their order, those of all shares by their rank, and where each begins."""
        known = sorted({one for share in self.numbers for one in share})
        ranks = {one: rank for rank, one in enumerate(known)}
        flat = np.array([ranks[one] for share in self.numbers for one in sorted(share)], np.int64)
        sizes = [len(share) for share in self.numbers]
        return known, flat, np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))


class Spans(NamedTuple):
    """Runs in columns, as far as stand-stills need them, each group's in the order of the log."""

    group: Ints
    topics: Sequence[str]
    topic: Ints
    """As a place in `topics`."""
    partition: Ints
    count: Ints  # type: ignore[assignment]
    first_ms: Ints
    last_ms: Ints
    first: Ints
    last: Ints
    silent_from_ms: Ints
    silent_to_ms: Ints
    silent_before: Ints
    silent_after: Ints


class Register:
    """Takes outlines of groups; gives back their tables of assignments, ownership, moves and stalls."""

    def __init__(self) -> None:
        self.shares = Shares()
        self.groups: list[str] = []
        self.ended_ms: list[int] = []
        """When each group ended, OPEN where it goes on."""
        self.chapters: list[tuple[int, int, int, int]] = []
        """Group, generation, when it was formed, and 1 if no other followed it in this life of the group."""
        self.seats: list[tuple[int, int, int, int, int]] = []
        """Chapter, share, what was still owned, until when, and since when it was silent before that."""
        self.who: list[Seat] = []

    def add(self, outline: Outline) -> int:
        """Take a group, each of whose generations was stored once; return its number."""
        number = len(self.groups)
        self.groups.append(outline.group_id)
        ended_ms = outline.ended_ms
        self.ended_ms.append(OPEN if ended_ms is None else ended_ms)
        for place, chapter in enumerate(outline.chapters):
            self._sit(number, chapter, outline.until(place))
        return number

    def _sit(self, group: int, sat: Chapter, until: dict[str, tuple[int, int | None]]) -> None:
        chapter, formed = len(self.chapters), sat.first
        self.chapters.append((group, formed.generation, formed.formed_ms, int(sat.over_ms is not None)))
        numbers = self.shares.numbers
        for seat in formed.seats.values():
            to_ms, silent_ms = until.get(seat.member_id, (OPEN, None))
            mine = numbers.setdefault(seat.assigned, len(numbers))
            owned = numbers.setdefault(seat.owned, len(numbers))
            self.seats.append((chapter, mine, owned, to_ms, NEVER if silent_ms is None else silent_ms))
            self.who.append(seat)

    def tables(self, spans: Spans) -> dict[str, pa.RecordBatch]:
        """Return the rows of the four tables."""
        return Tables(self, spans).all()


class Tenures(NamedTuple):
    """Stretches of ownership, sorted by group, partition and time. Places are those of seats."""

    where: Ints
    taker: Ints
    keeper: Ints
    from_ms: Ints
    to_ms: Ints


class Moved(NamedTuple):
    """Partitions that changed hands, from seat to seat, in the order of their groups' generations."""

    where: Ints
    giver: Ints
    taker: Ints


class Stalls(NamedTuple):
    """Stand-stills; `member` is the place of a seat, or -1."""

    where: Ints
    kind: Ints
    from_ms: Ints
    to_ms: Ints
    generation: Ints
    member: Ints


class Tables:
    """Works out the tables of what a register holds."""

    def __init__(self, register: Register, spans: Spans) -> None:
        self.groups = pa.array(register.groups, pa.string())
        self.ended_ms = np.array(register.ended_ms, np.int64)
        self.known, self.flat, self.starts = register.shares.ranked()
        self.shares = list(register.shares.numbers)
        group, generation, formed, over = columns(register.chapters, 4)
        self.group, self.generation, self.formed_ms, self.over = group, generation, formed, over
        self.chapter, self.share, self.owned, self.until_ms, self.silent_ms = columns(register.seats, 5)
        texts = [pa.array(column, pa.string()) for column in zip(*map(IDENTITY, register.who), strict=True)]
        ids, self.clients, self.hosts, instances = texts or [pa.array([], pa.string())] * 4
        self.member, self.member_ids = numbered(ids)
        self.instance, self.instance_ids = numbered(instances)
        self.who, self.spans = register.who, spans
        self.topics = pa.array([topic for topic, _ in self.known], pa.string())
        self.partitions = np.array([number for _, number in self.known], np.int64)

    def all(self) -> dict[str, pa.RecordBatch]:
        tenures, moved = self._tenures()
        return {
            "assignments": self._assignments(),
            "ownership": self._ownership(tenures),
            "stalls": self._stalls(tenures),
            "moves": self._moves(moved),
        }

    # -- tenures

    def _expanded(self, shares: Ints) -> tuple[Ints, Ints]:
        """Return the seats with all that is in these shares of theirs, a row a partition."""
        sizes = (self.starts[1:] - self.starts[:-1])[shares]
        seats = np.repeat(np.arange(len(shares)), sizes)
        ends_at = np.cumsum(sizes)
        within = np.arange(len(seats)) - np.repeat(ends_at - sizes, sizes)
        return seats, self.flat[self.starts[shares][seats] + within]

    def _tenures(self) -> tuple[Tenures, Moved]:
        """Return all tenures, and those that followed one of another member."""
        width = max(len(self.known), 1)
        seat, rank = self._expanded(self.share)
        if not len(seat):
            return Tenures(seat, seat, seat, seat, seat), Moved(seat, seat, seat)
        where = self.group[self.chapter[seat]] * width + rank
        order = np.lexsort((seat, where))  # seats are in the order of their chapters
        seat, where = seat[order], where[order]
        chapter = self.chapter[seat]
        twice = (where[1:] == where[:-1]) & (chapter[1:] == chapter[:-1])
        alone = np.append(~twice, True)  # two had it, against all rules: the last counts
        seat, where, chapter = seat[alone], where[alone], chapter[alone]
        member = self.member[seat]
        same = where[1:] == where[:-1]
        kept = same & (chapter[1:] == chapter[:-1] + 1) & (member[1:] == member[:-1])
        kept &= self._still_owned(seat[1:], where[1:] % width) & (self.over[chapter[:-1]] == 0)
        starts = np.flatnonzero(np.concatenate(([True], ~kept)))
        last = np.append(starts[1:], len(seat)) - 1
        taker, keeper, spot = seat[starts], seat[last], where[starts]
        from_ms = self.formed_ms[chapter[starts]]
        until = self.until_ms[keeper]
        to_ms = np.where(until == OPEN, OPEN, np.maximum(until, from_ms))
        other = self.member[taker][1:] != self.member[taker][:-1]
        moved = np.flatnonzero((spot[1:] == spot[:-1]) & other) + 1
        moves = Moved(spot[moved], taker[moved - 1], taker[moved])
        sort = np.lexsort((from_ms, spot))
        return Tenures(spot[sort], taker[sort], keeper[sort], from_ms[sort], to_ms[sort]), moves

    def _still_owned(self, seat: Ints, rank: Ints) -> Flags:
        """Return whether the members said, as they joined, that they still had the partition."""
        width = max(len(self.known), 1)
        who, what = self._expanded(self.owned)
        return np.isin(seat * width + rank, who * width + what)

    # -- stand-stills

    def _dead(self, tenures: Tenures) -> Stalls:
        """Return what stood still as its owner was no more, and was not missed yet."""
        silent, until = self.silent_ms[tenures.keeper], self.until_ms[tenures.keeper]
        at = np.flatnonzero((silent != NEVER) & (until != OPEN) & (silent < until))
        keeper = tenures.keeper[at]
        kind = np.full(len(at), NO_PROGRESS)
        generation = self.generation[self.chapter[keeper]]
        return Stalls(tenures.where[at], kind, silent[at], until[at], generation, keeper)

    def _gaps(self, tenures: Tenures) -> Stalls:
        """Return the time between one owner and the next."""
        follows = tenures.where[1:] == tenures.where[:-1]
        ended = tenures.to_ms[:-1] != OPEN
        at = np.flatnonzero(follows & ended & (tenures.to_ms[:-1] < tenures.from_ms[1:]))
        generation = self.generation[self.chapter[tenures.taker[at + 1]]]
        count = len(at)
        return Stalls(
            tenures.where[at], np.full(count, NO_OWNER), tenures.to_ms[at], tenures.from_ms[at + 1],
            generation, np.full(count, -1),
        )  # fmt: skip

    def _last(self, tenures: Tenures) -> Stalls:
        """Return the time from the last owner of each partition to the end of its group."""
        is_last = np.append(
            tenures.where[1:] != tenures.where[:-1], np.ones(min(len(tenures.where), 1), bool)
        )
        group = tenures.where // max(len(self.known), 1)
        # OPEN lies before all times: what goes on has no such stretch.
        at = np.flatnonzero(is_last & (tenures.to_ms != OPEN) & (tenures.to_ms < self.ended_ms[group]))
        newest = np.zeros(len(self.ended_ms), np.int64)
        newest[self.group] = self.generation  # a group's chapters are in their order
        count = len(at)
        return Stalls(
            tenures.where[at], np.full(count, NO_OWNER), tenures.to_ms[at], self.ended_ms[group[at]],
            newest[group[at]], np.full(count, -1),
        )  # fmt: skip

    def _cut(self, tenures: Tenures, dead: Stalls) -> Stalls:
        """Return the parts of silences in which the partition had an owner; there are few."""
        known = set(zip(dead.where.tolist(), dead.to_ms.tolist(), strict=True))
        rows: list[tuple[int, int, int, int, int, int]] = []
        for where, from_ms, to_ms, formed, least_ms in self._parts():
            low, high = np.searchsorted(tenures.where, (where, where + 1)).tolist()
            low += max(0, int(np.searchsorted(tenures.from_ms[low:high], from_ms)) - 1)
            for place in range(low, high):
                begins, ends_ms = int(tenures.from_ms[place]), int(tenures.to_ms[place])
                if begins >= to_ms:
                    break
                start, stop = max(from_ms, begins), to_ms if ends_ms == OPEN else min(to_ms, ends_ms)
                joins = formed and (ends_ms == OPEN or ends_ms > to_ms)
                if stop - start >= least_ms and not joins and (where, stop) not in known:
                    taker = int(tenures.taker[place])
                    generation = int(self.generation[self.chapter[taker]])
                    rows.append((where, NO_PROGRESS, start, stop, generation, taker))
        return Stalls(*columns(rows, 6))

    def _parts(self) -> Iterator[tuple[int, int, int, bool, int]]:
        """Yield silences in parts, whether each ends with a new generation (`ownership.parts_of`), and how
        long one must be.
        """
        order = np.lexsort((self.formed_ms, self.group))
        group, formed = self.group[order], self.formed_ms[order]
        for where, from_ms, to_ms, least_ms in self._silences():
            low, high = np.searchsorted(group, where // max(len(self.known), 1) + np.arange(2)).tolist()
            mine = formed[low:high]
            first, last = np.searchsorted(mine, from_ms, "right"), np.searchsorted(mine, to_ms)
            ends_ms = [*mine[first:last].tolist(), to_ms]
            for start, stop in zip([from_ms, *ends_ms], ends_ms, strict=False):
                yield where, start, stop, stop != to_ms, least_ms

    def _silences(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield where and when nothing was committed although records waited (`ownership.silences`), and how
        long a part of that must be to tell anything.
        """
        spans = self.spans
        ranks = {one: rank for rank, one in enumerate(self.known)}
        pairs, which = np.unique(spans.topic << 32 | spans.partition, return_inverse=True)
        named = ((spans.topics[pair >> 32], pair & 0xFFFFFFFF) for pair in pairs.tolist())
        rank = np.array([ranks.get(TopicPartition(*one), -1) for one in named], np.int64)[which]
        where = np.where(rank >= 0, spans.group * max(len(self.known), 1) + rank, -1)
        order = np.argsort(where, kind="stable")
        order = order[where[order] >= 0]
        where = where[order]
        count, first_ms, last_ms, first, last, quiet_ms, loud_ms, before, after = (
            column[order] for column in spans[4:]
        )
        if not len(where):
            return
        spoken_ms = last_ms - first_ms - (loud_ms - quiet_ms)
        tells = (count >= 4) & (spoken_ms > 0)
        read = np.maximum(last - first - (after - before), 0)
        safe_ms = np.where(tells, spoken_ms, 1)
        rates = np.where(tells, read / safe_ms, 0.0)
        cadences = np.where(tells, safe_ms / np.maximum(count - 2, 1), 0.0)
        begins = np.concatenate(([True], where[1:] != where[:-1]))
        known = told_before(tells, begins)
        cadence = np.where(known >= 0, cadences[known], 0.0)
        rate = np.where(known >= 0, rates[known], 0.0)
        half = (cadence / 2).astype(np.int64)
        quiet = loud_ms - quiet_ms
        inside = waited(quiet, after - before, rate, cadence)
        late = (loud_ms == last_ms) & (
            (after - before) * np.maximum(count - 2, 1) <= HELD_TIMES * read
        )  # `presence.gave_up_late`
        ends = np.roll(begins, -1) | ~late
        inside |= waited(quiet, np.roll(first, -1) - before, rate, cadence) & ~ends
        gap_ms = first_ms - np.roll(last_ms, 1)
        between = waited(gap_ms, first - np.roll(last, 1), np.roll(rate, 1), np.roll(cadence, 1)) & ~begins
        for place in np.flatnonzero(inside | between).tolist():
            if between[place]:
                from_ms = int(last_ms[place - 1] + half[place - 1])
                least_ms = least_of(int(gap_ms[place]), float(cadence[place - 1]))
                yield int(where[place]), from_ms, int(first_ms[place]), least_ms
            if inside[place]:
                from_ms = int(quiet_ms[place] + half[place])
                least_ms = least_of(int(quiet[place]), float(cadence[place]))
                yield int(where[place]), from_ms, int(loud_ms[place]), least_ms

    # -- rows

    def _stalls(self, tenures: Tenures) -> pa.RecordBatch:
        dead = self._dead(tenures)
        parts = (dead, self._gaps(tenures), self._last(tenures), self._cut(tenures, dead))
        found = Stalls(*(np.concatenate(each) for each in zip(*parts, strict=True)))
        order = np.lexsort((found.kind, found.from_ms, found.where))
        found = Stalls(*(column[order] for column in found))
        nobody = found.member < 0
        members = pa.array(self.member[np.where(nobody, 0, found.member)], mask=nobody)
        return batch_of(
            self._where(found.where)
            | {
                "kind": KINDS.take(pa.array(found.kind)),
                "from": stamped(found.from_ms),
                "to": stamped(found.to_ms),
                "generation": pa.array(found.generation, pa.int32()),
                "member_id": self.member_ids.take(members),
            },
            "stalls",
        )

    def _ownership(self, tenures: Tenures) -> pa.RecordBatch:
        who = tenures.taker
        return batch_of(
            self._where(tenures.where)
            | {
                "owner": self.member_ids.take(pa.array(self.member[who])),
                "client_id": self.clients.take(pa.array(who)),
                "instance_id": self.instance_ids.take(pa.array(self.instance[who])),
                "generation": pa.array(self.generation[self.chapter[who]], pa.int32()),
                "from": stamped(tenures.from_ms),
                "to": stamped(tenures.to_ms, missing=tenures.to_ms == OPEN),
            },
            "ownership",
        )

    def _moves(self, moved: Moved) -> pa.RecordBatch:
        where, giver, taker = moved
        chapter = self.chapter[taker]
        at_ms, generation = self.formed_ms[chapter], self.generation[chapter]
        order = np.lexsort((where, generation, at_ms, self.group[chapter]))
        giver, taker, where = giver[order], taker[order], where[order]
        nameless = self.instance_ids.is_null().to_numpy(zero_copy_only=False)[self.instance]
        same_place = same_text(self.clients, giver, taker) & same_text(self.hosts, giver, taker)
        same_instance = self.instance[giver] == self.instance[taker]
        same = np.where(nameless[giver] & nameless[taker], same_place, same_instance)
        return batch_of(
            self._where(where)
            | {
                "generation": pa.array(generation[order], pa.int32()),
                "at": stamped(at_ms[order]),
                "from_member": self.member_ids.take(pa.array(self.member[giver])),
                "to_member": self.member_ids.take(pa.array(self.member[taker])),
                "same_client": pa.array(same),
            },
            "moves",
        )

    def _assignments(self) -> pa.RecordBatch:
        """Return what each member had, a row a topic; one row without a topic if it had nothing."""
        rows = [numbers_by_topic(share) or (("", ()),) for share in self.shares]
        begins = np.concatenate(([0], np.cumsum([len(one) for one in rows], dtype=np.int64)))
        sizes = (begins[1:] - begins[:-1])[self.share]
        seat = np.repeat(np.arange(len(self.share)), sizes)
        within = np.arange(len(seat)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        row = pa.array(begins[self.share][seat] + within)
        flat = list(chain.from_iterable(rows))
        chapter, at = self.chapter[seat], pa.array(seat)
        who = self.who
        return batch_of(
            {
                "group_id": self.groups.take(pa.array(self.group[chapter])),
                "generation": pa.array(self.generation[chapter], pa.int32()),
                "formed_at": stamped(self.formed_ms[chapter]),
                "member_id": self.member_ids.take(pa.array(self.member[seat])),
                "client_id": self.clients.take(at),
                "client_host": self.hosts.take(at),
                "instance_id": self.instance_ids.take(pa.array(self.instance[seat])),
                "session_timeout_ms": pa.array([one.session_ms for one in who], pa.int64()).take(at),
                "rebalance_timeout_ms": pa.array([one.rebalance_ms for one in who], pa.int64()).take(at),
                "topic": pa.array([topic for topic, _ in flat], pa.string()).take(row),
                "partitions": pa.array([numbers for _, numbers in flat], pa.list_(pa.int32())).take(row),
            },
            "assignments",
        )

    def _where(self, where: Ints) -> dict[str, pa.Array]:
        """Return the columns that say of which group and partition a row is."""
        group, rank = np.divmod(where, max(len(self.known), 1))
        return {
            "group_id": self.groups.take(pa.array(group)),
            "topic": self.topics.take(pa.array(rank)),
            "partition": pa.array(self.partitions[rank], pa.int32()),
        }


def columns(rows: Sequence[tuple[int, ...]], width: int) -> Ints:
    """Return rows of numbers as columns."""
    if not rows:
        return np.zeros((width, 0), np.int64)
    return np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * width).reshape(-1, width).T


def numbered(texts: pa.Array) -> tuple[Ints, pa.Array]:
    """Return the number of each text, and the different ones; null is one of them."""
    encoded = texts.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary


def same_text(texts: pa.Array, some: Ints, others: Ints) -> Flags:
    """Return whether the texts at these places are the same."""
    same = pc.equal(texts.take(pa.array(some)), texts.take(pa.array(others)))
    found: Flags = same.to_numpy(zero_copy_only=False)
    return found


def told_before(tells: Flags, begins: Flags) -> Ints:
    """Return the last row up to each that tells something of the same partition, -1 for none."""
    rows = np.arange(len(tells))
    last = np.maximum.accumulate(np.where(tells, rows, -1))
    start = np.maximum.accumulate(np.where(begins, rows, 0))
    return np.where(last >= start, last, -1)


def least_of(length_ms: int, cadence_ms: float) -> int:
    """Return how long a part of a silence must be."""
    return STALL_LEAST_MS if length_ms >= SILENT_TIMES * cadence_ms else part_least_ms(cadence_ms)


def waited(
    length_ms: Ints, brought: Ints, rate: npt.NDArray[np.float64], cadence: npt.NDArray[np.float64]
) -> Flags:
    """Return which silences were long, and left more waiting than a moment brings."""
    long = length_ms >= np.maximum(STALL_LEAST_MS, BUSY_TIMES * cadence)
    burst = np.where(length_ms >= SILENT_TIMES * cadence, BURST, BUSY_BURST)
    waiting: Flags = long & (rate > 0.0) & (brought >= burst * rate * length_ms)
    return waiting


def stamped(ms: Ints, missing: Flags | None = None) -> pa.Array:
    """Return milliseconds as timestamps."""
    if missing is None or not missing.any():
        return stamps(ms)
    return pa.array(np.where(missing, 0, ms) * 1000, pa.int64(), mask=missing).cast(STAMP)
