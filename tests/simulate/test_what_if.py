"""Recorded groups, lived through again: with their own settings as they were, and with others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from coterie.cli.history import command
from coterie.cli.history.what_if import lines
from coterie.history.tables import History
from coterie.simulate.values import BadScript
from coterie.simulate.what_if.replay import Change, best_reading, foretold, replayed
from coterie.simulate.what_if.what_if import AS_RECORDED, KNOWN, answers, questions
from unit.history.history_rig import CAPTURES, Tale, captured_history

captured = pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures are not beside this checkout")


@captured
@pytest.mark.parametrize("group", ["audit", "billing", "nextgen", "shipping", "storm"])
def test_a_captured_group_replayed_with_its_own_settings_rebalances_as_it_did(group: str):
    known = best_reading(captured_history(group))

    assert known is not None
    assert [causes for _, causes in known.figures.rebalances] == [causes for _, causes in known.life.expected]
    assert known.fidelity == 1


@captured
def test_the_first_reading_of_a_captured_group_is_right_so_nothing_was_fitted():
    readings = [best_reading(captured_history(group)) for group in ("audit", "billing", "shipping", "storm")]

    assert {one.reading.seed for one in readings if one is not None} == {1}
    assert all(one is not None and one.reading.by_sight for one in readings)


def test_partitions_that_a_topic_got_and_a_topic_that_was_made_are_replayed():
    tale = Tale().formed(0, {"a/1": (0, 1), "b/1": (2, 3)}).commit(500, 60_000, 0, 1, 2, 3)
    tale.formed(70_000, {"a/1": (0, 1, 2), "b/1": (3, 4, 5)}).commit(70_500, 120_000, *range(6))
    tale.formed(130_000, {"b/1": (0, 1, 2, 3, 4, 5)}).commit(130_500, 200_000, *range(6))

    known = best_reading(tale.told())

    assert known is not None
    assert [causes for _, causes in known.life.expected] == [
        {"member-joined"}, {"partitions-changed"}, {"member-left"}
    ]  # fmt: skip
    assert [causes for _, causes in known.figures.rebalances][:2] == [
        {"member-joined"},
        {"partitions-changed"},
    ]
    assert known.life.note == ""


@captured
def test_a_rolling_restart_of_static_members_is_no_rebalance():
    was, what_if = answers(captured_history("billing"), questions("group.instance.id=on"))

    assert (was.setting, was.rebalances) == (AS_RECORDED, 9)
    assert (what_if.rebalances, what_if.causes) == (5, ("member-joined 4", "session-expired 1"))


def test_the_record_has_the_moves_that_its_history_has_also_those_to_a_process_that_was_started_again():
    """It had none, beside a text that said `2 moves of a partition` of the same group."""
    tale = Tale().formed(0, {"a/1": (0, 1), "b/1": (2, 3)}).commit(500, 60_000, 0, 1, 2, 3)
    tale.formed(70_000, {"b/1": (2, 3), "a/2": (0, 1)}).commit(70_500, 130_000, 0, 1, 2, 3)
    history = tale.told()

    (said,) = lines([history], ["session.timeout.ms=20000"], as_json=False)

    assert len(history.moves) == 2
    (record,) = (line.split() for line in said.splitlines() if "(the record)" in line)
    assert record[-1] == "2"
    assert "2 of 2 moves recorded went to a process that was started again" in said


@captured
def test_a_longer_poll_interval_keeps_slow_members_in():
    was, what_if = answers(captured_history("storm"), questions("max.poll.interval.ms=20000"))

    assert "poll-interval-exceeded 4" in was.causes
    assert not any(one.startswith("poll-interval-exceeded") for one in what_if.causes)
    assert (what_if.moves or 0) < (was.moves or 0)


@captured
def test_a_session_shorter_than_a_restart_throws_static_members_out():
    """The shipping group's restarts took 2 s; none is seen by a session of 12 s, all by one of 1 s."""
    was, what_if = answers(captured_history("shipping"), questions("session.timeout.ms=1000"))

    assert (was.rebalances or 0) + 3 <= (what_if.rebalances or 0)


@captured
def test_a_replay_is_the_same_each_time():
    known = best_reading(captured_history("storm"))

    assert known is not None
    assert replayed(known.life, Change(), known.reading.seed) == known.figures


