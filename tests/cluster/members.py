"""Members of one cluster over one database, in virtual time: what each is told to serve is recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from uuid import UUID

from coterie.base.topic_names import OFFSETS_TOPIC
from coterie.broker.cluster.applying import differences
from coterie.broker.cluster.changes import Change, Changed, NotChanged, PartitionKey
from coterie.broker.cluster.database import Database
from coterie.broker.cluster.giving_back import HANDED_BYTES
from coterie.broker.cluster.image import Image, PartitionRow
from coterie.broker.cluster.lifecycle import BrokerLifecycle
from coterie.broker.cluster.member import ClusterMember
from coterie.broker.cluster.pretended import EngineOfBroker, Fate
from coterie.broker.cluster.statements import Statement
from coterie.broker.cluster.terms import LifecycleTerms
from coterie.storage.remote.pretended import Fate as LaneFate


class RecordingHosting:
    """What a broker is told, in its order. What it has decided lands at once, unless it is held up."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.image = Image()
        self.led: dict[tuple[str, int], tuple[int | None, int]] = {}
        self.held: list[Callable[[], None]] | None = None
        self.released: list[PartitionKey] = []
        self.loads = False
        self.weight = HANDED_BYTES
        self.empty: set[tuple[UUID, int]] = set()
        self.sentence: str | None = None
        self.may_fail = False

    def apply(self, before: Image, after: Image) -> None:
        assert before == self.image
        self.image = after
        self.calls.append(f"apply {after.version}")
        found = differences(before, after)
        for topic, partitions in found.deleted:
            for row in partitions:
                del self.led[topic.name, row.number]
        for name, row in found.elections:
            self.led[name] = (row.leader, row.leader_epoch)

    def is_settled(self) -> bool:
        return not self.loads

    def weigh(self, partition: PartitionRow) -> int:
        topic = self.image.topic_by_id(partition.topic_id)
        assert topic is not None
        is_shard = topic.name == OFFSETS_TOPIC and (partition.topic_id, partition.number) not in self.empty
        return self.weight if is_shard else 0

    def serve(self, broker_epoch: int) -> None:
        self.calls.append(f"serve {broker_epoch}")

    def suspend(self, why: str) -> None:
        self.calls.append("suspend")

    def resume(self, *, anew: bool) -> None:
        self.calls.append("resume anew" if anew else "resume")

    def fence(self) -> None:
        self.calls.append("fence")

    def drain(self, done: Callable[[], None]) -> None:
        self.calls.append("drain")
        self._land(done)

    def release(self, partitions: Sequence[PartitionKey], done: Callable[[], None]) -> None:
        self.calls.append("release")
        self.released += partitions
        self._land(done)

    def _land(self, done: Callable[[], None]) -> None:
        if self.held is None:
            done()
        else:
            self.held.append(done)

    def exit(self, sentence: str) -> None:
        fault = sys.exception()
        if fault is not None and not self.may_fail:
            raise fault
        self.sentence = sentence
        self.calls.append("exit")

    @property
    def told(self) -> list[str]:
        """All but images."""
        return [call for call in self.calls if not call.startswith("apply")]


class Broker:
    """One process: a member, its hosting and its timer."""

    def __init__(self, cluster: Members, broker_id: int, *, cluster_id: str | None = None) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.alive = True
        self.stopped = False
        self.reaches = True
        self.connect_ms = 1
        self.fate = Fate(1, 2)
        self.fates: list[Fate] = []
        """Of the next changes, one after another."""
        self.hosting = RecordingHosting()
        self.known: list[list[tuple[int, ...]]] = []
        """Who was live by the images of all, each time that the broker was said to serve."""
        self._timer = 0
        terms = LifecycleTerms()
        self.lifecycle = BrokerLifecycle(broker_id, terms, incarnation=UUID(int=cluster.next_number()))
        engine = EngineOfBroker(
            cluster.database.metadata,
            broker_id,
            later=self._later,
            choose=self._choose,
            connect_ms=lambda: self.connect_ms if self.reaches else None,
        )
        self.member = ClusterMember(
            self.lifecycle,
            engine,
            self.hosting,
            clock=lambda: cluster.now,
            arm=self._arm,
            serving=lambda: self.known.append([one.member.image.live for one in cluster.brokers]),
            cluster_id=cluster_id,
        )
        self.member.begin()

    def _choose(self, statement: Statement) -> Fate:
        if isinstance(statement, Change) and self.fates:
            return self.fates.pop(0)
        return self.fate

    def _later(self, delay_ms: int, do: Callable[[], None]) -> None:
        self.cluster.later(delay_ms, lambda: do() if self.alive else None)

    def _arm(self, at_ms: int | None) -> None:
        self._timer += 1
        timer = self._timer
        if at_ms is not None:
            due = lambda: self.member.tick() if timer == self._timer and self.alive else None  # noqa: E731
            self.cluster.later(max(at_ms - self.cluster.now, 1), due)

    def kill(self) -> None:
        """End at once, sessions with it."""
        self.alive = False
        for session in [*self.cluster.database.metadata._sessions]:
            if session.broker_id == self.broker_id:
                self.cluster.later(10, session.close)


class Members:
    """The cluster, its database, and time."""

    def __init__(self, brokers: int = 3) -> None:
        self.now = 0
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self.database = Database(choose=lambda _: LaneFate(), later=self.later)
        self.brokers = [Broker(self, number + 1) for number in range(brokers)]

    def next_number(self) -> int:
        """Return a number that nobody else has."""
        self._number += 1
        return self._number

    def later(self, delay_ms: int, do: Callable[[], None]) -> None:
        """Have something done so much later."""
        heappush(self._agenda, (self.now + delay_ms, self.next_number(), do))

    def run(self, for_ms: int) -> None:
        """Let time pass."""
        until = self.now + for_ms
        while self._agenda and self._agenda[0][0] <= until:
            self.now, _, do = heappop(self._agenda)
            do()
        self.now = until

    def until(self, holds: Callable[[], object], within_ms: int = 20_000) -> int:
        """Let time pass until it holds, and return how much."""
        begun = self.now
        while not holds():
            assert self.now - begun < within_ms, "it does not come about"
            self.run(1)
        return self.now - begun

    def change(self, change: Change) -> int:
        """Have a change made that nobody sends."""
        answer = self.database.metadata.execute(change)
        assert isinstance(answer, Changed)
        return answer.version

    def propose(self, broker: Broker, change: Change) -> list[Changed | NotChanged | None]:
        """Have a broker propose a change; return the list that its answer comes to."""
        answers: list[Changed | NotChanged | None] = []
        broker.member.propose(change, answers.append)
        assert not answers, "nothing is answered from within"
        return answers
