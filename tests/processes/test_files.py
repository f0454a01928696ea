"""The logs of one of several brokers: they follow the metadata, at the start and while it runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import pytest

from coterie.base.ids import TopicPartition
from coterie.broker.cluster.changes import CreateTopics, DeleteTopics, NewTopic
from coterie.broker.cluster.image import Delta, Image
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.processes.changes import ArrangeBrokers, Static
from coterie.broker.processes.files import RETRY_MS, FileLogs, configs_of, have_agree
from coterie.broker.runtime.clock import Clock
from coterie.broker.runtime.pieces import Scheduler, at_once
from coterie.broker.runtime.purgatory import Purgatory
from coterie.broker.topics.cluster_topics import ClusterTopics
from coterie.storage.config import LogConfig
from coterie.storage.memory import MemoryDisk, MemoryStore
from coterie.storage.remote.store import LogToOpen

ORDERS, GONE, OTHER = UUID(int=1), UUID(int=2), UUID(int=3)
O0, O1, O2 = (TopicPartition("orders", number) for number in range(3))
SETTINGS = BrokerSettings.of({"node.id": "1"})


def after(image: Image, *changes: Any) -> Image:
    for change in changes:
        delta = change.rows(image, 1 + sum(1 for _ in image.all_partitions()))
        assert isinstance(delta, Delta), delta
        image = image.after(delta)
    return image


def with_orders(*leaders: int, topic_id: UUID = ORDERS, configs: dict[str, str] | None = None) -> Image:
    new = NewTopic(topic_id, "orders", tuple((one,) for one in leaders), configs or {})
    return after(Image(), ArrangeBrokers((1, 2)), Static(CreateTopics((new,))))


def store_on(disk: MemoryDisk, image: Image | None = None) -> MemoryStore:
    configs = None if image is None else configs_of(SETTINGS, image)
    return MemoryStore.open(disk=disk, now_ms=0, configs=configs)


def made(disk: MemoryDisk, *names: tuple[str, int, UUID]) -> None:
    store = store_on(disk)
    for name in names:
        store.create_log(*name, LogConfig.of({}))
    store.close()


# -- at the start


def test_a_store_holds_the_logs_that_its_broker_leads_and_those_alone():
    disk = MemoryDisk()
    made(
        disk,
        ("orders", 0, ORDERS),
        ("orders", 1, ORDERS),
        ("orders", 2, OTHER),
        ("orders", 7, ORDERS),
        ("gone", 0, GONE),
        ("never", 0, UUID(int=9)),
    )
    image = with_orders(1, 2, 1)

    store = store_on(disk, image)
    have_agree(store, image, {GONE}, 1)

    assert set(store.logs) == {O0}
    there = set(disk.directories("data"))
    assert {"orders-0", "orders-1"} <= there
    assert len([one for one in there if one.startswith("gone-0.") and one.endswith("-delete")]) == 1
    strays = {one.rpartition(".")[0] for one in there if one.endswith("-stray")}
    assert strays == {"orders-2", "orders-7", "never-0"}


def test_a_log_that_does_not_say_its_topic_is_tied_to_the_one_of_its_name():
    disk = MemoryDisk()
    made(disk, ("orders", 0, ORDERS))
    disk.remove("data/orders-0/partition.metadata")
    image = with_orders(1)

    have_agree(store_on(disk, image), image, (), 1)

    assert store_on(disk).topic_id("orders", 0) == ORDERS


def test_logs_are_opened_with_the_settings_that_their_topics_have():
    disk = MemoryDisk()
    made(disk, ("orders", 0, ORDERS), ("never", 0, OTHER))
    image = with_orders(1, configs={"segment.bytes": "2000000"})

    store = store_on(disk, image)

    assert store.logs[O0].config.segment_bytes == 2_000_000


def test_settings_that_cannot_be_read_are_none_and_no_other_topic_of_the_name_has_them():
    config = configs_of(SETTINGS, with_orders(1, configs={"segment.bytes": "many"}))

    assert config(O0, ORDERS) is None
    with pytest.raises(Exception, match="is of topic"):
        config(O0, OTHER)
    assert config(TopicPartition("never", 0), None) is None


# -- while it runs


class Broker:
    """The logs of broker 1, by an image, in virtual time."""

    def __init__(self, image: Image) -> None:
        self.disk = MemoryDisk()
        self.store = store_on(self.disk)
        self.topics = ClusterTopics("c")
        self.topics.take(image)
        self.now_ms = 0
        self.soon: list[Any] = []
        self.work: list[Any] = []
        self.purgatory = Purgatory(lambda _: None)
        self.scheduler = Scheduler(self.soon.append, self.work.append)
        self.logs = FileLogs(
            self.store,
            topics=self.topics,
            scheduler=self.scheduler,
            purgatory=self.purgatory,
            clock=Clock(lambda: self.now_ms),
        )
        self.opened: list[TopicPartition] = []

    def open(self, names: Iterable[TopicPartition], epoch: int = 0, **configs: Any) -> None:
        config = LogConfig.of(configs)
        self.logs.open(
            [LogToOpen(name, 1, epoch, config) for name in names], lambda name, _: self.opened.append(name)
        )

    def do_all(self) -> None:
        while self.work or self.soon:
            for pieces in [self.work.pop() for _ in self.work[:]]:
                at_once(pieces)
            for do in [self.soon.pop() for _ in self.soon[:]]:
                do()


def test_new_logs_are_made_in_pieces_and_led_in_their_epochs():
    broker = Broker(with_orders(1, 1, 1))

    broker.open([O0, O1], epoch=3)
    assert broker.opened == []
    broker.do_all()

    assert broker.opened == [O0, O1]
    assert [broker.store.logs[name].latest_epoch for name in (O0, O1)] == [3, 3]
    assert broker.store.topic_id("orders", 0) == ORDERS


@pytest.mark.parametrize("fails", [False, True])
def test_a_log_that_is_still_to_be_made_gets_the_settings_of_then(fails: bool):
    broker = Broker(with_orders(1, 1))
    broker.open([O0, O1])
    if fails:  # it is tried again later
        broker.disk.faults.refuse.add("save")
        broker.do_all()
    for name in (O0, O1):
        broker.logs.configure(name, LogConfig.of({"retention.ms": 7}))
    if fails:
        broker.disk.faults.refuse.clear()
        broker.purgatory.expire(RETRY_MS)
    broker.do_all()

    assert [broker.store.logs[name].config.retention_ms for name in (O0, O1)] == [7, 7]


def test_logs_that_are_there_are_led_at_once():
    broker = Broker(with_orders(1))
    broker.open([O0])
    broker.do_all()

    broker.open([O0], epoch=5, **{"retention.ms": 7})

    assert broker.opened == [O0, O0]
    assert broker.store.logs[O0].latest_epoch == 5
    assert broker.store.logs[O0].config.retention_ms == 7


def test_a_topic_that_is_deleted_before_its_logs_are_made_gets_none():
    broker = Broker(image := with_orders(1))

    broker.open([O0])
    broker.topics.take(after(image, DeleteTopics((ORDERS,))))
    broker.do_all()

    assert broker.opened == []
    assert broker.store.logs == {}


def test_the_next_topic_of_the_name_gets_logs_of_its_own():
    broker = Broker(image := with_orders(1))
    broker.open([O0])
    broker.do_all()

    broker.logs.drop(O0)
    new = Static(CreateTopics((NewTopic(OTHER, "orders", ((1,),)),)))
    broker.topics.take(after(image, DeleteTopics((ORDERS,)), new))
    broker.open([O0])
    broker.do_all()

    assert broker.store.topic_id("orders", 0) == OTHER
    assert broker.opened == [O0, O0]


def test_a_log_is_deleted_with_its_topic_and_no_loss_of_power_brings_it_back():
    broker = Broker(with_orders(1, 1))
    broker.open([O0, O1])
    broker.do_all()

    for name in (O0, O1, O2):
        broker.logs.drop(name)
    broker.do_all()

    assert broker.store.logs == {}
    again = store_on(broker.store.crash(power=True))
    assert again.logs == {}


def test_logs_of_a_topic_are_deleted_in_pieces():
    broker = Broker(with_orders(1, 1))
    broker.open([O0, O1])
    broker.do_all()

    for name in (O0, O1):
        broker.logs.drop(name)
    (begin,) = broker.soon
    begin()
    (pieces,) = broker.work
    assert set(broker.store.logs) == {O0, O1}
    next(pieces)
    assert set(broker.store.logs) == {O1}
    next(pieces)
    assert broker.store.logs == {}


def test_logs_are_deleted_where_work_begins_within_the_call_that_asks_for_it():
    broker = Broker(with_orders(1, 1))
    broker.open([O0, O1])
    broker.do_all()
    broker.scheduler.work = at_once

    for name in (O0, O1):
        broker.logs.drop(name)
    for do in broker.soon:
        do()

    assert broker.store.logs == {}


def test_what_the_disk_refuses_is_tried_again_later():
    broker = Broker(with_orders(1))
    broker.disk.faults.refuse.add("save")
    broker.open([O0])
    broker.do_all()
    assert broker.opened == []

    broker.disk.faults.refuse.clear()
    broker.purgatory.expire(RETRY_MS)
    broker.do_all()

    assert broker.opened == [O0]


def test_settings_that_change_reach_the_log():
    broker = Broker(with_orders(1))
    broker.open([O0])
    broker.do_all()

    broker.logs.configure(O0, LogConfig.of({"retention.ms": 9}))
    broker.logs.configure(O2, LogConfig.of({"retention.ms": 9}))

    assert broker.store.logs[O0].config.retention_ms == 9


def test_nothing_is_ever_in_flight():
    done: list[int] = []

    Broker(with_orders(1)).logs.drained(lambda: done.append(1))

    assert done == [1]
