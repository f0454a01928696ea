"""Where records go: keys by Kafka's vectors, the sticky rule with its loads, and the ways in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.errors import CoterieError
from coterie.client.producer.partitioner import (
    BrokerWaits,
    Builtin,
    Classic,
    Partitioner,
    RoundRobin,
    explicit_partition,
    partitioner_of,
)

# Text, partition of 6, partition of 50: section 9.1 of the catalogue, made by Kafka's own classes.
KEYS = [
    ("", 3, 31),
    ("a", 4, 24),
    ("21", 0, 40),
    ("abc", 3, 7),
    ("foobar", 0, 16),
    ("a-little-bit-long-string", 2, 12),
    ("a-little-bit-longer-string", 5, 19),
    ("clé", 0, 24),
]
BATCH = 1000


class Drawn:
    """Chance that falls as it is told, and remembers among how many it was asked to choose."""

    def __init__(self, *falls: int) -> None:
        self.falls, self.asked = list(falls), list[int]()

    def randrange(self, stop: int, /) -> int:
        self.asked.append(stop)
        return self.falls.pop(0)


def builtin(*falls: int, adaptive: bool = True, ignore_keys: bool = False) -> Builtin:
    return Builtin(random=Drawn(*falls), batch_size=BATCH, adaptive=adaptive, ignore_keys=ignore_keys)


def stick(
    partitioner: Partitioner, *, of: int = 3, available: Sequence[int] | None = None, key: bytes | None = None
) -> int:
    """Return where the next record of topic t goes; all partitions are available unless it is said which."""
    return partitioner.partition(
        "t", key, partitions=of, available=range(of) if available is None else available
    )


# -- keys


@pytest.mark.parametrize(("text", "of_6", "of_50"), KEYS)
@pytest.mark.parametrize("name", ["builtin", "classic"])
def test_a_key_goes_where_kafka_sends_it_whatever_is_available(name: str, text: str, of_6: int, of_50: int):
    """PT-2 to PT-4."""
    partitioner = partitioner_of(name, random=Drawn())

    assert stick(partitioner, of=6, key=text.encode(), available=[1]) == of_6
    assert stick(partitioner, of=50, key=text.encode(), available=[]) == of_50


@given(st.binary(), st.integers(1, 10_000), st.sets(st.integers(0, 9_999)))
def test_a_key_always_goes_to_the_same_partition(key: bytes, partitions: int, leaders: set[int]):
    """PT-2."""
    available = sorted(one for one in leaders if one < partitions)
    first = Builtin(random=Random(1)).partition("t", key, partitions=partitions, available=available)
    other = Classic(random=Random(2)).partition("u", key, partitions=partitions, available=[])

    assert first == other
    assert 0 <= first < partitions


def test_keys_may_be_ignored():
    """PT-1: partitioner.ignore.keys."""
    partitioner = builtin(2, 0, ignore_keys=True)

    assert stick(partitioner, key=b"abc") == 2
    partitioner.appended("t", b"abc", 2, BATCH, full=True)
    assert stick(partitioner, key=b"abc") == 0


# -- the sticky rule


def test_what_has_no_key_sticks_until_a_batch_is_full():
    """PT-5, PT-9."""
    partitioner = builtin(2, 0)

    seen = []
    for _ in range(4):
        partition = stick(partitioner)
        seen.append(partition)
        partitioner.appended("t", None, partition, BATCH // 2, full=True)

    assert seen == [2, 2, 0, 0]


def test_a_batch_that_is_not_full_is_not_left_before_twice_its_bytes():
    """PT-5."""
    partitioner = builtin(2, 0)

    seen = []
    for _ in range(5):
        partition = stick(partitioner)
        seen.append(partition)
        partitioner.appended("t", None, partition, BATCH // 2, full=False)

    assert seen == [2, 2, 2, 2, 0]


def test_a_switch_that_waits_is_done_when_the_batches_are_full():
    """PT-5."""
    partitioner = builtin(2, 0)
    stick(partitioner)
    partitioner.appended("t", None, 2, BATCH - 1, full=False)
    partitioner.filled("t", 2)
    assert stick(partitioner) == 2

    partitioner.appended("t", None, 2, 1, full=False)
    partitioner.filled("t", 1)
    assert stick(partitioner) == 2
    partitioner.filled("t", 2)

    assert stick(partitioner) == 0


def test_records_with_a_key_or_for_another_partition_do_not_count():
    partitioner = builtin(2)
    stick(partitioner)

    partitioner.appended("t", b"abc", 2, 5 * BATCH, full=True)
    partitioner.appended("t", None, 1, 5 * BATCH, full=True)
    partitioner.appended("u", None, 2, 5 * BATCH, full=True)

    assert stick(partitioner) == 2


def test_each_topic_sticks_to_a_partition_of_its_own():
    partitioner = builtin(2, 1)

    assert partitioner.partition("t", None, partitions=3, available=[0, 1, 2]) == 2
    assert partitioner.partition("u", None, partitions=3, available=[0, 1, 2]) == 1
    assert partitioner.partition("t", None, partitions=3, available=[0, 1, 2]) == 2


def test_only_partitions_with_a_leader_are_drawn_unless_none_has_one():
    """PT-6."""
    chance = Drawn(1, 2)
    partitioner = Builtin(random=chance, batch_size=1)

    assert stick(partitioner, available=[0, 2]) == 2
    partitioner.appended("t", None, 2, 1, full=True)
    assert stick(partitioner, available=[]) == 2
    assert chance.asked == [2, 3]


@given(st.lists(st.integers(1, BATCH), max_size=60), st.integers(0, 99))
def test_partitions_get_a_batch_at_least_and_two_at_most(sizes: list[int], seed: int):
    partitioner = Builtin(random=Random(seed), batch_size=BATCH)
    stays: list[list[int]] = []
    before = -1
    for size in sizes:
        fresh = "t" not in partitioner._current
        partition = stick(partitioner)
        if fresh:
            stays.append([])
        else:
            assert partition == before
        stays[-1].append(size)
        partitioner.appended("t", None, partition, size, full=size % 2 == 0)
        before = partition

    for stay in stays[:-1]:
        assert BATCH <= sum(stay) < 3 * BATCH
        assert sum(stay[:-1]) < 2 * BATCH


# -- loads


def measured(partitioner: Partitioner, queues: dict[int, int], *, slow: Sequence[int] = ()) -> None:
    partitioner.measured("t", queues, partitions=3, available=[0, 1, 2], slow=slow)


@pytest.mark.parametrize(("fall", "partition"), [(0, 0), (3, 0), (4, 1), (5, 2), (7, 2)])
def test_short_queues_are_likelier(fall: int, partition: int):
    """PT-7: queues of 0, 3 and 1 weigh 4, 1 and 3; Kafka's own example."""
    chance = Drawn(fall)
    partitioner = Builtin(random=chance)
    measured(partitioner, {0: 0, 1: 3, 2: 1})

    assert stick(partitioner) == partition
    assert chance.asked == [8]


