"""A group that goes over to the other protocol as it is at work, and back."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from uuid import UUID

import pytest

from coterie.history import nextgen
from coterie.history.advice import Case
from coterie.history.log.records import (
    CURRENT_ASSIGNMENT,
    GROUP_EPOCH,
    MEMBER,
    TARGET_EPOCH,
    TARGET_MEMBER,
    ClassicMember,
    CurrentAssignment,
    GroupEpoch,
    Member,
    TargetEpoch,
    Value,
)
from coterie.history.log.records import Entry as Record
from coterie.history.tables import History
from unit.history.history_rig import Tale, stalls

TOPIC = UUID(int=7)


class Change(Tale):
    """Writes the records of a group of KIP-848 as well."""

    def write(self, at_ms: int, kind: int, member: str = "", value: Value | None = None) -> None:
        self.entries.append(Record(self.place, at_ms, kind, "g", member, value=value))
        self.place += 1

    def epoch(
        self,
        at_ms: int,
        members: Mapping[str, Sequence[int]],
        *,
        new: Sequence[str] = (),
        gone: Sequence[str] = (),
    ) -> Change:
        """An epoch in which all have at once what they are to have."""
        self.generation += 1
        self.leave(at_ms, *gone)
        for one in new:
            who = Member(None, None, one, "/h", ("t",), None, self.poll_ms, "uniform", ClassicMember(45_000))
            self.write(at_ms, MEMBER, one, who)
        self.write(at_ms, GROUP_EPOCH, value=GroupEpoch(self.generation))
        for one, numbers in members.items():
            self.write(at_ms, TARGET_MEMBER, one, ((TOPIC, tuple(numbers)),))
        self.write(at_ms, TARGET_EPOCH, value=TargetEpoch(self.generation))
        for one, numbers in members.items():
            has = CurrentAssignment(self.generation, self.generation, 0, ((TOPIC, tuple(numbers)),), ())
            self.write(at_ms, CURRENT_ASSIGNMENT, one, has)
        return self

    def leave(self, at_ms: int, *members: str) -> None:
        for one in members:
            for kind in (CURRENT_ASSIGNMENT, TARGET_MEMBER, MEMBER):
                self.write(at_ms, kind, one)

    def told(self) -> History:
        self.commits = [one._replace(topic_id=TOPIC) for one in self.commits]
        return super().told()


def upgraded() -> Change:
    """`a` has both partitions; as `b` comes with the newer protocol, the group goes over to it."""
    tale = Change()
    tale.formed(0, {"a": [0, 1]}).commit(500, 600_000, 0, 1).gone(600_000)
    tale.epoch(600_000, {"a": [0], "b": [1]}, new=["a", "b"])
    tale.commit(600_500, 700_000, 0, 1).commit(800_000, 900_000, 0, 1)  # nothing for 100 s, records wait
    return tale


def owners(history: History, partition: int) -> list[tuple[str, int, int | None]]:
    return [
        (one.member_id, one.from_ms, one.to_ms) for one in history.ownership if one.partition == partition
    ]


def test_a_group_that_goes_over_to_kip_848_has_its_owners_once():
    told = upgraded().told()

    assert owners(told, 0) == [("a", 0, 600_000), ("a", 600_000, None)]
    assert owners(told, 1) == [("a", 0, 600_000), ("b", 600_000, None)]
    assert len([*stalls(told, "no-progress", 0)]) == len([*stalls(told, "no-progress", 1)]) == 1
    assert [*stalls(told, "no-owner", 0), *stalls(told, "no-owner", 1)] == []


def test_who_was_there_under_the_classic_protocol_did_not_join_at_the_upgrade():
    upgrade = upgraded().told().generations[1]

    assert (upgrade.joined, upgrade.causes) == (("b",), ("member-joined",))


def test_the_time_under_kip_848_is_no_stand_still_of_the_classic_group_that_it_was_and_is_again():
    tale = upgraded()
    tale.epoch(1_000_000, {"b": [0, 1]}, gone=["a"])
    tale.leave(1_700_000, "b")
    tale.write(1_700_000, GROUP_EPOCH)
    told = tale.formed(1_700_000, {"b": [0, 1]}).told()

    assert owners(told, 1) == [
        ("a", 0, 600_000),
        ("b", 600_000, 1_700_000),
        ("b", 1_700_000, None),
    ]
    assert [one for one in told.stalls if one.kind == "no-owner"] == []
    assert [(one.partition, one.from_member, one.to_member, one.at) for one in told.moves] == [
        (0, "a", "b", 1_000_000)
    ]
    assert [one.generation for one in told.generations] == [1, 2, 3, 4]
    assert not Case(told).kip_848


def test_a_group_that_was_empty_between_its_protocols_had_no_owner_meanwhile():
    tale = Change().formed(0, {"a": [0]}).commit(500, 60_000, 0).formed(60_500, {}).gone(61_000)
    assert isinstance(tale, Change)
    told = tale.epoch(90_000, {"b": [0]}, new=["b"]).told()

    assert [*stalls(told, "no-owner", 0)] == [(60_250, 90_000)]


def test_a_group_that_is_deleted_with_its_members_owns_nothing_from_then_on():
    tale = Tale().formed(0, {"a/1": [0]}).gone(10_000)
    tale.generation = 0
    told = tale.formed(50_000, {"z/1": [0]}).told()

    assert owners(told, 0) == [("a/1", 0, 10_000), ("z/1", 50_000, None)]
    assert [*stalls(told, "no-owner", 0)] == [(10_000, 50_000)]


def test_a_group_that_is_made_anew_takes_nothing_over_from_the_deleted_one_of_its_name():
    """There was no group meanwhile that could have worked; while one is only empty, all the time counts."""
    deleted, empty = Tale(), Tale()
    for tale in (deleted, empty):
        tale.formed(0, {"a/1": [0]}).commit(500, 10_000, 0).formed(10_100, {})
    deleted.gone(12_000)
    deleted.generation = 0
    told = [tale.formed(50_000, {"z/1": [0]}).told() for tale in (deleted, empty)]

    assert [[*stalls(one, "no-owner", 0)] for one in told] == [[], [(10_000, 50_000)]]
    assert [len(one.moves) for one in told] == [0, 1]


@pytest.mark.parametrize("was_classic", [False, True])
def test_a_group_of_kip_848_that_is_made_anew_takes_nothing_over_either(was_classic: bool):
    deleted, empty = Change(), Change()
    for tale in (deleted, empty):
        if was_classic:
            tale.formed(-9_000, {"a": [0]}).gone(0)
        tale.epoch(0, {"a": [0]}, new=["a"]).commit(500, 10_000, 0)
        tale.epoch(10_100, {}, gone=["a"])
    deleted.write(12_000, GROUP_EPOCH)
    deleted.generation = 0
    told = [tale.epoch(50_000, {"z": [0]}, new=["z"]).told() for tale in (deleted, empty)]

    assert [[*stalls(one, "no-owner", 0)] for one in told] == [[], [(10_100, 50_000)]]
    assert [len(one.moves) for one in told] == [0, 1]
    assert [one.generations[-1].causes for one in told] == [("member-joined",)] * 2


def test_each_of_several_groups_of_kip_848_that_had_one_name_stands_still_to_its_own_end():
    tale = Change()
    for begun_ms, first, last in ((0, "a", "b"), (100_000, "c", "d")):
        tale.generation = 0
        tale.epoch(begun_ms, {first: [0], last: [1]}, new=[first, last])
        tale.epoch(begun_ms + 10_000, {last: [1]}, gone=[first])
        tale.epoch(begun_ms + 30_000, {}, gone=[last])
        tale.write(begun_ms + 40_000, GROUP_EPOCH)
    told = tale.told()

    assert [*stalls(told, "no-owner", 0)] == [(10_000, 30_000), (110_000, 130_000)]
    assert [*stalls(told, "no-owner", 1)] == []


def test_what_stood_still_before_a_group_was_deleted_counts_to_the_end_of_its_last_member():
    tale = Tale().formed(0, {"a/1": [0], "b/1": [1]}).commit(500, 40_000, 0).commit(500, 10_000, 1)
    tale.formed(30_000, {"a/1": [0]}).commit(30_500, 60_000, 0).formed(60_100, {}).gone(61_000)
    tale.generation = 0
    told = tale.formed(90_000, {"z/1": [0, 1]}).told()

    assert max(to_ms for at in (0, 1) for _, to_ms in stalls(told, "no-owner", at)) <= 60_100
    assert told.moves == ()


def lines_to_tell(members: int) -> int:
    """How many lines of `nextgen` run while a group is told whose one member is another one every 10 s."""
    tale, count = Change(), 0
    for number in range(members):
        gone = [f"m{number - 1}"] if number else []
        tale.epoch(10_000 * number, {f"m{number}": [0]}, new=[f"m{number}"], gone=gone)

    def line(frame: FrameType, event: str, _: object) -> object:
        nonlocal count
        count += event == "line"
        return line

    def call(frame: FrameType, event: str, _: object) -> object:
        return line if frame.f_code.co_filename == nextgen.__file__ else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        told = tale.told()
    finally:
        sys.settrace(before)
    assert len(told.generations) == members
    return count


def test_a_group_with_twice_as_many_departures_takes_twice_as_long_to_tell():
    assert lines_to_tell(400) < 2.5 * lines_to_tell(200)
