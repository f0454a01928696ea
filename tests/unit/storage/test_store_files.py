"""What is particular to files: the lock, Kafka's layout, and directories that Apache Kafka wrote."""

import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from store_rig import NOW, ORDERS, TOPIC_ID, a_batch, a_config, everything, idempotent, offsets

from coterie.base.ids import TopicPartition
from coterie.storage.config import (
    LogConfig,
)
from coterie.storage.disk import OsDisk
from coterie.storage.files import FileStore
from coterie.storage.log.contract import (
    AppendRefused,
    DirectoryInUse,
    DirectoryUnusable,
)

CAPTURES = Path("/work/shared/captures/kafka-4.3.1")


def test_a_second_opener_is_refused_in_a_sentence_that_names_the_directory(tmp_path: Path):
    first = FileStore.open(tmp_path / "d", now_ms=NOW)

    with pytest.raises(DirectoryInUse, match=str(tmp_path / "d")):
        FileStore.open(tmp_path / "d", now_ms=NOW)

    first.close()
    FileStore.open(tmp_path / "d", now_ms=NOW).close()


def test_another_process_is_refused_too(tmp_path: Path):
    first = FileStore.open(tmp_path, now_ms=NOW)
    program = (
        "import sys\nfrom coterie.storage.files import FileStore\n"
        "from coterie.storage.log.contract import DirectoryInUse\n"
        "try:\n    FileStore.open(sys.argv[1], now_ms=0)\nexcept DirectoryInUse as no:\n    sys.exit(str(no))"
    )

    asked = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)

    assert asked.returncode == 1
    assert str(tmp_path) in asked.stderr
    first.close()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_says_so(tmp_path: Path):
    tmp_path.chmod(0o500)

    with pytest.raises(DirectoryUnusable, match=str(tmp_path)):
        FileStore.open(tmp_path / "d", now_ms=NOW)


def test_a_file_in_the_place_of_the_directory_says_so(tmp_path: Path):
    (tmp_path / "d").write_text("")

    with pytest.raises(DirectoryUnusable, match=str(tmp_path / "d")):
        FileStore.open(tmp_path / "d", now_ms=NOW)


@pytest.mark.parametrize("sync", [False, True])
def test_what_an_earlier_save_has_left_unfinished_is_never_written_over(tmp_path: Path, sync: bool):
    """Or a loss of power might give the next file of the name what the earlier one would have held."""
    wanted, unfinished = tmp_path / "partition.metadata", tmp_path / "partition.metadata.tmp"
    unfinished.write_bytes(b"earlier")
    os.link(unfinished, tmp_path / "the same file")

    OsDisk(durable=False).save(str(wanted), b"new", sync=sync)

    assert (tmp_path / "the same file").read_bytes() == b"earlier"
    assert wanted.read_bytes() == b"new"
    assert not unfinished.exists()


def test_the_directory_of_another_cluster_is_refused(tmp_path: Path):
    FileStore.open(tmp_path, now_ms=NOW, cluster_id="ours", node_id=3).close()

    for whose in ({"cluster_id": "theirs"}, {"node_id": 4}):
        with pytest.raises(DirectoryUnusable):
            FileStore.open(tmp_path, now_ms=NOW, **whose)
    FileStore.open(tmp_path, now_ms=NOW, cluster_id="ours", node_id=3).close()


def test_a_damaged_meta_properties_is_told_of_and_lets_go_of_the_lock(tmp_path: Path):
    FileStore.open(tmp_path, now_ms=NOW).close()
    good = (tmp_path / "meta.properties").read_bytes()
    (tmp_path / "meta.properties").write_bytes(b"version=9\n")

    with pytest.raises(DirectoryUnusable, match=r"meta\.properties"):
        FileStore.open(tmp_path, now_ms=NOW)

    (tmp_path / "meta.properties").write_bytes(good)
    FileStore.open(tmp_path, now_ms=NOW).close()


def test_the_layout_is_kafka_s(tmp_path: Path):
    store = FileStore.open(tmp_path, now_ms=NOW, durable=False)
    log = store.create_log(*ORDERS, TOPIC_ID, LogConfig.of({}))
    log.append(a_batch("a"), now_ms=NOW)
    store.close()

    assert {path.name for path in tmp_path.iterdir()} == {
        ".kafka_cleanshutdown",
        ".lock",
        "cleaner-offset-checkpoint",
        "log-start-offset-checkpoint",
        "meta.properties",
        "orders-0",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
    }
    assert {path.name for path in (tmp_path / "orders-0").iterdir()} == {
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000001.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    }
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\norders 0 1\n"


def test_the_mark_of_a_clean_stop_is_gone_while_the_store_is_open(tmp_path: Path):
    FileStore.open(tmp_path, now_ms=NOW).close()
    assert (tmp_path / ".kafka_cleanshutdown").exists()

    store = FileStore.open(tmp_path, now_ms=NOW)

    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    store.close()


