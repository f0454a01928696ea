"""Of many elections at once a node takes some at a time, and all before it goes by them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any
from uuid import UUID

import pytest

from coterie.base.ids import TopicPartition
from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.cluster.changes import PartitionKey
from coterie.broker.cluster.image import (
    BrokerRow,
    BrokerState,
    Delta,
    Endpoint,
    Image,
    PartitionRow,
    TopicRow,
)
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.hosting import ELECTIONS_AT_ONCE, HostingParts, NodeHosting
from coterie.broker.runtime.leadership import ElectedLeaders, Elections
from coterie.broker.runtime.pieces import Scheduler, straight_on
from coterie.broker.runtime.purgatory import Purgatory
from coterie.broker.topics.cluster_topics import ClusterTopics
from coterie.storage.config import LogConfig
from coterie.storage.remote.store import LogToOpen

ME, OTHER = 1, 2
MANY = 2 * ELECTIONS_AT_ONCE + 10
ORDERS, GROUPS = UUID(int=1), UUID(int=2)


class Shards:
    """Those of groups, which are told and do nothing."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return self._be_told

    def _be_told(self, *_: object, **__: object) -> None: ...

    def drain(self, done: Callable[[], None], **_: object) -> None:
        done()


class Logs:
    """Which logs are to be open, in the order in which that was said."""

    def __init__(self) -> None:
        self.wanted: dict[TopicPartition, int] = {}
        self.configs: dict[TopicPartition, LogConfig] = {}
        self.repeats = 0
        self.drains: list[Collection[TopicPartition] | None] = []

    def begin(self, broker_epoch: int, history: str) -> None: ...

    def go_on(self, history: str) -> None: ...

    def end(self) -> None:
        self.wanted.clear()

    def open(self, wanted: Iterable[LogToOpen], opened: Callable[..., None]) -> None:
        for one in wanted:
            self.wanted[one.name], self.configs[one.name] = one.leader_epoch, one.config

    def drop(self, name: TopicPartition) -> None:
        self.wanted.pop(name, None)

    def configure(self, name: TopicPartition, config: LogConfig) -> None:
        if name in self.wanted:
            self.configs[name] = config

    def drained(self, done: Callable[[], None], names: Collection[TopicPartition] | None = None) -> None:
        self.drains.append(names)
        done()

    def expect_repeats(self) -> None:
        self.repeats += 1

    def when_room(self, callback: Callable[[], None]) -> None: ...


class Rig:
    """A node's hosting, and what it wants to have done soon; it is the member as well."""

    history = "0"

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()
        self.logs = Logs()
        self.leaders = ElectedLeaders(ME)
        shards: Any = Shards()
        purgatory = Purgatory(lambda at_ms: None)
        parts: Any = HostingParts(
            BrokerSettings.of({"node.id": str(ME)}),
            self.leaders,
            Elections(self.leaders, {}, purgatory, lambda: shards, lambda: shards),
            ClusterTopics("test"),
            Scheduler(self.soon.append, straight_on),
            None,  # type: ignore[arg-type]  # its clients, of which it has none
            lambda: shards,
        )
        self.hosting = NodeHosting(parts, self.logs, listener="PLAINTEXT", exit_with=lambda sentence: None)
        self.hosting.member = self
        self.image = Image()
        self.epochs = [0, 0]

    def refused(self, broker_epoch: int) -> None: ...

    def act(self, do: Callable[[], None]) -> None:
        do()

    def change(
        self, *partitions: PartitionRow, topics: Sequence[TopicRow] = (), brokers: Sequence[BrokerRow] = ()
    ) -> None:
        """Have the next image be applied."""
        before, version = self.image, self.image.version + 1
        delta = Delta(
            above=before.version,
            version=version,
            brokers=[row._replace(version=version) for row in brokers],
            topics=[row._replace(version=version) for row in topics],
            partitions=[row._replace(version=version) for row in partitions],
        )
        self.image = before.after(delta)
        self.hosting.apply(before, self.image)

    def led_by(self, leader: int) -> None:
        """Have another lead all orders and the groups, in the next epoch."""
        self.change(
            *(
                row._replace(leader=leader, leader_epoch=row.leader_epoch + 1)
                for row in self.image.all_partitions()
            )
        )

    def work(self) -> None:
        """Do what was to be done soon, until there is nothing."""
        while self.soon:
            self.soon.popleft()()

    @property
    def led(self) -> int:
        """How many partitions the node leads."""
        return len(self.leaders.own())


