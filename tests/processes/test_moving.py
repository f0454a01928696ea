"""Another number of processes: which partitions move, and that their directories follow whatever happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import given

from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC, STORY_TOPIC, TRANSACTIONS_TOPIC
from coterie.broker.cluster.changes import CreateTopics, NewTopic, NotChanged
from coterie.broker.cluster.image import BrokerState, Delta, Endpoint, Image
from coterie.broker.processes.changes import (
    ArrangeBrokers,
    FenceProcess,
    RegisterProcess,
    Static,
    broker_ids_of,
)
from coterie.broker.processes.moving import CannotMove, Move, carry_out, moves
from coterie.storage.checkpoints import CLEAN_SHUTDOWN, Checkpoints, write_partition_metadata
from coterie.storage.memory import MemoryDisk

ORDERS, OTHER = UUID(int=1), UUID(int=2)
UNIQUE = UUID(int=99)
AT = (Endpoint("PLAINTEXT", "h", 9092),)


def after(image: Image, *changes: Any) -> Image:
    for change in changes:
        delta = change.rows(image, 1 + sum(1 for _ in image.all_partitions()))
        assert isinstance(delta, Delta), delta
        image = image.after(delta)
    return image


def topic(name: str, topic_id: UUID, *leaders: int) -> Static:
    return Static(CreateTopics((NewTopic(topic_id, name, tuple((one,) for one in leaders)),)))


def leaders(image: Image, topic_id: UUID = ORDERS) -> list[int | None]:
    return [row.leader for row in image.partitions(topic_id)]


# -- which


def test_a_new_cluster_has_the_brokers_and_nobody_answers_before_it_has_registered():
    image = after(Image(), ArrangeBrokers((1, 2)))

    assert broker_ids_of(image) == (1, 2)
    assert image.unfenced == ()
    image = after(image, RegisterProcess(2, UUID(int=5), AT))
    assert image.unfenced == (2,)
    assert image.brokers[2].listeners == AT


def test_partitions_stay_with_brokers_that_do_not_run():
    image = after(Image(), ArrangeBrokers((1, 2)), RegisterProcess(1, UUID(int=5)), topic("o", ORDERS, 1, 2))
    assert leaders(image) == [1, 2]

    image = after(image, RegisterProcess(2, UUID(int=6)), FenceProcess(1))
    assert leaders(image) == [1, 2]
    assert image.leader(ORDERS, 0) == (None, 0)
    assert image.leader(ORDERS, 1) == (2, 0)

    image = after(image, RegisterProcess(1, UUID(int=7)))
    assert image.leader(ORDERS, 0) == (1, 0)
    assert image.brokers[1].state is BrokerState.LIVE


@pytest.mark.parametrize("name", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
def test_coordinators_begin_an_epoch_when_their_broker_is_back(name: str):
    image = after(Image(), ArrangeBrokers((1, 2)), topic(name, ORDERS, 1, 2))

    image = after(image, RegisterProcess(1, UUID(int=5)))

    assert [row.leader_epoch for row in image.partitions(ORDERS)] == [1, 0]


def test_whoever_is_fenced_already_or_unknown_is_not_fenced():
    image = after(Image(), ArrangeBrokers((1,)))

    assert isinstance(FenceProcess(1).rows(image, 1), NotChanged)
    assert isinstance(FenceProcess(2).rows(image, 1), NotChanged)
    assert isinstance(RegisterProcess(2, UUID(int=5)).rows(image, 1), NotChanged)


def test_the_same_brokers_again_move_nothing_though_partitions_lie_unevenly():
    image = after(Image(), ArrangeBrokers((1, 2)), topic("o", ORDERS, 1, 1, 1))

    assert leaders(after(image, ArrangeBrokers((1, 2)))) == [1, 1, 1]


def test_more_brokers_get_their_share_and_no_more_is_moved_than_must():
    image = after(Image(), ArrangeBrokers((1, 2)), topic("o", ORDERS, 1, 2, 1, 2), topic("p", OTHER, 2))
    image = after(image, ArrangeBrokers((1, 2, 3, 4)))

    assert leaders(image) == [1, 2, 3, 4]
    assert leaders(image, OTHER) == [2]
    assert [row.leader_epoch for row in image.partitions(ORDERS)] == [0, 0, 1, 1]
    assert [row.replicas for row in image.partitions(ORDERS)] == [(1,), (2,), (3,), (4,)]


def test_topics_of_one_partition_are_spread_too():
    image = after(Image(), ArrangeBrokers((1, 2)))
    for number in range(12):
        image = after(image, topic(f"t{number:02}", UUID(int=number + 1), 1 + number % 2))

    image = after(image, ArrangeBrokers((1, 2, 3)))

    found = [leaders(image, UUID(int=number + 1))[0] for number in range(12)]
    assert Counter(found) == {1: 4, 2: 4, 3: 4}
    assert sum(now != 1 + number % 2 for number, now in enumerate(found)) == 4, "no more than must"


def test_each_broker_has_a_partition_for_the_stories_of_its_groups():
    image = after(Image(), ArrangeBrokers((1, 2)), topic(STORY_TOPIC, ORDERS, 1, 2))
    image = after(image, ArrangeBrokers((2, 3, 4)))

    assert sorted(leaders(image)) == [2, 3, 4]
    image = after(image, ArrangeBrokers((1,)))
    assert leaders(image) == [1, 1, 1]
    assert sorted(leaders(after(image, ArrangeBrokers((1, 2, 3, 4))))) == [1, 2, 3, 4]


@given(
    before=st.sets(st.integers(1, 6), min_size=1),
    now=st.sets(st.integers(1, 6), min_size=1),
    data=st.data(),
)
def test_fewer_or_other_brokers_lead_all_there_is_and_nobody_more_than_its_share(
    before: set[int], now: set[int], data: st.DataObject
):
    image = after(Image(), ArrangeBrokers(tuple(sorted(before))))
    for number in range(data.draw(st.integers(1, 4))):
        there = data.draw(st.lists(st.sampled_from(sorted(before)), min_size=1, max_size=9))
        image = after(image, topic(f"t{number}", UUID(int=number + 1), *there))

    moved = after(image, ArrangeBrokers(tuple(sorted(now))))

    assert broker_ids_of(moved) == tuple(sorted(now))
    for one in moved.topics():
        count = Counter(leaders(moved, one.topic_id))
        assert {*count} <= now
        if before != now:
            assert {count[broker_id] for broker_id in now} <= {
                one.partitions // len(now),
                -(-one.partitions // len(now)),
            }
    if before != now:
        led = Counter(row.leader for row in moved.all_partitions())
        assert max(led[one] for one in now) - min(led[one] for one in now) <= 1
    old = {row.partition_id: row for row in image.all_partitions()}
    for row in moved.all_partitions():
        was = old[row.partition_id]
        assert row.leader_epoch == was.leader_epoch + (row.leader != was.leader)


# -- their directories


class Killed(BaseException):
    """The process has ended."""


class Counting:
    """A disk that ends the process when it has come to so many more effects."""

    EFFECTS = ("save", "rename", "remove", "make_directory", "sync_directory")

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.left = -1
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.disk, name)
        return self._counted(attribute) if name in self.EFFECTS else attribute

    def _counted(self, effect: Callable[..., Any]) -> Callable[..., Any]:
        def do(*arguments: Any, **named: Any) -> Any:
            if self.left == 0:
                raise Killed
            self.left -= 1
            self.count += 1
            return effect(*arguments, **named)

        return do


def disk_with(*brokers: int) -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directory("data")
    for broker_id in brokers:
        disk.make_directory(f"data/{broker_id}")
        disk.save(f"data/{broker_id}/{CLEAN_SHUTDOWN}", b"{}")
    return disk


def put(disk: MemoryDisk, broker_id: int, name: str, topic_id: UUID | None = ORDERS) -> None:
    where = f"data/{broker_id}/{name}"
    disk.make_directory(where)
    disk.save(f"{where}/00000000000000000000.log", f"of {broker_id}".encode(), sync=True)
    if topic_id is not None:
        disk.save(f"{where}/partition.metadata", write_partition_metadata(topic_id), sync=True)


def know(disk: MemoryDisk, broker_id: int, name: TopicPartition, start: int, compacted: int | None) -> None:
    checkpoints = Checkpoints(disk, f"data/{broker_id}")
    checkpoints.starts[name] = start
    checkpoints.flushed[name] = start + 100
    if compacted is not None:
        checkpoints.compacted[name] = compacted
    checkpoints.save()


def image_with(*leaders: int) -> Image:
    return after(Image(), ArrangeBrokers((1, 2, 3)), topic("o", ORDERS, *leaders))


O0, O1, O2 = (TopicPartition("o", number) for number in range(3))


def moved_disk() -> MemoryDisk:
    """Return a disk on which partitions 0 and 2 are to go from broker 1 to brokers 2 and 3."""
    disk = disk_with(1, 2)
    for number in range(3):
        put(disk, 1, f"o-{number}")
    put(disk, 2, "mine-0", OTHER)
    know(disk, 1, O0, 40, 60)
    know(disk, 1, O1, 41, None)
    know(disk, 1, O2, 42, None)
    know(disk, 2, TopicPartition("mine", 0), 7, None)
    know(disk, 2, O0, 3_000, 5_000)  # of an earlier stay
    return disk


def check_moved(disk: MemoryDisk) -> None:
    assert set(disk.directories("data/1")) == {"o-1"}
    assert set(disk.directories("data/2")) == {"mine-0", "o-0"}
    assert set(disk.directories("data/3")) == {"o-2"}
    assert disk.load("data/3/o-2/00000000000000000000.log") == b"of 1"
    second, third = Checkpoints(disk, "data/2"), Checkpoints(disk, "data/3")
    assert (second.starts[O0], second.flushed[O0], second.compacted[O0]) == (40, 140, 60)
    assert (third.starts[O2], third.flushed[O2]) == (42, 142)
    assert third.compacted_is_known
    assert O2 not in third.compacted
    assert second.starts[TopicPartition("mine", 0)] == 7


def test_directories_go_to_their_brokers_with_all_that_is_known_of_them():
    disk, image = moved_disk(), image_with(2, 1, 3)

    moving = moves(disk, "data", image)
    assert moving == [Move(O0, ORDERS, 1, 2), Move(O2, ORDERS, 1, 3)]
    carry_out(disk, "data", moving, UNIQUE)

    check_moved(disk)
    assert moves(disk, "data", image) == []
    assert disk.exists(f"data/2/{CLEAN_SHUTDOWN}")


def test_whoever_is_killed_between_any_two_steps_goes_on_at_the_next_start():
    image, steps = image_with(2, 1, 3), 0
    whole = Counting(moved_disk())
    carry_out(whole, "data", moves(whole, "data", image), UNIQUE)
    for left in range(whole.count):
        disk = Counting(moved_disk())
        disk.left = left
        with pytest.raises(Killed):
            carry_out(disk, "data", moves(disk, "data", image), UNIQUE)
        disk.disk.lose_power()
        disk.left = -1
        carry_out(disk, "data", moves(disk, "data", image), UNIQUE)
        check_moved(disk.disk)
        steps += 1

    assert steps > 10


def test_a_mark_of_a_clean_stop_does_not_vouch_for_what_was_not_closed():
    disk = moved_disk()
    disk.remove(f"data/1/{CLEAN_SHUTDOWN}")

    carry_out(disk, "data", moves(disk, "data", image_with(2, 1, 1)), UNIQUE)

    assert not disk.exists(f"data/2/{CLEAN_SHUTDOWN}")


@pytest.mark.parametrize("broker_id", [1, 2])
def test_where_it_is_not_known_what_was_compacted_gaps_are_expected(broker_id: int):
    disk = moved_disk()
    disk.remove(f"data/{broker_id}/cleaner-offset-checkpoint")

    carry_out(disk, "data", moves(disk, "data", image_with(2, 1, 1)), UNIQUE)

    second = Checkpoints(disk, "data/2")
    assert second.compacted_is_known
    assert second.compacted[O0] == (0 if broker_id == 1 else 60)
    assert (TopicPartition("mine", 0) in second.compacted) is (broker_id == 2)


def test_what_is_of_another_topic_or_unknown_stays_where_it_is():
    disk = disk_with(1, 2)
    put(disk, 1, "o-0", OTHER)
    put(disk, 1, "gone-0")
    put(disk, 1, "o-7")
    disk.make_directory("data/1/o-1")  # nothing of a log

    assert moves(disk, "data", image_with(2, 2)) == []


def test_a_directory_that_does_not_say_its_topic_goes_by_its_name():
    disk = disk_with(1, 2)
    put(disk, 1, "o-0", None)

    assert moves(disk, "data", image_with(2)) == [Move(O0, ORDERS, 1, 2)]


def test_of_two_of_one_partition_the_one_with_its_broker_counts():
    disk = disk_with(1, 2)
    put(disk, 1, "o-0")
    put(disk, 2, "o-0")

    assert moves(disk, "data", image_with(2)) == []


def test_an_earlier_topic_of_the_name_is_set_aside():
    disk = disk_with(1, 2)
    put(disk, 1, "o-0")
    put(disk, 2, "o-0", OTHER)

    carry_out(disk, "data", moves(disk, "data", image_with(2)), UNIQUE)

    assert set(disk.directories("data/2")) == {"o-0", f"o-0.{UNIQUE.hex}-stray"}
    assert disk.load("data/2/o-0/00000000000000000000.log") == b"of 1"


def test_what_is_no_partition_is_not_moved_out_of_the_way():
    disk = disk_with(1, 2)
    put(disk, 1, "o-0")
    disk.make_directory("data/2/o-0")
    disk.save("data/2/o-0/notes.txt", b"of somebody")

    with pytest.raises(CannotMove, match="data/2/o-0 is in the way"):
        carry_out(disk, "data", moves(disk, "data", image_with(2)), UNIQUE)

    assert disk.load("data/1/o-0/00000000000000000000.log") == b"of 1"