@pytest.mark.skipif(not CAPTURES.exists(), reason="the captures are not here")
@pytest.mark.parametrize("partition", [3, 5, 8, 9, 35])
def test_segments_of_apache_kafka_open_and_get_their_indexes(tmp_path: Path, partition: int):
    name = f"__consumer_offsets-{partition}"
    shutil.copytree(CAPTURES / name, tmp_path / name)
    os.chmod(tmp_path / name, 0o755)

    store = FileStore.open(tmp_path, now_ms=NOW)
    log = store.logs[TopicPartition("__consumer_offsets", partition)]

    source = (CAPTURES / name / f"{0:020d}.log").read_bytes()
    assert log.size_bytes == len(source)
    assert log.read(0, max_bytes=len(source)) == source
    assert offsets(log) == list(range(log.end_offset))
    highest = max(record.timestamp for record in everything(log))
    found = log.offset_of_max_timestamp()
    assert found is not None
    assert found.timestamp == highest
    assert (tmp_path / name / f"{0:020d}.index").stat().st_size > 0
    store.close()


def test_a_directory_is_on_a_disk_with_so_much_room(tmp_path: Path):
    told = FileStore.open(tmp_path, now_ms=NOW).disk.space(str(tmp_path))

    assert 0 < told.usable <= told.total == shutil.disk_usage(tmp_path).total


def test_other_things_in_the_directory_are_left_alone(tmp_path: Path):
    (tmp_path / "notes").mkdir(parents=True)
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "readme-1").write_text("")
    (tmp_path / "__cluster_metadata-0").mkdir()

    store = FileStore.open(tmp_path, now_ms=NOW)

    assert store.logs == {}
    assert (tmp_path / "notes").is_dir()
    store.close()


def test_files_nobody_uses_are_closed_and_opened_again(tmp_path: Path):
    store = FileStore.open(tmp_path, now_ms=NOW, durable=False)
    log = store.create_log(*ORDERS, TOPIC_ID, a_config(segment_bytes=150))
    for value in "abcd":
        log.append(a_batch(value * 50), now_ms=NOW)
    before = everything(log)
    open_before = len(os.listdir("/proc/self/fd"))

    for minute in range(4):
        log.tick(NOW + 60_000 * minute)

    assert len(os.listdir("/proc/self/fd")) <= open_before - 4
    assert everything(log) == before
    log.append(a_batch("e"), now_ms=NOW)
    assert offsets(log) == [0, 1, 2, 3, 4]
    store.close()


def test_closing_leaves_no_file_open(tmp_path: Path):
    before = len(os.listdir("/proc/self/fd"))
    store = FileStore.open(tmp_path, now_ms=NOW, durable=False)
    log = store.create_log(*ORDERS, TOPIC_ID, a_config(segment_bytes=150))
    for value in "abcd":
        log.append(a_batch(value * 50), now_ms=NOW)
    everything(log)

    store.close()

    assert len(os.listdir("/proc/self/fd")) == before


def test_snapshots_do_not_pile_up(tmp_path: Path):
    store = FileStore.open(tmp_path, now_ms=NOW, durable=False)
    log = store.create_log(*ORDERS, TOPIC_ID, a_config(segment_bytes=150))
    for sequence in range(20):
        log.append(idempotent(sequence), now_ms=NOW)
    for _ in range(3):
        store.close()
        store = FileStore.open(tmp_path, now_ms=NOW, durable=False)

    assert len(list((tmp_path / "orders-0").glob("*.snapshot"))) == 2
    store.close()


def test_a_topic_name_of_the_longest_kind_can_be_deleted(tmp_path: Path):
    store = FileStore.open(tmp_path, now_ms=NOW)
    store.create_log("t" * 249, 0, TOPIC_ID, LogConfig.of({}))

    store.delete_log("t" * 249, 0, now_ms=NOW)

    assert len([name for name in os.listdir(tmp_path) if name.endswith("-delete")]) == 1
    store.close()


def test_messages_of_an_old_format_are_not_taken_for_damage(tmp_path: Path):
    """Kafka before 0.11 wrote them. A start that cut them off would destroy somebody's data."""
    body = b"\1\0" + (5).to_bytes(8) + (1).to_bytes(4) + b"k" + (1).to_bytes(4) + b"v"
    message = zlib.crc32(body).to_bytes(4) + body
    old = (0).to_bytes(8) + len(message).to_bytes(4) + message
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / f"{0:020d}.log").write_bytes(old)

    with pytest.raises(DirectoryUnusable, match="format 2"):
        FileStore.open(tmp_path, now_ms=NOW)

    assert (tmp_path / "orders-0" / f"{0:020d}.log").read_bytes() == old


