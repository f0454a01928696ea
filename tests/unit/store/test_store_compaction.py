"""Key compaction: what stays, for how long, and that a crash at any step loses nothing."""

import pickle

import pytest
from store_rig import NOW, ORDERS, Rig, a_batch, a_marker, everything, idempotent, keyed, offsets, records_in

from coterie.store.compaction import cleaned_to_swap, run_compaction
from coterie.store.files import FileLog
from coterie.store.log import OffsetAt
from coterie.wire.batches import check_crc, scan

HOUR = 3_600_000
SETTINGS = {
    "cleanup_policy": "compact",
    "segment_bytes": 230,
    "min_cleanable_dirty_ratio": 0.01,
    "delete_retention_ms": 1000,
    "file_delete_delay_ms": 0,
    "index_interval_bytes": 50,
}


def state_of(log: FileLog) -> dict[bytes, bytes | None]:
    """Return what a reader of the whole log knows of each key in the end."""
    known: dict[bytes, bytes | None] = {}
    for record in everything(log):
        assert record.key is not None
        known[record.key] = record.value
    return {key: value for key, value in known.items() if value is not None}


def a_full_log(rig: Rig, **settings: object) -> FileLog:
    """Return a log where each of three keys was written ten times, one a segment or so."""
    log = rig.log_of(**{**SETTINGS, **settings})
    for place in range(30):
        log.append(keyed((f"k{place % 3}", f"v{place:060d}")), now_ms=NOW)
    return log


def test_only_the_newest_record_of_each_key_stays(rig: Rig):
    log = a_full_log(rig)
    before = state_of(log)

    assert log.compactable(NOW)
    assert log.compact(NOW)

    active = [name for name in sorted(rig.names()) if name.endswith(".log")][-1]
    newest = int(active[:20])
    below = [offset for offset in offsets(log) if offset < newest]
    assert state_of(log) == before
    assert len(below) <= 3
    assert log.end_offset == 30
    assert not log.compactable(NOW)


def test_offsets_stay_and_reads_lead_across_the_gaps(rig: Rig):
    log = a_full_log(rig)
    kept = {record.offset: record for record in everything(log)}
    log.compact(NOW)

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
    log.compact(NOW)
    after = everything(log)

    log = getattr(rig, how)()

    assert everything(log) == after
    assert not log.compactable(NOW)
    for place in range(30):
        log.append(keyed((f"k{place % 3}", f"w{place:060d}")), now_ms=NOW)
    before = state_of(log)
    assert log.compact(NOW)
    assert state_of(log) == before


def test_the_segment_that_grows_is_never_compacted(rig: Rig):
    log = rig.log_of(**{**SETTINGS, "segment_bytes": 100_000})
    for _ in range(5):
        log.append(keyed(("k", "v")), now_ms=NOW)

    assert not log.compactable(NOW)
    assert not log.compact(NOW)
    assert offsets(log) == [0, 1, 2, 3, 4]


def test_a_batch_loses_the_records_that_are_superseded_and_keeps_its_offsets(rig: Rig):
    log = rig.log_of(**SETTINGS)
    log.append(keyed(("a", "1"), ("b", "2"), ("c", "3"), codec="gzip"), now_ms=NOW)
    log.append(keyed(("b", "x" * 100)), now_ms=NOW)
    log.append(keyed(("z", "y" * 100)), now_ms=NOW)

    log.compact(NOW)

    _, header = scan(log.read(0, max_bytes=10_000))[0]
    assert (header.base_offset, header.last_offset, header.count, header.codec) == (0, 2, 2, 1)
    assert [(r.offset, r.key) for r in everything(log)][:3] == [(0, b"a"), (2, b"c"), (3, b"b")]


