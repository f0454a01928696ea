"""A shard's log read back, fast: a million commits are a million records, and the last of each key counts.

A plain commit is not taken apart. Its key's bytes find its place, and its value's bytes wait there until they
are superseded or `settle` hands them to the shard as facts. A run of a group's commits for partitions of one
topic is read by columns. Everything else (transactions, groups that are gone) settles what came before it and
goes the plain way, `Shard.load`. A property test holds the ways against each other.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from coterie.base.errors import Corrupt
from coterie.base.reasons import mark
from coterie.coordinator.group.facts import GroupCreated, OffsetsLoaded
from coterie.coordinator.group.records import group_loaded
from coterie.wire.payloads.consumer_offsets import (
    GroupMetadataKey,
    OffsetCommitKey,
    UnknownKey,
    are_plain_offset_values,
    check_offset_value,
    read_key,
    read_partition_key,
    read_sized_text,
)
from coterie.wire.records.batches import (
    CODEC_BITS,
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_STARTS,
    MAGIC,
    BatchHeader,
    Record,
    RowKind,
    read_header,
    read_marker,
    read_rows,
    records_of,
)
from coterie.wire.records.columns import LEAST, run_at
from coterie.wire.records.compression import (
    codec_of,
    decompress,
)

if TYPE_CHECKING:
    from coterie.coordinator.group.offsets.stored import Packed
    from coterie.coordinator.group.shard import Shard

HEADER = Struct(">8xi4xb4xh20xq6xi")  # length, magic, attributes, producer, count
assert HEADER.size == HEADER_SIZE

SLICE_BYTES = 1 << 16  # after this much others may have their turn: about a millisecond's work
SLICE_OFFSETS, SLICE_GROUPS = 1_000, 100
LONGEST = (1 << 14) - 1  # the longest length in two bytes of a varint, twice
TYPE_BYTES, PARTITION_BYTES = 2, 4
OFFSET_TYPES = b"\0\0", b"\0\1"
HELD_MOST = 80_000  # offsets: a dictionary that grows beyond stops the world for too long


class Loader:
    """Reads the pieces of one log, oldest first. What yields has done about a millisecond's work."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._groups: dict[str, bytes] = {}
        self._offsets: Packed = {}  # by key without its type: types 0 and 1 mean the same
        self._tables: dict[bytes, Packed] = {}  # by group, what is older than that
        self._seen: set[str] = set()  # groups whose offsets came and went: they exist all the same (OM-1)

    def read(self, piece: bytes, now_ms: int) -> Generator[None, None, int]:
        """Take in whole batches, and return the offset behind them (LO-1).

        Raises Corrupt where Kafka's loading fails (LO-7).
        """
        at = start = read = 0
        while at < len(piece):
            length, magic, attributes, producer_id, count = HEADER.unpack_from(piece, at)
            if magic != MAGIC:
                raise Corrupt(f"magic {magic}", at=at, expected=f"{MAGIC}")
            start, at = at, at + LENGTH_STARTS + length
            if attributes & CONTROL_BIT or producer_id >= 0:
                yield from self.settle(now_ms)
                if count:
                    self._read_transactional(piece, start, producer_id, attributes, now_ms)
            elif attributes & CODEC_BITS:
                body = decompress(codec_of(attributes & CODEC_BITS), piece[start + HEADER_SIZE : at])
                yield from self._read_rest(body, 0, len(body), read_header(piece, start), now_ms)
            else:
                stopped = start + HEADER_SIZE
                if count >= LEAST:
                    stopped = yield from self._read_runs(piece, stopped, at)
                stopped = self._read_plain(piece, stopped, at)
                if stopped < at:
                    yield from self._read_rest(piece, stopped, at, read_header(piece, start), now_ms)
            read += length
            if read > SLICE_BYTES:
                read = 0
                yield
                if len(self._offsets) > HELD_MOST:
                    yield from self.settle(now_ms)
        return read_header(piece, start).last_offset + 1

    def _read_transactional(
        self, piece: bytes, at: int, producer_id: int, attributes: int, now_ms: int
    ) -> None:
        """Read the commits of a transaction, or its end (OM-2, OM-3)."""
        if attributes & CONTROL_BIT:
            self._shard.end_transaction(producer_id, commit=read_marker(piece, at).commit)
        else:
            records = ((record.key or b"", record.value) for record in records_of(piece, at))
            self._shard.load(records, now_ms, producer_id=producer_id)

    def _read_runs(self, data: bytes, at: int, end: int) -> Generator[None, None, int]:
        """Note runs of commits, each for one topic of one group; return where there is none."""
        turn = at + SLICE_BYTES
        while run := _run_of_commits(data, at, end):
            if self._offsets:
                yield from sorted_out(self._offsets, self._tables)
            self._tables.setdefault(run.group, {}).update(zip(run.places, run.values, strict=True))
            at = run.end
            if at >= turn:
                turn = at + SLICE_BYTES
                yield
        return at

    def _read_plain(self, data: bytes, at: int, end: int) -> int:
        """Note plain commits, for a slice at most; return where there is a record that is none, or the end.

        This loop is what loading costs. It calls nothing: a call costs as much as a record.
        """
        offsets = self._offsets
        turn = at + SLICE_BYTES
        start = at
        try:
            while at < end and at < turn:
                start = at
                size = data[at]
                at += 1
                if size > 127:
                    size += (data[at] << 7) - 128
                    at += 1
                stop = at + (size >> 1)
                at += 1
                while data[at] > 127:  # the timestamp's delta
                    at += 1
                at += 1
                while data[at] > 127:  # the offset's delta
                    at += 1
                at += 1
                key = data[at]
                at += 1
                if key > 127:
                    key += (data[at] << 7) - 128
                    at += 1
                key_end = at + (key >> 1)
                value = data[key_end]
                value_at = key_end + 1
                if value > 127:
                    value += (data[value_at] << 7) - 128
                    value_at += 1
                value_end = value_at + (value >> 1)
                odd = size | key | value
                if odd & 1 or odd > LONGEST or value_end + 1 != stop or stop > end:
                    return start
                if data[at + 1] > 1 or data[at]:  # not of type 0 or 1
                    return start
                offsets[data[at + TYPE_BYTES : key_end]] = data[value_at:value_end]
                at = stop
        except IndexError:
            return start
        return at

    def _read_rest(self, data: bytes, at: int, end: int, header: BatchHeader, now_ms: int) -> Iterator[None]:
        """Read on where `_read_plain` stopped: a record the general way, then the plain way again."""
        while at < end:
            rows: list[Record] = []
            at = read_rows(data, at, 1, header, rows, RowKind(Record))
            key = rows[0].key
            if key is None or at > end:
                raise Corrupt("record", at=at, expected=f"a key, and its end before {end}")
            yield from self._note(key, rows[0].value, now_ms)
            at = self._read_plain(data, at, end)
            yield

    def _note(self, raw_key: bytes, value: bytes | None, now_ms: int) -> Iterator[None]:
        """Note a record of any kind."""
        key = read_key(raw_key)
        if isinstance(key, UnknownKey):
            self._shard.load([(raw_key, value)], now_ms)
        elif value is None and self._ends_something(key):
            yield from self.settle(now_ms)
            self._shard.load([(raw_key, None)], now_ms)
        elif not isinstance(key, GroupMetadataKey):
            rest = raw_key[TYPE_BYTES:]
            if value is None and self._is_held(rest):
                self._seen.add(key.group)
            self._offsets[rest] = value
        elif value is not None:
            self._groups[key.group] = value

    def _ends_something(self, key: GroupMetadataKey | OffsetCommitKey) -> bool:
        """Return whether a tombstone takes more along than what stood there: a group, or what transactions
        committed (OM-7). A later record of its key must not stand for it.
        """
        if isinstance(key, GroupMetadataKey):
            return True
        return bool(self._shard.pending.of((key.group, key.topic, key.partition)))

    def _is_held(self, rest: bytes) -> bool:
        """Return whether there is a commit at the place of a key without its type."""
        if rest in self._offsets:
            return self._offsets[rest] is not None
        end = read_sized_text(rest, 0)[1]
        return self._tables.get(rest[:end], {}).get(rest[end:]) is not None

    # -- handing over

    def settle(self, now_ms: int) -> Iterator[None]:
        """Hand to the shard what has been read so far."""
        groups, self._groups = self._groups, {}
        for group_id, value in groups.items():
            self._shard.load_fact(group_loaded(group_id, value))
            yield
        yield from sorted_out(self._offsets, self._tables)
        tables, self._tables = self._tables, {}
        seen, self._seen = self._seen, set()
        if tables:
            mark("offsets-loaded")
        for number, (start, packed) in enumerate(tables.items()):
            group_id = read_sized_text(start, 0)[0]
            exists = group_id in self._shard.groups
            if not exists and (group_id in seen or any(value is not None for value in packed.values())):
                self._shard.load_fact(GroupCreated(group_id, now_ms))
            self._shard.load_fact(OffsetsLoaded(group_id, packed))
            if not number % SLICE_GROUPS:
                yield


