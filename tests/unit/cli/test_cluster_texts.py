"""What `coterie cluster` says of brokers, and of the partitions that it has moved."""

from __future__ import annotations

import pytest

from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.broker.placement.model import Broker
from coterie.broker.placement.moving import PlacedPartition, ReplicaMove
from coterie.cli.cluster import (
    NOTHING_MOVED,
    balanced_by,
    described,
    idle_brokers,
    line_of_drained,
    lines_of,
    lines_of_balanced,
    lines_of_empty,
    lines_of_fewer,
    lines_of_idle,
    moves_to_balance,
    shared_apart,
)
from coterie.cli.cluster_state import (
    busy,
    lines_of_cut_off,
    lines_of_one_address,
    lines_without_leader,
    said_of_outdated,
    what_is_wrong,
    without_leader,
)
from coterie.cli.moves import placed
from coterie.client.admin.messages import ClusterInfo, DescribedBroker, DescribedPartition, DescribedTopic
from coterie.client.net.addresses import Address


def moved(partition: int, before: tuple[int, ...], after: tuple[int, ...]) -> ReplicaMove:
    """Return the move of a partition of one topic."""
    return ReplicaMove(TopicPartition("fleet", partition), before, after)


def test_the_partitions_that_come_to_a_broker_are_named():
    moves = [moved(0, (1, 2), (4, 2)), moved(1, (2, 3), (2, 4)), moved(2, (3,), (1,))]

    assert [*lines_of(moves)] == ["to broker 1: fleet 2", "to broker 4: fleet 0-1"]


def test_those_that_a_broker_leads_which_was_a_replica_before_are_named_too():
    moves = [moved(0, (1, 2), (2, 1)), moved(1, (1, 3), (3, 1)), moved(2, (1, 2, 3), (2, 1, 3))]

    assert [*lines_of(moves)] == [
        "led by broker 2, which had a replica: fleet 0,2",
        "led by broker 3, which had a replica: fleet 1",
    ]


def test_those_are_named_too_that_another_replica_leads_where_nobody_gets_what_the_leader_had():
    """As those of `__consumer_offsets`, which have three replicas, where one of three brokers is drained."""
    moves = [moved(0, (3, 1, 2), (1, 2)), moved(1, (1, 2, 3), (1, 2)), moved(2, (3, 2), (2, 4))]

    assert [*lines_of(moves)] == [
        "to broker 4: fleet 2",
        "led by broker 1, which had a replica: fleet 0",
        "led by broker 2, which had a replica: fleet 2",
    ]


def test_those_that_have_fewer_replicas_are_named_with_the_commands_that_give_them_back_and_no_others():
    moves = [moved(0, (1, 2), (1,)), moved(1, (1, 2, 3), (1, 2)), moved(2, (1,), (2,))]
    pair = ReplicaMove(TopicPartition("pair", 0), (1, 2), (1,))

    named, pairs, fleets = lines_of_fewer([*moves, pair])

    assert named == "with fewer replicas than before: fleet 0-1 pair 0"
    assert (
        pairs == "  once 2 brokers live `coterie cluster balance --replicas 2 --topic pair` gives them back"
    )
    assert (
        fleets == "  once 3 brokers live `coterie cluster balance --replicas 3 --topic fleet` gives them back"
    )
    assert [*lines_of_fewer([moved(0, (1, 2), (3, 2))])] == []


def test_balance_raises_the_topics_that_are_named_or_all_and_says_which_it_has_raised():
    other = PlacedPartition(TopicPartition("other", 0), (2,), 2)
    partitions = [*fleet(((1,), 1)), other]

    of_one = moves_to_balance(partitions, BROKERS, 2, ["fleet"])
    of_all = moves_to_balance(partitions, BROKERS, 2)

    assert [(move.name.topic, move.after) for move in of_one] == [("fleet", (1, 2))]
    assert [*lines_of_balanced(balanced_by(of_one, partitions, BROKERS))] == [
        "to broker 2: fleet 0",
        "with more replicas than before: fleet 0",
        "1 partition moved",
    ]
    assert "with more replicas than before: fleet 0 other 0" in [
        *lines_of_balanced(balanced_by(of_all, partitions, BROKERS))
    ]


def test_a_broker_that_was_drained_before_and_gets_what_leaves_another_is_named():
    [line] = lines_of_empty([moved(0, (2, 3), (1, 3))], held={2, 3}, leaving=[2])

    assert line.startswith("broker 1 held none before;")
    assert line.endswith("`coterie cluster drain 1 2`")


