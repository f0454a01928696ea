"""Clients of three brokers change the same topics at once; every answer must be one that the metadata bears
out. Faults are planted, each of which some life must find.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coterie.broker.cluster.changes import SetConfigs
from coterie.broker.topics import proposals
from coterie.broker.topics.catalog import OVERTAKEN
from coterie.broker.topics.cluster_topics import ClusterTopics
from coterie.broker.topics.proposals import TopicProposals
from property.topics_life import Life, Violation

LIVES = range(60)
PROPOSALS_LEAST, LOSSES_LEAST = 1_500, 200  # of all lives, or it is no proof

Plant = Callable[[pytest.MonkeyPatch], None]


def run_all() -> list[Life]:
    """Return the lives of all seeds. Raises `Violation`."""
    lives = [Life(seed) for seed in LIVES]
    for life in lives:
        life.run()
    return lives


def test_every_answer_is_one_that_the_metadata_bears_out():
    lives = run_all()

    assert sum(life.proposals for life in lives) > PROPOSALS_LEAST
    assert sum(life.losses for life in lives) > LOSSES_LEAST


def last_writer_wins(patch: pytest.MonkeyPatch) -> None:
    """Settings are set whatever they were made from."""
    rows = SetConfigs.rows

    def blindly(self: SetConfigs, image: Any, new_partition_id: int) -> Any:
        topic = image.topic_by_id(self.topic_id)
        there = self if topic is None else self._replace(made_from=topic.version)
        return rows(there, image, new_partition_id)

    patch.setattr(SetConfigs, "rows", blindly)


def lost_counts_as_made(patch: pytest.MonkeyPatch) -> None:
    """What nobody has answered counts as made."""
    patch.setattr(proposals, "refusal_of", lambda answer: None)


def rest_is_left(patch: pytest.MonkeyPatch) -> None:
    """The topics of a request whose other names are taken are not made, and not refused."""
    patch.setattr(TopicProposals, "_left_of", lambda *_: [])


def overtaken_counts_as_made(patch: pytest.MonkeyPatch) -> None:
    """A change that another was faster with counts as made."""
    refusal = proposals.refusal_of

    def lenient(answer: Any) -> Any:
        found = refusal(answer)
        return None if found is OVERTAKEN else found

    patch.setattr(proposals, "refusal_of", lenient)


def topics_of_old_images(patch: pytest.MonkeyPatch) -> None:
    """A topic that was looked up stays as it was."""

    def take(self: Any, image: Any) -> None:
        self.image = image
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one(None)

    patch.setattr(ClusterTopics, "take", take)


FAULTS: tuple[Plant, ...] = (
    last_writer_wins,
    lost_counts_as_made,
    rest_is_left,
    overtaken_counts_as_made,
    topics_of_old_images,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_found(fault: Plant, monkeypatch: pytest.MonkeyPatch):
    fault(monkeypatch)

    with pytest.raises(Violation):
        run_all()
