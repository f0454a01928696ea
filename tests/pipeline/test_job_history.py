"""What the history of a run becomes: its rebalances, and every moment of every partition, once."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from job_runs import A, B, C, a_history, at, told
from pipeline.report.history import rebalances_of, spans_of
from pipeline.report.scene import Death, Span
from pipeline.report.what_if import ASKED, CALLED, in_words, what_if
from pipeline.watch.story import because

from coterie.history.from_story import history_of_story
from coterie.history.tables import History, Stall


def of_partition(found: list[Span], partition: int) -> list[tuple[str, str, int, int]]:
    return [(one.kind, one.owner, one.from_ms, one.to_ms) for one in found if one.partition == partition]


def test_gaps_and_a_dead_owner_are_spans_of_their_own():
    found = of_partition(spans_of(a_history(), "flights", until_ms=at(40)), 3)

    assert found == [
        ("works", A, at(8), at(12)),
        ("stopped", "", at(12), at(12.5)),
        ("works", B, at(12.5), at(20)),
        ("dead", B, at(20), at(26)),
        ("stopped", "", at(26), at(26.4)),
        ("works", A, at(26.4), at(32)),
        ("stopped", "", at(32), at(32.6)),
        ("works", B, at(32.6), at(40)),
    ]


def test_a_death_does_not_touch_the_partitions_of_others():
    found = spans_of(a_history(), "flights", until_ms=at(40))

    rebalances = [(at(12), at(12.5)), (at(26), at(26.4)), (at(32), at(32.6))]  # in which eager members stop
    assert [one[2:] for one in of_partition(found, 0) if one[0] != "works"] == rebalances
    assert {one[1] for one in of_partition(found, 0) if one[0] == "works"} == {A}


def test_a_death_is_seen_though_the_history_missed_it_and_ends_with_the_member():
    history = a_history()._replace(stalls=())
    found = spans_of(history, "flights", until_ms=at(40), deaths=[Death(at_ms=at(21), member=B)])

    assert of_partition(found, 3)[3:4] == [("dead", B, at(21), at(26))]
    assert of_partition(found, 3)[-1] == ("works", B, at(32.6), at(40))


def test_what_comes_after_the_end_is_left_out():
    found = spans_of(a_history(), "flights", until_ms=at(22))

    assert of_partition(found, 3)[-1] == ("dead", B, at(20), at(22))


def test_a_rebalance_is_told_with_members_by_name_and_how_long_it_took():
    first, second, third, _ = rebalances_of(a_history(), "flights")

    assert (first.members, first.stopped_ms, first.moved) == ({A: (0, 1, 2, 3)}, 0, 0)
    assert (second.at_ms, second.formed_at_ms, second.stopped_ms) == (at(12), at(12.5), 500)
    assert (second.members, second.joined, second.moved) == ({A: (0, 1), B: (2, 3)}, (B,), 2)
    assert (third.left, because(third)) == ((B,), "spark-b fell silent")
    assert [one.cost for one in (first, second, third)] == [
        "new group: nobody had worked before",
        "nobody worked for 500 ms, 2 partitions moved",
        "nobody worked for 400 ms, 2 partitions moved; what spark-b had stood still for 6,400 ms",
    ]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Rebalances in any rhythm that give partitions to anybody or nobody, and silences at any time."""
    story, now_s = [], 0.0
    for generation in range(1, 1 + draw(st.integers(0, 6))):
        owners = draw(st.lists(st.sampled_from([A, B, C, ""]), min_size=3, max_size=3))
        members = {name: tuple(i for i, owner in enumerate(owners) if owner == name) for name in (A, B, C)}
        stopped_s = draw(st.floats(0, 5))
        story.append(told(generation, now_s, stopped_s, members))
        now_s += stopped_s + draw(st.floats(0.01, 9))
    silences = draw(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 40), st.floats(0.1, 9)), max_size=3))
    silent = [
        Stall("delays", "flights", number, "no-progress", at(from_s), at(from_s + length_s), 1, None)
        for number, from_s, length_s in sorted(silences)
    ]
    history = history_of_story("delays", story)
    return history._replace(stalls=(*history.stalls, *silent))


DEATHS = st.lists(
    st.builds(Death, at_ms=st.floats(0, 40).map(at), member=st.sampled_from([A, B, C])), max_size=2
)


@given(histories(), DEATHS, st.floats(0.1, 60))
def test_the_spans_of_a_partition_follow_each_other(history: History, deaths: list[Death], over_s: float):
    found = spans_of(history, "flights", until_ms=at(over_s), deaths=deaths)

    for partition in range(3):
        mine = [span for span in found if span.partition == partition]
        assert all(one.to_ms == after.from_ms for one, after in pairwise(mine))
        assert all(one.from_ms < one.to_ms <= at(over_s) for one in mine)


def test_the_run_is_replayed_as_it_was_and_with_static_members():
    rows = what_if(a_history())

    assert [row.setting for row in rows] == ["as recorded", *ASKED]
    assert {row.setting for row in rows} == set(CALLED)
    assert rows[0].fidelity == 1
    assert "there would have been 2 rebalances instead of 4" in in_words(rows)
    helping = [CALLED[row.setting] for row in rows if row.helps]
    assert ("Nothing tried helps." in in_words(rows)) != bool(helping)
    assert all(one in in_words(rows) for one in helping)


def test_a_run_that_nothing_is_known_of_is_told_as_such():
    assert in_words(what_if(History("delays"))).startswith("nothing to replay")