@pytest.mark.parametrize(
    "queues",
    [{0: 2, 1: 2, 2: 2}, {0: 0, 1: 5}],
    ids=["all-alike", "not-every-partition-had-a-batch"],
)
def test_without_a_difference_all_are_as_likely(queues: dict[int, int]):
    """PT-7."""
    chance = Drawn(1)
    partitioner = Builtin(random=chance)
    measured(partitioner, {0: 0, 1: 3, 2: 1})
    measured(partitioner, queues)

    assert stick(partitioner) == 1
    assert chance.asked == [3]


def test_a_topic_of_one_partition_weighs_nothing():
    chance = Drawn(0)
    partitioner = Builtin(random=chance)
    partitioner.measured("t", {0: 9}, partitions=1, available=[0])

    assert stick(partitioner, of=1) == 0
    assert chance.asked == [1]


def test_loads_are_not_looked_at_if_that_is_turned_off():
    chance = Drawn(1)
    partitioner = Builtin(random=chance, adaptive=False)
    measured(partitioner, {0: 0, 1: 3, 2: 1})

    assert stick(partitioner) == 1
    assert chance.asked == [3]


def test_slow_partitions_that_have_work_are_left_out():
    """PT-8: even where those left have queues of one length."""
    chance = Drawn(1)
    partitioner = Builtin(random=chance)
    measured(partitioner, {0: 2, 1: 2, 2: 2}, slow=[1])

    assert stick(partitioner) == 2
    assert chance.asked == [2]


def test_a_slow_partition_without_work_is_not_left_out():
    partitioner = builtin(3)
    measured(partitioner, {0: 2, 1: 0, 2: 2}, slow=[1])

    assert stick(partitioner) == 1  # weights 1, 3, 1