def test_who_relieves_the_only_member_came_before_that_one_went():
    """Else the group would have been empty in between, and have had one generation more."""
    alone = Tale().formed(10_000, {"a/1": (0, 1)}).commit(10_000, 59_500, 0, 1)
    known = best_reading(alone.formed(60_000, {"a/2": (0, 1)}).commit(60_000, 90_000, 0, 1).told())

    assert known is not None
    assert known.fidelity == 1
    assert [act.what for act in known.life.acts] == ["start", "start", "stop"]


def test_who_is_back_has_the_place_on_which_its_process_died():
    """Also where the other one left just as the generation was formed: then that one had seen it come."""
    tale = Tale().formed(10_000, {"a/1": (0,), "b/1": (1,)}).commit(10_500, 51_000, 0)
    tale.commit(10_500, 61_000, 1).formed(61_050, {"a/2": (0, 1)}).commit(61_500, 90_000, 0, 1)
    known = best_reading(tale.told())

    assert known is not None
    assert len(known.life.kinds) == 2, "places"
    assert known.fidelity == 1


def test_who_died_with_nothing_to_do_had_nothing_that_stood_still():
    """Its partitions count from when the group was without it, in the record and in the replay."""
    tale = Tale(session_ms=45_000).formed(10_000, {"a@a/1": (0,), "b@b/1": (1,)})
    tale.commit(10_000, 99_500, 0).commit(10_000, 59_500, 1).formed(103_000, {"a@a/1": (0, 1)})
    tale.commit(103_000, 160_000, 0).commit(103_000, 160_000, 1, rate=0.029)
    (row,) = answers(tale.told(), [])

    assert row.rebalances == 2
    assert row.causes == ("member-joined 1", "session-expired 1")
    assert max(row.recorded_stood_still_ms, row.stood_still_ms or 0) < 10_000, "and not its session of 45 s"


def test_a_record_that_begins_in_the_middle_begins_with_those_who_were_there():
    tale = Tale()
    tale.generation = 6
    known = best_reading(tale.formed(10_000, {"a/1": (0,), "b/1": (1,)}).told())

    assert known is not None
    assert (known.matched, [act.what for act in known.life.acts]) == (1, ["start", "start"])


def test_who_died_died_after_it_had_come():
    """Two generations that are closer than a session: the death cannot have been before the start."""
    told = Tale(session_ms=45_000).formed(10_000, {"a/1": (0,), "b/1": (1,)}).formed(40_000, {"a/1": (0, 1)})
    first, second = told.told().generations
    died = told.told()._replace(generations=(first, second._replace(causes=("session-expired",))))
    known = best_reading(died)

    assert known is not None
    assert [act.what for act in known.life.acts] == ["start", "start", "kill"]
    assert known.fidelity == 1


def test_a_group_that_is_empty_from_its_first_record_on_has_nothing_to_replay():
    assert best_reading(Tale().formed(10_000, {}).told()) is None


def test_a_member_that_comes_to_want_another_topic_wants_it_in_the_replay_too():
    tale = Tale().formed(10_000, {"a/1": (0,), "b/1": (1,)}).commit(10_500, 89_000, 0, 1)
    tale.formed(
        90_000,
        {"a/1": {"t": (0,), "u": (0, 1)}, "b/1": (1,)},
        topics={"a/1": ("t", "u"), "b/1": ("t",)},
    ).commit(90_500, 120_000, 0, 1)
    tale.formed(120_500, {"a/1": {"u": (0, 1)}, "b/1": (0, 1)}, topics={"a/1": ("u",)})
    known = best_reading(tale.told())

    assert known is not None
    assert [causes for _, causes in known.figures.rebalances] == [
        {"member-joined"}, {"subscription-changed"}, {"subscription-changed"}
    ]  # fmt: skip
    assert (known.fidelity, known.life.note) == (1, "")
    assert [(place, topics) for _, place, topics in known.life.wanted] == [
        (1, ("t",)), (2, ("t",)), (1, ("t", "u")), (1, ("u",))
    ]  # fmt: skip
    assert known.figures.moves == 1, "of t, the first partition; u had no owner before"


def test_a_group_that_is_made_anew_is_replayed_as_another_one():
    tale = Tale().formed(10_000, {"a/1": (0,)}).commit(10_500, 89_000, 0).formed(90_000, {}).gone(95_000)
    tale.generation = 0
    tale.formed(300_000, {"a/2": (0,)}).commit(300_500, 360_000, 0)
    was, what_if = answers(tale.told(), questions("session.timeout.ms=30000"))

    assert was.fidelity == 1
    assert was.recorded_stood_still_ms == 0
    assert {was.stood_still_ms, what_if.stood_still_ms} == {250}, (
        "as its member closed; 210 s without a group"
    )


