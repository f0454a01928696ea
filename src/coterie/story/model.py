"""The story of a group: what moved it, why and whom, and what each rebalance led to.

Values and bookkeeping only: times are arguments, bytes are read elsewhere. `Move.document` and
`Rebalance.document` are the values of the records of the topic `__group_story` (docs/story.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from coterie.base.ids import TopicPartition
from coterie.base.reasons import CAUSE, names

CAUSES = names(CAUSE)

T = TypeVar("T")
Pieces = Generator[int, None, T]
"""Work in pieces, each of which yields how much it was, and returns the result of the whole."""
PARTITIONS_AT_ONCE = 2_000

DECISIONS_OF_A_GROUP = 1_000
DECISIONS_IN_ALL = 20_000
MOVE_BYTES, PERSON_BYTES = 350, 120  # without their texts
BYTES_IN_ALL = 16 << 20  # what strangers name and say can be long (TH-24)


class Person(NamedTuple):
    """Who a member is. A static member that came back has `replaces`, the member id that it had before."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    replaces: str | None = None

    def document(self) -> dict[str, Any]:
        """Return the member as JSON values."""
        return {
            "member_id": self.member_id,
            "client_id": self.client_id,
            "instance_id": self.instance_id,
            "host": self.host,
            "replaces": self.replaces,
        }


class Move(NamedTuple):
    """One decision that moved a group.

    `why` is a cause of the catalogue (`base/reasons.py`), None where the decision only went on with what an
    earlier one had begun. `decision` and `steps` are the core's own reasons. A state of None: no such group.
    `epoch` is that in which the coordinator leads the group's shard.
    """

    at_ms: int
    group: str
    why: str | None
    decision: str
    steps: tuple[str, ...]
    who: tuple[Person, ...]
    reason: str
    state_before: str | None
    state: str | None
    generation: int
    size: int
    epoch: int = 0

    @property
    def weight(self) -> int:
        """About how many bytes it takes to remember it."""
        people = sum(
            PERSON_BYTES + len(one.member_id) + len(one.client_id) + len(one.instance_id or "")
            for one in self.who
        )
        return MOVE_BYTES + len(self.group) + len(self.reason) + people

    def document(self) -> dict[str, Any]:
        """Return the move as the JSON value that `__group_story` holds."""
        return {
            "kind": "move",
            "at": self.at_ms,
            "group": self.group,
            "why": self.why,
            "decision": self.decision,
            "steps": self.steps,
            "who": [person.document() for person in self.who],
            "reason": self.reason,
            "state_before": self.state_before,
            "state": self.state,
            "generation": self.generation,
            "size": self.size,
            "coordinator_epoch": self.epoch,
            "abridged": False,
        }


