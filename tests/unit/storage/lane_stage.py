"""A lane without a database: what it sends is noted, and a test answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coterie.base.codes import Code
from coterie.storage.log.contract import AppendRefused
from coterie.storage.remote.chunk import Chunk, PendingAppend, RowKey
from coterie.storage.remote.lane import Lane
from coterie.storage.remote.session import Inserted, LaneAnswer, Look, Reopened

LANDED = "landed"
ALL_WELL = Reopened(in_doubt_there=True, acknowledged_there=True)


@dataclass
class NotedSession:
    """Notes what a lane asks for."""

    sent: list[tuple[int, list[RowKey]]] = field(default_factory=list)
    looks: list[tuple[int, Look]] = field(default_factory=list)
    aborted: int = 0
    chunks: Sequence[Chunk] = ()

    def append(self, life: int, chunks: Sequence[Chunk]) -> None:
        self.chunks = chunks
        self.sent.append((life, [chunk.key for chunk in chunks]))

    def reopen(self, life: int, look: Look) -> None:
        self.looks.append((life, look))

    def abort(self) -> None:
        self.aborted += 1


class Stage:
    """A lane, its session, what is to run soon, and who was called back with what, in order."""

    def __init__(self, *, opened: bool = True, round_bytes: int = 1_000) -> None:
        self.now_ms = 0
        self.session = NotedSession()
        self.soon: list[Callable[[], object]] = []
        self.heard: list[tuple[str, frozenset[int]]] = []
        self.calls: list[tuple[str, str]] = []
        self.lane = Lane(
            self.session,
            self,
            name="lane 0",
            clock=lambda: self.now_ms,
            call_soon=self.soon.append,
            round_bytes=round_bytes,
        )
        self._ends: dict[int, int] = {}
        if opened:
            self.lane.open()
            self.answer(ALL_WELL)

    # -- a listener

    def fenced(self) -> None:
        self.heard.append(("fenced", frozenset()))

    def lost(self, partitions: frozenset[int]) -> None:
        self.heard.append(("lost", partitions))

    def conflicted(self, partitions: frozenset[int]) -> None:
        self.heard.append(("conflicted", partitions))

    # -- what a test does

    def append(
        self, name: str, *, partition: int = 0, size: int = 10, then: Callable[[], object] = lambda: None
    ) -> PendingAppend:
        """Return an append of one record at the end of a partition, called back under its name."""
        base = self._ends.get(partition, 0)
        self._ends[partition] = base + 1

        def done(refusal: AppendRefused | None) -> None:
            self.calls.append((name, LANDED if refusal is None else refusal.code.name))
            then()

        return PendingAppend(partition, base, base, 3, 1_000, 1, size, [bytes(size)], b"h" * 61, done)

    def put(self, *names: str, partition: int = 0, size: int = 10) -> None:
        for name in names:
            self.lane.put(self.append(name, partition=partition, size=size))

    def run(self) -> None:
        """Run what is to run soon, and what that adds."""
        while self.soon:
            self.soon.pop(0)()

    def answer(self, answer: LaneAnswer) -> None:
        """Answer what is under way."""
        self.lane.answered(self.lane.life, answer)

    def all_inserted(self) -> None:
        self.answer(Inserted(len(self.session.chunks)))

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass, and tick when the lane wants it."""
        until_ms = self.now_ms + milliseconds
        while (due_ms := self.lane.next_ms()) is not None and due_ms <= until_ms:
            self.now_ms = due_ms
            self.lane.tick()
        self.now_ms = until_ms

    @property
    def last_sent(self) -> list[RowKey]:
        return self.session.sent[-1][1]


REFUSED = Code.KAFKA_STORAGE_ERROR.name
NOT_LEADER = Code.NOT_LEADER_OR_FOLLOWER.name
