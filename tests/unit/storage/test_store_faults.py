"""Disks that fail, fill up and lose power: the fake's faults, and what a log makes of them."""

import errno
from contextlib import suppress

import pytest
from store_rig import (
    NOW,
    ORDERS,
    TOPIC_ID,
    a_batch,
    a_config,
    a_marker,
    committed,
    everything,
    idempotent,
    keyed,
    offsets,
)

from coterie.base.codes import Code
from coterie.storage.compaction import run_compaction
from coterie.storage.disk import FileInfo
from coterie.storage.log.contract import AppendRefused, StorageFailed
from coterie.storage.log.flushing import (
    FlushPlan,
    run_flush,
)
from coterie.storage.log.partition import (
    PartitionLog,
)
from coterie.storage.memory import Faults, MemoryDisk, MemoryStore


def a_log(disk: MemoryDisk, **settings: object) -> tuple[MemoryStore, PartitionLog]:
    """Return a store on the disk, and its log."""
    config = a_config(**settings)
    store = MemoryStore.open(now_ms=NOW, disk=disk, configs=lambda *_: config)
    log = store.logs.get(ORDERS) or store.create_log(*ORDERS, TOPIC_ID, config)
    return store, log


def append(log: PartitionLog, value: str = "v") -> Code:
    """Append a record; return what it was answered with."""
    try:
        log.append(a_batch(value), now_ms=NOW)
    except AppendRefused as refused:
        return refused.code
    return Code.NONE


def test_a_write_that_fails_is_answered_and_taken_back():
    disk = MemoryDisk(seed=3)
    store, log = a_log(disk)
    append(log, "a")
    disk.faults.refuse = {"write"}

    assert append(log, "b") == Code.KAFKA_STORAGE_ERROR
    assert (log.end_offset, log.size_bytes) == (1, len(a_batch("a")))
    disk.faults.refuse = set()
    assert append(log, "c") == Code.NONE

    _, log = a_log(store.crash())
    assert [record.value for record in everything(log)] == [b"a", b"c"]


def test_a_segment_that_could_not_be_begun_leaves_nothing_behind():
    """Found by the simulator: its empty file made the next opening drop every segment behind it."""
    disk = MemoryDisk(seed=1)
    one = len(a_batch("a"))
    store, log = a_log(disk, segment_bytes=2 * one)
    append(log, "a")
    append(log, "b")
    disk.faults.refuse = {"write"}
    assert append(log, "a segment for itself") == Code.KAFKA_STORAGE_ERROR

    disk.faults.refuse = set()
    log.configure(a_config(segment_bytes=4 * one))
    for value in "cdef":
        assert append(log, value) == Code.NONE

    _, log = a_log(store.crash())
    assert [record.value for record in everything(log)] == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_a_full_disk_takes_appends_again_when_there_is_room():
    disk = MemoryDisk()
    _, log = a_log(disk)
    append(log, "a")
    disk.faults.capacity = 600

    codes = [append(log, "x" * 50) for _ in range(6)]
    disk.faults.capacity = None
    codes.append(append(log, "y"))

    assert codes[0] == codes[-1] == Code.NONE
    assert codes[-2] == Code.KAFKA_STORAGE_ERROR
    assert offsets(log) == list(range(log.end_offset))


def test_what_could_not_be_taken_back_at_once_is_taken_back_before_the_next_append():
    disk = MemoryDisk(seed=5)
    store, log = a_log(disk)
    append(log, "a")
    disk.faults.refuse = {"write", "truncate"}
    assert append(log, "lost" * 50) == Code.KAFKA_STORAGE_ERROR
    disk.faults.refuse = {"truncate"}
    assert append(log, "b") == Code.KAFKA_STORAGE_ERROR
    disk.faults.refuse = set()

    assert append(log, "c") == Code.NONE

    _, log = a_log(store.crash())
    assert [record.value for record in everything(log)] == [b"a", b"c"]


@pytest.mark.parametrize("seed", range(8))
def test_what_could_not_be_taken_back_at_once_is_taken_back_before_retention_begins_a_segment(seed: int):
    """The segment before stays when the snapshot that is to know its producers is refused."""
    disk = MemoryDisk(seed=seed)
    store, log = a_log(disk, retention_ms=1000)
    log.append(idempotent(0), now_ms=NOW)
    disk.faults.refuse = {"write", "truncate"}
    assert append(log, "lost" * 50) == Code.KAFKA_STORAGE_ERROR

    disk.faults.refuse = {"save"}
    log.tick(NOW + 2000)
    disk.faults.refuse = set()
    assert append(log, "b") == Code.NONE
    _, log = a_log(store.crash())

    assert log.end_offset == 2
    assert [one.last_sequence for one in log.active_producers()] == [0]


