"""Transactions in a log: what is stable, what was aborted, who is fenced; on files and in memory."""

import pytest
from store_rig import NOW, Rig, a_batch, a_marker, committed, idempotent, offsets

from coterie.base.codes import Code
from coterie.storage.log.aborted import AbortedIndex
from coterie.storage.log.contract import AppendRefused
from coterie.storage.log.partition import (
    PartitionLog,
)
from coterie.storage.log.producers import ActiveProducer, Verification
from coterie.wire.records.batches import read_header

ABORTED_ENTRY_SIZE = 34
DAY = 86_400_000


def write(log: PartitionLog, sequence: int, *, pid: int = 9, epoch: int = 0, count: int = 1) -> int:
    """Write a batch in a transaction; return its offset."""
    batch = idempotent(sequence, count=count, pid=pid, epoch=epoch, transactional=True)
    return log.append(batch, now_ms=NOW).base_offset


def end(
    log: PartitionLog,
    *,
    commit: bool,
    pid: int = 9,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    version: int = 0,
) -> Code:
    """End a transaction; return what the marker was answered with."""
    marker = a_marker(commit=commit, pid=pid, epoch=epoch, coordinator_epoch=coordinator_epoch)
    try:
        log.append(marker, now_ms=NOW, origin="coordinator", transaction_version=version)
    except AppendRefused as refused:
        return refused.code
    return Code.NONE


def values(log: PartitionLog) -> list[bytes | None]:
    return [record.value for record in committed(log)]


# -- what is stable


def test_what_is_stable_ends_at_the_oldest_open_transaction(rig: Rig):
    log = rig.log_of()
    log.append(a_batch("plain"), now_ms=NOW)

    write(log, 0, pid=1)
    write(log, 0, pid=2)
    assert (log.last_stable_offset, log.open_transaction(1), log.open_transaction(2)) == (1, 1, 2)

    end(log, commit=True, pid=1)
    assert (log.last_stable_offset, log.open_transaction(1)) == (2, -1)

    end(log, commit=False, pid=2)
    assert log.last_stable_offset == log.end_offset == 5


def test_a_transaction_whose_start_was_deleted_holds_back_what_is_left(rig: Rig):
    log = rig.log_of()
    write(log, 0, count=5)

    log.delete_before(3, NOW)

    assert log.last_stable_offset == 3


def test_a_reader_of_committed_records_is_told_what_to_pass_over(rig: Rig):
    log = rig.log_of()
    write(log, 0, pid=1)
    log.append(a_batch("between"), now_ms=NOW)
    write(log, 0, pid=2)
    end(log, commit=False, pid=1)
    end(log, commit=True, pid=2)
    write(log, 1, pid=1)

    data, aborted = log.read_committed(0, max_bytes=10_000)

    assert aborted == ((1, 0),)
    assert data == log.read(0, max_bytes=10_000, end_offset=5)
    assert values(log) == [b"between", b"2:0:0"]


def test_the_list_of_a_read_ends_where_the_read_ends(rig: Rig):
    log = rig.log_of(index_interval_bytes=0)
    for sequence in range(10):
        write(log, sequence)
        end(log, commit=False)

    _, all_of_them = log.read_committed(0, max_bytes=100_000)
    _, few = log.read_committed(4, max_bytes=300)

    assert [one.first_offset for one in all_of_them] == list(range(0, 20, 2))
    assert [one.first_offset for one in few] == [4, 6]
    assert log.aborted_transactions(5, 9) == ((9, 4), (9, 6), (9, 8))


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_open_and_aborted_transactions_are_known_after_the_next_start(rig: Rig, how: str):
    log = rig.log_of(segment_bytes=300)
    for round_ in range(12):
        write(log, round_, pid=1)
        write(log, round_, pid=2)
        end(log, commit=round_ % 3 > 0, pid=1)
        end(log, commit=round_ % 2 > 0, pid=2)
    write(log, 12, pid=2, count=3)
    before = (log.last_stable_offset, log.aborted_transactions(0, 1000), values(log), log.active_producers())

    log = getattr(rig, how)()

    after = (log.last_stable_offset, log.aborted_transactions(0, 1000), values(log), log.active_producers())
    assert after == before
    assert log.last_stable_offset == 48
    assert end(log, commit=False, pid=2) == Code.NONE
    assert log.aborted_transactions(48, 1000)[-1] == (2, 48)


