"""Builders of scenarios: small ones by hand, and any that Hypothesis can think of."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from coterie.assign.registry import ASSIGNORS
from coterie.simulate.agenda import START_MS
from coterie.simulate.scenario import Variant, read_script, script_of
from coterie.simulate.variant import Outcome
from coterie.story.model import Move, Rebalance

DOTTED = 'lasts = "10m"\ntopics.orders = 6\nmembers.count = 3\nmembers.starts_within = "100ms"\n'


def a_variant(text: str = "", *, base: str = DOTTED) -> Variant:
    """Return the only variant of a file."""
    (variant,) = read_script(base + text, name="scene.toml").variants
    return variant


def rebalances(outcome: Outcome) -> list[Rebalance]:
    return [told for told in outcome.story if isinstance(told, Rebalance)]


def causes(outcome: Outcome) -> list[tuple[str, ...]]:
    """Return why the group rebalanced, after it first came together."""
    return [one.why for one in rebalances(outcome)[1:]]


def moves(outcome: Outcome, why: str) -> list[int]:
    """Return when the group was moved for this reason."""
    return [told.at_ms - START_MS for told in outcome.story if isinstance(told, Move) and told.why == why]


SPANS = st.sampled_from((100, 3_000, 20_000, 90_000))


@st.composite
def variants(draw: st.DrawFn) -> Variant:
    """Return any small scenario."""
    lasts = draw(st.sampled_from((60_000, 120_000, 300_000)))
    count = draw(st.integers(1, 5))
    kind = draw(kinds(count))
    mixed = draw(st.booleans())
    given: dict[str, Any] = {
        "seed": draw(st.integers(0, 999)),
        "lasts": lasts,
        "topics": {"a": draw(st.integers(1, 7)), "b": 2},
        "members": [kind, kind | {"static": not kind["static"], "count": 2}] if mixed else kind,
        "network": {"delay": draw(st.sampled_from(([1, 3], [1, 50], [7, 7])))},
        "broker": {"group.initial.rebalance.delay.ms": draw(st.sampled_from((0, 3_000)))},
    }
    given |= draw(st.fixed_dictionaries({}, optional=troubles(lasts, count)))
    if mixed:
        given.pop("scale", None)
    (variant,) = script_of(given, "drawn", None).variants
    return variant


def kinds(count: int) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "count": st.just(count),
            "static": st.booleans(),
            "batch": st.sampled_from((0, 100, 700, 5_000)),
            "session.timeout.ms": st.sampled_from((6_000, 10_000, 45_000)),
            "heartbeat.interval.ms": st.sampled_from((1_000, 3_000, 5_000)),
            "max.poll.interval.ms": st.sampled_from((2_000, 8_000, 20_000, 300_000)),
            "partition.assignment.strategy": st.sampled_from(sorted(ASSIGNORS)),
        }
    )


def troubles(lasts: int, count: int) -> dict[str, st.SearchStrategy[list[dict[str, Any]]]]:
    moments = st.integers(0, lasts - 1)
    when = st.one_of(
        st.fixed_dictionaries({"at": st.lists(moments, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"every": st.integers(20_000, lasts - 1)}),
    )
    whom = st.fixed_dictionaries({}, optional={"member": st.integers(1, count)})
    long = st.tuples(when, whom, SPANS).map(lambda one: [one[0] | one[1] | {"takes": [100, one[2]]}])
    brief = st.tuples(when, whom, SPANS).map(lambda one: [one[0] | one[1] | {"back_after": [0, one[2]]}])
    deploy = st.fixed_dictionaries(
        {
            "at": moments,
            "at_once": st.sampled_from(("25%", 1, 2)),
            "restart": st.sampled_from(([1_000, 9_000], [20_000, 60_000])),
            "kill": st.booleans(),
        }
    )
    return {
        "deploy": deploy.map(lambda one: [one]),
        "slow_poll": long,
        "gc_pause": long,
        "crash": brief,
        "broker_restart": moments.map(lambda at: [{"at": at, "takes": [100, 15_000]}]),
        "scale": st.tuples(moments, st.integers(0, 7)).map(lambda one: [{"at": one[0], "to": one[1]}]),
    }
