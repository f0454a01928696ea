"""A folded run tells what an unfolded one tells: every heartbeat played, or moved over."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from scenes import a_variant, causes, variants

from coterie.simulate.agenda import START_MS
from coterie.simulate.ownership import Ownership
from coterie.simulate.scenario import Variant
from coterie.simulate.variant import DIRECTOR, Course, Outcome, Slot, simulate
from coterie.simulate.what_if.generations import HeartbeatPhase
from coterie.simulate.what_if.replay import Process
from examples import drawn


def told(outcome: Outcome) -> tuple[object, ...]:
    return outcome.story, history(outcome.ownership), outcome.ended


def history(ownership: Ownership) -> dict[object, object]:
    return {one: (row.spans, row.idle, row.moves, row.twice_ms) for one, row in ownership.rows.items()}


@settings(max_examples=drawn(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(variants())
def test_a_folded_run_tells_the_same_story_at_the_same_times(variant: Variant):
    folded, unfolded = simulate(variant), simulate(variant, fold=False)

    assert folded.story == unfolded.story
    assert history(folded.ownership) == history(unfolded.ownership)
    assert folded.ended == unfolded.ended
    assert unfolded.folded == 0


PITFALLS = {
    "a stalled application falls silent within the fold": """
        members.heartbeat.interval.ms = 5_000
        members.session.timeout.ms = 10_000
        members.max.poll.interval.ms = 8_000
        members.batch = "700ms"
        slow_poll = [{ at = "2m", member = 1, takes = "1m" }]
    """,
    "a session ends while the heartbeat that would save it is on its way": """
        members.heartbeat.interval.ms = 5_000
        members.session.timeout.ms = 6_000
        network.delay = "50ms"
        gc_pause = [{ at = ["2m", "3m", "4m"], takes = ["700ms", "6s"] }, { every = "31s", takes = "5900ms" }]
    """,
    "a member without heartbeats for its whole session": """
        members.static = true
        crash = [{ at = "2m", member = 2, back_after = "44s" }, { at = "5m", member = 2, back_after = "46s" }]
    """,
    "the broker is away, and a member with it": """
        broker_restart = [{ at = "2m", takes = "50s" }]
        crash = [{ at = "150s", member = 1 }]
    """,
}


@pytest.mark.parametrize("pitfall", PITFALLS)
def test_the_quiet_ends_in_time(pitfall: str):
    base = 'lasts = "6m"\ntopics.orders = 6\nmembers.count = 3\n'
    variant = a_variant("\n".join(map(str.strip, PITFALLS[pitfall].splitlines())), base=base)

    assert told(simulate(variant)) == told(simulate(variant, fold=False))


def test_a_quiet_day_is_a_few_events():
    outcome = simulate(a_variant(base='lasts = "24h"\ntopics.orders = 6\nmembers.count = 5\n'))

    assert causes(outcome) == []
    assert outcome.folded > 5 * 28_500
    assert outcome.played < 20_000  # the broker's housekeeping: every 15 s


def test_members_that_might_be_late_at_any_time_are_played():
    """Between two heartbeats the application may be silent for too long: nothing is quiet here."""
    outcome = simulate(
        a_variant(
            'members.max.poll.interval.ms = 2_000\nmembers.batch = "1900ms"',
            base="""
lasts = "2m"
topics.orders = 2
members.count = 1
""",
        )
    )

    assert outcome.folded == 0
    assert causes(outcome) == []


def test_a_member_that_wants_another_topic_while_it_looks_is_played_until_it_has_found_it():
    """The answer is about what it wanted before, so it looks again in a second, before its next heartbeat."""

    class Changing(Course):
        wanted: tuple[str, ...] = ("orders",)

        def topics_of(self, slot: Slot) -> tuple[str, ...]:
            return self.wanted

        def want_more(self) -> None:
            for more in ("payments", "refunds"):
                self.wanted += (more,)
                for slot in self.slots:  # whoever leads looks for all of them when it assigns
                    assert slot.worker is not None
                    slot.worker.refresh_metadata()

    variant = a_variant(
        base='lasts = "10m"\ntopics.orders = 6\ntopics.payments = 2\ntopics.refunds = 1\nmembers.count = 3\n'
    )
    course = Changing(variant, fold=True)
    course.agenda.at(START_MS + 120_000, DIRECTOR, course.want_more)

    course.run()

    at_work = {one for slot in course.slots if slot.worker is not None for one in slot.worker.at_work()}
    assert {one.topic for one in at_work} == {"orders", "payments", "refunds"}
    assert course.folding.folded > 50


def test_a_member_that_hangs_up_before_its_next_heartbeat_is_played_until_then():
    """A record may have the next heartbeat so late that the session ends unheard before."""

    class Recorded(Course):
        def _start(self, slot: Slot) -> None:
            slot.worker = Process(self, slot)
            slot.worker.start()

        def put_off(self) -> None:
            for slot in self.slots:
                assert isinstance(slot.worker, Process)
                worker, now_ms = slot.worker, self.agenda.now_ms
                interval_ms = worker.settings.heartbeat_interval_ms
                since_ms = worker.settled_ms - START_MS
                worker.align(HeartbeatPhase(now_ms, 1, since_ms, now_ms + interval_ms - 1, 0, 0))

    variant = a_variant(
        "members.heartbeat.interval.ms = 5_000\nmembers.session.timeout.ms = 6_000",
        base='lasts = "2m"\ntopics.orders = 6\nmembers.count = 3\n',
    )
    for moment in range(0, 5_000, 500):
        course = Recorded(variant, fold=True)
        course.agenda.at(START_MS + 60_000 + moment, DIRECTOR, course.put_off)
        course.run()
        assert course.folding.folded > 20