BROKERS = [Broker(1), Broker(2), Broker(3, fenced=True)]


def fleet(*placed: tuple[tuple[int, ...], int | None]) -> list[PlacedPartition]:
    """Return the partitions of one topic, by their replicas and leaders."""
    return [PlacedPartition(TopicPartition("fleet", at), *one) for at, one in enumerate(placed)]


def balanced(partitions: list[PlacedPartition], replicas: int | None = None) -> list[str]:
    """Return what `balance` says once it has balanced partitions."""
    moves = moves_to_balance(partitions, BROKERS, replicas)
    return [*lines_of_balanced(balanced_by(moves, partitions, BROKERS))]


def test_balance_tells_that_a_broker_which_is_away_keeps_its_share():
    first, second, third = balanced(fleet(((1,), 1), ((2,), 2), ((3, 1), 1), ((3,), None)))

    assert first == "each live broker has its share already"
    assert second == "broker 3 is away, and is given 2 partitions back when it returns;"
    assert "`coterie cluster drain 3`" in third


def test_a_broker_that_an_older_kafka_does_not_list_leads_nothing_again():
    first, second, _ = balanced(fleet(((7, 1), 1), ((2,), 2)))

    assert first == "each live broker has its share already"
    assert second == "broker 7 is away, and is given 1 partition back when it returns;"


def test_balance_tells_what_is_led_by_its_preferred_leader_whether_that_was_away_or_not():
    assert balanced(fleet(((1, 2), 2), ((2, 1), 2))) == [
        "led by broker 1 now, their preferred leader: fleet 0",
    ]
    assert balanced(fleet(((1, 2), 1), ((2, 1), 2))) == ["each broker has its share already"]


def test_a_dry_run_says_what_would_be():
    def planned(partitions: list[PlacedPartition]) -> list[str]:
        moves = moves_to_balance(partitions, BROKERS, None)
        return [*lines_of_balanced(balanced_by(moves, partitions, BROKERS), dry_run=True)]

    assert planned(fleet(((1,), 1), ((1,), 1), ((2, 1), 1), ((1, 2), 1))) == [
        NOTHING_MOVED,
        "led by broker 2, which had a replica: fleet 3",
        "led by broker 2 then, their preferred leader: fleet 2",
        "1 partition would move",
    ]
    assert planned(fleet(((1,), 1), ((2,), 2))) == ["each broker has its share already"]
    assert line_of_drained([1, 2], {1, 3}, dry_run=True) == (
        "brokers 1, 2 would hold no partitions; broker 2 held none"
    )


def test_a_broker_that_still_leads_what_was_moved_away_from_it_is_not_said_to_have_held_none():
    """Found by a breaker: so it was of one that led a thousand, when a stopped drain was run again."""
    topics = led_by((3, (1,)), (2, (2,)))

    assert busy(topics) == {1, 2, 3}
    assert line_of_drained([3], busy(topics), dry_run=False) == "broker 3 holds no partitions"


def test_balance_gives_replicas_as_asked_and_each_broker_its_share_in_one_move():
    partitions = fleet(((1,), 1), ((1,), 1), ((1,), 1), ((1, 2), 1))

    moves = moves_to_balance(partitions, BROKERS, 2)

    assert [{*move.after} for move in moves] == [{1, 2}] * len(moves)
    assert sum(move.after[0] == 2 for move in moves) == 2
    assert balanced(partitions, 2)[-1] == f"{len(moves)} partitions moved"
    with pytest.raises(
        CoterieError, match="3 replicas of a partition need as many brokers that live, and there are 2"
    ):
        moves_to_balance(partitions, BROKERS, 3)


def test_each_broker_gets_its_share_of_the_story_beside_that_of_other_internal_topics():
    def topic(name: str, *leaders: int, internal: bool = True) -> DescribedTopic:
        partitions = [DescribedPartition(at, one, (one,), (one,), ()) for at, one in enumerate(leaders)]
        return DescribedTopic(name, None, internal=internal, partitions=tuple(partitions))

    offsets, story = topic("__consumer_offsets", 1, 2, 2, 2), topic("__group_story", 1, 1)
    topics = [story, topic("fleet", 1, 2, internal=False), offsets]

    apart = [placed(one) for one in shared_apart(topics)]
    moves = [move for one in apart for move in moves_to_balance(one, BROKERS, None)]

    assert sorted((move.name.topic, *move.after) for move in moves) == [
        ("__consumer_offsets", 1),
        ("__group_story", 2),
    ]


