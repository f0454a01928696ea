"""What groups have committed for a topic never counts for the next one of its name, whatever came between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from coterie.base.codes import Code
from coterie.base.errors import Corrupt
from coterie.broker.runtime.pieces import at_once
from coterie.coordinator.group.loading import Loader
from coterie.coordinator.group.offsets.stored import OffsetTables
from coterie.wire.payloads.consumer_offsets import OffsetCommitValue, offset_value, partition_key
from unit.broker.group_api_rig import FETCH, OFFSET_DELETE, ApiRig, fetch_topic, part

CREATE_TOPICS, DELETE_TOPICS = 19, 20
row = pytest.mark.row


def a_rig() -> ApiRig:
    """A broker with one topic, for which a group has committed."""
    rig = ApiRig()
    rig.committed("g", ("orders", 0, 5))
    return rig


def committed_of(rig: ApiRig) -> int:
    """Return what the group has committed for the topic, -1 for nothing."""
    answer = rig.client().ask(FETCH, 7, group_id="g", topics=(fetch_topic(rig, 7, "orders", 0),))
    assert answer.error_code == Code.NONE
    return int(answer.topics[0].partitions[0].committed_offset)


def delete(rig: ApiRig, *, settled: bool = True) -> Any:
    client = rig.client()
    client.send_at_once(DELETE_TOPICS, 5, topic_names=("orders",), timeout=1_000)
    if settled:
        rig.settle()
    (answer,) = client.answers()
    return answer.responses[0].error_code


@row("OM-7")
def test_a_deletion_is_answered_when_no_crash_brings_back_what_was_committed():
    """Found by the crash points: the tombstones went out after the answer."""
    rig = a_rig()
    assert delete(rig, settled=False) == Code.NONE

    rig = ApiRig(rig.store.crash(), **rig.told)  # type: ignore[attr-defined]

    assert committed_of(rig) == -1


def gone_but_for_its_commits(rig: ApiRig) -> None:
    """Have the topic gone, as a kill before the tombstones leaves it."""
    rig.node.topics.delete(["orders"])
    for partition in range(2):
        rig.store.delete_log("orders", partition, now_ms=rig.now_ms)


@row("OM-7")
def test_a_topic_begins_without_what_was_committed_for_the_last_that_the_disk_would_not_drop():
    rig = a_rig()
    gone_but_for_its_commits(rig)
    rig.disk.faults.refuse = {"write"}
    at_once(rig.node.coordinator.topics_deleted(("orders",)))
    rig.disk.faults.refuse = set()
    assert committed_of(rig) == 5

    rig.node.topic_manager.create_topic("orders", partitions=1)
    rig.settle()

    assert committed_of(rig) == -1
    assert committed_of(rig.started_again()) == -1


@row("OM-7")
def test_a_topic_begins_without_what_was_committed_for_one_whose_deletion_a_kill_cut_short():
    """Found by the crash points: the topic was gone, its commits were not; the next one began with them."""
    rig = a_rig()
    gone_but_for_its_commits(rig)

    rig = rig.started_again()  # which makes `orders` anew

    assert committed_of(rig) == -1


def after_a_loss_of_power(rig: ApiRig, seed: int) -> ApiRig:
    rig.disk.random.seed(seed)  # says how much of what is not flushed is left
    return ApiRig(rig.store.crash(power=True), **rig.told)  # type: ignore[attr-defined]


def flushed(rig: ApiRig) -> ApiRig:
    """Have no loss of power take what is there."""
    for log in rig.store.logs.values():
        log.flush()
    return rig


def offsets_deleted(rig: ApiRig) -> None:
    places = tuple(
        part(OFFSET_DELETE, 0, "OffsetDeleteRequestPartition", partition_index=place) for place in range(2)
    )
    topics = (part(OFFSET_DELETE, 0, "OffsetDeleteRequestTopic", name="orders", partitions=places),)
    rig.client().ask(OFFSET_DELETE, 0, group_id="g", topics=topics)


def nothing(rig: ApiRig) -> None:
    pass


@row("OM-7")
@pytest.mark.parametrize("before", [nothing, offsets_deleted])
@pytest.mark.parametrize("killed", [False, True], ids=["", "killed-between"])
def test_a_topic_begins_without_what_was_committed_for_the_last_though_a_loss_of_power_takes_the_tombstones(
    before: Callable[[ApiRig], None], killed: bool
):
    """Found by the crash points: the commit was flushed, what ended it was not, the name was given again."""
    for seed in range(8):
        rig = flushed(a_rig())
        before(rig)
        assert delete(rig) == Code.NONE
        rig = rig.started_again() if killed else rig  # which makes `orders` anew
        if not killed:
            rig.node.topic_manager.create_topic("orders", partitions=2)

        assert committed_of(after_a_loss_of_power(rig, seed)) == -1


def test_a_topic_is_not_made_where_a_loss_of_power_may_bring_back_commits_for_the_last():
    rig = flushed(a_rig())
    delete(rig)
    rig.disk.faults.refuse = {"sync"}

    failed = at_once(rig.node.topic_manager.create_topics([rig.node.topics.new("orders", replicas=[(1,)])]))

    assert "an earlier topic" in str(failed["orders"])


def test_a_topic_is_made_without_a_flush_of_commits_where_none_of_its_name_has_ended():
    rig = a_rig()
    delete(rig)
    [host] = rig.node.coordinator.active()

    rig.node.topic_manager.create_topic("new", partitions=1)

    assert host.log.recovery_point < host.log.end_offset


def test_a_topic_whose_name_still_has_commits_that_cannot_be_dropped_is_not_made():
    rig = a_rig()
    gone_but_for_its_commits(rig)
    rig.disk.faults.refuse = {"write"}

    failed = at_once(rig.node.topic_manager.create_topics([rig.node.topics.new("orders", replicas=[(1,)])]))

    assert list(failed) == ["orders"]
    assert "an earlier topic" in str(failed["orders"])
    assert rig.node.topics.get("orders") is None


@row("OM-7")
def test_a_topic_that_is_deleted_while_groups_are_loading_takes_its_commits_along():
    rig = a_rig().started_again(settled=False)
    delete(rig)

    rig.settle()

    assert committed_of(rig) == -1


def killed(rig: ApiRig, *, settled: bool = True) -> ApiRig:
    """Have a broker on what a kill leaves at this moment: nothing that is put off is done before."""
    return ApiRig(rig.store.crash(), settled=settled, **rig.told)  # type: ignore[attr-defined]


@row("OM-7")
def test_a_topic_made_while_groups_are_loading_begins_without_the_commits_of_the_last_though_a_kill_follows():
    rig = a_rig()
    gone_but_for_its_commits(rig)
    rig = rig.started_again(settled=False)  # which makes `orders` anew

    rig = killed(killed(rig, settled=False))

    assert committed_of(rig) == -1


@row("OM-7")
def test_what_is_committed_once_the_groups_are_loaded_is_of_the_new_topic_at_every_later_start():
    rig = a_rig()
    gone_but_for_its_commits(rig)
    rig = killed(rig.started_again(settled=False))

    rig.committed("g", ("orders", 0, 7))

    assert committed_of(rig.started_again().started_again()) == 7


@row("OM-7")
def test_groups_are_not_answered_before_it_is_certain_that_their_old_commits_are_not_dropped_twice():
    """What the disk is owed says by topic what is to be dropped: it would name the new commits, too."""
    rig = a_rig()
    gone_but_for_its_commits(rig)
    rig = rig.started_again(settled=False)
    rig.disk.faults.refuse = {"save"}
    rig.settle()
    [host] = rig.node.coordinator.hosts.values()
    assert host.unavailable() == Code.COORDINATOR_LOAD_IN_PROGRESS

    rig.disk.faults.refuse = set()
    rig.pass_ms(2_000)
    rig.settle()

    rig.committed("g", ("orders", 0, 7))
    assert committed_of(killed(rig)) == 7


@row("OM-7")
def test_a_topic_made_while_groups_cannot_be_loaded_begins_without_the_commits_of_the_last(
    monkeypatch: pytest.MonkeyPatch,
):
    rig = a_rig()

    def fails(loader: Loader, now_ms: int) -> Any:
        raise Corrupt("for the test")

    with monkeypatch.context() as broken:
        broken.setattr(Loader, "settle", fails)
        rig = rig.started_again()
        assert delete(rig) == Code.NONE
        rig.node.topic_manager.create_topic("orders", partitions=1)
    rig = rig.started_again()

    assert committed_of(rig) == -1
    rig.committed("g", ("orders", 0, 7))
    assert committed_of(rig.started_again()) == 7


def test_what_is_to_be_dropped_of_a_topic_is_forgotten_with_the_topic():
    rig = a_rig()
    gone_but_for_its_commits(rig)
    rig = rig.started_again(settled=False)
    assert any(map(rig.node.topics.outdated_in, range(2)))

    delete(rig, settled=False)

    assert not any(map(rig.node.topics.outdated_in, range(2)))


def test_commits_for_a_topic_that_is_missing_stay_as_long_as_none_is_made():
    """As on Apache Kafka: a directory that was taken over may lack topics that groups know."""
    rig = a_rig()
    gone_but_for_its_commits(rig)

    assert committed_of(rig) == 5


@row("OM-7")
def test_topics_that_are_deleted_together_have_each_group_looked_at_once_and_others_heard_between(
    monkeypatch: pytest.MonkeyPatch,
):
    rig = a_rig()
    [host] = rig.node.coordinator.active()
    offsets, value = host.shard.offsets, offset_value(OffsetCommitValue(offset=5))
    for place in range(300):
        topics = ("kept", f"gone-{place % 3}")
        keys = (partition_key(topic, partition) for topic in topics for partition in range(50))
        offsets.pack(f"group-{place}", dict.fromkeys(keys, value))
    looks: Counter[str] = Counter()
    topics_of = OffsetTables.topics_of

    def counted(tables: OffsetTables, group_id: str) -> frozenset[str]:
        looks[group_id] += 1
        return topics_of(tables, group_id)

    monkeypatch.setattr(OffsetTables, "topics_of", counted)
    names = tuple(f"gone-{number}" for number in range(2_000))

    pieces = [len(looks) for _ in rig.node.coordinator.topics_deleted(names)]

    assert max(later - before for before, later in pairwise(pieces)) <= 20
    assert set(looks.values()) == {1, 2}, "once to look, and once more where something is dropped"
    assert {topics_of(offsets, f"group-{place}") for place in range(300)} == {frozenset({"kept"})}
    assert committed_of(rig) == 5
