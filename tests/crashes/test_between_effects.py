"""What a start makes of a directory that was left between two effects, or that came back without one file."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

import pytest

from coterie.base.ids import TopicPartition
from coterie.storage.compaction import run_compaction
from coterie.storage.config import LogConfig
from coterie.storage.directory import Store
from coterie.storage.log.partition import PartitionLog
from crashes.disk import CrashDisk, Killed
from unit.storage.store_rig import a_batch, a_config, a_marker, committed, everything, idempotent, keyed

NOW_MS = 1_700_000_000_000
PLACE = TopicPartition("orders", 0)
COMPACTED = a_config(
    cleanup_policy="compact", segment_bytes=300, delete_retention_ms=1000, file_delete_delay_ms=0
)


def a_store(disk: CrashDisk, config: LogConfig) -> Store:
    return Store(
        disk,
        "data",
        now_ms=NOW_MS,
        new_uuid=lambda: UUID(int=disk.random.getrandbits(126)),
        configs=lambda *_: config,
    )


def again(disk: CrashDisk, config: LogConfig, *, power_lost: bool = False) -> PartitionLog:
    """Return the log as the next process finds it."""
    disk.revive(power_lost=power_lost)
    return a_store(disk, config).logs[PLACE]


def no_compaction_brings_it_back(log: PartitionLog) -> None:
    """Compact until the tombstone of the key `gone` may go: its value went before."""
    for round_ms in (0, 1000, 2000):
        pad(log)
        log.flush()
        log.compacting.run(NOW_MS + round_ms)
        seen = [record.value for record in everything(log) if record.key == b"gone"]
        assert seen[-1:] in ([], [None])


def pad(log: PartitionLog, *, at: int = NOW_MS) -> None:
    """Fill the segment that grows, and begin another."""
    for place in range(3):
        log.append(keyed((f"pad{place}", "x" * 200), at=at), now_ms=NOW_MS)


@pytest.mark.parametrize("seed", range(12))
def test_a_key_that_was_deleted_stays_deleted_though_a_loss_of_power_undid_the_compaction(seed: int):
    """The checkpoint told of a compaction whose renames were lost: the tombstone went before the value."""
    disk = CrashDisk(seed)
    log = a_store(disk, COMPACTED).create_log(*PLACE, UUID(int=7), COMPACTED)
    log.append(keyed(("gone", "v" * 100)), now_ms=NOW_MS)
    log.append(keyed(("gone", None)), now_ms=NOW_MS)
    pad(log)
    log.flush()
    assert log.compacting.run(NOW_MS)

    log = again(disk, COMPACTED, power_lost=True)

    no_compaction_brings_it_back(log)


def a_log_with_an_aborted_transaction(disk: CrashDisk, config: LogConfig) -> tuple[Store, PartitionLog]:
    store = a_store(disk, config)
    log = store.create_log(*PLACE, UUID(int=7), config)
    log.append(idempotent(0, transactional=True, at=NOW_MS + 5), now_ms=NOW_MS)
    log.append(a_marker(commit=False), now_ms=NOW_MS, origin="coordinator")
    pad(log)
    log.append(a_batch("y" * 200), now_ms=NOW_MS)
    return store, log


SMALL = a_config(segment_bytes=300)


def without_indexes(disk: CrashDisk) -> None:
    """Leave what a backup of the logs alone has."""
    for name in disk.files(f"data/{PLACE}"):
        if name.endswith(("index", ".snapshot")):
            disk.remove(f"data/{PLACE}/{name}")
    disk.sync_directory(f"data/{PLACE}")


def what_readers_are_told(log: PartitionLog) -> tuple[object, ...]:
    at = log.offset_for_timestamp(NOW_MS + 5)
    return log.aborted_transactions(0, log.end_offset), committed(log), at and at.offset


def test_a_kill_while_the_indexes_are_made_anew_leaves_no_aborted_record_for_a_committed_one():
    """The list of aborted transactions came last: without it, but with the other indexes, there were none."""
    effects, done = 0, False
    while not done:
        disk = CrashDisk(1)
        store, log = a_log_with_an_aborted_transaction(disk, SMALL)
        told = what_readers_are_told(log)
        store.close()
        without_indexes(disk)
        disk.kill_after(effects)
        try:
            a_store(disk, SMALL)
            done = True
        except Killed:
            pass

        assert what_readers_are_told(again(disk, SMALL)) == told, f"killed after {effects} effects"
        effects += 1
    assert effects > 10


@pytest.mark.parametrize("seed", range(20))
def test_indexes_that_were_made_anew_outlive_a_loss_of_power(seed: int):
    """They lie below the recovery point: nobody looked at them again, and an empty one was believed."""
    disk = CrashDisk(seed)
    store, log = a_log_with_an_aborted_transaction(disk, SMALL)
    told = what_readers_are_told(log)
    store.close()
    without_indexes(disk)
    log = a_store(disk, SMALL).logs[PLACE]
    log.append(a_batch("z"), now_ms=NOW_MS)
    log.flush()
    told = what_readers_are_told(log)

    assert what_readers_are_told(again(disk, SMALL, power_lost=True)) == told


@pytest.mark.parametrize("seed", range(20))
def test_times_are_found_though_the_power_was_lost_after_a_compaction(seed: int):
    """The indexes of what was compacted were never flushed, and an empty one was believed."""
    disk = CrashDisk(seed)
    store = a_store(disk, COMPACTED)
    log = store.create_log(*PLACE, UUID(int=7), COMPACTED)
    log.append(keyed(("k", "v" * 100), at=NOW_MS + 5), now_ms=NOW_MS)
    pad(log)
    log.flush()
    store.tick(NOW_MS + 60_000)  # the recovery point is written down
    assert log.compacting.run(NOW_MS)
    log.flush()
    told = what_readers_are_told(log)

    assert what_readers_are_told(again(disk, COMPACTED, power_lost=True)) == told


def test_a_log_that_was_cut_below_what_is_compacted_is_compacted_anew_when_it_has_grown_again():
    """What was written there instead passed for compacted, so that a tombstone went before its value."""
    disk = CrashDisk(1)
    store = a_store(disk, COMPACTED)
    log = store.create_log(*PLACE, UUID(int=7), COMPACTED)
    for _ in range(4):
        pad(log)
    log.flush()
    assert log.compacting.run(NOW_MS)
    store.close()
    for name in disk.files(f"data/{PLACE}"):  # and an older backup, of one batch, in its place
        if name.endswith(".log"):
            disk.remove(f"data/{PLACE}/{name}")
    disk.open(f"data/{PLACE}/{0:020}.log", create=True).write([keyed(("old", "o"))], 0)
    log = again(disk, COMPACTED)
    log.append(keyed(("gone", "v" * 100)), now_ms=NOW_MS)
    log.append(keyed(("gone", None)), now_ms=NOW_MS)
    for _ in range(4):
        pad(log)

    no_compaction_brings_it_back(log)


def a_log_of_two_keys(disk: CrashDisk) -> tuple[Store, PartitionLog]:
    """Return a store and the log in it, which compaction has something to do with."""
    store = a_store(disk, COMPACTED)
    log = store.create_log(*PLACE, UUID(int=7), COMPACTED)
    for place in range(20):
        log.append(keyed((f"k{place % 2}", f"{place}" * 100)), now_ms=NOW_MS)
    log.flush()
    return store, log


def by_key(log: PartitionLog) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in everything(log)}


@pytest.mark.parametrize("kill", range(12))
def test_the_files_of_a_swap_tell_that_a_log_has_gaps(kill: int):
    """An earlier version wrote that down after the swap; the start, told to delete, cut the log."""
    disk = CrashDisk(1)
    store, log = a_log_of_two_keys(disk)
    newest = by_key(log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store.checkpoints), "expect_gaps", lambda *_: None)
        plan = log.compacting.plan(NOW_MS)
        assert plan is not None
        result = run_compaction(plan, disk)
        disk.kill_after(4)
        with pytest.raises(Killed):
            log.compacting.finish(result, NOW_MS)
    disk.revive(power_lost=False)
    assert any(name.endswith(".log.swap") for name in disk.files(f"data/{PLACE}"))

    disk.kill_after(kill)
    with suppress(Killed):
        a_store(disk, SMALL)

    for _ in range(2):
        log = again(disk, SMALL)
        assert by_key(log) == newest


def test_a_log_that_was_compacted_is_whole_though_the_checkpoint_that_says_so_is_gone():
    disk = CrashDisk(1)
    store, log = a_log_of_two_keys(disk)
    assert log.compacting.run(NOW_MS)
    newest = by_key(log)
    store.tick(NOW_MS + 60_000)
    disk.remove("data/cleaner-offset-checkpoint")
    disk.save("data/recovery-point-offset-checkpoint", b"0\n0\n")

    for _ in range(2):
        log = again(disk, SMALL)
        assert by_key(log) == newest


@pytest.mark.parametrize("power_lost", [False, True])
def test_a_producer_is_known_after_a_crash_though_a_compaction_put_the_segments_together(power_lost: bool):
    """The start begins further back then, where no snapshot tells of it any more."""
    disk = CrashDisk(1)
    config = a_config(cleanup_policy="compact", segment_bytes=600, file_delete_delay_ms=0)
    store = a_store(disk, config)
    log = store.create_log(*PLACE, UUID(int=7), config)
    log.append(idempotent(0, key="k0"), now_ms=NOW_MS)
    for place in range(30):
        log.append(keyed((f"k{place % 2}", "x" * 200)), now_ms=NOW_MS)
    log.flush()
    store.tick(NOW_MS + 60_000)
    log.delete_before(4, NOW_MS)
    log.tick(NOW_MS)
    assert [one.producer_id for one in log.active_producers()] == [9]
    for _ in range(3):  # within the minute until the recovery points are written again
        for place in range(9):
            log.append(keyed((f"k{place % 2}", "x" * 200)), now_ms=NOW_MS)
        log.flush()
        assert log.compacting.run(NOW_MS)
        log.tick(NOW_MS)

    log = again(disk, config, power_lost=power_lost)

    assert [one.producer_id for one in log.active_producers()] == [9]


def a_log_of_times(disk: CrashDisk, config: LogConfig, times: range) -> Store:
    store = a_store(disk, config)
    log = store.create_log(*PLACE, UUID(int=7), config)
    for time in times:
        log.append(a_batch("x" * 90, at=NOW_MS + time), now_ms=NOW_MS)
    return store


def found_by_time(log: PartitionLog) -> list[int | None]:
    found = [log.offset_for_timestamp(NOW_MS + place) for place in range(12)]
    return [one and one.offset for one in found]


@pytest.mark.parametrize("seed", range(20))
def test_times_are_found_in_closed_segments_of_a_log_that_flushes_every_record(seed: int):
    """The recovery point had passed them before they were closed: nobody flushed their indexes."""
    disk = CrashDisk(seed)
    config = a_config(flush_messages=1, segment_bytes=600, index_interval_bytes=100)
    store = a_log_of_times(disk, config, range(12))
    store.tick(NOW_MS + 60_000)

    log = again(disk, config, power_lost=True)

    assert found_by_time(log) == list(range(12))


@pytest.mark.parametrize("seed", range(20))
def test_times_are_found_though_the_power_is_lost_after_a_clean_stop(seed: int):
    """The next start believes the indexes of the segment that grew, and looks at its last batches alone."""
    disk = CrashDisk(seed)
    config = a_config(index_interval_bytes=100)
    a_log_of_times(disk, config, range(11, -1, -1)).close()

    log = again(disk, config, power_lost=True)

    assert found_by_time(log) == [0] * 12


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("moved", [False, True])
def test_an_epoch_that_clients_were_told_of_outlives_a_loss_of_power_though_nothing_is_of_it(
    seed: int, moved: bool
):
    """They ask for it from then on, and an older leader has no answer."""
    disk = CrashDisk(seed)
    log = a_store(disk, SMALL).create_log(*PLACE, UUID(int=7), SMALL)
    pad(log)
    log.flush()
    log.lead(7)
    if moved:
        log.delete_before(2, NOW_MS)

    log = again(disk, SMALL, power_lost=True)

    assert log.latest_epoch == 7
