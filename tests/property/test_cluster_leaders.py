"""Who leads next: never anybody who is dead, nothing moves that need not, and the load is even."""

from __future__ import annotations

from collections import Counter
from time import process_time
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.cluster.image import BrokerRow, BrokerState, Delta, Image, PartitionRow, TopicRow
from coterie.broker.cluster.leaders import (
    after_departure,
    after_registration,
    by_rendezvous,
    first_leader,
    led_by,
    mixed,
    reassigned,
)

INTERNAL, OURS = UUID(int=1), UUID(int=2)


def image_of(states: dict[int, str], rows: list[PartitionRow]) -> Image:
    """The image of brokers, and of one internal topic and one other."""
    brokers = [
        BrokerRow(one, 1, OURS, BrokerState(state), (), None, 0, "", 1) for one, state in states.items()
    ]
    topics, partitions = [], []
    for topic_id, name in ((INTERNAL, OFFSETS_TOPIC), (OURS, "orders")):
        mine = [row for row in rows if row.topic_id == topic_id]
        partitions += [row._replace(number=at) for at, row in enumerate(mine)]
        topics.append(TopicRow(topic_id, name, len(mine), {}, 0, False, 1))
    return Image().after(Delta(above=0, version=1, brokers=brokers, topics=topics, partitions=partitions))


@st.composite
def images(draw, *, replicas_least: int = 0) -> Image:
    ids = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5, unique=True))
    states = {one: draw(st.sampled_from(["live", "live", "live", "leaving", "fenced"])) for one in ids}
    some = st.sampled_from([*ids, 77])  # and one that has never registered
    rows = [
        PartitionRow(
            at,
            draw(st.sampled_from([INTERNAL, OURS])),
            0,
            tuple(draw(st.lists(some, min_size=replicas_least, max_size=3, unique=True))),
            draw(st.none() | st.sampled_from(ids)),
            draw(st.integers(0, 5)),
            draw(st.none() | st.none() | some),
            1,
        )
        for at in range(draw(st.integers(0, 12)))
    ]
    return image_of(states, rows)


def leaders(image: Image) -> dict[int, int | None]:
    return {row.partition_id: row.leader for row in image.all_partitions()}


@given(images(), st.integers(1, 9))
def test_nobody_who_is_not_live_is_chosen_and_nothing_moves_that_need_not(image, gone):
    before = {row.partition_id: row for row in image.all_partitions()}

    moved = after_departure(image, gone, version=2)

    candidates = set(image.live) - {gone}
    assert [row.partition_id for row in moved] == sorted(
        one for one, leader in leaders(image).items() if leader == gone
    )
    for row in moved:
        assert row.leader in candidates or (row.leader is None and not candidates)
        was = before[row.partition_id]
        assert row == was._replace(
            leader=row.leader, leader_epoch=was.leader_epoch + 1, next_leader=None, version=2
        )


@given(images(), st.integers(1, 9))
def test_who_was_made_ready_leads_and_else_the_first_live_replica(image, gone):
    before = {row.partition_id: row for row in image.all_partitions()}
    candidates = set(image.live) - {gone}

    for row in after_departure(image, gone, version=2):
        was = before[row.partition_id]
        wanted = [one for one in (was.next_leader, *was.replicas) if one in candidates]
        assert not wanted or row.leader == wanted[0]


@given(images(), st.integers(1, 9))
def test_whoever_is_given_a_partition_by_count_has_no_more_than_the_others(image, gone):
    """Of those of its kind: at most one more than who has the fewest."""
    candidates = set(image.live) - {gone}
    moved = after_departure(image, gone, version=2)
    after = image.after(Delta(above=1, version=2, partitions=moved))
    for topic_id in (INTERNAL, OURS):
        rows = after.partitions(topic_id)
        counts = {one: sum(row.leader == one for row in rows) for one in candidates}
        by_count = [
            row
            for row in moved
            if row.topic_id == topic_id and not {row.next_leader, *row.replicas} & candidates
        ]
        by_count = [row for row in by_count if before_next(image, row) not in candidates]
        for row in by_count:
            assert row.leader is None or counts[row.leader] <= min(counts.values()) + 1


