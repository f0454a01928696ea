"""What of logs stays in memory: what has come last, of all of them together."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from store_rig import NOW, ORDERS, TOPIC_ID, a_batch, a_config, a_marker, idempotent

from coterie.storage.log.contract import OffsetAt
from coterie.storage.remote.tail import BATCH_COSTS, TAIL_BYTES, JoinedBatches, Tail, TailCache, taken
from coterie.wire.records.batches import restamp, scan
from unit.storage.remote_rig import OneLog

ROOM = 6
BATCH = a_batch("x")
COST = len(BATCH) + BATCH_COSTS
LOGS = st.integers(0, 2)


def batches_from(offset: int, count: int) -> bytes:
    """Return so many batches of one record, the first at an offset."""
    data = bytearray(BATCH * count)
    for place in range(count):
        restamp(data, place * len(BATCH), base_offset=offset + place, leader_epoch=0, append_time_ms=NOW)
    return bytes(data)


class Tails(RuleBasedStateMachine):
    """Three logs that share room for six batches, and what should be in memory of each: pieces of so many
    batches from an offset on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cache = TailCache(ROOM * COST)
        self.tails = [Tail(self.cache, 0) for _ in range(3)]
        self.ends = [0, 0, 0]
        self.older = [0, 0, 0]
        self.kept: deque[tuple[int, int, int]] = deque()

    @rule(log=LOGS, count=st.integers(1, 4))
    def append(self, log: int, count: int) -> None:
        header = scan(BATCH)[0][1]
        end = self.ends[log]
        data = batches_from(end, count)
        self.tails[log].keep(data, [(header, end + place, NOW) for place in range(count)])
        self.kept += [(log, end + place, 1) for place in range(count)]
        self.ends[log] = end + count
        self.drop_what_has_no_room()

    @rule(log=LOGS, count=st.integers(1, 4))
    def read(self, log: int, count: int) -> None:
        end = self.ends[log]
        self.tails[log].keep_joined(JoinedBatches(end, end + count - 1, NOW, batches_from(end, count)))
        self.kept.append((log, end, count))
        self.ends[log] = end + count
        self.drop_what_has_no_room()

    def drop_what_has_no_room(self) -> None:
        while self.size() > ROOM * COST:
            log, _, count = self.kept.popleft()
            self.older[log] += count * len(BATCH)

    def size(self) -> int:
        return sum(BATCH_COSTS + count * len(BATCH) for _, _, count in self.kept)

    @rule(log=LOGS, back=st.integers(0, 8))
    def delete_before(self, log: int, back: int) -> None:
        offset = max(0, self.ends[log] - back)
        if offset >= self.tails[log].begins:
            self.older[log] = 0
        self.tails[log].drop_before(offset)
        kept, self.kept = self.kept, deque()
        for one, first, count in kept:
            begins = max(first, offset) if one == log else first
            if begins < first + count:
                self.kept.append((one, begins, first + count - begins))

    @rule(log=LOGS)
    def close(self, log: int) -> None:
        self.tails[log].leave()
        self.kept = deque(one for one in self.kept if one[0] != log)
        self.tails[log] = Tail(self.cache, self.ends[log])
        self.older[log] = 0

    def offsets(self, log: int) -> list[int]:
        return [first + place for one, first, count in self.kept if one == log for place in range(count)]

    @invariant()
    def what_came_last_is_in_memory(self) -> None:
        for log, tail in enumerate(self.tails):
            offsets = self.offsets(log)
            assert [batch.base_offset for batch in tail.since(0)] == offsets
            assert tail.begins <= min(offsets, default=self.ends[log])
            assert (tail.size, tail.older_bytes) == (len(offsets) * len(BATCH), self.older[log])
        assert (self.cache.count, self.cache.bytes) == (len(self.kept), self.size())

    @rule(log=LOGS, back=st.integers(0, 8), upto=st.integers(0, 8), room=st.integers(0, 5))
    def read_from(self, log: int, back: int, upto: int, room: int) -> None:
        tail = self.tails[log]
        offset, end = max(0, self.ends[log] - back), max(0, self.ends[log] - upto)
        there = [one for one in self.offsets(log) if one >= offset]
        assert [batch.base_offset for batch in tail.since(offset)] == there
        assert tail.first_from(NOW, offset) == next(tail.since(offset), None)
        assert tail.first_from(NOW + 1, offset) is None
        assert tail.youngest_from(offset) == next(tail.since(offset), None)
        found = taken(tail.pieces_since(offset), end, max_bytes=room * len(BATCH), at_least_one=room % 2 > 0)
        wanted = [one for one in there if one < end][: max(room, room % 2)]
        assert [header.base_offset for _, header in scan(found)] == wanted
        older = self.older[log] if offset < tail.begins else 0
        between = len([one for one in there if one < end]) * len(BATCH)
        assert tail.size_between(offset, end) == between + older


