"""A leader gives back what others should lead: when, how many, and what it does while it does not know."""

from __future__ import annotations

from uuid import UUID

from coterie.broker.cluster.changes import Changed, GiveLeadership, NotChanged, PartitionKey, Why
from coterie.broker.cluster.giving_back import AFTER_MS, AT_ONCE, GOES_LAST, HANDED_BYTES, GivingBack
from coterie.broker.cluster.image import BrokerRow, BrokerState, Delta, Image, PartitionRow, TopicRow

TOPIC = UUID(int=1)
EPOCHS = {1: 11, 2: 12, 3: 13}


def image_of(*leaders: int, preferred: int = 1, version: int = 20, **states: str) -> Image:
    """The image in which brokers lead the partitions of a topic, all of which another should."""
    brokers = [
        BrokerRow(one, epoch, TOPIC, BrokerState(states.get(f"b{one}", "live")), (), None, 0, "", 1)
        for one, epoch in EPOCHS.items()
    ]
    rows = [
        PartitionRow(at, TOPIC, at, (preferred, 2), leader, 5, None, 1) for at, leader in enumerate(leaders)
    ]
    topic = TopicRow(TOPIC, "orders", len(rows), {}, 0, False, 1)
    return Image().after(Delta(above=0, version=version, brokers=brokers, topics=[topic], partitions=rows))


def keys(*numbers: int) -> tuple[PartitionKey, ...]:
    return tuple(PartitionKey(TOPIC, number, 5) for number in numbers)


def test_a_partition_goes_back_once_its_preferred_leader_has_been_live_for_long_enough():
    giving, image = GivingBack(2, 12), image_of(2, 1, 2)
    assert giving.due(image, 1_000) == []
    assert giving.next_ms == 1_000 + AFTER_MS
    assert giving.due(image, 999 + AFTER_MS) == []

    assert giving.due(image, 1_000 + AFTER_MS) == [GiveLeadership(2, 12, keys(0, 2), 1)]

    assert giving.due(image, 1_001 + AFTER_MS) == []


def test_what_is_offered_is_not_led_any_more_and_the_rest_is():
    giving, image = GivingBack(2, 12), image_of(2, 1, 2)
    row, others, _ = image.partitions(TOPIC)
    assert giving.leads(row)
    assert not giving.leads(others)

    giving.due(image, 0)
    giving.due(image, AFTER_MS)

    assert not giving.leads(row)
    assert giving.leads(row._replace(leader_epoch=6))


def test_a_preferred_leader_that_was_away_in_between_begins_anew():
    giving = GivingBack(2, 12)
    giving.due(image_of(2), 0)
    giving.due(image_of(2, b1="fenced"), 5_000)
    assert giving.next_ms is None
    giving.due(image_of(2), 6_000)

    assert giving.due(image_of(2), AFTER_MS + 5_999) == []
    assert giving.due(image_of(2), AFTER_MS + 6_000) != []


def test_nothing_goes_to_who_is_leaving_or_to_itself():
    for image in (image_of(2, b1="leaving"), image_of(2, preferred=2), image_of(1, 3)):
        giving = GivingBack(2, 12)
        giving.due(image, 0)
        assert giving.due(image, AFTER_MS) == []


def with_fields(image: Image, **fields: object) -> Image:
    """An image in which the first partition is another."""
    row = image.partitions(TOPIC)[0]._replace(version=image.version + 1, **fields)
    return image.after(Delta(above=image.version, version=image.version + 1, partitions=[row]))


def test_what_another_was_asked_for_goes_to_that_one_at_once():
    image = with_fields(image_of(2, 2), next_leader=3)

    assert GivingBack(2, 12).due(image, 0) == [GiveLeadership(2, 12, keys(0), 3)]


def test_while_whoever_was_asked_for_does_not_live_it_is_as_if_nobody_was():
    giving, image = GivingBack(2, 12), with_fields(image_of(2, b3="fenced"), next_leader=3)
    assert giving.due(image, 0) == []
    assert giving.due(image, AFTER_MS) == [GiveLeadership(2, 12, keys(0), 1)]


def test_who_is_no_replica_gives_a_partition_to_the_first_that_lives():
    image = with_fields(image_of(2, b1="fenced"), replicas=(1, 3))
    giving = GivingBack(2, 12)
    assert giving.due(image, 0) == []

    assert giving.due(image, AFTER_MS) == [GiveLeadership(2, 12, keys(0), 3)]


def test_a_few_go_at_a_time():
    giving, image = GivingBack(2, 12), image_of(*[2] * (AT_ONCE + 3))
    giving.due(image, 0)
    (offer,) = giving.due(image, AFTER_MS)
    assert len(offer.partitions) == AT_ONCE
    assert giving.due(image, AFTER_MS + 1) == []

    giving.answered(offer, Changed(21))
    after = image_of(*[1] * AT_ONCE, *[2] * 3, version=21)

    (rest,) = giving.due(after, AFTER_MS + 2)
    assert rest.partitions == keys(AT_ONCE, AT_ONCE + 1, AT_ONCE + 2)


