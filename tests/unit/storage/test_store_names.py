"""What goes by a name: checkpoints of earlier topics, and directories that are not ours."""

from pathlib import Path
from uuid import UUID, uuid4

import pytest
from store_rig import NOW, ORDERS, Rig, a_batch, a_config, a_marker, everything, idempotent, offsets

from coterie.storage.directory import things_of_others
from coterie.storage.disk import FileInfo, OsDisk
from coterie.storage.files import FileStore
from coterie.storage.log.contract import StorageFailed
from coterie.storage.memory import MemoryDisk, MemoryStore

TOMBS = "orders-0.0123456789abcdef0123456789abcdef-delete"


def new_id() -> UUID:
    return uuid4()


def an_old_topic(rig: Rig) -> None:
    """Make a topic with a start, a recovery point and a cleaner's offset on the disk, and delete it."""
    log = rig.log_of(segment_bytes=200, cleanup_policy="compact,delete")
    for value in range(20):
        log.append(a_batch(str(value), key="k"), now_ms=NOW)
    log.compacting.run(NOW)
    log.flush()
    log.delete_before(15, NOW)
    rig.store.checkpoints.save()
    rig.store.delete_log(*ORDERS, now_ms=NOW)


@pytest.mark.parametrize("crash_between", [False, True])
@pytest.mark.parametrize("records", [3, 30])
def test_a_topic_made_anew_inherits_nothing_from_the_one_before_whenever_the_broker_is_killed(
    rig: Rig, crash_between: bool, records: int
):
    an_old_topic(rig)
    if crash_between:
        rig.store.abandon()
        rig.store = rig._open(NOW)
    log = rig.log_of()
    values = [str(value).encode() for value in range(records)]
    for value in values:
        log.append(a_batch(value), now_ms=NOW)

    for again_after in (lambda: log, rig.kill, rig.restart):
        again = again_after()
        assert [record.value for record in everything(again)] == values
        assert (again.start_offset, again.end_offset) == (0, records)
        assert ORDERS not in rig.store.checkpoints.starts
        assert ORDERS not in rig.store.checkpoints.compacted


def test_a_log_is_not_made_while_the_disk_cannot_forget_the_one_before():
    disk = MemoryDisk()
    store = MemoryStore.open(now_ms=NOW, disk=disk)
    store.create_log(*ORDERS, new_id(), a_config()).append(a_batch("a", "b"), now_ms=NOW)
    store.logs[ORDERS].delete_before(1, NOW)
    store.delete_log(*ORDERS, now_ms=NOW)
    disk.faults.refuse = {"save"}

    with pytest.raises(StorageFailed):
        store.create_log(*ORDERS, new_id(), a_config())

    disk.faults.refuse = set()
    assert store.create_log(*ORDERS, new_id(), a_config()).start_offset == 0


def test_a_failed_stop_is_no_clean_one_however_often_the_store_is_closed(rig: Rig):
    log = rig.log_of()
    log.append(idempotent(0, transactional=True), now_ms=NOW)
    log.append(a_marker(commit=False), now_ms=NOW, origin="coordinator")
    if rig.kind == "memory":
        rig.memory.faults.refuse = {"write"}
    else:
        Path(log.directory, "00000000000000000000.txnindex").mkdir()

    with pytest.raises(StorageFailed):
        rig.store.close()
    rig.store.close()  # as a `finally` may

    if rig.kind == "memory":
        rig.memory.faults.refuse = set()
    else:
        Path(log.directory, "00000000000000000000.txnindex").rmdir()
    assert not rig.store.disk.exists(f"{rig.store.path}/.kafka_cleanshutdown")
    rig.store = rig._open(NOW)
    assert rig.log.aborted_transactions(0, 9) == ((9, 0),)


def test_letting_go_is_no_clean_stop(rig: Rig):
    rig.log_of()

    rig.store.abandon()
    rig.store.close()

    assert not rig.store.disk.exists(f"{rig.store.path}/.kafka_cleanshutdown")


# -- what others keep there


def test_a_directory_that_is_not_known_is_never_wiped_for_a_new_log(rig: Rig):
    directory = f"{rig.store.path}/orders-0"
    rig.store.disk.make_directory(directory)
    rig.store.disk.save(f"{directory}/precious", b"mine")

    with pytest.raises(StorageFailed, match="not ours"):
        rig.log_of()

    assert rig.store.disk.load(f"{directory}/precious") == b"mine"
    assert rig.kind == "memory" or sorted(rig.store.disk.files(directory)) == ["precious"]


@pytest.mark.parametrize("there", [False, True])
def test_kafka_s_own_log_of_the_cluster_is_neither_opened_nor_made_whoever_asks(rig: Rig, there: bool):
    directory = f"{rig.store.path}/__cluster_metadata-0"
    if there:
        rig.store.disk.make_directory(directory)
        rig.store.disk.save(f"{directory}/00000000000000000000.log", b"kafka's own")
    rig.store.abandon()
    rig.store = rig._open(NOW)

    with pytest.raises(StorageFailed, match="not ours"):
        rig.store.create_log("__cluster_metadata", 0, new_id(), a_config())

    assert rig.store.disk.exists(directory) == there
    assert list(rig.store.logs) == []
    if there:
        assert rig.store.disk.load(f"{directory}/00000000000000000000.log") == b"kafka's own"


