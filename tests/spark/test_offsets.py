"""What a batch takes, how it is cut into tasks, and the documents that say so."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.ids import TopicPartition
from coterie.spark.source.offsets import (
    BadOffset,
    Gate,
    GroupDocument,
    Range,
    Rebalance,
    Report,
    limited,
    packed,
    read_plain,
    split,
    write_plain,
)

sizes = st.lists(st.integers(1, 10**7), max_size=12)


def ranges_of(numbers):
    return [Range("t", partition, 100, 100 + size) for partition, size in enumerate(numbers)]


def total(ranges):
    return sum(one.size for one in ranges)


@given(sizes, st.integers(1, 10**7))
def test_a_limit_is_used_up_and_shared_in_proportion(numbers, most):
    ranges = ranges_of(numbers)

    taken = limited(ranges, most)

    assert total(taken) == min(most, total(ranges))
    assert all(one.size > 0 for one in taken)
    whole = {one.at: one for one in ranges}
    for one in taken:
        fair = most * whole[one.at].size / total(ranges)
        assert one.first == 100
        assert abs(one.size - min(whole[one.at].size, fair)) <= 1


@given(sizes)
def test_without_a_limit_all_is_taken(numbers):
    assert list(limited(ranges_of(numbers), None)) == ranges_of(numbers)


@given(sizes, st.integers(1, 40) | st.none(), st.integers(1, 10**7) | st.none())
def test_pieces_are_the_ranges_and_nothing_else(numbers, at_least, most):
    ranges = ranges_of(numbers)
    if most is not None and total(ranges) // most > 5000:
        return

    pieces = split(ranges, at_least=at_least, most_records=most)

    assert all(one.size > 0 for one in pieces)
    joined = {one.at: [] for one in ranges}
    for one in pieces:
        joined[one.at].append((one.first, one.until))
    for one in ranges:
        spans = joined[one.at]
        assert (spans[0][0], spans[-1][1]) == (one.first, one.until)
        assert all(left[1] == right[0] for left, right in pairwise(spans))
    if most is not None:
        assert all(one.size <= most for one in pieces)
    if at_least is not None and all(size >= at_least for size in numbers) and numbers:
        assert len(pieces) >= at_least


@given(sizes, st.integers(1, 10**6))
def test_packing_keeps_every_range_in_few_and_even_tasks(numbers, rows_per_task):
    ranges = ranges_of(numbers)

    tasks = packed(ranges, rows_per_task=rows_per_task)

    assert sorted(one for task in tasks for one in task) == ranges
    assert all(tasks)
    assert len(tasks) <= max(1, -(-total(ranges) // rows_per_task))
    if tasks:
        filled = [total(task) for task in tasks]
        assert max(filled) - min(filled) <= max(numbers)


@given(sizes, st.randoms())
def test_a_replay_packs_the_same_ranges_into_the_same_tasks(numbers, random):
    ranges = ranges_of(numbers)
    shuffled = list(ranges)
    random.shuffle(shuffled)

    assert packed(shuffled) == packed(ranges)


def test_a_small_batch_of_many_partitions_is_one_task():
    assert len(packed(ranges_of([100] * 50))) == 1


def test_a_group_s_document_comes_back_from_the_log_as_it_went_in():
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
    document = GroupDocument(
        group="g",
        member="m",
        instance=None,
        generation=3,
        plan=7,
        ranges=(Range("t", 0, 5, 9),),
        owned=(zero, one),
        lag={zero: 4, one: 0},
        rebalance=Rebalance("2026-11-21T20:59:30.000+00:00", "group is already rebalancing"),
    )

    logged = json.loads(json.dumps(document.to_json()))

    assert logged["ranges"] == [["t", 0, 5, 9]]
    assert (logged["owned"], logged["lag"]) == ({"t": [0, 1]}, {"t": {"0": 4, "1": 0}})
    assert logged["rebalance"]["why"] == "group is already rebalancing"
    assert GroupDocument.of(logged, group="g") == document


def test_a_topic_may_be_called_as_the_document_s_parts_are():
    assert read_plain({"ranges": {"0": 5}}) == {TopicPartition("ranges", 0): 5}


def test_a_gate_waits_for_enough_or_for_long_enough_but_for_the_first():
    gate, few, many = Gate(10, delay_s=5), [Range("t", 0, 0, 4)], [Range("t", 0, 0, 4), Range("t", 1, 3, 9)]

    assert gate.opens(few, 0.0)
    assert not gate.opens(few, 1.0)
    assert gate.opens(many, 2.0)
    assert not gate.opens(few, 6.9)
    assert gate.opens(few, 7.0)
    assert Gate(None, delay_s=5).opens([], 0.0)


def test_a_gate_that_had_nothing_to_let_through_waits_no_longer_for_it():
    gate = Gate(10, delay_s=5)

    assert gate.opens([], 0.0)
    assert gate.opens([Range("t", 0, 0, 1)], 1.0)


def test_a_document_of_another_kind_or_group_is_refused_with_what_to_do():
    document = GroupDocument(group="g").to_json()

    with pytest.raises(BadOffset, match=r"belongs to group 'g'.*new checkpoint"):
        GroupDocument.of(document, group="h")
    with pytest.raises(BadOffset, match=r"with group\.id"):
        read_plain(document)


def test_offsets_without_a_group_are_written_as_spark_s_source_writes_them():
    offsets = {TopicPartition("t", 10): 1, TopicPartition("t", 9): 2, TopicPartition("s", 0): 3}

    document = write_plain(offsets)

    assert json.dumps(document) == '{"s": {"0": 3}, "t": {"9": 2, "10": 1}}'
    assert read_plain(document) == offsets


AT = TopicPartition("t", 0)


def test_a_report_is_the_ends_as_spark_s_source_reports_them_and_the_times():
    ends = {TopicPartition("b", 1): 7, TopicPartition("a", 0): 0, TopicPartition("oldest-unread", 0): 2}
    report = Report(ends, {TopicPartition("b", 1): 1_764_287_970_123})
    document = json.loads(json.dumps(report.to_json()))

    assert document == {
        "a": {"0": 0},
        "b": {"1": 7},
        "oldest-unread": {"0": 2},
        "oldest unread": {"b": {"1": 1_764_287_970_123}},
    }
    assert Report.of(document) == report
    assert Report.of({"b": {"1": 7}}) is None


def test_a_document_of_a_later_version_is_read_without_what_it_adds():
    """After a downgrade the query goes on."""
    document = GroupDocument(group="g", plan=3, ranges=(Range("t", 0, 1, 2),)).to_json()
    document["rebalance"] |= {"how": "long"}
    document["something"] = {"else": 1}

    assert GroupDocument.of(document, group="g").plan == 3


def test_a_document_of_an_earlier_version_has_no_name_and_no_positions():
    document = GroupDocument(group="g", plan=3, query="q", positions={AT: 7}).to_json()
    assert GroupDocument.of(document, group="g").positions == {AT: 7}
    for name in ("query", "positions", "owned", "lag", "rebalance"):
        del document[name]

    found = GroupDocument.of(document, group="g")

    assert (found.plan, found.query, found.positions) == (3, "", {})