def test_nothing_is_written_to_a_log_that_is_closed(tmp_path: Path):
    store = FileStore.open(tmp_path, now_ms=NOW, durable=False)
    log = store.create_log(*ORDERS, TOPIC_ID, LogConfig.of({}))
    store.close()

    with pytest.raises(AppendRefused):
        log.append(a_batch("a"), now_ms=NOW)


def test_a_log_of_very_many_small_segments_keeps_few_files_open(tmp_path: Path):
    store = FileStore.open(tmp_path / "d", now_ms=NOW, durable=False)
    log = store.create_log(*ORDERS, TOPIC_ID, a_config(segment_bytes=100))

    def files_open() -> int:
        return sum(segment._file is not None for segment in log._segments)

    for number in range(200):
        log.append(a_batch(str(number), at=NOW + number), now_ms=NOW)
    assert len(log._segments) > 150
    assert files_open() < 6, "while it was written"
    assert offsets(log) == list(range(200))
    assert files_open() < 6, "while it was read"
    assert all(log.offset_for_timestamp(NOW + number) == (number, NOW + number, 0) for number in range(200))
    assert files_open() < 6, "while times were looked up"
    assert all(log.size_between(number, number + 1) > 0 for number in range(200))
    assert files_open() < 6, "while it was measured"
    store.abandon()


@pytest.mark.parametrize("lost", ["nothing", "indexes", "epochs"])
def test_a_log_of_very_many_small_segments_is_opened_after_a_kill_with_few_files_open(
    tmp_path: Path, lost: str
):
    """Or a start fails for want of descriptors, and so does every other one after it."""
    store = FileStore.open(tmp_path / "d", now_ms=NOW, durable=False)
    log = store.create_log(*ORDERS, TOPIC_ID, a_config(segment_bytes=100, cleanup_policy="compact"))
    for number in range(100):
        log.append(
            a_batch(str(number), key="k", producer_id=9, producer_epoch=0, base_sequence=number), now_ms=NOW
        )
    if lost == "nothing":
        store.abandon()
    else:
        store.close()
    for file in (tmp_path / "d" / "orders-0").iterdir():
        if lost == "indexes" and file.suffix in (".index", ".timeindex", ".snapshot"):
            file.unlink()
        if lost == "epochs" and file.name == "leader-epoch-checkpoint":
            file.unlink()

    store = FileStore.open(tmp_path / "d", now_ms=NOW, durable=False)

    log = store.logs[ORDERS]
    assert len(log._segments) > 80
    assert sum(segment._file is not None for segment in log._segments) < 6
    log.compacting.need(NOW)
    assert sum(segment._file is not None for segment in log._segments) < 6
    assert offsets(log) == list(range(100))
    store.close()


def began_anew(path: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what is said where the directory is opened and the log made that is not there."""
    caplog.clear()
    store = FileStore.open(path, now_ms=NOW)
    store.create_log(*ORDERS, TOPIC_ID, a_config())
    store.close()
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


def test_a_partition_s_directory_that_is_gone_is_told_when_it_is_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Found by a breaker: the records were gone without a word, as with Apache Kafka."""
    store = FileStore.open(tmp_path, now_ms=NOW)
    store.create_log(*ORDERS, TOPIC_ID, a_config()).append(a_batch("a", "b"), now_ms=NOW)
    store.close()
    shutil.rmtree(tmp_path / str(ORDERS))

    (said,) = began_anew(tmp_path, caplog)

    assert said.startswith(f"{tmp_path}/orders-0 is not there any more, with its records up to offset 2:")
    shutil.rmtree(tmp_path / str(ORDERS))
    assert began_anew(tmp_path, caplog) == []  # nothing was in it


@pytest.mark.parametrize("ended", [FileStore.close, FileStore.abandon])
def test_a_partition_that_was_deleted_is_not_told_to_be_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ended: Callable[[FileStore], None]
):
    store = FileStore.open(tmp_path, now_ms=NOW)
    store.create_log(*ORDERS, TOPIC_ID, a_config()).append(a_batch("a", "b"), now_ms=NOW)
    store.close()
    store = FileStore.open(tmp_path, now_ms=NOW)
    store.delete_log(*ORDERS, now_ms=NOW)
    ended(store)

    assert began_anew(tmp_path, caplog) == []


def test_directories_that_are_made_are_flushed_in_those_that_they_lie_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Or a loss of power takes the whole directory, with records that were flushed."""
    flushed: list[str] = []
    flush = OsDisk.sync_directory

    def noted(disk: OsDisk, path: str) -> None:
        flush(disk, path)
        flushed.append(path)

    monkeypatch.setattr(OsDisk, "sync_directory", noted)
    FileStore.open(tmp_path / "a" / "b", now_ms=NOW).close()
    assert flushed[:2] == [str(tmp_path), str(tmp_path / "a")]

    flushed.clear()
    FileStore.open(tmp_path / "a" / "b", now_ms=NOW).close()
    assert {*flushed} == {str(tmp_path / "a" / "b")}
