"""Records of KIP-848 groups read, cut at every byte, and runs of commits."""

from __future__ import annotations

import contextlib
import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.errors import Corrupt
from coterie.history.from_story import history_of_story, overlaid, read_stories, read_story
from coterie.history.log.records import (
    READERS,
    CurrentAssignment,
    Member,
    RegularExpression,
    TopicMetadata,
    read_entry,
    read_next_value,
)
from coterie.history.log.runs import RUN_ENDS_MS, Commit, runs_of
from coterie.history.log.segments import entries_of
from coterie.wire.payloads.consumer_offsets import (
    OffsetCommitKey,
    OffsetCommitValue,
    offset_commit_record,
)
from coterie.wire.records.batches import Record, build_batch, build_marker
from unit.history.history_rig import Tale, told

TOPIC = UUID("e6237957-3be0-4e22-8d3c-d4f4b973e308")
OWNED = b"\x02" + TOPIC.bytes + b"\x03" + b"\0\0\0\0" + b"\0\0\0\1" + b"\0"
VALUES = {
    3: b"\0\0" + b"\0\0\0\x07" + b"\x01\0\x08" + b"\0" * 7 + b"\x09",
    4: b"\0\0" + b"\x02" + TOPIC.bytes + b"\x02t" + b"\0\0\0\2" + b"\x02" + b"\0\0\0\0\x02\x02r\0" + b"\0\0",
    5: b"\0\0" + b"\x02i" + b"\0" + b"\x02c" + b"\x02h" + b"\x02\x02t" + b"\x00" + b"\0\0\0\x09" + b"\0"
    + b"\x01\0\x07\x01\0\0\x17\x70\x01\0",
    6: b"\0\0" + b"\0\0\0\x07" + b"\0",
    7: b"\0\0" + OWNED + b"\0",
    8: b"\0\0" + b"\0\0\0\x02\0\0\0\1\1" + OWNED + b"\x01" + b"\0",
    16: b"\0\0" + b"\x02\x02t" + b"\0" * 7 + b"\x03" + b"\0" * 7 + b"\x05" + b"\0",
}  # fmt: skip


def test_every_kind_of_the_newer_groups_is_read():
    """Section 3.2 of the catalogue."""
    read = {kind: read_next_value(kind, data) for kind, data in VALUES.items()}

    assert read.keys() == READERS.keys()
    assert read[3] == (7, 9)
    assert read[4] == TopicMetadata(((TOPIC, "t", 2),))
    assert isinstance(read[5], Member)
    assert read[5].classic is not None
    assert (read[5].instance_id, read[5].topics, read[5].classic.session_timeout_ms) == ("i", ("t",), 6000)
    assert read[8] == CurrentAssignment(2, 1, 1, ((TOPIC, (0, 1)),), ())
    assert read[16] == RegularExpression(("t",), 3, 5)


@pytest.mark.parametrize("kind", VALUES)
def test_a_record_that_is_cut_is_corrupt(kind: int):
    for size in range(len(VALUES[kind])):
        with pytest.raises(Corrupt):
            read_next_value(kind, VALUES[kind][:size])


@given(st.sampled_from(sorted(READERS)), st.binary(max_size=80))
def test_whatever_the_bytes_nothing_but_corrupt_is_raised(kind: int, data: bytes):
    with contextlib.suppress(Corrupt):
        read_next_value(kind, b"\0\0" + data)


def test_kinds_that_are_not_told_of_are_passed_over():
    """Share and streams groups: kept as what they are, and whose."""
    found = read_entry(b"\0\x0b\0\1g", b"\0\0", place=1, at_ms=2)

    assert (found.kind, found.group, found.known, found.value) == (11, "g", False, None)


def commits(offset: int, number: int, **batch: object) -> bytes:
    key, value = offset_commit_record(OffsetCommitKey("g", "t", 0), OffsetCommitValue(number, 0, "", 1000))
    return build_batch([Record(offset, 1000, key, value)], base_offset=offset, **batch)  # type: ignore[arg-type]


def test_what_a_transaction_committed_counts_once_it_has_ended_and_not_at_all_if_it_was_aborted():
    """OM-3; a transaction that the log does not end is not over."""
    marks = {"producer_epoch": 0, "coordinator_epoch": 0, "timestamp": 1000}
    log = b"".join(
        (
            commits(0, 10, producer_id=1, producer_epoch=0, transactional=True),
            commits(1, 20, producer_id=2, producer_epoch=0, transactional=True),
            commits(2, 30),
            build_marker(commit=False, producer_id=1, **marks),
            build_marker(commit=True, producer_id=2, **marks),
            commits(5, 40, producer_id=3, producer_epoch=0, transactional=True),
        )
    )

    assert [one.value.offset for one in entries_of([log])] == [20, 30]  # type: ignore[union-attr]


def test_a_segment_that_is_being_written_ends_where_its_last_whole_batch_does():
    log = commits(0, 10) + commits(1, 20)

    assert len(list(entries_of([log[:-5]]))) == 1


def test_a_batch_that_fails_its_checksum_is_corrupt():
    log = bytearray(commits(0, 10))
    log[-1] ^= 1

    with pytest.raises(Corrupt, match="checksum"):
        list(entries_of([bytes(log)]))