def test_a_transaction_across_segments_is_found_from_each_of_them(rig: Rig):
    log = rig.log_of(segment_bytes=200)
    for sequence in range(8):
        write(log, sequence)
    end(log, commit=False)
    for place in range(8):
        log.append(a_batch(f"after {place}"), now_ms=NOW)

    assert all(log.aborted_transactions(offset, offset + 1) == ((9, 0),) for offset in range(9))
    assert log.aborted_transactions(9, 17) == ()
    assert values(log) == [b"after %d" % place for place in range(8)]


# -- the index file


def names_of(rig: Rig) -> list[str]:
    return sorted(name for name in rig.names() if name.endswith(".txnindex"))


def a_log_of_aborted_ones(rig: Rig, rounds: int = 10) -> PartitionLog:
    log = rig.log_of(segment_bytes=300)
    for sequence in range(rounds):
        write(log, sequence)
        end(log, commit=False)
    return log


def test_only_segments_with_aborted_transactions_have_an_index_of_them(rig: Rig):
    log = rig.log_of(segment_bytes=300)
    for sequence in range(6):
        write(log, sequence)
        end(log, commit=sequence != 2)

    log.tick(NOW)

    (name,) = names_of(rig)
    entry = rig.store.disk.load(f"{rig.directory}/{name}")
    assert entry.hex() == (0).to_bytes(2).hex() + "".join(field.to_bytes(8).hex() for field in (9, 4, 5, 6))


@pytest.mark.parametrize("harm", ["removed", "cut", "flipped", "emptied"])
def test_a_lost_or_damaged_index_is_made_anew_after_a_kill(rig: Rig, harm: str):
    log = a_log_of_aborted_ones(rig)
    log.tick(NOW)
    before = log.aborted_transactions(0, 100)
    disk = rig.store.disk
    for name in names_of(rig):
        path = f"{rig.directory}/{name}"
        if harm == "removed":
            disk.remove(path)
        else:
            file = disk.open(path)
            if harm == "flipped":
                file.write([b"\x7f"], 0)
            else:
                file.truncate(file.size() - 7 if harm == "cut" else 0)
            file.close()

    log = rig.kill()

    assert log.aborted_transactions(0, 100) == before
    assert log.last_stable_offset == log.end_offset


def test_a_damaged_index_is_found_out_after_a_clean_stop_too(rig: Rig):
    log = a_log_of_aborted_ones(rig)
    before = log.aborted_transactions(0, 100)
    directory = rig.directory
    rig.store.close()
    for name in [one for one in rig.store.disk.files(directory) if one.endswith(".txnindex")]:
        file = rig.store.disk.open(f"{directory}/{name}")
        file.truncate(file.size() - 1)
        file.close()

    rig.store = rig._open(NOW)

    assert rig.log.aborted_transactions(0, 100) == before


def test_logs_without_any_index_get_all_of_them(rig: Rig):
    log = a_log_of_aborted_ones(rig)
    before = log.aborted_transactions(0, 100)
    directory = rig.directory
    rig.store.close()
    for name in rig.store.disk.files(directory):
        if name.endswith(("index", ".snapshot")):
            rig.store.disk.remove(f"{directory}/{name}")

    rig.store = rig._open(NOW)

    assert rig.log.aborted_transactions(0, 100) == before


def test_the_index_goes_with_its_segment(rig: Rig):
    log = a_log_of_aborted_ones(rig)
    log.tick(NOW)
    assert len(names_of(rig)) > 2

    log.delete_before(log.end_offset, NOW)
    log.tick(NOW + 60_000)

    left = int(min(name for name in rig.names() if name.endswith(".log"))[:20])
    assert all(int(name[:20]) >= left for name in names_of(rig))
    assert log.aborted_transactions(0, 100) == log.aborted_transactions(left, 100)


