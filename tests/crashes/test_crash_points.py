"""Seeds of the crash points, and that one seed is one story. More: `python -m crashes`, `make interop`."""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import suppress
from errno import EIO
from itertools import count
from pathlib import Path
from uuid import UUID

import pytest

from coterie.base.ids import TopicPartition
from coterie.broker.topics.registry import Topics
from coterie.storage.checkpoints import write_partition_metadata
from coterie.storage.config import LogConfig
from coterie.storage.directory import Store, things_of_others
from coterie.storage.log.partition import PartitionLog
from crashes.disk import CrashDisk, Killed
from crashes.life import NOW_MS, SETTINGS, run
from crashes.planted import FAULTS, first, remembered
from unit.storage.store_rig import a_batch, a_marker, idempotent

SEEDS = range(125)  # make interop lives 2,000 others
STRIDE = 125
ONCE_FAILED = (
    *(24878, 25371, 41481, 44939, 47548, 48157, 53026, 55085),
    *(
        3896,
        202249,
        212895,
        300325,
        303395,
        303591,
        306575,
        412776,
        417293,
        426888,
        443991,
        607614,
        635542,
        677482,
        3014671,
        3014873,
        4011304,
        4012294,
        9000405,
    ),
)
PLACE = TopicPartition("orders", 0)
SMALL_SEGMENTS = LogConfig.of({"segment.bytes": 300, "flush.messages": 1})
FIRST_START_EFFECTS = 8
KILLS_LEAST, EFFECTS_LEAST = 800, 50_000  # of a stride, or it is no proof


@pytest.fixture(autouse=True)
def _quiet() -> object:
    logging.disable(logging.CRITICAL)  # a disk that refuses is told of all the time
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS[::STRIDE])
def test_a_broker_that_is_stopped_anywhere_keeps_what_it_promised(first: int):
    outcomes = [run(seed) for seed in range(first, first + STRIDE)]

    failures = [outcome.line for outcome in outcomes if outcome.violation]
    assert not failures, "\n".join(failures)
    assert sum(outcome.kills for outcome in outcomes) >= KILLS_LEAST
    assert sum(outcome.effects for outcome in outcomes) >= EFFECTS_LEAST


def test_one_seed_is_one_story():
    assert run(11) == run(11)
    assert run(11).story != run(12).story


@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_a_seed_that_has_failed_once_is_well(seed: int):
    assert not run(seed).violation


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_in_the_seed_that_is_remembered(name: str):
    seed = remembered()[name]

    with FAULTS[name]():
        found = run(seed)

    assert found.violation
    assert not run(seed).violation


@pytest.mark.parametrize("seed", range(8))
def test_a_clean_stop_leaves_a_new_list_of_aborted_transactions_though_its_snapshot_is_refused(seed: int):
    """What seed 53026 was: one in tens of thousands draws the stop and the refusal that it takes."""
    disk = Choosy(seed)
    store = Store(disk, "data", now_ms=NOW_MS, new_uuid=lambda: UUID(int=seed))
    log = store.create_log(*PLACE, UUID(int=7), LogConfig.of({}))
    log.append(idempotent(0, transactional=True), now_ms=NOW_MS)
    log.flush()
    log.append(a_marker(commit=False), now_ms=NOW_MS, origin="coordinator")
    disk.refused = ".snapshot"
    store.close()

    disk.revive(power_lost=True)

    again = Store(disk, "data", now_ms=NOW_MS, new_uuid=lambda: UUID(int=seed)).logs[PLACE]
    assert again.aborted_transactions(0, again.end_offset) == ((9, 0),)


def a_store(disk: CrashDisk, seed: int) -> Store:
    return Store(
        disk, "data", now_ms=NOW_MS, new_uuid=lambda: UUID(int=seed), configs=lambda *_: SMALL_SEGMENTS
    )


@pytest.mark.parametrize("seed", range(8))
def test_where_a_kill_has_left_a_log_to_start_is_written_down_with_the_next_deletion(seed: int):
    """What seed 412776 was: the segments were away, the start unwritten, and the deletion did nothing."""
    disk = CrashDisk(seed)
    log = a_store(disk, seed).create_log(*PLACE, UUID(int=7), SMALL_SEGMENTS)
    for place in range(6):
        log.append(a_batch(f"{place}" * 150), now_ms=NOW_MS)
    log.delete_before(4, NOW_MS, save=False)
    disk.revive(power_lost=False)  # killed before it was written down
    store = a_store(disk, seed)
    log = store.logs[PLACE]
    assert log.start_offset == 4

    log.delete_before(4, NOW_MS, save=False)
    store.checkpoints.save_starts()
    disk.revive(power_lost=True)

    assert a_store(disk, seed).logs[PLACE].start_offset == 4


