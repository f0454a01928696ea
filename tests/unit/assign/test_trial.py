"""A line of `coterie assign`: what a step means where it does not say everything, and what is refused."""

from __future__ import annotations

import pytest

from coterie.assign.registry import KINDS
from coterie.cli.assign.fields import BadField
from coterie.cli.assign.trial import Trial


def a_line(**changes):
    """Return a line that makes sense, but for the changes."""
    return {
        "assignor": "sticky",
        "partitions": {"t": 4},
        "subscriptions": {"A": ["t"], "B": ["t"]},
        "steps": [{"members": ["A", "B"]}],
    } | changes


def played(line) -> list:
    trial = Trial.of(line)
    return list(trial.play(KINDS[trial.assignor]))


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
def test_a_step_that_does_not_say_what_was_owned_goes_on_from_the_one_before(name):
    first, second = played(a_line(assignor=name, steps=[{"members": ["A"]}, {"members": ["A", "B"]}]))

    assert first.document() == {"A": [("t", 0), ("t", 1), ("t", 2), ("t", 3)]}
    assert second.moves == 2
    assert second.kept("A") == 2
    assert second.lost("A") == 2
    assert second.withheld == (2 if name == "cooperative-sticky" else 0)
    assert second.spread == (2 if name == "cooperative-sticky" else 0)


def test_what_was_owned_and_when_can_be_told_by_member():
    both = {"A": [["t", 0], ["t", 1]], "B": [["t", 0]]}

    for generation, keeper in (({"A": 3, "B": 4}, "B"), ({"A": 3}, "A"), (3, None)):
        step = {"members": ["A", "B"], "owned": both, "generation": generation}
        (outcome,) = played(a_line(assignor="cooperative-sticky", steps=[step]))
        owners = [member for member, share in outcome.assigned.items() if ("t", 0) in share]
        assert owners == ([keeper] if keeper else [])


def test_racks_and_instances_count():
    racked = a_line(
        replicas={"t": [[0], [1], [0], [1]]},
        broker_racks=["a", "b"],
        racks={"A": "b", "B": "a"},
        instances=None,
    )

    (outcome,) = played(racked)

    assert outcome.document() == {"A": [("t", 1), ("t", 3)], "B": [("t", 0), ("t", 2)]}
    (ranged,) = played(a_line(assignor="range", instances={"B": "i"}))
    assert ranged.document() == {"A": [("t", 2), ("t", 3)], "B": [("t", 0), ("t", 1)]}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ([], "the line: expected an object, found []"),
        ({}, "subscriptions: is missing"),
        (a_line(assignor=3), "assignor: expected a string, found 3"),
        (a_line(partitions={"t": -1}), "partitions.t: expected a whole number from 0 to 1000000, found -1"),
        (a_line(partitions={"t": True}), "partitions.t: expected a whole number from 0 to 1000000"),
        (
            a_line(partitions={"t": 10**6, "u": 1}),
            'partitions: expected at most 1,000,000 partitions in all, found {"t": 1000000, "u": 1}',
        ),
        (a_line(subscriptions={"A": "t"}), 'subscriptions.A: expected an array, found "t"'),
        (a_line(subscriptions={"A": ["\ud800"]}), "subscriptions.A[0]: expected a string of at most"),
        (a_line(steps={}), "steps: expected an array, found {}"),
        (a_line(steps=[{}]), "steps[0].members: is missing"),
        (
            a_line(steps=[{"members": ["A", "C"]}]),
            'steps[0].members[1]: expected a member that `subscriptions` names, each once, found "C"',
        ),
        (a_line(steps=[{"members": ["A", "A"]}]), "steps[0].members[1]: expected a member"),
        (
            a_line(steps=[{"members": ["A"], "owned": {"A": [["t"]]}}]),
            'steps[0].owned.A[0]: expected a topic and a partition number, found ["t"]',
        ),
        (a_line(steps=[{"members": ["A"], "owned": {"A": [["t", -1]]}}]), "steps[0].owned.A[0][1]: expected"),
        (a_line(steps=[{"members": ["A"], "generation": "x"}]), "steps[0].generation: expected an object"),
        (a_line(steps=[{"members": ["A"], "generation": -2}]), "steps[0].generation: expected a whole"),
        (a_line(broker_racks=["a"], replicas={"t": [[1]]}), "replicas.t[0][0]: expected a whole"),
        (a_line(racks={"A": 1}), "racks.A: expected a string, found 1"),
        (
            a_line(instances=["a long list of what does not belong here"]),
            'instances: expected an object, found ["a long list of what does not belong he...',
        ),
    ],
)  # fmt: skip
def test_an_error_names_the_field_and_says_what_should_stand_there(line, sentence):
    with pytest.raises(BadField) as refused:
        played(line)

    assert str(refused.value).startswith(sentence)