@given(images(replicas_least=1), st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True))
def test_replicas_that_are_others_move_no_leader_that_lives_and_ask_for_one_of_them(image, wanted):
    replicas = tuple(wanted)
    for was in image.all_partitions():
        row = reassigned(image, was, replicas, version=2)
        assert row.replicas == replicas
        assert row.leader == was.leader or was.leader is None
        assert row.leader_epoch == was.leader_epoch + (row.leader != was.leader)
        assert row.next_leader is None or row.next_leader in replicas
        live = [one for one in replicas if one in image.live]
        if live and was.leader not in replicas:
            assert row.next_leader or row.leader in live
        if was.leader is None and not was.next_leader:
            assert row.leader == (live[0] if live else None)


def before_next(image: Image, row: PartitionRow) -> int | None:
    was = image.partition(row.topic_id, row.number)
    return None if was is None else was.next_leader


@given(images(), st.integers(1, 9), st.randoms())
def test_every_broker_chooses_the_same_whatever_the_order_of_its_rows(image, gone, random):
    delta = Delta(
        above=0,
        version=1,
        brokers=shuffled(image.brokers.values(), random),
        topics=shuffled(image.topics(), random),
        partitions=shuffled(image.all_partitions(), random),
    )

    assert after_departure(Image().after(delta), gone, version=2) == after_departure(image, gone, version=2)


def shuffled(things, random) -> list:
    things = list(things)
    random.shuffle(things)
    return things


@given(images(), st.integers(1, 9))
def test_who_registers_leads_what_it_led_and_what_nobody_leads(image, broker_id):
    others = set(image.unfenced) - {broker_id}

    moved = after_registration(image, broker_id, version=2)

    assert {row.partition_id for row in moved} == {
        one for one, leader in leaders(image).items() if leader not in others
    }
    assert all((row.leader, row.version) == (broker_id, 2) for row in moved)


@given(images(replicas_least=1), st.integers(0, 1_000))
def test_a_new_partition_is_led_by_the_first_live_replica_or_by_any_live_broker(image, partition_id):
    for row in image.all_partitions():
        leader = first_leader(image, partition_id, row.replicas)
        live = [one for one in row.replicas if one in image.live]

        assert leader == live[0] if live else leader in image.live or (leader is None and not image.live)


def test_a_partition_prefers_every_broker_about_as_often():
    brokers = [(one, mixed(one)) for one in range(5)]
    firsts = Counter(by_rendezvous(at, brokers)[0] for at in range(10_000))

    assert all(1_850 < count < 2_150 for count in firsts.values())
    # the same on every machine, in every version
    assert [by_rendezvous(at, brokers)[0] for at in range(12)] == [1, 0, 3, 0, 0, 0, 4, 2, 3, 4, 1, 2]


@given(st.integers(0, 10_000), st.lists(st.integers(0, 50), min_size=2, unique=True))
def test_a_partition_prefers_the_same_broker_when_another_is_gone(partition_id, ids):
    brokers = [(one, mixed(one)) for one in ids]
    first = by_rendezvous(partition_id, brokers)

    for gone in brokers:
        if gone != first:
            assert by_rendezvous(partition_id, [one for one in brokers if one != gone]) == first


def test_ten_thousand_partitions_are_shared_out_at_once():
    states = dict.fromkeys(range(1, 11), "live")
    rows = [PartitionRow(at, OURS, 0, (1,), 1, 0, None, 1) for at in range(10_000)]
    image = image_of(states, rows)
    best = []
    for _ in range(3):
        begun = process_time()
        moved = after_departure(image, 1, version=2)
        best.append(process_time() - begun)

    after = image.after(Delta(above=1, version=2, partitions=moved))
    assert {len(led_by(after, one)) for one in range(2, 11)} == {1_111, 1_112}
    assert min(best) < 0.15