@pytest.mark.parametrize("protocol", ["range", "cooperative-sticky"])
def test_a_member_that_joins_again_with_another_subscription_changes_what_all_the_answers_are_about(
    protocol: str,
):
    tale = Tale().formed(10_000, {"a/1": (0,), "b/1": (1,)}).commit(10_500, 89_000, 0, 1)
    tale.formed(90_000, {"a/1": {"u": (0,)}, "b/1": (0, 1)}, topics={"a/1": ("u",)})
    asked = questions(f"assignor={protocol},session.timeout.ms=30000")
    was, what_if = answers(tale.told(), asked)

    assert was.fidelity == 1
    assert was.causes == what_if.causes == ("member-joined 1", "subscription-changed 1")


def test_a_topic_that_is_made_and_matches_a_pattern_is_replayed():
    two = {"a/1": ("t", "u"), "b/1": ("t", "u")}
    tale = Tale().formed(0, {"a/1": (0, 1), "b/1": (2, 3)}).commit(500, 69_000, 0, 1, 2, 3)
    tale.formed(70_000, {"a/1": {"t": (0, 1), "u": (0,)}, "b/1": {"t": (2, 3), "u": (1,)}}, topics=two)
    known = best_reading(tale.commit(70_500, 120_000, 0, 1, 2, 3).told())

    assert known is not None
    assert [dict(there) for _, there in known.life.grown] == [{"t": 4, "u": 0}, {"t": 4, "u": 2}]
    assert [causes for _, causes in known.figures.rebalances] == [{"member-joined"}, {"topics-changed"}]
    assert (known.fidelity, known.life.note) == (1, "")


@pytest.mark.parametrize(
    ("wanted", "why"), [(("t", "u"), "it is subscribed to still"), (("t",), "its pattern finds it no more")]
)
def test_a_topic_that_is_deleted_vanishes_in_the_replay(wanted: tuple[str, ...], why: str):
    two = {"a/1": ("t", "u"), "b/1": ("t", "u")}
    tale = Tale().formed(0, {"a/1": {"t": (0,), "u": (0,)}, "b/1": {"t": (1,), "u": (1,)}}, topics=two)
    tale.commit(500, 69_000, 0, 1)
    tale.formed(70_000, {"a/1": (0,), "b/1": (1,)}, topics={"a/1": wanted, "b/1": wanted})
    known = best_reading(tale.commit(70_500, 120_000, 0, 1).told())

    assert known is not None
    assert [dict(there) for _, there in known.life.grown] == [{"t": 2, "u": 2}, {"t": 2, "u": 0}], why
    assert [causes for _, causes in known.figures.rebalances] == [{"member-joined"}, {"topics-changed"}]
    assert (known.fidelity, known.life.note) == (1, "")


def test_what_is_not_replayed_lowers_the_fidelity_and_is_said():
    """A history that does not tell what the members want: a story's."""
    tale = Tale().formed(10_000, {"a/1": (0,)}).formed(90_000, {"a/1": (0,)}, topics={"a/1": ("t", "u")})
    known = best_reading(tale.told()._replace(subscriptions=()))

    assert known is not None
    assert (known.matched, known.fidelity) == (1, 0.5)
    assert known.life.note == "1 time subscriptions or topics changed, which is not replayed"


@pytest.mark.parametrize(
    ("protocol", "said"), [(None, "is not recorded"), ("by-weight", "by-weight is not ours")]
)
def test_an_assignor_that_there_is_not_is_replaced_and_that_is_said(protocol: str | None, said: str):
    history = Tale().formed(0, {"a/1": (0,)}).told()
    generations = tuple(one._replace(protocol=protocol) for one in history.generations)

    known = best_reading(history._replace(generations=generations))

    assert known is not None
    assert known.life.note == f"its assignor {said}: range instead"


def test_a_group_nobody_ever_had_a_partition_in_is_told_as_such():
    (only,) = answers(History("empty"), questions("assignor=range"))

    assert only.rebalances is None
    assert "nothing to replay" in only.note


def test_a_session_shorter_than_the_way_of_a_heartbeat_has_its_member_thrown_out_again_and_again():
    tale = Tale().formed(0, {"a/1": (0, 1), "b/1": (2, 3)}).commit(500, 20_000, 0, 1, 2, 3)
    tale.formed(21_000, {"b/1": (0, 1, 2, 3)}).commit(21_500, 40_000, 0, 1, 2, 3)
    known = best_reading(tale.told())
    assert known is not None

    figures = foretold(known.life, Change({"session_timeout_ms": 10}), known.reading.seed)

    assert figures.causes["session-expired"] > 10


