"""A log with transactions against a model of it: stable offset, aborted list and producers, whatever happens.

The model is the list of batches that were acknowledged; what the log should know is worked out anew from it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coterie.base.ids import TopicPartition
from coterie.storage.compaction import CompactionResult, run_compaction
from coterie.storage.config import (
    LogConfig,
)
from coterie.storage.log.partition import PartitionLog
from coterie.storage.memory import MemoryDisk, MemoryStore
from coterie.wire.records.batches import Record, build_batch, build_marker
from examples import drawn
from unit.storage.store_rig import committed

NOW = 1_700_000_000_000
NAME = TopicPartition("t", 0)
KEYS = [b"a", b"b", b"c"]
PRODUCERS = st.integers(1, 3)
values = st.lists(st.tuples(st.sampled_from(KEYS), st.binary(max_size=60)), min_size=1, max_size=3)


@dataclass(frozen=True)
class Batch:
    """A batch as it was acknowledged."""

    base: int
    end: int
    records: tuple[Record, ...]
    producer: int = -1
    epoch: int = -1
    last_sequence: int = -1
    ends: str = ""  # "commit" or "abort" for a marker


@dataclass
class Model:
    """What a log of some batches should know."""

    opened: dict[int, int] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, batches: list[Batch]) -> "Model":
        model = cls()
        for batch in batches:
            if batch.producer < 0:
                continue
            if not batch.ends:
                model.opened.setdefault(batch.producer, batch.base)
                model.producers[batch.producer] = (batch.epoch, batch.last_sequence)
                continue
            first = model.opened.pop(batch.producer, None)
            if first is not None and batch.ends == "abort":
                model.aborted.append((batch.producer, first, batch.base))
            epoch, last = model.producers.get(batch.producer, (-1, -1))
            model.producers[batch.producer] = (batch.epoch, last if batch.epoch == epoch else -1)
        return model

    def committed(self, batches: list[Batch]) -> list[Record]:
        """Return the records that a read_committed consumer may see."""
        stable = min(self.opened.values(), default=1 << 62)
        return [
            record for one in batches if one.base < stable and not self.void(one) for record in one.records
        ]

    def void(self, batch: Batch) -> bool:
        return any(
            batch.producer == producer and first <= batch.base < last
            for producer, first, last in self.aborted
        )


class TransactionsAgainstAModel(RuleBasedStateMachine):
    """Transactions of three producers, crashes, losses of power, compactions and deletions in any order."""

    @initialize(compacted=st.booleans(), seed=st.integers(0, 1000))
    def begin(self, compacted: bool, seed: int) -> None:
        self.compacted = compacted
        policy = "compact" if compacted else "delete"
        self.config = LogConfig.of(
            {
                "segment.bytes": 320,
                "index.interval.bytes": 80,
                "cleanup.policy": policy,
                "delete.retention.ms": 50,
                "file.delete.delay.ms": 0,
                "retention.ms": -1,
            }
        )
        self.disk = MemoryDisk(seed=seed)
        self.now_ms = NOW
        self.batches: list[Batch] = []
        self.known = (0, Model())
        self.start = 0
        self.deletes = True
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

    @property
    def model(self) -> Model:
        if self.known[0] != len(self.batches):
            self.known = (len(self.batches), Model.of(self.batches))
        return self.known[1]

    # -- what may happen

    @rule(pairs=values)
    def write(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self.append(pairs, producer=-1, epoch=-1, sequence=-1)

    @rule(pairs=values, producer=PRODUCERS)
    def write_in_transaction(self, pairs: list[tuple[bytes, bytes]], producer: int) -> None:
        epoch, last = self.model.producers.get(producer, (0, -1))
        self.append(pairs, producer=producer, epoch=epoch, sequence=last + 1)

    def append(self, pairs: list[tuple[bytes, bytes]], *, producer: int, epoch: int, sequence: int) -> None:
        self.now_ms += 1
        records = [Record(place, self.now_ms, key, value) for place, (key, value) in enumerate(pairs)]
        batch = build_batch(
            records,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=producer >= 0,
        )
        base = self.log.append(batch, now_ms=self.now_ms).base_offset
        there = tuple(record._replace(offset=base + record.offset) for record in records)
        last = sequence + len(records) - 1
        self.batches.append(Batch(base, base + len(records), there, producer, epoch, last))

    @rule(producer=PRODUCERS, commit=st.booleans(), bump=st.booleans())
    def end(self, producer: int, commit: bool, bump: bool) -> None:
        self.now_ms += 1
        epoch = self.model.producers.get(producer, (0, -1))[0] + bump
        marker = build_marker(
            commit=commit,
            producer_id=producer,
            producer_epoch=epoch,
            coordinator_epoch=0,
            timestamp=self.now_ms,
        )
        appended = self.log.append(
            marker, now_ms=self.now_ms, origin="coordinator", transaction_version=2 if bump else 1
        )
        base = appended.base_offset
        self.batches.append(Batch(base, base + 1, (), producer, epoch, ends="commit" if commit else "abort"))

    @rule()
    def kill(self) -> None:
        self.store.abandon()
        self.open()

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.open()

    @precondition(lambda self: not self.compacted)
    @rule()
    def lose_power(self) -> None:
        """What was not flushed may be lost, from some batch on."""
        self.disk = self.store.crash(power=True)
        self.open()
        assert self.log.end_offset >= self.start
        self.batches = [batch for batch in self.batches if batch.end <= self.log.end_offset]
        assert self.log.end_offset == max([self.start, *(batch.end for batch in self.batches)])

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule(pass_ms=st.integers(0, 60))
    def tick(self, pass_ms: int) -> None:
        self.now_ms += pass_ms
        self.log.tick(self.now_ms)

    @rule(ending=st.sampled_from([".txnindex", ".index", ".timeindex"]))
    def crash_and_lose_an_index(self, ending: str) -> None:
        self.crash_without(lambda name, active: name == active + ending)

    @precondition(lambda self: not self.compacted and self.start == 0)
    @rule()
    def crash_and_lose_snapshots(self) -> None:
        """They alone know of producers whose batches were deleted, but nothing was."""
        self.crash_without(lambda name, active: name.endswith(".snapshot"))
        self.deletes = False

    def crash_without(self, gone: Callable[[str, str], bool]) -> None:
        """Remove files whose loss must not matter, of the segment that grows at least."""
        directory = self.log.directory
        self.store.abandon()
        names = self.disk.files(directory)
        active = max(name for name in names if name.endswith(".log")).removesuffix(".log")
        for name in [name for name in names if gone(name, active)]:
            self.disk.remove(f"{directory}/{name}")
        self.open()

    @precondition(lambda self: self.batches and self.deletes)
    @rule(share=st.floats(0, 1))
    def delete_before(self, share: float) -> None:
        offset = int(share * self.log.end_offset)
        self.start = max(self.start, offset)
        assert self.log.delete_before(offset, self.now_ms) == self.start
        # The start of the log is on the disk at once, what lies before it need not be.
        self.log.flush()

    @precondition(lambda self: self.compacted and self.pending is None)
    @rule()
    def begin_compaction(self) -> None:
        self.log.flush()
        plan = self.log.compacting.plan(self.now_ms)
        if plan is not None:
            self.pending = run_compaction(plan, self.disk)

    @precondition(lambda self: self.compacted and self.pending is not None)
    @rule()
    def finish_compaction(self) -> None:
        assert self.pending is not None
        self.log.compacting.finish(self.pending, self.now_ms)
        self.pending = None

    # -- what must hold

    @invariant()
    def stable_is_what_lies_before_the_oldest_open_transaction(self) -> None:
        model, log = self.model, self.log
        oldest = min(model.opened.values(), default=log.end_offset)
        assert log.last_stable_offset == max(oldest, log.start_offset)
        for producer in (1, 2, 3):
            assert log.open_transaction(producer) == model.opened.get(producer, -1)

    @invariant()
    def producers_go_on_where_they_were(self) -> None:
        known = {one.producer_id: (one.epoch, one.last_sequence) for one in self.log.active_producers()}
        assert known == self.model.producers

    @invariant()
    def the_list_of_aborted_transactions_is_right(self) -> None:
        log = self.log
        found = [tuple(one) for one in log.aborted_transactions(log.start_offset, log.end_offset)]
        wanted = [one for one in self.model.aborted if one[2] >= log.start_offset]
        if not self.compacted:
            assert found == [one[:2] for one in wanted]
            return
        for producer, at in found:  # its first batch may be gone
            assert any(producer == one[0] and one[1] <= at < one[2] for one in wanted)

    @invariant()
    def readers_of_committed_records_see_those_and_no_others(self) -> None:
        log = self.log
        seen = committed(log, max_bytes=250)
        wanted = [one for one in self.model.committed(self.batches) if one.offset >= log.start_offset]
        if not self.compacted:
            assert seen == wanted
            return
        assert set(seen) <= set(wanted)
        newest = {record.key: record for record in wanted}
        assert set(newest.values()) <= set(seen)


TestTransactionsAgainstAModel = TransactionsAgainstAModel.TestCase
TestTransactionsAgainstAModel.settings = settings(
    max_examples=drawn(100), stateful_step_count=40, deadline=None
)


# -- damage


@dataclass(frozen=True)
class Damage:
    """One file of a log cut short, or one of its bytes changed; places are counted from its end."""

    ending: str
    segment: int
    place: int
    flip: int | None


damages = st.lists(
    st.builds(
        Damage,
        ending=st.sampled_from([".log", ".txnindex", ".index", ".timeindex", ".snapshot"]),
        segment=st.integers(0, 9),
        place=st.integers(0, 300),
        flip=st.none() | st.integers(1, 255),
    ),
    min_size=1,
    max_size=4,
)
steps = st.lists(
    st.tuples(PRODUCERS, st.sampled_from(["write", "write", "write", "commit", "abort", "plain"])),
    min_size=1,
    max_size=30,
)


def inflict(damage: Damage, disk: MemoryDisk, directory: str) -> None:
    names = sorted(name for name in disk.files(directory) if name.endswith(damage.ending))
    if not names:
        return
    file = disk.open(f"{directory}/{names[damage.segment % len(names)]}")
    at = max(0, file.size() - damage.place)
    if damage.flip is None:
        file.truncate(at)
    elif at < file.size():
        file.write([bytes([file.read(1, at)[0] ^ damage.flip])], at)


@settings(max_examples=drawn(150), deadline=None)
@given(script=steps, harm=damages, ticks=st.booleans())
def test_a_damaged_log_knows_of_its_transactions_what_its_batches_say(
    script: list[tuple[int, str]], harm: list[Damage], ticks: bool
):
    life = TransactionsAgainstAModel()
    life.begin(compacted=False, seed=0)
    for producer, what in script:
        if what == "write":
            life.write_in_transaction([(b"a", b"value")], producer)
        elif what == "plain":
            life.write([(b"a", b"value")])
        else:
            life.end(producer, commit=what == "commit", bump=False)
    if ticks:
        life.tick(0)
    life.store.abandon()

    for one in harm:
        inflict(one, life.disk, life.log.directory)
    life.open()

    life.batches = [batch for batch in life.batches if batch.end <= life.log.end_offset]
    assert life.log.end_offset == (life.batches[-1].end if life.batches else 0)
    life.stable_is_what_lies_before_the_oldest_open_transaction()
    life.producers_go_on_where_they_were()
    life.the_list_of_aborted_transactions_is_right()
    life.readers_of_committed_records_see_those_and_no_others()