def test_each_other_broker_is_offered_as_many_at_a_time_whatever_another_has_yet_to_take():
    """Found by a reviewer: what a broker leads went by ones and twos where several others were to lead it."""
    giving, image = GivingBack(2, 12), image_of(*[2] * 4 * AT_ONCE)
    rows = image.partitions(TOPIC)
    to_third = [row._replace(next_leader=3, version=21) for row in rows[1::2]]
    image = image.after(Delta(above=20, version=21, partitions=to_third))
    (third,) = giving.due(image, 0)
    (first,) = giving.due(image, AFTER_MS)
    assert (first.to, third.to) == (1, 3)
    assert first.partitions == keys(*range(0, 2 * AT_ONCE, 2))
    assert third.partitions == keys(*range(1, 2 * AT_ONCE, 2))

    giving.answered(third, Changed(22))
    taken = [
        row._replace(leader=3, leader_epoch=6, next_leader=None, version=22) for row in to_third[:AT_ONCE]
    ]
    image = image.after(Delta(above=21, version=22, partitions=taken))

    (again,) = giving.due(image, AFTER_MS + 1)
    assert again.to == 3
    assert again.partitions == keys(*range(2 * AT_ONCE + 1, 4 * AT_ONCE, 2))


def test_nothing_waits_for_what_goes_last():
    def weigh(row: PartitionRow) -> int:
        return GOES_LAST if row.number == 0 else 0

    giving, image = GivingBack(2, 12), image_of(2, 1)
    giving.due(image, 0, weigh=weigh)
    (last,) = giving.due(image, AFTER_MS, weigh=weigh)
    assert last.partitions == keys(0)
    more = image.partitions(TOPIC)[1]._replace(leader=2, version=21)
    image = image.after(Delta(above=20, version=21, partitions=[more]))

    (offer,) = giving.due(image, AFTER_MS, weigh=weigh)
    assert offer.partitions == keys(1)


def test_what_the_story_of_groups_is_written_to_goes_when_others_serve_the_groups():
    def weigh(row: PartitionRow) -> int:
        return GOES_LAST if row.number == 0 else HANDED_BYTES

    def due(version_seen: int) -> list[GiveLeadership]:
        return giving.due(image, AFTER_MS, {1: version_seen}, weigh)

    giving, image = GivingBack(2, 12), image_of(2, 2, 2)
    giving.due(image, 0, weigh=weigh)
    for number in (1, 2):
        (offer,) = due(image.version)
        assert offer.partitions == keys(number)
        giving.answered(offer, Changed(20 + number))
        assert due(image.version) == []
        given = image.partitions(TOPIC)[number]._replace(leader=1, leader_epoch=6, version=20 + number)
        image = image.after(Delta(above=image.version, version=20 + number, partitions=[given]))
    assert due(21) == []  # the last one is not served yet

    (last,) = due(22)
    assert last.partitions == keys(0)


def test_what_goes_last_is_in_no_offer_with_others_since_they_would_wait_for_it():
    def weigh(row: PartitionRow) -> int:
        return GOES_LAST if row.number == 0 else 0

    giving, image = GivingBack(2, 12), image_of(2, 2)
    giving.due(image, 0, weigh=weigh)

    offers = [giving.due(image, AFTER_MS, weigh=weigh) for _ in range(2)]
    assert [offer.partitions for (offer,) in offers] == [keys(1), keys(0)]


def test_an_offer_that_came_to_nothing_or_is_unknown_is_taken_back_in_the_next_leader_epoch():
    for answer in (NotChanged(Why.NOT_LIVE), None):
        giving, image = GivingBack(2, 12), image_of(2)
        giving.due(image, 0)
        (offer,) = giving.due(image, AFTER_MS)

        giving.answered(offer, answer)
        assert not giving.leads(image.partitions(TOPIC)[0])  # it may happen yet

        assert giving.due(image, AFTER_MS + 1) == [GiveLeadership(2, 12, keys(0), 2)]
        assert giving.due(image, AFTER_MS + 2) == []


def test_what_the_engine_has_lost_of_it_is_taken_back():
    giving, image = GivingBack(2, 12), image_of(2)
    giving.due(image, 0)
    (offer,) = giving.due(image, AFTER_MS)
    giving.answered(offer, Changed(21))
    assert giving.due(image, AFTER_MS + 1) == []

    giving.forget_answers()

    assert giving.due(image, AFTER_MS + 2) == [GiveLeadership(2, 12, keys(0), 2)]


def test_once_the_engine_went_back_it_awaits_no_version_of_before():
    giving, image = GivingBack(2, 12), image_of(2, 2, version=40)
    giving.due(image, 0)
    giving.due(image, AFTER_MS, weigh=lambda _: 1)
    giving.due(with_fields(image, leader=1, leader_epoch=6), AFTER_MS, {1: 40})
    assert giving.awaited == 41

    giving.forget_answers()
    assert giving.due(image_of(2, 2, version=30), AFTER_MS) == [GiveLeadership(2, 12, keys(1), 2)]
    assert giving.awaited == 0
