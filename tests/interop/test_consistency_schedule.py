"""A seed says what fails when, the same each time, and all kinds of failures come."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from interop.consistency.schedule import ALONE, BROKERS, SECONDS, Kind, schedule


@given(st.integers(0, 10**6), st.floats(20, 600))
def test_a_seed_gives_one_schedule_in_order_and_with_a_promotion_a_minute(seed: int, seconds: float):
    failures = schedule(seed, seconds)

    assert failures == schedule(seed, seconds) == sorted(failures)
    assert all(0 < one.at_s < seconds for one in failures)
    assert all(one.broker in (0, *BROKERS) for one in failures)
    assert all(one.seconds <= SECONDS.get(one.kind, (0, 0))[1] for one in failures)
    promotions = [one for one in failures if one.kind is Kind.PROMOTE]
    assert 1 <= len(promotions) <= max(1, round(seconds / 60))


def test_each_kind_of_failure_comes_within_ten_seeds():
    assert {one.kind for seed in range(10) for one in schedule(seed, 60)} == {*Kind}


@given(st.integers(0, 10**6), st.sampled_from([*ALONE]))
def test_where_one_kind_alone_fails_each_time_begins_when_the_one_before_is_over(seed: int, kind: Kind):
    failures = schedule(seed, 60, kind)

    assert len(failures) >= 5
    assert {one.kind for one in failures} == {kind}
    assert all(before.at_s + before.seconds < after.at_s for before, after in pairwise(failures))