class MemberView(NamedTuple):
    """A member as a rebalance left it.

    `owned` is None if its assignment cannot be read, `topics` if its subscription cannot.
    """

    person: Person
    owned: frozenset[TopicPartition] | None
    topics: tuple[str, ...] | None

    def document(self, had: frozenset[TopicPartition]) -> dict[str, Any]:
        """Return the member as JSON values, with what it had not had before and what it has no more."""
        owned = self.owned or frozenset()
        return {
            "client_id": self.person.client_id,
            "instance_id": self.person.instance_id,
            "host": self.person.host,
            "partitions": by_topic(owned),
            "partitions_known": self.owned is not None,
            "gained": by_topic(owned - had),
            "lost": by_topic(had - owned),
            "topics": self.topics,
        }


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the numbers of the partitions by topic, ascending."""
    numbers: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        numbers.setdefault(topic, []).append(partition)
    return numbers


def at_once(pieces: Pieces[T]) -> T:
    """Return the result of work in pieces, done without a pause."""
    while True:
        try:
            next(pieces)
        except StopIteration as over:
            result: T = over.value
            return result


class OpenRebalance:
    """A rebalance under way: since when, why, and what everybody had before it, still as bytes."""

    __slots__ = ("at_ms", "causes", "epoch", "formed_at_ms", "generation", "had", "state_before")

    def __init__(
        self, at_ms: int, *, state_before: str | None, had: dict[str, bytes], epoch: int = 0
    ) -> None:
        self.at_ms = at_ms
        self.state_before = state_before
        self.had = had
        self.epoch = epoch
        self.causes: list[str] = []
        self.formed_at_ms: int | None = None
        self.generation: int | None = None  # which was formed then

    def add_cause(self, cause: str) -> None:
        """Note a cause of the rebalance, once."""
        assert cause in CAUSES, cause
        if cause not in self.causes:
            self.causes.append(cause)

    def replaced(self, old_id: str, new_id: str) -> None:
        """Note that a static member goes by another id now: what it had stays its own (ST-1)."""
        if old_id in self.had:
            self.had[new_id] = self.had.pop(old_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """One rebalance, over. Times in ms; `settled`: every member has fetched its assignment."""

    group: str
    at_ms: int
    formed_at_ms: int
    over_at_ms: int
    generation: int
    why: tuple[str, ...]
    state_before: str | None
    state: str
    settled: bool
    leader: str | None
    protocol: str | None
    members: Mapping[str, MemberView]
    had: Mapping[str, frozenset[TopicPartition]] = field(default_factory=dict)
    epoch: int = 0

    @property
    def joined(self) -> tuple[str, ...]:
        """Who is a member and was none before."""
        return tuple(member_id for member_id in self.members if member_id not in self.had)

    @property
    def left(self) -> tuple[str, ...]:
        """Who was a member before and is none."""
        return tuple(member_id for member_id in self.had if member_id not in self.members)

    @property
    def barrier_ms(self) -> int:
        """How long the members took to join."""
        return max(0, self.formed_at_ms - self.at_ms)

    @property
    def stopped_ms(self) -> int:
        """How long it took until all members had their assignments: to the last answered SyncGroup."""
        return max(0, self.over_at_ms - self.at_ms)

    @property
    def moved(self) -> int:
        """How many partitions have another owner than before, or have lost or found one."""
        return at_once(self.moving())

    def moving(self) -> Pieces[int]:
        """Return the count `moved`, in pieces of so many partitions."""
        old: dict[TopicPartition, str] = {}
        new: dict[TopicPartition, str] = {}
        for member, owned in self.had.items():
            old.update(dict.fromkeys(owned, member))
            yield len(owned)
        for member, view in self.members.items():
            new.update(dict.fromkeys(view.owned or (), member))
            yield len(view.owned or ())
        moved = 0
        held, lost = iter(new.items()), iter(old)
        while some := tuple(islice(held, PARTITIONS_AT_ONCE)):
            moved += sum(old.get(partition) != member for partition, member in some)
            yield len(some)
        while gone := tuple(islice(lost, PARTITIONS_AT_ONCE)):
            moved += sum(partition not in new for partition in gone)
            yield len(gone)
        return moved

    def document(self) -> dict[str, Any]:
        """Return the rebalance as the JSON value that `__group_story` holds."""
        return self.whole(dict(self.views()), self.moved)

    def views(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the members by member id, each as the JSON values that `whole` takes."""
        nothing: frozenset[TopicPartition] = frozenset()
        for member_id, view in self.members.items():
            yield member_id, view.document(self.had.get(member_id, nothing))

    def whole(self, members: dict[str, dict[str, Any]], moved: int) -> dict[str, Any]:
        """Return the JSON value `document`, of which these parts are made already."""
        people = {"members": members, "joined": self.joined, "left": self.left, "abridged": False}
        return self.abridged(moved) | people

    def abridged(self, moved: int) -> dict[str, Any]:
        """Return the rebalance as the JSON value that `__group_story` holds, without who is in it."""
        return {
            "kind": "rebalance",
            "at": self.at_ms,
            "formed_at": self.formed_at_ms,
            "group": self.group,
            "generation": self.generation,
            "why": self.why,
            "state_before": self.state_before,
            "state": self.state,
            "settled": self.settled,
            "leader": self.leader,
            "protocol": self.protocol,
            "size": len(self.members),
            "members": {},
            "joined": (),
            "left": (),
            "barrier_ms": self.barrier_ms,
            "stopped_ms": self.stopped_ms,
            "moved": moved,
            "coordinator_epoch": self.epoch,
            "abridged": True,
        }


class StoryMemory:
    """The last decisions of every group, and no more than so many, and so many bytes, in all.

    When there are too many in all, the groups take turns to forget: each is left with half of what would be
    its share, the newest ones. A group that is moved often cannot make the quiet ones forget theirs.
    """

    def __init__(
        self,
        *,
        of_a_group: int = DECISIONS_OF_A_GROUP,
        in_all: int = DECISIONS_IN_ALL,
        bytes_in_all: int = BYTES_IN_ALL,
    ) -> None:
        self._of_a_group = of_a_group
        self._in_all = in_all
        self._bytes_in_all = bytes_in_all
        self._count = 0
        self._bytes = 0
        self._moves: dict[str, list[Move]] = {}
        self._turns: deque[str] = deque()

    def __len__(self) -> int:
        return self._count

    @property
    def weight(self) -> int:
        """About how many bytes all of it takes."""
        return self._bytes

    def add(self, move: Move) -> None:
        """Remember a decision."""
        moves = self._moves.get(move.group)
        if moves is None:
            moves = self._moves[move.group] = []
            self._turns.append(move.group)
        elif len(moves) >= self._of_a_group:
            self._forget(moves, 1)
        moves.append(move)
        self._count += 1
        self._bytes += move.weight
        if self._count > self._in_all or self._bytes > self._bytes_in_all:
            self._make_room()

    def of(self, group: str) -> tuple[Move, ...]:
        """Return the remembered moves of a group, the oldest first."""
        return tuple(self._moves.get(group, ()))

    def _forget(self, moves: list[Move], oldest: int) -> None:
        self._count -= oldest
        self._bytes -= sum(move.weight for move in moves[:oldest])
        del moves[:oldest]

    def _make_room(self) -> None:
        shares = 2 * len(self._moves)
        most, most_bytes = self._in_all // shares, self._bytes_in_all // shares
        while self._count > self._in_all or self._bytes > self._bytes_in_all:
            group = self._turns.popleft()
            moves = self._moves[group]
            self._forget(moves, len(moves) - newest_within(moves, most, most_bytes))
            if moves:
                self._turns.append(group)
            else:
                del self._moves[group]


def newest_within(moves: Sequence[Move], most: int, most_bytes: int) -> int:
    """Return the count of the newest moves that are at most `most`, and weigh at most `most_bytes`."""
    kept = size = 0
    for move in reversed(moves):
        size += move.weight
        if kept >= most or size > most_bytes:
            break
        kept += 1
    return kept