@pytest.fixture
def rig() -> Rig:
    """It leads nothing of what there is, in a broker epoch."""
    rig = Rig()
    brokers = [
        BrokerRow(number, 1, UUID(int=number), BrokerState.LIVE, (), None, 0, "", 0) for number in (ME, OTHER)
    ]
    topics = [
        TopicRow(topic_id, name, count, {}, 0, False, 0)
        for topic_id, name, count in ((ORDERS, "orders", MANY), (GROUPS, OFFSETS_TOPIC, 3))
    ]
    rows = [
        PartitionRow(first + number, topic.topic_id, number, (ME,), OTHER, 0, None, 0)
        for first, topic in ((1, topics[0]), (MANY + 1, topics[1]))
        for number in range(topic.partitions)
    ]
    rig.change(*rows, topics=topics, brokers=brokers)
    rig.work()
    rig.hosting.serve(1)
    return rig


def test_many_elections_are_taken_some_at_a_time_those_of_groups_first(rig: Rig):
    rig.led_by(ME)
    assert rig.led == ELECTIONS_AT_ONCE
    assert [name.topic for name in rig.logs.wanted][:4] == [OFFSETS_TOPIC] * 3 + ["orders"]
    taken = [rig.led]
    while rig.soon:
        rig.soon.popleft()()
        taken.append(rig.led)
    assert taken == [ELECTIONS_AT_ONCE, 2 * ELECTIONS_AT_ONCE, MANY + 3]
    assert len(rig.logs.wanted) == MANY + 3


def test_images_are_taken_in_their_order(rig: Rig):
    rig.led_by(ME)
    rig.led_by(OTHER)
    rig.led_by(ME)
    rig.work()
    assert {*rig.logs.wanted.values()} == {3}
    assert rig.led == len(rig.logs.wanted) == MANY + 3


def test_logs_that_are_opened_after_their_settings_have_changed_have_the_new_ones(rig: Rig):
    rig.led_by(ME)
    rig.change(topics=[rig.image.topic("orders")._replace(configs={"retention.ms": "999"})])
    rig.work()
    of_orders = {config.retention_ms for name, config in rig.logs.configs.items() if name.topic == "orders"}
    assert of_orders == {999}


@pytest.mark.parametrize("what", ["serve", "resume", "resume anew", "drain", "release", "fence"])
def test_all_that_is_known_of_who_leads_is_taken_before_anything_goes_by_it(rig: Rig, what: str):
    rig.led_by(ME)
    rig.led_by(OTHER)
    done: list[str] = []
    match what:
        case "serve":
            rig.hosting.serve(2)
        case "drain":
            rig.hosting.drain(lambda: done.append("drained"))
        case "release":
            last = PartitionKey(ORDERS, MANY - 1, 2)
            rig.hosting.release([last], lambda: done.append("drained"))
            assert rig.logs.drains == [[TopicPartition("orders", MANY - 1)]], "nothing else is waited for"
        case "fence":
            rig.hosting.fence()
        case _:
            rig.hosting.resume(anew=what == "resume anew")
            assert rig.logs.repeats == 1, "what was sent away meanwhile comes again"
    assert (rig.led, len(rig.logs.wanted)) == (0, 0)
    assert rig.leaders.leader_epoch("orders", MANY - 1) == 2
    rig.work()
    assert (rig.led, len(rig.logs.wanted)) == (0, 0)


def test_a_broker_at_anothers_address_is_warned_of_and_one_that_comes_is_not(
    rig: Rig, caplog: pytest.LogCaptureFixture
):
    at = (Endpoint("PLAINTEXT", "127.0.0.1", 9092),)
    with caplog.at_level(logging.INFO):
        for number in (8, 9):
            live = BrokerRow(number, number, UUID(int=number), BrokerState.LIVE, at, None, 0, "", 0)
            rig.change(brokers=[live])

    warned = {one.getMessage().partition(",")[0]: one.levelname for one in caplog.records}
    assert warned == {
        "broker 8 is there": "INFO",
        "broker 9 is there": "INFO",
        "broker 9 is at the address of broker 8": "WARNING",
    }


def test_of_a_topic_that_is_gone_nothing_is_led_and_its_name_is_free(rig: Rig):
    rig.led_by(ME)
    orders = rig.image.topic_by_id(ORDERS)
    assert orders is not None
    new = orders._replace(topic_id=UUID(int=3), partitions=1)
    row = PartitionRow(MANY + 10, new.topic_id, 0, (ME,), ME, 0, None, 0)
    rig.change(row, topics=[orders._replace(deleted=True), new])
    rig.work()
    assert rig.logs.wanted["orders", 0] == 0  # type: ignore[index]
    assert [*rig.logs.wanted].count(TopicPartition("orders", 1)) == 0
    assert rig.led == 4
