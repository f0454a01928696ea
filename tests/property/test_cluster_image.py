"""The cluster's metadata by deltas is what it would be made whole, whatever has changed in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import process_time
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.broker.cluster.image import (
    BrokerRow,
    BrokerState,
    Delta,
    DoesNotFollow,
    Image,
    LeaderAndEpoch,
    PartitionRow,
    SettingRow,
    TopicRow,
)

IDS = st.integers(1, 4)
NAMES = st.sampled_from(["orders", "other", "__consumer_offsets"])


class Tables:
    """Rows as a database keeps them: each change writes some of them, at the next version."""

    def __init__(self) -> None:
        self.version = 0
        self.brokers: dict[int, BrokerRow] = {}
        self.topics: dict[UUID, TopicRow] = {}
        self.partitions: dict[tuple[UUID, int], PartitionRow] = {}
        self.settings: dict[tuple[str, str], SettingRow] = {}

    def change(self, draw) -> None:
        self.version += 1
        draw(
            st.sampled_from(
                [self.broker, self.create, self.create, self.grow, self.drop, self.lead, self.set]
            )
        )(draw)

    def broker(self, draw) -> None:
        broker_id = draw(IDS)
        state = draw(st.sampled_from(BrokerState))
        row = BrokerRow(broker_id, self.version, UUID(int=0), state, (), None, 0, "", self.version)
        self.brokers[broker_id] = row

    def there(self) -> Mapping[str, TopicRow]:
        return {row.name: row for row in self.topics.values() if not row.deleted}

    def create(self, draw) -> None:
        name = draw(NAMES)
        if name not in self.there():
            topic_id = UUID(int=self.version)
            self.topics[topic_id] = TopicRow(topic_id, name, 0, {}, 0, False, self.version)
            self._grow(self.topics[topic_id], draw(st.integers(1, 3)), draw)

    def grow(self, draw) -> None:
        topic = self.there().get(draw(NAMES))
        if topic is not None:
            self._grow(topic, draw(st.integers(1, 2)), draw)

    def _grow(self, topic: TopicRow, count: int, draw) -> None:
        for number in range(topic.partitions, topic.partitions + count):
            replicas = tuple(draw(st.lists(IDS, min_size=1, max_size=3, unique=True)))
            partition_id, leader = 1_000 * self.version + number, draw(st.none() | IDS)
            row = PartitionRow(partition_id, topic.topic_id, number, replicas, leader, 0, None, self.version)
            self.partitions[topic.topic_id, number] = row
        total = topic.partitions + count
        self.topics[topic.topic_id] = topic._replace(partitions=total, version=self.version)

    def drop(self, draw) -> None:
        topic = self.there().get(draw(NAMES))
        if topic is not None:
            self.topics[topic.topic_id] = topic._replace(deleted=True, version=self.version)

    def lead(self, draw) -> None:
        """Move what a broker leads, as a takeover does, and whatever else is drawn."""
        dead, leader = draw(IDS), draw(st.none() | IDS)
        names = {row.topic_id for row in self.there().values()}
        for key, row in self.partitions.items():
            if row.topic_id in names and row.leader == dead:
                epoch = row.leader_epoch + 1
                self.partitions[key] = row._replace(leader=leader, leader_epoch=epoch, version=self.version)

    def set(self, draw) -> None:
        scope, value = draw(st.sampled_from(["", "1"])), draw(st.none() | st.just("8"))
        self.settings[scope, "a"] = SettingRow(scope, "a", value, self.version)

    def above(self, version: int) -> Delta:
        return Delta(
            above=version,
            version=self.version,
            brokers=[row for row in self.brokers.values() if row.version > version],
            topics=[row for row in self.topics.values() if row.version > version],
            partitions=[row for row in self.partitions.values() if row.version > version],
            settings=[row for row in self.settings.values() if row.version > version],
        )


@given(st.data())
def test_an_image_that_follows_the_changes_is_the_one_that_is_made_of_all_rows(data):
    tables, image = Tables(), Image()
    for _ in range(data.draw(st.integers(1, 12))):
        tables.change(data.draw)
        if data.draw(st.booleans()):  # else the next delta is of several changes
            image = image.after(tables.above(image.version))

    followed = image.after(tables.above(image.version))

    assert followed == Image().after(tables.above(0))
    assert followed.version == tables.version


@given(st.data())
def test_an_image_answers_as_the_rows_say(data):
    tables = Tables()
    for _ in range(data.draw(st.integers(1, 15))):
        tables.change(data.draw)
    image = Image().after(tables.above(0))
    unfenced = sorted(one.broker_id for one in tables.brokers.values() if one.state != "fenced")
    live = sorted(one.broker_id for one in tables.brokers.values() if one.state == "live")

    assert (list(image.unfenced), list(image.live)) == (unfenced, live)
    assert {row.name: row for row in image.topics()} == tables.there()
    for name in ("orders", "other", "__consumer_offsets"):
        assert image.topic(name) == tables.there().get(name)
    for row in tables.topics.values():
        assert image.topic_by_id(row.topic_id) == (None if row.deleted else row)
    there = {key: row for key, row in tables.partitions.items() if not tables.topics[key[0]].deleted}
    assert {(row.topic_id, row.number): row for row in image.all_partitions()} == there
    for (topic_id, number), row in tables.partitions.items():
        known = (topic_id, number) in there
        leader = row.leader if row.leader in unfenced else None
        assert image.leader(topic_id, number) == (LeaderAndEpoch(leader, row.leader_epoch) if known else None)
    for (scope, name), setting in tables.settings.items():
        assert image.setting(scope, name) == setting.value


@given(st.data())
def test_an_image_stays_as_it_was_when_another_is_made_from_it(data):
    tables = Tables()
    for _ in range(data.draw(st.integers(1, 8))):
        tables.change(data.draw)
    image = Image().after(tables.above(0))
    before = Image().after(tables.above(0))
    for _ in range(data.draw(st.integers(1, 8))):
        tables.change(data.draw)

    image.after(tables.above(image.version))

    assert image == before


TOPIC = TopicRow(UUID(int=1), "orders", 1, {}, 0, False, 1)
PARTITION = PartitionRow(1, UUID(int=1), 0, (1,), 1, 0, None, 1)
AT_ONE = Image().after(Delta(above=0, version=1, topics=[TOPIC], partitions=[PARTITION]))


@pytest.mark.parametrize(
    "delta",
    [
        Delta(above=0, version=2),
        Delta(above=2, version=3),
        Delta(above=1, version=0),
        Delta(above=1, version=2, partitions=[PARTITION]),  # of the version that the image has
        Delta(above=1, version=2, partitions=[PARTITION._replace(version=3)]),  # read later than the rest
        Delta(above=1, version=2, partitions=[PARTITION._replace(version=2, topic_id=UUID(int=2))]),
        Delta(above=1, version=2, partitions=[PARTITION._replace(version=2, number=1)]),
        Delta(above=1, version=2, partitions=[PARTITION._replace(version=2, number=2)]),
        Delta(above=1, version=2, topics=[TOPIC._replace(version=2, partitions=2)]),
        Delta(above=1, version=2, topics=[TOPIC._replace(version=2, partitions=0)]),
        Delta(above=1, version=2, topics=[TOPIC._replace(version=2, topic_id=UUID(int=2))]),
    ],
)
def test_a_delta_that_does_not_follow_is_refused(delta: Delta):
    with pytest.raises(DoesNotFollow):
        AT_ONE.after(delta)


def test_a_topic_is_replaced_by_another_of_its_name_within_one_delta():
    gone, new = TOPIC._replace(version=2, deleted=True), TOPIC._replace(version=3, topic_id=UUID(int=2))
    partition = PARTITION._replace(version=3, topic_id=UUID(int=2))
    for topics in ([gone, new], [new, gone]):
        image = AT_ONE.after(Delta(above=1, version=3, topics=topics, partitions=[partition]))

        assert image.topic("orders") == new
        assert image.partitions(UUID(int=1)) == ()
        assert image.partitions(UUID(int=2)) == (partition,)


def test_the_same_rows_at_another_level_are_another_image():
    delta = Delta(above=0, version=1, topics=[TOPIC], partitions=[PARTITION])

    assert Image().after(replace(delta, level=1)) != AT_ONE
    assert Image().after(replace(delta, level=1)).level == 1
    assert AT_ONE != "an image"


def test_ten_thousand_topics_are_heard_of_at_once():
    topics = [TopicRow(UUID(int=at), f"t{at}", 1, {}, 0, False, 1) for at in range(10_000)]
    rows = [PartitionRow(at, UUID(int=at), 0, (1, 2, 3), 1, 0, None, 1) for at in range(10_000)]
    image = Image().after(Delta(above=0, version=1, topics=topics, partitions=rows))
    moved = [row._replace(leader=2, leader_epoch=1, version=2) for row in rows]
    best = []
    for _ in range(3):
        begun = process_time()
        after = image.after(Delta(above=1, version=2, partitions=moved))
        best.append(process_time() - begun)

    assert after.leader(UUID(int=9_999), 0) == (None, 1)
    assert min(best) < 0.05
