"""Key compaction: what stays, for how long, and that a crash at any step loses nothing."""

import pickle

import pytest
from store_rig import (
    NOW,
    ORDERS,
    Rig,
    a_batch,
    a_marker,
    committed,
    everything,
    idempotent,
    keyed,
    offsets,
    records_in,
)

from coterie.storage.compaction import cleaned_to_swap, run_compaction
from coterie.storage.log.contract import OffsetAt, StorageFailed
from coterie.storage.log.partition import (
    PartitionLog,
)
from coterie.wire.records.batches import HEADER_SIZE, check_crc, head_for, records_of, scan

HOUR = 3_600_000
SETTINGS = {
    "cleanup_policy": "compact",
    "segment_bytes": 230,
    "min_cleanable_dirty_ratio": 0.01,
    "delete_retention_ms": 1000,
    "file_delete_delay_ms": 0,
    "index_interval_bytes": 50,
}


def state_of(log: PartitionLog) -> dict[bytes, bytes | None]:
    """Return what a reader of the whole log knows of each key in the end."""
    known: dict[bytes, bytes | None] = {}
    for record in everything(log):
        assert record.key is not None
        known[record.key] = record.value
    return {key: value for key, value in known.items() if value is not None}


def a_full_log(rig: Rig, **settings: object) -> PartitionLog:
    """Return a log where each of three keys was written ten times, one a segment or so."""
    log = rig.log_of(**{**SETTINGS, **settings})
    for place in range(30):
        log.append(keyed((f"k{place % 3}", f"v{place:060d}")), now_ms=NOW)
    return log


def test_only_the_newest_record_of_each_key_stays(rig: Rig):
    log = a_full_log(rig)
    before = state_of(log)

    log.flush()
    assert log.compacting.need(NOW)
    assert log.compacting.run(NOW)

    active = [name for name in sorted(rig.names()) if name.endswith(".log")][-1]
    newest = int(active[:20])
    below = [offset for offset in offsets(log) if offset < newest]
    assert state_of(log) == before
    assert len(below) <= 3
    assert log.end_offset == 30
    log.flush()
    assert not log.compacting.need(NOW)


def test_offsets_stay_and_reads_lead_across_the_gaps(rig: Rig):
    log = a_full_log(rig)
    kept = {record.offset: record for record in everything(log)}
    log.compacting.run(NOW)

    for record in everything(log):
        assert record == kept[record.offset]
    for offset in range(log.start_offset, log.end_offset):
        first = records_in(log.read(offset, max_bytes=10_000))
        assert max(record.offset for record in first) >= offset
    data = log.read(0, max_bytes=10_000)
    assert all(check_crc(data, at, header) for at, header in scan(data))


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_a_compacted_log_opens_again_and_is_compacted_on(rig: Rig, how: str):
    log = a_full_log(rig)
    log.compacting.run(NOW)
    after = everything(log)

    log = getattr(rig, how)()

    assert everything(log) == after
    log.flush()
    assert not log.compacting.need(NOW)
    for place in range(30):
        log.append(keyed((f"k{place % 3}", f"w{place:060d}")), now_ms=NOW)
    before = state_of(log)
    assert log.compacting.run(NOW)
    assert state_of(log) == before


def test_the_segment_that_grows_is_never_compacted(rig: Rig):
    log = rig.log_of(**{**SETTINGS, "segment_bytes": 100_000})
    for _ in range(5):
        log.append(keyed(("k", "v")), now_ms=NOW)

    log.flush()
    assert not log.compacting.need(NOW)
    assert not log.compacting.run(NOW)
    assert offsets(log) == [0, 1, 2, 3, 4]


def test_a_batch_loses_the_records_that_are_superseded_and_keeps_its_offsets(rig: Rig):
    log = rig.log_of(**SETTINGS)
    log.append(keyed(("a", "1"), ("b", "2"), ("c", "3"), codec="gzip"), now_ms=NOW)
    log.append(keyed(("b", "x" * 100)), now_ms=NOW)
    log.append(keyed(("z", "y" * 100)), now_ms=NOW)

    log.compacting.run(NOW)

    _, header = scan(log.read(0, max_bytes=10_000))[0]
    assert (header.base_offset, header.last_offset, header.count, header.codec) == (0, 2, 2, 1)
    assert [(r.offset, r.key) for r in everything(log)][:3] == [(0, b"a"), (2, b"c"), (3, b"b")]


