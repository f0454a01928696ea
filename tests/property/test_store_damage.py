"""Damage to the files of a log that was not closed: what opens is a prefix that lost no whole batch."""

from dataclasses import dataclass
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.ids import TopicPartition
from coterie.storage.config import (
    LogConfig,
)
from coterie.storage.log.partition import PartitionLog
from coterie.storage.memory import MemoryDisk, MemoryStore
from coterie.wire.records.batches import Record, build_batch, records_of, scan
from examples import drawn

NOW = 1_700_000_000_000
NAME = TopicPartition("t", 0)
ENDINGS = (".log", ".index", ".timeindex")


@dataclass(frozen=True)
class Written:
    """A batch as it was acknowledged: in which segment, where it ends there, and its records."""

    segment: int
    end: int
    records: tuple[Record, ...]
    next_sequence: int
    """The sequence that producer 7 will send after this batch."""


@dataclass(frozen=True)
class Damage:
    """One file cut short, or one of its bytes changed; places are counted from its end."""

    ending: str
    last_segment: bool
    place: int
    flip: int | None


batches = st.lists(
    st.lists(st.tuples(st.binary(max_size=40), st.integers(-50, 200)), min_size=1, max_size=4),
    min_size=1,
    max_size=25,
)
damages = st.lists(
    st.builds(
        Damage,
        ending=st.sampled_from(ENDINGS),
        last_segment=st.booleans(),
        place=st.integers(0, 400),
        flip=st.none() | st.integers(1, 255),
    ),
    max_size=4,
)


def opened(disk: MemoryDisk, config: LogConfig) -> tuple[MemoryStore, PartitionLog]:
    store = MemoryStore.open(now_ms=NOW, disk=disk, configs=lambda *_: config)
    return store, store.logs.get(NAME) or store.create_log(*NAME, UUID(int=1), config)


def write(
    log: PartitionLog, script: list[list[tuple[bytes, int]]], codec: str, sequence: int = 0
) -> list[Written]:
    """Append the script, every other batch as an idempotent producer that has come to `sequence`."""
    written: list[Written] = []
    sizes: dict[int, int] = {}
    for number, values in enumerate(script):
        records = [Record(place, NOW + delta, None, value) for place, (value, delta) in enumerate(values)]
        producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
        batch = build_batch(records, codec=codec, **(producer if number % 2 else {}))  # type: ignore[arg-type]
        sequence += len(records) * (number % 2)
        base = log.append(batch, now_ms=NOW).base_offset
        segment = int(max(name for name in log_names(log))[:20])
        sizes[segment] = sizes.get(segment, 0) + len(batch)
        there = tuple(record._replace(offset=record.offset + base) for record in records)
        written.append(Written(segment, sizes[segment], there, sequence))
    return written


def log_names(log: PartitionLog) -> list[str]:
    return [name for name in log._state.disk.files(log.directory) if name.endswith(".log")]


def inflict(damage: Damage, disk: MemoryDisk, directory: str, bases: list[int]) -> tuple[int, int] | None:
    """Damage a file; return the segment and the byte from which its batches are in doubt."""
    base = bases[-1] if damage.last_segment else bases[damage.place % len(bases)]
    file = disk.open(f"{directory}/{base:020d}{damage.ending}")
    at = max(0, file.size() - damage.place)
    if damage.flip is None:
        file.truncate(at)
    elif at < file.size():
        file.write([bytes([file.read(1, at)[0] ^ damage.flip])], at)
    return (base, at) if damage.ending == ".log" else None


def read_all(log: PartitionLog) -> list[Record]:
    found: list[Record] = []
    offset = log.start_offset
    while offset < log.end_offset:
        data = log.read(offset, max_bytes=200)
        assert data
        found += [record for at, _ in scan(data) for record in records_of(data, at)]
        offset = scan(data)[-1][1].last_offset + 1
    return found


@settings(max_examples=drawn(300), deadline=None)
@given(
    script=batches,
    harm=damages,
    segment_bytes=st.sampled_from([250, 600, 1 << 20]),
    interval=st.sampled_from([0, 100, 4096]),
    codec=st.sampled_from(["none", "zstd"]),
    closed=st.booleans(),
)
def test_a_damaged_log_opens_as_a_prefix_with_all_that_lies_before_the_damage(
    script: list[list[tuple[bytes, int]]],
    harm: list[Damage],
    segment_bytes: int,
    interval: int,
    codec: str,
    closed: bool,
):
    config = LogConfig.of({"segment.bytes": segment_bytes, "index.interval.bytes": interval})
    disk = MemoryDisk()
    store, log = opened(disk, config)
    written = write(log, script, codec)
    bases = sorted(int(name[:20]) for name in log_names(log))
    if closed:
        store.close()
        disk.remove("data/.kafka_cleanshutdown")
        disk.remove("data/recovery-point-offset-checkpoint")
    else:
        store.crash()

    doubts = [doubt for one in harm if (doubt := inflict(one, disk, log.directory, bases)) is not None]
    _, log = opened(disk, config)

    first_doubt = min(doubts, default=(1 << 62, 0))
    safe = [one for one in written if (one.segment, one.end) <= first_doubt]
    everything = [record for one in written for record in one.records]
    left = read_all(log)
    assert left == everything[: len(left)]
    assert len(left) >= sum(len(one.records) for one in safe)
    assert log.end_offset == len(left)
    _check_times(log, left)
    _check_producer(log, written, len(left))
    _check_that_it_goes_on(disk, config, log, left)


def _check_times(log: PartitionLog, left: list[Record]) -> None:
    """Every time leads where a look at all records leads."""
    for time in (NOW - 60, NOW, NOW + 30, NOW + 100, NOW + 250):
        expected = next((record.offset for record in left if record.timestamp >= time), None)
        found = log.offset_for_timestamp(time)
        assert (found and found.offset) == expected


def _check_producer(log: PartitionLog, written: list[Written], left: int) -> None:
    """The producer's next sequence is the one after the last of its batches that is left."""
    expected = max((one.next_sequence for one in written if one.records[-1].offset < left), default=0)
    known = log.producers.producers.get(7)
    assert (known.last_sequence + 1 if known else 0) == expected


def _check_that_it_goes_on(
    disk: MemoryDisk, config: LogConfig, log: PartitionLog, left: list[Record]
) -> None:
    """The next append gets the next offset, and survives too."""
    appended = log.append(build_batch([Record(0, NOW, None, b"new")]), now_ms=NOW)
    assert appended.base_offset == len(left)
    log.abandon()

    _, again = opened(disk, config)

    assert [record.value for record in read_all(again)] == [*(record.value for record in left), b"new"]


@settings(max_examples=drawn(150), deadline=None)
@given(
    script=batches,
    seed=st.integers(0, 10_000),
    flush_at=st.integers(0, 25),
    segment_bytes=st.sampled_from([250, 900]),
)
def test_a_loss_of_power_keeps_what_was_flushed(
    script: list[list[tuple[bytes, int]]], seed: int, flush_at: int, segment_bytes: int
):
    config = LogConfig.of({"segment.bytes": segment_bytes, "index.interval.bytes": 60})
    disk = MemoryDisk(seed=seed)
    store, log = opened(disk, config)
    written = write(log, script[:flush_at], "none")
    log.flush()
    written += write(log, script[flush_at:], "none", written[-1].next_sequence if written else 0)

    _, log = opened(store.crash(power=True), config)

    left = read_all(log)
    everything = [record for one in written for record in one.records]
    assert left == everything[: len(left)]
    assert len(left) >= sum(map(len, script[:flush_at]))
    _check_times(log, left)
    _check_producer(log, written, len(left))
