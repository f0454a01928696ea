"""What is committed and what is replayed, case by case (docs/spark.md, "The protocol")."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.ids import TopicPartition
from coterie.spark.source.group.protocol import (
    covered,
    due,
    kept,
    note_of,
    plannable,
    replayed,
    same_place,
)
from coterie.spark.source.offsets import DataLoss, GroupDocument, Range

AT = TopicPartition("t", 0)
BATCH = Range("t", 0, 100, 200)


@pytest.mark.parametrize(
    ("committed", "owned", "commits"),
    [
        (100, True, {AT: 200}),
        (199, True, {AT: 200}),
        (None, True, {AT: 200}),
        (200, True, {}),
        (250, True, {}),
        (99, True, {}),
        (100, False, {}),
    ],
)
def test_a_finished_batch_commits_only_what_is_owned_and_lies_in_its_range(committed, owned, commits):
    assert due([BATCH], owned={AT} if owned else set(), committed={AT: committed}) == commits


@given(st.integers(0, 300) | st.none(), st.integers(0, 150), st.integers(0, 150))
def test_a_commit_never_lowers_an_offset(committed, first, size):
    commits = due([Range("t", 0, first, first + size)], owned={AT}, committed={AT: committed})

    assert all(offset >= (committed or 0) for offset in commits.values())


@pytest.mark.parametrize(
    ("committed", "owned", "left"),
    [
        (100, True, [BATCH]),
        (150, True, [Range("t", 0, 150, 200)]),
        (None, True, [BATCH]),
        (200, True, [None]),
        (300, True, [None]),
        (100, False, [None]),
    ],
)
def test_a_replay_reads_what_no_other_has_done(committed, owned, left):
    owned = {AT} if owned else set()

    found = replayed(
        [BATCH], planned=[BATCH], owned=owned, mine=owned, committed={AT: committed}, fail_on_data_loss=True
    )

    assert found == left


def test_pieces_of_a_range_are_cut_each_on_its_own_and_keep_their_places():
    pieces = [Range("t", 0, 100, 130), Range("t", 0, 130, 170), Range("t", 0, 170, 200)]

    left = replayed(
        pieces, planned=[BATCH], owned={AT}, mine={AT}, committed={AT: 150}, fail_on_data_loss=True
    )

    assert left == [None, Range("t", 0, 150, 170), Range("t", 0, 170, 200)]


FIRST, MIDDLE, LAST = Range("t", 0, 100, 130), Range("t", 0, 130, 170), Range("t", 0, 170, 200)


@pytest.mark.parametrize(
    ("left", "whole"),
    [
        ([BATCH], (BATCH,)),
        ([FIRST, MIDDLE, LAST], (BATCH,)),
        ([LAST, FIRST, MIDDLE], (BATCH,)),
        ([None, Range("t", 0, 150, 170), LAST], (Range("t", 0, 150, 200),)),
        ([FIRST, None, LAST], (LAST,)),
        ([FIRST, MIDDLE, None], ()),
        ([None], ()),
        ([], ()),
        ([Range("t", 0, 40, 130), MIDDLE, LAST], (Range("t", 0, 40, 200),)),
    ],
)
def test_a_range_was_read_as_far_back_from_its_end_as_no_piece_is_missing(left, whole):
    assert covered([BATCH], left) == whole


def test_what_a_replay_left_out_is_never_committed_with_the_rest_of_its_batch():
    other = Range("t", 1, 100, 200)
    batch, owned = [BATCH, other], {AT, other.at}
    held = dict.fromkeys(owned, 100)
    left = replayed(batch, planned=batch, owned={AT}, mine={AT}, committed=held, fail_on_data_loss=True)

    # By the end of the batch the other partition is ours, and nobody has read it.
    assert due(covered(batch, left), owned=owned, committed=held) == {AT: 200}


@pytest.mark.parametrize(
    ("member", "instance", "generation", "same"),
    [
        ("m-1", None, 4, True),
        ("m-2", None, 4, False),
        ("m-1", None, 5, False),
        ("one-2", "one", 4, False),
    ],
)
def test_a_dynamic_member_answers_for_an_earlier_batch_only_as_the_same_member_of_its_generation(
    member, instance, generation, same
):
    planned = GroupDocument(group="g", member="m-1", generation=4)

    assert same_place(planned, member_id=member, instance_id=instance, generation=generation) is same


def test_a_static_member_answers_for_what_its_last_process_planned_in_the_same_generation():
    planned = GroupDocument(group="g", member="one-1", instance="one", generation=4)

    assert same_place(planned, member_id="one-2", instance_id="one", generation=4)
    assert not same_place(planned, member_id="one-2", instance_id="one", generation=5)
    assert not same_place(planned, member_id="two-1", instance_id="two", generation=4)
    assert not same_place(GroupDocument(group="g"), member_id="", instance_id=None, generation=-1)


def test_a_note_says_since_which_plan_a_partition_is_a_query_s():
    note = note_of("q1", 7)

    assert kept(note, query="q1", plan=7)
    assert kept(note, query="q1", plan=9)
    assert not kept(note, query="q1", plan=6)
    assert not kept(note, query="q2", plan=7)
    for other in ("", "coterie q1", "coterie q1 x", "coterie q1 -1", "coterie q1 7 8", "mine q1 7"):
        assert not kept(other, query="q1", plan=7)


def test_a_replay_reads_what_the_query_kept_though_another_owns_it_by_now():
    """Or its finished batch could not be told from one that left something out."""
    left = replayed(
        [BATCH], planned=[BATCH], owned=set(), mine={AT}, committed={AT: 100}, fail_on_data_loss=True
    )

    assert left == [BATCH]


def test_a_replay_leaves_out_what_was_another_s_meanwhile_though_it_is_owned_again():
    """A sink that goes by batch numbers may hold the batch without it."""
    for held in ({AT: 100}, {AT: 150}, {AT: None}):
        left = replayed(
            [BATCH], planned=[BATCH], owned={AT}, mine=set(), committed=held, fail_on_data_loss=True
        )
        assert left == [None]


def test_an_offset_that_was_set_back_is_an_error_or_read_again_from_there():
    pieces = [Range("t", 0, 100, 150), Range("t", 0, 150, 200)]
    case = {"planned": [BATCH], "owned": {AT}, "mine": {AT}, "committed": {AT: 40}}

    with pytest.raises(DataLoss, match=r"t-0 from offset 100 on.*40.*set it back"):
        replayed(pieces, **case, fail_on_data_loss=True)
    left = replayed(pieces, **case, fail_on_data_loss=False)

    assert left == [Range("t", 0, 40, 150), Range("t", 0, 150, 200)]


def plan_of(committed, *, earliest=0, end=100, past_end=False, fail=True):
    return plannable(
        AT, committed=committed, earliest=earliest, end=end, past_end=past_end, fail_on_data_loss=fail
    )


def test_a_plan_reads_from_the_committed_offset_to_the_end():
    assert plan_of(40) == Range("t", 0, 40, 100)
    assert plan_of(100) is None


def test_a_plan_below_the_log_s_start_is_data_loss():
    with pytest.raises(DataLoss, match="40 to 59 were deleted"):
        plan_of(40, earliest=60)
    assert plan_of(40, earliest=60, fail=False) == Range("t", 0, 60, 100)


def test_a_plan_past_the_end_is_data_loss():
    with pytest.raises(DataLoss, match="past the partition's end"):
        plan_of(140, past_end=True)
    assert plan_of(140, past_end=True, fail=False) is None