def a_record(offset: int, key: bytes) -> bytes:
    """Return a record whose numbers take more bytes than they need, with a header whose name is no text."""
    body = b"\x07" + b"\x80\0" + bytes((2 * offset | 128, 0)) + bytes((len(key) << 1,)) + key
    body += b"\x82\0v" + b"\x02\x02\xff\x01"
    return bytes((len(body) << 1 | 128, 0)) + body


def test_what_stays_of_a_batch_stays_byte_for_byte(rig: Rig):
    first, second, third = (a_record(offset, key) for offset, key in enumerate((b"a", b"b", b"c")))
    body = first + second + third
    log = rig.log_of(**SETTINGS)
    log.append(head_for(body, count=3, base_timestamp=NOW, max_timestamp=NOW) + body, now_ms=NOW)
    log.append(keyed(("b", "x" * 100)), now_ms=NOW)
    pad(log)

    assert log.compacting.run(NOW)

    data = log.read(0, max_bytes=1)
    assert data[HEADER_SIZE:] == first + third


def test_a_tombstone_stays_until_its_time_is_over(rig: Rig):
    log = rig.log_of(**SETTINGS)
    log.append(keyed(("gone", "value")), now_ms=NOW)
    log.append(keyed(("gone", None)), now_ms=NOW)
    for place in range(3):
        log.append(keyed((f"pad{place}", "x" * 100)), now_ms=NOW)

    log.compacting.run(NOW)
    first = [(r.offset, r.key, r.value, r.timestamp) for r in everything(log)]
    for place in range(3):
        log.append(keyed((f"more{place}", "x" * 100)), now_ms=NOW)
    log.compacting.run(NOW + 999)
    second = [(r.key, r.value) for r in everything(log)]
    for place in range(3):
        log.append(keyed((f"last{place}", "x" * 100)), now_ms=NOW)
    log.compacting.run(NOW + 1000)

    assert first[0] == (1, b"gone", None, NOW)
    assert (b"gone", None) in second
    assert b"gone" not in {record.key for record in everything(log)}


def test_a_tombstone_met_by_a_clock_that_was_behind_stays_as_long(rig: Rig):
    """What is written of when it may go is the wall's time, which the next start goes by."""
    log = rig.log_of(**SETTINGS)
    log.append(keyed(("gone", None)), now_ms=NOW)
    pad(log)
    log.flush()
    plan = log.compacting.plan(NOW, NOW + HOUR)
    assert plan is not None
    log.compacting.finish(run_compaction(plan, log._state.disk), NOW)
    log = rig.restart()
    pad(log)

    log.compacting.run(NOW + HOUR + 999)
    assert kinds(log) == ["gone"]
    pad(log)
    log.compacting.run(NOW + HOUR + 1000)

    assert "gone" not in kinds(log)


@pytest.mark.parametrize("retention_ms", [0, 2**62, 2**63 - 1])
def test_a_log_is_compacted_again_and_again_however_long_its_tombstones_are_to_stay(
    rig: Rig, retention_ms: int
):
    """Kafka 4.3.1 leaves a batch whose horizon is beyond 2^63 - 1 without one (asked on 2026-11-23)."""
    log = rig.log_of(**{**SETTINGS, "delete_retention_ms": retention_ms})
    log.append(keyed(("gone", None)), now_ms=NOW)
    for place in range(5):
        for _ in range(4):
            log.append(keyed(("k", "v" * 100)), now_ms=NOW)
        assert log.compacting.run(NOW + place)

    assert [name for name in rig.names() if "cleaned" in name] == []
    assert offsets(log)[-1] == 20
    assert (b"gone" in {record.key for record in everything(log)}) == (retention_ms > 0)
    assert len(offsets(log)) < 8


