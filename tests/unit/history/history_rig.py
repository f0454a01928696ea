"""Groups as their log tells them: records and commits built by hand, and the captures of a real Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from coterie.base.ids import TopicPartition
from coterie.history.group import history_of
from coterie.history.log.records import Entry
from coterie.history.log.runs import Commit, Run, runs_of
from coterie.history.log.segments import GroupLog, entries_of, groups_of
from coterie.history.tables import History
from coterie.wire.payloads.consumer_offsets import GroupMetadataValue, MemberMetadata
from coterie.wire.payloads.consumer_protocol import Assignment, Subscription

CAPTURES = Path(__file__).resolve().parents[4] / "shared" / "captures" / "kafka-4.3.1"
SESSION_MS, POLL_MS = 10_000, 60_000


@cache
def captured() -> Mapping[str, GroupLog]:
    """Every captured group by its name."""
    found: dict[str, GroupLog] = {}
    for directory in sorted(CAPTURES.glob("__consumer_offsets-*")):
        segments = [path.read_bytes() for path in sorted(directory.glob("*.log"))]
        found.update((log.group_id, log) for log in groups_of(entries_of(segments)))
    return found


@cache
def captured_history(group: str) -> History:
    return history_of(*captured()[group])


def truth() -> dict[str, dict[str, dict[str, list[str]]]]:
    found: dict[str, dict[str, dict[str, list[str]]]] = json.loads(
        (CAPTURES / "truth" / "causes.json").read_text()
    )
    return found


class Tale:
    """Writes a group's log: generations, and commits by whoever owns the partitions."""

    def __init__(
        self, *, session_ms: int = SESSION_MS, poll_ms: int = POLL_MS, cadence_ms: int = 500
    ) -> None:
        self.entries: list[Entry] = []
        self.commits: list[Commit] = []
        self.place = 0
        self.generation = 0
        self.session_ms, self.poll_ms, self.cadence_ms = session_ms, poll_ms, cadence_ms

    def formed(
        self,
        at_ms: int,
        members: Mapping[str, Sequence[int] | Mapping[str, Sequence[int]]],
        *,
        owned: Mapping[str, Sequence[int]] | None = None,
        topics: Mapping[str, Sequence[str]] | None = None,
        again: bool = False,
        client: str | None = None,
    ) -> Tale:
        """A generation: members by id (`client/1`, or `client@instance/1`) with their partitions: of their
        first topic, or of each topic. With `client`, that is the client id of all of them.
        """
        self.generation += not again
        seats = tuple(
            self.seat(name, numbers, (owned or {}).get(name), (topics or {}).get(name, ("t",)))
            for name, numbers in members.items()
        )
        if client is not None:
            seats = tuple(one._replace(client_id=client) for one in seats)
        value = GroupMetadataValue(
            "consumer", self.generation, "range" if seats else None, None, at_ms, seats
        )
        self.entries.append(Entry(self.place, at_ms, 2, "g", value=value))
        self.place += 1
        return self

    def gone(self, at_ms: int) -> Tale:
        """The group is no more, or goes on under the other protocol: a tombstone."""
        self.entries.append(Entry(self.place, at_ms, 2, "g"))
        self.place += 1
        return self

    def seat(
        self,
        name: str,
        numbers: Sequence[int] | Mapping[str, Sequence[int]],
        owned: Sequence[int] | None,
        topics: Sequence[str],
    ) -> MemberMetadata:
        who, _, _ = name.partition("/")
        client, _, instance = who.partition("@")
        had = tuple(TopicPartition(topics[0], number) for number in owned or ())
        subscription = Subscription(tuple(topics), None, had, self.generation - 1 if had else -1)
        by_topic = numbers if isinstance(numbers, Mapping) else {topics[0]: numbers}
        assignment = Assignment(
            tuple(TopicPartition(topic, number) for topic, some in by_topic.items() for number in some)
        )
        return MemberMetadata(
            name,
            client,
            "/h",
            self.session_ms,
            subscription.encode(),
            assignment.encode(),
            instance or None,
            self.poll_ms,
        )

    def commit(self, from_ms: int, to_ms: int, *partitions: int, rate: float = 0.05) -> Tale:
        """Commits of these partitions, steadily; the offset goes on with time."""
        for at_ms in range(from_ms, to_ms + 1, self.cadence_ms):
            for number in partitions:
                epoch = len(self.entries)
                self.commits.append(Commit(self.place, at_ms, "t", number, int(at_ms * rate), epoch))
                self.place += 1
        return self

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(runs_of(self.commits))

    def told(self) -> History:
        """What is made of it."""
        return history_of("g", self.entries, self.runs)


def causes(history: History) -> list[set[str]]:
    return [set(one.causes) for one in history.generations]


def stalls(history: History, kind: str, partition: int) -> Iterator[tuple[int, int]]:
    for one in history.stalls:
        if (one.kind, one.partition) == (kind, partition):
            yield one.from_ms, one.to_ms


def told(generation: int, why: list[str], **members: list[int]) -> bytes:
    """Return what a coordinator tells of a rebalance, a second after the one before it."""
    owners = {
        name: {"client_id": name, "host": "/h", "instance_id": None, "partitions": {"t": numbers}}
        for name, numbers in members.items()
    }
    fields = {
        "kind": "rebalance", "group": "g", "generation": generation, "why": why, "at": generation * 1000,
        "formed_at": generation * 1000 + 100, "protocol": "range", "leader": "a", "members": owners,
        "joined": [], "left": [],
    }  # fmt: skip
    return json.dumps(fields).encode()