def test_a_log_whose_making_was_cut_short_is_made_again(rig: Rig):
    directory = f"{rig.store.path}/orders-0"
    rig.store.disk.make_directory(directory)
    rig.store.disk.save(f"{directory}/partition.metadata.tmp", b"")
    rig.store.abandon()
    rig.store = rig._open(NOW)

    assert list(rig.store.logs) == []
    assert rig.log_of().end_offset == 0


def test_a_log_whose_deletion_the_disk_refused_gives_way_to_the_next():
    disk = MemoryDisk()
    store = MemoryStore.open(now_ms=NOW, disk=disk)
    store.create_log(*ORDERS, new_id(), a_config()).append(a_batch("a"), now_ms=NOW)
    disk.faults.refuse = {"rename"}
    with pytest.raises(StorageFailed):
        store.delete_log(*ORDERS, now_ms=NOW)
    with pytest.raises(StorageFailed):
        store.create_log(*ORDERS, new_id(), a_config())
    disk.faults.refuse = set()

    assert offsets(store.create_log(*ORDERS, new_id(), a_config())) == []


@pytest.mark.parametrize(
    "name", ["backup-60", "topic-03", "topic-\u0663", "orders-20261122", "orders-9999999999", "no number-1"]
)
@pytest.mark.parametrize("content", ["notes.txt", "00000000000000000000.log"])
def test_a_directory_that_only_looks_like_a_partition_is_left_alone(tmp_path: Path, name: str, content: str):
    stranger = tmp_path / name
    stranger.mkdir()
    (stranger / content).write_bytes(b"")
    ours = (name, content) == ("backup-60", "00000000000000000000.log")

    store = FileStore.open(tmp_path, now_ms=NOW, durable=False)
    store.tick(NOW)
    store.close()

    assert [str(one) for one in store.logs] == ([name] if ours else [])
    assert ours or [path.name for path in stranger.iterdir()] == [content]


def test_only_what_we_have_deleted_ourselves_is_removed_and_no_link_is_followed(tmp_path: Path):
    target = tmp_path / "elsewhere"
    data = tmp_path / "data"
    for folder in (target, data / "to-delete", data / TOMBS / "folder in it", data / f"{TOMBS}-delete"):
        folder.mkdir(parents=True)
        (folder / "precious").write_bytes(b"mine")
    (data / TOMBS.replace("orders", "linked")).symlink_to(target)

    store = FileStore.open(data, now_ms=NOW, durable=False)
    store.tick(NOW)
    store.close()

    assert not (data / TOMBS).exists()
    for folder in (target, data / "to-delete", data / f"{TOMBS}-delete"):
        assert (folder / "precious").read_bytes() == b"mine"


@pytest.mark.parametrize(
    "there",
    [
        (),
        (".lock",),
        ("lost+found/", ".snapshot/"),
        (".gitkeep", ".gitignore", ".DS_Store"),
        ("lost+found/", "notes", "meta.properties"),
        (".lock", "meta.properties.tmp", "notes"),
        ("coterie.metadata.json", "notes"),
        ("notes", "orders-0/00000000000000000000.log"),
        ("notes", "orders-0/partition.metadata"),
        ("notes", "orders-0/"),
        ("notes", "orders-0.0123456789abcdef0123456789abcdef-delete/"),
        ("notes", "recovery-point-offset-checkpoint"),
        ("bootstrap.checkpoint", "__cluster_metadata-0/00000000000000000000.log"),
    ],
)
def test_a_directory_is_for_logs_when_it_is_empty_or_a_broker_had_it(there: tuple[str, ...], tmp_path: Path):
    for name in there:
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir() if name.endswith("/") else place.touch()

    assert things_of_others(OsDisk(), str(tmp_path)) == []


@pytest.mark.parametrize(
    "there",
    ["notes", "orders-0", "orders-0/notes", ".profile", "coterie.conf", "orders-x/00000000000000000000.log"],
)
def test_a_directory_that_no_broker_had_is_not(there: str, tmp_path: Path):
    (tmp_path / there).parent.mkdir(exist_ok=True)
    (tmp_path / there).touch()

    assert things_of_others(OsDisk(), str(tmp_path)) == [there.partition("/")[0]]


def test_a_directory_of_others_is_told_though_something_in_it_is_not_ours_to_read(tmp_path: Path):
    class OfAnotherUser(OsDisk):
        def files(self, directory: str) -> dict[str, FileInfo]:
            if directory.endswith("private"):
                raise PermissionError(13, "Permission denied", directory)
            return super().files(directory)

    (tmp_path / "private").mkdir()
    (tmp_path / "mail").mkdir()

    assert things_of_others(OfAnotherUser(), str(tmp_path)) == ["mail", "private"]