def test_what_is_cut_off_after_a_crash_is_neither_aborted_nor_open(rig: Rig):
    log = rig.log_of()
    write(log, 0)
    end(log, commit=False)
    size = log.size_bytes
    write(log, 1)
    end(log, commit=False)
    write(log, 2)
    rig.store.abandon()
    file = rig.store.disk.open(f"{log.directory}/{0:020d}.log")
    file.truncate(size + 20)
    file.close()

    rig.store = rig._open(NOW)

    assert rig.log.aborted_transactions(0, 100) == ((9, 0),)
    assert (rig.log.end_offset, rig.log.last_stable_offset, rig.log.open_transaction(9)) == (2, 2, -1)


# -- who may write


def test_a_coordinator_of_an_older_epoch_is_fenced(rig: Rig):
    log = rig.log_of()
    write(log, 0)

    assert end(log, commit=True, coordinator_epoch=3) == Code.NONE
    write(log, 1)

    assert end(log, commit=True, coordinator_epoch=2) == Code.TRANSACTION_COORDINATOR_FENCED
    assert log.open_transaction(9) == 2
    assert end(log, commit=True, coordinator_epoch=4) == Code.NONE


def test_a_marker_of_an_older_producer_is_fenced_and_ends_nothing(rig: Rig):
    log = rig.log_of()
    write(log, 0, epoch=5)

    assert end(log, commit=True, epoch=4) == Code.INVALID_PRODUCER_EPOCH
    assert log.open_transaction(9) == 0
    assert end(log, commit=False, epoch=6) == Code.NONE
    with pytest.raises(AppendRefused) as caught:
        write(log, 1, epoch=5)
    assert caught.value.code == Code.INVALID_PRODUCER_EPOCH


def test_in_version_two_a_marker_must_be_of_a_new_epoch_while_a_transaction_is_open(rig: Rig):
    log = rig.log_of()
    write(log, 0, epoch=1)

    assert end(log, commit=True, epoch=1, version=2) == Code.INVALID_PRODUCER_EPOCH
    assert end(log, commit=True, epoch=2, version=2) == Code.NONE
    assert end(log, commit=True, epoch=2, version=2) == Code.NONE, "said again: it has ended already"
    assert log.last_stable_offset == log.end_offset == 3


def test_a_new_epoch_begins_with_sequence_zero_an_old_one_goes_on(rig: Rig):
    log = rig.log_of()
    write(log, 0, pid=1)
    end(log, commit=True, pid=1)
    write(log, 0, pid=2)
    end(log, commit=True, pid=2, epoch=1)

    assert write(log, 1, pid=1) == 4
    with pytest.raises(AppendRefused) as caught:
        write(log, 1, pid=2, epoch=1)
    assert caught.value.code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(log, 0, pid=2, epoch=1) == 5


def test_clients_may_not_write_markers(rig: Rig):
    log = rig.log_of()

    with pytest.raises(AppendRefused) as caught:
        log.append(a_marker(commit=True), now_ms=NOW)

    assert caught.value.code == Code.INVALID_RECORD


def test_offset_commits_of_a_coordinator_come_in_transactions_without_sequences(rig: Rig):
    log = rig.log_of(cleanup_policy="compact")
    batch = a_batch("offset", key="group", producer_id=9, producer_epoch=0, transactional=True)
    log.append(batch, now_ms=NOW, origin="coordinator")
    log.append(batch, now_ms=NOW, origin="coordinator")
    assert (offsets(log), log.last_stable_offset) == ([0, 1], 0)

    end(log, commit=False)

    assert log.aborted_transactions(0, 3) == ((9, 0),)


def test_the_log_tells_of_its_producers(rig: Rig):
    log = rig.log_of()
    write(log, 0, pid=3, count=4)
    write(log, 0, pid=4, epoch=2)
    end(log, commit=True, pid=4, epoch=3, coordinator_epoch=7)

    assert log.active_producers() == [
        ActiveProducer(3, 0, 3, NOW, -1, 0),
        ActiveProducer(4, 3, -1, NOW, 7, -1),
    ]