@pytest.mark.parametrize("times", [(-(2**63),), (2**63 - 1,), (-(2**63), -1), (-1, 2**63 - 1)])
def test_a_tombstone_keeps_its_time_whatever_it_is_in_bytes_that_java_reads(rig: Rig, times: tuple[int, ...]):
    log = rig.log_of(**{**SETTINGS, "message_timestamp_after_max_ms": 2**63 - 1})
    log.append(a_batch(*[None] * len(times), key="gone", at=times), now_ms=NOW)
    pad(log)

    for _ in range(2):
        assert log.compacting.run(NOW)
        pad(log)

    data = log.read(0, max_bytes=1)
    _, header = scan(data)[0]
    [record] = records_of(data, 0)
    assert (record.key, record.value, record.timestamp) == (b"gone", None, times[-1])
    assert -(2**63) <= record.timestamp - header.base_timestamp < 2**63
    assert header.max_timestamp == max(times[-1], -1)


def test_whatever_ends_a_compaction_its_files_go(rig: Rig):
    log = a_full_log(rig)
    log.flush()
    plan = log.compacting.plan(NOW, NOW)
    assert plan is not None

    with pytest.raises(TypeError):
        run_compaction(plan._replace(interval="a mistake"), log._state.disk)  # type: ignore[arg-type]

    assert [name for name in rig.names() if "cleaned" in name] == []


def test_the_last_batch_of_a_producer_stays_if_need_be_empty(rig: Rig):
    log = rig.log_of(**SETTINGS)
    how = {"producer_id": 5, "producer_epoch": 1}
    log.append(keyed(("k", "old"), base_sequence=0, **how), now_ms=NOW)
    log.append(keyed(("k", "older"), base_sequence=1, **how), now_ms=NOW)
    for place in range(3):
        log.append(keyed(("k", f"{place}" * 100)), now_ms=NOW)

    log.compacting.run(NOW)
    log = rig.kill()

    headers = [header for _, header in scan(log.read(0, max_bytes=10_000))]
    assert [(h.base_offset, h.count) for h in headers if h.producer_id == 5] == [(1, 0)]
    assert log.append(keyed(("k", "new"), base_sequence=2, **how), now_ms=NOW).base_offset == 5


def test_the_end_of_a_round_keeps_its_place(rig: Rig):
    log = rig.log_of(**SETTINGS)
    log.append(keyed(("k", "a" * 100)), now_ms=NOW)
    log.append(keyed(("k", "b" * 100)), now_ms=NOW)
    log.append(keyed(("k", "c" * 100)), now_ms=NOW)

    log.compacting.run(NOW)

    assert [(r.offset, r.key) for r in everything(log)] == [(1, b"k"), (2, b"k")]
    log.append(keyed(("k", "d" * 100)), now_ms=NOW)
    log.compacting.run(NOW)
    assert offsets(log) == [2, 3]


def test_records_too_young_for_their_lag_stay(rig: Rig):
    log = a_full_log(rig, min_compaction_lag_ms=HOUR)

    log.flush()
    assert not log.compacting.need(NOW + HOUR - 1)
    assert log.compacting.need(NOW + HOUR)


def test_a_log_that_is_hardly_dirty_waits_unless_it_waited_too_long(rig: Rig):
    log = a_full_log(rig, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=HOUR)

    log.flush()
    assert not log.compacting.need(NOW + HOUR)
    assert log.compacting.need(NOW + HOUR + 1)


def test_segments_that_became_small_are_put_together(rig: Rig):
    log = a_full_log(rig)
    log.compacting.run(NOW)
    for place in range(10):
        log.append(keyed((f"k{place % 3}", f"w{place:060d}")), now_ms=NOW)
    count = len([name for name in rig.names() if name.endswith(".log")])

    log.compacting.run(NOW)
    log.tick(NOW)

    assert len([name for name in rig.names() if name.endswith(".log")]) < count


# -- transactions


def in_transaction(log: PartitionLog, sequence: int, *pairs: tuple[str, str | None], pid: int = 9) -> None:
    how = {"producer_id": pid, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}
    log.append(keyed(*pairs, **how), now_ms=NOW)


