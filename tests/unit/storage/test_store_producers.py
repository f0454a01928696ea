"""Idempotent producers: what follows, what repeats, what is fenced; as seen on Apache Kafka 4.3.1."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_rig import NOW, a_marker, idempotent

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.storage.log.contract import AppendRefused
from coterie.storage.log.producers import ProducerState, marker_of, sequence_after
from coterie.wire.records.batches import BatchHeader, read_header
from coterie.wire.records.checksum import crc32c

LAST = 2**31 - 1


def a_header(
    sequence: int, *, count: int = 2, pid: int = 9, epoch: int = 0, transactional: bool = False
) -> BatchHeader:
    return read_header(
        idempotent(0, count=count, pid=pid, epoch=epoch, transactional=transactional)
    )._replace(base_sequence=sequence)


class Partition:
    """A producer state that is fed like a log feeds it."""

    def __init__(self) -> None:
        self.state = ProducerState()
        self.end = 0

    def send(self, header: BatchHeader) -> int | str | Code:
        """Return the offset that a batch got, `"again 3"` for a repeat, or the code of its refusal."""
        known = self.state.duplicate_of(header)
        if known is not None:
            return f"again {known.base_offset}"
        try:
            self.state.check(header, sequenced=True)
        except AppendRefused as refused:
            return refused.code
        base = self.end
        self.state.record(header, base_offset=base, timestamp=NOW)
        self.end += header.last_offset_delta + 1
        return base


def test_sequences_follow_repeat_and_are_refused_as_in_kafka():
    partition = Partition()

    assert partition.send(a_header(0)) == 0
    assert partition.send(a_header(0)) == "again 0"
    assert partition.send(a_header(2)) == 2
    assert partition.send(a_header(9)) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.send(a_header(0, count=1)) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.send(a_header(5, epoch=1)) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.send(a_header(0, epoch=1)) == 4
    assert partition.send(a_header(4, epoch=0)) == Code.INVALID_PRODUCER_EPOCH


def test_an_unknown_producer_may_start_anywhere():
    partition = Partition()

    assert partition.send(a_header(7)) == 0
    assert partition.send(a_header(7)) == "again 0"


@pytest.mark.parametrize(("first", "following"), [(LAST - 1, 0), (LAST, 1), (LAST - 2, LAST), (0, 2)])
def test_the_sequence_wraps_after_the_largest_number(first: int, following: int):
    partition = Partition()

    partition.send(a_header(first))

    assert partition.send(a_header(following)) == 2
    assert partition.send(a_header(first)) == "again 0"


def test_only_the_last_five_batches_are_known():
    partition = Partition()
    for place in range(6):
        partition.send(a_header(2 * place))

    assert partition.send(a_header(2)) == "again 2"
    assert partition.send(a_header(0)) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_coordinator_s_batches_need_an_epoch_but_no_sequence():
    state = ProducerState()
    state.record(a_header(-1, epoch=3), base_offset=0, timestamp=NOW)

    state.check(a_header(-1, epoch=3), sequenced=False)
    with pytest.raises(AppendRefused) as caught:
        state.check(a_header(-1, epoch=2), sequenced=False)
    assert caught.value.code == Code.INVALID_PRODUCER_EPOCH


def test_a_transaction_is_open_from_its_first_batch_to_its_marker():
    state = ProducerState()
    state.record(a_header(0, transactional=True), base_offset=10, timestamp=NOW)
    state.record(a_header(2, transactional=True), base_offset=12, timestamp=NOW)
    assert state.first_unstable_offset == 10

    batch = a_marker(commit=False)
    marker = marker_of(batch)
    assert marker is not None
    completed = state.end_transaction(read_header(batch), marker, offset=14, timestamp=NOW)

    assert completed == (9, 10, 14, 15, True)
    assert state.first_unstable_offset is None


def test_a_marker_without_a_transaction_ends_none_but_fences():
    state = ProducerState()
    batch = a_marker(commit=True, epoch=4, coordinator_epoch=2)
    marker = marker_of(batch)
    assert marker is not None
    assert marker == (True, 2)

    assert state.end_transaction(read_header(batch), marker, offset=0, timestamp=NOW) is None

    with pytest.raises(AppendRefused):
        state.check(a_header(0, epoch=3), sequenced=True)
    state.check(a_header(0, epoch=4), sequenced=True)


def test_a_plain_batch_in_the_middle_of_a_transaction_is_refused():
    state = ProducerState()
    state.record(a_header(0, transactional=True), base_offset=0, timestamp=NOW)

    with pytest.raises(AppendRefused) as caught:
        state.check(a_header(2), sequenced=True)

    assert caught.value.code == Code.INVALID_TXN_STATE


def test_idle_producers_expire_but_not_in_a_transaction():
    state = ProducerState()
    state.record(a_header(0, pid=1), base_offset=0, timestamp=NOW)
    state.record(a_header(0, pid=2), base_offset=2, timestamp=NOW + 1)
    state.record(a_header(0, pid=3, transactional=True), base_offset=4, timestamp=NOW)

    state.expire(before_ms=NOW)

    assert sorted(state.producers) == [2, 3]


producers = st.lists(
    st.tuples(
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**15 - 1),
        st.integers(0, LAST),
        st.integers(1, 9),
        st.booleans(),
    ),
    max_size=20,
)


@given(producers)
def test_a_snapshot_holds_each_producer_with_its_last_batch(script: list[tuple[int, int, int, int, bool]]):
    state, back = ProducerState(), ProducerState()
    for place, (pid, epoch, sequence, count, transactional) in enumerate(script):
        header = a_header(sequence, count=count, pid=pid, epoch=epoch, transactional=transactional)
        state.record(header, base_offset=100 * place, timestamp=NOW + place)

    back.restore(state.snapshot())

    assert back.first_unstable_offset == state.first_unstable_offset
    assert {pid: (one.epoch, one.last, one.open_since) for pid, one in back.producers.items()} == {
        pid: (one.epoch, one.last, one.open_since) for pid, one in state.producers.items()
    }


def test_a_snapshot_is_kafka_s_byte_for_byte():
    """The same bytes as ProducerStateManager writes for one producer (version 1)."""
    state = ProducerState()
    state.record(a_header(4, count=3, pid=9, epoch=1), base_offset=20, timestamp=NOW)

    data = state.snapshot()

    assert data[:2] == b"\0\1"
    assert data[2:6] == crc32c(data[6:]).to_bytes(4)
    assert data[6:].hex() == (
        f"000000010000000000000009000100000006000000000000001600000002{NOW:016x}ffffffffffffffffffffffff"
    )


@pytest.mark.parametrize("damage", [b"", b"\0\1", "cut", "flip", "version"])
def test_a_damaged_snapshot_is_corrupt_and_changes_nothing(damage: bytes | str):
    state = ProducerState()
    state.record(a_header(0), base_offset=0, timestamp=NOW)
    good = state.snapshot()
    bad = {"cut": good[:-1], "flip": good[:-1] + b"\x07", "version": b"\0\2" + good[2:]}

    with pytest.raises(Corrupt):
        state.restore(bad[damage] if isinstance(damage, str) else damage)

    assert sorted(state.producers) == [9]


@given(st.integers(0, LAST), st.integers(0, LAST))
def test_sequences_stay_within_31_bits(sequence: int, steps: int):
    assert 0 <= sequence_after(sequence, steps) <= LAST
