"""Assignors by name, also those that other packages bring through entry points."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from coterie.assign.model import Cluster, Member, RebalanceProtocol
from coterie.assign.sticky import Sticky
from coterie.base.errors import CoterieError
from coterie.base.ids import TopicPartition
from coterie.client.consumer.assignors import assignor_factory, assignor_names
from coterie.wire.payloads.consumer_protocol import Subscription

# An assignor that somebody else wrote: all to the first member by the number in its user data.
CUSTOM = """
from coterie.assign.model import RebalanceProtocol


class Greedy:
    name = "greedy"
    protocols = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def __init__(self):
        self.rebalances = 0

    def user_data(self, *, topics, owned, generation):
        return bytes([self.rebalances])

    def assign(self, cluster, members):
        oldest = max(members, key=lambda member: member.subscription.user_data)
        everything = tuple(cluster.partitions_of("t"))
        return {member.member_id: everything if member is oldest else () for member in members}

    def on_assignment(self, partitions, *, generation, member_id):
        self.rebalances += 1


def broken():
    raise TypeError("it wants a moon")


class Nameless:
    name, protocols = "other", ()
"""
ENTRY_POINTS = """
[coterie.assignors]
greedy = greedy_assignor:Greedy
broken = greedy_assignor:broken
missing = greedy_assignor:Missing
absent = no_such_module:Greedy
nameless = greedy_assignor:Nameless
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a package with assignors where Python finds it."""
    metadata = tmp_path / "greedy_assignor-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: greedy-assignor\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "greedy_assignor.py").write_text(CUSTOM)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "greedy_assignor", raising=False)


def test_those_that_come_with_coterie_go_by_their_names_and_by_those_of_javas_classes():
    assert assignor_names() == ["cooperative-sticky", "range", "roundrobin", "sticky"]
    for name in assignor_names():
        assert assignor_factory(name)().name == name
    java = assignor_factory("org.apache.kafka.clients.consumer.StickyAssignor")
    assert isinstance(java(), Sticky)


@pytest.mark.usefixtures("installed")
def test_an_assignor_of_another_package_is_found_and_plays_its_part():
    make = assignor_factory("greedy")
    older, newer = make(), make()
    older.on_assignment((), generation=1, member_id="B")
    members = [
        Member(
            member_id=name,
            subscription=Subscription(("t",), one.user_data(topics=["t"], owned=(), generation=1)),
        )
        for name, one in (("A", newer), ("B", older))
    ]

    given = make().assign(Cluster(partition_counts={"t": 2}), members)

    assert "greedy" in assignor_names()
    assert make().protocols == (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)
    assert given == {"A": (), "B": (TopicPartition("t", 0), TopicPartition("t", 1))}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("broken", "assignor broken: greedy_assignor:broken cannot be used: it wants a moon"),
        ("missing", "assignor missing: greedy_assignor:Missing cannot be used: "),
        ("absent", "assignor absent: no_such_module:Greedy cannot be used: No module named"),
        ("nameless", "assignor nameless: greedy_assignor:Nameless makes something else than an assignor"),
    ],
)
def test_what_is_no_assignor_is_told_of_when_it_is_asked_for(name, sentence):
    with pytest.raises(CoterieError) as refused:
        assignor_factory(name)

    assert str(refused.value).startswith(sentence)


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(
        CoterieError, match="there is no assignor 'fair'; there are cooperative-sticky, range"
    ):
        assignor_factory("fair")
