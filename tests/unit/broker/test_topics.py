"""The registry of topics: what it remembers across a crash, and how it agrees with the logs on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coterie.base.codes import Code
from coterie.base.ids import uuid_text
from coterie.base.topic_names import name_problem
from coterie.broker.config.settings import BrokerSettings
from coterie.broker.topics.metadata_file import UnreadableMetadata
from coterie.broker.topics.registry import (
    FILE_NAME,
    Topics,
    new_id,
)
from coterie.broker.topics.topic import (
    Topic,
)
from coterie.storage.config import LogConfig
from coterie.storage.files import FileStore
from coterie.storage.memory import MemoryDisk, MemoryStore

NOW_MS = 1_700_000_000_000
SETTINGS = BrokerSettings.of({"log.dirs": "data", "node.id": "3"})


def create(
    topics: Topics, name: str, *, partitions: int, node_id: int = SETTINGS.node_id, **terms: Any
) -> Topic:
    """Enter a topic as if its logs had been made at once."""
    topics.announce([topics.new(name, replicas=[(node_id,)] * partitions, **terms)])
    return topics.arrive(name)


def grow(topics: Topics, name: str, partitions: int) -> Topic:
    return changed(topics, name, replicas=((SETTINGS.node_id,),) * partitions)


def configure(topics: Topics, name: str, configs: dict[str, str]) -> Topic:
    return changed(topics, name, configs=configs)


def changed(topics: Topics, name: str, **terms: Any) -> Topic:
    before = topics.get(name)
    assert before is not None
    topics.change([replace(before, **terms)])
    after = topics.get(name)
    assert after is not None
    return after


def delete(topics: Topics, name: str) -> Topic:
    """Forget a topic as if its logs had been removed at once."""
    [topic] = topics.delete([name])
    topics.gone(name)
    return topic


def a_store(disk: MemoryDisk | None = None) -> MemoryStore:
    return MemoryStore.open(now_ms=NOW_MS, disk=disk)


def topics_of(disk: MemoryDisk) -> Topics:
    return Topics.open(SETTINGS, a_store(disk))


# -- one life


def test_a_topic_is_found_by_name_and_by_id():
    topics = topics_of(MemoryDisk())

    topic = create(topics, "flights", partitions=6, configs={"retention.ms": "5"})

    assert topics.get("flights") is topic
    assert topics.by_id(topic.topic_id) is topic
    assert topics.all() == [topic]
    assert (topic.partitions, topic.replicas, topic.internal) == (6, ((3,),) * 6, False)
    assert topic.configs == {"retention.ms": "5"}


def test_topics_are_listed_by_name():
    topics = topics_of(MemoryDisk())
    for name in ("b", "a", "c"):
        create(topics, name, partitions=1)

    assert [topic.name for topic in topics.all()] == ["a", "b", "c"]


def test_a_change_makes_a_new_topic_with_the_same_id():
    topics = topics_of(MemoryDisk())
    before = create(topics, "flights", partitions=1)

    grown = grow(topics, "flights", 4)
    changed = configure(topics, "flights", {"retention.ms": "5"})

    assert (before.partitions, grown.partitions, changed.partitions) == (1, 4, 4)
    assert before.topic_id == changed.topic_id
    assert topics.by_id(before.topic_id) is changed
    assert changed.configs == {"retention.ms": "5"}


def test_a_deleted_topic_is_gone_and_its_name_is_free():
    topics = topics_of(MemoryDisk())
    first = create(topics, "flights", partitions=1)

    assert delete(topics, "flights") is first

    assert topics.get("flights") is None
    assert topics.by_id(first.topic_id) is None
    assert create(topics, "flights", partitions=1).topic_id != first.topic_id


def test_the_brokers_own_topics_are_internal():
    topics = topics_of(MemoryDisk())

    assert create(topics, "__consumer_offsets", partitions=50).internal
    assert Topics.is_internal("__group_story")
    assert not Topics.is_internal("_schemas")


def test_an_id_never_looks_like_an_option():
    assert not any(uuid_text(new_id()).startswith("-") for _ in range(1000))


# -- names


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        (
            "a b",
            "'a b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'",
        ),
        ("ü", "'ü' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("x" * 250, f"the length of '{'x' * 250}' is longer than the max allowed length 249"),
    ],
)
def test_a_name_that_kafka_refuses_is_refused_in_its_words(name: str, problem: str):
    assert name_problem(name) == f"Topic name is invalid: {problem}"


@given(st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(lambda name: name not in {".", ".."}))
def test_every_other_name_is_fine(name: str):
    assert name_problem(name) is None


def test_a_dot_and_an_underscore_are_the_same_to_metrics():
    topics = topics_of(MemoryDisk())
    create(topics, "a.b_c", partitions=1)

    assert topics.name_problem("a_b.c") == "Topic 'a_b.c' collides with existing topic: a.b_c"
    assert topics.name_error("a_b.c") is Code.INVALID_TOPIC_EXCEPTION
    assert topics.name_error("a.b_c") is Code.NONE
    assert topics.name_error("a-b-c") is Code.NONE


def test_a_name_no_longer_collides_when_the_other_is_deleted():
    topics = topics_of(MemoryDisk())
    create(topics, "a.b", partitions=1)
    delete(topics, "a.b")

    assert topics.name_problem("a_b") is None


# -- more lives


def test_topics_ids_settings_and_the_cluster_survive_kill_9(tmp_path: Path):
    config = BrokerSettings.of({"log.dirs": str(tmp_path)})
    store = FileStore.open(tmp_path, now_ms=NOW_MS)
    topics = Topics.open(config, store)
    topic = create(topics, "flights", partitions=6, node_id=1, configs={"cleanup.policy": "compact"})
    store.abandon()

    again = Topics.open(config, FileStore.open(tmp_path, now_ms=NOW_MS))

    assert again.get("flights") == topic
    assert again.cluster_id == topics.cluster_id


def test_no_producer_id_is_given_twice_whatever_happens():
    disk = MemoryDisk()
    topics = topics_of(disk)
    given = [topics.next_producer_id() for _ in range(1001)]

    again = topics_of(disk)

    assert given == list(range(1001))
    assert again.next_producer_id() == 2000


def test_what_cannot_be_written_has_not_happened():
    disk = MemoryDisk()
    topics = topics_of(disk)
    kept = create(topics, "kept", partitions=1)
    disk.faults.refuse.add("save")

    for change in (
        lambda: create(topics, "new", partitions=1),
        lambda: grow(topics, "kept", 2),
        lambda: configure(topics, "kept", {"retention.ms": "5"}),
        lambda: delete(topics, "kept"),
        topics.next_producer_id,
    ):
        with pytest.raises(OSError, match="Input/output error"):
            change()

    assert topics.all() == [kept]
    disk.faults.refuse.clear()
    assert topics.next_producer_id() == 0
    assert topics_of(disk).all() == [kept]


def test_what_was_refused_for_the_directory_s_sake_does_not_come_true_at_the_next_start():
    """The file is written by then, but its name may not be there for good."""
    disk = MemoryDisk()
    topics = topics_of(disk)
    create(topics, "kept", partitions=1)
    disk.faults.refuse.add("sync")

    with pytest.raises(OSError):
        create(topics, "refused", partitions=1)
    with pytest.raises(OSError):
        delete(topics, "kept")

    disk.faults.refuse.clear()
    assert [topic.name for topic in topics.all()] == ["kept"]
    assert [topic.name for topic in topics_of(disk).all()] == ["kept"]


# -- logs that nobody wrote down


def test_a_topic_whose_logs_are_found_is_adopted_with_its_id():
    disk = MemoryDisk()
    store = a_store(disk)
    topic_id = new_id()
    for partition in (0, 2):
        store.create_log("flights", partition, topic_id, LogConfig.of({}))

    topics = Topics.open(SETTINGS, store)

    topic = topics.get("flights")
    assert topic is not None
    assert (topic.topic_id, topic.partitions) == (topic_id, 3)
    assert topics_of(store.crash()).get("flights") == topic


def test_an_adopted_offsets_topic_is_compacted():
    store = a_store()
    store.create_log("__consumer_offsets", 0, new_id(), LogConfig.of({}))

    topic = Topics.open(SETTINGS, store).get("__consumer_offsets")

    assert topic is not None
    assert topic.configs["cleanup.policy"] == "compact"


def test_a_topic_has_at_least_the_partitions_that_are_found():
    store = a_store()
    topic = create(Topics.open(SETTINGS, store), "flights", partitions=1)
    store.create_log("flights", 1, topic.topic_id, LogConfig.of({}))

    grown = topics_of(store.crash()).get("flights")

    assert grown is not None
    assert grown.partitions == 2


def test_a_crash_amid_a_deletion_does_not_bring_the_topic_back():
    store = a_store()
    topics = Topics.open(SETTINGS, store)
    topic = create(topics, "flights", partitions=2)
    for partition in range(2):
        store.create_log("flights", partition, topic.topic_id, LogConfig.of({}))
    delete(topics, "flights")

    again = a_store(store.crash())

    assert Topics.open(SETTINGS, again).all() == []
    assert again.logs == {}


def test_a_deleted_topic_does_not_come_back_though_its_logs_have_lost_its_id():
    store = a_store()
    topics = Topics.open(SETTINGS, store)
    topic = create(topics, "flights", partitions=2)
    for partition in range(2):
        store.create_log("flights", partition, topic.topic_id, LogConfig.of({}))
    delete(topics, "flights")
    for partition in range(2):  # as a loss of power may leave what was never flushed
        store.disk.save(f"{store.path}/flights-{partition}/partition.metadata", bytes(43))

    for _ in range(2):
        store = a_store(store.crash())
        topics = Topics.open(SETTINGS, store)
        assert topics.all() == []
        assert store.logs == {}

    aside = [name for name in store.disk.directories(store.path) if name.endswith("-stray")]
    assert sorted(name[:9] for name in aside) == ["flights-0", "flights-1"], "whose they are nobody can say"
    newer = create(topics, "flights", partitions=1)
    store.create_log("flights", 0, newer.topic_id, LogConfig.of({}))
    assert Topics.open(SETTINGS, a_store(store.crash())).all() == [newer]


def test_deletions_that_an_earlier_version_wrote_down_without_names_still_count():
    store = a_store()
    topics = Topics.open(SETTINGS, store)
    topic = create(topics, "flights", partitions=1)
    store.create_log("flights", 0, topic.topic_id, LogConfig.of({}))
    delete(topics, "flights")
    where = f"{store.path}/{FILE_NAME}"
    document = json.loads(store.disk.load(where))
    del document["deleted_names"]
    store.disk.save(where, json.dumps(document).encode())

    again = a_store(store.crash())

    assert Topics.open(SETTINGS, again).all() == []
    assert again.logs == {}


def test_logs_of_an_earlier_topic_of_the_same_name_are_deleted():
    store = a_store()
    store.create_log("flights", 0, UUID(int=7), LogConfig.of({}))
    topics = Topics.open(SETTINGS, store)
    delete(topics, "flights")
    newer = create(topics, "flights", partitions=1)

    again = a_store(store.crash())

    assert Topics.open(SETTINGS, again).get("flights") == newer
    assert again.logs == {}


# -- a file that is not ours


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"version": 2}',
        b'{"version": 1}',
        b'{"version": 1, "cluster_id": "c", "next_producer_id": "x", "topics": [], "deleted": []}',
        b'{"version": 1, "cluster_id": "c", "next_producer_id": 0, "topics": [7], "deleted": []}',
        b'{"version": 1, "cluster_id": "c", "next_producer_id": 0, "topics": [], "deleted": ["x"]}',
        b'{"version": 1, "cluster_id": "c", "next_producer_id": 1e999, "topics": [], "deleted": []}',
        b'{"version": 1, "next_producer_id": 0, "topics": [], "deleted": [], "outdated_commits": [1]}',
        b'{"version": 1, "next_producer_id": 0, "topics": [], "deleted": [], "outdated_commits": {"0": 1}}',
        b'{"version": 1, "next_producer_id": 0, "topics": [], "deleted": [], "outdated_commits": {"x": []}}',
    ],
)
def test_a_file_that_cannot_be_understood_stops_the_start_with_its_name(content: bytes):
    disk = MemoryDisk()
    store = a_store(disk)
    disk.save(f"data/{FILE_NAME}", content)

    with pytest.raises(UnreadableMetadata, match=FILE_NAME):
        Topics.open(SETTINGS, store)


# -- any history


class Registry(RuleBasedStateMachine):
    """Topics come, grow, change and go, and now and then the process is killed."""

    NAMES = st.sampled_from(["a", "b", "c-d", "c.d"])

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.topics = topics_of(self.disk)
        self.model: dict[str, tuple[UUID, int, dict[str, str]]] = {}
        self.producer_ids: set[int] = set()

    @rule(name=NAMES, partitions=st.integers(1, 3))
    def create(self, name: str, partitions: int) -> None:
        if name not in self.model:
            topic = create(self.topics, name, partitions=partitions)
            self.model[name] = (topic.topic_id, partitions, {})

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        topic_id, partitions, configs = self.model[name]
        grow(self.topics, name, partitions + 1)
        self.model[name] = (topic_id, partitions + 1, configs)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), text=st.integers(1, 9).map(str))
    def configure(self, data: st.DataObject, text: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        configure(self.topics, name, {"retention.ms": text})
        self.model[name] = (*self.model[name][:2], {"retention.ms": text})

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        delete(self.topics, name)
        del self.model[name]

    @rule()
    def give_a_producer_id(self) -> None:
        producer_id = self.topics.next_producer_id()
        assert producer_id not in self.producer_ids
        self.producer_ids.add(producer_id)

    @rule()
    def crash(self) -> None:
        self.topics = topics_of(self.disk)

    @invariant()
    def it_holds_what_was_done(self) -> None:
        held = {t.name: (t.topic_id, t.partitions, dict(t.configs)) for t in self.topics.all()}
        assert held == self.model
        assert all(self.topics.by_id(held[name][0]) is self.topics.get(name) for name in held)


TestRegistry = Registry.TestCase
TestRegistry.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
