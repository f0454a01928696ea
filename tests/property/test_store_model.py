"""A log against a list of records: whatever is done to it, it reads as the list says."""

from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coterie.base.ids import TopicPartition
from coterie.storage.compaction import CompactionResult, run_compaction
from coterie.storage.config import (
    LogConfig,
)
from coterie.storage.log.contract import (
    OffsetOutOfRange,
)
from coterie.storage.log.partition import PartitionLog
from coterie.storage.memory import MemoryDisk, MemoryStore
from coterie.wire.records.batches import Record, build_batch, records_of, scan
from examples import drawn

NOW = 1_700_000_000_000
NAME = TopicPartition("t", 0)
KEYS = [b"a", b"b", b"c"]
values = st.lists(
    st.tuples(st.sampled_from(KEYS), st.none() | st.binary(max_size=60)), min_size=1, max_size=3
)


class LogAgainstAList(RuleBasedStateMachine):
    """Appends, crashes, compactions and deletions in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.config = LogConfig.of(
            {
                "segment.bytes": 300,
                "index.interval.bytes": 80,
                "cleanup.policy": "compact",
                "delete.retention.ms": 1 << 40,
                "file.delete.delay.ms": 0,
            }
        )
        self.disk = MemoryDisk()
        self.now_ms = NOW
        self.written: list[Record] = []
        self.start = 0
        self.pending: CompactionResult | None = None
        self.open()

    def open(self) -> None:
        self.store = MemoryStore.open(now_ms=self.now_ms, disk=self.disk, configs=lambda *_: self.config)
        if NAME not in self.store.logs:
            self.store.create_log(*NAME, UUID(int=1), self.config)
        self.pending = None

    @property
    def log(self) -> PartitionLog:
        return self.store.logs[NAME]

    @rule(pairs=values)
    def append(self, pairs: list[tuple[bytes, bytes | None]]) -> None:
        self.now_ms += 1
        records = [Record(place, self.now_ms, key, value) for place, (key, value) in enumerate(pairs)]
        appended = self.log.append(build_batch(records), now_ms=self.now_ms)
        assert appended.base_offset == len(self.written)
        self.written += [record._replace(offset=appended.base_offset + record.offset) for record in records]

    @rule()
    def kill(self) -> None:
        self.store.abandon()
        self.open()

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.open()

    @rule()
    def tick(self) -> None:
        self.log.tick(self.now_ms)

    @precondition(lambda self: self.written)
    @rule(share=st.floats(0, 1))
    def delete_before(self, share: float) -> None:
        offset = int(share * len(self.written))
        self.start = max(self.start, offset)
        assert self.log.delete_before(offset, self.now_ms) == self.start

    @precondition(lambda self: self.pending is None)
    @rule()
    def begin_compaction(self) -> None:
        self.log.flush()
        plan = self.log.compacting.plan(self.now_ms)
        if plan is not None:
            self.pending = run_compaction(plan, self.disk)

    @precondition(lambda self: self.pending is not None)
    @rule()
    def finish_compaction(self) -> None:
        assert self.pending is not None
        self.log.compacting.finish(self.pending, self.now_ms)
        self.pending = None

    @invariant()
    def what_is_left_is_what_was_written(self) -> None:
        left = list(self.read_all())
        assert all(record == self.written[record.offset] for record in left)
        assert self.log.end_offset == len(self.written)
        assert self.log.start_offset >= self.start

    @invariant()
    def nothing_newest_is_lost(self) -> None:
        left = {record.offset for record in self.read_all()}
        for key in KEYS:
            mine = [
                record.offset for record in self.written if record.key == key and record.offset >= self.start
            ]
            assert not mine or mine[-1] in left

    @invariant()
    def ends_are_where_they_should_be(self) -> None:
        log = self.log
        assert log.read(log.end_offset, max_bytes=10) == b""
        for beyond in (log.start_offset - 1, log.end_offset + 1):
            try:
                log.read(beyond, max_bytes=10)
            except OffsetOutOfRange:
                continue
            raise AssertionError(f"{beyond} was read")

    def read_all(self) -> list[Record]:
        found: list[Record] = []
        offset = self.log.start_offset
        while offset < self.log.end_offset:
            data = self.log.read(offset, max_bytes=150)
            if not data:
                break
            found += [
                r for at, h in scan(data) if h.count for r in records_of(data, at) if r.offset >= offset
            ]
            offset = scan(data)[-1][1].last_offset + 1
        return found


TestLogAgainstAList = LogAgainstAList.TestCase
TestLogAgainstAList.settings = settings(max_examples=drawn(60), stateful_step_count=40, deadline=None)
