"""The directory of several brokers: made, kept from others, or refused with a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from uuid import UUID

import pytest

from coterie.base.ids import uuid_text
from coterie.broker.cluster.changes import Changed, CreateTopics, DeleteTopics, NewTopic
from coterie.broker.cluster.image import Delta, Image
from coterie.broker.cluster.statements import ReadDelta
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.processes import METADATA
from coterie.broker.processes.changes import RegisterProcess, Static, broker_ids_of
from coterie.broker.processes.layout import CannotArrange, arranged
from coterie.broker.processes.role import OneOfSeveral
from coterie.storage.config import LogConfig
from coterie.storage.files import FileStore
from coterie.storage.lock import DirectoryLock
from coterie.storage.log.contract import DirectoryUnusable

ORDERS = UUID(int=1)


def arrange(root: Path, *broker_ids: int) -> Image:
    with arranged(str(root), broker_ids) as metadata:
        delta = metadata.execute(ReadDelta(0))
    assert isinstance(delta, Delta)
    return Image().after(delta)


def with_orders(root: Path, *leaders: int) -> None:
    """Have a topic whose partitions lie with these brokers."""
    with arranged(str(root), sorted({*leaders})) as metadata:
        new = NewTopic(ORDERS, "orders", tuple((one,) for one in leaders))
        assert isinstance(metadata.execute(Static(CreateTopics((new,)))), Changed)
        cluster_id = metadata.cluster_id
    for broker_id in {*leaders}:
        store = FileStore.open(root / str(broker_id), now_ms=0, cluster_id=cluster_id, node_id=broker_id)
        for number, leader in enumerate(leaders):
            if leader == broker_id:
                store.create_log("orders", number, ORDERS, LogConfig.of({}))
        store.close()


def come_up(root: Path, *broker_ids: int) -> None:
    """Have brokers' processes register, as they do when they have their directories."""
    with arranged(str(root), broker_ids) as metadata:
        for broker_id in broker_ids:
            metadata.execute(RegisterProcess(broker_id, UUID(int=broker_id)))


def partitions(root: Path, broker_id: int) -> set[str]:
    return {one.name for one in (root / str(broker_id)).glob("orders-*")}


def test_a_new_directory_is_made_with_a_cluster_of_its_own(tmp_path: Path):
    root = tmp_path / "data"

    image = arrange(root, 1, 2)

    assert broker_ids_of(image) == (1, 2)
    assert (root / METADATA).exists()
    with arranged(str(root), [1, 2]) as one, arranged(str(tmp_path / "other"), [1, 2]) as other:
        assert one.cluster_id != other.cluster_id


def test_it_is_nobody_elses_meanwhile(tmp_path: Path):
    with arranged(str(tmp_path), [1]), pytest.raises(CannotArrange, match="in use"):
        arrange(tmp_path, 1)

    arrange(tmp_path, 1)


def test_partitions_move_with_the_number_of_brokers_and_none_is_lost(tmp_path: Path):
    with_orders(tmp_path, 1, 2, 1, 2)

    arrange(tmp_path, 1, 2, 3, 4)
    assert [partitions(tmp_path, one) for one in (1, 2, 3, 4)] == [
        {"orders-0"}, {"orders-1"}, {"orders-2"}, {"orders-3"}
    ]  # fmt: skip
    arrange(tmp_path, 4)
    assert partitions(tmp_path, 4) == {f"orders-{number}" for number in range(4)}
    image = arrange(tmp_path, 1, 2)
    assert partitions(tmp_path, 1) | partitions(tmp_path, 2) == {f"orders-{number}" for number in range(4)}
    assert partitions(tmp_path, 4) == set()

    for row in image.all_partitions():
        assert f"orders-{row.number}" in partitions(tmp_path, row.leader or 0)
    with arranged(str(tmp_path), [1, 2]) as metadata:
        store = FileStore.open(tmp_path / "1", now_ms=0, cluster_id=metadata.cluster_id, node_id=1)
        assert all(one.topic_id == ORDERS for one in store.partitions())
        store.close()


