"""What waits to be written to the story when the partition that it is written to is given away."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from coterie.base.ids import TopicPartition
from coterie.base.topic_names import STORY_TOPIC
from coterie.story import topic as story_topic
from coterie.story.topic import PAUSE_MS, ROUND_MS, WEIGHT_OF_A_ROUND
from coterie.wire.records.batches import records_of, scan
from unit.broker.member_rig import ME, OTHER, MemberRig

STORY = TopicPartition(STORY_TOPIC, 0)
GROUPS = 200  # whose story takes several rounds


@pytest.fixture
def rig() -> MemberRig:
    """A broker that leads the story's partition too."""
    rig = MemberRig(coterie_story_enable=True)
    rig.node.topic_manager.ensure_internal(STORY_TOPIC)
    rig.elections.heard(STORY, ME, 1)
    rig.settle()
    return rig


def kinds(rig: MemberRig) -> Counter[str]:
    """Return how many records of each kind are in the story."""
    written = rig.store.logs[STORY].read(0, max_bytes=1 << 30)
    return Counter(
        json.loads(one.value or b"")["kind"] for at, _ in scan(written) for one in records_of(written, at)
    )


def all_of(groups: int) -> Counter[str]:
    return Counter(move=groups, rebalance=groups)


def test_a_broker_that_serves_on_writes_in_its_rounds_what_waits_and_then_gives_the_partition_away(
    rig: MemberRig,
):
    """Written in one go, 24,000 took 2.8 s, in which no member was heard."""
    for number in range(GROUPS):
        rig.stable(f"g{number}", "a")

    done = rig.drained(STORY)
    assert (done, kinds(rig).total()) == ([], 0)
    rig.pass_ms(PAUSE_MS)
    at_once = kinds(rig).total()
    rounds = 1
    while not done:
        assert rig.leaders.leads(*STORY)
        assert rounds < 2 * GROUPS
        rig.pass_ms(ROUND_MS)
        rounds += 1

    assert 0 < at_once <= WEIGHT_OF_A_ROUND < all_of(GROUPS).total()
    assert (done, kinds(rig)) == (["drained"], all_of(GROUPS))
    assert not rig.leaders.leads(*STORY)


def test_what_comes_while_it_waits_does_not_keep_the_partition_back(rig: MemberRig):
    """Of a broker that has groups left, something may wait all the time."""
    rig.stable("first", "a")
    done = rig.drained(STORY)
    for number in range(GROUPS):
        rig.stable(f"g{number}", "a")
    rig.pass_ms(PAUSE_MS)

    assert done == ["drained"]
    assert kinds(rig).total() < all_of(1 + GROUPS).total()


def test_where_nothing_waits_the_partition_is_given_away_at_once(rig: MemberRig):
    assert rig.drained(STORY) == ["drained"]
    assert not rig.leaders.leads(*STORY)


def test_other_partitions_of_an_offer_are_served_no_more_at_once(rig: MemberRig):
    orders = TopicPartition("orders", 0)
    rig.stable("g", "a")
    done = rig.drained(STORY, orders)

    assert (rig.leaders.leads(*orders), rig.leaders.leads(*STORY)) == (False, True)
    rig.pass_ms(PAUSE_MS)
    assert (done, rig.leaders.leads(*STORY)) == (["drained"], False)


def test_a_broker_that_stops_writes_all_at_once(rig: MemberRig):
    for number in range(GROUPS):
        rig.stable(f"g{number}", "a")

    assert rig.drained() == ["drained"]
    assert kinds(rig) == all_of(GROUPS)
    assert not rig.leaders.leads(*STORY)


@pytest.mark.parametrize("leader", [ME, OTHER])
def test_who_is_elected_while_it_waits_leads(rig: MemberRig, leader: int):
    """A partition that had come back would be served by nobody until the next election."""
    rig.stable("g", "a")
    done = rig.drained(STORY)
    rig.elections.heard(STORY, leader, 2)
    rig.pass_ms(PAUSE_MS)

    assert done == ["drained"]
    assert rig.leaders.leads(*STORY) is (leader == ME)


@pytest.mark.parametrize("part", ["log_rebalance", "build_batch"])
def test_the_partition_is_given_away_too_where_a_mistake_keeps_the_last_from_being_written(
    rig: MemberRig, monkeypatch: pytest.MonkeyPatch, part: str
):
    rig.stable("g", "a")
    done = rig.drained(STORY)
    with monkeypatch.context() as broken:
        broken.setattr(story_topic, part, None)
        with pytest.raises(TypeError):
            rig.pass_ms(PAUSE_MS)
    rig.pass_ms(ROUND_MS)

    assert done == ["drained"]