@pytest.mark.parametrize("seed", range(8))
def test_after_a_failed_flush_no_other_is_believed_until_a_start_has_read_what_is_there(seed: int):
    """The system forgets what it could not write: a second flush of it says that all is well."""
    disk = MemoryDisk(seed=seed)
    store, log = a_log(disk, flush_messages=1)
    append(log, "a")
    disk.faults.refuse = {"sync"}
    assert append(log, "b") == Code.KAFKA_STORAGE_ERROR
    disk.faults.refuse = set()

    assert append(log, "c") == Code.KAFKA_STORAGE_ERROR
    with pytest.raises(StorageFailed, match="a flush has failed"):
        log.flush()
    with pytest.raises(StorageFailed):
        store.close()

    assert not disk.exists("data/.kafka_cleanshutdown")
    _, log = a_log(store.crash(power=seed % 2 == 0), flush_messages=1)
    assert [record.value for record in everything(log)] == [b"a"]
    assert append(log, "d") == Code.NONE


def unseen_by_a_start(what: str) -> tuple[MemoryStore, PartitionLog]:
    """Return a log that is flushed to its end, but for this, which no start looks at again."""
    disk = MemoryDisk()
    store, log = a_log(disk, segment_bytes=400, retention_ms=1000)
    in_transaction(log, 0)
    if what == "aborted transactions":
        end(log, commit=False)
    log.flush()
    if what == "what was cut off":
        disk.faults.refuse = {"write"}
        append(log, "lost")
    return store, log


def refused_a_segment(log: PartitionLog, by: str) -> None:
    """Have a log that the disk fails be about to begin a segment."""
    if by == "retention":
        log.tick(NOW + 2000)
    else:
        assert append(log, "x" * 300) == Code.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("what", ["what was cut off", "aborted transactions"])
@pytest.mark.parametrize("by", ["an append", "retention"])
def test_a_flush_that_fails_before_a_segment_is_begun_is_told_like_any_other(what: str, by: str):
    """It is the last word of the system about bytes that no start looks at again."""
    store, log = unseen_by_a_start(what)
    told: list[str] = []
    store.checkpoints.on_failed_flush = told.append
    store.disk.faults.refuse = {"sync"}

    refused_a_segment(log, by)

    assert told == ["data/orders-0 cannot be flushed: Input/output error"]
    assert log.flushing.has_failed


@pytest.mark.parametrize("what", ["what was cut off", "aborted transactions"])
@pytest.mark.parametrize("by", ["an append", "retention"])
def test_after_a_flush_has_failed_before_a_segment_is_begun_none_is_begun(what: str, by: str):
    """Found by reading: the next start would begin there, and not look at the one that was not flushed."""
    store, log = unseen_by_a_start(what)

    for refuse in ({"sync"}, set()):  # the second time the system has nothing left to write
        store.disk.faults.refuse = refuse
        refused_a_segment(log, by)

    names = store.disk.files("data/orders-0")
    assert [name for name in names if name.endswith(".log")] == [f"{0:020}.log"]


@pytest.mark.parametrize("refused", ["data/orders-0", "data"])
def test_after_names_could_not_be_flushed_no_later_flush_of_them_is_believed(
    refused: str, monkeypatch: pytest.MonkeyPatch
):
    """Of a directory, too, the system tells once what it could not write."""
    disk, told = MemoryDisk(), []
    store, log = a_log(disk, flush_messages=1)
    other = store.create_log("others", 0, TOPIC_ID, a_config(flush_messages=1))
    store.checkpoints.on_failed_flush = told.append
    asked = []

    def refuse_once(path: str) -> None:
        asked.append(path)
        if path == refused and asked.count(path) == 1:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk, "sync_directory", refuse_once)
    assert append(log, "a") == Code.KAFKA_STORAGE_ERROR

    assert append(log, "b") == Code.KAFKA_STORAGE_ERROR
    assert told == ["data/orders-0 cannot be flushed: Input/output error"]
    if refused == "data":  # the name of the other's directory is in it, too
        assert append(other, "c") == Code.KAFKA_STORAGE_ERROR
    with pytest.raises(StorageFailed):
        store.close()
    assert not disk.exists("data/.kafka_cleanshutdown")


