"""The fast way to read a shard's log finds what the plain way finds, whatever the log holds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.errors import Corrupt
from coterie.coordinator.group.loading import Loader
from coterie.coordinator.group.settings import GroupSettings
from coterie.coordinator.group.shard import Shard
from coterie.wire.payloads.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    group_metadata_record,
    offset_commit_record,
)
from coterie.wire.records.batches import Record, build_batch, build_marker
from coterie.wire.records.columns import LEAST
from examples import drawn

NOW_MS = 9
groups = st.sampled_from(["g", "h", "a-group", "é", "x" * 300])
topics = st.sampled_from(["t", "u", "flights", "t" * 200])


class Batch(NamedTuple):
    """What one batch of the log holds; the marker of a transaction if `commit` is not None."""

    records: list[tuple[bytes, bytes | None]]
    codec: str = "none"
    producer_id: int = -1
    commit: bool | None = None
    step_ms: int = 700

    def encoded(self, base_offset: int) -> bytes:
        if self.commit is not None:
            marker = build_marker(
                commit=self.commit,
                producer_id=self.producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp=0,
            )
            return base_offset.to_bytes(8, "big") + marker[8:]
        return build_batch(
            [
                Record(base_offset + at, at * self.step_ms, key, value)
                for at, (key, value) in enumerate(self.records)
            ],
            base_offset=base_offset,
            codec=self.codec,
            producer_id=self.producer_id,
            producer_epoch=0 if self.producer_id >= 0 else -1,
            transactional=self.producer_id >= 0,
        )


def an_offset(
    group: str, topic: str, partition: int, value: OffsetCommitValue | None, *, legacy: bool
) -> Any:
    key, encoded = offset_commit_record(OffsetCommitKey(group, topic, partition), value)
    return (b"\x00\x00" + key[2:] if legacy else key), encoded


values = st.builds(
    OffsetCommitValue,
    st.integers(0, 2**40),
    st.integers(-1, 5),
    st.sampled_from(["", "", "md", "é" * 50, "x" * 4_000]),
    st.integers(0, 2**41),
    st.sampled_from([-1, -1, 77]),
    st.sampled_from([None, UUID(int=5)]),
)
offsets = st.builds(
    an_offset, groups, topics, st.integers(0, 3), st.none() | values | values, legacy=st.booleans()
)


def a_group(group: str, members: int, size: int) -> tuple[bytes, bytes | None]:
    if members < 0:
        return group_metadata_record(GroupMetadataKey(group), None)
    everybody = tuple(
        MemberMetadata(f"m{n}", "c", "/h", 10_000, b"s" * size, b"a", None, 60_000) for n in range(members)
    )
    protocol = "range" if members else None
    value = GroupMetadataValue("consumer", 5, protocol, "m0" if members else None, 1_000, everybody)
    return group_metadata_record(GroupMetadataKey(group), value)


group_records = st.builds(a_group, groups, st.integers(-1, 2), st.sampled_from([1, 200, 9_000]))
foreign = st.tuples(
    st.sampled_from(
        [b"\x00\x03\x00\x01g", b"\x00\x05\x00\x01g\x00\x01m", b"\x00\x0b\x00\x01h", b"\x00\x63zz"]
    ),
    st.none() | st.just(b"\x00\x00whatever"),
)
records = offsets | offsets | offsets | group_records | foreign
steps_ms = st.sampled_from([0, 700])
plain_batches = st.builds(
    Batch,
    st.lists(records, min_size=1, max_size=8),
    st.sampled_from(["none", "none", "lz4"]),
    *(st.just(-1), st.none(), steps_ms),
)
ONE, NAMED = OffsetCommitValue(1), OffsetCommitValue(2, topic_id=UUID(int=5))
a_run = st.builds(
    lambda group, topic, value, legacy, count, odd, at: [
        an_offset(group, topic, place, odd if place == at else value, legacy=legacy) for place in range(count)
    ],
    *(st.sampled_from("ggh"), st.sampled_from("ttu"), st.sampled_from([ONE, NAMED])),
    *(st.booleans(), st.integers(LEAST, 3 * LEAST), st.none() | values, st.sampled_from([0, 7, 99, 99])),
)
long_batches = st.builds(
    Batch,
    st.lists(a_run | st.lists(records, min_size=1, max_size=3), min_size=1, max_size=3).map(
        lambda some: [*chain(*some)]
    ),
    *(st.just("none"), st.just(-1), st.none(), steps_ms),
)
pending_batches = st.builds(
    Batch, st.lists(offsets, min_size=1, max_size=3), st.just("none"), st.integers(0, 2), st.none(), steps_ms
)
markers = st.builds(Batch, st.just([]), st.just("none"), st.integers(0, 2), st.booleans(), steps_ms)
batches = plain_batches | long_batches | pending_batches | markers


def a_shard() -> Shard:
    return Shard(settings=GroupSettings(), new_id=lambda: "")


def read_plainly(log: list[Batch]) -> Shard:
    shard = a_shard()
    for batch in log:
        if batch.commit is not None:
            shard.end_transaction(batch.producer_id, commit=batch.commit)
        else:
            shard.load(batch.records, NOW_MS, producer_id=batch.producer_id)
    return shard


def read_fast(pieces: list[bytes]) -> Shard:
    shard = a_shard()
    loader = Loader(shard)
    for piece in pieces:
        for _ in loader.read(piece, NOW_MS):
            pass
    for _ in loader.settle(NOW_MS):
        pass
    return shard


@settings(max_examples=drawn(150), deadline=None)
@given(log=st.lists(batches, max_size=12), pieces=st.integers(1, 3))
def test_both_ways_find_the_same(log, pieces):
    plain = read_plainly(log)

    encoded = [batch.encoded(1_000 * at) for at, batch in enumerate(log)]
    joined = [b"".join(encoded[at : at + pieces]) for at in range(0, len(encoded), pieces)]
    fast = read_fast(joined)

    assert fast.groups == plain.groups
    assert fast.pending == plain.pending
    assert fast.foreign == plain.foreign
    assert fast.skipped == plain.skipped
    assert fast.offsets == plain.offsets


def run_of(group: str, topic: str, value: OffsetCommitValue | None = ONE) -> list[Any]:
    """Commits of a group for as many partitions as make a run."""
    return [an_offset(group, topic, partition, value, legacy=False) for partition in range(LEAST)]


def uniform(records: list[Any]) -> Batch:
    """A batch whose records are uniform, timestamps included."""
    return Batch(records, step_ms=0)


FOREIGN = [(b"\0\3" + key[2:], value) for key, value in run_of("g", "t")]


@pytest.mark.parametrize(
    "log",
    [
        [uniform(run_of("g", "t")[2:3]), uniform(run_of("g", "t", NAMED))],
        [uniform(run_of("g", "t")), uniform(run_of("g", "t", NAMED)[2:3])],
        [uniform(run_of("g", "t") + run_of("h", "t") + run_of("g", "u"))],
        [uniform(run_of("g", "t")), uniform(run_of("g", "t", None))],
        [uniform(run_of("g", "t")), uniform(run_of("g", "t", None)), uniform(run_of("g", "u", NAMED))],
        [uniform(FOREIGN)],
    ],
    ids=["behind a commit", "before one", "of several", "and its tombstones", "and another run", "foreign"],
)
def test_a_run_of_commits_is_read_as_they_are_one_by_one(log):
    plain = read_plainly(log)

    fast = read_fast([b"".join(batch.encoded(1_000 * at) for at, batch in enumerate(log))])

    assert (fast.offsets, fast.groups, fast.skipped) == (plain.offsets, plain.groups, plain.skipped)


@pytest.mark.parametrize("at", [-1, 5])
def test_one_bad_record_in_a_run_is_corrupt(at):
    """LO-7."""
    records = run_of("g", "t")
    key, value = records[at]
    records[at] = key, value[:1] + b"\x09" + value[2:]  # a version that there is not
    cut = [(key[:-1], value) for key, value in run_of("g", "t")]

    for bad in records, cut:
        with pytest.raises(Corrupt):
            read_fast([uniform(bad).encoded(0)])


def test_a_commit_after_a_tombstone_does_not_bring_a_transaction_s_place_back():
    def at(value: OffsetCommitValue | None) -> Any:
        return an_offset("g", "t", 0, value, legacy=False)

    in_transaction = Batch([at(OffsetCommitValue(1))], producer_id=1)
    log = [in_transaction, Batch([at(None)]), Batch([at(OffsetCommitValue(2))])]
    shard = read_fast([b"".join(batch.encoded(number) for number, batch in enumerate(log))])

    assert not shard.pending
    assert shard.offsets == read_plainly(log).offsets


def test_reading_returns_where_to_go_on():
    batch = Batch([an_offset("g", "t", 0, OffsetCommitValue(1), legacy=False)] * 5)
    ends = []

    def reading() -> Iterator[None]:
        ends.append((yield from Loader(a_shard()).read(batch.encoded(70), NOW_MS)))

    list(reading())

    assert ends == [75]


def test_a_long_log_is_read_in_slices():
    record = an_offset("g", "t", 0, OffsetCommitValue(1), legacy=False)
    one_large = Batch([record] * 20_000).encoded(0)
    many_small = b"".join(Batch([record]).encoded(at) for at in range(3_000))

    assert sum(1 for _ in Loader(a_shard()).read(one_large, NOW_MS)) >= 10
    assert sum(1 for _ in Loader(a_shard()).read(many_small, NOW_MS)) >= 4


@given(
    record=offsets | group_records,
    at=st.integers(0, 10_000),
    byte=st.integers(0, 255),
)
def test_damaged_records_are_corrupt_or_read_as_something(record, at, byte):
    """LO-7: nothing else is ever raised. (The log's checksums are checked when it is opened.)"""
    damaged = bytearray(Batch([record, record]).encoded(0))
    damaged[61 + at % (len(damaged) - 61)] = byte

    try:
        shard = read_fast([bytes(damaged)])
        dict(shard.offsets)
    except Corrupt:
        pass
