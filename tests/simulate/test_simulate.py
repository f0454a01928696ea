"""What scenarios lead to: the members and the coordinator are the ones of production, time is not."""

from __future__ import annotations

from scenes import a_variant, causes, moves, rebalances

from coterie.base.ids import TopicPartition
from coterie.simulate.agenda import START_MS
from coterie.simulate.report import summary_of
from coterie.simulate.variant import simulate

MINUTE = 60_000


def test_a_group_comes_together_and_every_partition_has_an_owner():
    outcome = simulate(a_variant())

    (first,) = rebalances(outcome)
    assert (first.why, len(first.members)) == (("member-joined",), 3)
    on_the_way_ms = (summary_of(outcome).at_work_ms or 0) - (first.over_at_ms - START_MS)
    assert 1 <= on_the_way_ms <= 3
    assert all(not row.idle and not row.moves for row in outcome.ownership.rows.values())


def test_a_dynamic_member_that_restarts_costs_two_rebalances():
    outcome = simulate(a_variant('deploy = [{ at = "5m", at_once = 1, restart = "20s", pause = "1m" }]'))

    assert causes(outcome) == [("member-left",), ("member-joined",)] * 3
    assert moves(outcome, "member-left")[0] in range(5 * MINUTE, 5 * MINUTE + 5)


def test_a_static_member_that_restarts_in_time_costs_none_and_its_partitions_wait():
    deploy = 'members.static = true\ndeploy = [{ at = "5m", at_once = 1, restart = "20s" }]'
    outcome = simulate(a_variant(deploy))

    summary = summary_of(outcome)
    assert (summary.rebalances, summary.returns, summary.moves) == (0, 3, 0)
    assert summary.longest is not None
    assert 20_000 < summary.longest.length_ms < 20_100
    assert all(len(row.idle) == 1 for row in outcome.ownership.rows.values())


def test_a_static_member_that_is_away_for_longer_than_its_session_loses_its_place():
    crash = 'members.static = true\ncrash = [{ at = "5m", member = 2, back_after = "50s" }]'
    outcome = simulate(a_variant(crash))

    assert causes(outcome) == [("session-expired",), ("member-joined",)]
    assert moves(outcome, "session-expired")[0] in range(5 * MINUTE + 42_000, 5 * MINUTE + 45_010)


def test_a_crashed_member_is_missed_after_its_session():
    outcome = simulate(a_variant('crash = [{ at = "5m", member = 2 }]'))

    summary = summary_of(outcome)
    assert causes(outcome) == [("session-expired",)]
    assert summary.longest is not None
    assert 42_000 < summary.longest.length_ms < 49_000  # the session, and the rebalance


def test_an_application_that_polls_too_late_leaves_and_works_beside_its_successor():
    slow = 'slow_poll = [{ at = "5m", member = 2, takes = "4m" }]\nmembers.max.poll.interval.ms = 120_000'
    outcome = simulate(a_variant(slow))

    assert causes(outcome) == [("poll-interval-exceeded",), ("member-joined",)]
    assert moves(outcome, "poll-interval-exceeded")[0] in range(7 * MINUTE - 200, 7 * MINUTE + 10)
    assert 230_000 < summary_of(outcome).twice_ms < 250_000  # two partitions, two minutes each


def test_a_rebalance_waits_for_an_application_that_is_at_work():
    slow = 'slow_poll = [{ at = "5m", member = 2, takes = "2m" }]\nscale = [{ at = "6m", to = 4 }]'
    outcome = simulate(a_variant(slow))

    (grown,) = rebalances(outcome)[1:]
    assert grown.why == ("member-joined",)
    assert grown.over_at_ms - START_MS in range(7 * MINUTE, 7 * MINUTE + 1_000)


def test_a_pause_that_is_shorter_than_the_session_is_not_noticed_by_the_group():
    outcome = simulate(a_variant('gc_pause = [{ at = "5m", member = 2, takes = "20s" }]'))

    summary = summary_of(outcome)
    assert (summary.rebalances, summary.idle_ms) == (0, 2 * 20_000)


def test_a_pause_that_is_longer_costs_the_member_its_place():
    outcome = simulate(a_variant('gc_pause = [{ at = "5m", member = 2, takes = "70s" }]'))

    assert causes(outcome) == [("session-expired",), ("member-joined",)]


def test_a_broker_that_restarts_finds_its_group_in_the_log():
    outcome = simulate(a_variant('broker_restart = [{ at = "5m", takes = "15s" }]'))

    assert causes(outcome) == []
    assert summary_of(outcome).idle_ms == 0


def test_members_of_a_group_that_is_full_give_up():
    outcome = simulate(a_variant("broker.group.max.size = 2"))

    (ended,) = outcome.ended
    assert "group.max.size" in ended.why


def test_a_deploy_may_change_how_members_are():
    deploy = (
        '[[deploy]]\nat = "2m"\nat_once = 3\nrestart = "1s"\nset.partition.assignment.strategy = "roundrobin"'
    )
    outcome = simulate(a_variant(deploy))

    assert [one.protocol for one in rebalances(outcome) if one.members] == ["range", "roundrobin"]


def test_one_seed_is_one_outcome_and_another_is_another():
    text = 'deploy = [{ at = "5m", restart = ["10s", "20s"] }]'
    first, second = (simulate(a_variant(text)) for _ in range(2))

    assert first.story == second.story
    assert (
        first.ownership.rows[TopicPartition("orders", 0)].spans
        == second.ownership.rows[TopicPartition("orders", 0)].spans
    )
    assert simulate(a_variant(f"seed = 7\n{text}")).story != first.story