def test_a_producer_with_an_open_transaction_is_not_forgotten(rig: Rig):
    log = rig.log_of(producer_id_expiration_ms=1000)
    write(log, 0, pid=1)
    write(log, 0, pid=2)
    end(log, commit=True, pid=2)

    log.tick(NOW + DAY)
    assert [one.producer_id for one in log.active_producers()] == [1]

    log = rig.kill(NOW + DAY)
    log.tick(NOW + DAY)
    assert [one.producer_id for one in log.active_producers()] == [1]
    assert log.last_stable_offset == 0


# -- asking the coordinator first


def ask(log: PartitionLog, sequence: int, *, epoch: int = 0, joins: bool = False) -> Verification | None:
    header = read_header(idempotent(sequence, epoch=epoch, transactional=True))
    return log.verification(header, joins=joins, now_ms=NOW)


def send(log: PartitionLog, sequence: int, verified: Verification | None, *, epoch: int = 0) -> int | Code:
    batch = idempotent(sequence, epoch=epoch, transactional=True)
    try:
        return log.append(batch, now_ms=NOW, verified=verified).base_offset
    except AppendRefused as refused:
        return refused.code


def test_the_coordinator_is_asked_until_the_transaction_has_reached_the_partition(rig: Rig):
    log = rig.log_of()
    asked = ask(log, 0)
    assert asked is not None

    assert send(log, 0, asked) == 0

    assert ask(log, 1) is None
    end(log, commit=True)
    assert ask(log, 1) is not None


def test_a_marker_that_comes_before_the_batch_voids_the_answer(rig: Rig):
    log = rig.log_of()
    asked = ask(log, 0)

    end(log, commit=False)

    assert send(log, 0, asked) == Code.INVALID_TXN_STATE
    assert send(log, 0, ask(log, 0)) == 1


def test_the_end_of_one_transaction_leaves_the_question_about_the_next_alone(rig: Rig):
    """The next transaction's epoch is that of the marker which ends this one (KIP-890)."""
    log = rig.log_of()
    write(log, 0)
    asked = ask(log, 0, epoch=1, joins=True)

    end(log, commit=True, epoch=1, version=2)

    assert send(log, 0, asked, epoch=1) == 2


def test_a_batch_does_not_overtake_one_that_waits_for_the_coordinator(rig: Rig):
    log = rig.log_of()
    first, second = ask(log, 3), ask(log, 4)
    assert first is second

    assert send(log, 4, second) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 3, first) == 0
    assert send(log, 4, second) == 1


def test_who_joins_by_writing_begins_with_sequence_zero(rig: Rig):
    log = rig.log_of()

    assert send(log, 3, ask(log, 3, joins=True)) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 0, ask(log, 0, joins=True)) == 0


def test_a_fenced_producer_is_refused_before_anybody_is_asked(rig: Rig):
    log = rig.log_of()
    write(log, 0, epoch=4)

    with pytest.raises(AppendRefused) as caught:
        ask(log, 0, epoch=3)

    assert caught.value.code == Code.INVALID_PRODUCER_EPOCH


def test_questions_are_forgotten_with_idle_producers(rig: Rig):
    log = rig.log_of(producer_id_expiration_ms=1000)
    asked = ask(log, 5)

    log.tick(NOW + DAY)

    assert ask(log, 0) is not asked


def test_who_reads_what_is_committed_at_the_end_asks_none_of_the_segments_before(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    log = rig.log_of(segment_bytes=150)
    for number in range(20):
        log.append(a_batch(f"{number}"), now_ms=NOW)
    asked: list[int] = []
    monkeypatch.setattr(AbortedIndex, "__len__", lambda index: asked.append(1) or 0)

    assert log.read_committed(log.end_offset - 1, max_bytes=1_000)[0]

    assert len(asked) <= 1