def end(log: PartitionLog, *, commit: bool, pid: int = 9, epoch: int = 0) -> None:
    log.append(a_marker(commit=commit, pid=pid, epoch=epoch), now_ms=NOW, origin="coordinator")


def pad(log: PartitionLog, count: int = 3) -> None:
    """Fill the segment that grows, so that what was written before may be compacted."""
    for place in range(count):
        log.append(keyed((f"pad {log.end_offset} {place}", "x" * 100)), now_ms=NOW)


def kinds(log: PartitionLog) -> list[str]:
    """Return what is left of a log but its padding: keys of records, markers, empty batches."""
    found: list[str] = []
    offset = log.start_offset
    while offset < log.end_offset:
        data = log.read(offset, max_bytes=100_000)
        for at, header in scan(data):
            if not header.count:
                found.append(f"empty {header.base_offset}")
            elif header.control:
                found.append(f"marker {header.base_offset}")
            else:
                found += [record.key.decode() for record in records_of(data, at) if record.key]
        offset = scan(data)[-1][1].last_offset + 1
    return [kind for kind in found if not kind.startswith("pad")]


def test_aborted_records_go_and_replace_no_others(rig: Rig):
    log = rig.log_of(**SETTINGS)
    log.append(keyed(("k", "plain")), now_ms=NOW)
    in_transaction(log, 0, ("k", "aborted"), ("other", "aborted"))
    in_transaction(log, 2, ("last", "aborted"))
    end(log, commit=False)
    pad(log)

    log.compacting.run(NOW)

    assert kinds(log)[:3] == ["k", "empty 3", "marker 4"]
    assert state_of_committed(log)[b"k"] == b"plain"


def test_committed_records_replace_others_in_the_order_of_their_offsets(rig: Rig):
    log = rig.log_of(**SETTINGS)
    in_transaction(log, 0, ("a", "1"), ("b", "1"))
    log.append(keyed(("b", "2")), now_ms=NOW)
    end(log, commit=True)
    in_transaction(log, 2, ("a", "2"))
    end(log, commit=True)
    pad(log)
    before = state_of_committed(log)

    log.compacting.run(NOW)

    assert state_of_committed(log) == before
    assert kinds(log) == ["b", "marker 3", "a", "marker 5"]


def state_of_committed(log: PartitionLog) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in committed(log)}


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_marker_stays_for_delete_retention_after_the_last_batch_of_its_transaction(rig: Rig, how: str):
    log = rig.log_of(**SETTINGS)
    in_transaction(log, 0, ("a", "old"))
    end(log, commit=True)
    in_transaction(log, 1, ("gone", "1"))
    end(log, commit=False)
    in_transaction(log, 2, ("a", "new"))
    end(log, commit=True)
    pad(log)
    left = []

    for now_ms in (NOW, NOW + 1, NOW + 1000, NOW + 1001):
        log.compacting.run(now_ms)
        log = getattr(rig, how)()
        left.append(kinds(log))
        pad(log)

    assert left[0] == ["marker 1", "marker 3", "a", "marker 5"]
    assert left[1] == left[2] == left[0], "in the second round no batch was left"
    assert left[3] == ["a", "marker 5"]


def test_the_last_marker_of_a_producer_without_batches_stays(rig: Rig):
    """It alone says which epoch is fenced."""
    log = rig.log_of(**SETTINGS)
    in_transaction(log, 0, ("a", "1"))
    end(log, commit=False, epoch=1)
    pad(log)

    for now_ms in (NOW, NOW + 1, NOW + 2000, NOW + 4000):
        log.compacting.run(now_ms)
        pad(log)

    assert kinds(log) == ["empty 1"]
    for name in rig.names():
        if name.endswith(".snapshot"):
            rig.store.disk.remove(f"{rig.directory}/{name}")
    assert [(one.producer_id, one.epoch) for one in rig.kill().active_producers()] == [(9, 1)]