def test_where_no_partition_is_left_all_that_are_available_are_drawn_from():
    chance = Drawn(2)
    partitioner = Builtin(random=chance)
    measured(partitioner, {0: 2, 1: 2, 2: 2}, slow=[0, 1, 2])

    assert stick(partitioner) == 2
    assert chance.asked == [3]


@given(st.lists(st.integers(0, 9), min_size=2, max_size=8), st.integers(0, 99))
def test_the_weights_are_what_the_queues_say(lengths: list[int], seed: int):
    """PT-7: over all falls of chance, each partition is drawn as often as it weighs."""
    queues = dict(enumerate(lengths))
    weights = {one: max(lengths) + 1 - length for one, length in queues.items()}
    drawn: Counter[int] = Counter()
    for fall in range(sum(weights.values())):
        partitioner = builtin(fall)
        partitioner.measured("t", queues, partitions=len(lengths), available=queues.keys())
        if "t" not in partitioner._loads:
            assert len(set(lengths)) == 1
            return
        drawn[stick(partitioner, of=len(lengths))] += 1

    assert drawn == weights


def test_a_broker_lags_that_took_nothing_for_longer_than_the_time():
    """PT-8."""
    waits = BrokerWaits(availability_timeout_ms=100)
    waits.had_data(1, 1000, drained=False)
    waits.had_data(1, 1100, drained=False)
    assert not waits.slow(1)

    waits.had_data(1, 1101, drained=False)
    assert waits.slow(1)
    assert not waits.slow(2)

    waits.had_data(1, 1200, drained=True)
    assert not waits.slow(1)


def test_no_broker_lags_where_no_time_is_set():
    waits = BrokerWaits(availability_timeout_ms=0)
    waits.had_data(1, 0, drained=False)
    waits.had_data(1, 10**9, drained=False)

    assert not waits.slow(1)


# -- in turn


def test_classic_takes_turns_over_what_is_available_from_a_random_start():
    partitioner = Classic(random=Drawn(7))

    assert [stick(partitioner, available=[0, 2]) for _ in range(4)] == [2, 0, 2, 0]
    assert [stick(partitioner, available=[]) for _ in range(3)] == [2, 0, 1]


def test_classic_counts_each_topic_apart():
    partitioner = Classic(random=Drawn(0, 1))

    seen = [partitioner.partition(topic, None, partitions=3, available=[0, 1, 2]) for topic in "tutu"]

    assert seen == [0, 1, 1, 2]


@pytest.mark.parametrize("partitioner", [RoundRobin(), partitioner_of("round_robin", random=Drawn())])
def test_round_robin_ignores_keys_and_begins_with_the_first(partitioner: Partitioner):
    """PT-10."""
    assert [stick(partitioner, available=[0, 2], key=b"abc") for _ in range(3)] == [0, 2, 0]
    assert [stick(partitioner, available=[], key=None) for _ in range(3)] == [0, 1, 2]


def test_a_count_that_grows_past_31_bits_begins_anew():
    partitioner = Classic(random=Drawn(2**31 - 1))

    assert [stick(partitioner) for _ in range(2)] == [(2**31 - 1) % 3, 0]


# -- the user's own


def test_a_function_is_asked():
    def last(topic: str, key: bytes | None, partitions: int, available: Sequence[int]) -> int:
        return partitions - 1

    assert stick(partitioner_of(last, random=Drawn())) == 2


@pytest.mark.parametrize("chosen", [-1, 3])
def test_a_function_that_chooses_what_there_is_not_is_told_so(chosen: int):
    """PT-1."""
    with pytest.raises(CoterieError, match=f"chose partition {chosen} of topic t, which has only 0 to 2"):
        stick(partitioner_of(lambda *_: chosen, random=Drawn()))


def test_a_name_of_nobody_is_one_sentence():
    with pytest.raises(CoterieError, match="there is no partitioner 'stiky'; take one of builtin, classic"):
        partitioner_of("stiky", random=Drawn())


def test_a_partition_that_a_record_names_must_be_there():
    """PT-1."""
    assert explicit_partition("t", 2, partitions=3) == 2
    with pytest.raises(CoterieError, match=r"topic t has no partition 1, only 0$"):
        explicit_partition("t", 1, partitions=1)
    with pytest.raises(CoterieError, match="topic t has no partition 3, only 0 to 2"):
        explicit_partition("t", 3, partitions=3)
    with pytest.raises(CoterieError, match="no partition -1"):
        explicit_partition("t", -1, partitions=3)
