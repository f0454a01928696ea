"""What a rebalance cost, by one definition for the broker's story, the history, and whatever draws them.

A partition stands still from when its owner gives it up until a generation is formed in which somebody has
it. Eager members give up all they have when a rebalance begins; cooperative ones what is to be another's,
when it has formed; members that leave, when it begins. A history, which has commits, knows one thing more:
that a member had stopped reading long before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from coterie.base.ids import TopicPartition

COOPERATIVE = "cooperative-sticky"
Document = Mapping[str, Any]
"""A rebalance as `__group_story` holds it."""


class Cost(NamedTuple):
    """How many partitions had no owner before a generation, the longest such time, and how many moved.

    A partition moved if another member has it than had it last.
    """

    partitions: int = 0
    longest_ms: int = 0
    moved: int = 0


def owners_of(document: Document) -> dict[TopicPartition, str]:
    """Return the member id of each partition's owner after a rebalance."""
    return {
        TopicPartition(topic, number): member_id
        for member_id, member in document["members"].items()
        for topic, numbers in member["partitions"].items()
        for number in numbers
    }


def given_up(
    document: Document, held: Mapping[TopicPartition, str], owners: Mapping[TopicPartition, str]
) -> Iterator[tuple[TopicPartition, int]]:
    """Yield each partition that its owner gives up for a rebalance, and when (ms).

    `held` are the owners before it, `owners` those after it. Nothing is taken from an owner of which the
    rebalance does not say what it has.
    """
    members = document["members"]
    unknown = {member_id for member_id, one in members.items() if not one.get("partitions_known", True)}
    eager = document["protocol"] != COOPERATIVE
    for partition, owner in held.items():
        after = owners.get(partition)
        if after is None and owner in unknown:
            continue
        if eager or after != owner:
            stays = not eager and owner in members
            yield partition, document["formed_at" if stays else "at"]


class Costs:
    """The cost of one rebalance of a group after the other, the oldest first."""

    def __init__(self) -> None:
        self._begun = False
        self._held: dict[TopicPartition, str] = {}
        self._last: dict[TopicPartition, str] = {}
        self._since: dict[TopicPartition, int] = {}

    def of(self, document: Document) -> Cost | None:
        """Return the cost of the next rebalance, None where it does not say who its members are.

        Of a record that is no rebalance it is None, too.
        """
        if document.get("kind") != "rebalance" or document.get("abridged"):
            return None
        self._learn(document)
        owners, formed_ms = owners_of(document), document["formed_at"]
        for partition, at_ms in [*given_up(document, self._held, owners)]:
            del self._held[partition]
            self._since[partition] = max(at_ms, self._since.get(partition, at_ms))
        waited = [formed_ms - self._since.pop(one, formed_ms) for one in owners if one not in self._held]
        still = [one for one in waited if one > 0]
        moved = sum(self._last.get(one, owner) != owner for one, owner in owners.items())
        self._held |= owners
        self._last |= owners
        return Cost(len(still), max(still, default=0), moved)

    def _learn(self, document: Document) -> None:
        """Learn the owners before a rebalance from what its members gained and lost.

        All of them from the first that is read; later those that go by another member id, as a static member
        does that was started again without a rebalance.
        """
        present = {*document["members"], *document["left"]}
        for partition, member_id in before(document).items():
            held = self._held.get(partition)
            if not self._begun or (held is not None and held not in present):
                self._held[partition] = self._last[partition] = member_id
        self._begun = True


def before(document: Document) -> dict[TopicPartition, str]:
    """Return the owners before a rebalance, as far as it says: of those that are members still."""
    found: dict[TopicPartition, str] = {}
    for member_id, member in document["members"].items():
        for topic, numbers in member["partitions"].items():
            kept = set(numbers) - set(member["gained"].get(topic, ()))
            found |= {TopicPartition(topic, number): member_id for number in kept}
        for topic, numbers in member["lost"].items():
            found |= {TopicPartition(topic, number): member_id for number in numbers}
    return found