class CommitRun(NamedTuple):
    """Commits of a group, for partitions of one topic: where each goes in the group's table, and what."""

    end: int
    """Where the run ends."""
    group: bytes
    places: Sequence[bytes]
    values: Sequence[bytes]


def _run_of_commits(data: bytes, at: int, end: int) -> CommitRun | None:
    """Return the run of commits at a place, as long as a slice at most; None where there is none."""
    try:
        run = run_at(data, at, end, SLICE_OFFSETS, 0, 0)
        if run is None or not isinstance(run.keys, list) or not isinstance(run.values, list):
            return None
        key = run.keys[0]
        group_end = read_sized_text(key, TYPE_BYTES)[1]
        partition_at = read_sized_text(key, group_end)[1]
    except (IndexError, Corrupt):
        return None  # who reads record by record finds the words
    topic = key[:partition_at]
    if key[:TYPE_BYTES] not in OFFSET_TYPES or len(key) != partition_at + PARTITION_BYTES:
        return None
    # What lies between two keys that begin alike in the order of bytes begins alike, too.
    if not min(run.keys).startswith(topic) or not max(run.keys).startswith(topic):
        return None
    if not are_plain_offset_values(run.values):
        return None
    places = [key[group_end:] for key in run.keys]
    return CommitRun(run.end, key[TYPE_BYTES:group_end], places, run.values)


def sorted_out(offsets: Packed, tables: dict[bytes, Packed]) -> Iterator[None]:
    """Move each offset into the table of its group, under topic and partition; raise Corrupt for bad ones."""
    topics: set[bytes] = set()
    place, size, at, table = b"", -1, 0, {}  # group and topic of the last key, which are often the next one's
    turn = SLICE_OFFSETS
    while offsets:
        key, value = offsets.popitem()  # let go one by one: all at once would take a while
        if len(key) != size or not key.startswith(place):
            at = read_sized_text(key, 0)[1]
            table = tables.setdefault(key[:at], {})
            place, size = key[:-4], len(key)
            if place[at:] not in topics:
                read_partition_key(key[at:])
                topics.add(place[at:])
        if value is not None:
            check_offset_value(value)
        table[key[at:]] = value
        turn -= 1
        if not turn:
            turn = SLICE_OFFSETS
            yield