def test_a_log_that_promises_no_flushes_goes_on_after_one_has_failed():
    disk = MemoryDisk()
    store, log = a_log(disk, segment_bytes=150, flush_ms=10, retention_ms=1000)
    append(log, "a" * 50)
    append(log, "b" * 50)
    disk.faults.refuse = {"sync"}
    log.tick(NOW + 10)
    disk.faults.refuse = set()

    assert append(log, "c" * 50) == Code.NONE
    log.tick(NOW + 500)
    assert "a flush has failed" in log.trouble
    assert log.recovery_point == 0
    assert log.flushing.plan() is None
    log.tick(NOW + 2000)
    assert log.start_offset == 3  # retention goes on, too

    _, log = a_log(store.crash())
    assert log.end_offset == 3


@pytest.mark.parametrize("operation", ["open", "write", "save", "truncate"])
def test_a_segment_that_cannot_be_begun_refuses_and_is_begun_later(operation: str):
    disk = MemoryDisk(seed=2)
    store, log = a_log(disk, segment_bytes=100)
    append(log, "x" * 20)
    disk.faults.refuse = {operation}
    refused = append(log, "y" * 20)
    disk.faults.refuse = set()

    assert append(log, "z" * 20) == Code.NONE

    assert refused == (Code.NONE if operation == "save" else Code.KAFKA_STORAGE_ERROR)
    _, log = a_log(store.crash())
    assert [record.value[:1] for record in everything(log) if record.value][-1] == b"z"


def test_an_epoch_that_cannot_be_written_down_refuses_the_append():
    disk = MemoryDisk()
    _, log = a_log(disk)
    disk.faults.refuse = {"save"}

    with pytest.raises(AppendRefused) as caught:
        log.append(a_batch("a"), now_ms=NOW, leader_epoch=1)

    assert caught.value.code == Code.KAFKA_STORAGE_ERROR
    assert log.end_of_epoch(1) == (-1, -1)


def test_a_disk_that_cannot_be_read_is_told_of():
    disk = MemoryDisk()
    _, log = a_log(disk)
    append(log)
    disk.faults.refuse = {"read"}

    with pytest.raises(StorageFailed) as caught:
        log.read(0, max_bytes=100)

    assert caught.value.code == Code.KAFKA_STORAGE_ERROR


def test_housekeeping_on_a_broken_disk_tells_and_goes_on():
    disk = MemoryDisk()
    _, log = a_log(disk, flush_ms=10)
    append(log)
    disk.faults.refuse = {"open"}
    log.configure(a_config(flush_ms=10, retention_ms=1))
    log.tick(NOW + 10)
    assert log.trouble
    disk.faults.refuse = set()

    log.tick(NOW + 20)

    assert log.trouble == ""
    assert log.start_offset == 1


@pytest.mark.parametrize("every", [2, 3, 7])
def test_every_nth_write_fails_and_nothing_acknowledged_is_lost(every: int):
    disk = MemoryDisk(seed=every, faults=Faults())
    store, log = a_log(disk, segment_bytes=600, index_interval_bytes=100)
    disk.faults.every = {"write": every}

    kept = [value for value in map(str, range(60)) if append(log, value * 20) == Code.NONE]
    disk.faults.every = {}
    _, log = a_log(store.crash())

    assert [record.value for record in everything(log)] == [(value * 20).encode() for value in kept]


@pytest.mark.parametrize("seed", range(20))
def test_faults_by_chance_lose_nothing_that_was_acknowledged(seed: int):
    disk = MemoryDisk(seed=seed)
    store, log = a_log(disk, segment_bytes=400, index_interval_bytes=60)
    disk.faults.chance = {"write": 0.2, "truncate": 0.3, "open": 0.1, "save": 0.2}

    kept = [value for value in map(str, range(60)) if append(log, value * 10) == Code.NONE]
    disk.faults.chance = {}
    _, log = a_log(store.crash())

    assert [record.value for record in everything(log)] == [(value * 10).encode() for value in kept]