def test_a_run_keeps_both_ends_and_the_longest_silence():
    at = (0, 500, 1_000, 9_000, 9_500)
    (run,) = runs_of(Commit(place, ms, "t", 0, ms * 2, 1) for place, ms in enumerate(at))

    assert (run.count, run.first_ms, run.last_ms, run.first, run.last) == (5, 0, 9_500, 0, 19_000)
    assert (run.silent_from_ms, run.silent_to_ms, run.silent_before, run.silent_after) == (
        1_000,
        9_000,
        2_000,
        18_000,
    )


def test_a_run_ends_with_the_generation_and_with_the_quarter_of_the_day():
    found = [Commit(0, 0, "t", 0, 1, 1), Commit(1, 1, "t", 0, 1, 2), Commit(2, RUN_ENDS_MS, "t", 0, 1, 2)]

    assert [run.count for run in runs_of(found)] == [1, 1, 1]


def test_what_the_story_tells_is_certain():
    story = read_story(
        [told(1, ["member-joined"], a=[0, 1]), told(2, ["evicted", "topics-changed"], b=[0, 1, 2])]
    )
    history = history_of_story("g", story["g"])

    assert [one.causes for one in history.generations] == [
        ("member-joined",),
        ("member-left", "partitions-changed"),
    ]
    assert {one.confidence for one in history.generations} == {1.0}
    assert [(one.partition, one.from_member, one.to_member) for one in history.moves] == [
        (0, "a", "b"),
        (1, "a", "b"),
    ]
    assert [(one.partition, one.from_ms, one.to_ms) for one in history.stalls] == [
        (0, 2000, 2100),
        (1, 2000, 2100),
    ]


def test_what_several_coordinators_tell_of_a_group_is_put_in_the_order_of_time():
    first, second, third = (told(number, ["member-joined"], a=[0]) for number in (1, 2, 3))

    story = read_stories([[third], [], [first, second]])["g"]

    alone = read_story([first, second, third])["g"]
    assert [(one["generation"], one["formed_at"]) for one in story] == [
        (one["generation"], one["formed_at"]) for one in alone
    ]
    assert history_of_story("g", story) == history_of_story("g", alone)


def test_the_story_stands_in_the_place_of_what_was_inferred():
    story = read_story([told(1, ["member-joined"], a=[0]), told(2, ["rebalance-timed-out"], a=[0])])
    inferred = history_of_story("g", story["g"])
    guessed = inferred.generations[1]._replace(causes=("unknown",), confidence=0.5)
    inferred = inferred._replace(generations=(inferred.generations[0], guessed))

    assert overlaid(inferred, story["g"]).generations[1].causes == ("poll-interval-exceeded",)


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"kind": "rebalance"}', b"\xff"])
def test_what_is_no_story_is_corrupt(value: bytes):
    with pytest.raises(Corrupt):
        read_story([value])


WHOLE = json.loads(told(1, ["member-joined"], a=[0]))
SEAT = WHOLE["members"]["a"]


@pytest.mark.parametrize(
    "field", ["group", "at", "formed_at", "why", "protocol", "leader", "members", "left"]
)
def test_a_rebalance_of_the_story_without_a_field_is_corrupt_and_says_which_is_missing(field: str):
    less = {name: value for name, value in WHOLE.items() if name != field}

    with pytest.raises(Corrupt, match=f"generation 1 of group .* expected {field} "):
        read_story([json.dumps(less).encode()])


@pytest.mark.parametrize(
    "fields",
    [
        {"generation": 1e400},
        {"generation": 1 << 31},
        {"at": "soon"},
        {"formed_at": 1 << 63},
        {"formed_at": 1.5},
        {"group": None},
        {"why": "member-joined"},
        {"joined": [1]},
        {"left": ["\ud800"]},
        {"size": "many", "abridged": True},
        {"members": ["a"]},
        {"members": {"a": {}}},
        {"members": {"a": {**SEAT, "partitions": [0]}}},
        {"members": {"a": {**SEAT, "partitions": {"t": ["0"]}}}},
        {"members": {"a": {**SEAT, "partitions": {"t": [1 << 31]}}}},
        {"members": {"a": {**SEAT, "host": 7}}},
    ],
    ids=str,
)
def test_a_rebalance_of_the_story_with_a_field_of_another_kind_is_corrupt(fields: dict[str, object]):
    with pytest.raises(Corrupt, match=f"expected {next(iter(fields))} as story.md has it"):
        read_story([json.dumps(WHOLE | fields).encode()])


def test_a_story_that_is_nested_without_end_is_corrupt():
    with pytest.raises(Corrupt, match="a move or a rebalance"):
        read_story([b"[" * 100_000])


def test_a_rebalance_that_is_told_without_its_size_is_told_all_the_same():
    story = read_story([json.dumps(WHOLE | {"abridged": True, "members": {}}).encode()])

    assert history_of_story("g", story["g"]).generations[0].causes == ("member-joined",)


def test_a_group_whose_generations_are_all_below_one_is_told_without_any():
    tale = Tale()
    tale.generation = -3

    told = tale.formed(1_000, {"a/1": [0]}).commit(1_500, 60_000, 0).formed(60_500, {}).gone(90_000).told()

    assert told.generations == ()
    assert [(one.from_ms, one.to_ms) for one in told.ownership] == [(1_000, 60_000)]
    assert told.stalls == ()