def test_the_list_of_aborted_transactions_shrinks_with_them(rig: Rig):
    log = rig.log_of(**SETTINGS)
    for sequence in range(6):
        in_transaction(log, sequence, ("k", f"{sequence}" * 40))
        end(log, commit=False)
    pad(log)
    assert len(log.aborted_transactions(0, 100)) == 6

    log.compacting.run(NOW)
    log.tick(NOW)
    assert len(log.aborted_transactions(0, 100)) == 6
    pad(log)
    log.compacting.run(NOW + 1)
    log.tick(NOW + 1)

    assert log.aborted_transactions(0, 100) == ((9, 10),), "its batch holds the producer's last sequence"
    log = rig.kill()
    assert log.aborted_transactions(0, 100) == ((9, 10),)


def test_a_transaction_over_the_edge_of_the_clean_part_is_known_whole(rig: Rig):
    log = rig.log_of(**SETTINGS)
    in_transaction(log, 0, ("k", "committed" * 12), pid=1)
    end(log, commit=True, pid=1)
    pad(log)
    log.compacting.run(NOW)
    in_transaction(log, 0, ("k", "void" * 30), pid=2)
    pad(log)
    assert not log.compacting.run(NOW + 1) or log.last_stable_offset < log.end_offset
    in_transaction(log, 1, ("k", "void again" * 10), pid=2)
    end(log, commit=False, pid=2)
    pad(log)

    log.compacting.run(NOW + 2)

    assert state_of_committed(log)[b"k"] == b"committed" * 12


def test_an_empty_batch_goes_when_nobody_needs_it_any_more(rig: Rig):
    log = rig.log_of(**SETTINGS)
    for sequence in range(2):
        log.append(idempotent(sequence, key="k"), now_ms=NOW)
    log.append(keyed(("k", "last")), now_ms=NOW)
    pad(log)
    log.compacting.run(NOW)
    assert kinds(log) == ["empty 1", "k"]

    log.append(idempotent(2, key="z"), now_ms=NOW)
    pad(log)
    log.compacting.run(NOW)

    assert kinds(log) == ["k", "z"]


def test_a_segment_of_an_open_transaction_is_not_compacted(rig: Rig):
    log = rig.log_of(**SETTINGS)
    log.append(
        keyed(("k", "open"), producer_id=9, producer_epoch=0, base_sequence=0, transactional=True), now_ms=NOW
    )
    for _ in range(5):
        log.append(keyed(("k", "x" * 100)), now_ms=NOW)

    assert not log.compacting.run(NOW)


def test_compact_and_delete_go_together(rig: Rig):
    log = a_full_log(rig, cleanup_policy="compact,delete", retention_ms=1000)
    log.compacting.run(NOW)

    log.tick(NOW + 1001)

    assert (log.start_offset, log.size_bytes) == (30, 0)


def test_times_are_found_after_a_compaction(rig: Rig):
    log = rig.log_of(**SETTINGS)
    for place in range(20):
        log.append(keyed((f"k{place % 4}", "v" * 60), at=NOW + place), now_ms=NOW)

    log.compacting.run(NOW)

    kept = offsets(log)
    for place in range(20):
        expected = min(offset for offset in kept if offset >= place)
        assert log.offset_for_timestamp(NOW + place) == OffsetAt(expected, NOW + expected, 0)
    assert log.offset_of_max_timestamp() == OffsetAt(19, NOW + 19, 0)


def test_a_plan_can_be_given_to_another_process(rig: Rig):
    log = a_full_log(rig)
    before = state_of(log)
    log.flush()
    plan = log.compacting.plan(NOW)

    result = pickle.loads(pickle.dumps(run_compaction(pickle.loads(pickle.dumps(plan)), rig.store.disk)))

    assert log.compacting.finish(result, NOW)
    assert state_of(log) == before


def test_appends_go_on_while_a_compaction_runs(rig: Rig):
    log = a_full_log(rig)
    log.flush()
    plan = log.compacting.plan(NOW)
    assert plan is not None
    log.append(keyed(("k0", "newest")), now_ms=NOW)

    assert log.compacting.finish(run_compaction(plan, rig.store.disk), NOW)

    assert state_of(log)[b"k0"] == b"newest"