def test_directories_of_brokers_that_there_are_none_of_now_are_described(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    with_orders(tmp_path, 1, 2, 3)
    (tmp_path / "3" / "payments-0").mkdir()
    (tmp_path / "3" / "payments-0" / f"{0:020}.log").touch()
    assert caplog.messages == []

    image = arrange(tmp_path, 1)

    assert partitions(tmp_path, 1) == {"orders-0", "orders-1", "orders-2"}
    assert [row.leader for row in image.all_partitions()] == [1, 1, 1]
    assert caplog.messages[-2:] == [
        f"{tmp_path}/2 is not used: there is no broker 2 now, and it holds no partition",
        f"{tmp_path}/3 is not used: there is no broker 3 now; it holds payments-0, which nobody serves",
    ]
    arrange(tmp_path, 1, 2, 3)
    assert [len(partitions(tmp_path, one)) for one in (1, 2, 3)] == [1, 1, 1]
    assert (tmp_path / "3" / "payments-0").exists()


def test_the_same_brokers_again_change_nothing_of_the_partitions(tmp_path: Path):
    with_orders(tmp_path, 1, 2)
    before = arrange(tmp_path, 1, 2)

    after = arrange(tmp_path, 1, 2)

    assert [*before.all_partitions()] == [*after.all_partitions()]


def test_deleted_topics_are_forgotten_once_every_broker_has_started_since(tmp_path: Path):
    with_orders(tmp_path, 1, 2)
    with arranged(str(tmp_path), [1, 2]) as metadata:
        metadata.execute(DeleteTopics((ORDERS,)))

    for starts, deleted in ((), 1), ((1,), 1), ((), 1), ((1, 2), 1), ((), 0):
        with arranged(str(tmp_path), [1, 2]) as metadata:
            delta = metadata.execute(ReadDelta(0))
            for broker_id in starts:
                metadata.execute(RegisterProcess(broker_id, UUID(int=9)))
        assert isinstance(delta, Delta)
        assert len(delta.topics) == deleted
        assert len(delta.partitions) == 2 * deleted


@pytest.mark.parametrize("left", [(), ("2",), ("2", "2/payments-0")])
@pytest.mark.parametrize("broker_ids", [(1, 2), (1,), (1, 2, 3)])
def test_a_brokers_directory_that_is_lost_is_named_with_what_was_in_it_and_is_not_made_anew(
    tmp_path: Path, broker_ids: tuple[int, ...], left: tuple[str, ...]
):
    """Found by reviewers: it was made anew without a word, also where a broker that still ran had made the
    log of another topic in the place where its disk had been mounted.
    """
    with_orders(tmp_path, 1, 2, 2)
    come_up(tmp_path, 1, 2)
    rmtree(tmp_path / "2")
    for directory in left:
        (tmp_path / directory).mkdir()

    with pytest.raises(CannotArrange) as refused:
        arrange(tmp_path, *broker_ids)

    said = str(refused.value)
    assert said.startswith(f"{tmp_path}/2 is gone, or empty, and broker 2 had 2 partitions in it, of which")
    assert "(orders-1, orders-2): put it back; is its disk mounted? If it is lost for good, start" in said
    assert (tmp_path / "2").exists() == ("2" in left)
    assert partitions(tmp_path, 1) == {"orders-0"}


@pytest.mark.parametrize(("broker_ids", "epochs"), [((1, 2), [0, 1, 1]), ((1,), [0, 1, 1])])
def test_a_broker_whose_directory_is_given_up_begins_anew_in_later_epochs_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broker_ids: tuple[int, ...], epochs: list[int]
):
    with_orders(tmp_path, 1, 2, 2)
    come_up(tmp_path, 1, 2)
    rmtree(tmp_path / "2")

    with arranged(str(tmp_path), broker_ids, given_up=[2]):
        pass
    image = arrange(tmp_path, *broker_ids)

    assert [row.leader_epoch for row in image.all_partitions()] == epochs
    said = "broker 2 begins anew, since its directory is lost, and with it what was in orders-1, orders-2"
    assert said in caplog.messages