def test_live_brokers_at_one_address_are_told_of():
    def at(broker_id: int, port: int, *, fenced: bool = False) -> DescribedBroker:
        return DescribedBroker(broker_id, Address("h", port), None, fenced=fenced)

    two = ClusterInfo("c", 1, (at(1, 9092), at(2, 9093), at(3, 9092), at(4, 9093, fenced=True)))

    _, first, second = lines_of_one_address(two)
    assert first.startswith("brokers 1, 3 have one address, h:9092, ")
    assert "--listen" in second
    assert [*lines_of_one_address(ClusterInfo("c", 1, two.brokers[:2]))] == []


def test_of_no_moves_nothing_is_said():
    assert [*lines_of([])] == []


def led_by(*placed: tuple[int, tuple[int, ...]]) -> list[DescribedTopic]:
    """Return a topic, by the leaders and replicas of its partitions."""
    partitions = [
        DescribedPartition(number, leader, replicas, replicas, ())
        for number, (leader, replicas) in enumerate(placed)
    ]
    return [DescribedTopic("fleet", None, internal=False, partitions=tuple(partitions))]


def three(*, controller_id: int = 1, fenced: int = 0) -> ClusterInfo:
    """Return a cluster of three brokers."""
    brokers = [DescribedBroker(one, Address("h", 9092), None, fenced=one == fenced) for one in (1, 2, 3)]
    return ClusterInfo("c", controller_id, tuple(brokers))


def test_brokers_that_came_later_and_lead_nothing_are_named_with_the_command_that_gives_them_their_share():
    topics = led_by((1, (1,)), (1, (1,)), (1, (1,)))

    assert [*lines_of_idle(idle_brokers(three(), topics))] == [
        "",
        "brokers 2, 3 lead nothing: `coterie cluster balance` gives each its share;",
        "  one that is to go is stopped, and `coterie cluster remove` takes it out",
    ]
    assert [*lines_of_idle(idle_brokers(three(fenced=2), topics))] == [
        "",
        "broker 3 leads nothing: `coterie cluster balance` gives it its share;",
        "  one that is to go is stopped, and `coterie cluster remove` takes it out",
    ]


@pytest.mark.parametrize(
    ("found", "topics"),
    [
        (three(), led_by((1, (1,)), (2, (2,)))),
        (three(), led_by((1, (1,)), (1, (2,)), (1, (3,)))),
        (three(controller_id=-1), led_by((1, (1,)), (1, (1,)), (1, (1,)))),
        (three(), []),
    ],
    ids=["too-few-partitions", "about-to-be-given-back", "known-from-before", "no-topics"],
)
def test_of_a_broker_that_leads_nothing_and_would_by_no_command_nothing_is_said(
    found: ClusterInfo, topics: list[DescribedTopic]
):
    assert [*lines_of_idle(idle_brokers(found, topics))] == []


def test_partitions_without_a_leader_are_told_of_though_all_brokers_look_well():
    brokers = [DescribedBroker(one, Address("h", 9092), None, fenced=one == 3) for one in (1, 2, 3)]
    led = [(1, (1, 2)), (-1, (2, 1)), (-1, (3, 2)), (-1, (3,))]
    partitions = [
        DescribedPartition(number, leader, replicas, replicas, ())
        for number, (leader, replicas) in enumerate(led)
    ]
    topic = DescribedTopic("fleet", None, internal=False, partitions=tuple(partitions))

    without = without_leader(ClusterInfo("c", 1, tuple(brokers)), [topic])

    first, second, *because = [line for line in lines_without_leader(without) if line]
    assert first == "without a leader, though a replica is live: 2 partitions"
    assert second == "without a leader, and no replica is live: 1 partition"
    assert "if this lasts" in because[0]


def test_nothing_is_moved_by_what_a_broker_remembers_that_may_be_cut_off():
    brokers = tuple(DescribedBroker(one, Address(f"h{one}", 9092), None, fenced=False) for one in (1, 2, 3))

    said = said_of_outdated(ClusterInfo("c", -1, brokers, Address("h2", 9092)))

    assert said == (
        "broker 2 at h2:9092 has answered, with what was before: as far as can be told no broker that answers"
        " can use its database"
    )
    assert said_of_outdated(ClusterInfo("c", 1, brokers, Address("h2", 9092))) == ""