def test_a_tombstone_stays_until_its_time_is_over(rig: Rig):
    log = rig.log_of(**SETTINGS)
    log.append(keyed(("gone", "value")), now_ms=NOW)
    log.append(keyed(("gone", None)), now_ms=NOW)
    for place in range(3):
        log.append(keyed((f"pad{place}", "x" * 100)), now_ms=NOW)

    log.compact(NOW)
    first = [(r.offset, r.key, r.value, r.timestamp) for r in everything(log)]
    for place in range(3):
        log.append(keyed((f"more{place}", "x" * 100)), now_ms=NOW)
    log.compact(NOW + 999)
    second = [(r.key, r.value) for r in everything(log)]
    for place in range(3):
        log.append(keyed((f"last{place}", "x" * 100)), now_ms=NOW)
    log.compact(NOW + 1000)

    assert first[0] == (1, b"gone", None, NOW)
    assert (b"gone", None) in second
    assert b"gone" not in {record.key for record in everything(log)}


def test_the_last_batch_of_a_producer_stays_if_need_be_empty(rig: Rig):
    log = rig.log_of(**SETTINGS)
    how = {"producer_id": 5, "producer_epoch": 1}
    log.append(keyed(("k", "old"), base_sequence=0, **how), now_ms=NOW)
    log.append(keyed(("k", "older"), base_sequence=1, **how), now_ms=NOW)
    for place in range(3):
        log.append(keyed(("k", f"{place}" * 100)), now_ms=NOW)

    log.compact(NOW)
    log = rig.kill()

    headers = [header for _, header in scan(log.read(0, max_bytes=10_000))]
    assert [(h.base_offset, h.count) for h in headers if h.producer_id == 5] == [(1, 0)]
    assert log.append(keyed(("k", "new"), base_sequence=2, **how), now_ms=NOW).base_offset == 5


def test_the_end_of_a_round_keeps_its_place(rig: Rig):
    log = rig.log_of(**SETTINGS)
    log.append(keyed(("k", "a" * 100)), now_ms=NOW)
    log.append(keyed(("k", "b" * 100)), now_ms=NOW)
    log.append(keyed(("k", "c" * 100)), now_ms=NOW)

    log.compact(NOW)

    assert [(r.offset, r.key) for r in everything(log)] == [(1, b"k"), (2, b"k")]
    log.append(keyed(("k", "d" * 100)), now_ms=NOW)
    log.compact(NOW)
    assert offsets(log) == [2, 3]


def test_records_too_young_for_their_lag_stay(rig: Rig):
    log = a_full_log(rig, min_compaction_lag_ms=HOUR)

    assert not log.compactable(NOW + HOUR - 1)
    assert log.compactable(NOW + HOUR)


def test_a_log_that_is_hardly_dirty_waits_unless_it_waited_too_long(rig: Rig):
    log = a_full_log(rig, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=HOUR)

    assert not log.compactable(NOW + HOUR)
    assert log.compactable(NOW + HOUR + 1)


def test_segments_that_became_small_are_put_together(rig: Rig):
    log = a_full_log(rig)
    log.compact(NOW)
    for place in range(10):
        log.append(keyed((f"k{place % 3}", f"w{place:060d}")), now_ms=NOW)
    count = len([name for name in rig.names() if name.endswith(".log")])

    log.compact(NOW)
    log.tick(NOW)

    assert len([name for name in rig.names() if name.endswith(".log")]) < count


def test_what_is_in_transactions_is_left_alone(rig: Rig):
    log = rig.log_of(**SETTINGS)
    log.append(keyed(("k", "plain")), now_ms=NOW)
    log.append(
        keyed(("k", "aborted"), producer_id=9, producer_epoch=0, base_sequence=0, transactional=True),
        now_ms=NOW,
    )
    log.append(a_marker(commit=False), now_ms=NOW, origin="coordinator")
    for place in range(3):
        log.append(keyed((f"pad{place}", "x" * 100)), now_ms=NOW)

    log.compact(NOW)

    assert offsets(log)[:3] == [0, 1, 2]


def test_a_segment_of_an_open_transaction_is_not_compacted(rig: Rig):
    log = rig.log_of(**SETTINGS)
    log.append(
        keyed(("k", "open"), producer_id=9, producer_epoch=0, base_sequence=0, transactional=True), now_ms=NOW
    )
    for _ in range(5):
        log.append(keyed(("k", "x" * 100)), now_ms=NOW)

    assert not log.compact(NOW)