@pytest.mark.parametrize("seed", range(20))
def test_a_loss_of_power_keeps_a_prefix_and_all_that_was_flushed(seed: int):
    disk = MemoryDisk(seed=seed)
    store, log = a_log(disk, segment_bytes=400, index_interval_bytes=60)
    values = [str(value) * 10 for value in range(40)]
    for place, value in enumerate(values):
        append(log, value)
        if place == 17:
            log.flush()
        if place == 30:
            plan = log.flushing.plan()
            assert plan is not None

    _, log = a_log(store.crash(power=True))

    left = [record.value.decode() for record in everything(log) if record.value]
    assert left == values[: len(left)]
    assert len(left) >= 18


@pytest.mark.parametrize("seed", range(10))
def test_with_flush_messages_one_a_loss_of_power_loses_nothing(seed: int):
    disk = MemoryDisk(seed=seed)
    store, log = a_log(disk, flush_messages=1, segment_bytes=300)
    for value in range(20):
        append(log, str(value) * 10)

    _, log = a_log(store.crash(power=True))

    assert offsets(log) == list(range(20))


def test_flush_ms_flushes_when_its_time_has_come():
    disk = MemoryDisk()
    store, log = a_log(disk, flush_ms=100, segment_bytes=150)
    for value in "abcd":
        append(log, value * 50)

    log.tick(NOW + 99)
    assert log.recovery_point == 0
    log.tick(NOW + 100)
    assert log.recovery_point == 4

    _, log = a_log(store.crash(power=True))
    assert offsets(log) == [0, 1, 2, 3]


def closed_segments_to_flush(disk: MemoryDisk) -> tuple[PartitionLog, FlushPlan]:
    """Return a log of four segments, and how to flush the three that are closed."""
    _, log = a_log(disk, segment_bytes=150)
    for value in "abcd":
        append(log, value * 50)
    plan = log.flushing.plan()
    assert plan is not None
    return log, plan


def test_closed_segments_can_be_flushed_aside():
    disk = MemoryDisk()
    log, plan = closed_segments_to_flush(disk)

    log.flushing.finish(run_flush(plan, disk))

    assert log.recovery_point == 3
    assert log.flushing.plan() is None


def test_a_flush_aside_that_was_planned_before_one_has_failed_is_not_believed():
    """The system forgets what it could not write: the flush aside may have come after that."""
    disk = MemoryDisk()
    log, plan = closed_segments_to_flush(disk)
    disk.faults.refuse = {"sync"}
    with suppress(StorageFailed, OSError):
        log.flush()
    disk.faults.refuse = set()

    log.flushing.finish(run_flush(plan, disk))

    assert log.recovery_point == 0
    assert log.flushing.has_failed


def test_a_store_that_cannot_be_flushed_is_not_marked_clean():
    disk = MemoryDisk()
    store, log = a_log(disk)
    append(log)
    disk.faults.refuse = {"sync"}

    with pytest.raises(StorageFailed):
        store.close()

    disk.faults.refuse = set()
    assert not disk.exists("data/.kafka_cleanshutdown")
    _, log = a_log(disk)
    assert offsets(log) == [0]


def test_a_partition_that_finds_no_room_is_not_made():
    disk = MemoryDisk(faults=Faults(capacity=700))
    store, log = a_log(disk)
    while append(log, "x" * 100) == Code.NONE:
        pass

    with pytest.raises(StorageFailed):
        store.create_log("other", 0, TOPIC_ID, a_config())

    assert list(store.logs) == [ORDERS]


def test_the_same_seed_gives_the_same_faults():
    def story(seed: int) -> list[Code]:
        disk = MemoryDisk(seed=seed)
        _, log = a_log(disk)
        disk.faults.chance = {"write": 0.5}
        return [append(log) for _ in range(30)]

    assert story(1) == story(1)
    assert story(1) != story(2)


# -- transactions, compaction, and what is written behind


def in_transaction(log: PartitionLog, sequence: int) -> Code:
    """Append a batch of a transaction; return what it was answered with."""
    try:
        log.append(idempotent(sequence, transactional=True), now_ms=NOW)
    except AppendRefused as refused:
        return refused.code
    return Code.NONE


def end(log: PartitionLog, *, commit: bool) -> Code:
    """Append a marker; return what it was answered with."""
    try:
        log.append(a_marker(commit=commit), now_ms=NOW, origin="coordinator")
    except AppendRefused as refused:
        return refused.code
    return Code.NONE