def test_who_has_answered_is_named_where_it_knows_no_controller_though_it_leads_nothing():
    brokers = tuple(DescribedBroker(one, Address(f"h{one}", 9092), None, fenced=False) for one in (1, 2))

    well = lines_of_cut_off(ClusterInfo("c", 1, brokers, Address("h2", 9092)))
    cut_off = lines_of_cut_off(ClusterInfo("c", -1, brokers, Address("h2", 9092)))
    elsewhere = lines_of_cut_off(ClusterInfo("c", -1, brokers, Address("tunnel", 1)))

    assert [*well] == []
    assert [*cut_off] == [
        "broker 2 at h2:9092 has answered, with what was before: as far as can be told no broker that"
        " answers",
        "can use its database.",
        "Check PostgreSQL; a broker's log says since when and why: look for `suspended`.",
        "(Apache Kafka's brokers: none that answers knows a controller.)",
        "",
    ]
    assert next(elsewhere).startswith("the broker at tunnel:1 has answered, with what was before: as far")


def test_of_a_broker_that_is_alone_nothing_is_said_as_if_there_were_others():
    alone = DescribedBroker(1, Address("h1", 9092), None, fenced=False)

    assert [*lines_of_cut_off(ClusterInfo("c", -1, (alone,), Address("h1", 9092)))] == [
        "broker 1 at h1:9092 has answered, with what was before: as far as can be told it cannot use its",
        "database.",
        "Check PostgreSQL; the broker's log says since when and why: look for `suspended`.",
        "(Apache Kafka's brokers: none that answers knows a controller.)",
        "",
    ]


def test_where_another_knows_better_than_the_broker_that_was_asked_both_are_named():
    brokers = tuple(DescribedBroker(one, Address(f"h{one}", 9092), None, fenced=False) for one in (1, 2))

    said = [*lines_of_cut_off(ClusterInfo("c", 1, brokers, Address("h1", 9092), Address("h2", 9092)))]

    assert said[0].startswith("broker 2 at h2:9092 knows no controller: as far as can be told it cannot")
    assert said[2:] == ["This is what broker 1 at h1:9092 knows:", ""]


def test_of_what_was_before_neither_states_nor_leaders_are_shown():
    """Found by a newcomer: two of three brokers were live and led 41 partitions, beneath a line that none can
    use its database.
    """
    topics = led_by((1, (1, 2)), (-1, (2, 1)), (3, (3,)))

    now, before = described(three(), topics), described(three(controller_id=-1), topics)

    assert [(one["state"], one["leads"], one["replicas"]) for one in before.document["brokers"]] == [
        (None, None, 2),
        (None, None, 2),
        (None, None, 1),
    ]
    assert (before.document["outdated"], before.document["without_leader"]) == (True, None)
    rows = [line.split() for line in before.lines if " 9092 " in line]
    assert [row[4:6] for row in rows] == [["-", "-"]] * 3
    assert not [line for line in before.lines if line.startswith("without a leader")]
    assert (now.document["outdated"], now.document["without_leader"]) == (False, 1)
    assert [one["state"] for one in now.document["brokers"]] == ["live"] * 3


def test_a_check_names_all_that_somebody_has_to_look_at():
    def at(broker_id: int, *, fenced: bool = False) -> DescribedBroker:
        return DescribedBroker(broker_id, Address(f"h{broker_id}", 9092), None, fenced=fenced)

    led, well = led_by((1, (1,))), ClusterInfo("c", 1, (at(1), at(2)), Address("h1", 9092))
    fenced = ClusterInfo("c", 1, (at(1), at(3, fenced=True)), Address("h1", 9092))

    assert [*what_is_wrong(well, led)] == []
    assert [*what_is_wrong(well._replace(cut_off=Address("h2", 9092)), led)] == [
        "broker 2 at h2:9092 knows no controller: as far as can be told it cannot use its database"
    ]
    assert [*what_is_wrong(fenced, led_by((1, (1,)), (-1, (3,))))] == [
        "broker 3 is fenced: start it, or take it out (`coterie cluster drain 3`, then `coterie cluster"
        " remove 3`)",
        "without a leader: 1 partition",
    ]
    assert [*what_is_wrong(three(), led)] == ["brokers 1, 2, 3 have one address, h:9092"]
    assert [*what_is_wrong(well._replace(controller_id=-1), led_by((-1, (1,))))] == [
        f"{said_of_outdated(well._replace(controller_id=-1))}; check PostgreSQL"
    ]


def test_where_all_partitions_are_led_nothing_is_said_of_it():
    assert [*lines_without_leader(without_leader(ClusterInfo("c", 1, ()), []))] == []