def test_compact_and_delete_go_together(rig: Rig):
    log = a_full_log(rig, cleanup_policy="compact,delete", retention_ms=1000)
    log.compact(NOW)

    log.tick(NOW + 1001)

    assert (log.start_offset, log.size_bytes) == (30, 0)


def test_times_are_found_after_a_compaction(rig: Rig):
    log = rig.log_of(**SETTINGS)
    for place in range(20):
        log.append(keyed((f"k{place % 4}", "v" * 60), at=NOW + place), now_ms=NOW)

    log.compact(NOW)

    kept = offsets(log)
    for place in range(20):
        expected = min(offset for offset in kept if offset >= place)
        assert log.offset_for_timestamp(NOW + place) == OffsetAt(expected, NOW + expected, 0)
    assert log.offset_of_max_timestamp() == OffsetAt(19, NOW + 19, 0)


def test_a_plan_can_be_given_to_another_process(rig: Rig):
    log = a_full_log(rig)
    before = state_of(log)
    plan = log.plan_compaction(NOW)

    result = pickle.loads(pickle.dumps(run_compaction(pickle.loads(pickle.dumps(plan)), rig.store.disk)))

    assert log.finish_compaction(result, NOW)
    assert state_of(log) == before


def test_appends_go_on_while_a_compaction_runs(rig: Rig):
    log = a_full_log(rig)
    plan = log.plan_compaction(NOW)
    assert plan is not None
    log.append(keyed(("k0", "newest")), now_ms=NOW)

    assert log.finish_compaction(run_compaction(plan, rig.store.disk), NOW)

    assert state_of(log)[b"k0"] == b"newest"


def test_a_compaction_of_segments_that_are_gone_comes_to_nothing(rig: Rig):
    log = a_full_log(rig)
    plan = log.plan_compaction(NOW)
    assert plan is not None
    result = run_compaction(plan, rig.store.disk)
    log.delete_before(15, NOW)
    after = everything(log)

    assert not log.finish_compaction(result, NOW)

    assert everything(log) == after
    assert not any(".cleaned" in name for name in rig.names())


def test_a_log_that_is_not_compacted_has_no_plan(rig: Rig):
    log = rig.log_of(segment_bytes=150)
    for _ in range(5):
        log.append(a_batch("x" * 50, key="k"), now_ms=NOW)

    assert log.plan_compaction(NOW) is None
    assert not log.compactable(NOW)


def test_long_keys_are_told_apart(rig: Rig):
    log = rig.log_of(**{**SETTINGS, "segment_bytes": 400})
    for place in range(6):
        log.append(keyed(("k" * 100 + str(place % 2), f"{place}" * 50)), now_ms=NOW)
    before = state_of(log)

    log.compact(NOW)

    assert state_of(log) == before
    assert len(offsets(log)) < 6


# -- crashes


@pytest.mark.parametrize("step", ["cleaned", "half-swap", "swap", "half-final", "final"])
def test_a_crash_at_any_step_of_the_swap_loses_nothing(rig: Rig, step: str):
    log = a_full_log(rig)
    before = state_of(log)
    plan = log.plan_compaction(NOW)
    assert plan is not None
    result = run_compaction(plan, rig.store.disk)
    _go_as_far_as(step, log, rig, result.groups[0].bases)

    log = rig.kill()

    assert state_of(log) == before
    assert log.end_offset == 30
    assert not any(name.endswith((".cleaned", ".swap", ".deleted")) for name in rig.names())
    log.compact(NOW)
    assert state_of(log) == before


def _go_as_far_as(step: str, log: FileLog, rig: Rig, bases: tuple[int, ...]) -> None:
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

    log.compact(NOW)
    log = rig.kill()

    assert log.append(idempotent(19, key="same"), now_ms=NOW).duplicate
    assert log.append(idempotent(20, key="same"), now_ms=NOW).base_offset == 20
    assert rig.store.logs[ORDERS] is log
