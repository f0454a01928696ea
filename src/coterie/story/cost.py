"""What a rebalance cost, by one definition for the broker's story, the history, and whatever draws them.

A partition stands still from when its owner gives it up until a generation is formed in which somebody has
it. Eager members give up all they have when a rebalance begins; cooperative ones what is to be another's,
when it has formed; members that leave, when it begins. While a group has no members all its partitions do,
until it has some again: whoever died alone is missed as much as one of several. That time is told apart,
since nobody may have wanted them. A history, which has commits, knows one thing more: that a member had
stopped reading long before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from coterie.base.ids import TopicPartition

COOPERATIVE = "cooperative-sticky"
EMPTY, COMPLETING = "Empty", "CompletingRebalance"
Document = Mapping[str, Any]
"""A rebalance as `__group_story` holds it."""


class Cost(NamedTuple):
    """How many partitions had no owner before a generation, the longest such time, and how many moved.

    A partition moved if another member has it than had it last.
    """

    partitions: int = 0
    longest_ms: int = 0
    moved: int = 0
    silent_ms: int = 0
    """How much of the longest time there was an owner that read nothing: what only a history knows."""
    empty_ms: int = 0
    """How long the group had had no members."""
    missing: int = 0
    """How many generations before it the story does not tell of."""

    @property
    def unowned_ms(self) -> int:
        """The longest time without an owner: what history and story both know."""
        return self.longest_ms - self.silent_ms


def is_rebalance(document: Document) -> bool:
    """Return whether a record of the story is about a rebalance, and not about a single decision."""
    return document.get("kind") == "rebalance"


def is_assigned(document: Document) -> bool:
    """Return whether a generation came to be assigned: in one that is cut short before, nobody has anything.

    Its eager members have given up what they had nevertheless, and its log does not have it.
    """
    return document.get("state") != COMPLETING


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
    rebalance does not say what it has; nor from a cooperative one that stays, where nothing was assigned.
    """
    members = document["members"]
    assigned = is_assigned(document)
    unknown = {member_id for member_id, one in members.items() if not one.get("partitions_known", True)}
    eager = document["protocol"] != COOPERATIVE
    for partition, owner in held.items():
        after = owners.get(partition)
        if after is None and owner in unknown:
            continue
        stays = not eager and owner in members
        if eager or (after != owner and (assigned or not stays)):
            yield partition, document["formed_at" if stays else "at"]


class GenerationBefore(NamedTuple):
    """A generation, as far as it says what the next one of its group's name is."""

    generation: int
    formed_ms: int
    has_members: bool

    def is_of_another(self, generation: int) -> bool:
        """Return whether the next generation is of another group of the name: this one was deleted, or had
        expired, and numbers begin anew.
        """
        return generation <= self.generation and not self.has_members

    def missing(self, generation: int) -> int:
        """Return the number of generations that are missing before the next one."""
        return max(0, generation - self.generation - 1)

    def empty_ms(self, formed_ms: int) -> int:
        """Return the time (ms) without members before the group's next generation."""
        return 0 if self.has_members else max(0, formed_ms - self.formed_ms)


class Costs:
    """The cost of one rebalance of a group after the other, the oldest first."""

    def __init__(self) -> None:
        self._before: GenerationBefore | None = None
        self._held: dict[TopicPartition, str] = {}
        self._last: dict[TopicPartition, str] = {}
        self._since: dict[TopicPartition, int] = {}

    def of(self, document: Document) -> Cost | None:
        """Return the cost of the next rebalance, None where it does not say who its members are.

        Of a record that is no rebalance it is None, too.
        """
        if not is_rebalance(document):
            return None
        last = self._followed_by(document)
        if document.get("abridged"):
            return None
        missing = 0 if last is None else last.missing(document["generation"])
        if missing:
            self._forget_owners_before_a_hole(document)
        self._learn(document, anew=last is None or missing > 0)
        owners, formed_ms = owners_of(document), document["formed_at"]
        for partition, at_ms in [*given_up(document, self._held, owners)]:
            del self._held[partition]
            self._since[partition] = max(at_ms, self._since.get(partition, at_ms))
        waited = [formed_ms - self._since.pop(one, formed_ms) for one in owners if one not in self._held]
        still = [one for one in waited if one > 0]
        moved = sum(self._last.get(one, owner) != owner for one, owner in owners.items())
        self._held |= owners
        self._last |= owners
        empty_ms = 0 if last is None or not document["members"] else last.empty_ms(formed_ms)
        return Cost(len(still), max(still, default=0), moved, empty_ms=empty_ms, missing=missing)

    def _followed_by(self, document: Document) -> GenerationBefore | None:
        """Return the generation before a rebalance, None where none of the same group is known."""
        last, generation = self._before, document["generation"]
        has_members = bool(document["members"] or document.get("abridged"))
        self._before = GenerationBefore(generation, document["formed_at"], has_members)
        if last is not None and last.is_of_another(generation):
            self._held, self._last, self._since = {}, {}, {}
            return None
        return last

    def _forget_owners_before_a_hole(self, document: Document) -> None:
        """Forget the owners of whom a generation that is missing may have taken what they had: all but those
        who left with this rebalance.
        """
        left = () if document.get("state_before") == EMPTY else document["left"]
        self._held = {partition: owner for partition, owner in self._held.items() if owner in left}

    def _learn(self, document: Document, *, anew: bool) -> None:
        """Learn the owners before a rebalance from what its members gained and lost.

        All of them from the first that is read (`anew`), and where one before it is not told; later those
        that go by another member id, as a static member does that was started again without a rebalance.
        """
        present = {*document["members"], *document["left"]}
        for partition, member_id in before(document).items():
            held = self._held.get(partition)
            if anew or (held is not None and held not in present):
                self._held[partition] = self._last[partition] = member_id


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
