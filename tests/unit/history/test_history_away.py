"""A time in which nobody could write is told beside the rebalance that came of it, and blames no member."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from coterie.cli.history import command
from coterie.history.advice import remedies_for
from coterie.history.away import Away, aways_of, with_aways
from coterie.history.from_story import overlaid
from coterie.history.log.segments import GroupLog
from coterie.history.ownership import costs_of
from coterie.history.tables import History
from coterie.simulate.what_if.what_if import answers, questions
from coterie.wire.payloads.consumer_offsets import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
    group_metadata_record,
    offset_commit_record,
)
from coterie.wire.records.batches import Record, build_batch
from unit.history.history_rig import Tale

AWAY = Away(60_000, 100_200)
WORDS = (
    "nobody could write from 1970-01-01T00:01:00.000Z to 1970-01-01T00:01:40.200Z:"
    " the members' sessions ended while the cluster was away"
)
SHARES = {"a": (0, 1), "b": (2, 3)}


def shared(number: int) -> dict[str, tuple[int, ...]]:
    """Return what two members have that are started for the so many-th time."""
    return {f"{name}/{number}": numbers for name, numbers in SHARES.items()}


def billing() -> Tale:
    """Its members had sessions of 10 s, and were back under other ids when the old sessions were over."""
    tale = Tale().formed(0, shared(1)).commit(500, 60_000, 0, 1, 2, 3)
    return tale.formed(110_300, shared(2)).commit(110_800, 170_000, 0, 1, 2, 3)


def audit() -> Tale:
    """Its members had long sessions: it goes on as if nothing had been."""
    tale = Tale(session_ms=45_000).formed(0, {"c/1": (0,)}).commit(500, 60_000, 0)
    return tale.commit(100_200, 170_000, 0)


def logs(*tales: Tale) -> list[GroupLog]:
    return [GroupLog(str(number), tuple(tale.entries), tale.runs) for number, tale in enumerate(tales)]


def told(tale: Tale, *others: Tale) -> History:
    """Return the history of a group beside others."""
    return with_aways(tale.told(), aways_of(logs(tale, *others)))


def test_what_came_of_it_says_so_beside_itself_and_nobody_was_removed():
    history = told(billing(), audit())

    assert aways_of(logs(billing(), audit())) == [AWAY]
    assert history.generations[1].causes == ("cluster-away", "member-joined")
    assert history.generations[1].evidence == (WORDS, "new: a, b")
    assert history.generations[1].confidence == 0.75


def test_what_stood_still_counts_from_its_beginning():
    cost = costs_of(told(billing(), audit()))[2, 110_300]

    assert (cost.partitions, cost.longest_ms) == (4, 50_300)


def test_no_member_died_and_no_time_out_is_advised():
    alone = overlaid(billing().told(), story_of_billing())

    assert any("died" in one.why for one in remedies_for(alone))
    for history in (told(billing(), audit()), with_aways(alone, [AWAY])):
        assert not any("died" in one.why or "session" in one.setting for one in remedies_for(history))


def test_settings_are_not_tried_on_a_group_of_which_a_rebalance_came_of_it():
    """A longer session had the dead missed for longer, where none was dead."""
    (answer,) = answers(told(billing(), audit()), questions("session.timeout.ms=45000"))

    assert answer.rebalances is None
    assert answer.note == (
        "nothing to replay: 1 rebalance came of a time in which nobody could write,"
        " and a replay has no such time"
    )


def story_of_billing() -> list[dict[str, object]]:
    """What its coordinator tells: the members are back as the cluster is, and the old ones' sessions end."""

    def rebalance(at: int, formed_at: int, generation: int, why: list[str]) -> dict[str, object]:
        ids, gone = shared(generation), shared(generation - 1) if generation > 1 else {}
        members = {
            one: {"client_id": one[0], "host": "/h", "instance_id": None, "partitions": {"t": [*numbers]}}
            for one, numbers in ids.items()
        }
        return {
            "kind": "rebalance", "group": "g", "generation": generation, "at": at, "formed_at": formed_at,
            "why": why, "protocol": "range", "leader": f"a/{generation}", "members": members,
            "joined": [*ids], "left": [*gone],
        }  # fmt: skip

    return [
        rebalance(0, 0, 1, ["member-joined"]),
        rebalance(100_250, 110_300, 2, ["member-joined", "session-expired"]),
    ]


def test_what_the_coordinator_told_stands_below_it_and_what_stood_still_counts_from_its_beginning_too():
    history = with_aways(overlaid(billing().told(), story_of_billing()), [AWAY])

    assert history.generations[1].causes == ("cluster-away", "member-joined")
    assert history.generations[1].evidence == (
        WORDS,
        "told by the coordinator: member-joined, session-expired",
    )
    cost = costs_of(history)[2, 110_300]
    assert (cost.partitions, cost.longest_ms, cost.unowned_ms) == (4, 50_300, 10_050)