TestTails = Tails.TestCase


def test_what_is_noted_of_batches_that_are_gone_is_forgotten():
    cache = TailCache()
    tail = Tail(cache, 0)
    header = scan(BATCH)[0][1]

    for offset in range(10_000):
        tail.keep(BATCH, [(header, offset, NOW)])
        tail.drop_before(offset - 1)

    assert len(cache._order) < 2_000
    assert len(tail._pieces) < 4_000
    assert [batch.base_offset for batch in tail.since(0)] == [9_998, 9_999]


def test_a_reader_goes_on_in_memory_behind_what_was_read_from_the_database():
    store = OneLog(None, a_config(), prompt=True, tail_bytes=3 * COST)
    log = store.create_log(*ORDERS, TOPIC_ID, a_config())
    for _ in range(8):
        log.append(BATCH, now_ms=NOW)

    found = [header.base_offset for _, header in scan(log.read(2, max_bytes=1 << 20))]

    assert log.tail.begins == 5
    assert found == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("tail_bytes", [TAIL_BYTES, 0], ids=["in-memory", "older"])
def test_the_youngest_record_is_found_though_a_younger_one_before_it_was_deleted(tail_bytes: int):
    before = OneLog(None, a_config())
    log = before.create_log(*ORDERS, TOPIC_ID, a_config())
    for time in (0, 100, 900, 200, 300, 300):
        log.append(a_batch("v", at=NOW + time), now_ms=NOW)
    before.settle()
    before.close()
    after = OneLog(before.engine.tables, a_config(), prompt=True, tail_bytes=tail_bytes)
    log = after.logs[ORDERS]
    assert log.offset_of_max_timestamp() == OffsetAt(2, NOW + 900, 0)

    log.delete_before(3, NOW)

    assert log.offset_of_max_timestamp() == OffsetAt(4, NOW + 300, 0)


def test_what_is_being_read_when_a_log_is_given_up_is_read_all_the_same():
    store = OneLog(None, a_config(), prompt=True, tail_bytes=0)
    log = store.create_log(*ORDERS, TOPIC_ID, a_config())
    log.append(BATCH, now_ms=NOW)
    found: list[int] = []

    log.read_soon(0, 1_000, lambda there: found.append(len(there.read(0, max_bytes=1_000))))
    store.store.drop(ORDERS)
    store.settle()

    assert found == [len(BATCH)]


def lives_of_transactions(steps: list[tuple[int, str]], store: OneLog) -> None:
    """Have producers write in transactions, and end those that they have open."""
    log = store.create_log(*ORDERS, TOPIC_ID, a_config())
    sequences = {pid: 0 for pid, _ in steps}
    for pid, what in steps:
        if what == "write":
            log.append(idempotent(sequences[pid], pid=pid, transactional=True), now_ms=NOW)
            sequences[pid] += 1
        elif log.open_transaction(pid) >= 0:
            log.append(a_marker(commit=what == "commit", pid=pid), now_ms=NOW, origin="coordinator")


@given(
    steps=st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from(("write", "write", "commit", "abort"))),
        min_size=1,
        max_size=25,
    ),
    kept=st.sampled_from((0, 4 * COST)),
)
def test_a_new_leader_knows_what_was_aborted_of_records_that_it_has_not_in_memory(
    steps: list[tuple[int, str]], kept: int
):
    before = OneLog(None, a_config(), prompt=True)
    lives_of_transactions(steps, before)
    everything = before.logs[ORDERS]
    before.close()

    after = OneLog(before.engine.tables, a_config(), prompt=True, tail_bytes=kept)

    log = after.logs[ORDERS]
    assert kept or not log.end_offset or not log.at_hand(0)
    assert log.last_stable_offset == everything.last_stable_offset
    for offset in range(log.end_offset):
        for max_bytes in (1, 3 * len(BATCH), 1 << 20):
            found = log.read_committed(offset, max_bytes=max_bytes)
            assert found == everything.read_committed(offset, max_bytes=max_bytes)