def test_alternatives_make_a_grid():
    asked = questions("session.timeout.ms=10s|30000, assignor=range|sticky")

    assert [one.text for one in asked] == [
        "session.timeout.ms=10s,assignor=range",
        "session.timeout.ms=10s,assignor=sticky",
        "session.timeout.ms=30000,assignor=range",
        "session.timeout.ms=30000,assignor=sticky",
    ]
    assert asked[0].change.client == {"session_timeout_ms": 10_000, "assignors": ("range",)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sesion.timeout.ms=1", "did you mean session.timeout.ms?"),
        ("assignor=stiky", "did you mean sticky?"),
        ("group.instance.id=yes", "it takes on"),
        ("session.timeout.ms", "has no value"),
        ("session.timeout.ms=soon", "a span of time"),
        ("session.timeout.ms=1|2,session.timeout.ms=3", "twice"),
        ("assignor=range,partition.assignment.strategy=sticky", "twice"),
        ("session.timeout.ms=1000,heartbeat.interval.ms=2000", "has to be shorter"),
        ("group.max.size=none", "group.max.size"),
        ("session.timeout.ms=10", "is 10 ms, and a replay takes 1000 at least; ten seconds are 10s"),
        ("max.poll.interval.ms=1", "is 1 ms, and a replay takes 1000 at least"),
        ("session.timeout.ms=1000h", "is 3600000000 ms, and a replay takes 1073741824 at most"),
        (" ", "is empty"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_what_would_be_right(text: str, says: str):
    with pytest.raises(BadScript) as refused:
        questions(text)

    assert says in str(refused.value)


def test_the_page_says_of_every_setting_what_it_changes():
    page = (Path(__file__).parents[2] / "docs" / "history.md").read_text(encoding="utf-8")
    table = page.partition("| setting | takes | what it changes |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]

    assert {re.sub("`", "", name) for name, _, _ in rows} == {*KNOWN}
    assert all(does.endswith(".") for _, _, does in rows)


def test_questions_are_answered_as_they_were_asked_the_last_of_several_values_first():
    asked = ["assignor=sticky|range,session.timeout.ms=10s|9s", "group.instance.id=on"]

    texts = [one.text for text in asked for one in questions(text)]

    assert texts == [
        "assignor=sticky,session.timeout.ms=10s",
        "assignor=sticky,session.timeout.ms=9s",
        "assignor=range,session.timeout.ms=10s",
        "assignor=range,session.timeout.ms=9s",
        "group.instance.id=on",
    ]


@captured
def test_the_command_prints_a_table_a_group_with_how_far_it_is_to_be_believed():
    asked = ["--what-if", "group.instance.id=on", "--what-if", "assignor=cooperative-sticky"]
    told = CliRunner().invoke(command, [str(CAPTURES), "--group", "billing", *asked], catch_exceptions=False)

    lines = told.output.splitlines()
    assert lines[0].startswith("billing: fidelity 100%, 9 of 9 rebalances recorded come out of the replay")
    firsts = [line.split()[0] for line in lines[2:6]]
    assert firsts == ["(the", "as", "group.instance.id=on", "assignor=cooperative-sticky"]


@captured
def test_programs_get_a_line_of_json_an_answer():
    asked = ["--what-if", "session.timeout.ms=30000", "--output", "json"]
    told = CliRunner().invoke(command, [str(CAPTURES), "--group", "audit", *asked], catch_exceptions=False)

    rows = [json.loads(line) for line in told.output.splitlines()]
    assert [(row["group_id"], row["setting"], row["fidelity"]) for row in rows] == [
        ("audit", AS_RECORDED, 1.0),
        ("audit", "session.timeout.ms=30000", 1.0),
    ]


def both_crash() -> Tale:
    """Two members with a session of 7 s: one dies at 60 s, the other one at 95 s, and nobody comes back."""
    tale = Tale(session_ms=7_000).formed(4_000, {"a/1": (0, 1), "b/1": (2, 3)})
    tale.commit(4_500, 60_000, 0, 1).commit(4_500, 66_500, 2, 3).formed(66_550, {"b/1": (0, 1, 2, 3)})
    return tale.commit(67_000, 95_000, 0, 1, 2, 3).formed(101_500, {})


def test_a_stand_still_that_goes_on_until_nobody_is_left_counts_until_the_last_member_is_gone():
    """With sessions of 45 s nobody has found out that the first is dead when the last one dies."""
    known, *longer = answers(both_crash().told(), questions("session.timeout.ms=7s|20s|45s|120s"))

    assert (known.rebalances, known.fidelity) == (3, 1)
    assert known.recorded_stood_still_ms == 2 * (6_550 - 250) + 2 * 50, (
        "half an interval after its last commit"
    )
    stood_still = [one.stood_still_ms or 0 for one in longer]
    assert stood_still == sorted(stood_still)
    assert stood_still[2] == stood_still[3] == 2 * 35_000


def test_what_nobody_works_on_after_the_last_member_stands_still_no_more():
    """However late the broker finds it out: the group was at its end."""
    history = both_crash().told()

    assert max(one.to_ms for one in history.stalls) == 66_550
    assert max(one.to_ms or 0 for one in history.ownership) == 95_250


def test_who_gave_up_before_the_last_member_went_left_its_partitions_alone_until_then():
    tale = Tale().formed(4_000, {"a/1": (0,), "b/1": (1,)}).commit(4_500, 60_000, 0).commit(4_500, 61_500, 1)
    history = tale.formed(61_700, {}).told()

    ((partition, from_ms, to_ms),) = [(one.partition, one.from_ms, one.to_ms) for one in history.stalls]
    assert partition == 0
    assert 59_750 <= from_ms <= 60_000
    assert 61_250 <= to_ms <= 61_500


@captured
def test_an_answer_says_whether_it_helps_and_the_table_when_nothing_does():
    asked = ["--what-if", "max.poll.interval.ms=20000", "--what-if", "group.instance.id=on"]
    told = CliRunner().invoke(command, [str(CAPTURES), "--group", "storm", *asked], catch_exceptions=False)
    rows = list(answers(captured_history("storm"), [one for text in asked[1::2] for one in questions(text)]))

    assert [row.helps for row in rows] == [None, False, False]
    assert told.output.splitlines()[-2] == "  nothing tried helps"
    (_, on) = answers(captured_history("billing"), questions("group.instance.id=on"))
    assert on.helps is True


@pytest.mark.parametrize(
    ("session_ms", "number", "last_ms", "why"),
    [
        (
            10_000,
            (1 << 31) - 1,
            60_000,
            "somebody was given partition 2,147,483,647 of t, and a replay takes",
        ),
        (2, 1, 60_000, "sessions of 2 ms, and a replay takes 1000 at least"),
        (10_000, 1, 1 << 62, "its times are more than a hundred years apart: a clock was wrong"),
    ],
)
def test_a_record_that_would_take_for_ever_to_replay_is_not_replayed_and_says_why(
    session_ms: int, number: int, last_ms: int, why: str
):
    """Any leader may give any number of a partition, and a broker's clock may say anything."""
    tale = Tale(session_ms=session_ms).formed(10_000, {"a/1": (0, number), "b/1": (2,)})
    tale.commit(10_500, 40_000, 0, 1).formed(last_ms, {"a/1": (0, 1, 2)})

    (only,) = answers(tale.told(), questions("group.instance.id=on"))

    assert only.rebalances is None
    assert only.note.startswith(f"nothing to replay: {why}")


@captured
def test_a_group_that_would_never_have_been_given_anything_is_not_better_off():
    """Nothing stands still that nobody ever had: a first wait that is longer than the whole life."""
    _, never = answers(captured_history("shipping"), questions("group.initial.rebalance.delay.ms=2147483647"))

    assert (never.rebalances, never.stood_still_ms, never.helps) == (0, 0, False)


def test_a_member_that_wants_others_in_the_first_generation_that_counts_is_replayed_without_that():
    """It sat in one below 1, which is none: where it came from nobody knows."""
    tale = Tale()
    tale.generation = -1
    tale.formed(1_000, {"a/1": [0], "b/1": [1]}).commit(1_500, 60_000, 0, 1)
    tale.formed(60_500, {"a/1": [0], "b/1": [1]}, topics={"a/1": ["t", "u"], "b/1": ["t"]})
    tale.commit(61_000, 90_000, 0, 1).formed(90_500, {"a/1": [0], "b/1": [1], "c/1": [2]})

    first, _ = answers(tale.told(), questions("session.timeout.ms=30000"))

    assert first.setting == AS_RECORDED