def test_groups_that_all_lost_their_members_were_silent_until_the_first_of_them_was_formed_anew():
    """Their coordinators tell when the first member was back, which is earlier."""
    one, other = billing(), billing()
    away = Away(60_000, 110_300)

    assert aways_of(logs(one, other)) == [away]
    assert aways_of(logs(one, other), [100_250]) == [Away(60_000, 100_250)]
    assert costs_of(told(one, other))[2, 110_300].longest_ms == 50_300


def test_of_one_group_alone_nothing_is_made_up():
    assert told(billing()) == billing().told()


def test_groups_that_committed_seldom_or_long_ago_do_not_count():
    seldom = Tale(cadence_ms=15_000).formed(0, {"c/1": (0,)}).commit(0, 60_000, 0).commit(105_000, 170_000, 0)
    stopped = Tale().formed(0, {"c/1": (0,)}).commit(500, 40_000, 0).commit(100_200, 170_000, 0)

    assert aways_of(logs(billing(), seldom)) == []
    assert aways_of(logs(billing(), stopped)) == []


def test_records_of_any_group_in_between_say_that_somebody_could_write():
    third = Tale(cadence_ms=4_000).formed(0, {"d/1": (0,)}).commit(0, 170_000, 0)

    assert aways_of(logs(billing(), audit(), third)) == []
    assert aways_of(logs(billing(), audit()), range(60_000, 100_000, 4_000)) == []


def killed(*, back: bool) -> Tale:
    """All members are killed at 60 s, and if they are `back` started again at once."""
    tale = Tale().formed(0, shared(1)).commit(500, 60_000, 0, 1, 2, 3)
    if back:
        return tale.formed(70_300, shared(2)).commit(70_800, 170_000, 0, 1, 2, 3)
    tale.formed(70_300, {}).formed(100_000, shared(2))
    return tale.commit(100_500, 170_000, 0, 1, 2, 3)


@pytest.mark.parametrize("back", [True, False], ids=["started again", "frozen for long"])
def test_members_of_all_groups_that_are_killed_at_once_were_not_kept_from_writing(back: bool):
    """Nobody wrote meanwhile either: but their sessions ended when they do with a cluster that is there."""
    first, second = killed(back=back), killed(back=back)

    assert told(first, second) == first.told()
    assert "session-expired" in first.told().generations[1].causes


def test_one_that_is_gone_for_good_after_a_time_without_records_died():
    """Producers stood still for 40 s, and nobody had anything to commit."""
    quiet = Tale().formed(0, shared(1)).commit(500, 60_000, 0, 1, 2, 3).commit(100_200, 110_000, 0, 1, 2, 3)
    quiet.formed(120_000, {"a/1": (0, 1, 2, 3)}).commit(120_500, 170_000, 0, 1, 2, 3)

    assert aways_of(logs(quiet, audit())) == [AWAY]
    assert told(quiet, audit()) == quiet.told()


def written(folder: Path, partition: int, group: str, tale: Tale) -> None:
    """Write a group's log as a broker has it."""
    records = [
        (entry.place, entry.at_ms, *group_metadata_record(GroupMetadataKey(group), entry.value))
        for entry in tale.entries
    ]
    for one in tale.commits:
        key, value = (
            OffsetCommitKey(group, one.topic, one.partition),
            OffsetCommitValue(one.offset, -1, "", one.at_ms),
        )
        records.append((one.place, one.at_ms, *offset_commit_record(key, value)))
    place = folder / f"__consumer_offsets-{partition}"
    place.mkdir()
    segment = build_batch([Record(*record) for record in sorted(records)])
    (place / "00000000000000000000.log").write_bytes(segment)


def test_the_command_reads_all_groups_before_it_tells_of_one(tmp_path: Path):
    written(tmp_path, 0, "billing", billing())
    written(tmp_path, 7, "audit", audit())

    said = CliRunner().invoke(command, [str(tmp_path), "--group", "billing"], catch_exceptions=False).output
    rows = CliRunner().invoke(command, [str(tmp_path), "--output", "json"], catch_exceptions=False).output

    assert "generation 2, 2 members: cluster-away, member-joined (75%)" in said
    assert "4 partitions stood still, up to 50.3 s" in said
    assert f"      {WORDS}; new: a, b" in said
    assert "died" not in said
    assert sorted(json.loads(row)["group_id"] for row in rows.splitlines()) == ["audit", "billing"]