@pytest.mark.parametrize("gone", ["while it runs", "before it is finished"])
def test_a_compaction_of_segments_that_are_gone_comes_to_nothing(rig: Rig, gone: str):
    """The first found by anyrequest: it ended in a traceback."""
    log = a_full_log(rig)
    log.flush()
    plan = log.compacting.plan(NOW)
    assert plan is not None
    if gone == "while it runs":
        log.delete_before(15, NOW)
    result = run_compaction(plan, rig.store.disk)
    if gone == "before it is finished":
        log.delete_before(15, NOW)
    after = everything(log)

    assert not log.compacting.finish(result, NOW)

    assert everything(log) == after
    assert not any(".cleaned" in name for name in rig.names())


def test_a_compaction_says_when_a_file_is_missing_that_nobody_took_away(rig: Rig):
    log = a_full_log(rig)
    log.flush()
    plan = log.compacting.plan(NOW)
    assert plan is not None
    rig.store.disk.remove(f"{plan.directory}/{plan.groups[0][0]:020}.log")

    with pytest.raises(StorageFailed, match="No such file or directory"):
        log.compacting.finish(run_compaction(plan, rig.store.disk), NOW)

    assert not any(".cleaned" in name for name in rig.names())


def test_a_log_that_is_not_compacted_has_no_plan(rig: Rig):
    log = rig.log_of(segment_bytes=150)
    for _ in range(5):
        log.append(a_batch("x" * 50, key="k"), now_ms=NOW)

    log.flush()
    assert log.compacting.plan(NOW) is None
    assert not log.compacting.need(NOW)


def test_long_keys_are_told_apart(rig: Rig):
    log = rig.log_of(**{**SETTINGS, "segment_bytes": 400})
    for place in range(6):
        log.append(keyed(("k" * 100 + str(place % 2), f"{place}" * 50)), now_ms=NOW)
    before = state_of(log)

    log.compacting.run(NOW)

    assert state_of(log) == before
    assert len(offsets(log)) < 6


# -- crashes


@pytest.mark.parametrize("step", ["cleaned", "half-swap", "swap", "half-final", "final"])
def test_a_crash_at_any_step_of_the_swap_loses_nothing(rig: Rig, step: str):
    log = a_full_log(rig)
    before = state_of(log)
    log.flush()
    plan = log.compacting.plan(NOW)
    assert plan is not None
    result = run_compaction(plan, rig.store.disk)
    _go_as_far_as(step, log, rig, result.groups[0].bases)

    log = rig.kill()

    assert state_of(log) == before
    assert log.end_offset == 30
    assert not any(name.endswith((".cleaned", ".swap", ".deleted")) for name in rig.names())
    log.compacting.run(NOW)
    assert state_of(log) == before


def _go_as_far_as(step: str, log: PartitionLog, rig: Rig, bases: tuple[int, ...]) -> None:
    disk = rig.store.disk
    stem = f"{log.directory}/{bases[0]:020d}"
    if step == "cleaned":
        return
    if step == "half-swap":
        disk.rename(f"{stem}.index.cleaned", f"{stem}.index.swap")
        return
    cleaned_to_swap(stem, disk)
    if step == "swap":
        return
    for base in bases:
        old = f"{log.directory}/{base:020d}"
        for ending in (".index", ".timeindex", ".log"):
            disk.rename(old + ending, f"{old}{ending}.deleted")
    endings = (".index",) if step == "half-final" else (".index", ".timeindex", ".log")
    for ending in endings:
        disk.rename(f"{stem}{ending}.swap", stem + ending)


def test_an_idempotent_producer_goes_on_after_its_log_was_compacted(rig: Rig):
    log = rig.log_of(**SETTINGS)
    for sequence in range(20):
        log.append(idempotent(sequence, key="same"), now_ms=NOW)

    log.compacting.run(NOW)
    log = rig.kill()

    assert log.append(idempotent(19, key="same"), now_ms=NOW).duplicate
    assert log.append(idempotent(20, key="same"), now_ms=NOW).base_offset == 20
    assert rig.store.logs[ORDERS] is log
