"""What the log says outright of a rebalance, and what is weighed."""

from __future__ import annotations

from itertools import combinations
from operator import eq

from hypothesis import given
from hypothesis import strategies as st

from coterie.base.ids import TopicPartition
from coterie.history.activity import presence
from coterie.history.log.runs import Commit, by_partition, runs_of
from coterie.story.clock import in_order
from unit.history.history_rig import Tale, causes, stalls


def a_pair(**settings: int) -> Tale:
    """Two members of one partition each, that have been at work for half a minute."""
    tale = Tale(**settings).formed(1_000, {"a/1": [0], "b/1": [1]})
    return tale.commit(1_500, 31_000, 0, 1)


def test_members_that_make_a_group_joined_it():
    assert causes(Tale().formed(1_000, {"a/1": [0]}).told()) == [{"member-joined"}]


def test_a_group_whose_beginning_is_not_in_the_log_is_not_explained():
    tale = Tale()
    tale.generation = 41

    assert causes(tale.formed(1_000, {"a/1": [0]}).told()) == [{"unknown"}]


def test_generation_zero_is_no_rebalance():
    tale = Tale()
    tale.generation = -1

    assert causes(tale.formed(500, {}).formed(1_000, {"a/1": [0]}).told()) == [{"member-joined"}]


def test_who_stops_committing_as_it_goes_has_left():
    told = a_pair().formed(33_500, {"a/1": [0, 1]}).commit(34_000, 60_000, 0, 1).told()

    assert causes(told)[1] == {"member-left"}
    assert told.generations[1].confidence > 0.9


def test_who_had_been_silent_for_its_session_had_died():
    tale = a_pair().commit(31_500, 41_500, 0).formed(42_000, {"a/1": [0, 1]}).commit(42_500, 70_000, 0, 1)
    told = tale.told()

    assert causes(told)[1] == {"session-expired"}
    assert next(iter(stalls(told, "no-progress", 1)))[0] == 31_250, "half an interval after its last commit"


def test_who_had_been_silent_for_the_poll_interval_polled_too_late():
    tale = a_pair(poll_ms=30_000).commit(31_500, 61_500, 0).formed(62_000, {"a/1": [0, 1]})
    tale.commit(62_500, 70_000, 0, 1).formed(71_000, {"a/1": [0], "b/2": [1]}).commit(71_500, 90_000, 0, 1)

    assert causes(tale.told())[1:] == [{"poll-interval-exceeded"}, {"member-joined"}]


def test_who_died_and_was_started_again_at_once_kept_the_others_waiting_until_its_session_ran_out():
    """EX-1: the dead member is still waited for when the new one joins."""
    tale = a_pair().commit(31_500, 33_500, 0)
    told = tale.formed(41_000, {"a/1": [0], "b/2": [1]}).commit(41_500, 60_000, 0, 1).told()

    assert causes(told)[1] == {"session-expired", "member-joined"}


def test_who_was_stopped_and_started_again_left_and_joined():
    tale = a_pair().commit(31_500, 33_500, 0)
    told = tale.formed(33_900, {"a/1": [0], "b/2": [1]}).commit(34_000, 60_000, 0, 1).told()

    assert causes(told)[1] == {"member-left", "member-joined"}
    assert [one.same_client for one in told.moves] == [True]


def test_a_static_member_that_comes_back_in_time_is_replaced_without_a_rebalance():
    """ST-2: the record is written again, of the same generation."""
    tale = (
        Tale()
        .formed(1_000, {"a@i/1": [0], "b@j/1": [1]})
        .commit(1_500, 31_000, 0, 1)
        .commit(31_500, 34_500, 0)
    )
    told = tale.formed(34_900, {"a@i/1": [0], "b@j/2": [1]}, again=True).commit(35_000, 50_000, 0, 1).told()

    assert len(told.generations) == 1
    assert [(one.instance_id, one.from_member, one.to_member) for one in told.replacements] == [
        ("j", "b@j/1", "b@j/2")
    ]


def test_a_static_member_that_comes_back_in_a_new_generation_is_its_cause():
    """ST-7: the vote came out otherwise."""
    tale = Tale().formed(1_000, {"a@i/1": [0], "b@j/1": [1]}).commit(1_500, 31_000, 0, 1)

    assert causes(tale.formed(34_000, {"a@i/1": [0], "b@j/2": [1]}).told())[1] == {"static-member-replaced"}


def test_a_static_member_that_comes_back_after_its_session_joins_anew():
    """Its session of 10 s ended, and it was back before the rebalance for that was over."""
    tale = Tale().formed(1_000, {"a@i/1": [0], "b@j/1": [1]}).commit(1_500, 31_000, 0, 1)
    told = tale.commit(31_500, 49_500, 0).formed(50_000, {"a@i/1": [0], "b@j/2": [1]}).told()

    assert causes(told)[1] == {"session-expired", "member-joined"}
    assert told.generations[1].confidence < 0.9, "another rebalance may have held it up"