@pytest.mark.parametrize("seed", range(8))
def test_an_id_that_was_never_put_in_place_does_not_become_that_of_the_next_log(seed: int):
    """What seed 4011304 was: the next id was written over the last, and a loss of power took it back."""
    disk = CrashDisk(seed)
    directory = f"data/{PLACE}"
    disk.make_directory(directory)
    disk.save(f"{directory}/partition.metadata", write_partition_metadata(UUID(int=7)), sync=True)
    disk.rename(f"{directory}/partition.metadata", f"{directory}/partition.metadata.tmp")  # killed before
    for path in ("data", directory):
        disk.sync_directory(path)

    a_store(disk, seed).create_log(*PLACE, UUID(int=8), SMALL_SEGMENTS)
    for path in ("data", directory):
        disk.sync_directory(path)
    disk.revive(power_lost=True)

    assert a_store(disk, seed).topic_id(*PLACE) in (None, UUID(int=8))


def a_log_without_a_snapshot(disk: Choosy) -> tuple[Store, PartitionLog]:
    """Return a log that one producer has begun, and of which one segment has no snapshot at its start."""
    store = a_store(disk, 0)
    log = store.create_log(*PLACE, UUID(int=7), SMALL_SEGMENTS)
    log.append(idempotent(0, transactional=True), now_ms=NOW_MS)
    for place in range(5):
        disk.refused = "3.snapshot" if place == 2 else "never"
        log.append(a_batch(f"{place}" * 200), now_ms=NOW_MS)
    return store, log


def test_a_deletion_that_is_stopped_between_any_two_segments_forgets_no_producer():
    """What seed 426888 was: a start began at a segment that had no snapshot, after those before had gone."""
    kills = 0
    for effects in range(30):
        disk = Choosy(effects)
        _, log = a_log_without_a_snapshot(disk)
        disk.kill_after(effects)
        with suppress(Killed):
            log.delete_before(log.end_offset, NOW_MS, save=False)
        kills += disk.countdown.dead
        disk.revive(power_lost=False)

        again = a_store(disk, 0).logs[PLACE]

        assert [one.producer_id for one in again.active_producers()] == [9]
        assert again.open_transaction(9) == 0
    assert 0 < kills < 30


def test_segments_that_had_to_stay_for_their_producers_go_when_the_next_start_needs_them_no_more():
    disk = Choosy(0)
    store, log = a_log_without_a_snapshot(disk)
    log.delete_before(log.end_offset, NOW_MS, save=False)
    stayed = len([name for name in disk.files(log.directory) if name.endswith(".log")])

    store.checkpoints.save()  # as every minute
    log.append(a_batch("x" * 200), now_ms=NOW_MS)
    log.delete_before(log.end_offset, NOW_MS, save=False)

    left = [name for name in disk.files(log.directory) if name.endswith(".log")]
    assert (stayed, len(left)) == (4, 1)


class Choosy(CrashDisk):
    """A disk that saves no file of a name that ends so."""

    refused = "never"

    def save(self, path: str, data: bytes, *, sync: bool = False) -> None:
        if path.endswith(self.refused):
            raise OSError(EIO, path)
        super().save(path, data, sync=sync)


@pytest.mark.interop
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_within_its_seeds(name: str):
    found = first(name)

    assert found is not None, f"{name} went unnoticed"
    assert f"python -m crashes --seed {found.seed}" in found.line


@pytest.mark.parametrize("power_lost", [False, True])
def test_wherever_the_first_start_is_stopped_the_directory_is_a_brokers_or_as_empty(power_lost: bool):
    for effects in count():
        disk = CrashDisk(effects)
        disk.kill_after(effects)
        started = False
        with suppress(Killed):
            Topics.open(SETTINGS, a_store(disk, effects))
            started = True
        disk.revive(power_lost=power_lost)

        assert things_of_others(disk, "data") == []
        if started:
            break
    assert effects >= FIRST_START_EFFECTS


def test_seeds_are_lived_from_the_command_line():
    folder = Path(__file__).parents[1]
    command = [sys.executable, "-m", "crashes", "--seeds", "1"]

    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "1 seeds" in done.stdout