def test_that_a_broker_begins_anew_is_not_said_where_the_start_is_refused_for_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Found by two reviewers: it was said before the others had been looked at."""
    with_orders(tmp_path, 1, 2, 2)
    come_up(tmp_path, 1, 2)
    for broker_id in (1, 2):
        rmtree(tmp_path / str(broker_id))

    with (
        pytest.raises(CannotArrange, match="/2 is gone, or empty"),
        arranged(str(tmp_path), [1, 2], given_up=[1]),
    ):
        pass

    assert not [line for line in caplog.messages if "begins anew" in line]


def test_who_has_lost_nothing_is_not_given_up(tmp_path: Path):
    with_orders(tmp_path, 1, 2)
    come_up(tmp_path, 1, 2)

    for broker_id in (2, 3):
        said = f"broker {broker_id} has lost nothing: leave out --lost {broker_id}"
        with pytest.raises(CannotArrange, match=said), arranged(str(tmp_path), [1, 2], given_up=[broker_id]):
            pass


def test_a_directory_that_no_broker_has_made_yet_is_not_lost(tmp_path: Path):
    """As after a crash in the first start, and of a broker that there was not for a while."""
    with_orders(tmp_path, 1, 2)
    rmtree(tmp_path / "2")
    arrange(tmp_path, 1, 2)

    come_up(tmp_path, 1)
    arrange(tmp_path, 1)
    arrange(tmp_path, 1, 2)
    come_up(tmp_path, 1)
    arrange(tmp_path, 1, 2)


@pytest.mark.parametrize("came_up", [False, True])
def test_a_process_that_is_started_again_makes_its_directory_only_where_it_has_never_come_up(
    tmp_path: Path, came_up: bool
):
    with_orders(tmp_path, 1, 2)
    if came_up:
        come_up(tmp_path, 1, 2)
    rmtree(tmp_path / "2")
    settings = BrokerSettings.of({"node.id": "2", "log.dirs": str(tmp_path / "2")})

    if came_up:
        with pytest.raises(DirectoryUnusable, match="is gone, or empty, and broker 2 had 1 partition in it"):
            OneOfSeveral(settings).open_store(settings, 0)
    else:
        OneOfSeveral(settings).open_store(settings, 0).close()

    assert (tmp_path / "2").exists() != came_up


def of_one_broker(root: Path) -> None:
    FileStore.open(root, now_ms=0).close()


def of_somebody(root: Path) -> None:
    (root / "notes.txt").write_text("mine")


def of_no_metadata(root: Path) -> None:
    with_orders(root, 1, 2)
    for file in root.glob(f"{METADATA}*"):
        file.unlink()


def of_damaged_metadata(root: Path) -> None:
    with_orders(root, 1, 2)
    (root / METADATA).write_bytes(b"x" * 10_000)


def in_the_way(root: Path) -> None:
    with_orders(root, 1)
    (root / "2" / "orders-0").mkdir(parents=True)
    (root / "2" / "orders-0" / "notes.txt").write_text("mine")


@pytest.mark.parametrize(
    ("fill", "sentence"),
    [
        (of_one_broker, "is the directory of one broker; serve it without --processes"),
        (of_somebody, r"it holds other things \(notes.txt\) and nothing of a broker's"),
        (of_no_metadata, "is missing, which says what lies in .*/[12].*; put it back"),
        (of_damaged_metadata, "is damaged, or no file of brokers' metadata"),
        (in_the_way, "/2/orders-0 is in the way of partition orders-0; move it away"),
    ],
)
def test_what_is_of_no_use_is_refused_with_a_sentence_and_nothing_is_lost(
    tmp_path: Path, fill: Callable[[Path], None], sentence: str
):
    fill(tmp_path)
    before = contents(tmp_path)

    with pytest.raises(CannotArrange, match=sentence):
        arrange(tmp_path, 2)

    after = contents(tmp_path)
    assert after.items() >= {(name, data) for name, data in before.items() if METADATA not in name}


def contents(root: Path) -> dict[str, bytes]:
    return {str(one.relative_to(root)): one.read_bytes() for one in root.rglob("*") if one.is_file()}


def test_a_directory_in_which_a_broker_still_runs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with_orders(tmp_path, 1)
    monkeypatch.setattr("coterie.broker.processes.layout.IN_USE_MAX_S", 0.0)
    lock = DirectoryLock(str(tmp_path / "1"))

    with pytest.raises(CannotArrange, match="/1"):
        arrange(tmp_path, 1)

    lock.release()
    arrange(tmp_path, 1)


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text(uuid_text(ORDERS))

    with pytest.raises(CannotArrange, match="it is a file, not a directory"):
        arrange(tmp_path / "file", 1)


def test_a_disk_that_is_only_a_mount_is_an_empty_one(tmp_path: Path):
    (tmp_path / "lost+found").mkdir()

    assert broker_ids_of(arrange(tmp_path, 7)) == (7,)
