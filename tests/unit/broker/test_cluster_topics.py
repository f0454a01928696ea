"""The topics of a cluster as one of its brokers looks them up: they are what its image says."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.codes import Code
from coterie.base.ids import uuid_text
from coterie.base.topic_names import metric_name
from coterie.broker.cluster.changes import (
    AddPartitions,
    Changed,
    CreateTopics,
    DeleteTopics,
    NewTopic,
    NotChanged,
    RegisterBroker,
    SetConfigs,
    SetSetting,
)
from coterie.broker.cluster.image import Image
from coterie.broker.cluster.pretended import PretendedEngine
from coterie.broker.runtime.pieces import Pieces, straight_on
from coterie.broker.topics.cluster_topics import ClusterTopics

PROCESS = UUID(int=7)
NAMES = ("a.b", "a_b", "c", "__consumer_offsets")


class Changing:
    """An engine with three brokers, whose metadata somebody changes at random."""

    def __init__(self) -> None:
        self.engine = PretendedEngine()
        self.ids = iter(map(UUID, (f"{n:032x}" for n in range(1, 1_000))))
        self.epochs = [self.engine.execute(RegisterBroker(one, PROCESS, 0)) for one in (1, 2, 3)]

    def change(self, draw: Any) -> None:
        """Change something, or try to."""
        kind = draw(st.sampled_from(["make", "make", "grow", "set", "delete", "broker", "setting"]))
        name, image = draw(st.sampled_from(NAMES)), self.engine.image
        topic = image.topic(name)
        replicas = tuple(draw(st.lists(st.sampled_from([(1, 2), (2, 3), (3,)]), min_size=1, max_size=3)))
        if kind == "make":
            self.engine.execute(CreateTopics((NewTopic(next(self.ids), name, replicas, {"n": name}),)))
        elif kind == "broker":
            epoch = image.brokers[2].broker_epoch
            self.engine.execute(RegisterBroker(2, PROCESS, epoch))  # leaders move
        elif kind == "setting":
            there = image.settings.get(("", "x"))
            self.engine.execute(SetSetting("", "x", "1", 0 if there is None else there.version))
        elif topic is not None and kind == "grow":
            self.engine.execute(AddPartitions(topic.topic_id, topic.partitions, replicas))
        elif topic is not None and kind == "set":
            self.engine.execute(SetConfigs(topic.topic_id, topic.version, {"n": str(draw(st.booleans()))}))
        elif topic is not None:
            self.engine.execute(DeleteTopics((topic.topic_id,)))


def as_rows(image: Image) -> dict[str, tuple[Any, ...]]:
    return {
        row.name: (row.topic_id, tuple(one.replicas for one in image.partitions(row.topic_id)), row.configs)
        for row in image.topics()
    }


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_topics_are_what_the_image_says_and_the_same_objects_until_they_change(data: st.DataObject):
    changing, topics = Changing(), ClusterTopics("the-cluster")
    before: dict[str, Any] = {}
    rows_before: dict[str, Any] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        changing.change(data.draw)
        if data.draw(st.booleans()):
            continue  # the next image is of several changes
        image = changing.engine.image
        topics.take(image)
        rows = as_rows(image)

        for name in data.draw(st.lists(st.sampled_from(NAMES))):  # some are looked up before all are
            assert (topics.get(name) is None) is (name not in rows)
        found = {topic.name: topic for topic in topics.all()}

        assert {n: (one.topic_id, one.replicas, one.configs) for n, one in found.items()} == rows
        assert [*found] == sorted(rows)
        assert len(topics) == len(rows)
        for name in NAMES:
            there = found.get(name)
            assert topics.get(name) is there
            assert topics.is_taken(name) is (there is not None)
            alike = [one for one in rows if metric_name(one) == metric_name(name)]
            assert topics.name_like(name) == (alike[0] if alike else None)
            assert topics.is_free(name) is not bool(alike)
            if there is not None:
                assert topics.by_id(there.topic_id) is there
                assert there.partitions == len(there.replicas)
                same = rows_before.get(name) == rows[name]
                assert (there is before.get(name)) is same
        before, rows_before = found, rows


def test_a_topic_that_is_gone_is_found_by_neither_name_nor_id():
    changing, topics = Changing(), ClusterTopics("the-cluster")
    changing.engine.execute(CreateTopics((NewTopic(UUID(int=1), "t", ((1,),)),)))
    topics.take(changing.engine.image)
    assert topics.get("t") is not None

    changing.engine.execute(DeleteTopics((UUID(int=1),)))
    topics.take(changing.engine.image)

    assert (topics.get("t"), topics.by_id(UUID(int=1)), topics.all()) == (None, None, [])
    assert topics.is_free("t")


def test_a_change_of_one_topic_looks_at_no_other(monkeypatch: pytest.MonkeyPatch):
    changing, topics = Changing(), ClusterTopics("the-cluster")
    new = [NewTopic(UUID(int=number), f"t-{number}", ((1,),)) for number in range(1, 300)]
    assert isinstance(changing.engine.execute(CreateTopics(tuple(new))), Changed)
    topics.take(changing.engine.image)
    others = topics.all()

    topic = changing.engine.image.topic("t-7")
    assert topic is not None
    changing.engine.execute(SetConfigs(topic.topic_id, topic.version, {"retention.ms": "7"}))
    looked_up: list[UUID] = []
    partitions = Image.partitions

    def count(self: Image, topic_id: UUID) -> Any:
        looked_up.append(topic_id)
        return partitions(self, topic_id)

    monkeypatch.setattr(Image, "partitions", count)
    monkeypatch.setattr(Image, "topics", None)
    topics.take(changing.engine.image)
    found = topics.get("t-7")

    assert found is not None
    assert found.configs == {"retention.ms": "7"}
    assert looked_up == [topic.topic_id]
    assert topics.get("t-8") in others


def test_what_is_left_of_topics_that_are_gone_is_let_go_of():
    changing, topics = Changing(), ClusterTopics("the-cluster")
    for number in range(1, 400):
        changing.engine.execute(CreateTopics((NewTopic(UUID(int=number), "t", ((1,),)),)))
        topics.take(changing.engine.image)
        assert topics.get("t") is not None
        changing.engine.execute(DeleteTopics((UUID(int=number),)))
        topics.take(changing.engine.image)

    assert len(topics._made) < 110


def test_a_name_that_is_proposed_is_taken_and_cannot_be_found():
    topics = ClusterTopics("the-cluster")
    topics.claimed.add("t")

    assert topics.is_taken("t")
    assert topics.get("t") is None
    assert topics.name_error("no such/name") == Code.INVALID_TOPIC_EXCEPTION


def test_the_text_of_an_id_never_starts_with_a_dash():
    drawn = iter((UUID(int=0xF8 << 120), UUID(int=1)))

    topic = ClusterTopics("the-cluster", new_uuid=lambda: next(drawn)).new("t", replicas=[(1, 2)])

    assert uuid_text(UUID(int=0xF8 << 120)).startswith("-")
    assert topic.topic_id == UUID(int=1)


def test_whoever_waits_for_another_image_goes_on_once_that_is_in_place():
    changing, topics = Changing(), ClusterTopics("the-cluster")
    first = topics.image
    seen: list[int] = []

    def waits() -> Pieces[None]:
        yield topics.until_after(first)
        seen.append(topics.image.version)
        yield topics.until_after(first)  # which has come
        seen.append(topics.image.version)

    straight_on(waits())
    assert seen == []
    topics.take(changing.engine.image)

    assert seen == [3, 3]
    assert not isinstance(changing.epochs[0], NotChanged)