def test_a_marker_that_cannot_be_written_ends_nothing():
    disk = MemoryDisk(seed=4)
    store, log = a_log(disk)
    in_transaction(log, 0)
    disk.faults.refuse = {"write"}

    assert end(log, commit=False) == Code.KAFKA_STORAGE_ERROR
    assert (log.last_stable_offset, log.open_transaction(9)) == (0, 0)
    disk.faults.refuse = set()
    assert end(log, commit=False) == Code.NONE

    _, log = a_log(store.crash())
    assert (log.last_stable_offset, log.aborted_transactions(0, 9)) == (2, ((9, 0),))


def test_a_batch_that_cannot_be_written_opens_no_transaction():
    disk = MemoryDisk(seed=4)
    _, log = a_log(disk)
    disk.faults.refuse = {"write"}

    assert in_transaction(log, 0) == Code.KAFKA_STORAGE_ERROR

    disk.faults.refuse = set()
    assert (log.last_stable_offset, log.open_transaction(9), log.active_producers()) == (0, -1, [])
    assert in_transaction(log, 0) == Code.NONE


@pytest.mark.parametrize("operation", ["write", "save", "open", "truncate"])
def test_aborted_transactions_outlive_a_disk_that_refuses_their_index(operation: str):
    disk = MemoryDisk(seed=8)
    store, log = a_log(disk, segment_bytes=400)
    for sequence in range(4):
        in_transaction(log, sequence)
        end(log, commit=False)
    disk.faults.refuse = {operation}
    log.tick(NOW)
    disk.faults.refuse = set()
    before = log.aborted_transactions(0, 100)
    assert len(before) == 4

    _, log = a_log(store.crash())

    assert log.aborted_transactions(0, 100) == before


def test_a_log_whose_indexes_cannot_be_written_is_not_closed_cleanly():
    disk = MemoryDisk(seed=8)
    store, log = a_log(disk)
    in_transaction(log, 0)
    end(log, commit=False)
    disk.faults.refuse = {"write"}

    with pytest.raises(StorageFailed):
        store.close()

    disk.faults.refuse = set()
    assert not disk.exists("data/.kafka_cleanshutdown")
    _, log = a_log(disk)
    assert log.aborted_transactions(0, 100) == ((9, 0),)


@pytest.mark.parametrize("seed", range(15))
def test_faults_by_chance_leave_transactions_as_they_were_acknowledged(seed: int):
    disk = MemoryDisk(seed=seed)
    store, log = a_log(disk, segment_bytes=500, index_interval_bytes=60)
    disk.faults.chance = {"write": 0.2, "truncate": 0.3, "open": 0.1, "save": 0.2}
    opened, aborted, sequence = -1, [], 0
    for step in range(60):
        at = log.end_offset
        if step % 3 < 2 and in_transaction(log, sequence) == Code.NONE:
            opened, sequence = (at if opened < 0 else opened), sequence + 1
        elif step % 3 == 2 and end(log, commit=step % 2 > 0) == Code.NONE and opened >= 0:
            aborted += [(9, opened)] if step % 2 == 0 else []
            opened = -1
    disk.faults.chance = {}

    _, log = a_log(store.crash())

    assert log.aborted_transactions(0, 1000) == tuple(aborted)
    assert log.open_transaction(9) == opened
    assert in_transaction(log, sequence) == Code.NONE


def a_log_to_compact(disk: MemoryDisk) -> tuple[MemoryStore, PartitionLog]:
    settings = {"cleanup_policy": "compact", "segment_bytes": 300, "file_delete_delay_ms": 0}
    store, log = a_log(disk, **settings)
    for place in range(20):
        log.append(keyed((f"k{place % 2}", f"{place}" * 50)), now_ms=NOW)
    return store, log