def test_what_a_cooperative_member_gives_up_is_given_on_in_a_rebalance_of_its_own():
    tale = Tale().formed(1_000, {"a/1": [0, 1]}).commit(1_500, 9_500, 0, 1)
    tale.formed(10_000, {"a/1": [0], "b/1": []}, owned={"a/1": [0, 1]})
    told = tale.formed(10_100, {"a/1": [0], "b/1": [1]}, owned={"a/1": [0]}).told()

    assert causes(told)[1:] == [{"member-joined"}, {"cooperative-follow-up"}]
    assert list(stalls(told, "no-owner", 1)) == [(10_000, 10_100)]
    assert not list(stalls(told, "no-owner", 0))


def test_a_deleted_topic_that_cooperative_members_gave_up_is_not_given_on():
    two = {"a/1": ("u", "t"), "b/1": ("u", "t")}
    tale = Tale().formed(1_000, {"a/1": {"u": [0], "t": [0]}, "b/1": {"t": [1]}}, topics=two)
    tale.formed(30_000, {"a/1": {"t": [0]}, "b/1": {"t": [1]}}, topics=two, owned={"a/1": [0]})
    told = tale.formed(30_100, {"a/1": {"t": [0]}, "b/1": {"t": [1]}}, topics=two).told()

    assert causes(told)[1:] == [{"topics-changed"}, {"cooperative-follow-up"}]


def test_a_topic_with_more_partitions_than_before_is_said_to_have_them():
    told = a_pair().formed(33_000, {"a/1": [0, 2], "b/1": [1, 3]}).told()

    assert causes(told)[1] == {"partitions-changed"}


def test_one_member_that_wants_other_topics_changed_its_subscription():
    tale = a_pair().formed(33_000, {"a/1": [0], "b/1": [1]}, topics={"a/1": ["t", "u"]})

    assert causes(tale.told())[1] == {"subscription-changed"}


def test_members_that_all_want_the_same_other_topic_found_it_by_a_pattern():
    more = {"a/1": ["t", "u"], "b/1": ["t", "u"]}

    assert causes(a_pair().formed(33_000, {"a/1": [0], "b/1": [1]}, topics=more).told())[1] == {
        "topics-changed"
    }


def test_members_that_find_a_topic_one_after_the_other_found_it_by_a_pattern():
    tale = a_pair().formed(33_000, {"a/1": [0], "b/1": [1]}, topics={"a/1": ["t", "u"]})
    told = tale.formed(36_000, {"a/1": [0], "b/1": [1]}, topics={"a/1": ["t", "u"], "b/1": ["t", "u"]}).told()

    assert causes(told)[1:] == [{"topics-changed"}, {"topics-changed"}]


def test_a_rebalance_for_which_there_is_no_sign_is_not_explained():
    assert causes(a_pair().formed(33_000, {"a/1": [0], "b/1": [1]}).told())[1] == {"unknown"}


def test_generations_that_are_missing_make_what_is_said_less_certain():
    """RB-11: a generation that was not stored, or compaction."""
    tale = a_pair()
    tale.generation += 3
    found = tale.formed(33_500, {"a/1": [0, 1]}).told().generations[1]

    assert "not in the log: 3 generations before this one" in found.evidence[0]
    assert found.confidence < 0.85


def test_the_groups_of_other_protocol_types_have_generations_and_no_partitions():
    tale = Tale()
    tale.formed(1_000, {"a/1": [0]})
    value = tale.entries[0].value
    tale.entries[0] = tale.entries[0]._replace(value=value._replace(protocol_type="connect"))  # type: ignore[union-attr, call-arg]

    told = tale.told()
    assert causes(told) == [{"member-joined"}]
    assert not told.ownership


def test_who_commits_seldom_and_does_so_an_interval_after_a_generation_stood_not_still():
    """From its last commit before a generation to the first one after it, up to two intervals may pass."""
    tale = Tale(cadence_ms=600_000).formed(1_000, {"a/1": [0]}).commit(600_000, 2_400_000, 0)
    tale.formed(3_150_000, {"a/1": [0], "b/1": [1]}).commit(3_750_000, 6_000_000, 0, 1)

    assert list(stalls(tale.told(), "no-progress", 0)) == []


def test_how_a_member_behaved_hangs_on_no_order_of_its_partitions():
    """They come out of a set: of two that are as steady, one told this and the other that, by chance."""
    times = [*range(0, 5_000, 500), *range(12_000, 17_000, 500)]
    waited = [Commit(at_ms, at_ms, "t", 0, at_ms, 0) for at_ms in times]
    rested = [Commit(at_ms + 1, at_ms, "t", 1, place, 0) for place, at_ms in enumerate(times)]
    runs = by_partition(runs_of(sorted([*waited, *rested])))
    one, other = TopicPartition("t", 0), TopicPartition("t", 1)

    assert presence([one, other], runs) == presence([other, one], runs)
    assert presence([one], runs) != presence([other], runs)