@pytest.mark.parametrize("killed_before", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_compaction_waits_for_the_marker_of_a_transaction_to_be_flushed(seed: int, killed_before: bool):
    """Found by the crash points: what the transaction had replaced was gone, and then its marker too."""
    disk = MemoryDisk(seed=seed)
    settings = {"cleanup_policy": "compact", "segment_bytes": 300}
    store, log = a_log(disk, **settings)
    log.append(keyed(("k", "old" * 50)), now_ms=NOW)
    sent = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    log.append(keyed(("k", "new" * 50), **sent), now_ms=NOW)
    log.append(keyed(("other", "x" * 150)), now_ms=NOW)
    end(log, commit=True)
    if killed_before:
        store, log = a_log(store.crash(), **settings)

    log.compacting.run(NOW)

    _, log = a_log(store.crash(power=True), **settings)
    seen = [record.value for record in committed(log) if record.key == b"k"]
    assert seen[0] == b"old" * 50
    assert log.open_transaction(9) < 0 or seen == [b"old" * 50]


@pytest.mark.parametrize("seed", range(6))
def test_a_producer_is_known_by_its_flushed_batches_though_a_compaction_went_by_newer_ones(seed: int):
    """Found by the crash points: its last flushed batch went for a newer one, and that was lost."""
    disk = MemoryDisk(seed=seed)
    settings = {"cleanup_policy": "compact", "segment_bytes": 300, "file_delete_delay_ms": 0}
    store, log = a_log(disk, **settings)
    log.append(idempotent(0, key="k"), now_ms=NOW)
    log.append(keyed(("k", "old" * 60)), now_ms=NOW)
    log.append(keyed(("k", "new" * 60)), now_ms=NOW)
    log.flush()
    log.append(idempotent(1, key="k"), now_ms=NOW)
    assert log.compacting.run(NOW)

    _, log = a_log(store.crash(power=True), **settings)

    known = [one.last_sequence for one in log.active_producers()]
    assert known == [log.end_offset - 3], "nothing but what was lost with the power is unknown"
    assert log.append(idempotent(known[0] + 1, key="k"), now_ms=NOW).base_offset == log.end_offset - 1


@pytest.mark.parametrize("seed", range(6))
def test_segments_stay_while_the_snapshot_that_is_to_know_their_producers_cannot_be_flushed(seed: int):
    """Found by the crash points: DeleteRecords on a failing disk, and a loss of power, forgot a producer."""
    disk = MemoryDisk(seed=seed)
    settings = {"segment_bytes": 300, "flush_messages": 1, "file_delete_delay_ms": 0}
    store, log = a_log(disk, **settings)
    log.append(idempotent(0), now_ms=NOW)
    for place in range(6):
        log.append(a_batch(f"{place}" * 150), now_ms=NOW)
    store, log = a_log(store.crash(), **settings)
    disk.faults.refuse = {"sync"}

    with suppress(StorageFailed):
        log.delete_before(5, NOW, save=False)
    log.tick(NOW)
    disk.faults.refuse = set()
    _, log = a_log(store.crash(power=True), **settings)

    assert [one.last_sequence for one in log.active_producers()] == [0]
    assert log.append(idempotent(0), now_ms=NOW).duplicate


def test_a_compaction_takes_what_a_flushed_marker_has_decided():
    disk = MemoryDisk()
    settings = {"cleanup_policy": "compact", "segment_bytes": 300}
    _, log = a_log(disk, **settings)
    log.append(keyed(("k", "old" * 50)), now_ms=NOW)
    sent = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    log.append(keyed(("k", "new" * 50), **sent), now_ms=NOW)
    log.append(keyed(("other", "x" * 150)), now_ms=NOW)
    end(log, commit=True)
    log.flush()

    assert log.compacting.run(NOW)

    assert [record.value for record in committed(log) if record.key == b"k"] == [b"new" * 50]


def test_a_compaction_that_finds_no_room_says_so_and_leaves_no_files_behind():
    """It was told as a mistake of ours: with a traceback, and of no log."""
    disk = MemoryDisk()
    _, log = a_log_to_compact(disk)
    before = everything(log)
    log.flush()
    plan = log.compacting.plan(NOW)
    assert plan is not None
    disk.faults.capacity = 2800

    with pytest.raises(StorageFailed, match="No space left"):
        log.compacting.finish(run_compaction(plan, disk), NOW)

    assert not [name for name in disk.files(log.directory) if ".cleaned" in name]
    assert everything(log) == before
    disk.faults.capacity = None
    assert log.compacting.run(NOW)


class Killed(Exception):
    """The process has ended."""


class KilledDisk(MemoryDisk):
    """A disk on which so many files are named, or named otherwise, before the process is killed."""

    names_left = 10**6

    def save(self, path: str, data: bytes, *, sync: bool = False) -> None:
        self._name()
        super().save(path, data, sync=sync)

    def rename(self, old: str, new: str) -> None:
        self._name()
        super().rename(old, new)

    def _name(self) -> None:
        self.names_left -= 1
        if self.names_left < 0:
            raise Killed


@pytest.mark.parametrize("refused", [set(), {"save"}], ids=["nothing refused", "checkpoints refused"])
@pytest.mark.parametrize("names", range(14))
def test_a_log_that_was_compacted_is_whole_after_a_kill_though_it_is_compacted_no_more(
    names: int, refused: set[str]
):
    """cleanup.policy=compact is taken away, and the broker killed before its next checkpoint is written:
    the start took the gaps for damage, and cut the log where it begins.
    """
    disk = KilledDisk()
    store, log = a_log_to_compact(disk)
    newest = {record.key: record.value for record in everything(log)}
    log.flush()
    plan = log.compacting.plan(NOW)
    assert plan is not None
    result = run_compaction(plan, disk)
    disk.faults.refuse, disk.names_left = refused, names
    with suppress(StorageFailed, Killed):
        log.compacting.finish(result, NOW)
    disk.faults.refuse, disk.names_left = set(), 10**6

    store, log = a_log(store.crash(), cleanup_policy="delete")

    assert {record.key: record.value for record in everything(log)} == newest


def test_a_log_that_was_compacted_is_whole_though_the_checkpoint_that_says_so_is_damaged():
    disk = MemoryDisk()
    store, log = a_log_to_compact(disk)
    log.flush()
    assert log.compacting.run(NOW)
    newest = {record.key: record.value for record in everything(log)}
    disk.save("data/cleaner-offset-checkpoint", b"no checkpoint")

    for _ in range(2):  # a later start knows it, too
        store, log = a_log(store.crash(), cleanup_policy="delete")
        assert {record.key: record.value for record in everything(log)} == newest


class KilledWhileOpening(MemoryDisk):
    """A disk on which the process is killed as it looks at one directory."""

    killed_at = ""

    def files(self, directory: str) -> dict[str, FileInfo]:
        if directory == self.killed_at:
            raise Killed
        return super().files(directory)


def test_a_start_that_is_killed_half_way_leaves_no_checkpoint_that_names_some_logs_alone():
    """The first log with gaps was written down, and the damaged checkpoint was sound from then on."""
    disk = KilledWhileOpening()
    store, log = a_log_to_compact(disk)
    first = store.create_log("a", 0, TOPIC_ID, log.config)
    for place in range(20):
        first.append(keyed((f"k{place % 2}", f"{place}" * 50)), now_ms=NOW)
    for one in (first, log):
        one.flush()
        assert one.compacting.run(NOW)
    newest = {record.key: record.value for record in everything(log)}
    store.crash()
    disk.save("data/cleaner-offset-checkpoint", b"no checkpoint")
    disk.killed_at = f"data/{ORDERS}"
    with pytest.raises(Killed):
        a_log(disk, cleanup_policy="delete")
    disk.killed_at = ""

    _, log = a_log(disk, cleanup_policy="delete")

    assert {record.key: record.value for record in everything(log)} == newest


def test_a_directory_that_was_set_aside_comes_back_when_its_gaps_are_known():
    disk = MemoryDisk()
    store, _ = a_log_to_compact(disk)
    store.make_stray(*ORDERS)
    (stray,) = store.strays()
    disk.faults.refuse = {"save"}

    with pytest.raises(OSError):
        store.recall(stray, ORDERS.topic)

    assert store.strays() == [stray]
    disk.faults.refuse = set()
    store.recall(stray, ORDERS.topic)
    assert ORDERS in store.logs


@pytest.mark.parametrize("refused", [set(), {"save"}], ids=["nothing refused", "checkpoints refused"])
def test_what_is_written_behind_what_a_loss_of_power_took_stays_though_the_log_is_compacted_no_more(
    refused: set[str],
):
    """A compacted log goes on behind what is missing; told to delete, the next start cut it there."""
    disk = MemoryDisk()
    store, _ = a_log_to_compact(disk)
    lost = disk.open(f"data/{ORDERS}/{0:020}.log")
    store.crash()
    lost.truncate(0)
    disk.faults.refuse = refused
    store, log = a_log(disk, cleanup_policy="compact", segment_bytes=300)
    disk.faults.refuse = set()
    log.append(keyed(("k", "behind")), now_ms=NOW)
    there = everything(log)

    store, log = a_log(store.crash(), cleanup_policy="delete")

    assert everything(log) == there


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("refused", range(1, 12))
def test_a_swap_refused_at_any_step_leaves_the_log_readable_and_is_finished_later(
    refused: int, restart: bool
):
    """Between two renames the log named files that were away, and answered nobody until a restart."""
    disk = MemoryDisk()
    store, log = a_log_to_compact(disk)
    before = everything(log)
    log.flush()
    plan = log.compacting.plan(NOW)
    assert plan is not None
    result = run_compaction(plan, disk)
    disk.faults.every = {"rename": 10**6}
    disk._count["rename"] = 10**6 - refused
    with suppress(StorageFailed):
        log.compacting.finish(result, NOW)
    disk.faults.every = {}

    def newest_is_there() -> bool:
        found = everything(log)
        return set(before[-2:]) <= set(found) <= set(before)

    assert newest_is_there()
    if restart:
        _, log = a_log(store.crash(), cleanup_policy="compact", segment_bytes=300)
    log.tick(NOW)
    log.tick(NOW)
    assert newest_is_there()
    assert not [name for name in disk.files(log.directory) if name.endswith((".log.swap", ".cleaned"))]
    log.compacting.run(NOW)
    assert [record.offset for record in everything(log)][-2:] == [18, 19]
    assert len(everything(log)) <= 3  # two keys, and what lies in the segment that grows


def test_a_start_that_could_not_be_written_down_is_not_told_as_if_it_were():
    """Found by the crash points: the same DeleteRecords again was answered without being written."""
    disk = MemoryDisk()
    store, log = a_log(disk)
    for value in "abc":
        append(log, value)
    disk.faults.refuse = {"save"}
    with pytest.raises(StorageFailed):
        log.delete_before(2, NOW)
    assert log.start_offset == 0
    with pytest.raises(StorageFailed):
        log.delete_before(2, NOW)
    disk.faults.refuse = set()

    assert log.delete_before(2, NOW) == 2

    _, log = a_log(store.crash())
    assert log.start_offset == 2


def test_a_swap_that_is_refused_leaves_the_log_readable():
    disk = MemoryDisk()
    store, log = a_log_to_compact(disk)
    before = everything(log)
    log.flush()
    plan = log.compacting.plan(NOW)
    assert plan is not None
    result = run_compaction(plan, disk)
    disk.faults.refuse = {"rename"}

    with pytest.raises(StorageFailed):
        log.compacting.finish(result, NOW)

    assert everything(log) == before
    disk.faults.refuse = set()
    assert log.compacting.run(NOW)
    after = everything(log)
    _, log = a_log(store.crash(), cleanup_policy="compact", segment_bytes=300)
    assert everything(log) == after


@pytest.mark.parametrize("operation", ["save", "rename"])
def test_a_start_that_retention_has_told_outlives_a_kill_whatever_the_disk_has_refused(operation: str):
    """Found by anyrequest, seed 61: the start moved on a full disk, whose files all stayed."""
    disk = MemoryDisk()
    settings = {"segment_bytes": 150, "retention_ms": 1000}
    store, log = a_log(disk, **settings)
    for value in "abc":
        append(log, value * 50)
    disk.faults.refuse = {operation}
    log.tick(NOW + 2000)
    disk.faults.refuse = set()
    log.configure(a_config(cleanup_policy="compact"))  # nobody tries again
    log.tick(NOW + 3000)
    told = log.start_offset

    store, log = a_log(store.crash(), **settings)

    assert log.start_offset == told
    log.tick(NOW + 2000)
    assert log.start_offset == log.end_offset


def test_the_first_epoch_begins_with_the_log_though_a_kill_came_before_that_was_written():
    disk = MemoryDisk()
    settings = {"segment_bytes": 150, "retention_ms": 1000}
    store, log = a_log(disk, **settings)
    append(log, "a" * 50)
    log.append(a_batch("b" * 50), now_ms=NOW, leader_epoch=3)
    disk.faults.refuse = {"save"}
    log.configure(a_config(retention_bytes=50))
    log.tick(NOW)
    disk.faults.refuse = set()

    _, log = a_log(store.crash(), **settings)

    assert (log.start_offset, log.earliest_epoch) == (1, 3)