def three(**settings: int) -> Tale:
    """Three members of one partition each, that have been at work for half a minute."""
    tale = Tale(**settings).formed(1_000, {"a/1": [0], "b/1": [1], "c/1": [2]})
    return tale.commit(1_500, 31_000, 0, 1, 2)


def test_a_slow_member_that_stays_does_not_tell_when_the_rebalance_began_that_waits_for_it():
    """What it commits in the end it had read before it was slow; the others had given up by then."""
    tale = three(session_ms=6_000).commit(31_500, 33_000, 0).commit(31_500, 36_000, 1)
    tale.commits.append(tale.commits[-1]._replace(at_ms=38_500, partition=2, offset=1_575))
    told = tale.formed(38_500, {"a/2": [0], "b/1": [1], "c/1": [2]}).commit(39_000, 60_000, 0, 1, 2).told()

    assert causes(told)[1] == {"member-left", "member-joined"}


def test_who_was_steady_in_the_generation_before_gave_up_when_it_was_seen_last():
    """Few commits in a short generation tell nothing alone; from the last one on there was no owner."""
    told = (
        a_pair(cadence_ms=5_000)
        .formed(41_000, {"a/1": [0], "b/2": [1]})
        .commit(43_000, 48_000, 0, 1)
        .formed(60_000, {"a/1": [0], "b/2": [1], "c/1": []})
        .commit(62_000, 90_000, 0, 1)
        .told()
    )

    assert (48_000, 60_000) in stalls(told, "no-owner", 0)
    assert not [one for one in stalls(told, "no-progress", 0) if one[1] == 60_000]


def test_where_nobody_stayed_the_group_waited_for_one_that_was_dead():
    """One left and came back. The other hung, long before its session; but who lives would have joined."""
    tale = a_pair(poll_ms=300_000).commit(31_500, 33_000, 1)
    told = tale.formed(47_000, {"b/2": [0, 1]}).commit(47_500, 90_000, 0, 1).told()

    assert causes(told)[1] == {"session-expired", "member-left", "member-joined"}


def test_one_left_and_another_was_waited_for_as_long_as_may_be():
    """Cooperative members do not show when a rebalance began, but who left does: so long before its end."""
    tale = Tale(session_ms=30_000, poll_ms=15_000)
    tale.formed(1_000, {"a/1": [0], "b/1": [1], "c/1": [2]}).commit(1_500, 31_000, 0, 1, 2)
    tale.commit(31_500, 34_000, 1).commit(31_500, 49_000, 0)
    told = tale.formed(49_000, {"a/1": [0], "b/2": [1, 2]}, owned={"a/1": [0]}).commit(
        49_500, 90_000, 0, 1, 2
    )

    assert causes(told.told())[1] == {"poll-interval-exceeded", "member-left", "member-joined"}


def test_who_is_silent_at_the_end_of_a_group_in_which_all_was_committed_had_died():
    """Nobody commits after it: what was committed of the same partitions before it tells as much."""
    tale = a_pair(session_ms=30_000).formed(32_000, {"a/1": [1], "b/1": [0]}).commit(32_500, 40_000, 0)

    assert causes(tale.formed(62_000, {}).told())[2] == {"session-expired", "member-left"}


def test_a_clock_that_is_set_back_makes_no_stand_still():
    """The second generation is stamped a millisecond before the first one, and has the same owner."""
    tale = Tale().formed(100_000, {"a/1": [0]}).formed(99_999, {"a/1": [0]})
    told = tale.formed(18_000_000, {"b/1": [0]}).told()

    assert [(one.from_ms, one.to_ms) for one in told.ownership] == [
        (99_999, 99_999),
        (99_999, 18_000_000),
        (18_000_000, None),
    ]
    assert told.stalls == ()


@given(st.lists(st.integers(0, 9), max_size=8))
def test_times_are_put_in_order_and_as_few_are_changed_as_can_be(times_ms):
    found = in_order(times_ms)

    assert list(found) == sorted(found)
    assert set(found) <= set(times_ms)
    rises = (
        some
        for size in range(len(times_ms), 0, -1)
        for some in combinations(times_ms, size)
        if list(some) == sorted(some)
    )
    assert sum(map(eq, found, times_ms)) == len(next(rises, ()))


def test_one_wild_time_moves_no_other():
    assert in_order([1, 2, 1_000, 3, 4]) == [1, 2, 3, 3, 4]
    assert in_order([1_000, 1_001, 5, 1_002]) == [1_000, 1_001, 1_001, 1_002]
